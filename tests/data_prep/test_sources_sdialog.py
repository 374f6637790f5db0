import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import Options, get_source
from tests.data_prep.chaos import SECRET, anything, balanced, convert_anything, nearly, some_of, texts

EN = Options(language="en")


def persona(**changes):
    return {
        "name": "Marie",
        "age": 45,
        "gender": "female",
        "language": "English",
        "role": "patient",
        "circumstances": SECRET,
        "_metadata": {"className": "Persona", "version": "0.3.2", "notes": None},
    } | changes


def dialog(names=("Marie", "Dr. Martin"), **changes):
    turns = [{"speaker": names[0], "text": f"{SECRET} "}, {"speaker": names[1], "text": "I see."}]
    return {
        "version": "0.3.2",
        "timestamp": "2025-10-12T22:33:46Z",
        "model": {"name": "m"},
        "seed": 42,
        "id": "86ff",
        "parentId": None,
        "complete": False,
        "personas": {names[0]: persona(), names[1]: {"name": "M", "role": "general practitioner"}},
        "context": {"location": "office"},
        "scenario": None,
        "turns": turns,
        "events": [{"agent": names[0], "action": "utter", "content": SECRET, "timestamp": 1}],
        "notes": None,
    } | changes


def read(tmp_path, content, options=EN, source="sdialog"):
    (tmp_path / "d.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    return get_source(source).read(tmp_path / "d.json", options)


def test_a_dialogue_with_personas(tmp_path):
    conversion = read(tmp_path, dialog())
    (found,) = conversion.dialogues
    assert [(turn.speaker, turn.text) for turn in found.turns] == [("seeker", f"{SECRET} "), ("supporter", "I see.")]
    assert (found.id, found.source) == ("86ff", "sdialog")
    assert (found.card.age, found.card.gender, found.card.problem) == ("45", "female", SECRET)
    assert found.card.occupation is None  # "patient" says who speaks, not what they do
    assert found.meta == {"context": {"location": "office"}}
    assert balanced(conversion)


@pytest.mark.parametrize(
    ("names", "seeker", "first"),
    [
        (("Client", "Therapist"), None, "seeker"),
        (("Therapist", "Client"), None, "supporter"),
        (("Counselor", "Ann"), None, "supporter"),
        (("Ann", "Ben"), "Ben", "supporter"),
        (("Client", "Therapist"), "Therapist", "supporter"),
    ],
)
def test_who_is_the_seeker(tmp_path, names, seeker, first):
    options = Options(language="en", seeker=seeker)
    (found,) = read(tmp_path, dialog(names, personas=None), options).dialogues
    assert found.turns[0].speaker == first


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (dialog(("Ann", "Ben"), personas=None), "give --seeker NAME"),
        (dialog(("Client", "Patient")), "both speakers' names mean a seeker"),
        (dialog(turns=[{"speaker": n, "text": "a"} for n in "abc"]), "has 3 speakers"),
        (dialog(turns=[{"speaker": None, "text": SECRET}]), "turn 1: has no `speaker`"),
        (dialog(turns=[{"speaker": "Client"}]), "turn 1: has no `text`"),
        (dialog(turns=[]), "has no list of turns"),
        (dialog(personas=[1]), "`personas` is not an object"),
    ],
)
def test_faults_are_refused(tmp_path, bad, says):
    (refusal,) = read(tmp_path, [bad]).refused
    assert says in refusal.reason
    assert SECRET not in str(refusal)


def test_personas_are_cards(tmp_path):
    patient = persona(occupation="teacher", reason_for_visit="cannot sleep")
    conversion = read(tmp_path, [persona(role="cook"), patient, {"name": SECRET}, dialog()], EN, "sdialog-personas")
    cook, teacher = conversion.cards
    assert (cook.occupation, cook.problem) == ("cook", SECRET)
    assert (teacher.occupation, teacher.problem, teacher.id) == ("teacher", "cannot sleep", "sdialog-d-0002")
    assert "_metadata" not in teacher.meta["persona"]
    assert "tells no problem" in conversion.refused[0].reason
    assert "use source sdialog" in conversion.refused[1].reason
    broken = persona(_metadata={"notes": '{"esckit": '})
    assert read(tmp_path, [broken], EN, "sdialog-personas").refused[0].reason == "esckit is not an object"


personas = some_of(
    {
        "age": st.integers() | texts,
        "role": texts,
        "circumstances": texts,
        "_metadata": some_of({"notes": texts | st.just('{"esckit": {"id": "x"}}')}),
    }
)
turns = some_of({"speaker": st.sampled_from(["Client", "Therapist", "Ann"]), "text": texts})
dialogs = some_of(
    {
        "id": texts | st.integers(),
        "personas": st.dictionaries(st.sampled_from(["Client", "Ann"]), personas, max_size=2),
        "scenario": some_of({"esckit": anything}),
        "turns": st.lists(nearly(turns), max_size=4),
    }
)


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(dialogs), max_size=4), as_lines=st.booleans())
def test_whatever_dialogue_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("sdialog", [dialog(), *records], as_lines, EN)
    assert conversion is None or conversion.dialogues[0].turns[0].text == f"{SECRET} "


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(personas), max_size=4), as_lines=st.booleans())
def test_whatever_persona_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("sdialog-personas", [persona(), *records], as_lines, EN)
    assert conversion is None or conversion.cards[0].problem == SECRET
