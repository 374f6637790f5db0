"""The files of NLPCC 2025 task 8, in made twins of the published layout."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import get_source
from data_prep.sources.nlpcc import NLPCC, holds_task8
from tests.data_prep.made_dialogues import VALUE

SECRET = "nobody may read this sentence"
CHARACTER = {
    "Name": "Ann Example",
    "Sex": "Female",
    "Age": "29",
    "Occupation": "Baker",
    "Hobby": "Chess",
    "emotion_type": "Anxious",
    "problem_type": "Job Crisis",
    "situation": "The bakery closes.",
}
LINES = ["seeker:It closes.", "supporter: I am sorry.", "seeker: me too", "supporter:"]


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def record(**changes):
    return {"whole_dialog": LINES, "character": CHARACTER, **changes}


def test_a_published_record_becomes_a_dialogue_with_card_and_persona(tmp_path):
    path = write(tmp_path / "val.json", {"1201": record()})
    assert get_source("nlpcc2025-task8") is NLPCC
    conversion = NLPCC.read(path)
    (made,) = conversion.dialogues
    assert made.id == "nlpcc-val-1201"
    assert [(turn.speaker, turn.text) for turn in made.turns] == [
        ("seeker", "It closes."),
        ("supporter", "I am sorry."),
        ("seeker", "me too"),
        ("supporter", ""),
    ]
    card = made.card
    assert (card.age, card.gender, card.occupation, card.problem) == ("29", "Female", "Baker", "The bakery closes.")
    assert card.category == ("Job Crisis",)
    assert card.meta == {"emotion_type": "Anxious", "persona": {"Name": "Ann Example", "Hobby": "Chess"}}
    assert made.situation == "The bakery closes."
    assert conversion.missing == {"supporter turn left to be written": 1}
    assert conversion.repairs == {"whitespace at the edge of a turn": 2}
    assert conversion.turns_read == 4


def test_lists_and_json_lines_of_the_same_records_are_read_too(tmp_path):
    array = write(tmp_path / "a.json", [record(), record(id="x")])
    assert [made.id for made in NLPCC.read(array).dialogues] == ["nlpcc-a-0001", "nlpcc-a-x"]
    lines = tmp_path / "l.jsonl"
    lines.write_text(f"{json.dumps(record(id=7))}\n{json.dumps(record())}\n", encoding="utf-8")
    assert [made.id for made in NLPCC.read(lines).dialogues] == ["nlpcc-l-7", "nlpcc-l-0002"]
    lines.write_text(f"{json.dumps(record())}\n", encoding="utf-8")
    assert [made.id for made in NLPCC.read(lines).dialogues] == ["nlpcc-l-0001"]
    assert holds_task8(array)
    assert holds_task8(lines)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": 'a "whole_dialog": b', "turns": []}), encoding="utf-8")
    assert not holds_task8(other)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(whole_dialog=[f"helper:{SECRET}"]), "turn 1: does not begin with seeker: or supporter:"),
        (record(whole_dialog=["seeker:a", 3]), "turn 2: is not a text"),
        (record(whole_dialog=["seeker: "]), "turn 1: the seeker says nothing"),
        (record(whole_dialog=[]), "has no list of lines under `whole_dialog`"),
        (record(whole_dialog=SECRET), "has no list of lines under `whole_dialog`"),
        (record(character=SECRET), "`character` is not an object of texts"),
        (record(character={"Age": 29}), "`character` is not an object of texts"),
        ([SECRET], "has no list of lines under `whole_dialog`"),
    ],
)
def test_other_records_are_refused_by_name(tmp_path, bad, reason):
    path = write(tmp_path / "val.json", {"1": record(), "2": bad})
    conversion = NLPCC.read(path)
    assert [made.id for made in conversion.dialogues] == ["nlpcc-val-1"]
    assert [str(refusal) for refusal in conversion.refused] == [f"{path}: record '2': {reason}"]


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=4),
        VALUE
        | st.fixed_dictionaries(
            {
                "whole_dialog": VALUE | st.lists(st.sampled_from(LINES) | st.text(max_size=8), max_size=4),
                "character": VALUE | st.dictionaries(st.sampled_from(tuple(CHARACTER)), st.text(max_size=5)),
            }
        ),
        max_size=3,
    )
)
def test_anything_is_converted_or_refused(tmp_path_factory, content):
    path = write(tmp_path_factory.mktemp("any") / "val.json", content)
    try:
        conversion = NLPCC.read(path)
    except UserError:
        return
    assert len(conversion.dialogues) + len(conversion.refused) == max(len(content), 1)
