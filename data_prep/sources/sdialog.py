"""sdialog (idiap/sdialog): its dialogues, and its personas as role cards.

- dialogue: {"version", "id", "personas": {speaker: persona}, "scenario", "turns": [{"speaker", "text"}], "events", …},
  one a file or a folder of them. The seeker is the one that --seeker names, else the one whose name (Client,
  Patient, …) or whose persona's role says so. Their persona becomes the dialogue's card.
- persona: {"name", "age", "gender", "occupation" or "role", "reason_for_visit" or "circumstances", …, "_metadata"}.

Events repeat the turns and are ignored, as is what the generating model was. Text is verbatim. A turn without text is
dropped and counted; a persona without a problem gives no card.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import RoleCard, Speaker, parse_json
from data_prep.sources.base import Conversion, Made, Options, Source
from data_prep.sources.characters import layout_card, text_at
from data_prep.sources.layouts import (
    EXTRAS,
    UNKNOWN,
    LayoutDraft,
    Parts,
    stream_cards,
    stream_dialogues,
    tell_apart,
)

PROBLEM = (("reason_for_visit",), ("circumstances",), ("symptoms",), ("issue_description",), ("background",))
# What sdialog's own classes put into `role` where it says who speaks, not what they do for a living.
NO_OCCUPATION = frozenset({"patient", "client", "user", "seeker", "customer"})
FIELDS = {"version", "timestamp", "model", "seed", "id", "parentId", "complete", "personas", "context", "scenario"}
FIELDS |= {"turns", "events", "notes", "_path", "language"}
ORIGIN = "sdialog; idiap/sdialog"
LICENCE = "that of the data you bring (the tool: MIT)"


def persona_card(persona: Any, draft: LayoutDraft) -> RoleCard | None:
    """The card of a persona, or None when it tells no problem."""
    problem = text_at(persona, PROBLEM)
    if problem is None:
        return None
    role = text_at(persona, (("role",),))
    occupation = text_at(persona, (("occupation",),))
    if occupation is None and role is not None and role.strip().casefold() not in NO_OCCUPATION:
        occupation = role
    return layout_card(
        draft,
        "sdialog",
        age=text_at(persona, (("age",),)),
        gender=text_at(persona, (("gender",),)),
        occupation=occupation,
        problem=problem,
        meta={"persona": {key: value for key, value in persona.items() if key != "_metadata"}},
    )


def _turns(record: dict[str, Any], draft: LayoutDraft) -> list[tuple[str, str]]:
    raw = record.get("turns")
    if not isinstance(raw, list) or not raw:
        raise draft.error("has no list of turns under `turns`")
    draft.turns = len(raw)
    turns: list[tuple[str, str]] = []
    for number, turn in enumerate(raw, start=1):
        if not isinstance(turn, dict) or not isinstance(turn.get("text"), str):
            raise draft.error(f"turn {number}: has no `text`")
        if not isinstance(turn.get("speaker"), str) or not turn["speaker"].strip():
            raise draft.error(f"turn {number}: has no `speaker`")
        draft.repairs[UNKNOWN] += len(set(turn) - {"speaker", "text"})
        turns.append((turn["speaker"], turn["text"]))
    return turns


def dialogue_extras(record: dict[str, Any]) -> Any:
    """Our extras: sdialog keeps a `scenario` as it is, while it drops keys that it does not know."""
    scenario = record.get("scenario")
    return scenario.get(EXTRAS) if isinstance(scenario, dict) else None


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues; ids are the record's own, else `sdialog-<file>-<position>`."""

    def parse(record: dict[str, Any], draft: LayoutDraft) -> Parts:
        turns = _turns(record, draft)
        personas = record.get("personas") or {}
        if not isinstance(personas, dict):
            raise draft.error("`personas` is not an object")
        roles = {name: text_at(persona, (("role",),)) or "" for name, persona in personas.items()}
        sides = tell_apart([speaker for speaker, _ in turns], options.seeker, draft, roles)
        told: list[tuple[Speaker, str]] = [(sides[speaker], text) for speaker, text in turns]
        seeker = next((name for name, side in sides.items() if side == "seeker"), None)
        persona = personas.get(seeker) if seeker is not None else None
        card = persona_card(persona, draft) if isinstance(persona, dict) else None
        draft.missing["persona of the seeker with a problem"] += card is None
        draft.repairs[UNKNOWN] += len(set(record) - FIELDS)
        meta = {key: record[key] for key in ("context", "scenario", "notes") if record.get(key) is not None}
        return Parts(told, meta, card, extras=dialogue_extras(record))

    return stream_dialogues(path, options, conversion, "sdialog", parse, dialogue_extras)


def persona_extras(record: dict[str, Any]) -> Any:
    """Our extras: personas forbid further keys, so they are JSON text in the notes of their metadata."""
    metadata = record.get("_metadata")
    notes = metadata.get("notes") if isinstance(metadata, dict) else None
    if not isinstance(notes, str) or not notes.startswith(f'{{"{EXTRAS}"'):
        return None
    try:
        return parse_json(notes, EXTRAS)[EXTRAS]
    except UserError:
        return False  # refused as no object: the notes were ours once


def _persona(record: dict[str, Any], draft: LayoutDraft) -> RoleCard:
    if "turns" in record:
        raise draft.error("is a dialogue, not a persona; use source sdialog")
    card = persona_card(record, draft)
    if card is None:
        raise draft.error("tells no problem: none of reason_for_visit, circumstances, symptoms, background is there")
    return card


def stream_personas(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Role cards; ids are `sdialog-<file>-<position>` unless the persona has one."""
    return stream_cards(path, options, conversion, "sdialog", _persona, persona_extras)


SDIALOG = Source(
    name="sdialog",
    title="sdialog dialogues",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("*.json, one dialogue each",),
    origin=ORIGIN,
    makes="dialogues",
    stream=stream,
    takes=("seeker",),
)
SDIALOG_PERSONAS = Source(
    name="sdialog-personas",
    title="sdialog personas of seekers",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("*.json, one persona each",),
    origin=ORIGIN,
    makes="cards",
    stream=stream_personas,
)
