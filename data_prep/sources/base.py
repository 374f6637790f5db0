"""What every converter is made of: a source's description, what it is asked for, and what it hands back.

A converter goes through a path and yields what each record of the input becomes, one at a time; beside it stands a
Conversion that counts. It repairs only what its docstring lists, counts every repair, and refuses the rest with file
and record; the text itself is never quoted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import UserError
from data_prep.records import Dialogue, Language, Rating, Record, RoleCard, StrictDecoder, parse_json
from data_prep.rubric import check_ratings, load_rubric
from data_prep.sources.reading import array_values, data_files, file_ids, lines_of, starts_with

Makes = Literal["dialogues", "cards", "ratings"]
KINDS: dict[type[Record], Makes] = {Dialogue: "dialogues", RoleCard: "cards", Rating: "ratings"}
DIGITS = re.compile("[0-9]+")
EMPTY_TURN = "empty turn dropped"


@dataclass(frozen=True)
class Refusal:
    """One input record that was not converted. `turns` is how many turns of the input it held, where known."""

    where: str
    reason: str
    turns: int = 0

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass
class Conversion:
    """What a converter made of its input, and what became of the rest.

    For dialogues the turns balance: `turns_read` = turns written + repairs["empty turn dropped"] + turns of the
    refused records. `repairs` counts what was changed, `noted` what was found and left as it is, `missing` what the
    source does not say (no number stands for it), all by a short name of the cause. `skipped` are the files of a
    folder that are not of this source. The records themselves are here only after `Source.read`.
    """

    dialogues: list[Dialogue] = field(default_factory=list)
    cards: list[RoleCard] = field(default_factory=list)
    ratings: list[Rating] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    turns_read: int = 0
    records_written: int = 0
    """Input records that became something; with the refused ones they are all that were read."""
    written: Counter[str] = field(default_factory=Counter)
    """Records handed out, by kind; also "ratings without a value"."""
    turns_written: Counter[str] = field(default_factory=Counter)

    def refuse(self, where: str, error: UserError, turns: int = 0) -> None:
        """Notes a record that could not be converted; `error` may or may not begin with `where` itself."""
        self.refused.append(Refusal(where, str(error).removeprefix(f"{where}: "), turns))

    def skip(self, file: Path) -> None:
        """Notes a file of a folder that is not of this source."""
        self.skipped.append(str(file))

    def count(self, records: Sequence[Record]) -> None:
        """Counts what one record of the input became."""
        self.records_written += 1
        for record in records:
            self.written[KINDS[type(record)]] += 1
            if isinstance(record, Dialogue):
                for turn in record.turns:
                    self.turns_written[turn.speaker] += 1
            elif isinstance(record, Rating):
                self.written["ratings without a value"] += record.value is None

    def made(self, kind: Makes) -> list[Record]:
        """The records of one kind."""
        return list(getattr(self, kind))

    def report(self) -> dict[str, Any]:
        """Counts as a plain JSON-ready mapping; the records themselves are not in it."""
        kinds = Counter(DIGITS.sub("N", refusal.reason) for refusal in self.refused)
        return {
            "records_read": self.records_written + len(self.refused),
            "dialogues": self.written["dialogues"],
            "cards": self.written["cards"],
            "ratings": self.written["ratings"],
            "ratings_missing": self.written["ratings without a value"],
            "turns_read": self.turns_read,
            "turns_written": {side: self.turns_written[side] for side in ("seeker", "supporter")},
            "repairs": dict(sorted((+self.repairs).items())),
            "noted": dict(sorted((+self.noted).items())),
            "missing": dict(sorted((+self.missing).items())),
            "skipped": self.skipped,
            "refused_by_kind": dict(sorted(kinds.items())),
            "refused": [
                {"where": refusal.where, "reason": refusal.reason, "turns": refusal.turns} for refusal in self.refused
            ],
        }


@dataclass
class Draft:
    """One record on its way, with what was repaired; counted only once the whole of it is accepted."""

    where: str
    repairs: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)

    def error(self, reason: str) -> UserError:
        return UserError(f"{self.where}: {reason}")

    def stripped(self, text: str, what: str) -> str:
        """The text without white space at its edges; counted when there was any and something else is left."""
        bare = text.strip()
        if bare and len(bare) < len(text):
            self.repairs[f"whitespace at the edge of a {what}"] += 1
        return bare

    def accept(self, conversion: Conversion) -> None:
        """Adds its counts to the conversion's, leaving out the causes that occurred no time."""
        for mine, all_of_them in (
            (self.repairs, conversion.repairs),
            (self.noted, conversion.noted),
            (self.missing, conversion.missing),
        ):
            if mine:
                all_of_them.update({cause: count for cause, count in mine.items() if count})


@dataclass(frozen=True)
class Options:
    """What the person who converts must say because the files do not."""

    language: Language | None = None
    rater: str | None = None
    seeker: str | None = None
    """Name or role of the seeker, in files that name their speakers freely."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name of a field -> the column that holds it, in tables that may have any."""


Made = tuple[str, Sequence[Record]]
"""Where a record of the input is, and what it became: the dialogue or card first, then its ratings."""


@dataclass(frozen=True)
class Source:
    """One dataset of the field: what it is, where its files come from, and how to read them.

    It has `stream`, or `convert` where the files are small enough to be converted in one go.
    """

    name: str
    title: str
    languages: tuple[Language, ...]
    licence: str
    files: tuple[str, ...]
    """Names of the files as published; a converter goes by content, never by name."""
    origin: str
    """The project and paper to get them from."""
    makes: Makes
    """The kind of record that is its main output."""
    convert: Callable[[Path, Options], Conversion] | None = None
    stream: Callable[[Path, Options, Conversion], Iterator[Made]] | None = None
    """Yields what each record becomes, and counts repairs, refusals and turns read in the Conversion."""
    hub_id: str | None = None
    """Dataset id on the Hugging Face hub, where it has one."""
    rubric: str | None = None
    """Rubric of its ratings, where it has ratings."""
    asks: tuple[Literal["language", "rater"], ...] = ()
    """Options without which its files cannot be read."""
    takes: tuple[Literal["seeker", "columns"], ...] = ()
    """Further options that its files may need; other sources refuse them."""
    agreement: str | None = None
    """What must be signed or asked for before its files may be used, where anything must."""

    def records(self, path: str | Path, conversion: Conversion, options: Options | None = None) -> Iterator[Made]:
        """Goes through one file (or folder) of this source, one record at a time; `conversion` counts along.

        Raises UserError when an option is missing or impossible, when the path cannot be read at all, and, at the
        end, when it held no record. Single bad records are not raised: they are in `conversion.refused`, as is one
        whose id another record already has.
        """
        options = options or Options()
        for name in self.asks:
            if getattr(options, name) is None:
                raise UserError(f"source {self.name} needs --{name}: its files do not say it")
        for given, field_name, option in (
            (options.seeker is not None, "seeker", "--seeker"),
            (bool(options.columns), "columns", "--column"),
        ):
            if given and field_name not in self.takes:
                raise UserError(f"source {self.name} takes no {option}: its files say it themselves")
        if options.language and options.language not in self.languages:
            raise UserError(
                f"source {self.name} is in {' and '.join(self.languages)}, not in {options.language!r}; "
                "leave --language out"
            )
        return self._checked(Path(path), options, conversion)

    def _checked(self, path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
        rubric = load_rubric(self.rubric) if self.rubric is not None else None
        owner: set[tuple[type, str]] = set()
        for where, records in (self.stream or self._at_once)(path, options, conversion):
            main = records[0]
            if not isinstance(main, Rating):
                key = (type(main), main.id)  # type: ignore[attr-defined]  # dialogues and cards have ids
                if key in owner:
                    turns = len(main.turns) if isinstance(main, Dialogue) else 0
                    conversion.refuse(where, UserError(f"id {key[1]!r} is already used; ids must differ"), turns)
                    continue
                owner.add(key)
            if rubric is not None:
                check_ratings(((where, record) for record in records if isinstance(record, Rating)), rubric)
            conversion.count(records)
            yield where, records
        if not conversion.records_written and not conversion.refused:
            raise UserError(f"{path}: holds no record of source {self.name}; expected {', '.join(self.files)}")

    def _at_once(self, path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
        """A `convert` as a `stream`."""
        assert self.convert is not None
        whole = self.convert(path, options)
        conversion.repairs.update(whole.repairs)
        conversion.noted.update(whole.noted)
        conversion.missing.update(whole.missing)
        conversion.refused += whole.refused
        conversion.skipped += whole.skipped
        conversion.turns_read += whole.turns_read
        main: Sequence[Dialogue | RoleCard] = [*whole.dialogues, *whole.cards]
        ratings: dict[str, list[Rating]] = {}
        for rating in whole.ratings:
            ratings.setdefault(rating.dialogue_id, []).append(rating)
        for record in main:
            yield f"{path}: {record.id}", [record, *ratings.pop(record.id, [])]
        for dialogue_id, group in ratings.items():
            yield f"{path}: {dialogue_id}", group

    def read(self, path: str | Path, options: Options | None = None) -> Conversion:
        """Converts one file (or folder) of this source and keeps the records. Raises UserError like `records`."""
        conversion = Conversion()
        for _, records in self.records(path, conversion, options):
            for record in records:
                getattr(conversion, KINDS[type(record)]).append(record)
        return conversion


def json_records(path: Path, conversion: Conversion) -> Iterator[tuple[str, int, Any]]:
    """Yields (where, position, value) for the records of a JSON array or of JSON Lines, told apart by content.

    Positions count from 1 and include refused records, so that ids made of them stay the same when one is mended.
    A record that is not JSON is refused and the others are read; of an array that breaks off, those before the
    break. Raises UserError when the file cannot be read at all or is neither of the two.
    """
    start = starts_with(path)
    if start == "[":
        position = 0
        try:
            for position, value in array_values(path):
                where = f"{path}: record {position}"
                if isinstance(value, UserError):
                    conversion.refuse(where, value)
                else:
                    yield where, position, value
        except UserError as error:
            if position == 0:
                raise
            conversion.refuse(f"{path}: record {position + 1} and what follows", error)
    elif start == "{":
        decoder = StrictDecoder()
        for position, (number, line) in enumerate(lines_of(path), start=1):
            where = f"{path}:{number}"
            try:
                if isinstance(line, UserError):
                    raise line
                value = parse_json(line, where, decoder)
            except UserError as error:
                conversion.refuse(where, error)
                continue
            yield where, position, value
    else:
        raise UserError(f"{path}: is neither a JSON array nor JSON Lines; expected it to begin with [ or {{")


def looks_like(file: Path, is_ours: Callable[[Any], bool]) -> bool:
    """Whether a file is JSON and its first readable record `is_ours`; so is one that has only damaged records.

    Raises UserError when the file cannot be read.
    """
    if starts_with(file) not in ("[", "{"):
        return False
    damaged = Conversion()
    for _, _, value in json_records(file, damaged):
        return is_ours(value)
    return bool(damaged.refused)


def each_file(
    path: Path,
    conversion: Conversion,
    is_ours: Callable[[Any], bool],
    convert: Callable[[Path, str, Conversion], Iterator[Made]],
) -> Iterator[Made]:
    """Goes through a file, or all files of a folder: `convert(file, id of the file, conversion)`.

    Of a folder, files whose first record is not `is_ours` are skipped and named in the report, and one that cannot
    be read at all is refused; a single file is read whatever it begins with, and raises its UserError.
    """
    files = data_files(path)
    for file, stem in zip(files, file_ids(files, path), strict=True):
        if not path.is_dir():
            yield from convert(file, stem, conversion)
            continue
        try:
            if looks_like(file, is_ours):
                yield from convert(file, stem, conversion)
            else:
                conversion.skip(file)
        except UserError as error:
            conversion.refuse(str(file), error)
