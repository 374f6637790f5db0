"""One typed cell: where it stands, what it may hold, and what to say when it holds something else."""

import datetime
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from data_prep.rubric import Dimension

LEFT_EMPTY = "left empty"
# What people and programs write for "no value"; compared case-folded.
MISSING_WORDS = frozenset(
    [
        *("n/a", "na", "n.a.", "none", "null", "nil", "nan", "missing", "skip", "skipped"),
        *("-", "--", "–", "—", "/", "?", "不适用", "无", "缺失", "没有", "未评", "跳过", "空"),
    ]
)
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
DATE_LIKE = re.compile(r"\d{1,4}[-/.年]\d{1,2}([-/.月]\d{1,4}日?)?|\d{1,2}[- ][A-Za-z]{3}|[A-Za-z]{3}[- ]\d{1,2}")


@dataclass(frozen=True)
class Place:
    """Where a cell stands: a row as a spreadsheet counts it, from 1; a line of JSON Lines; a task of Label Studio."""

    file: str
    row: int | None = None
    column: str | None = None
    sheet: str | None = None
    line: int | None = None
    """Line in a text editor; of a CSV row it is its last line, which differs where cells hold line breaks."""
    task: str | None = None

    def __str__(self) -> str:
        parts = [self.file]
        if self.sheet is not None:
            parts.append(f"sheet {self.sheet}")
        if self.task is not None:
            parts.append(f"task {self.task}")
        if self.row is None and self.line is not None:
            parts.append(f"line {self.line}")
        if self.row is not None:
            parts.append(f"row {self.row}" + (f" (line {self.line})" if self.line not in (None, self.row) else ""))
        if self.column is not None:
            parts.append(f"column {self.column}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Fault:
    """One thing that was not imported, where it stands and what to do."""

    place: Place
    message: str
    about: str | None = None
    """What it concerns when all rows of a file may have it alike: an option (--rubric, --key, --rater) or "copy"."""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class Cell:
    """One value as it was typed; exactly one of `dialogue_id` and `item` (a blinded id) is needed."""

    place: Place
    rater: Any
    dimension: str
    value: Any
    dialogue_id: Any = None
    item: Any = None
    rubric: Any = None
    note: Any = None
    """What the rater wrote beside it; becomes part of the reason when the value is missing."""
    reason: Any = None
    """Why the value is missing, where the file has a place for that."""
    shown: str | None = None
    """The dialogue's text as it stands in the row, where there is a column for it."""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` or the list of known names."""
    close = get_close_matches(name.casefold(), known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def like_id(name: str, known: Collection[str]) -> str:
    """`; did you mean 'x'?` for an id that is mistyped; another number is no typing mistake, but 1 for 01 is."""

    def parts(text: str) -> list[str]:
        return [part.lstrip("0") or "0" if part.isdigit() else part.casefold() for part in re.findall(r"\d+|\D+", text)]

    def numbers(text: str) -> list[str]:
        return [part for part in parts(text) if part.isdigit()]

    close = get_close_matches(name, [other for other in known if numbers(other) == numbers(name)], n=1, cutoff=0.8)
    return f"; did you mean {close[0]!r}?" if close else ""


def short(value: Any) -> str:
    """A cell in a message: only what is too short to be anybody's words, otherwise its kind."""
    text = str(value)
    return repr(text) if len(text) <= 12 else f"a text of {len(text)} characters"


def read_level(value: Any, dimension: Dimension) -> tuple[float | None, str | None]:
    """(level, None) or (None, reason for missing) of one typed value. Raises ValueError with what to do instead."""
    low, high = dimension.scale
    expected = f"expected a whole level {low} to {high}"
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        raise ValueError(
            f"the spreadsheet turned this cell into a date; {expected}; set the cell's format to number and retype it"
        )
    if isinstance(value, bool):
        raise ValueError(f"found a true/false value, {expected}")
    if isinstance(value, str):
        # Full-width digits and spaces are how a Chinese keyboard types the same number.
        text = unicodedata.normalize("NFKC", value).strip()
        if not text:
            return None, LEFT_EMPTY
        if text.casefold() in MISSING_WORDS:
            return None, f"given as {text!r}"
        if text.startswith("="):
            raise ValueError(f"found a formula, {expected}; type the number itself")
        if text.startswith("#"):
            raise ValueError(f"found a spreadsheet error value, {expected}")
        if re.fullmatch(r"[+-]?\d+,\d+", text):
            raise ValueError(f"found {short(text)} with a decimal comma, {expected}")
        if not NUMBER.fullmatch(text) or len(text) > 12:
            kind = "what looks like a date" if DATE_LIKE.fullmatch(text) else short(value)
            raise ValueError(f"found {kind}, {expected} (or N/A, or nothing)")
        value = float(text)
    if value is None:
        return None, LEFT_EMPTY
    if not isinstance(value, int | float):
        raise ValueError(f"found {type(value).__name__}, {expected}")
    if value != value or value not in dimension.levels():
        shown = f"{float(value):g}" if abs(value) < 1e9 else "a huge number"
        between = value == value and low < value < high
        raise ValueError(f"{shown} {'lies between two levels' if between else 'is off the scale'}, {expected}")
    return float(value), None


def identifier(value: Any) -> str:
    """An id or a name as text: a spreadsheet makes 7 of "7" and 7.0 of 7."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()
