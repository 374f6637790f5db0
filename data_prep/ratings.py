"""Ratings in: what people typed becomes checked Rating records; every faulty cell is reported, the rest is kept.

The readers (`rating_tables.py` for CSV and XLSX, `label_studio.py`, JSON Lines here) turn a file into cells, and one
checker looks at every cell of all files, so that a rating means the same wherever it was typed.

What a cell may hold: a whole level of the scale (3, "3" and 3.0 are the same level, 3.5 is none); nothing, which is
missing because it was "left empty"; or a word for missing such as "N/A", which is kept as the reason. Anything else
is a fault: no value is guessed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from data_prep.errors import UserError
from data_prep.rating_cells import LEFT_EMPTY, Cell, Fault, Place, did_you_mean, identifier, like_id, read_level, short
from data_prep.rating_keys import RatingKey, text_mark
from data_prep.records import Rating, parse_json, read_text, sha256_of
from data_prep.rubric import Rubric, known_rubrics, load_rubric

COPY = "copy"
LONG_FIELDS = ("dialogue_id", "item", "rater", "rubric", "dimension", "value", "reason")


@dataclass
class RatingsImport:
    """Checked ratings, sorted by dialogue, rater and dimension, and everything that was refused."""

    ratings: list[Rating] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    cells: int = 0
    """Cells looked at, faulty ones included."""
    notes: list[str] = field(default_factory=list)

    def missing(self) -> Counter[str]:
        """Missing ratings by reason; reasons in the raters' own words are counted together, not repeated."""

        def kind(reason: str) -> str:
            known = reason.startswith((LEFT_EMPTY, "given as "))
            return reason.split("; note: ")[0] if known else "reason in the rater's words"

        reasons = (rating.reason or "no reason given" for rating in self.ratings if rating.value is None)
        return Counter(map(kind, reasons))


@dataclass
class CellChecker:
    """Checks cells one by one and remembers who rated what where, across all files of an import."""

    rubric: Rubric
    known_ids: Collection[str] | None = None
    """Ids of the dialogues that can be rated; None when they are not known, and then they are not checked."""
    key: RatingKey | None = None
    rater: str | None = None
    """Whose ratings these are, where a file does not say it."""
    faults: list[Fault] = field(default_factory=list)
    kept: dict[tuple[str, str, str], tuple[Place, Rating]] = field(default_factory=dict)
    cells: int = 0
    _contradicted: set[tuple[str, str, str]] = field(default_factory=set)
    _told: set[tuple[Place, str]] = field(default_factory=set)

    def fault(self, place: Place, message: str, about: str | None = None) -> None:
        self.faults.append(Fault(place, message, about))

    def row_fault(self, place: Place, message: str, about: str | None = None) -> None:
        """A fault of a whole row is told once, not once a cell."""
        whole = replace(place, column=None)
        if (whole, message) not in self._told:
            self._told.add((whole, message))
            self.fault(whole, message, about)

    def read(self, path: Path, found: Iterable[Cell | Fault]) -> None:
        """Checks what a reader finds in one file. A fault that all of it has alike is told once, at the file."""
        told, kept = len(self.faults), len(self.kept)
        dimensions: set[str] = set()
        for cell in found:
            if isinstance(cell, Fault):
                self.faults.append(cell)
            else:
                dimensions.add(cell.dimension)
                self.check(cell)
        lacking = [name for name in self.rubric.names() if name not in dimensions]
        if self.key is not None and dimensions and lacking:
            self.fault(Place(str(path)), f"has no column for {', '.join(lacking)}, which the export had; bring it back")
        mine = self.faults[told:]
        alike = {fault.about for fault in mine}
        if len(mine) > 1 and len(alike) == 1 and None not in alike and len(self.kept) == kept:
            first = mine[0]
            message = f"{first.message} (the same at all {len(mine)} places of this file)"
            if first.about == COPY:
                message = "every rating in it was read before; was a sheet given twice? each is counted once"
            self.faults[told:] = [Fault(Place(str(path)), message, first.about)]

    def check(self, cell: Cell) -> None:
        """Keeps the cell's rating, or reports why not."""
        self.cells += 1
        dialogue_id = self._dialogue(cell)
        rater = identifier(cell.rater) or self.rater
        if dialogue_id is None:
            return
        if not rater:
            self.row_fault(cell.place, "no rater; fill the rater column or name the rater with --rater", "--rater")
            return
        rubric = identifier(cell.rubric)
        if rubric and rubric != self.rubric.name:
            told = f"is for rubric {short(rubric)}, expected {self.rubric.name!r}; see --rubric"
            self.row_fault(cell.place, told, "--rubric")
            return
        if cell.dimension not in self.rubric.names():
            hint = did_you_mean(cell.dimension, self.rubric.names())
            told = f"unknown dimension {cell.dimension[:20]!r} for rubric {self.rubric.name}"
            self.fault(cell.place, f"{told}{other_rubric(cell.dimension) or hint}", "--rubric")
            return
        try:
            value, reason = read_level(cell.value, self.rubric.dimension(cell.dimension))
        except ValueError as error:
            self.fault(cell.place, str(error))
            return
        if value is None:
            reason, note = identifier(cell.reason) or reason, identifier(cell.note)
            reason = f"{reason}; note: {note}" if note else reason
        rating = Rating(
            dialogue_id=dialogue_id,
            rater=rater,
            rubric=self.rubric.name,
            dimension=cell.dimension,
            value=value,
            reason=reason,
        )
        self._keep(cell.place, rating)

    def _dialogue(self, cell: Cell) -> str | None:
        item, named = identifier(cell.item), identifier(cell.dialogue_id)
        if item:
            if self.key is None:
                told = "holds blinded items; give the key file of their export with --key (key.json beside sheets/)"
                self.row_fault(cell.place, told, "--key")
                return None
            if item not in self.key.items:
                hint = did_you_mean(item, list(self.key.items)) if len(self.key.items) < 12 else ""
                told = f"item {short(item)} is not in the key{hint}; is it the key of this export?"
                self.row_fault(cell.place, told, "--key")
                return None
            named = self.key.items[item]
            mark = self.key.texts.get(item)
            if mark and cell.shown and cell.shown.strip() and text_mark(cell.shown) != mark:
                told = (
                    f"the text is not that of item {short(item)}; were some columns sorted without the others, or the "
                    "text edited? the row is not read"
                )
                self.row_fault(cell.place, told)
                return None
        if not named:
            self.row_fault(cell.place, "no dialogue id (or item) in this row")
            return None
        if self.known_ids is not None and named not in self.known_ids:
            self.row_fault(cell.place, f"unknown dialogue id {named[:40]!r}{like_id(named, self.known_ids)}")
            return None
        return named

    def _keep(self, place: Place, rating: Rating) -> None:
        about = (rating.dialogue_id, rating.rater, rating.dimension)
        empty = rating.value is None and (rating.reason or "").startswith(LEFT_EMPTY)
        if about in self._contradicted:
            if not empty:
                self.fault(place, "this rating is among those that contradict each other; see above")
            return
        if about not in self.kept:
            self.kept[about] = (place, rating)
            return
        first_place, first = self.kept[about]
        first_empty = first.value is None and (first.reason or "").startswith(LEFT_EMPTY)
        if empty:
            return  # an unfilled copy says nothing about the filled one
        if first_empty:
            self.kept[about] = (place, rating)
        elif first.value == rating.value:
            self.fault(place, f"given twice: the same rating stands at {first_place}; counted once", COPY)
        else:
            del self.kept[about]
            self._contradicted.add(about)
            self.fault(place, f"contradicts {first_place}: two different ratings by one rater; neither is kept")

    def result(self) -> RatingsImport:
        """Everything that was kept, sorted, so that the same ratings give the same file whatever their order."""
        order = {name: index for index, name in enumerate(self.rubric.names())}
        ratings = sorted(
            (rating for _, rating in self.kept.values()),
            key=lambda rating: (rating.dialogue_id, rating.rater, order[rating.dimension]),
        )
        return RatingsImport(ratings, self.faults, self.cells)


def import_ratings(
    paths: Sequence[str | Path],
    rubric: Rubric,
    *,
    key: RatingKey | None = None,
    dialogue_ids: Collection[str] | None = None,
    rater: str | None = None,
    ignore: Collection[str] = (),
) -> RatingsImport:
    """Ratings of all files together, each file's format told by its content.

    `key` maps blinded items back; `dialogue_ids` are the dialogues that may be rated (of the key when left out);
    `rater` names the rater of files that do not; `ignore` are table columns not to be read. Raises UserError for a
    file that is none of the formats, for one that is given twice, and where an option is wrong for all there is
    (no key, another rubric); everything smaller is a Fault of the result.
    """
    refuse_copies(paths)
    known = dialogue_ids if dialogue_ids is not None else set(key.items.values()) if key else None
    checker = CellChecker(rubric, known, key, rater)
    for path in paths:
        checker.read(Path(path), read_cells(Path(path), rubric, ignore))
    result = checker.result()
    if not result.ratings and result.faults and all((fault.about or "").startswith("--") for fault in result.faults):
        first, *others = result.faults
        raise UserError(f"{first}" + (f" (and {len(others)} more places like it)" if others else ""))
    if known is None:
        result.notes.append("dialogue ids were not checked: give --dialogues, or --key for blinded sheets")
    if key is not None:
        rated = {(rating.rater, rating.dialogue_id) for rating in result.ratings if rating.value is not None}
        given = [(name, key.items[item]) for name, items in key.raters.items() for item in items]
        open_items = sum(pair not in rated for pair in given)
        strangers = sorted({rating.rater for rating in result.ratings} - set(key.raters))
        if strangers:
            result.notes.append(f"raters that the key does not know: {', '.join(strangers)}; are the names right?")
        if open_items:
            result.notes.append(f"{open_items} of {len(given)} assigned dialogues have no rating yet")
    return result


def refuse_copies(paths: Sequence[str | Path]) -> None:
    """Raises UserError when two of the files are one, or the same byte for byte: nobody rates twice like that."""
    first: dict[str, str | Path] = {}
    for path in paths:
        if not Path(path).is_file():
            continue  # reading it says what is wrong
        other = first.setdefault(sha256_of(Path(path)), path)
        if other is not path:
            again = "is given twice" if str(other) == str(path) else f"is the same sheet as {other}"
            raise UserError(f"{path}: {again}; give each sheet once")


def other_rubric(dimension: str) -> str:
    """`; rubric x has it: --rubric x` for a dimension of a shipped rubric; else nothing."""
    for name in known_rubrics():
        if dimension in load_rubric(name).names():
            return f"; rubric {name} has it: --rubric {name}"
    return ""


def read_cells(path: Path, rubric: Rubric, ignore: Collection[str] = ()) -> Iterator[Cell | Fault]:
    """Cells and faults of one file. Raises UserError when it is none of the formats that can be read."""
    from data_prep.label_studio import export_cells
    from data_prep.rating_tables import csv_cells, xlsx_cells

    try:
        with open(path, "rb") as handle:
            head = handle.read(8)
    except OSError:
        head = b""
        read_text(path)  # tells what is wrong with the path
    if head.startswith(b"PK\x03\x04"):
        return xlsx_cells(path, rubric, ignore)
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        raise UserError(f"{path}: is an old or encrypted Excel file; save it as .xlsx without a password, or as CSV")
    text = read_text(path)
    first = text.lstrip()[:1]
    if first == "[":
        return export_cells(path, parse_json(text, str(path)), rubric)
    if first == "{":
        return json_line_cells(path)
    if not first:
        raise UserError(f"{path}: is empty; expected ratings as CSV, XLSX, JSON Lines or a Label Studio JSON export")
    return csv_cells(path, text, rubric, ignore)


def json_line_cells(path: Path) -> Iterator[Cell | Fault]:
    """JSON Lines, one rating a line with the fields of a Rating record; a faulty line does not end the reading."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        place = Place(str(path), line=number)
        if not line.strip():
            continue
        try:
            value = parse_json(line, "")
        except UserError as error:
            yield Fault(place, str(error).removeprefix(": "))
            continue
        if not isinstance(value, dict):
            yield Fault(place, f"found {type(value).__name__}, expected an object with the fields of a rating")
            continue
        unknown = [name for name in value if name not in LONG_FIELDS]
        absent = [name for name in ("dimension", "value") if name not in value]
        if unknown:
            yield Fault(place, f"unknown field {unknown[0][:20]!r}{did_you_mean(unknown[0], LONG_FIELDS)}")
        elif absent:
            yield Fault(place, f"has no field {absent[0]!r}; write null for a missing value")
        else:
            yield Cell(
                replace(place, column=identifier(value["dimension"])[:20]),
                value.get("rater"),
                identifier(value["dimension"]),
                value["value"],
                value.get("dialogue_id"),
                value.get("item"),
                value.get("rubric"),
                reason=value.get("reason"),
            )


def read_rating_files(paths: Iterable[str | Path], rubric: Rubric) -> list[Rating]:
    """Imported ratings from JSON Lines files, to be aggregated or compared.

    Raises UserError for a record that is no rating of the rubric, and for a rating given twice.
    """
    from data_prep.records import read_located
    from data_prep.rubric import check_ratings

    located = [pair for path in paths for pair in read_located(path, Rating)]
    check_ratings(located, rubric)
    seen: dict[tuple[str, str, str], str] = {}
    for where, rating in located:
        about = (rating.dialogue_id, rating.rater, rating.dimension)
        if about in seen:
            raise UserError(f"{where}: {rating.rater!r} rated this dialogue's {rating.dimension} at {seen[about]} too")
        seen[about] = where
    return [rating for _, rating in located]
