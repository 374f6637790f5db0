"""Reports of made runs: figures by hand, refusals, hostile text, and what the commands print and exit with."""

import base64
import csv
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import typer
from made_run import MadeScorer, make_run, make_transcript
from typer.testing import CliRunner

from data_prep.errors import UserError
from data_prep.rubric import load_rubric
from eval import cli_report
from eval.judge import ScorerJudge, score_run, scorer_label
from eval.report import AVERAGE, build_report
from eval.report_pages import markdown_cell, write_report
from eval.report_text import answer
from eval.runs import EndReason, append_to_run, load_run
from eval.statistics import holm

EVIL = [
    "<script>alert(1)</script>",
    "</style></title></p><img src=x onerror=alert(2)>",
    "| a | b |\n|---|---|\n# heading `code` **bold** [link](javascript:alert(3)) $x$",
    "\u202e\u2066 {{ 7 * 7 }} {% raw %} \x00 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "x" * 100_000 + "\" onmouseover='alert(4)",
]


def scored(folder, supporter="made", scorer=None, **settings):
    make_run(folder, supporter, **settings)
    with append_to_run(folder) as run:
        score_run(run, ScorerJudge(scorer or MadeScorer()))
    return load_run(folder)


@pytest.fixture
def two(tmp_path):
    scorer = MadeScorer(better=("tuned",))
    return [scored(tmp_path / name, name, scorer, cards=16, samples=2) for name in ("base", "tuned")]


class Page(HTMLParser):
    """Tags, attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.texts.append(data)


def test_figures_are_those_of_the_judgments(two):
    report = build_report(two)
    assert [entry.label for entry in report.entries] == ["tuned", "base"]
    by_card = {}
    for judgment in two[0].judgments():
        by_card.setdefault(judgment.dialogue_key.split("#")[0], []).append(judgment.expected)
    expected = np.mean([np.mean(values) for values in by_card.values()])
    figure = report.entries[1].figures[AVERAGE]
    assert figure.level.mean == pytest.approx(expected)
    assert figure.percent.mean == pytest.approx(expected * 25)
    assert figure.percent.n_cards == 16
    assert figure.level.low * 25 == pytest.approx(figure.percent.low)


def test_comparison_is_paired_and_corrected(two):
    report = build_report(two)
    comparison = report.comparisons[0]
    means = [entry.figures[AVERAGE].percent.mean for entry in report.entries]
    assert comparison.by_column[AVERAGE].interval.mean == pytest.approx(means[0] - means[1])
    names = report.rubric.names()
    raw = [comparison.by_column[name].p_value for name in names]
    assert [comparison.holm_p[name] for name in names] == holm(raw)
    assert comparison.holm_p[AVERAGE] == comparison.by_column[AVERAGE].p_value
    assert comparison.clear
    head, detail = answer(report)
    assert head.startswith("tuned scores higher than base, by ")
    assert "16 shared cards" in detail


def test_equal_supporters_are_told_so_with_what_would_have_been_missed(tmp_path):
    runs = [scored(tmp_path / name, name, cards=12) for name in ("left", "right")]
    head, detail = answer(build_report(runs))
    assert head.startswith("No clear difference between")
    assert "would often be missed" in detail


def test_one_run_gives_a_table_and_no_comparison(tmp_path):
    report = build_report([scored(tmp_path / "run")])
    assert report.comparisons == []
    assert report.entries[0].figures[AVERAGE].detectable > 0
    assert "of 100 on average" in answer(report)[0]


def test_too_few_cards_for_any_clear_difference_is_said(tmp_path):
    scorer = MadeScorer(better=("tuned",), shift=1.0)
    few = [scored(tmp_path / name, name, scorer, cards=5) for name in ("base", "tuned")]
    report = build_report(few)
    assert not report.comparisons[0].clear
    assert any("fewer than six shared cards" in warning for warning in report.warnings)


def test_many_runs_are_ranked_and_every_pair_is_in_the_correction(tmp_path):
    scorer = MadeScorer(better=("b", "d"))
    report = build_report([scored(tmp_path / name, name, scorer, cards=12) for name in "abcd"])
    assert {entry.label for entry in report.entries[:2]} == {"b", "d"}
    assert len(report.comparisons) == 6
    raw = [comparison.by_column[AVERAGE].p_value for comparison in report.comparisons]
    assert [comparison.holm_p[AVERAGE] for comparison in report.comparisons] == holm(raw)
    head, detail = answer(report)
    assert "highest average" in head
    assert "Clearly ahead of" in detail
    assert "Not clearly ahead of" in detail


def test_mixed_scales_have_an_average_on_the_percent_scale_only(tmp_path):
    class Mixed(MadeScorer):
        def __init__(self):
            super().__init__()
            short, *rest = self.rubric.dimensions
            anchors = {level: short.anchors[level] for level in range(3)}
            short = short.model_copy(update={"scale": (0, 2), "anchors": anchors})
            self.rubric = self.rubric.model_copy(update={"dimensions": (short, *rest)})

    report = build_report([scored(tmp_path / "run", scorer=Mixed())])
    figures = report.entries[0].figures
    assert figures[AVERAGE].level is None
    parts = [figures[name].percent.mean for name in report.rubric.names()]
    assert figures[AVERAGE].percent.mean == pytest.approx(np.mean(parts))


def test_missing_is_counted_with_its_reason_and_never_a_number(tmp_path):
    transcripts = [make_transcript(f"c{c}") for c in range(6)]
    transcripts.append(make_transcript("broken", end_reason=EndReason.supporter_error))
    run = scored(tmp_path / "run", transcripts=transcripts)
    report = build_report([run])
    entry = report.entries[0]
    assert entry.figures[AVERAGE].percent.n_cards == 6
    assert dict(entry.missing) == {"not scored: the dialogue ended with supporter_error": 1}
    assert any("flatters" in warning for warning in report.warnings)
    write_report(report, tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "scores.csv").open()))
    assert len(rows) == 7 * 7
    assert {row["expected"] for row in rows if row["card"] == "broken"} == {""}
    assert all(row["reason"] for row in rows if row["card"] == "broken")


def test_dialogues_added_after_scoring_are_not_scored_yet(tmp_path):
    scored(tmp_path / "run", cards=3)
    with append_to_run(tmp_path / "run") as run:
        run.add_transcripts([make_transcript("new")])
    report = build_report([load_run(tmp_path / "run")])
    assert dict(report.entries[0].missing) == {"not scored yet": 1}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeker": {"label": "hf:other"}}, "seeker.label"),
        ({"simulation": {"seeker_prompt": {"name": "seeker", "version": 2, "sha": "f" * 12}}}, "seeker_prompt"),
        ({"simulation": {"rounds": 3}}, "simulation.rounds: 2 in base, 3 in tuned"),
        ({"simulation": {"greeting_shown_to_supporter": False}}, "greeting_shown"),
    ],
)
def test_runs_that_differ_in_more_than_the_supporter_are_refused(tmp_path, changes, named):
    runs = [scored(tmp_path / "base", "base"), scored(tmp_path / "tuned", "tuned", **changes)]
    with pytest.raises(UserError, match=re.escape(named)):
        build_report(runs)
    forced = build_report(runs, force=True)
    assert any(named.split(":")[0] in warning for warning in forced.warnings)


def test_what_belongs_to_the_supporter_or_the_amount_may_differ(tmp_path):
    base = scored(tmp_path / "base", "base")
    sampling = {"max_new_tokens": 512, "temperature": 0.0, "top_p": 1.0}
    changed = {"supporter_sampling": sampling, "seed": 8, "samples": 2}
    tuned = scored(tmp_path / "tuned", "tuned", simulation=changed, cards=5)
    report = build_report([base, tuned])
    assert any("set up differently" in warning and "512" in warning for warning in report.warnings)
    assert report.comparisons[0].by_column[AVERAGE].interval.n_cards == 5


def test_same_card_id_with_another_card_is_refused(tmp_path):
    base = scored(tmp_path / "base", "base", cards=2)
    other = [make_transcript(f"c{c}", supporter="tuned", language="zh") for c in range(2)]
    tuned = scored(tmp_path / "tuned", "tuned", transcripts=other)
    with pytest.raises(UserError, match="another card"):
        build_report([base, tuned])


def test_scorers_are_never_mixed_silently(tmp_path):
    first, second = MadeScorer(), MadeScorer(weights="w2")
    base, tuned = scored(tmp_path / "base", "base", first), scored(tmp_path / "tuned", "tuned", second)
    with pytest.raises(UserError, match="was judged by made-rank@"):
        build_report([base, tuned])
    assert any("scorers'" in warning for warning in build_report([base, tuned], force=True).warnings)
    for folder, scorer in (("base", second), ("tuned", first)):
        with append_to_run(tmp_path / folder) as run:
            score_run(run, ScorerJudge(scorer))
    with pytest.raises(UserError, match="name one with --scorer"):
        build_report([base, tuned])
    label = scorer_label(ScorerJudge(second))
    assert list(build_report([base, tuned], scorer=label).scorers) == [label]
    with pytest.raises(UserError, match="did not judge here"):
        build_report([base, tuned], scorer="nobody")


def test_unlike_rubrics_cannot_be_compared_even_by_force(tmp_path):
    base = scored(tmp_path / "base", "base")
    other = scored(tmp_path / "tuned", "tuned", MadeScorer(rubric="esconv_survey"))
    with pytest.raises(UserError, match="other dimensions"):
        build_report([base, other], force=True)


def test_unscored_run_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="esckit score"):
        build_report([load_run(make_run(tmp_path / "run"))])


def test_equal_names_are_told_apart_by_their_run(tmp_path):
    runs = [scored(tmp_path / name, "same") for name in ("one", "two")]
    assert {entry.label for entry in build_report(runs).entries} == {"same (one)", "same (two)"}


def hostile(tmp_path):
    transcripts = [
        make_transcript(f"c{place}", supporter=EVIL[0] + "|", texts=[text, *EVIL[::-1]])
        for place, text in enumerate(EVIL)
    ]
    transcripts.append(
        make_transcript("<b>|c", supporter=EVIL[0] + "|", end_reason=EndReason.seeker_error).model_copy(
            update={"detail": EVIL[1]}
        )
    )
    run = scored(tmp_path / "run", EVIL[0] + "|", transcripts=transcripts)
    other = scored(tmp_path / "other", "\u202eevil\x07 **b**", cards=5)
    report = build_report([run, other], force=True)
    return report, {path.name: path.read_text() for path in write_report(report, tmp_path / "out")}


def test_hostile_text_stays_text_in_html(tmp_path):
    _, files = hostile(tmp_path)
    page = Page(files["report.html"])
    clean = {"img", "iframe", "object", "embed", "link", "form", "a", "base", "b"}
    assert not clean & set(page.tags)
    assert page.tags.count("script") == 2, "the data and the viewer"
    assert page.tags.count("style") == 1 + files["report.html"].count('<style type="text/css">')
    assert page.tags.count("title") == 1
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', files["report.html"], re.DOTALL)
    said = "\n".join(turn["text"] for dialogue in json.loads(block[1])["dialogues"] for turn in dialogue["turns"])
    for part in (EVIL[0], "{{ 7 * 7 }}", "x" * 100_000):
        assert part in said
    names = re.findall(r"<h1>(.*?)</h1>|<bdi>(.*?)</bdi>", files["report.html"], flags=re.DOTALL)
    assert any("⟨U+202E⟩evil" in "".join(name) for name in names)
    assert not any("\u202e" in "".join(name) for name in names), "a name cannot turn the line around"
    # Nothing is loaded: no address in any attribute but the XML namespaces of the plot.
    links = [a for a in page.attributes if a[1] in ("src", "href", "xlink:href") and not a[2].startswith("#")]
    assert links == []
    assert "default-src 'none'" in files["report.html"]
    script = re.search(r"<script>(.*?)</script>", files["report.html"], re.DOTALL)[1]
    allowed = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src '{allowed}'" in files["report.html"]


def test_hostile_text_stays_in_its_markdown_cell(tmp_path):
    _, files = hostile(tmp_path)
    assert "<script" not in files["report.md"]
    block = []
    for line in [*files["report.md"].split("\n"), ""]:
        if line.startswith("|"):
            block.append(len(re.findall(r"(?<!\\)\|", line)))
        elif block:
            assert len(set(block)) == 1
            assert len(block) > 2
            block = []


def test_markdown_cell_is_one_line_without_markup():
    assert markdown_cell("a|b\n\n# c\\|d <i>") == r"a\|b \# c\\\|d &lt;i&gt;"
    assert markdown_cell("\u202ex") == "⟨U+202E⟩x"


def test_page_says_what_it_must(two, tmp_path):
    files = {path.name: path.read_text() for path in write_report(build_report(two), tmp_path / "out")}
    for text in files["report.html"], files["report.md"]:
        assert "they are not clinical judgments" in text
        assert "made-rank@" in text
        assert "illustrative samples" not in text
        assert "222222222222" in text, "the seeker prompt's sha"
    assert files["report.html"].count("<svg") == 2
    assert files["report.html"].count('"supporter":0') == files["report.html"].count('"supporter":1') == 32


def test_illustrative_scorer_is_named_as_such(tmp_path):
    run = scored(tmp_path / "run", scorer=MadeScorer(illustrative=True))
    report = build_report([run])
    assert any("illustrative samples" in warning for warning in report.warnings)
    head = next(path for path in write_report(report, tmp_path / "out") if path.suffix == ".html").read_text()
    assert head.index("illustrative samples") < head.index("<table")


def test_same_report_same_bytes(two, tmp_path):
    first, second = (write_report(build_report(two), tmp_path / name) for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_no_score_at_all_still_makes_a_report(tmp_path):
    transcripts = [make_transcript("a", end_reason=EndReason.seeker_empty)]
    report = build_report([scored(tmp_path / "run", transcripts=transcripts)])
    assert "has no score" in answer(report)[0]
    write_report(report, tmp_path / "out")


@pytest.fixture
def app():
    application = typer.Typer()
    application.command()(cli_report.score)
    application.command()(cli_report.report)
    return application


def test_commands_end_to_end(tmp_path, app, monkeypatch):
    monkeypatch.setattr("eval.judge.load_judge", lambda path, rubric: ScorerJudge(MadeScorer(better=("tuned",))))
    for name in ("base", "tuned"):
        make_run(tmp_path / name, name)
        done = CliRunner().invoke(app, ["score", str(tmp_path / name), "--scorer", "x", "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["scored"] == 8
    arguments = ["report", str(tmp_path / "base"), str(tmp_path / "tuned"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [supporter["label"] for supporter in found["supporters"]] == ["tuned", "base"]
    assert len(found["differences"]) == 8
    assert (tmp_path / "out" / "report.html").exists()


@pytest.fixture
def saved_scorer(tmp_path, tiny_encoder):
    """Folder of a real, untrained scorer on the tiny encoder: all of its parts, no training."""
    from train.models import load_backbone, load_tokenizer
    from train.recipe import ModelSection
    from train.scorer import ScorerConfig, TrainedRubric, new_heads, save_config
    from train.scorer_model import ScorerModel, save_weights

    rubric, section, folder = load_rubric("esc_eval"), ModelSection(base=str(tiny_encoder)), tmp_path / "scorer"
    backbone = load_backbone(section)
    save_weights(ScorerModel(backbone, new_heads(backbone, [rubric]), "mean"), folder)
    load_tokenizer(section).save_pretrained(folder)
    config = ScorerConfig(
        base=section.base,
        pooling="mean",
        max_length=256,
        weights="backbone",
        rubrics=(TrainedRubric(rubric=rubric, sha=rubric.sha, training_levels={n: [1] * 5 for n in rubric.names()}),),
        illustrative=True,
    )
    save_config(config, folder)
    return folder


def test_real_scorer_from_its_folder_to_the_page(tmp_path, app, saved_scorer):
    make_run(tmp_path / "run", cards=4)
    for batch_size in ("3", "1"):
        arguments = ["score", str(tmp_path / "run"), "--scorer", str(saved_scorer), "--batch-size", batch_size]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    assert "4 were done before" in done.output
    wrong = CliRunner().invoke(app, [*arguments, "--rubric", "epitome"])
    assert "was not trained on rubric 'epitome'; it knows: esc_eval" in str(wrong.exception)
    run = load_run(tmp_path / "run")
    judgments = run.judgments()
    assert len(judgments) == 4 * 7
    assert all(sum(j.probabilities) == pytest.approx(1) and len(j.probabilities) == 5 for j in judgments)
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "illustrative samples" in page
    assert str(saved_scorer) not in page, "no path of this machine"


def test_missing_judgments_exit_with_1(tmp_path, app, monkeypatch):
    monkeypatch.setattr("eval.judge.load_judge", lambda path, rubric: ScorerJudge(MadeScorer()))
    transcripts = [make_transcript("a"), make_transcript("b"), make_transcript("c", end_reason=EndReason.seeker_empty)]
    make_run(tmp_path / "run", transcripts=transcripts)
    for _ in range(2):
        done = CliRunner().invoke(app, ["score", str(tmp_path / "run"), "--scorer", "x"])
        assert done.exit_code == 1
        assert "1 of 3 without a score" in done.output
        assert "seeker_empty" in done.output
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 1


def test_help_has_an_example(app):
    for command in ("score", "report"):
        assert "Example: esckit" in " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
