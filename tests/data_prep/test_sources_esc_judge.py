import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import get_source
from tests.data_prep.chaos import SECRET, convert_anything, nearly, some_of, texts, write

SOURCE = "esc-judge-personas"


def record(persona="a 37-year-old male who works as a cook.", **changes):
    return {
        "role": f"**persona:**\n- {SECRET} \n",
        "pid": "aa-1",
        "life_events": "1. moved",
        "challenge": "Fear of job loss",
        "behavioral_traits": "Introverted",
        "final_persona": persona,
    } | changes


def read(tmp_path, records):
    return get_source(SOURCE).read(write(tmp_path / "roles.json", records))


def test_the_role_is_the_cards_text_verbatim(tmp_path):
    (card,) = read(tmp_path, [record()]).cards
    assert (card.id, card.source, card.language, card.problem) == ("aa-1", "esc-judge", "en", "Fear of job loss")
    assert card.as_text() == f"**persona:**\n- {SECRET} \n"
    assert sorted(card.meta) == ["behavioral_traits", "final_persona", "life_events"]


@pytest.mark.parametrize(
    ("persona", "expected"),
    [
        ("a 37-year-old male. he works as a cook.", ("37", "male", None)),
        (
            "- age: 28\n- occupation: freelance writer\n- gender identity: non-binary",
            ("28", "non-binary", "freelance writer"),
        ),
        ("- **age:** 41\n- **occupation:** nurse.", ("41", None, "nurse")),
        ("a 37-year-old woman with a 12-year-old son", (None, "woman", None)),
        ("she likes to cook", (None, None, None)),
    ],
)
def test_only_what_is_stated_once_is_taken(tmp_path, persona, expected):
    conversion = read(tmp_path, [record(persona)])
    (card,) = conversion.cards
    assert (card.age, card.gender, card.occupation) == expected
    assert sum(conversion.missing.values()) == expected.count(None)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (3, "is not an object"),
        (record(role=None), "`role` is no text"),
        (record(challenge=" "), "`challenge` is no text"),
        (record(), "id 'aa-1' is already used"),
    ],
)
def test_faults_are_refused(tmp_path, bad, says):
    conversion = read(tmp_path, [record(), bad])
    assert len(conversion.cards) == 1
    assert says in conversion.refused[0].reason
    assert SECRET not in str(conversion.refused[0])


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(some_of(dict.fromkeys(record(), texts))), max_size=4), as_lines=st.booleans())
def test_whatever_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything(SOURCE, [record(), *records], as_lines)
    assert conversion is None or conversion.cards[0].text == record()["role"]


def test_the_real_personas(real_data):
    path = real_data / "personas" / "esc_judge_roles-v1.json"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    conversion = get_source(SOURCE).read(path)
    assert not conversion.refused
    assert len(conversion.cards) == len({card.id for card in conversion.cards}) == 100
    assert [card.text for card in conversion.cards] == [row["role"] for row in rows]
    assert len({card.problem for card in conversion.cards}) == 45
    assert conversion.missing == {
        "age not stated in one way": sum(card.age is None for card in conversion.cards),
        "gender not stated in one way": sum(card.gender is None for card in conversion.cards),
        "occupation not stated in one way": sum(card.occupation is None for card in conversion.cards),
    }
    assert sum(card.age is not None for card in conversion.cards) == 91
