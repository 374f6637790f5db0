"""Rubrics are data: a named, versioned set of dimensions with scale and anchors, in English and Chinese.

`rubrics/*.yaml` ship with the package; a user adds one by writing a YAML file of the same shape and naming its path.
"""

import hashlib
import json
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import Field, ValidationError, model_validator

from data_prep.errors import UserError
from data_prep.records import Rating, Record, describe_invalid, read_text

RUBRIC_FOLDER = Path(__file__).parent / "rubrics"


class Wording(Record):
    """The same sentence in both languages."""

    en: str = Field(min_length=1)
    zh: str = Field(min_length=1)


class Dimension(Record):
    """One thing that is rated: an integer scale and the meaning of its levels."""

    name: str = Field(min_length=1, pattern=r"^[a-z][a-z0-9_]*$")
    official_key: str | None = None
    """Name of this dimension in the official ESC-Eval score files, where it has one."""
    scale: tuple[int, int]
    """Lowest and highest level, both included."""
    title: Wording
    question: Wording
    anchors: dict[int, Wording]
    """Meaning of every level of the scale."""

    @model_validator(mode="after")
    def _levels_explained(self) -> "Dimension":
        low, high = self.scale
        if low >= high:
            raise ValueError(f"scale of {self.name} must go from low to high, found {low}..{high}")
        if set(self.anchors) != set(self.levels()):
            raise ValueError(f"anchors of {self.name} must explain exactly the levels {low}..{high}")
        return self

    def levels(self) -> range:
        """All levels, lowest first."""
        return range(self.scale[0], self.scale[1] + 1)


class Rubric(Record):
    """A set of dimensions. `sha` changes whenever anything in it does."""

    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    description: str = Field(min_length=1)
    dimensions: tuple[Dimension, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> "Rubric":
        names = [dimension.name for dimension in self.dimensions]
        if len(set(names)) < len(names):
            raise ValueError("two dimensions have the same name")
        return self

    @property
    def sha(self) -> str:
        """First 12 hex digits of the sha256 of the rubric's content."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def names(self) -> list[str]:
        return [dimension.name for dimension in self.dimensions]

    def dimension(self, name: str) -> Dimension:
        """The dimension of that name. Raises UserError with the known names."""
        for dimension in self.dimensions:
            if dimension.name == name:
                return dimension
        raise UserError(f"rubric {self.name} has no dimension {name!r}; it has: {', '.join(self.names())}")


def known_rubrics() -> list[str]:
    """Names of the shipped rubrics."""
    return sorted(path.stem for path in RUBRIC_FOLDER.glob("*.yaml"))


def load_rubric(name: str) -> Rubric:
    """A shipped rubric by name, or a user's by path (anything ending in .yaml or .yml).

    Raises UserError for an unknown name (with a suggestion) and for a file that is no rubric.
    """
    is_path = name.endswith((".yaml", ".yml"))
    if not is_path and name not in known_rubrics():
        close = get_close_matches(name, known_rubrics(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known_rubrics())}."
        raise UserError(f"unknown rubric {name!r}; {hint} A rubric of your own is named by its .yaml path")
    path = Path(name) if is_path else RUBRIC_FOLDER / f"{name}.yaml"
    try:
        return Rubric.model_validate(yaml.safe_load(read_text(path)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    except ValidationError as error:
        raise UserError(f"{path}: {describe_invalid(error)}") from None


def check_ratings(ratings: Iterable[tuple[str, Rating]], rubric: Rubric) -> None:
    """Checks (where, rating) pairs against a rubric.

    Raises UserError, naming `where`, for another rubric, an unknown dimension, or a value off the scale. Values
    between two levels are refused too: a rating is a level somebody chose; averages are made later, not read.
    """
    for where, rating in ratings:
        if rating.rubric != rubric.name:
            raise UserError(f"{where}: rating is for rubric {rating.rubric!r}, expected {rubric.name!r}")
        if rating.dimension not in rubric.names():
            raise UserError(
                f"{where}: dimension {rating.dimension!r} is not in rubric {rubric.name}; "
                f"it has: {', '.join(rubric.names())}"
            )
        dimension = rubric.dimension(rating.dimension)
        if rating.value is not None and rating.value not in dimension.levels():
            low, high = dimension.scale
            raise UserError(
                f"{where}: value {rating.value:g} of {rating.dimension} is off the scale {low}..{high} (whole levels)"
            )
