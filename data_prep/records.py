"""What the data are: role cards, turns, dialogues, ratings; and JSON Lines in and out.

Every other module speaks in these records. A file that cannot be read as them ends in one UserError that names
file, line and field, and never echoes the text itself.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from data_prep.errors import UserError

Language = Literal["en", "zh"]
Speaker = Literal["seeker", "supporter"]

CARD_LABELS = {
    "en": ("Age", "Gender", "Occupation", "Problem"),
    "zh": ("年龄", "性别", "职业", "问题"),
}
NOT_MENTIONED = {"en": "Not mentioned", "zh": "未提及"}


class Record(BaseModel):
    """Base of all records: immutable, and a misspelt field is an error rather than ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleCard(Record):
    """Who the seeker is. A field that is None was not mentioned."""

    id: str = Field(min_length=1)
    language: Language
    age: str | None = None
    gender: str | None = None
    occupation: str | None = None
    problem: str | None = None
    category: tuple[str, ...] = ()
    source: str = Field(min_length=1)
    quality: Literal["high", "middle", "low"] | None = None
    text: str | None = None
    """The card as published, verbatim, when it was published as text; None for cards made of fields."""
    meta: dict[str, Any] = Field(default_factory=dict)

    def as_text(self) -> str:
        """The four labelled lines a seeker prompt shows; the published text where there is one."""
        if self.text is not None:
            return self.text
        values = (self.age, self.gender, self.occupation, self.problem)
        colon = "：" if self.language == "zh" else ": "
        missing = NOT_MENTIONED[self.language]
        labels = CARD_LABELS[self.language]
        return "\n".join(f"{label}{colon}{value or missing}" for label, value in zip(labels, values, strict=True))


class Turn(Record):
    """One utterance. `strategy` is the supporter's annotated strategy where the source has one."""

    speaker: Speaker
    text: str
    strategy: str | None = None
    meta: dict[str, Any] = Field(default_factory=dict)


class Dialogue(Record):
    """Ordered turns between one seeker and one supporter, as the source has them (runs are not merged here)."""

    id: str = Field(min_length=1)
    language: Language
    source: str = Field(min_length=1)
    turns: tuple[Turn, ...] = Field(min_length=1)
    card: RoleCard | None = None
    situation: str | None = None
    meta: dict[str, Any] = Field(default_factory=dict)

    def speakers(self) -> set[str]:
        return {turn.speaker for turn in self.turns}


class Rating(Record):
    """One rater, one dialogue, one dimension, one value. The scale belongs to the rubric and is checked there."""

    dialogue_id: str = Field(min_length=1)
    rater: str = Field(min_length=1)
    rubric: str = Field(min_length=1)
    dimension: str = Field(min_length=1)
    value: float | None
    """None: this rater gave no value (`reason` may say why). No number stands for missing."""
    reason: str | None = None

    @model_validator(mode="after")
    def _finite(self) -> "Rating":
        if self.value is not None and not abs(self.value) < float("inf"):
            raise ValueError("value must be a finite number, or null for missing")
        return self


RecordT = TypeVar("RecordT", bound=BaseModel)


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_text(path: str | Path) -> str:
    """A UTF-8 text file, BOM dropped, line ends as they are.

    Raises UserError when the file is missing, is a folder, or is not UTF-8 (UTF-16 is named as such).
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: file not found; check the path (relative to {Path.cwd()})") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path}: is UTF-16, expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8 {path.name}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not valid UTF-8; save the file as UTF-8 and try again") from None


HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def encodable(value: Any) -> bool:
    """Whether the texts in a JSON value can be written as UTF-8; half a surrogate pair cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str, where: str) -> Any:
    """JSON with duplicate keys, NaN, infinities and unpaired surrogates refused.

    `where` is the file (and line) named in the UserError.
    """

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UserError(f"{where}: key {twice!r} occurs twice in one object; keep one of them")
        return found

    def no_constant(name: str) -> float:
        raise UserError(f"{where}: {name} is not JSON; write null for a missing value")

    def finite(digits: str) -> float:
        number = float(digits)
        if abs(number) == float("inf"):
            raise UserError(f"{where}: a number is too large to be read; write null for a missing value")
        return number

    try:
        found = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant, parse_float=finite)
        broken = HALF_CHARACTER.search(text) is not None and not encodable(found)
    except json.JSONDecodeError as error:
        place = where if error.lineno == 1 else f"{where}:{error.lineno}"
        raise UserError(
            f"{place}: not valid JSON at column {error.colno} ({error.msg}); is the line complete?"
        ) from None
    except ValueError:  # Python's own limit on the digits of an integer; the only other ValueError here
        raise UserError(f"{where}: a number has too many digits to be read") from None
    except RecursionError:
        raise UserError(f"{where}: JSON is nested too deeply to be one of our records") from None
    if broken:
        raise UserError(
            f"{where}: holds half a character (a \\ud8xx escape without its other half); remove it or restore the pair"
        )
    return found


def iter_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yields (`file:line`, value) for every non-blank line; BOM and CRLF are accepted."""
    # Only \n ends a JSON line: splitlines() would also cut inside texts that hold U+2028 or U+0085.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_json(line, where)


def describe_invalid(error: ValidationError) -> str:
    """The first fault of a pydantic error as `field: found, expected`, without quoting private text."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "record"
    found = "nothing" if first["type"] == "missing" else type(first["input"]).__name__
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        found = repr(first["input"][:20])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{field}: found {found}, expected: {first['msg']}{more}"


def read_located(path: str | Path, kind: type[RecordT]) -> list[tuple[str, RecordT]]:
    """All records of one JSONL file, in order, each with its `file:line`.

    Raises UserError at the first line that is not JSON or not a `kind`, when an `id` occurs twice, and when the
    file holds no record at all.
    """
    located: list[tuple[str, RecordT]] = []
    seen: dict[str, str] = {}
    for where, value in iter_json_lines(path):
        try:
            record = kind.model_validate(value)
        except ValidationError as error:
            raise UserError(f"{where}: {describe_invalid(error)}") from None
        identifier = getattr(record, "id", None)
        if identifier is not None:
            if identifier in seen:
                raise UserError(f"{where}: id {identifier!r} is already used at {seen[identifier]}; ids must differ")
            seen[identifier] = where
        located.append((where, record))
    if not located:
        raise UserError(f"{path}: holds no {kind.__name__} record; expected one JSON object a line")
    return located


def read_records(path: str | Path, kind: type[RecordT]) -> list[RecordT]:
    """All records of one JSONL file, in order. Raises UserError like `read_located`."""
    return [record for _, record in read_located(path, kind)]


def write_text(path: str | Path, text: str) -> None:
    """Writes atomically: a temporary file beside it, flushed to disk, then renamed over the old one.

    Raises UserError when the place cannot be written to; the old file is then as it was.
    """
    path = Path(path)
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        raise


def dump_line(record: BaseModel) -> str:
    """One record as one JSON line: fields in their declared order, defaults left out, non-ASCII kept."""
    return json.dumps(record.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False) + "\n"


def write_records(path: str | Path, records: Iterable[BaseModel]) -> None:
    """Writes records as JSON Lines, atomically."""
    write_text(path, "".join(dump_line(record) for record in records))
