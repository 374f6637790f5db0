"""The page in a real Chromium: nothing hostile runs, filters and search work, the answer needs no scrolling."""

import pytest
from chromium import Browser, chromium_or_skip
from made_run import MadeScorer, make_run, make_transcript

from eval import report_pages
from eval.judge import ScorerJudge, score_run
from eval.report import build_report
from eval.report_pages import write_report
from eval.runs import append_to_run, load_run

EVIL = [
    "<script>window.ran = 1; alert(1)</script>",
    "</script><script>window.ran = 2</script>",
    "</style></title><img src=x onerror='window.ran=3'>",
    "<svg onload=window.ran=4> <iframe srcdoc='<script>parent.ran=5</script>'>",
    "\u202eright to left\u2066 \u2028 \u2029 {{ 7 * 7 }} <!--",
    "y" * 100_000 + "\" onmouseover='window.ran=6' x='",
    "]]></textarea><a href='javascript:window.ran=7'>press</a>",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium_or_skip()
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def report_of(tmp_path, runs):
    made = []
    for name, transcripts in runs.items():
        folder = make_run(tmp_path / f"run{len(made)}", name, transcripts=transcripts)
        with append_to_run(folder) as run:
            score_run(run, ScorerJudge(MadeScorer(better=("tuned",))))
        made.append(load_run(folder))
    return build_report(made)


def transcripts_of(name, cards=30):
    english = ["Hello.", "I cannot sleep.", "1. Rest\n2. Eat\n3. Run", "As an AI language model I cannot.", "Bye."]
    chinese = ["你好。", "我最近总是失眠。", "听起来很辛苦。", "是的，我很累。", "慢慢来。"]
    return [
        make_transcript(
            f"card-{n}", 0, name, texts=chinese if n % 3 == 0 else english, language="zh" if n % 3 == 0 else "en"
        )
        for n in range(cards)
    ]


def type_in(browser, text):
    browser.run(
        f"(() => {{ const box = document.getElementById('search'); box.value = {text!r};"
        " box.dispatchEvent(new Event('input')); return new Promise((done) => setTimeout(done, 300)); })()"
    )
    return browser.run("document.getElementById('status').textContent")


def choose(browser, name, value):
    browser.run(
        f"(() => {{ const box = document.getElementById('filter-{name}'); box.value = {value!r};"
        " box.dispatchEvent(new Event('change')); })()"
    )
    return browser.run("document.getElementById('status').textContent")


def test_filters_search_and_pages(browser, tmp_path):
    report = report_of(tmp_path, {name: transcripts_of(name) for name in ("base", "tuned")})
    write_report(report, tmp_path / "out")
    browser.said.clear()
    browser.open(tmp_path / "out" / "report.html")
    assert browser.run("document.getElementById('status').textContent") == "60 of 60 dialogues, 30 cards"
    assert browser.run("document.querySelectorAll('#list details').length") == 20
    browser.run("[...document.querySelectorAll('.pager button')].at(-1).click()")
    assert browser.run("document.querySelectorAll('#list details').length") == 10
    assert choose(browser, "supporter", "=tuned") == "30 of 60 dialogues, 30 cards"
    assert choose(browser, "language", "=zh") == "10 of 60 dialogues, 10 cards"
    assert type_in(browser, "失眠") == "10 of 60 dialogues, 10 cards"
    assert type_in(browser, "CARD-27") == "1 of 60 dialogues, 1 card"
    # A single card is open at once, and shows its turns as they were said.
    assert "我最近总是失眠。" in browser.run("document.getElementById('list').textContent")
    assert type_in(browser, "said by nobody") == "0 of 60 dialogues, 0 cards"
    type_in(browser, "")
    choose(browser, "language", "")
    assert choose(browser, "fault", "=seeker speaks_as_ai") == "20 of 60 dialogues, 20 cards"
    browser.run("document.querySelector('#list summary').click()")
    browser.run("new Promise((done) => setTimeout(done, 100))")
    marked = browser.run("[...document.querySelectorAll('.turn .mark')].map((e) => e.closest('.turn').textContent)")
    assert any("speaks_as_ai" in turn and "As an AI language model" in turn for turn in marked)
    assert browser.said == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_first_screen_answers_without_scrolling(browser, tmp_path, count):
    names = ["tuned", "base", "third", "fourth", "fifth"][:count]
    write_report(report_of(tmp_path, {name: transcripts_of(name, 12) for name in names}), tmp_path / "out")
    browser.open(tmp_path / "out" / "report.html")
    inside = "[...document.querySelectorAll('h1, .detail, .first table')].map((e) => e.getBoundingClientRect().bottom)"
    bottoms = browser.run(inside)
    assert len(bottoms) >= 3
    assert max(bottoms) < 768
    assert browser.run("document.documentElement.scrollWidth") <= 1366
    text = browser.run("document.querySelector('h1').innerText + document.querySelector('.detail').innerText")
    assert "tuned" in text
    assert "interval" in text or "Clearly ahead of" in text


def test_hostile_text_is_shown_and_runs_nothing(browser, tmp_path):
    evil = [make_transcript(f"c{n}", 0, EVIL[0], texts=["Hello.", text, text]) for n, text in enumerate(EVIL)]
    mine = [make_transcript(f"c{n}", 0, "</script><b>tuned") for n in range(len(EVIL))]
    write_report(report_of(tmp_path, {EVIL[0]: evil, "</script><b>tuned": mine}), tmp_path / "out")
    browser.said.clear()
    browser.open(tmp_path / "out" / "report.html")
    for n, text in enumerate(EVIL):
        assert type_in(browser, f"c{n}").endswith(" 1 card")
        shown = browser.run("[...document.querySelectorAll('#list .text')].map((e) => e.textContent)")
        assert text in shown
    assert browser.run("window.ran") is None
    assert browser.run(
        "document.querySelectorAll('#list img, #list script, #list iframe, #list svg, #list a, b').length"
    ) == (browser.run("document.querySelectorAll('.first b').length"))
    assert browser.run("document.documentElement.scrollWidth") <= 1366
    assert browser.said == []


def test_dialogues_too_many_for_a_page_lie_beside_it(browser, tmp_path, monkeypatch):
    report = report_of(tmp_path, {name: transcripts_of(name) for name in ("base", "tuned")})
    monkeypatch.setattr(report_pages, "viewer_parts", lambda made: report_viewer_parts(made, 20_000))
    from eval.report_viewer import viewer_parts as report_viewer_parts

    files = write_report(report, tmp_path / "out")
    pages = sorted(path for path in files if path.name.startswith("dialogues-"))
    assert len(pages) > 1
    browser.said.clear()
    found = []
    for page in pages:
        browser.open(page)
        found.append(int(browser.run("document.getElementById('status').textContent").split()[0]))
    assert sum(found) == 60
    browser.open(tmp_path / "out" / "report.html")
    assert browser.run("[...document.querySelectorAll('main a')].map((e) => e.getAttribute('href'))") == [
        page.name for page in pages
    ]
    assert browser.said == []
    # A later report that fits into one page leaves no old pages behind.
    monkeypatch.undo()
    write_report(report, tmp_path / "out")
    assert not list((tmp_path / "out").glob("dialogues-*.html"))
