"""Our role cards and dialogues in the layouts of other tools: messages, ShareGPT, PatientHub, sdialog.

What a layout has no place for (strategies, situation, card, source, `meta`) goes under the key `esckit`, which those
tools ignore and our converters read back, so that ours → theirs → ours loses nothing; `bare=True` leaves it out.
Everything here is a pure function from a record to JSON; `write_export` puts it into files.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import NOT_MENTIONED, Dialogue, RoleCard, write_text
from data_prep.sources.layouts import EXTRAS

CHAT = {"seeker": "user", "supporter": "assistant"}
SHAREGPT = {"seeker": "human", "supporter": "gpt"}
PATIENTHUB = {"seeker": "client", "supporter": "therapist"}
SDIALOG = {"seeker": "Seeker", "supporter": "Supporter"}
LANGUAGE_NAMES = {"en": "English", "zh": "Chinese"}

Json = dict[str, Any]


def _extras(dialogue: Dialogue) -> Json:
    """All of a dialogue but its id, speakers and texts; notes on turns only where there are any."""
    kept = dialogue.model_dump(mode="json", exclude_defaults=True, exclude={"id", "turns"})
    turns = [
        turn.model_dump(mode="json", exclude_defaults=True, exclude={"speaker", "text"}) for turn in dialogue.turns
    ]
    return {**kept, "turns": turns} if any(turns) else kept


def _with_extras(record: Json, dialogue: Dialogue, bare: bool) -> Json:
    return record if bare else {**record, EXTRAS: _extras(dialogue)}


# ---- dialogues


def to_messages(dialogue: Dialogue, bare: bool = False) -> Json:
    """{"id", "messages": [{"role": "user" | "assistant", "content"}]}; the seeker is the user."""
    turns = [{"role": CHAT[turn.speaker], "content": turn.text} for turn in dialogue.turns]
    return _with_extras({"id": dialogue.id, "messages": turns}, dialogue, bare)


def to_sharegpt(dialogue: Dialogue, bare: bool = False) -> Json:
    """{"id", "conversations": [{"from": "human" | "gpt", "value"}]}; the seeker is the human."""
    turns = [{"from": SHAREGPT[turn.speaker], "value": turn.text} for turn in dialogue.turns]
    return _with_extras({"id": dialogue.id, "conversations": turns}, dialogue, bare)


def to_patienthub_session(dialogue: Dialogue, bare: bool = False) -> Json:
    """A PatientHub session: the card's character, the messages of therapist and client, the number of exchanges."""
    turns = [{"role": PATIENTHUB[turn.speaker], "content": turn.text} for turn in dialogue.turns]
    profile = to_patienthub_character(dialogue.card, bare=True) if dialogue.card is not None else {}
    session = {
        "id": dialogue.id,
        "profile": profile,
        "messages": turns,
        "num_turns": sum(turn.speaker == "seeker" for turn in dialogue.turns),
    }
    return _with_extras(session, dialogue, bare)


def to_sdialog(dialogue: Dialogue, bare: bool = False) -> Json:
    """An sdialog Dialog; our extras are in its `scenario`, the one place that sdialog itself keeps as it is."""
    personas = {SDIALOG["seeker"]: to_sdialog_persona(dialogue.card, bare=True)} if dialogue.card is not None else None
    return {
        "version": None,
        "timestamp": None,
        "id": dialogue.id,
        "personas": personas,
        "scenario": None if bare else {EXTRAS: _extras(dialogue)},
        "turns": [{"speaker": SDIALOG[turn.speaker], "text": turn.text} for turn in dialogue.turns],
    }


# ---- role cards


def to_patienthub_character(card: RoleCard, bare: bool = False) -> Json:
    """A PatientHub character: demographics and issue as its basic client wants them, the card's text beside them."""
    missing = NOT_MENTIONED[card.language]
    character: Json = {
        "id": card.id,
        "demographics": {
            "name": "Client",
            "age": card.age or missing,
            "gender": card.gender or missing,
            "occupation": {"title": card.occupation or missing},
        },
        "current_issue": {"description": card.problem or missing},
        "description": card.as_text(),
    }
    return character if bare else {**character, EXTRAS: card.model_dump(mode="json", exclude_defaults=True)}


def to_sdialog_persona(card: RoleCard, bare: bool = False) -> Json:
    """An sdialog Patient persona; fields that are not mentioned are left out, as sdialog does.

    Personas forbid further keys, so our extras are JSON text in the notes of the metadata.
    """
    fields = {
        "name": SDIALOG["seeker"],
        "age": card.age,
        "gender": card.gender,
        "language": LANGUAGE_NAMES[card.language],
        "occupation": card.occupation,
        "reason_for_visit": card.problem,
    }
    persona: Json = {name: value for name, value in fields.items() if value}
    extras = {EXTRAS: card.model_dump(mode="json", exclude_defaults=True)}
    metadata = {
        "version": None,
        "timestamp": None,
        "id": card.id,
        "className": "Patient",
        "notes": None if bare else json.dumps(extras, ensure_ascii=False),
    }
    return {**persona, "_metadata": metadata}


# ---- files


@dataclass(frozen=True)
class Format:
    """A layout to write. `one_a_file`: the tool reads one dialogue (or persona) a file, so a folder is written."""

    name: str
    dialogue: Callable[[Dialogue, bool], Json]
    card: Callable[[RoleCard, bool], Json] | None = None
    dialogues_one_a_file: bool = False
    cards_one_a_file: bool = False


FORMATS = {
    found.name: found
    for found in (
        Format("messages", to_messages),
        Format("sharegpt", to_sharegpt),
        Format("patienthub", to_patienthub_session, to_patienthub_character, dialogues_one_a_file=True),
        Format("sdialog", to_sdialog, to_sdialog_persona, dialogues_one_a_file=True, cards_one_a_file=True),
    )
}


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _file_name(position: int, identifier: str) -> str:
    """`0001-<id>.json`: in order, unique, and safe on every file system."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", identifier)[:80].strip("-.") or "record"
    return f"{position:04d}-{safe}.json"


def write_export(
    layout: Format, records: Sequence[Dialogue] | Sequence[RoleCard], out: str | Path, bare: bool = False
) -> list[Path]:
    """Writes records in a layout and returns the files written.

    Chats: JSON Lines. PatientHub characters: one JSON list. PatientHub sessions and all of sdialog's: a folder with a
    file each, for those tools read no list. Raises UserError for cards in a layout without characters, and when the
    folder holds files that are not ours to replace.
    """
    out = Path(out)
    cards = [record for record in records if isinstance(record, RoleCard)]
    dialogues = [record for record in records if isinstance(record, Dialogue)]
    if cards and layout.card is None:
        named = ", ".join(name for name, found in FORMATS.items() if found.card is not None)
        raise UserError(f"layout {layout.name} has no place for role cards alone; those that have: {named}")
    made = [layout.dialogue(dialogue, bare) for dialogue in dialogues]
    made += [layout.card(card, bare) for card in cards if layout.card is not None]
    if layout.cards_one_a_file if cards else layout.dialogues_one_a_file:
        ids = [record.id for record in dialogues] + [record.id for record in cards]
        names = [_file_name(position, identifier) for position, identifier in enumerate(ids, start=1)]
        _refuse_strangers(out, names)
        for name, content in zip(names, made, strict=True):
            write_text(out / name, _pretty(content))
        return [out / name for name in names]
    text = _pretty(made) if cards else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
    write_text(out, text)
    return [out]


def _refuse_strangers(folder: Path, names: Sequence[str]) -> None:
    """Files already in the folder would be read as part of the set."""
    if folder.is_file():
        raise UserError(f"{folder}: is a file; this layout is one file a record, so --out names a folder")
    strangers = {file.name for file in folder.glob("*")} - set(names) if folder.is_dir() else set()
    if strangers:
        raise UserError(f"{folder}: holds {len(strangers)} other files; choose an empty folder")
