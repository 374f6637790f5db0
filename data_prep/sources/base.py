"""What every converter is made of: a source's description, what it is asked for, and what it hands back.

A converter is a pure function from a path to a Conversion. It repairs only what its docstring lists, counts every
repair, and refuses the rest with file and record; the text itself is never quoted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import UserError
from data_prep.records import Dialogue, Language, Rating, Record, RoleCard, parse_json, read_text
from data_prep.rubric import check_ratings, load_rubric

Makes = Literal["dialogues", "cards", "ratings"]


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
    refused records. `repairs` counts what was changed, `missing` what the source does not say (no number stands
    for it), both by a short name of the cause.
    """

    dialogues: list[Dialogue] = field(default_factory=list)
    cards: list[RoleCard] = field(default_factory=list)
    ratings: list[Rating] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)
    turns_read: int = 0

    def refuse(self, where: str, error: UserError, turns: int = 0) -> None:
        """Notes a record that could not be converted; `error` may or may not begin with `where` itself."""
        self.refused.append(Refusal(where, str(error).removeprefix(f"{where}: "), turns))

    def made(self, kind: Makes) -> list[Record]:
        """The records of one kind."""
        return list(getattr(self, kind))

    def report(self) -> dict[str, Any]:
        """Counts as a plain JSON-ready mapping; the records themselves are not in it."""
        written = Counter(turn.speaker for dialogue in self.dialogues for turn in dialogue.turns)
        return {
            "dialogues": len(self.dialogues),
            "cards": len(self.cards),
            "ratings": len(self.ratings),
            "ratings_missing": sum(rating.value is None for rating in self.ratings),
            "turns_read": self.turns_read,
            "turns_written": {"seeker": written["seeker"], "supporter": written["supporter"]},
            "repairs": dict(sorted(self.repairs.items())),
            "missing": dict(sorted(self.missing.items())),
            "refused": [
                {"where": refusal.where, "reason": refusal.reason, "turns": refusal.turns} for refusal in self.refused
            ],
        }


@dataclass(frozen=True)
class Options:
    """What the person who converts must say because the files do not."""

    language: Language | None = None
    rater: str | None = None
    seeker: str | None = None
    """Name or role of the seeker, in files that name their speakers freely."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name of a field -> the column that holds it, in tables that may have any."""


@dataclass(frozen=True)
class Source:
    """One dataset of the field: what it is, where its files come from, and how to read them."""

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
    convert: Callable[[Path, Options], Conversion]
    hub_id: str | None = None
    """Dataset id on the Hugging Face hub, where it has one."""
    rubric: str | None = None
    """Rubric of its ratings, where it has ratings."""
    asks: tuple[Literal["language", "rater"], ...] = ()
    """Options without which its files cannot be read."""
    takes: tuple[Literal["seeker", "columns"], ...] = ()
    """Further options that its files may need; other sources refuse them."""
    agreement: str | None = None
    """What its authors ask people to agree to before they get the files; None where there is nothing to agree to."""

    def read(self, path: str | Path, options: Options | None = None) -> Conversion:
        """Converts one file (or folder) of this source.

        Raises UserError when an option is missing or impossible, when the path cannot be read at all, and when it
        holds no record. Single bad records are not raised: they are in `refused`.
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
        conversion = self.convert(Path(path), options)
        if not conversion.made(self.makes) and not conversion.refused:
            raise UserError(f"{path}: holds no record of source {self.name}; expected {', '.join(self.files)}")
        if self.rubric is not None:
            rubric = load_rubric(self.rubric)
            check_ratings(((f"{path}: {rating.dialogue_id}", rating) for rating in conversion.ratings), rubric)
        return conversion


def json_records(path: Path, conversion: Conversion) -> Iterator[tuple[str, int, Any]]:
    """Yields (where, position, value) for the records of a JSON array or of JSON Lines, told apart by content.

    Positions count from 1 and include refused records, so that ids made of them stay the same when one is mended.
    A line that is not JSON is refused and the others are read. Raises UserError when the file cannot be read at
    all or is neither of the two.
    """
    text = read_text(path)
    start = text.lstrip()[:1]
    if start == "[":
        for position, value in enumerate(parse_json(text, str(path)), start=1):
            yield f"{path}: record {position}", position, value
    elif start == "{":
        # Only \n ends a JSON line: splitlines() would also cut inside texts that hold U+2028 or U+0085.
        position = 0
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            position += 1
            where = f"{path}:{number}"
            try:
                value = parse_json(line, where)
            except UserError as error:
                conversion.refuse(where, error)
                continue
            yield where, position, value
    else:
        raise UserError(f"{path}: is neither a JSON array nor JSON Lines; expected it to begin with [ or {{")
