"""The fields of role cards in the characters and personas of other tools."""

import re
from collections.abc import Sequence
from typing import Any

from data_prep.records import RoleCard
from data_prep.sources.layouts import LayoutDraft

# Ways in which characters say that a field is not known; -1 is one of them.
NOT_SAID = re.compile(
    r"\s*(-1|(not (mentioned|specified|stated)( in [\w ]{1,30})?|unknown|none|n/a|未提及)[.。]?)\s*", re.IGNORECASE
)


def text_at(record: Any, paths: Sequence[tuple[str, ...]]) -> str | None:
    """The first text (or number, or list of texts, one a line) found at one of `paths`; None when there is none."""
    for keys in paths:
        value = record
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            value = "\n".join(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip() and not NOT_SAID.fullmatch(value):
            return value
    return None


def layout_card(
    draft: LayoutDraft,
    source: str,
    *,
    age: str | None,
    gender: str | None,
    occupation: str | None,
    problem: str,
    meta: dict[str, Any],
) -> RoleCard:
    """A card of what a character or persona says; fields it does not are counted as missing."""
    for name, value in (("age", age), ("gender", gender), ("occupation", occupation)):
        draft.missing[f"{name} not mentioned"] += value is None
    return RoleCard(
        id=draft.id,
        language=draft.language,
        age=age,
        gender=gender,
        occupation=occupation,
        problem=problem,
        source=source,
        meta=meta,
    )
