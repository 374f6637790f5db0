"""Tables of ratings, CSV and XLSX, as cells: wide (a column a dimension) or long (a row a rating).

A table's first row that is not empty names its columns. Wide: `dialogue_id` (or `item`, in a blinded sheet),
`rater`, one column a dimension, `note`. Long: `dialogue_id` (or `item`), `rater`, `dimension`, `value`, `reason`.
A dimension's column is headed by its name, its title in English or Chinese, or its key in the official files, with
or without the scale in brackets. Columns that are none of these are reported and not read.
"""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.rating_cells import Cell, Fault, Place, did_you_mean
from data_prep.rubric import Rubric, known_rubrics, load_rubric

# What a column means -> its heading in any language, case-folded.
HEADINGS = {
    "dialogue_id": ("dialogue_id", "dialogue id", "对话编号"),
    "item": ("item", "条目"),
    "rater": ("rater", "评分人"),
    "rubric": ("rubric",),
    "dimension": ("dimension", "维度"),
    "value": ("value", "rating", "score", "分数"),
    "note": ("note", "备注"),
    "reason": ("reason", "原因"),
}
# Columns that stand in sheets for people to read.
SHOWN = ("dialogue", "对话")
READ_BY_PEOPLE = (*SHOWN, "language", "语言")
SCALE_IN_BRACKETS = re.compile(r"\s*[(（]\s*-?\d+\s*(-|–|—|~|to|至|到)\s*-?\d+\s*[)）]\s*$")
CONTINUED = re.compile(r"\s+\d+$")
LARGEST_XLSX = 400_000_000
INSTRUCTION_SHEETS = {"en": "Instructions", "zh": "说明"}
# What makes a spreadsheet take a text for a formula when it opens a CSV file.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


@dataclass
class Columns:
    """What the columns of one table are, by their index from 0."""

    fields: dict[str, int] = field(default_factory=dict)
    dimensions: dict[str, int] = field(default_factory=dict)
    shown: list[int] = field(default_factory=list)
    """Columns of the dialogue's text, which takes several where it is long."""

    @property
    def is_long(self) -> bool:
        return "dimension" in self.fields and "value" in self.fields


def as_typed(value: Any) -> Any:
    """The value without the apostrophe that our CSV sheets put before what would be taken for a formula."""
    return value[1:] if isinstance(value, str) and value[:1] == "'" and value[1:2] in FORMULA_STARTS else value


def bare(heading: Any) -> str:
    """A heading to be compared: no scale in brackets, no case, no outer spaces."""
    return SCALE_IN_BRACKETS.sub("", str(as_typed(heading)).strip()).strip().casefold()


def dimension_headings(rubric: Rubric) -> dict[str, str]:
    """heading -> name of the dimension. A name wins over another dimension's title or official key."""
    headings: dict[str, str] = {}
    for dimension in rubric.dimensions:
        headings.setdefault(dimension.title.en.casefold(), dimension.name)
        headings.setdefault(dimension.title.zh.casefold(), dimension.name)
        if dimension.official_key:
            headings.setdefault(dimension.official_key.casefold(), dimension.name)
    return headings | {name: name for name in rubric.names()}


def read_header(
    header: Sequence[Any], rubric: Rubric, ignore: Collection[str], place: Callable[[int | None], Place]
) -> tuple[Columns, list[Fault]]:
    """The columns of a table and what is wrong with them. `place` makes the place of a column of the header."""
    columns, faults, unknown = Columns(), [], []
    fields = {heading: name for name, headings in HEADINGS.items() for heading in headings}
    dimensions = dimension_headings(rubric)
    ignored = {bare(name) for name in ignore}
    for index, heading in enumerate(header):
        name = bare("" if heading is None else heading)
        if not name or name in ignored or CONTINUED.sub("", name) in READ_BY_PEOPLE:
            if CONTINUED.sub("", name) in SHOWN:
                columns.shown.append(index)
            continue
        if name in dimensions:
            found, known = columns.dimensions, dimensions[name]
        elif name in fields:
            found, known = columns.fields, fields[name]
        else:
            unknown.append(name)
            shown = str(heading).strip()[:20]
            known_names = [*rubric.names(), *(h for hs in HEADINGS.values() for h in hs)]
            hint = did_you_mean(name, known_names) if len(name) < 30 else ""
            hint = hint if "did you mean" in hint else f"; dimensions of {rubric.name}: {', '.join(rubric.names())}"
            faults.append(
                Fault(
                    place(index), f"unknown column {shown!r}{hint} (not read; --ignore leaves a column out on purpose)"
                )
            )
            continue
        if known in found:
            faults.append(Fault(place(index), f"a second column for {known}; only the first is read, remove one"))
        else:
            found[known] = index
    if not {"dialogue_id", "item"} & set(columns.fields):
        faults.append(Fault(place(None), "has no column dialogue_id (or item); the table is not read"))
    elif not columns.is_long and not columns.dimensions:
        if "dimension" in columns.fields:
            faults.append(Fault(place(None), "has no column value; the table is not read"))
        else:
            # Not the columns are wrong, one by one, but the rubric they are read by (or the table).
            told = f"has no column for any dimension of rubric {rubric.name} ({', '.join(rubric.names())})"
            told += _fitting(unknown, rubric)
            faults = [Fault(place(None), f"{told}; the table is not read", "--rubric")]
    return columns, faults


def _fitting(headings: Collection[str], rubric: Rubric) -> str:
    """What to do about a table without a known dimension: another shipped rubric that has most of its columns."""
    fits = {name: len(dimension_headings(load_rubric(name)).keys() & set(headings)) for name in known_rubrics()}
    best = max(fits, key=fits.__getitem__)
    return f"; its columns are those of --rubric {best}" if fits[best] and best != rubric.name else "; see --rubric"


def table_cells(
    rows: Iterable[tuple[int, int | None, Sequence[Any]]],
    file: str,
    sheet: str | None,
    rubric: Rubric,
    ignore: Collection[str],
    letter: Callable[[int], str] | None = None,
) -> Iterator[Cell | Fault]:
    """Cells of one table, from (row, line, values) with rows counted from 1. A table without any row has none."""
    header: Sequence[Any] = ()
    columns = Columns()

    def place(row: int, line: int | None, index: int | None) -> Place:
        name = None
        if index is not None:
            heading = str(header[index]).strip()[:20] if index < len(header) and header[index] is not None else ""
            name = f"{letter(index)} ({heading})" if letter else heading or str(index + 1)
        return Place(file, row, name, sheet, line)

    for row, line, values in rows:
        if all(value is None or (isinstance(value, str) and not value.strip()) for value in values):
            continue
        if not header:
            header = values
            columns, faults = read_header(header, rubric, ignore, partial(place, row, line))
            yield from faults
            if any(fault.message.endswith("the table is not read") for fault in faults):
                return
            continue
        if len(values) > len(header) and any(value not in (None, "") for value in values[len(header) :]):
            yield Fault(
                place(row, line, None),
                f"has {len(values)} cells under {len(header)} columns; is a text with a separator not in quotes?",
            )
            continue
        yield from row_cells(values, columns, partial(place, row, line))


def row_cells(values: Sequence[Any], columns: Columns, place: Callable[[int | None], Place]) -> Iterator[Cell | Fault]:
    """Cells of one row: one of a long table, one a dimension of a wide one."""

    def value_of(index: int | None) -> Any:
        return as_typed(values[index]) if index is not None and index < len(values) else None

    fields = {name: value_of(index) for name, index in columns.fields.items()}
    common = {
        "rater": fields.get("rater"),
        "dialogue_id": fields.get("dialogue_id"),
        "item": fields.get("item"),
        "rubric": fields.get("rubric"),
        "note": fields.get("note"),
        "shown": "".join(str(value_of(index) or "") for index in columns.shown) if columns.shown else None,
    }
    if columns.is_long:
        dimension = str(fields["dimension"] or "").strip()
        if not dimension:
            yield Fault(place(columns.fields["dimension"]), "no dimension in this row")
            return
        reason = fields.get("reason")
        yield Cell(place(columns.fields["value"]), dimension=dimension, value=fields["value"], reason=reason, **common)
        return
    for dimension, index in columns.dimensions.items():
        yield Cell(place(index), dimension=dimension, value=value_of(index), **common)


def csv_cells(path: Path, text: str, rubric: Rubric, ignore: Collection[str]) -> Iterator[Cell | Fault]:
    """Cells of a CSV table; comma, semicolon or tab, whichever separates known columns in the first row.

    Raises UserError when the text is no CSV table.
    """
    if "\x00" in text:
        raise UserError(
            f"{path}: is not a text file; expected ratings as CSV, XLSX, JSON Lines or a Label Studio export"
        )
    text = re.sub(r"\Asep=.\r?\n", "", text)
    known = {heading for headings in HEADINGS.values() for heading in headings} | set(dimension_headings(rubric))

    def recognised(delimiter: str) -> int:
        header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        return sum(bare(heading) in known for heading in header)

    def rows(delimiter: str) -> Iterator[tuple[int, int | None, Sequence[Any]]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        for number, values in enumerate(reader, start=1):
            yield number, reader.line_num, values

    csv.field_size_limit(max(csv.field_size_limit(), 10_000_000))
    try:
        delimiter = max(",;\t", key=recognised)
        yield from table_cells(rows(delimiter), str(path), None, rubric, ignore)
    except csv.Error as error:
        raise UserError(f"{path}: is no CSV table ({error}); export it from the spreadsheet again") from None


def xlsx_cells(path: Path, rubric: Rubric, ignore: Collection[str]) -> Iterator[Cell | Fault]:
    """Cells of all sheets of an XLSX workbook, except its instructions. Raises UserError when it is none."""
    from openpyxl import load_workbook
    from openpyxl.utils import get_column_letter

    broken = f"{path}: is no XLSX workbook that can be read; save it again as .xlsx, or as CSV"
    try:
        with zipfile.ZipFile(path) as archive:
            if "xl/workbook.xml" not in archive.namelist():
                raise UserError(broken)
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_XLSX:
                raise UserError(f"{path}: unpacks to more than {LARGEST_XLSX // 1_000_000} MB; is it a rating sheet?")
        # Not by its path: openpyxl refuses names that do not end in .xlsx, and names lie.
        workbook = load_workbook(io.BytesIO(path.read_bytes()), read_only=True)
    except UserError:
        raise
    except Exception:
        # openpyxl has no error of its own for a broken workbook: KeyError, ValueError, ParseError and others come.
        raise UserError(broken) from None
    try:
        for sheet in workbook.worksheets:
            if sheet.title in INSTRUCTION_SHEETS.values():
                continue
            sheet.reset_dimensions()
            rows = ((number, None, [cell_value(cell) for cell in row]) for number, row in enumerate(sheet.rows, 1))
            letter = lambda index: get_column_letter(index + 1)  # noqa: E731
            try:
                yield from table_cells(rows, str(path), sheet.title, rubric, ignore, letter)
            except (KeyError, ValueError, SyntaxError, zipfile.BadZipFile, EOFError):
                yield Fault(Place(str(path), sheet=sheet.title), "is damaged from here on; save the workbook again")
    finally:
        workbook.close()


def cell_value(cell: Any) -> Any:
    """A cell's value; a formula and an error value are told apart from text by what they begin with.

    Text that only looks like a formula (a cell of text "=…") cannot be a level either, so nothing is lost.
    """
    value = cell.value
    if getattr(cell, "data_type", None) == "f":
        return f"={value}" if not str(value).startswith("=") else str(value)
    return value
