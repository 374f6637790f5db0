"""Tables of text on disk as people edit them: XLSX and CSV, both ways, with every cell a text.

Nothing written is ever a formula, and nothing read is taken for one: a spreadsheet must not run what a stranger
wrote into a post.
"""

import csv
import io
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import read_text

# A cell that begins like this is run by spreadsheets; in CSV one more apostrophe in front makes it text. Cells that
# already look escaped get another, so that reading gives back exactly what was written.
RISKY = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
# What XML cannot hold; a sheet shows it as the replacement character.
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
LONGEST_CELL = 32_767
SUFFIXES = (".xlsx", ".csv")


@dataclass(frozen=True)
class Row:
    """One row below the header: its number as a spreadsheet shows it, and the texts by column name."""

    number: int
    cells: Mapping[str, str]
    faults: tuple[str, ...] = ()
    """What is wrong with single cells, each naming its column."""


def shown(text: str) -> str:
    """A text as a sheet holds it: what XML cannot hold replaced, line ends as \\n, cut at a cell's limit."""
    clean = UNPRINTABLE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return clean if len(clean) <= LONGEST_CELL else clean[: LONGEST_CELL - 1] + "…"


def write_sheet(
    path: Path,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    choices: Mapping[str, Sequence[str]],
    notes: Sequence[str],
) -> None:
    """Writes one table, XLSX or CSV by the ending of `path`, atomically.

    `choices` gives the words that may be filled in below a column (XLSX offers them), `notes` the lines of a second
    page for the person who fills it in (XLSX only). Raises UserError for another ending.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: ends neither in {' nor in '.join(SUFFIXES)}; choose one of them")
    table = [[shown(cell) for cell in row] for row in rows]
    if path.suffix.lower() == ".csv":
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writerow(header)
        writer.writerows([f"'{cell}" if RISKY.match(cell) else cell for cell in row] for row in table)
        # With the byte order mark spreadsheets read the file as UTF-8.
        _write_bytes(path, stream.getvalue().encode("utf-8-sig"))
        return
    _write_bytes(path, _xlsx(header, table, choices, notes))


def _xlsx(
    header: Sequence[str], table: Sequence[Sequence[str]], choices: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> bytes:
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.datavalidation import DataValidation

    book = Workbook()
    sheet = book.active
    sheet.title = "cards"
    for number, row in enumerate([header, *table], start=1):
        for column, text in enumerate(row, start=1):
            if text == "":
                continue
            cell = sheet.cell(number, column)
            cell.value = text
            cell.data_type = "s"  # never a formula or an error, whatever it begins with
            cell.quotePrefix = True
            cell.alignment = Alignment(vertical="top", wrap_text=True)
            if number == 1:
                cell.font = Font(bold=True)
    lists = book.create_sheet("choices")
    for place, (name, words) in enumerate(choices.items(), start=1):
        for number, word in enumerate(words, start=1):
            lists.cell(number, place).value = word
        letter = get_column_letter(place)
        # A list on a page of its own: one written into the cell may have 255 characters only.
        offer = DataValidation(type="list", formula1=f"choices!${letter}$1:${letter}${len(words)}", allow_blank=True)
        column = get_column_letter(header.index(name) + 1)
        offer.add(f"{column}2:{column}{len(table) + 1}")
        sheet.add_data_validation(offer)
    for place, name in enumerate(header, start=1):
        sheet.column_dimensions[get_column_letter(place)].width = 60 if "problem" in name else 18
    sheet.freeze_panes = "B2"
    guide = book.create_sheet("how to")
    for number, line in enumerate(notes, start=1):
        guide.cell(number, 1).value = line
    guide.column_dimensions["A"].width = 100
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def _write_bytes(path: Path, content: bytes) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
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


def read_sheet(path: Path, header: Sequence[str]) -> list[Row]:
    """The rows below the header, told apart by content as XLSX or CSV; wholly empty ones are left out.

    Raises UserError when the file is neither, or when its columns are not exactly those of `header` (in any order).
    """
    try:
        with open(path, "rb") as stream:
            start = stream.read(8)
    except FileNotFoundError:
        raise UserError(f"{path}: file not found; check the path (relative to {Path.cwd()})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if start.startswith(b"PK"):
        table = _read_xlsx(path)
    elif start.startswith(b"\xd0\xcf\x11\xe0"):
        raise UserError(f"{path}: is an old Excel file or has a password; save it as XLSX without one, or as CSV")
    else:
        table = _read_csv(path)
    if not table:
        raise UserError(f"{path}: is empty; expected the columns {', '.join(header)}")
    names = [str(value or "").strip() for value, _ in table[0]]
    while names and not names[-1]:
        names.pop()
    _check_header(path, names, header)
    return [row for number, cells in enumerate(table[1:], start=2) if (row := _row(number, names, cells)) is not None]


def _check_header(path: Path, names: Sequence[str], header: Sequence[str]) -> None:
    faults = [f"column {name!r} is missing" for name in header if name not in names]
    # Names of other columns are somebody's own words and are not repeated.
    others = [str(place) for place, name in enumerate(names, start=1) if name not in header]
    if others:
        faults.append(f"unknown name in column {', '.join(others)}")
    faults += [f"column {name!r} occurs twice" for name in header if names.count(name) > 1]
    if faults:
        raise UserError(f"{path}:1: {'; '.join(faults)}; restore the first row as it was exported: {', '.join(header)}")


Cell = tuple[Any, str]
"""A value and its kind: "s" text, "n" number, "b" yes or no, "f" formula, "e" error, "d" date."""


def _row(number: int, names: Sequence[str], cells: Sequence[Cell]) -> Row | None:
    texts: dict[str, str] = {}
    faults: list[str] = []
    for place, (value, kind) in enumerate(cells, start=1):
        if value is None or value == "":
            continue
        if place > len(names):
            faults.append(f"column {place} has no name but holds something")
            continue
        if kind in ("f", "e", "d"):
            what = {"f": "a formula", "e": "an error value", "d": "a date"}[kind]
            faults.append(f"{names[place - 1]}: holds {what}; write it as text")
        elif kind == "b":
            texts[names[place - 1]] = "yes" if value else "no"
        elif kind == "n" and isinstance(value, float) and value.is_integer():
            texts[names[place - 1]] = str(int(value))
        else:
            texts[names[place - 1]] = str(value)
    if not faults and not any(text.strip() for text in texts.values()):
        return None
    return Row(number, {name: texts.get(name, "") for name in names}, tuple(faults))


def _read_xlsx(path: Path) -> list[list[Cell]]:
    from openpyxl import load_workbook

    try:
        # Not by its path: openpyxl refuses names that do not end in .xlsx, and names lie.
        book = load_workbook(io.BytesIO(path.read_bytes()), data_only=False)
        sheet = book["cards"] if "cards" in book.sheetnames else book.worksheets[0]
        table = [[(cell.value, str(cell.data_type)) for cell in row] for row in sheet.iter_rows()]
    except Exception as error:  # openpyxl lets a damaged file end in any exception of zip, XML or its own
        raise UserError(f"{path}: is no readable XLSX file ({type(error).__name__}); save it again") from None
    return table if any(value is not None for row in table for value, _ in row) else []


def _read_csv(path: Path) -> list[list[Cell]]:
    text = read_text(path)
    if "\0" in text:
        raise UserError(f"{path}: is neither XLSX nor CSV")
    first = text.partition("\n")[0]
    # Spreadsheets write the separator of their country.
    separator = max(",;\t", key=first.count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}: is not readable as CSV ({error}); save it again") from None
    return [[_csv_cell(cell) for cell in row] for row in rows]


def _csv_cell(cell: str) -> Cell:
    if cell.startswith("'") and RISKY.match(cell):
        return cell[1:], "s"
    return cell, "f" if cell.startswith("=") else "s"
