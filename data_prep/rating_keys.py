"""The key of a blinded export: which item is which dialogue, and who was given it. It never goes to the raters."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from data_prep.errors import UserError
from data_prep.normalising import normalised
from data_prep.records import Dialogue, Record, describe_invalid, parse_json, read_text, write_text
from data_prep.rubric import Rubric

Plan = Mapping[str, Sequence[str]]
"""rater -> ids of the dialogues this rater gets, in the rater's own order."""


class RatingKey(Record):
    """Maps the items of rating sheets or Label Studio tasks back to dialogues."""

    kind: Literal["rating key"] = "rating key"
    rubric: str = Field(min_length=1)
    rubric_sha: str
    seed: int
    items: dict[str, str]
    """item -> dialogue id."""
    raters: dict[str, tuple[str, ...]]
    """rater -> items, in the rater's order."""
    texts: dict[str, str] = Field(default_factory=dict)
    """item -> mark of the dialogue's text in the sheets (`text_mark`); empty in keys of older versions."""

    @model_validator(mode="after")
    def _items_known(self) -> "RatingKey":
        if any(item not in self.items for items in self.raters.values() for item in items):
            raise ValueError("raters name an item that is not among the items")
        return self


def text_mark(text: str) -> str:
    """What tells two texts apart however a spreadsheet treats white space and quotation marks."""
    return hashlib.sha256(normalised(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]


class RatingPlan(Record):
    """Who rates what, before it is blinded."""

    kind: Literal["rating plan"] = "rating plan"
    seed: int
    per_item: int
    overlap: float
    raters: dict[str, tuple[str, ...]]


def make_key(dialogues: Sequence[Dialogue], plan: Plan, rubric: Rubric, seed: int) -> RatingKey:
    """Numbers the planned dialogues in a random order, so that an item says nothing of where it came from.

    Raises UserError when the plan names a dialogue that is not there.
    """
    known = {dialogue.id for dialogue in dialogues}
    planned = {identifier for ids in plan.values() for identifier in ids}
    unknown = sorted(planned - known)
    if unknown:
        raise UserError(f"the plan names dialogue {unknown[0]!r}, which is not among the dialogues given")
    chosen = sorted(planned)
    Random(f"items {seed}").shuffle(chosen)
    width = max(3, len(str(len(chosen))))
    # The tag ties the sheets to this key: with the key of another export no item is known, rather than the wrong one.
    content = json.dumps([seed, rubric.sha, chosen, {rater: list(ids) for rater, ids in plan.items()}])
    tag = hashlib.sha256(content.encode()).hexdigest()[:4]
    names = {dialogue_id: f"item-{tag}-{number:0{width}}" for number, dialogue_id in enumerate(chosen, start=1)}
    return RatingKey(
        rubric=rubric.name,
        rubric_sha=rubric.sha,
        seed=seed,
        items={item: dialogue_id for dialogue_id, item in names.items()},
        raters={rater: tuple(names[identifier] for identifier in ids) for rater, ids in plan.items()},
    )


def _read(path: str | Path, kind: type[RatingKey] | type[RatingPlan], what: str) -> RatingKey | RatingPlan:
    content = parse_json(read_text(path), str(path))
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: is no {what}: {describe_invalid(error)}") from None


def read_key(path: str | Path, rubric: Rubric) -> RatingKey:
    """A key file. Raises UserError when it is none, or belongs to another rubric or another version of it."""
    key = _read(path, RatingKey, "rating key (key.json of an export)")
    assert isinstance(key, RatingKey)
    if key.rubric != rubric.name:
        raise UserError(f"{path}: is the key of rubric {key.rubric!r}, expected {rubric.name!r}; see --rubric")
    if key.rubric_sha != rubric.sha:
        raise UserError(f"{path}: rubric {rubric.name} has changed since the export; rate again, or use the old rubric")
    return key


def read_plan(path: str | Path) -> RatingPlan:
    """A plan file. Raises UserError when it is none."""
    plan = _read(path, RatingPlan, "rating plan (of: esckit ratings assign)")
    assert isinstance(plan, RatingPlan)
    return plan


def write_json_record(path: str | Path, record: Record) -> None:
    """A key or a plan as indented JSON, atomically."""
    write_text(path, record.model_dump_json(indent=2) + "\n")
