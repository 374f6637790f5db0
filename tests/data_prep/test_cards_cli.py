import json
import subprocess
import sys
from pathlib import Path

import pytest
from openpyxl import load_workbook
from typer.testing import CliRunner

from data_prep.card_review import HEADER
from data_prep.cli_cards import app
from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, read_records, write_records
from tests.openai_server import SERVER_ERROR, Fault, OpenAIServer, asked, card_replies, rate_limited

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "data_prep" / "samples"
KEY = "sk-made-0123456789-nobody-may-read"
COMMANDS = (["extract"], ["filter"], ["categorize"], ["dedupe"], ["stats"], ["review", "export"], ["review", "import"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def report(*arguments, code=0):
    """The figures that a call prints as JSON."""
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.output
    assert KEY not in result.output
    return json.loads(result.stdout)


def fails(*arguments) -> str:
    result = call(*arguments)
    assert isinstance(result.exception, UserError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def to(server):
    return ["--endpoint", server.url, "--model", "m", "--concurrency", 4, "--timeout", 5]


def fill(path, keep):
    """Says yes to the first `keep` rows, high and middle in turn, and no to the others."""
    book = load_workbook(path)
    sheet = book["cards"]
    for number in range(2, sheet.max_row + 1):
        yes = number - 2 < keep
        sheet.cell(number, HEADER.index("keep") + 1).value = "yes" if yes else "no"
        if yes:
            sheet.cell(number, HEADER.index("quality") + 1).value = "high" if number % 2 else "middle"
    book.save(path)


def test_the_whole_pipeline_with_a_faulty_server(folder):
    dropped_on = "finally did it"

    def reply(body):
        if '"keep"' in body["messages"][0]["content"] and dropped_on in asked(body):
            return json.dumps({"reason": "made to drop", "keep": False})
        return card_replies(body)

    with OpenAIServer(reply, takes_schema=False) as server:
        server.inject(SERVER_ERROR, rate_limited("0.2"), SERVER_ERROR)
        made = report("extract", SAMPLES / "dialogues.jsonl", "--out", "cards.jsonl", *to(server))
        assert (made["dialogues"], made["cards"], made["missing"]) == (24, 24, 0)
        server.inject(rate_limited())
        kept = report("filter", "cards.jsonl", "--out", "kept.jsonl", "--dropped", "dropped.jsonl", *to(server))
        by_rules = kept["dropped_by_rules"]
        assert kept["dropped_by_model"] == 1
        assert kept["kept_by_model"] == 23 - by_rules
        dropped = [json.loads(line) for line in Path("dropped.jsonl").read_text("utf-8").splitlines()]
        assert {"id": "dialogue-en-01", "by": "model", "reason": "made to drop"} in dropped
        assert len(dropped) == 1 + by_rules
        put = report("categorize", "kept.jsonl", "--out", "sorted.jsonl", *to(server))
        assert put["answered"] == kept["kept_by_model"]
        before = len(server.calls)
        for command, source, out in (
            ("extract", SAMPLES / "dialogues.jsonl", "cards.jsonl"),
            ("filter", "cards.jsonl", "kept.jsonl"),
            ("categorize", "kept.jsonl", "sorted.jsonl"),
        ):
            content = Path(out).read_bytes()
            again = report(command, source, "--out", out, *to(server))
            assert again["asked_now"] == 0
            assert Path(out).read_bytes() == content
        assert len(server.calls) == before
        assert {made.headers["Authorization"] for made in server.calls} == {f"Bearer {KEY}"}
    unique = report("dedupe", "sorted.jsonl", "--out", "unique.jsonl")
    assert call("review", "export", "unique.jsonl", "--out", "review.xlsx").exit_code == 0
    fill(Path("review.xlsx"), 10)
    reviewed = report("review", "import", "unique.jsonl", "--sheet", "review.xlsx", "--out", "reviewed.jsonl")
    assert (reviewed["kept"], reviewed["dropped"], reviewed["faults"]) == (10, unique["kept"] - 10, [])
    assert reviewed["quality"] == {"high": 5, "middle": 5, "low": 0, "not said": 0}
    counted = report("stats", "reviewed.jsonl", "--extracted", "cards.jsonl", "--filtered", "kept.jsonl")
    rows = counted["funnel"].values()
    sums = {stage: sum(row[stage] for row in rows) for stage in ("extracted", "after_llm_filter", "high", "middle")}
    assert sums == {"extracted": 24, "after_llm_filter": kept["kept_by_model"], "high": 5, "middle": 5}
    assert counted["not_mentioned"] == {"age": 0, "gender": 10, "occupation": 10, "problem": 0}
    assert not any(KEY.encode() in path.read_bytes() for path in folder.iterdir())
    assert len(read_records("reviewed.jsonl", RoleCard)) == 10


def test_an_incomplete_run_exits_with_1_and_goes_on(folder):
    def fails_on_one(body):
        return Fault(400) if "finally did it" in asked(body) else None

    arguments = ("extract", SAMPLES / "dialogues.jsonl", "--out", "cards.jsonl", "--limit", 5)
    with OpenAIServer(card_replies, fault_when=fails_on_one) as server:
        made = report(*arguments, *to(server), code=1)
        assert (made["cards"], made["reasons"]) == (4, {"bad_request": 1})
        assert list(made["missing_items"]) == ["dialogue-en-01"]
        shown = call(*arguments, *to(server))
        assert shown.exit_code == 1
        assert "no answer for 'dialogue-en-01': bad_request: HTTP 400" in shown.output
        server.fault_when = lambda body: None
        before = len(server.calls)
        assert report(*arguments, *to(server))["cards"] == 5
        assert len(server.calls) == before + 1


@pytest.mark.parametrize("command", ["extract", "filter", "categorize"])
@pytest.mark.parametrize("status", [401, None])
def test_without_access_nothing_is_written(folder, command, status):
    source = SAMPLES / ("dialogues.jsonl" if command == "extract" else "cards.jsonl")
    with OpenAIServer(card_replies, fault_when=lambda body: Fault(401)) as server:
        if status:
            result = call(command, source, "--out", "out.jsonl", *to(server), "--attempts", 1)
    if not status:  # the server has ended
        result = call(command, source, "--out", "out.jsonl", *to(server), "--attempts", 1)
    assert result.exit_code == 1, result.exception
    assert ("OPENAI_API_KEY" if status else "nobody answers at 127.0.0.1") in result.output
    assert KEY not in result.output
    assert len(server.calls) <= 4
    assert Path("out.jsonl").exists() == (command == "categorize")
    if status:
        server.__exit__()


def test_when_nobody_answers_one_line_is_said_and_the_rest_is_not_gone_through(folder):
    with OpenAIServer() as server:
        pass
    result = call("extract", SAMPLES / "dialogues.jsonl", "--out", "c.jsonl", *to(server), "--attempts", 1)
    assert result.exit_code == 1
    told = [line for line in result.stderr.splitlines() if "nobody answers" in line]
    assert len(told) == 1
    assert told[0].startswith("stopped: refused_connection: nobody answers at 127.0.0.1")
    assert "(24 without an answer, 0 kept)" in told[0]
    assert "extract: " not in result.stderr  # no progress over what was never asked
    made = report("extract", SAMPLES / "dialogues.jsonl", "--out", "c.jsonl", *to(server), "--attempts", 1, code=1)
    assert (made["missing"], made["asked_now"], len(made["missing_items"])) == (24, 0, 24)


def test_what_was_answered_before_the_server_went_is_kept(folder):
    seen = []

    def gone(body):
        seen.append(1)
        return Fault(401) if len(seen) > 6 else None

    arguments = ["extract", SAMPLES / "dialogues.jsonl", "--out", "c.jsonl"]
    with OpenAIServer(card_replies, fault_when=gone) as server:
        made = report(*arguments, *to(server), code=1)
        assert made["cards"] == 6 == len(read_records("c.jsonl", RoleCard))
        assert made["missing"] == 18
        server.fault_when = lambda body: None
        again = report(*arguments, *to(server))
        assert (again["cards"], again["asked_now"], again["from_cache"]) == (24, 18, 6)


def test_the_rules_alone_need_no_server(folder):
    cards = [
        RoleCard(id="good", language="en", source="made", problem="She has not slept since her mother died in May."),
        RoleCard(id="bad", language="en", source="made", problem="sad"),
    ]
    write_records("cards.jsonl", cards)
    result = call("filter", "cards.jsonl", "--out", "kept.jsonl")
    assert (result.exit_code, read_records("kept.jsonl", RoleCard)) == (0, cards[:1])
    assert "the rules alone" in result.output
    assert report("filter", "cards.jsonl", "--out", "kept.jsonl", "--without", "short_problem")["kept_by_rules"] == 2
    assert "unknown rule" in fails("filter", "cards.jsonl", "--out", "kept.jsonl", "--without", "x")


def test_wrong_usage_is_told(folder):
    write_records("d.jsonl", read_records(SAMPLES / "dialogues.jsonl", Dialogue)[:2])
    write_records("c.jsonl", read_records(SAMPLES / "cards.jsonl", RoleCard)[:2])
    assert "--endpoint is missing" in fails("extract", "d.jsonl", "--out", "o.jsonl")
    assert "--model is missing" in fails("filter", "c.jsonl", "--out", "o.jsonl", "--endpoint", "http://localhost/v1")
    assert "is not a URL" in fails("extract", "d.jsonl", "--out", "o.jsonl", "--endpoint", "here", "--model", "m")
    assert "would overwrite" in fails("dedupe", "c.jsonl", "--out", "c.jsonl")
    assert "--threshold" in fails("dedupe", "c.jsonl", "--out", "o.jsonl", "--threshold", 2)
    assert "c.jsonl: holds role cards, expected dialogues" in fails("extract", "c.jsonl", "--out", "o.jsonl")
    assert "not found" in fails("stats", "none.jsonl")
    assert "ends neither" in fails("review", "export", "c.jsonl", "--out", "sheet.pdf")
    assert call("review", "export", "c.jsonl", "--out", "sheet.csv").exit_code == 0
    assert "--overwrite" in fails("review", "export", "c.jsonl", "--out", "sheet.csv")
    assert call("review", "export", "c.jsonl", "--out", "sheet.csv", "--overwrite").exit_code == 0
    unreviewed = call("review", "import", "c.jsonl", "--sheet", "sheet.csv", "--out", "o.jsonl")
    assert unreviewed.exit_code == 1
    assert not Path("o.jsonl").exists()


def test_faults_of_a_sheet_are_listed(folder):
    write_records("c.jsonl", read_records(SAMPLES / "cards.jsonl", RoleCard)[:3])
    call("review", "export", "c.jsonl", "--out", "sheet.xlsx")
    fill(Path("sheet.xlsx"), 2)
    book = load_workbook("sheet.xlsx")
    book["cards"].cell(2, HEADER.index("quality") + 1).value = "great"
    book.save("sheet.xlsx")
    result = call("review", "import", "c.jsonl", "--sheet", "sheet.xlsx", "--out", "o.jsonl")
    assert result.exit_code == 1
    assert "sheet.xlsx: row 2: quality: is none of high, middle, low" in result.output
    assert len(read_records("o.jsonl", RoleCard)) == 1


def test_stats_of_the_official_files(real_data):
    files = [real_data / "esceval" / f"card_high_{language}.json" for language in ("en", "zh")]
    counted = report("stats", *files)
    assert (counted["cards"], counted["language"]) == (655, {"en": 331, "zh": 324})
    assert "funnel" not in counted
    shown = call("stats", files[0], "--filtered", files[0])
    assert shown.exit_code == 0
    assert "2,792" in shown.output


def test_every_command_shows_an_example():
    for command in COMMANDS:
        shown = call(*command, "--help")
        assert shown.exit_code == 0
        assert f"Example: esckit cards {' '.join(command)}" in " ".join(shown.output.split())


def test_a_mistake_is_one_line_and_exit_code_2(folder):
    command = [sys.executable, "-m", "esckit", "cards", "stats", "none.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("error: none.jsonl: file not found")
    assert done.stderr.count("\n") == 1
