import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import Options, get_source
from tests.data_prep.chaos import SECRET, anything, balanced, convert_anything, nearly, some_of, texts, write

EN = Options(language="en")
TURNS = [
    {"role": "system", "content": "You listen."},
    {"role": "user", "content": f" {SECRET}\n"},
    {"role": "assistant", "content": "I see."},
]


def record(**changes):
    return {"id": 7, "topic": "sleep", "messages": TURNS, **changes}


def read(tmp_path, records, options=EN, as_lines=True, name="chats.txt"):
    return get_source("messages").read(write(tmp_path / name, records, as_lines), options)


@pytest.mark.parametrize("as_lines", [True, False])
def test_chats_become_dialogues_verbatim(tmp_path, as_lines):
    conversion = read(tmp_path, [record(), {"messages": TURNS[1:]}], as_lines=as_lines)
    first, second = conversion.dialogues
    assert [(turn.speaker, turn.text) for turn in first.turns] == [
        ("seeker", f" {SECRET}\n"),
        ("supporter", "I see."),
    ]
    assert (first.id, first.source, first.language) == ("7", "messages", "en")
    assert first.meta == {"topic": "sleep", "system": "You listen."}
    assert second.id == "messages-chats-0002"
    assert conversion.turns_read == 4
    assert not conversion.refused


def test_two_system_prompts_are_refused(tmp_path):
    kept = {"id": 8, "system": "Be kind.", "messages": TURNS[1:]}
    conversion = read(tmp_path, [kept, record(system="Be kind.")])
    assert [dialogue.meta for dialogue in conversion.dialogues] == [{"system": "Be kind."}]
    (refusal,) = conversion.refused
    assert "two system prompts" in refusal.reason


def test_the_assistant_may_be_the_seeker(tmp_path):
    options = Options(language="en", seeker="assistant")
    (dialogue,) = read(tmp_path, [record()], options).dialogues
    assert [turn.speaker for turn in dialogue.turns] == ["supporter", "seeker"]
    with pytest.raises(UserError, match="--seeker: expected user or assistant"):
        read(tmp_path, [record()], Options(language="en", seeker="system"))


def test_the_language_is_the_records_or_the_users(tmp_path):
    assert read(tmp_path, [record(language="Chinese")], Options()).dialogues[0].language == "zh"
    with pytest.raises(UserError, match=r"chats.txt:1: the record does not say its language; give --language en"):
        read(tmp_path, [record()], Options())
    (refusal,) = read(tmp_path, [record(language="zh")]).refused
    assert refusal.reason == "is in 'zh', but --language en was given"


def test_one_pretty_object_and_a_folder_of_files(tmp_path):
    folder = tmp_path / "chats"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"messages": TURNS}, indent=2), encoding="utf-8")
    write(folder / "deep" / "b.jsonl", [{"messages": TURNS}, {"messages": TURNS}])
    (folder / "words.md").write_text("words", encoding="utf-8")
    (folder / "c.json").write_text(json.dumps({"messages": TURNS}, indent=2)[:-9], encoding="utf-8")
    (folder / "d.json").write_bytes(json.dumps([record()]).encode("utf-16"))
    (folder / ".hidden.json").write_text("[1]", encoding="utf-8")
    conversion = get_source("messages").read(folder, EN)
    ids = [dialogue.id for dialogue in conversion.dialogues]
    assert ids == ["messages-a-0001", "messages-b-0001", "messages-b-0002"]
    assert conversion.skipped == [str(folder / "words.md")]
    assert [refusal.where for refusal in conversion.refused] == [str(folder / "c.json"), str(folder / "d.json")]
    assert "UTF-16" in conversion.refused[1].reason
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no file to convert"):
        get_source("messages").read(tmp_path / "none", EN)


def test_empty_turns_are_dropped_and_counted(tmp_path):
    turns = [*TURNS, {"role": "user", "content": " \n"}]
    conversion = read(tmp_path, [record(messages=turns)])
    assert len(conversion.dialogues[0].turns) == 2
    assert conversion.repairs == {"empty turn dropped": 1}
    assert balanced(conversion)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (3, "is not an object"),
        ({"id": 1}, "has no list of turns under `messages`"),
        (record(messages=[]), "has no list of turns"),
        (record(messages=[SECRET]), "turn 1: is not an object"),
        (record(messages=[{"role": SECRET, "content": "a"}]), "turn 1: role is none of user, human"),
        (record(messages=[{"role": "user"}]), "turn 1: `content` is not a text"),
        (record(messages=[{"content": SECRET}]), "turn 1: `role` is not a text"),
        (record(messages=[*TURNS, TURNS[0]]), "turn 4: a system message is read only at the beginning"),
        (record(messages=TURNS[:1] + TURNS[2:]), "the seeker says nothing"),
        (record(messages=TURNS[:1]), "the seeker says nothing"),
        (record(id=1), "id '1' is already used"),
        (record(esckit=[SECRET]), "esckit is not an object"),
        (record(esckit={"turns": 1}), "esckit.turns is not a list"),
        (record(esckit={"situation": 3}), "situation: found int"),
        (record(esckit={SECRET: 3}), "found"),
    ],
)
def test_other_faults_are_refused_with_line_and_reason(tmp_path, bad, says):
    conversion = read(tmp_path, [record(id=1), bad, record(id=3)])
    (refusal,) = conversion.refused
    assert refusal.where == f"{tmp_path / 'chats.txt'}:2"
    assert says in refusal.reason
    assert [dialogue.id for dialogue in conversion.dialogues] == ["1", "3"]
    assert balanced(conversion)


raw_turns = some_of({"role": st.sampled_from(["user", "assistant", "system", "Human"]), "content": texts})
raw_records = some_of({"id": texts, "messages": st.lists(nearly(raw_turns), max_size=5), "esckit": anything})


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(raw_records), max_size=4), as_lines=st.booleans())
def test_whatever_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("messages", [record(id="first"), *records], as_lines, EN)
    if conversion is not None:
        assert conversion.dialogues[0].turns[0].text == f" {SECRET}\n"
