import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import Options, get_source
from tests.data_prep.chaos import SECRET, anything, balanced, convert_anything, nearly, some_of, texts

EN = Options(language="en")
# Made twins of the shapes that PatientHub's client models use.
CHARACTERS = {
    "basic": {
        "demographics": {"name": "J", "age": "25", "gender": "male", "occupation": {"title": "cook", "status": "on"}},
        "current_issue": {"description": SECRET},
    },
    "patientPsi": {"name": "A", "id": "1-1", "history": "h", "situation": SECRET, "emotion": ["sad"]},
    "roleplayDoh": {"description": SECRET},
    "talkDep": {"name": "A", "age": 24, "gender": "Male", "life_history": [SECRET, "and more"]},
    "psyche": {
        "MFC-Profile": {
            "Identifying data": {"Age": "40", "Sex": "Female", "Occupation": "clerk"},
            "Chief complaint": SECRET,
        }
    },
    "annaAgent": {"profile": {"age": "42", "gender": "Female", "occupation": "Teacher"}, "situation": SECRET},
    "clientCast": {"basic_profile": {"gender": "Female", "age": -1, "occupation": "Not Specified", "problem": SECRET}},
    "cars": {
        "demographics": {"age": "23 years old"},
        "persona": {"gender": "Not specified in the paper fragment.", "chief_complaint": SECRET},
    },
}
EXPECTED = {
    "basic": ("25", "male", "cook"),
    "patientPsi": (None, None, None),
    "roleplayDoh": (None, None, None),
    "talkDep": ("24", "Male", None),
    "psyche": ("40", "Female", "clerk"),
    "annaAgent": ("42", "Female", "Teacher"),
    "clientCast": (None, "Female", None),
    "cars": ("23 years old", None, None),
}


def session(**changes):
    messages = [{"role": "therapist", "content": "Hi. "}, {"role": "client", "content": SECRET}]
    return {"profile": CHARACTERS["basic"], "messages": messages, "num_turns": 1, "usage": {"total_cost": 0}} | changes


def read(tmp_path, kind, content, options=EN, name="file.txt"):
    (tmp_path / name).write_text(json.dumps(content, indent=4), encoding="utf-8")
    return get_source(f"patienthub-{kind}").read(tmp_path / name, options)


@pytest.mark.parametrize("model", CHARACTERS)
def test_a_character_of_every_client_model_is_a_card(tmp_path, model):
    (card,) = read(tmp_path, "characters", [CHARACTERS[model]]).cards
    assert (card.age, card.gender, card.occupation) == EXPECTED[model]
    assert card.problem.startswith(SECRET)
    assert card.meta == {"character": CHARACTERS[model]}
    assert card.id == ("1-1" if model == "patientPsi" else "patienthub-file-0001")


def test_missing_fields_are_counted_and_no_problem_is_refused(tmp_path):
    conversion = read(tmp_path, "characters", [CHARACTERS["talkDep"], {"name": SECRET}, session(), 3])
    assert conversion.missing == {"occupation not mentioned": 1}
    assert [refusal.reason.split(";")[0] for refusal in conversion.refused] == [
        "tells no problem at any place that PatientHub's characters have for it",
        "is a session, not a character",
        "is not an object",
    ]


@pytest.mark.parametrize("as_list", [False, True])
def test_a_session_is_a_dialogue_with_its_card(tmp_path, as_list):
    conversion = read(tmp_path, "sessions", [session()] if as_list else session())
    (dialogue,) = conversion.dialogues
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [("supporter", "Hi. "), ("seeker", SECRET)]
    assert dialogue.card.occupation == "cook"
    assert dialogue.meta == {}
    assert balanced(conversion)


def test_capital_roles_are_read_and_others_refused(tmp_path):
    capital = [{"role": "Therapist", "content": "a"}, {"role": "Client", "content": "b"}]
    bad = [{"role": SECRET, "content": "a"}]
    conversion = read(tmp_path, "sessions", [session(messages=capital), session(messages=bad), session(profile=None)])
    assert len(conversion.dialogues) == 2
    assert conversion.missing == {"character with a problem": 1}
    assert conversion.refused[0].reason == "turn 1: role is neither client nor therapist"


def test_the_language_has_to_be_said(tmp_path):
    with pytest.raises(UserError, match="give --language"):
        read(tmp_path, "sessions", session(), Options())


characters = some_of(
    {
        "id": texts,
        "age": texts | st.integers(),
        "problem": texts,
        "demographics": some_of({"gender": texts, "occupation": texts | some_of({"title": texts})}),
        "life_history": st.lists(texts, max_size=2),
        "esckit": anything,
    }
)
messages = some_of({"role": st.sampled_from(["client", "therapist", "Client", "system"]), "content": texts})
sessions = some_of({"profile": characters, "messages": st.lists(nearly(messages), max_size=4), "esckit": anything})


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(characters), max_size=4), as_lines=st.booleans())
def test_whatever_character_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("patienthub-characters", [CHARACTERS["basic"], *records], as_lines, EN)
    assert conversion is None or conversion.cards[0].problem == SECRET


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(sessions), max_size=4), as_lines=st.booleans())
def test_whatever_session_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("patienthub-sessions", [session(), *records], as_lines, EN)
    assert conversion is None or conversion.dialogues[0].turns[0].text == "Hi. "
