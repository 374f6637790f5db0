import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import get_source
from tests.data_prep.source_checks import (
    SECRET,
    balanced,
    converted_or_refused,
    nearly,
    put,
    said,
    texts,
    unreadable,
)

NEITHER = "turn with neither User nor AI dropped"


def record(*content, **more):
    entries = content or ({"User": "I failed."}, {"AI Strategy": "Affirmation", "AI": "You tried."})
    return {"scene": "Work", "description": "I failed an exam.", "content": list(entries), **more}


def read(tmp_path, *records, name="ExTES.json"):
    return get_source("extes").read(put(tmp_path / name, list(records)))


def test_the_key_says_who_speaks(tmp_path):
    conversion = read(tmp_path, record())
    (dialogue,) = conversion.dialogues
    assert (dialogue.id, dialogue.language, dialogue.source) == ("extes-extes-00001", "en", "extes")
    assert [(turn.speaker, turn.text, turn.strategy) for turn in dialogue.turns] == [
        ("seeker", "I failed.", None),
        ("supporter", "You tried.", "Affirmation"),
    ]
    assert dialogue.situation == dialogue.card.problem == "I failed an exam."
    assert dialogue.card.category == ("Work",)
    assert not conversion.repairs
    assert not conversion.missing


def test_both_in_one_turn_are_two_in_the_order_of_the_keys(tmp_path):
    conversion = read(
        tmp_path, record({"User": "a", "AI Strategy": "S", "AI": "b"}, {"AI": "c", "User": "d"}, {"User": "e"})
    )
    assert said(conversion) == [
        [("seeker", "a"), ("supporter", "b"), ("supporter", "c"), ("seeker", "d"), ("seeker", "e")]
    ]
    assert conversion.repairs == {"turn with both User and AI split in two": 2}
    assert conversion.noted == {"turn after a turn of the same speaker": 2}
    assert conversion.missing == {"supporter turn without strategy": 1}
    assert conversion.turns_read == 5
    assert balanced(conversion)


def test_neither_is_dropped_when_it_says_nothing_and_refused_when_somebody_speaks(tmp_path):
    conversion = read(tmp_path, record({"AI Strategy": "S"}, {}, {"Assistant": " ".strip()}, {"User": "a"}))
    assert said(conversion) == [[("seeker", "a")]]
    assert conversion.repairs == {NEITHER: 3, "AI Strategy without AI dropped": 1}
    assert balanced(conversion, NEITHER)
    conversion = read(tmp_path, record(), record({"Assistant": SECRET}, {"User": "a"}))
    (refusal,) = conversion.refused
    assert refusal.reason == "turn 1: has something under a key that is none of User, AI, AI Strategy"
    assert refusal.turns == 2
    assert balanced(conversion)


@pytest.mark.parametrize(
    ("value", "text", "strategy"),
    [
        ({"AI": "b"}, "b", None),
        ({"text": " b"}, "b", None),
        ({"Reflective Statements": "b"}, "b", "Reflective Statements"),
        ({"AI Strategy": "S", "AI": "b"}, "b", "S"),
    ],
)
def test_an_utterance_given_as_an_object(tmp_path, value, text, strategy):
    conversion = read(tmp_path, record({"AI": value}))
    (turn,) = conversion.dialogues[0].turns
    assert (turn.text, turn.strategy) == (text, strategy)
    assert conversion.repairs["AI given as an object: its text taken"] == 1


def test_a_strategy_of_the_entry_goes_before_the_objects_key(tmp_path):
    conversion = read(tmp_path, record({"AI Strategy": "Outer ", "AI": {"Inner": "b"}}))
    assert conversion.dialogues[0].turns[0].strategy == "Outer"
    assert conversion.repairs["whitespace at the edge of a strategy"] == 1


def test_empty_and_edgy_texts(tmp_path):
    conversion = read(tmp_path, record({"User": " "}, {"AI": None}, {"User": "a\n"}, description="", scene=None))
    assert said(conversion) == [[("seeker", "a")]]
    assert conversion.repairs == {"empty turn dropped": 2, "whitespace at the edge of a turn": 1}
    assert conversion.missing == {"description": 1, "scene": 1}
    assert conversion.dialogues[0].card is None
    assert balanced(conversion)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (7, "is not an object"),
        ({}, "has no list of turns under `content`"),
        (record(content=[]), "has no list of turns"),
        (record(content=SECRET), "has no list of turns"),
        (record("hi"), "turn 1: is not an object"),
        (record({"User": 3}), "turn 1: User is neither a text nor an object"),
        (record({"AI": {"a": "b", "c": SECRET}}), "turn 1: AI is an object that does not hold exactly one text"),
        (record({"AI": {"a": 1}}), "turn 1: AI is an object that does not"),
        (record({"AI": "a", "AI Strategy": 3}), "turn 1: AI Strategy is not a text"),
        (record({"User": " "}), "no turn has text"),
        (record(scene=3), "scene is not a text"),
    ],
)
def test_the_rest_is_refused_with_its_record(tmp_path, bad, says):
    conversion = read(tmp_path, record(), bad, record())
    (refusal,) = conversion.refused
    assert refusal.where == f"{tmp_path / 'ExTES.json'}: record 2"
    assert says in refusal.reason
    assert SECRET not in str(refusal)
    assert [dialogue.id[-5:] for dialogue in conversion.dialogues] == ["00001", "00003"]
    assert balanced(conversion)


def test_the_format_is_known_by_content_not_by_name(tmp_path):
    array = read(tmp_path, record(), record(), name="extes.jsonl").dialogues
    lines = get_source("extes").read(put(tmp_path / "extes.json", "\r\n".join(json.dumps(record()) for _ in "ab")))
    assert lines.dialogues == array
    files = unreadable(tmp_path, json.dumps([record(), record()]), "extes.txt")
    assert get_source("extes").read(files["bom"]).dialogues == array
    with pytest.raises(UserError, match="is UTF-16"):
        get_source("extes").read(files["utf16"])


def test_a_truncated_array_keeps_what_came_before_the_break(tmp_path):
    whole = json.dumps([record(), record(), record()], indent=1)
    conversion = get_source("extes").read(put(tmp_path / "e.json", whole[:-120]))
    assert len(conversion.dialogues) == 2
    (refusal,) = conversion.refused
    assert refusal.where == f"{tmp_path / 'e.json'}: record 3 and what follows"
    assert "not valid JSON" in refusal.reason
    assert "is the file complete?" in refusal.reason


def test_a_folder_skips_what_is_not_extes(tmp_path):
    put(tmp_path / "b.json", [record()])
    put(tmp_path / "a.json", [{"dialog": []}])
    put(tmp_path / "c.txt", "text")
    conversion = get_source("extes").read(tmp_path)
    assert len(conversion.dialogues) == 1
    assert conversion.skipped == [str(tmp_path / name) for name in ("a.json", "c.txt")]


def test_the_real_record(real_data):
    conversion = get_source("extes").read(real_data / "extes")
    (dialogue,) = conversion.dialogues
    assert conversion.turns_read == len(dialogue.turns) == 16
    assert [turn.speaker for turn in dialogue.turns] == ["seeker", "supporter"] * 8
    assert conversion.missing["supporter turn without strategy"] == sum(
        turn.strategy is None for turn in dialogue.turns if turn.speaker == "supporter"
    )
    assert not conversion.repairs
    assert not conversion.refused


keys = st.sampled_from(["User", "AI", "AI Strategy", "AI", "User", "other"])
values = nearly(texts | st.dictionaries(st.sampled_from(["AI", "AI Strategy", "x"]), texts, max_size=3))
raw_records = st.fixed_dictionaries(
    {"content": nearly(st.lists(nearly(st.dictionaries(keys, values, max_size=3)), max_size=4))},
    optional={"scene": nearly(texts), "description": nearly(texts), "more": texts},
)


@settings(max_examples=150, deadline=None)
@given(nearly(st.lists(nearly(raw_records), max_size=4)))
def test_whatever_comes_is_converted_or_refused(tmp_path_factory, content):
    converted_or_refused("extes", put(tmp_path_factory.mktemp("any") / "any.json", content), NEITHER)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["User", "AI"]), texts.map(str.strip).filter(bool)), min_size=1, max_size=5))
def test_no_character_of_a_clean_text_changes(tmp_path_factory, pairs):
    path = put(tmp_path_factory.mktemp("clean") / "a.json", [record(*({key: text} for key, text in pairs))])
    conversion = get_source("extes").read(path)
    assert [text for _, text in said(conversion)[0]] == [text for _, text in pairs]
    assert not +conversion.repairs
