"""Review by people: cards go out as a spreadsheet, and what people filled in comes back, cell by cell.

One row a card. The left columns show the card and are not to be edited; the others are filled in. Several people may
return sheets of the same cards: where two of them contradict each other neither counts, and both rows are named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from data_prep.card_sheet import Row, read_sheet, shown, write_sheet
from data_prep.card_taxonomy import SEPARATOR, Taxonomy
from data_prep.cards import FIELDS, LONGEST, QUALITIES, Quality, field_text, with_fields, with_meta
from data_prep.errors import UserError
from data_prep.records import RoleCard

SHOWN = ("card", "language", "source", *FIELDS, "verdict")
FIXES = tuple(f"fix_{name}" for name in FIELDS)
FILLED = ("keep", "quality", *FIXES, "category", "note")
HEADER = (*SHOWN, *FILLED)
YES = ("yes", "y", "true", "1", "是")
NO = ("no", "n", "false", "0", "否")
QUALITY_WORDS: dict[str, Quality] = {**{name: name for name in QUALITIES}, "高": "high", "中": "middle", "低": "low"}
EMPTY_FIELD = "-"
"""In a fix column: this field is not mentioned."""
GUIDE = (
    "One row is one card. Please fill in the columns from `keep` on; leave the columns to the left as they are.",
    "keep: yes or no. A row without it counts as not yet reviewed.",
    "quality: high, middle or low.",
    "fix_age, fix_gender, fix_occupation, fix_problem: the right text where the card's is wrong; "
    f"{EMPTY_FIELD} when nothing is said about it; empty when it is fine.",
    "category: a class from the list where the card's is missing or wrong.",
    "note: anything else; it is stored with the card.",
)


@dataclass(frozen=True)
class Opinion:
    """What one row says of one card; None is a cell left empty."""

    where: str
    """File and row, for messages."""
    place: str
    """The same without the folder, for the card's meta."""
    keep: bool
    quality: str | None
    fixes: Mapping[str, str | None]
    category: tuple[str, ...] | None
    note: str | None


@dataclass
class Review:
    """Cards that people keep, as they fixed them, in order; ids of the others by what became of them."""

    kept: list[RoleCard] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    unreviewed: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """One line a fault: sheet, row, column, what to do. Nothing of such a row is applied."""
    fixed: int = 0

    def report(self) -> dict[str, Any]:
        return {
            "kept": len(self.kept),
            "dropped": len(self.dropped),
            "unreviewed": len(self.unreviewed),
            "fixed": self.fixed,
            "quality": {
                **{name: sum(card.quality == name for card in self.kept) for name in QUALITIES},
                "not said": sum(card.quality is None for card in self.kept),
            },
            "faults": self.faults,
        }


def _shown_cells(card: RoleCard) -> list[str]:
    verdict = card.meta.get("verdict")
    reason = verdict.get("reason") if isinstance(verdict, dict) else None
    fields = [getattr(card, name) or "" for name in FIELDS]
    return [shown(cell) for cell in (card.id, card.language, card.source, *fields, str(reason or ""))]


def _by_cell(cards: Sequence[RoleCard]) -> dict[str, RoleCard]:
    found = {shown(card.id).strip(): card for card in cards}
    if len(found) < len(cards):
        raise UserError("two card ids look the same in a spreadsheet; give the cards other ids")
    return found


def export_review(path: Path, cards: Sequence[RoleCard], taxonomy: Taxonomy) -> None:
    """Writes the sheet to be filled in. `category` shows what a card has; `quality` too.

    Raises UserError when the path ends neither in .xlsx nor in .csv.
    """
    _by_cell(cards)
    rows = []
    for card in cards:
        category = SEPARATOR.join(taxonomy.canonical(card.category) or card.category)
        rows.append([*_shown_cells(card), "", card.quality or "", *("" for _ in FIXES), category, ""])
    choices = {
        "keep": ("yes", "no"),
        "quality": QUALITIES,
        "category": [SEPARATOR.join(taxonomy_path) for taxonomy_path in taxonomy.paths()],
    }
    write_sheet(path, HEADER, rows, choices, GUIDE)


# ---- reading one row


def _choice(name: str, text: str, words: Sequence[str]) -> str:
    """The fault of a cell that is none of `words`; the cell is repeated only as the word it was meant to be."""
    close = get_close_matches(text.casefold(), words, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name}: is none of {', '.join(words)}{hint}"


def _fixes(row: Row, faults: list[str]) -> dict[str, str | None]:
    fixes: dict[str, str | None] = {}
    for name in FIELDS:
        text = row.cells[f"fix_{name}"].strip()
        if not text:
            continue
        value = None if text == EMPTY_FIELD else field_text(text)
        if value is not None and len(value) > LONGEST[name]:
            faults.append(f"fix_{name}: is longer than {LONGEST[name]} characters")
        if value is None and name == "problem":
            faults.append("fix_problem: a card without a problem cannot be kept; write no into keep instead")
        fixes[name] = value
    return fixes


def _changed_cells(row: Row, card: RoleCard) -> list[str]:
    """Names of the columns on the left that no longer show the card."""
    return [
        name
        for name, text in zip(SHOWN, _shown_cells(card), strict=True)
        if name != "verdict" and row.cells[name].split() != text.split()
    ]


def _category(text: str, card: RoleCard, taxonomy: Taxonomy, faults: list[str]) -> tuple[str, ...] | None:
    """The path in a cell; None where it is empty or shows what the card has anyway."""
    if not text or text == shown(SEPARATOR.join(taxonomy.canonical(card.category) or card.category)).strip():
        return None
    path = taxonomy.canonical([part.strip() for part in text.split(SEPARATOR)])
    if path is None:
        faults.append(f"category: is no class of taxonomy {taxonomy.name!r}; choose one from its list")
    return path


def read_row(path: Path, row: Row, card: RoleCard, taxonomy: Taxonomy) -> Opinion | list[str]:
    """What the row says; an empty list when it was not filled in; or its faults."""
    faults = list(row.faults)
    for name in _changed_cells(row, card):
        hint = f"write the change into fix_{name}" if name in FIELDS else "restore it"
        faults.append(f"{name}: differs from the card; {hint}, or export the sheet again if the cards have changed")
    said = row.cells["keep"].strip().casefold()
    quality = row.cells["quality"].strip().casefold()
    if said and said not in YES + NO:
        faults.append(_choice("keep", said, ("yes", "no")))
    if quality and quality not in QUALITY_WORDS:
        faults.append(_choice("quality", quality, QUALITIES))
    level = QUALITY_WORDS.get(quality)
    fixes = _fixes(row, faults)
    category = _category(row.cells["category"].strip(), card, taxonomy, faults)
    touched = (
        bool(fixes) or category is not None or level not in (None, card.quality) or bool(row.cells["note"].strip())
    )
    if not said and touched and not row.faults:
        faults.append("keep: is empty although the row is filled in; write yes or no")
    if faults or not said:
        return faults
    place = f"{path.name}: row {row.number}"
    return Opinion(
        f"{path}: row {row.number}", place, said in YES, level, fixes, category, row.cells["note"].strip() or None
    )


# ---- putting rows together


def _contradiction(opinions: Sequence[Opinion]) -> str | None:
    """What two rows about the same card do not agree on; a cell left empty agrees with everything."""
    first = opinions[0]
    for other in opinions[1:]:
        parts: list[tuple[str, Any, Any]] = [("keep", first.keep, other.keep)]
        if first.keep and other.keep:
            parts += [("quality", first.quality, other.quality), ("category", first.category, other.category)]
            both = [name for name in first.fixes if name in other.fixes]
            if any(first.fixes[name] != other.fixes[name] for name in both):
                parts.append(("the fixes", True, False))
        names = [name for name, one, two in parts if one is not None and two is not None and one != two]
        if names:
            return f"{first.where} and {other.where}: contradict each other in {', '.join(names)}; make them agree"
    return None


def _applied(card: RoleCard, opinions: Sequence[Opinion]) -> RoleCard:
    fixes = {name: value for opinion in opinions for name, value in opinion.fixes.items()}
    fixes = {name: value for name, value in fixes.items() if value != getattr(card, name)}
    qualities = [opinion.quality for opinion in opinions if opinion.quality is not None]
    categories = [opinion.category for opinion in opinions if opinion.category is not None]
    notes = [opinion.note for opinion in opinions if opinion.note is not None]
    reviewed: dict[str, Any] = {"rows": [opinion.place for opinion in opinions], "fixed": sorted(fixes)}
    if notes:
        reviewed["notes"] = notes
    fixed = with_fields(card, fixes) if fixes else card
    changes: dict[str, Any] = {"quality": qualities[0]} if qualities else {}
    if categories:
        changes["category"] = categories[0]
    return with_meta(fixed, review=reviewed).model_copy(update=changes)


def import_review(cards: Sequence[RoleCard], sheets: Sequence[Path], taxonomy: Taxonomy) -> Review:
    """Applies filled sheets to the cards they were exported from.

    A row with a fault changes nothing, and its card is neither kept nor dropped; the other rows count. Raises
    UserError when a sheet cannot be read or its columns have changed.
    """
    known = _by_cell(cards)
    review = Review()
    opinions: dict[str, list[Opinion]] = {}
    faulty: set[str] = set()
    for path in sheets:
        for row in read_sheet(path, HEADER):
            where = f"{path}: row {row.number}"
            card = known.get(row.cells["card"].strip())
            if card is None:
                what = "unknown id; it is in none of the card files" if row.cells["card"].strip() else "is empty"
                review.faults.append(f"{where}: card: {what}")
                continue
            found = read_row(path, row, card, taxonomy)
            if isinstance(found, Opinion):
                opinions.setdefault(card.id, []).append(found)
            elif found:
                review.faults += [f"{where}: {fault}" for fault in found]
                faulty.add(card.id)
    for card in cards:
        said = opinions.get(card.id, [])
        against = _contradiction_of_all(said)
        if against is not None:
            review.faults.append(against)
        elif card.id in faulty:
            continue
        elif not said:
            review.unreviewed.append(card.id)
        elif not said[0].keep:
            review.dropped.append(card.id)
        else:
            review.kept.append(_applied(card, said))
            review.fixed += bool(review.kept[-1].meta["review"]["fixed"])
    return review


def _contradiction_of_all(opinions: Sequence[Opinion]) -> str | None:
    """The first contradiction between any two."""
    return next((told for start in range(len(opinions)) if (told := _contradiction(opinions[start:]))), None)
