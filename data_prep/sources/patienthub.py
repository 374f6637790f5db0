"""PatientHub (Sahandfer/PatientHub): characters as role cards, recorded sessions as dialogues.

Every client model of PatientHub has characters of its own shape; what a card needs is looked for at the places below
(age, gender, occupation, problem), the first that is filled in counts, and the character is kept whole in `meta`. A
session is {"profile": character, "messages": [{"role": "therapist" | "client", "content"}], "num_turns", "usage"},
the roles also capitalised; its usage is ignored. Characters come one or several a file, sessions too, or a folder.

Text is verbatim. A turn without text is dropped and counted. A character without a problem is refused; in a session
it gives no card, counted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.records import RoleCard, Speaker
from data_prep.sources.base import Conversion, Made, Options, Source
from data_prep.sources.characters import layout_card, text_at
from data_prep.sources.layouts import (
    EXTRAS,
    LayoutDraft,
    Parts,
    chat_turns,
    plain_fields,
    stream_cards,
    stream_dialogues,
)

SPEAKERS: dict[str, Speaker] = {"client": "seeker", "therapist": "supporter"}
_PEOPLE = ("demographics", "profile", "persona", "basic_profile")
_IDENTITY = ("MFC-Profile", "Identifying data")
AGE = (("age",), *((place, "age") for place in _PEOPLE), (*_IDENTITY, "Age"))
GENDER = (("gender",), *((place, "gender") for place in _PEOPLE), (*_IDENTITY, "Sex"))
OCCUPATION = (
    ("occupation",),
    *((place, "occupation") for place in _PEOPLE),
    ("demographics", "occupation", "title"),
    (*_IDENTITY, "Occupation"),
)
PROBLEM = (
    ("problem",),
    ("current_issue", "description"),
    ("basic_profile", "problem"),
    ("persona", "chief_complaint"),
    ("MFC-Profile", "Chief complaint"),
    ("situation",),
    ("description",),
    ("patient_info",),
    ("between_session_event",),
    ("life_history",),
    ("history",),
    ("profile", "symptoms"),
)
ORIGIN = "PatientHub; Sahandfer/PatientHub"
LICENCE = "as its repository states; that of the data you bring"


def character_card(character: Any, draft: LayoutDraft) -> RoleCard | None:
    """The card of a character, or None when none of the places tells a problem."""
    problem = text_at(character, PROBLEM)
    if problem is None:
        return None
    return layout_card(
        draft,
        "patienthub",
        age=text_at(character, AGE),
        gender=text_at(character, GENDER),
        occupation=text_at(character, OCCUPATION),
        problem=problem,
        meta={"character": character},
    )


def _character(record: dict[str, Any], draft: LayoutDraft) -> RoleCard:
    if "messages" in record:
        raise draft.error("is a session, not a character; use source patienthub-sessions")
    card = character_card(record, draft)
    if card is None:
        raise draft.error("tells no problem at any place that PatientHub's characters have for it")
    return card


def _session(record: dict[str, Any], draft: LayoutDraft) -> Parts:
    _, raw = chat_turns(record, ("messages", "role", "content"), draft)
    turns: list[tuple[Speaker, str]] = []
    for number, (role, text) in enumerate(raw, start=1):
        if role not in SPEAKERS:
            raise draft.error(f"turn {number}: role is neither {' nor '.join(SPEAKERS)}")
        turns.append((SPEAKERS[role], text))
    profile = record.get("profile")
    card = character_card(profile, draft) if isinstance(profile, dict) else None
    draft.missing["character with a problem"] += card is None
    known = {"id", "language", "profile", "messages", "num_turns", "usage", EXTRAS}
    return Parts(turns, plain_fields(record, known, draft), card, extras=record.get(EXTRAS))


def stream_characters(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Role cards; ids are the character's own, else `patienthub-<file>-<position>`."""
    return stream_cards(path, options, conversion, "patienthub", _character)


def stream_sessions(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues, each with the card of its character; ids are `patienthub-<file>-<position>` unless it has one."""
    return stream_dialogues(path, options, conversion, "patienthub", _session)


PATIENTHUB_CHARACTERS = Source(
    name="patienthub-characters",
    title="PatientHub characters, of any of its client models",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("data/characters/*.json",),
    origin=ORIGIN,
    makes="cards",
    stream=stream_characters,
)
PATIENTHUB_SESSIONS = Source(
    name="patienthub-sessions",
    title="PatientHub sessions between a simulated client and a therapist",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("data/sessions/*/*.json",),
    origin=ORIGIN,
    makes="dialogues",
    stream=stream_sessions,
)
