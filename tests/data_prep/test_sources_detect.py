import json

import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from data_prep.cli import app
from data_prep.errors import UserError
from data_prep.records import Dialogue, Rating, RoleCard, read_records
from data_prep.sources.detect import OURS, hint, layout_of, not_ours
from tests.data_prep.chaos import anything, some_of, texts

SAMPLES = {
    "messages": {"messages": [{"role": "user", "content": "a"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}]},
    "esconv": {"dialog": [{"speaker": "usr", "text": "a"}]},
    "patienthub-sessions": {"messages": [{"role": "Therapist", "content": "a"}]},
    "sdialog": {"turns": [{"speaker": "A", "text": "a"}]},
    "sdialog-personas": {"name": "A", "_metadata": {"className": "Patient"}},
    "psych8k": {"instruction": "a", "input": "b", "output": "c"},
    "mhp": {"title": "a", "selftext": "b"},
    "esc-judge-personas": {"pid": "a", "role": "b", "final_persona": "c"},
    "esceval-cards": {"base": "a", "res": "b", "source": "c", "language": "english", "id": 1},
    "esceval-transcripts": {"0": ["ESC-Role：a"]},
    "esceval-scores": {"0": {"fluency": 3}},
    OURS: {"id": "a", "language": "en", "source": "b", "turns": [{"speaker": "seeker", "text": "a"}]},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_layouts_are_told_by_content_whatever_the_file_is_called(tmp_path, name):
    path = tmp_path / "data.csv"
    for text in (
        json.dumps(SAMPLES[name]) + "\n" + json.dumps(SAMPLES[name]),
        json.dumps([SAMPLES[name]]),
        "\ufeff\n" + json.dumps(SAMPLES[name], indent=2),
    ):
        path.write_text(text, encoding="utf-8")
        assert layout_of(path) == name
    assert layout_of(tmp_path) == name


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "[]", "{", "3", '{"messages": []}', '{"turns": [1]}', "[" * 100_000]
)
def test_nothing_is_said_that_is_not_certain(tmp_path, text):
    (tmp_path / "f").write_text(text, encoding="utf-8")
    assert layout_of(tmp_path / "f") is None
    assert layout_of(tmp_path / "absent") is None


@settings(max_examples=100, deadline=None)
@given(record=some_of({"messages": anything, "turns": anything, "dialog": anything, "0": anything}) | anything | texts)
def test_hints_never_raise(tmp_path_factory, record):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    hint(path, "esconv")


def test_convert_says_which_source_the_file_is_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(json.dumps(SAMPLES["messages"]), encoding="utf-8")
    result = CliRunner().invoke(app, ["convert", "esconv", "a.txt", "--out", "o.jsonl"])
    assert result.exit_code == 1
    assert "a.txt looks like source messages; try: esckit data convert messages a.txt --out FILE" in result.stderr
    (tmp_path / "b.txt").write_text(json.dumps(SAMPLES["esconv"]), encoding="utf-8")
    result = CliRunner().invoke(app, ["convert", "esceval-cards", "b.txt", "--out", "o.jsonl"])
    assert isinstance(result.exception, UserError)
    assert "b.txt looks like source esconv" in str(result.exception)
    (tmp_path / "c.txt").write_text(json.dumps(SAMPLES[OURS]), encoding="utf-8")
    result = CliRunner().invoke(app, ["convert", "esconv", "c.txt", "--out", "o.jsonl"])
    assert "holds our own records already" in result.stderr


THEIRS = {name: record for name, record in SAMPLES.items() if name != OURS}


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("name", THEIRS)
def test_another_layout_where_our_dialogues_are_expected(tmp_path, name, as_list):
    path = tmp_path / "raw.json"
    path.write_text(json.dumps([THEIRS[name]] if as_list else THEIRS[name]), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_records(path, Dialogue)
    assert str(caught.value) == (
        f"{path}: is not a file of esckit dialogues, it looks like source {name}; "
        f"convert it first: esckit data convert {name} {path} --out FILE.jsonl"
    )


def test_our_own_records_of_another_kind(tmp_path):
    path = tmp_path / "a.jsonl"
    rating = {"dialogue_id": "d", "rater": "a", "rubric": "esc_eval", "dimension": "empathy", "value": 3}
    for record, wanted, told in (
        (rating, Dialogue, "holds ratings, expected dialogues"),
        (SAMPLES[OURS], Rating, "holds dialogues, expected ratings"),
        (SAMPLES[OURS], RoleCard, "holds dialogues, expected role cards"),
        (
            {"id": "c", "language": "en", "source": "s", "problem": "p"},
            Dialogue,
            "holds role cards, expected dialogues",
        ),
        ({"title": "x"}, Dialogue, "is not a file of esckit dialogues; convert it first: esckit data convert SOURCE"),
    ):
        path.write_text(json.dumps(record), encoding="utf-8")
        with pytest.raises(UserError, match=told):
            read_records(path, wanted)
    path.write_text(json.dumps([SAMPLES[OURS]]), encoding="utf-8")
    with pytest.raises(UserError, match="is a JSON list; esckit reads dialogues as JSON Lines"):
        read_records(path, Dialogue)


@pytest.mark.parametrize("missing", ["id", "language", "source", "turns"])
def test_a_faulty_record_of_ours_is_told_by_its_fault(tmp_path, missing):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({k: v for k, v in SAMPLES[OURS].items() if k != missing}), encoding="utf-8")
    with pytest.raises(UserError, match=f"a.jsonl:1: {missing}: found nothing" if missing != "turns" else "a.jsonl"):
        read_records(path, Dialogue)


def test_a_later_record_is_told_by_its_fault(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(SAMPLES[OURS]) + "\n" + json.dumps(SAMPLES["messages"]), encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl:2: "):
        read_records(path, Dialogue)


@settings(max_examples=100, deadline=None)
@given(record=some_of({"messages": anything, "turns": anything, "dialog": anything, "0": anything}) | anything | texts)
def test_what_is_not_ours_never_raises(tmp_path_factory, record):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    for kind in ("Dialogue", "RoleCard", "Rating", "Sample", "Other"):
        assert "\n" not in (not_ours(path, kind) or "")
