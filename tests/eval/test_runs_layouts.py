"""Runs out to other tools' layouts and back: every word, card, sample and end reason comes back."""

import csv
import json

import pytest
from typer.testing import CliRunner

from data_prep.errors import UserError
from data_prep.records import write_records
from eval.cli_runs import app
from eval.run_records import EndReason, Judgment
from eval.runs import append_to_run, load_run
from tests.eval.made_run import make_run, make_transcript

ODD = ["Hi.", '=cmd|"x", <b>\n"quoted"; 😞 <|im_end|>', "line\u2028end\ttab", "{{ card }}", "再见"]


@pytest.fixture
def run(tmp_path):
    transcripts = [
        make_transcript("a"),
        make_transcript("a", 1, end_reason=EndReason.seeker_goodbye, texts=ODD),
        make_transcript("b", end_reason=EndReason.supporter_error, texts=["Hi.", "I can not sleep."]),
    ]
    return make_run(tmp_path / "run", transcripts=transcripts)


def command(*parts, code=0):
    result = CliRunner().invoke(app, [str(part) for part in parts])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def essence(folder, *leave_out):
    found = [
        {
            "key": one.key,
            "words": [(turn.speaker, turn.text) for turn in one.turns],
            "card": one.card,
            "supporter": one.supporter,
            "seeker": one.seeker,
            "end": one.end_reason,
        }
        for one in load_run(folder).transcripts()
    ]
    return [{key: value for key, value in one.items() if key not in leave_out} for one in found]


@pytest.mark.parametrize("layout", ["messages", "sharegpt"])
def test_there_and_back_loses_nothing(run, tmp_path, layout):
    command("export", run, "--to", layout, "--out", tmp_path / "file.jsonl")
    command("import", tmp_path / "file.jsonl", "--from", layout, "--out", tmp_path / "back")
    assert essence(tmp_path / "back") == essence(run)
    again = command("import", tmp_path / "file.jsonl", "--from", layout, "--out", tmp_path / "back")
    assert "3 dialogues, 0 of them new" in again
    assert load_run(tmp_path / "back").missing() == ["b#1"]


def test_a_table_there_and_back_keeps_the_words(run, tmp_path):
    file = tmp_path / "file.csv"
    command("export", run, "--to", "csv", "--out", file)
    with open(file, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 5 + 5 + 2
    assert rows[6]["text"] == ODD[1]
    assert {row["end_reason"] for row in rows} == {"rounds", "seeker_goodbye", "supporter_error"}
    words = ("import", file, "--from", "csv", "--language", "en", "--supporter", "made", "--out", tmp_path / "back")
    assert "3 have no role card" in command(*words)
    assert essence(tmp_path / "back", "card", "seeker", "end") == essence(run, "card", "seeker", "end")
    assert {one.end_reason for one in load_run(tmp_path / "back").transcripts()} == {EndReason.imported}


def test_official_files_need_a_language_and_take_cards_by_position(tmp_path):
    cards = [make_transcript(name).card for name in ("q", "r")]
    write_records(tmp_path / "cards.jsonl", cards)
    lines = ["AI assistant：Hello", "ESC-Role：I am sad", "AI assistant：Why?"]
    (tmp_path / "m_en.json").write_text(json.dumps({"1": lines, "0": lines}), encoding="utf-8")
    words = ["import", tmp_path / "m_en.json", "--from", "official", "--out", tmp_path / "run"]
    for more, told in [
        ((), "give --language"),
        (("--language", "en"), "give --supporter NAME"),
        (("--language", "de"), "known: en, zh"),
    ]:
        result = CliRunner().invoke(app, [str(part) for part in (*words, *more)])
        assert isinstance(result.exception, UserError)
        assert told in str(result.exception)
    named = ("--language", "en", "--supporter", "m", "--cards", tmp_path / "cards.jsonl")
    command(*words, *named)
    found = load_run(tmp_path / "run").transcripts()
    assert [(one.key, one.supporter, len(one.turns), one.seed) for one in found] == [
        ("r#0", "m", 3, None),
        ("q#0", "m", 3, None),
    ]
    assert [one.card for one in found] == [cards[1], cards[0]]


def test_an_imported_run_is_scored_and_reported(run, tmp_path):
    from eval.judge import ScorerJudge, score_run
    from eval.report import build_report
    from tests.eval.made_run import MadeScorer

    command("export", run, "--to", "messages", "--out", tmp_path / "f.jsonl")
    command("import", tmp_path / "f.jsonl", "--from", "messages", "--out", tmp_path / "back")
    with append_to_run(tmp_path / "back") as opened:
        summary = score_run(opened, ScorerJudge(MadeScorer()))
    assert summary.scored == 2  # the goodbye counts as whole, the error does not
    [entry] = build_report([load_run(tmp_path / "back")]).entries
    assert entry.end_reasons == {"rounds": 1, "seeker_goodbye": 1, "supporter_error": 1}


def test_lm_eval_results_are_the_means_of_the_cards(run, tmp_path):
    refused = CliRunner().invoke(app, ["export", str(run), "--to", "lm-eval", "--out", str(tmp_path / "r")])
    assert "nothing is scored yet" in str(refused.exception)
    with append_to_run(run) as opened:
        fields = {"scorer": "x@1", "rubric": "esc_eval", "dimension": "empathy"}
        opened.add_judgments(
            [
                Judgment(dialogue_key="a#0", expected=1.0, **fields),
                Judgment(dialogue_key="a#1", expected=2.0, **fields),
                Judgment(dialogue_key="b#0", reason="not scored", **fields),
            ]
        )
    command("export", run, "--to", "lm-eval", "--out", tmp_path / "results")
    content = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    assert content["results"]["esc_eval"]["empathy,none"] == 1.5
    assert content["results"]["esc_eval"]["empathy_scored,none"] == 2
    samples = (tmp_path / "results" / "samples_esc_eval.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["empathy"] for line in samples] == [1.0, 2.0, None]


def test_wrong_use_is_one_line(run, tmp_path):
    for words, told in [
        (("export", run, "--to", "word", "--out", tmp_path / "x"), "known: official, messages"),
        (("import", tmp_path / "x", "--from", "lm-eval", "--out", tmp_path / "y"), "known: official, messages"),
        (("import", tmp_path / "x", "--from", "messages", "--out", tmp_path / "y"), "x"),
        (("export", run, "--to", "official", "--out", tmp_path / "x"), "earlier version"),
        (("export", run, "--to", "csv", "--out", run / "dialogues.jsonl"), "is a part of the run"),
    ]:
        result = CliRunner().invoke(app, [str(part) for part in words])
        assert isinstance(result.exception, UserError), (words, result.output, result.exception)
        assert told in str(result.exception)
        assert "\n" not in str(result.exception)
    assert not (tmp_path / "y").exists()
