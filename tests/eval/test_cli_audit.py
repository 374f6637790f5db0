"""`esckit audit` on made run folders: tables, marks, JSON, a reference, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from data_prep.errors import UserError
from data_prep.records import write_records
from esckit import app
from tests.eval.made_run import make_run, make_transcript
from tests.eval.test_likeness import made

ROBOT = ["Hello.", "As an AI language model I have no problems.", "I see.", "Thank you so much.", "Any time."]


def audit(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def run(tmp_path):
    transcripts = [make_transcript(f"c{n}", texts=ROBOT if n % 2 else None) for n in range(12)]
    return make_run(tmp_path / "run", transcripts=transcripts)


def test_rates_marks_and_the_threshold(run):
    shown = audit(run, "--marks")
    assert shown.exit_code == 0, shown.output
    assert "6 of 12" in shown.output
    assert "50.0%" in shown.output
    assert "marked: seeker speaks_as_ai in 50% of the dialogues (above 20%)" in shown.output
    assert "c1#0 turn 1: seeker speaks_as_ai: speaks of itself as a program" in shown.output
    assert "marked" not in audit(run, "--threshold", "1").output


def test_json_of_two_runs_with_a_reference(run, tmp_path):
    other = make_run(tmp_path / "other", cards=12)
    write_records(tmp_path / "real.jsonl", [*made(12, 3), *made(12, 4, language="zh")])
    found = json.loads(audit(run, other, "--reference", tmp_path / "real.jsonl", "--json").output)
    assert [entry["dialogues"] for entry in found] == [12, 12]
    (rate,) = [rate for rate in found[0]["rates"] if rate["fault"] == "speaks_as_ai"]
    assert (rate["dialogues"], rate["of"]) == (6, 12)
    assert rate["low"] < 0.5 < rate["high"]
    assert found[0]["above_threshold"][0] == "seeker speaks_as_ai"
    assert found[0]["likeness"]["real"] == 12  # the Chinese ones are of another language
    assert found[0]["likeness"]["auc"] > 0.9
    assert "AUC" in audit(run, "--reference", tmp_path / "real.jsonl").output


def test_what_is_refused_is_one_line(run, tmp_path):
    write_records(tmp_path / "zh.jsonl", made(3, 4, language="zh"))
    for arguments, told in (
        ((tmp_path / "none",), "does not exist"),
        ((make_run(tmp_path / "empty", transcripts=[]),), "holds no finished dialogue yet"),
        ((run, "--reference", tmp_path / "zh.jsonl"), "holds no dialogue in en"),
    ):
        with pytest.raises(UserError, match=told):
            raise audit(*arguments).exception
