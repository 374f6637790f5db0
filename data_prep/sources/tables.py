"""CSV files as rows with line numbers: UTF-8 with or without BOM, any of the usual delimiters."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from data_prep.errors import UserError
from data_prep.records import read_text

DELIMITERS = (",", "\t", ";", "|")
# The csv module's own limit (131,072 characters a cell) is below the longest posts.
csv.field_size_limit(2**31 - 1)


@dataclass(frozen=True)
class Table:
    """The header of a table and an iterator over its rows: (`file:line`, cells, or why there are none)."""

    path: Path
    header: list[str]
    rows: Iterator[tuple[str, list[str] | UserError]]

    def column(self, name: str) -> int:
        """Position of a column. Raises UserError with the nearest name; the others are not quoted: a file without
        a header has somebody's words there."""
        if self.header.count(name) > 1:
            raise UserError(f"{self.path}:1: has the column {name!r} twice; rename one of them")
        if name in self.header:
            return self.header.index(name)
        folded = {column.casefold(): column for column in self.header}
        close = get_close_matches(name.casefold(), folded, n=1)
        hint = f"did you mean {folded[close[0]]!r}?" if close else "its first line must name the columns"
        raise UserError(f"{self.path}:1: has no column {name!r} among its {len(self.header)}; {hint}")


def _delimiter(text: str) -> str:
    """The delimiter that cuts the first line into the most cells."""
    first = text.split("\n", 1)[0]
    return max(DELIMITERS, key=first.count)


def read_table(path: Path) -> Table:
    """The table of a CSV file. A row that is no CSV, or has not the header's number of cells, is its UserError.

    Blank lines are skipped. Raises UserError when the file cannot be read or holds no header.
    """
    text = read_text(path)
    # strict: `"a"b` is a damaged cell, not the text ab.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise UserError(f"{path}:1: not valid CSV ({error})") from None
    if not any(cell.strip() for cell in header):
        raise UserError(f"{path}: has no header; its first line must name the columns")
    names = [cell.strip() for cell in header]

    def rows() -> Iterator[tuple[str, list[str] | UserError]]:
        while True:
            where = f"{path}:{reader.line_num + 1}"
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield where, UserError(f"{where}: not valid CSV ({error}); is a quote left open?")
                continue
            if cells and len(cells) != len(names):
                yield where, UserError(f"{where}: has {len(cells)} cells, the header has {len(names)}")
            elif cells:
                yield where, cells

    return Table(path, names, rows())
