"""NLPCC 2025 shared task 8, personalised emotional support: English dialogues with a profile of the seeker.

A file is one JSON object of records by id; a JSON array or JSON Lines of the same records (with or without `id`) is
read too:

    {"1201": {"whole_dialog": ["seeker:…", "supporter:…", …],
              "character": {"Name": …, "Sex": …, "Age": …, "Occupation": …, "Hobby": …, "emotion_type": …,
                            "problem_type": …, "situation": …}}}

The situation becomes the card's problem, and what of the profile has no field on a card is kept in the card's
`meta["persona"]`. Repaired, and counted: whitespace around an utterance is stripped, the speaker is told whatever its
case. Missing, and counted: the supporter's turns of the test file, which are empty because the task is to write them;
they stay as empty turns. All else is refused.
"""

import re
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, Speaker, Turn, parse_json, read_text
from data_prep.sources.base import Conversion, Options, Source, json_records

NAME = "nlpcc2025-task8"
KEY = re.compile(r'"whole_dialog"\s*:')
LINE = re.compile(r"\s*(seeker|supporter)\s*[:：]", re.IGNORECASE)
CARD_FIELDS = {"age": "Age", "gender": "Sex", "occupation": "Occupation", "problem": "situation"}
LABELS = ("emotion_type", "problem_type")


def holds_task8(path: str | Path) -> bool:
    """Whether a file looks like the task's: told by its key, which comes first in every record."""
    return KEY.search(read_text(path)[:500]) is not None


def _records(path: Path, conversion: Conversion) -> list[tuple[str, str, Any]]:
    """(where, id, value) of every record, in any of the three layouts."""
    try:
        content = parse_json(read_text(path), str(path))
    except UserError:
        content = None  # JSON Lines, or broken: the other reader names the line
    if isinstance(content, dict) and "whole_dialog" not in content:
        return [(f"{path}: record {key!r}", key, value) for key, value in content.items()]
    found = []
    for where, position, value in json_records(path, conversion):
        named = value.get("id") if isinstance(value, dict) else None
        identifier = named if isinstance(named, str | int) and not isinstance(named, bool) else f"{position:04d}"
        found.append((where, str(identifier), value))
    return found


def _turn(line: Any, number: int, conversion: Conversion) -> Turn:
    if not isinstance(line, str):
        raise UserError(f"turn {number}: is not a text")
    match = LINE.match(line)
    if match is None:
        raise UserError(f"turn {number}: does not begin with seeker: or supporter:")
    speaker: Speaker = "seeker" if match[1].lower() == "seeker" else "supporter"
    text = line[match.end() :].strip()
    if not text and speaker == "seeker":
        raise UserError(f"turn {number}: the seeker says nothing")
    conversion.missing["supporter turn left to be written"] += not text
    conversion.repairs["whitespace at the edge of a turn"] += bool(text) and text != line[match.end() :]
    return Turn(speaker=speaker, text=text)


def _card(character: Any, identifier: str) -> RoleCard:
    if not isinstance(character, dict) or not all(isinstance(value, str) for value in character.values()):
        raise UserError("`character` is not an object of texts")
    profile = {key: value.strip() for key, value in character.items() if value.strip()}
    fields = {name: profile.pop(key, None) for name, key in CARD_FIELDS.items()}
    labels = {name: profile.pop(name, None) for name in LABELS}
    return RoleCard(
        id=identifier,
        language="en",
        **fields,
        category=(labels["problem_type"],) if labels["problem_type"] else (),
        source=NAME,
        meta={"emotion_type": labels["emotion_type"], "persona": profile},
    )


def convert(path: Path, options: Options) -> Conversion:
    """Dialogues with a role card each; ids are `nlpcc-<file stem>-<id in the file>`."""
    conversion = Conversion()
    stem = re.sub(r"\W+", "-", path.stem.lower()).strip("-") or "file"
    seen: set[str] = set()
    for where, key, value in _records(path, conversion):
        lines = value.get("whole_dialog") if isinstance(value, dict) else None
        count = len(lines) if isinstance(lines, list) else 0
        conversion.turns_read += count
        state = Conversion()  # counted only once the whole record is accepted
        identifier = f"nlpcc-{stem}-{key}"
        try:
            if identifier in seen:
                raise UserError(f"id {key!r} is already used; ids must differ")
            if not isinstance(lines, list) or not lines:
                raise UserError("has no list of lines under `whole_dialog`")
            card = _card(value.get("character"), identifier)
            turns = tuple(_turn(line, number, state) for number, line in enumerate(lines, start=1))
        except UserError as error:
            conversion.refuse(where, error, count)
            continue
        seen.add(identifier)
        conversion.dialogues.append(
            Dialogue(id=identifier, language="en", source=NAME, turns=turns, card=card, situation=card.problem)
        )
        conversion.repairs += state.repairs
        conversion.missing += state.missing
    return conversion


NLPCC = Source(
    name=NAME,
    title="NLPCC 2025 shared task 8: personalised emotional support conversations",
    languages=("en",),
    licence="none stated",
    files=("train.json", "val.json", "test.json"),
    origin="NLPCC 2025 shared task 8; Jin-zd/NLPCC-2025-Shared-Task8",
    makes="dialogues",
    convert=convert,
)
