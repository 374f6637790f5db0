import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import Options, get_source
from tests.data_prep.chaos import SECRET, anything, balanced, convert_anything, nearly, some_of, texts, write

EN = Options(language="en")


def record(roles=("human", "gpt"), **changes):
    turns = [{"from": roles[0], "value": SECRET}, {"from": roles[1], "value": "I see. "}]
    return {"id": "a", "conversations": turns, **changes}


def read(tmp_path, records, options=EN):
    return get_source("sharegpt").read(write(tmp_path / "s.json", records, as_lines=False), options)


@pytest.mark.parametrize("roles", [("human", "gpt"), ("user", "assistant"), ("Human", "GPT")])
def test_both_spellings_are_read(tmp_path, roles):
    (dialogue,) = read(tmp_path, [record(roles)]).dialogues
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [("seeker", SECRET), ("supporter", "I see. ")]
    (dialogue,) = read(tmp_path, [record(roles)], Options(language="en", seeker="gpt")).dialogues
    assert [turn.speaker for turn in dialogue.turns] == ["supporter", "seeker"]


def test_the_system_prompt_is_kept_from_either_place(tmp_path):
    first = record(system="Listen.")
    second = record(id="b")
    second["conversations"] = [{"from": "system", "value": "Listen."}, *second["conversations"]]
    conversion = read(tmp_path, [first, second])
    assert [dialogue.meta for dialogue in conversion.dialogues] == [{"system": "Listen."}] * 2
    assert conversion.turns_read == 4
    (refusal,) = read(tmp_path, [{**second, "system": "Twice."}]).refused
    assert "two system prompts" in refusal.reason


def test_faults_are_refused_with_record_and_reason(tmp_path):
    bad = [record(("human", SECRET)), {"id": "x"}, record(conversations=[{"from": "human"}])]
    conversion = read(tmp_path, [record(), *bad])
    assert [refusal.where.rpartition(" ")[2] for refusal in conversion.refused] == ["2", "3", "4"]
    assert "turn 2: role is none of" in conversion.refused[0].reason
    assert "`conversations`" in conversion.refused[1].reason
    assert "turn 1: `value` is not a text" in conversion.refused[2].reason
    assert SECRET not in " ".join(map(str, conversion.refused))
    assert balanced(conversion)
    with pytest.raises(UserError, match="takes no --column"):
        get_source("sharegpt").read(tmp_path / "s.json", Options(language="en", columns={"text": "a"}))


raw_turns = some_of({"from": st.sampled_from(["human", "gpt", "system", "user"]), "value": texts})
raw_records = some_of(
    {"id": texts, "system": texts, "conversations": st.lists(nearly(raw_turns), max_size=5), "esckit": anything}
)


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(raw_records), max_size=4), as_lines=st.booleans())
def test_whatever_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("sharegpt", [record(id="first"), *records], as_lines, EN)
    if conversion is not None:
        assert conversion.dialogues[0].turns[0].text == SECRET
