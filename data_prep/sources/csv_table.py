"""Dialogues in a table of anybody's own: one row a turn, or one row a pair, with the columns named by the user.

- one row a turn: --column id=… --column speaker=… --column text=… (and strategy=…); --seeker says which speaker is
  the seeker, where their names do not.
- one row a pair: --column seeker=… --column supporter=… (and id=…, strategy=…); rows that share an id are one
  dialogue in the order of the file, without an id column each row is a dialogue.

A column that is not named is looked for under our own name for it. UTF-8 only, BOM accepted; comma, semicolon, tab
or bar between the cells. Text is verbatim. Repaired, and counted: a turn without text is dropped, a strategy on a
seeker's turn is dropped, rows of a dialogue that do not stand together are brought together. A bad row refuses its
dialogue; one that cannot be read as a row refuses the dialogues before and after it, for it may belong to either.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from data_prep.errors import UserError
from data_prep.records import Dialogue, Turn
from data_prep.sources.base import EMPTY_TURN, Conversion, Made, Options, Source
from data_prep.sources.layouts import LayoutDraft, tell_apart
from data_prep.sources.reading import slug
from data_prep.sources.tables import Table, read_table

TURN_COLUMNS = ("id", "speaker", "text", "strategy")
PAIR_COLUMNS = ("id", "seeker", "supporter", "strategy")
COLUMNS = ("id", "speaker", "text", "strategy", "seeker", "supporter")
COLUMN_FIELDS = "id, speaker, text, [strategy] (one row a turn) or [id], seeker, supporter, [strategy] (one row a pair)"
"""The fields that --column takes, for people; in brackets what may be absent."""


@dataclass
class Rows:
    """The rows of one dialogue: (where, speaker, text, strategy)."""

    where: str
    position: int
    turns: list[tuple[str, str, str, str]] = field(default_factory=list)
    torn: bool = False
    """Whether a row beside them could not be read, which may have been one of theirs."""


def _positions(table: Table, options: Options) -> dict[str, int]:
    """Column positions by our names. Raises UserError when the columns of neither layout are there."""
    for name in options.columns:
        if name not in COLUMNS:
            close = get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(COLUMNS)}"
            raise UserError(f"--column: unknown field {name!r}; {hint}")
    named = set(options.columns)
    pairs = bool(named & {"seeker", "supporter"}) or (
        not named & {"speaker", "text"} and {"seeker", "supporter"} <= set(table.header)
    )
    if pairs and named & {"speaker", "text"}:
        raise UserError("--column: name speaker and text (one row a turn) or seeker and supporter (one row a pair)")
    wanted = PAIR_COLUMNS if pairs else TURN_COLUMNS
    optional = {"strategy", "id"} if pairs else {"strategy"}
    found: dict[str, int] = {}
    for name in wanted:
        if name in options.columns:
            found[name] = table.column(options.columns[name])
        elif name in table.header:
            found[name] = table.column(name)
        elif name not in optional:
            raise UserError(f"{table.path}:1: which column holds the {name}? give --column {name}=NAME")
    for name, position in found.items():
        same = [other for other, place in found.items() if place == position and other != name]
        if same:
            raise UserError(f"--column: {name} and {same[0]} are both read from column {table.header[position]!r}")
    return found


def _grouped(table: Table, columns: dict[str, int], conversion: Conversion) -> dict[str, Rows]:
    """The rows by dialogue, in the order of the file."""
    grouped: dict[str, Rows] = {}
    last: str | None = None
    pairs = "seeker" in columns
    torn = False
    for position, (where, cells) in enumerate(table.rows, start=1):
        conversion.turns_read += 2 if pairs else 1
        if isinstance(cells, UserError):
            conversion.refuse(where, cells, 2 if pairs else 1)
            torn = "id" in columns
            if torn and last is not None:
                grouped[last].torn = True
            continue
        key = cells[columns["id"]].strip() if "id" in columns else f"csv-{slug(table.path.stem)}-{position:04d}"
        if not key:
            conversion.refuse(where, UserError(f"{where}: has no dialogue id"), 2 if pairs else 1)
            continue
        if key in grouped and key != last:
            conversion.repairs["rows of a dialogue brought together"] += 1
        rows = grouped.setdefault(key, Rows(where, position))
        rows.torn |= torn
        last, torn = key, False
        strategy = cells[columns["strategy"]].strip() if "strategy" in columns else ""
        if pairs:
            rows.turns.append((where, "seeker", cells[columns["seeker"]], ""))
            rows.turns.append((where, "supporter", cells[columns["supporter"]], strategy))
        else:
            rows.turns.append((where, cells[columns["speaker"]].strip(), cells[columns["text"]], strategy))
    return grouped


def _dialogue(key: str, rows: Rows, draft: LayoutDraft, seeker: str | None) -> Dialogue:
    if rows.torn:
        raise draft.error("a row beside this dialogue's could not be read and may belong to it")
    for where, name, _, _ in rows.turns:
        if not name:
            raise UserError(f"{where}: has no speaker")
    sides = tell_apart([name for _, name, _, _ in rows.turns], seeker, draft)
    turns: list[Turn] = []
    for _, name, text, strategy in rows.turns:
        side = sides[name]
        draft.repairs["strategy on a seeker turn dropped"] += bool(strategy) and side == "seeker"
        if text.strip():
            kept = strategy if strategy and side == "supporter" else None
            turns.append(Turn(speaker=side, text=text, strategy=kept))
    draft.repairs[EMPTY_TURN] += len(rows.turns) - len(turns)
    if not any(turn.speaker == "seeker" for turn in turns):
        raise draft.error("the seeker says nothing: no turn of theirs has text")
    return Dialogue(id=key, language=draft.language, source="csv", turns=tuple(turns))


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues; ids are those of the id column, else `csv-<file>-<row>`.

    The whole table is read first: rows of a dialogue may stand anywhere.
    """
    table = read_table(path)
    columns = _positions(table, options)
    for position, name in enumerate(table.header):
        if position not in columns.values():
            conversion.noted[f"column {name!r} not read"] += 1
    if "seeker" in columns and options.seeker is not None:
        raise UserError("--seeker: the columns of a pair already say who speaks; leave it out")
    assert options.language is not None  # Source.records asks for it
    for key, rows in _grouped(table, columns, conversion).items():
        draft = LayoutDraft(rows.where, id=key, language=options.language)
        try:
            dialogue = _dialogue(key, rows, draft, options.seeker)
        except UserError as error:
            conversion.refuse(rows.where, error, len(rows.turns))
            continue
        draft.accept(conversion)
        yield rows.where, [dialogue]


CSV = Source(
    name="csv",
    title="A table of your own: one row a turn or one row a pair, columns named with --column",
    languages=("en", "zh"),
    licence="that of the data you bring",
    files=("*.csv", "*.tsv"),
    origin="your own data",
    makes="dialogues",
    stream=stream,
    asks=("language",),
    takes=("seeker", "columns"),
)
