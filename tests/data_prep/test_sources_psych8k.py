import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import Options, get_source
from tests.data_prep.chaos import SECRET, balanced, convert_anything, nearly, some_of, texts, write


def record(**changes):
    return {"instruction": "Answer as a counsellor.", "input": f"{SECRET}  ", "output": "I see.", **changes}


def read(tmp_path, records, options=None):
    return get_source("psych8k").read(write(tmp_path / "p.json", records, as_lines=False), options)


def test_a_record_is_a_pair_verbatim(tmp_path):
    conversion = read(tmp_path, [record(), record(more=1)])
    first = conversion.dialogues[0]
    assert [(turn.speaker, turn.text) for turn in first.turns] == [("seeker", f"{SECRET}  "), ("supporter", "I see.")]
    assert first.meta == {"instruction": "Answer as a counsellor."}
    assert [dialogue.id for dialogue in conversion.dialogues] == ["psych8k-p-0001", "psych8k-p-0002"]
    assert conversion.repairs == {"unknown field ignored": 1}
    assert conversion.turns_read == 4


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"instruction": "a", "input": SECRET}, "`output` is not a text"),
        (record(output=3), "`output` is not a text"),
        (record(input=" \n"), "`input` is empty"),
        (record(output=""), "`output` is empty"),
        ([SECRET], "is not an object"),
    ],
)
def test_half_a_pair_is_refused(tmp_path, bad, says):
    conversion = read(tmp_path, [record(), bad])
    (refusal,) = conversion.refused
    assert refusal.where.endswith("record 2")
    assert says in refusal.reason
    assert balanced(conversion)


def test_it_is_english_and_needs_an_agreement(tmp_path):
    with pytest.raises(UserError, match="psych8k is in en"):
        read(tmp_path, [record()], Options(language="zh"))
    assert "on request" in get_source("psych8k").agreement


raw_records = some_of(dict.fromkeys(("instruction", "input", "output", "id", "language"), texts))


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(raw_records), max_size=4), as_lines=st.booleans())
def test_whatever_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("psych8k", [record(), *records], as_lines)
    if conversion is not None:
        assert conversion.dialogues[0].turns[0].text == f"{SECRET}  "
