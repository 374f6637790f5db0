"""The 100 seeker personas of ESC-Judge (navidmdn/ESC-Judge), as role cards.

    {"role", "pid", "life_events", "challenge", "behavioral_traits", "final_persona"}

JSON Lines in a file named `.json`. The role, what its authors gave to their seeker model, is the card's published
text, verbatim; the challenge is its problem; the rest is kept in `meta`. Age, gender and occupation are taken from
lines that name them (`- age: 28`, `28-year-old male`) and only where the persona says one thing; otherwise they are
missing, counted, and nothing is inferred from pronouns. A record of another shape is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import RoleCard
from data_prep.sources.base import Conversion, Draft, Made, Options, Source
from data_prep.sources.layouts import json_values

FIELDS = ("role", "pid", "life_events", "challenge", "behavioral_traits", "final_persona")
_LINE = r"^[-*\s]*{name}[*\s]*:[*\s]*(\S.*?)[.*\s]*$"
PATTERNS = {
    "age": (_LINE.format(name="age"), r"\b(\d{1,3})[- ]years?[- ]old\b"),
    "gender": (
        _LINE.format(name="gender(?: identity)?"),
        r"\byears?[- ]old,? (male|female|man|woman|non-binary)\b",
    ),
    "occupation": (_LINE.format(name="occupation"),),
}


def _stated(text: str, name: str) -> str | None:
    """What the persona states of age, gender or occupation, where it states one thing only."""
    found = {value for pattern in PATTERNS[name] for value in re.findall(pattern, text, re.IGNORECASE | re.MULTILINE)}
    return found.pop() if len(found) == 1 else None


def _card(record: dict[str, Any], draft: Draft) -> RoleCard:
    for name in FIELDS:
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise draft.error(f"`{name}` is no text; expected {', '.join(FIELDS)}")
    persona = record["final_persona"]
    stated = {name: _stated(persona, name) for name in PATTERNS}
    for name, value in stated.items():
        draft.missing[f"{name} not stated in one way"] += value is None
    return RoleCard(
        id=record["pid"],
        language="en",
        problem=record["challenge"],
        source="esc-judge",
        text=record["role"],
        meta={name: record[name] for name in ("life_events", "behavioral_traits", "final_persona")},
        age=stated["age"],
        gender=stated["gender"],
        occupation=stated["occupation"],
    )


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Role cards with the authors' ids (`pid`)."""
    for where, _, record in json_values(path, conversion):
        draft = Draft(where)
        try:
            if not isinstance(record, dict):
                raise draft.error("is not an object")
            card = _card(record, draft)
        except UserError as error:
            conversion.refuse(where, error)
            continue
        draft.accept(conversion)
        yield where, [card]


ESC_JUDGE_PERSONAS = Source(
    name="esc-judge-personas",
    title="ESC-Judge seeker personas: 100 roles for a simulated seeker",
    languages=("en",),
    licence="Apache-2.0",
    files=("esc_judge_roles-v1.json",),
    origin="ESC-Judge; navidmdn/ESC-Judge",
    makes="cards",
    stream=stream,
)
