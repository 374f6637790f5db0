"""What the data are: role cards, turns, dialogues, ratings; and JSON Lines in and out.

Every other module speaks in these records. A file that cannot be read as them ends in one UserError that names
file, line and field, and never echoes the text itself.
"""

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
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
        raise UserError(
            f"{path}: is UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8 {path} > utf8{path.suffix}"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not valid UTF-8; save the file as UTF-8 and try again") from None


JSON_SPACE = re.compile(r"[ \t\n\r]*")
PLAIN_WORD = re.compile("[A-Za-z_]{1,20}")
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def encodable(value: Any) -> bool:
    """Whether the texts in a JSON value can be written as UTF-8; half a surrogate pair cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


class StrictDecoder:
    """JSON that is read back as it was written: duplicate keys, NaN, infinities and halves of characters are faults.

    A fault does not stop the parsing, so the end of a faulty value is known and its neighbours can still be read.
    """

    def __init__(self) -> None:
        self.fault: str | None = None
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._pairs,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._int,
        )

    def _note(self, fault: str) -> None:
        self.fault = self.fault or fault

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            self._note(f"key {twice!r} occurs twice in one object; keep one of them")
        return found

    def _constant(self, name: str) -> None:
        self._note(f"{name} is not JSON; write null for a missing value")

    def _float(self, digits: str) -> float:
        number = float(digits)
        if abs(number) == float("inf"):
            self._note("a number is too large to be read; write null for a missing value")
        return number

    def _int(self, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python's own limit on the digits of an integer
            self._note("a number has too many digits to be read")
            return 0

    def decode(self, text: str, start: int = 0) -> tuple[Any, int, str | None]:
        """(value, end, fault) of the JSON value at `start`, where fault is what is wrong with it, or None.

        Raises json.JSONDecodeError and RecursionError, after which nothing is known about the rest of the text.
        """
        self.fault = None
        value, end = self._decoder.raw_decode(text, start)
        if self.fault is None and HALF_CHARACTER.search(text, start, end) is not None and not encodable(value):
            self._note(
                "holds half a character (a \\ud8xx escape without its other half); remove it or restore the pair"
            )
        return value, end, self.fault


def json_error(error: json.JSONDecodeError | RecursionError, where: str) -> UserError:
    """What the parser says, as a UserError that names the place."""
    if isinstance(error, RecursionError):
        return UserError(f"{where}: JSON is nested too deeply to be one of our records")
    place = where if error.lineno == 1 else f"{where}:{error.lineno}"
    return UserError(f"{place}: not valid JSON at column {error.colno} ({error.msg}); is the line complete?")


def parse_json(text: str, where: str, decoder: StrictDecoder | None = None) -> Any:
    """JSON with duplicate keys, NaN, infinities and unpaired surrogates refused.

    `where` is the file (and line) named in the UserError. Giving a `decoder` saves making one for every line.
    """
    start = JSON_SPACE.match(text).end()  # type: ignore[union-attr]  # it also matches nothing
    try:
        found, end, fault = (decoder or StrictDecoder()).decode(text, start)
        end = JSON_SPACE.match(text, end).end()  # type: ignore[union-attr]
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except (json.JSONDecodeError, RecursionError) as error:
        raise json_error(error, where) from None
    if fault is not None:
        raise UserError(f"{where}: {fault}")
    return found


def iter_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yields (`file:line`, value) for every non-blank line; BOM and CRLF are accepted."""
    # Only \n ends a JSON line: splitlines() would also cut inside texts that hold U+2028 or U+0085.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_json(line, where)


def first_json_line(path: str | Path) -> Any:
    """The first value of a JSON Lines file; None when it cannot be read: whoever reads the file whole says why."""
    try:
        return next((value for _, value in iter_json_lines(path)), None)
    except UserError:
        return None


def describe_invalid(error: ValidationError) -> str:
    """The first fault of a pydantic error as `field: found, expected`, without quoting private text.

    A word where one of a few was expected is repeated only if it can be nothing but a name: text is private.
    """
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "record"
    found = "nothing" if first["type"] == "missing" else type(first["input"]).__name__
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        found = repr(first["input"]) if PLAIN_WORD.fullmatch(first["input"]) else "another text"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    expected = {"missing": "a value", "model_type": "a JSON object"}.get(first["type"], first["msg"])
    return f"{field}: found {found}, expected: {expected}{more}"


def read_located(path: str | Path, kind: type[RecordT]) -> list[tuple[str, RecordT]]:
    """All records of one JSONL file, in order, each with its `file:line`.

    Raises UserError at the first line that is not JSON or not a `kind`, when an `id` occurs twice, and when the
    file holds no record at all. For a file of something else altogether it says what that is and how to convert it.
    """
    located: list[tuple[str, RecordT]] = []
    try:
        _read_into(located, path, kind)
    except UserError as error:
        from data_prep.sources.detect import not_ours

        told = not_ours(path, kind.__name__) if not located else None
        raise UserError(told or str(error)) from None
    return located


def _read_into(located: list[tuple[str, RecordT]], path: str | Path, kind: type[RecordT]) -> None:
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


def read_records(path: str | Path, kind: type[RecordT]) -> list[RecordT]:
    """All records of one JSONL file, in order. Raises UserError like `read_located`."""
    return [record for _, record in read_located(path, kind)]


class Replacing:
    """A text file that appears, or replaces the old one, only when all of it is written.

    `with Replacing(path) as file: file.write(…)` writes to a temporary file beside it, flushes that to disk, and
    renames it. Raises UserError when the place cannot be written to; after any exception the old file is as it was.
    """

    def __init__(self, path: str | Path) -> None:
        # A link is followed, so that it stays a link and its target is replaced.
        self.path = Path(path).resolve() if Path(path).is_symlink() else Path(path)
        if self.path.exists() and not self.path.is_file() and not self.path.is_dir():
            raise UserError(f"{path}: is a device or a pipe, which writing would replace; name a file")

    def _failed(self, error: OSError) -> UserError:
        return UserError(f"{self.path}: cannot be written ({error.strerror})")

    def __enter__(self) -> "Replacing":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            handle, self._temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        except OSError as error:
            raise self._failed(error) from None
        self._stream = os.fdopen(handle, "w", encoding="utf-8", newline="\n")
        return self

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except OSError as error:
            raise self._failed(error) from None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._stream:
                if kind is None:
                    self._stream.flush()
                    os.fsync(self._stream.fileno())
            if kind is None:
                os.chmod(self._temporary, 0o644)
                os.replace(self._temporary, self.path)
        except OSError as error:
            raise self._failed(error) from None
        finally:
            Path(self._temporary).unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file atomically. Raises UserError like `Replacing`."""
    with Replacing(path) as file:
        file.write(text)


def dump_line(record: BaseModel) -> str:
    """One record as one JSON line: fields in their declared order, defaults left out, non-ASCII kept."""
    if type(record) is Dialogue:
        return _dump_dialogue(record)
    return json.dumps(record.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False) + "\n"


def _dump_dialogue(dialogue: Dialogue) -> str:
    """What the general way writes, four times as fast: most turns are a speaker and a text and nothing else."""
    turns = ", ".join(
        [
            f'{{"speaker": "{turn.speaker}", "text": {encode_basestring(turn.text)}}}'
            if turn.strategy is None and not turn.meta
            else _dump_turn(turn)
            for turn in dialogue.turns
        ]
    )
    rest = ""
    if dialogue.card is not None or dialogue.situation is not None or dialogue.meta:
        more = dialogue.model_dump(mode="json", exclude_defaults=True, exclude={"id", "language", "source", "turns"})
        rest = ", " + json.dumps(more, ensure_ascii=False)[1:-1]
    return (
        f'{{"id": {encode_basestring(dialogue.id)}, "language": "{dialogue.language}", '
        f'"source": {encode_basestring(dialogue.source)}, "turns": [{turns}]{rest}}}\n'
    )


def _dump_turn(turn: Turn) -> str:
    if turn.meta or turn.strategy is None:
        return json.dumps(turn.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)
    text, strategy = encode_basestring(turn.text), encode_basestring(turn.strategy)
    return f'{{"speaker": "{turn.speaker}", "text": {text}, "strategy": {strategy}}}'


def write_records(path: str | Path, records: Iterable[BaseModel]) -> None:
    """Writes records as JSON Lines, one after the other and atomically."""
    with Replacing(path) as file:
        for record in records:
            file.write(dump_line(record))
