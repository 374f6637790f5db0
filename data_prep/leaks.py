"""What two sets share: the leak report between training and held-out data, or between data and role cards.

Cards that were made from a dataset leak into it, also when every word was written anew: a model trained on the
dataset has met the person. So the report tells apart what a card says of its own source (`card_source`) and what the
texts themselves show (`near_situation`, `phrase`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from data_prep.duplicates import NearIndex, signature
from data_prep.normalising import CHINESE, normalised
from data_prep.records import Dialogue, Record, RoleCard
from data_prep.splits import NEAR, keys_of, near_texts

EXACT = ("id", "card", "situation", "opening", "text")
NEAR_KINDS = ("near_situation", "near_opening", "near_text")
KINDS = (*EXACT, *NEAR_KINDS, "card_source", "phrase")
ABOUT = {
    "id": "same id",
    "card": "same role card, by id or text",
    "situation": "same situation, or problem of the card",
    "opening": "same first words of the seeker, more than five",
    "text": "same dialogue",
    "near_situation": "near-duplicate situation or problem",
    "near_opening": "near-duplicate first words of the seeker",
    "near_text": "near-duplicate dialogue",
    "card_source": "card that names the other side's dataset as its source",
    "phrase": "seven words running of a card's problem, said by the other side's seeker",
}
# Seven words running that a card and at most three dialogues share were taken from one of them: of the official cards
# from other datasets none has such a run in common with ESConv, with six words one has.
PHRASE_WORDS = 7
PHRASE_DIALOGUES = 3
# Names that cards give a dataset other than our converters do.
ALIASES = {"psych": "psych8k"}


class Leak(Record):
    """What two sets share of one kind: how many distinct things, and the records concerned on each side."""

    kind: str
    shared: int
    ids_a: tuple[str, ...] = ()
    ids_b: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.shared} shared, {len(self.ids_a)} records of A and {len(self.ids_b)} of B"


Records = Sequence[Dialogue | RoleCard]


def dataset_name(source: str) -> str:
    """A dataset's name as it is compared: "ESconv", "esconv" and "ES-Conv" are one."""
    folded = normalised(source).replace(" ", "")
    return ALIASES.get(folded, folded)


def _card_of(record: Dialogue | RoleCard) -> RoleCard | None:
    return record if isinstance(record, RoleCard) else record.card


def foreign_source(record: Dialogue | RoleCard) -> str | None:
    """The dataset a record's card was made from, when that is not the dataset of the record itself."""
    card = _card_of(record)
    if card is None:
        return None
    name = dataset_name(card.source)
    return None if isinstance(record, Dialogue) and name == dataset_name(record.source) else name


def _exact(a: Records, b: Records) -> dict[str, Leak]:
    sides = []
    for records in (a, b):
        ids: dict[tuple[str, str], list[str]] = defaultdict(list)
        for record in records:
            for key in keys_of(record):
                ids[key].append(record.id)
        sides.append(ids)
    report = {}
    for kind in EXACT:
        common = [key for key in sides[0] if key[0] == kind and key in sides[1]]
        ids_a, ids_b = (tuple(sorted({found for key in common for found in side[key]})) for side in sides)
        report[kind] = Leak(kind=kind, shared=len(common), ids_a=ids_a, ids_b=ids_b)
    return report


def _near(a: Records, b: Records, threshold: float) -> dict[str, Leak]:
    """Near duplicates; `shared` counts the distinct texts of B concerned. Equal texts are among them."""
    report = {}
    for kind in ("situation", "opening", "text"):
        index = NearIndex(threshold)
        owners: dict[Any, set[str]] = defaultdict(set)
        for record in a:
            for of_kind, text in near_texts(record):
                found = signature(text) if of_kind == kind else None
                if found is not None:
                    owners[found.tobytes()].add(record.id)
                    index.add(found.tobytes(), found)
        ids_a: set[str] = set()
        ids_b: set[str] = set()
        shared: set[bytes] = set()
        for record in b:
            for of_kind, text in near_texts(record):
                found = signature(text) if of_kind == kind else None
                matches = index.matches(found) if found is not None else []
                if found is not None and matches:
                    shared.add(found.tobytes())
                    ids_b.add(record.id)
                    ids_a.update(*(owners[name] for name in matches))
        name = f"near_{kind}"
        report[name] = Leak(kind=name, shared=len(shared), ids_a=tuple(sorted(ids_a)), ids_b=tuple(sorted(ids_b)))
    return report


def _card_sources(a: Records, b: Records) -> Leak:
    """Cards made from the other side's dataset; `shared` counts the datasets."""
    shared: set[str] = set()
    ids: list[set[str]] = [set(), set()]
    for this, (cards, others) in enumerate(((a, b), (b, a))):
        dialogues: dict[str, set[str]] = defaultdict(set)
        for other in others:
            if isinstance(other, Dialogue):
                dialogues[dataset_name(other.source)].add(other.id)
        for record in cards:
            name = foreign_source(record)
            if name is not None and name in dialogues:
                shared.add(name)
                ids[this].add(record.id)
                ids[1 - this] |= dialogues[name]
    return Leak(kind="card_source", shared=len(shared), ids_a=tuple(sorted(ids[0])), ids_b=tuple(sorted(ids[1])))


def _runs(text: str) -> set[int]:
    """Hashes of the runs of seven words of a text; a Chinese character counts as half a word."""
    units = CHINESE.sub(lambda found: f" {found[0]} ", normalised(text)).split()
    sizes = [0.5 if CHINESE.match(unit) else 1.0 for unit in units]
    runs: set[int] = set()
    end, size = 0, 0.0
    for start, of_first in enumerate(sizes):
        while end < len(units) and size < PHRASE_WORDS:
            size += sizes[end]
            end += 1
        if size < PHRASE_WORDS:
            break
        runs.add(hash(tuple(units[start:end])))
        size -= of_first
    return runs


def _phrases(a: Records, b: Records) -> Leak:
    """Runs of words that the problem of a card from elsewhere shares with the other side's seekers."""
    shared: set[int] = set()
    ids: list[set[str]] = [set(), set()]
    for this, (cards, others) in enumerate(((a, b), (b, a))):
        of_card: dict[int, set[str]] = defaultdict(set)
        for record in cards:
            card = _card_of(record)
            if card is not None and card.problem is not None and foreign_source(record) is not None:
                for run in _runs(card.problem):
                    of_card[run].add(record.id)
        said: dict[int, set[str]] = defaultdict(set)
        for other in others if of_card else ():
            if isinstance(other, Dialogue):
                texts = [other.situation or "", *(turn.text for turn in other.turns if turn.speaker == "seeker")]
                for run in {run for text in texts for run in _runs(text)} & of_card.keys():
                    said[run].add(other.id)
        for run, dialogues in said.items():
            if len(dialogues) <= PHRASE_DIALOGUES:
                shared.add(run)
                ids[this] |= of_card[run]
                ids[1 - this] |= dialogues
    return Leak(kind="phrase", shared=len(shared), ids_a=tuple(sorted(ids[0])), ids_b=tuple(sorted(ids[1])))


def leak_report(
    a: Iterable[Dialogue | RoleCard], b: Iterable[Dialogue | RoleCard], near: float | None = NEAR
) -> list[Leak]:
    """What `a` and `b` have in common, one entry for each of KINDS in that order; nothing shared gives zeros.

    Each side may hold dialogues or role cards: cards made from a dataset leak into it by their problem, and by what
    they name as their source. Kinds overlap on purpose: the same dialogue on both sides shares its opening as well as
    its text. `near` is the similarity (0.5 to 1) of near duplicates; None leaves the near kinds out of the report.
    """
    a, b = list(a), list(b)
    report: dict[str, Any] = _exact(a, b)
    if near is not None:
        report |= _near(a, b, near)
    report["card_source"] = _card_sources(a, b)
    report["phrase"] = _phrases(a, b)
    return [report[kind] for kind in KINDS if kind in report]


def explain_cards(report: Sequence[Leak], a: Records, b: Records) -> list[str]:
    """A plain sentence a side whose cards come from the other side's dataset: what they say, what the texts show."""
    by_kind = {leak.kind: leak for leak in report}
    sentences = []
    for side, records, field in (("A", a, "ids_a"), ("B", b, "ids_b")):
        cards = {record.id for record in records if foreign_source(record) is not None}
        said = cards & set(getattr(by_kind["card_source"], field))
        if not said:
            continue
        near = set(getattr(by_kind["near_situation"], field)) if "near_situation" in by_kind else set()
        phrase = set(getattr(by_kind["phrase"], field))
        other = "B" if side == "A" else "A"
        shown = len(said & (near | phrase))
        sentences.append(
            f"{len(said)} of the {len(cards)} cards of {side} name the dataset of {other} as their source. "
            f"For {shown} of them the texts show it too: {len(said & near)} have a near-duplicate problem, "
            f"{len(said & phrase)} share a phrase of seven words. "
            f"The other {len(said) - shown} have no wording in common."
        )
    return sentences
