"""Files in, piece by piece: the files of a folder, the values of a JSON array or of JSON Lines.

What a file is, is told by its content: names lie. Nothing here holds more than one record and one block of text.
"""

import codecs
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.errors import UserError
from data_prep.records import JSON_SPACE, StrictDecoder, json_error

BLOCK = 1 << 18
# Files that accompany data and are none; everything else in a folder is looked at.
ABOUT = re.compile(r"(licen[cs]e|readme|copying|citation|changelog)(\..*)?", re.IGNORECASE)
AFTER_VALUE = tuple(" \t\n\r,]")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts 2.json before 10.json, the same on every machine."""
    # Whole numbers compare by length and then by digit; no int(), so any length is fine.
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if part.isdigit() else (-1, part)
        for part in re.split("([0-9]+)", name)
    ]


def data_files(path: Path) -> list[Path]:
    """The file itself, or all files below a folder in natural order.

    Hidden files and folders, and files named LICENSE, README and the like, are passed over.
    Raises UserError when there is no such path or no file in the folder.
    """
    if not path.exists():
        raise UserError(f"{path}: file not found; check the path (relative to {Path.cwd()})")
    if not path.is_dir():
        return [path]
    found: list[tuple[list[list[tuple[int, str]]], str]] = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        parts = [_natural(part) for part in Path(folder).relative_to(path).parts]
        found += [
            ([*parts, _natural(name)], os.path.join(folder, name))
            for name in names
            if not name.startswith(".") and not ABOUT.fullmatch(name)
        ]
    if not found:
        raise UserError(f"{path}: holds no file to convert")
    return [Path(name) for _, name in sorted(found)]


def slug(text: str) -> str:
    """A name as part of an id: lower case, runs of anything but letters, digits and _ as one hyphen."""
    return re.sub(r"\W+", "-", text.lower()).strip("-") or "file"


def file_ids(files: Sequence[Path], root: Path) -> list[str]:
    """One id a file: its stem, or its place below `root` when two files have the same stem."""
    stems = [slug(file.stem) for file in files]
    seen: set[str] = set()
    twice = {stem for stem in stems if stem in seen or seen.add(stem)}  # type: ignore[func-returns-value]
    return [
        slug(str(file.relative_to(root).with_suffix(""))) if stem in twice and file != root else stem
        for file, stem in zip(files, stems, strict=True)
    ]


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes after its BOM. Raises UserError when it cannot be opened or is UTF-16."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 the caller closes it
        start = stream.read(3)
    except FileNotFoundError:
        raise UserError(f"{path}: file not found; check the path (relative to {Path.cwd()})") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if start[:2] in UTF16:
        stream.close()
        raise UserError(f"{path}: is UTF-16, expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8 {path.name}")
    stream.seek(3 if start == codecs.BOM_UTF8 else 0)
    return stream


def starts_with(path: Path) -> str:
    """The first character of the file that is no white space, "" when there is none (or none that is ASCII)."""
    with open_bytes(path) as stream:
        while block := stream.read(BLOCK):
            text = block.lstrip()
            if text:
                return text[:1].decode("ascii", "ignore")
    return ""


def lines_of(path: Path) -> Iterator[tuple[int, str | UserError]]:
    """(number, line) for every line that is not blank; a line that is not UTF-8 is an error in its place.

    Only \\n ends a line: texts may hold U+2028 or U+0085.
    """
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode()
            except UnicodeDecodeError:
                yield number, UserError(f"{path}:{number}: is not valid UTF-8; save the file as UTF-8 and try again")
                continue
            if line.strip():
                yield number, line


class _Window:
    """A moving window on the text of a file: what is parsed is let go of, more is read when asked for."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.text = ""
        self.place = 0
        self.line = 1
        self.complete = False

    def fill(self) -> None:
        """Doubles what is left, so that a long record is tried a few times only. Raises UserError at bad UTF-8."""
        self.line += self.text.count("\n", 0, self.place)
        self.text, self.place = self.text[self.place :], 0
        block = self.stream.read(max(BLOCK, len(self.text)))
        self.complete = not block
        try:
            self.text += self.decoder.decode(block, final=self.complete)
        except UnicodeDecodeError as error:
            line = self.line + self.text.count("\n") + error.object.count(b"\n", 0, error.start)
            raise UserError(f"{self.path}:{line}: is not valid UTF-8; save the file as UTF-8 and try again") from None

    def peek(self) -> str:
        """The next character that is no white space, "" at the end of the file; `place` is then there."""
        while True:
            self.place = JSON_SPACE.match(self.text, self.place).end()  # type: ignore[union-attr]
            if self.place < len(self.text) or self.complete:
                return self.text[self.place : self.place + 1]
            self.fill()

    def bad(self, message: str, place: int) -> UserError:
        """The fault at `place` of the window, told by its line and column in the file."""
        line = self.line + self.text.count("\n", 0, place)
        column = place - self.text.rfind("\n", 0, place)
        return UserError(f"{self.path}:{line}: not valid JSON at column {column} ({message}); is the file complete?")

    def value(self, decoder: StrictDecoder) -> tuple[Any, str | None]:
        """The JSON value at `place`, and its fault."""
        while True:
            try:
                value, end, fault = decoder.decode(self.text, self.place)
                # A number at the edge of the window may go on: 1|2, and 0.|5 looks like 0 with something after it.
                if self.text[end : end + 1] in AFTER_VALUE or self.complete:
                    self.place = end
                    return value, fault
            except json.JSONDecodeError as error:
                if self.complete:
                    raise self.bad(error.msg, error.pos) from None
            except RecursionError as error:
                raise json_error(error, f"{self.path}:{self.line}") from None
            self.fill()


def array_values(path: Path) -> Iterator[tuple[int, Any | UserError]]:
    """(position, value) for the entries of a JSON array, from 1; one that breaks our rules is an error in its place.

    The file is read as it is parsed. Raises UserError where it stops being JSON; what came before has been yielded.
    """
    with open_bytes(path) as stream:
        window, decoder = _Window(path, stream), StrictDecoder()
        if window.peek() != "[":
            raise window.bad("Expecting an array", window.place)
        window.place += 1
        position = 0
        ended = window.peek() == "]"
        while not ended:
            position += 1
            window.peek()
            value, fault = window.value(decoder)
            yield position, value if fault is None else UserError(f"{path}: record {position}: {fault}")
            mark = window.peek()
            if mark not in (",", "]"):
                raise window.bad("Expecting ',' delimiter", window.place)
            ended = mark == "]"
            window.place += not ended
        window.place += 1
        if window.peek():
            raise window.bad("Extra data", window.place)
