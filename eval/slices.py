"""The average of every supporter on parts of the cards: by language, source, category, crisis, ESConv's cards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from data_prep.records import RoleCard
from eval.statistics import Interval, PairedDifference, mean_interval, paired_difference

# Slices are read beside each other, so fewer resamples than for the headline are enough.
RESAMPLES = 1999


@dataclass(frozen=True)
class Slice:
    """One part of the cards. Figures in points of 100, by the supporter's place in the report."""

    kind: str
    value: str
    cards: int
    means: list[Interval]
    behind: list[PairedDifference | None]
    """The first supporter minus each, on the slice's shared cards; None for the first. Not corrected for the number
    of slices: they show where to look, and test nothing."""


def memberships(card: RoleCard) -> Iterator[tuple[str, str]]:
    """The (kind, value) slices a card belongs to. Its category counts at its top level."""
    from eval.audit import speaks_of_crisis

    yield "language", card.language
    yield "source", str(card.meta.get("source", card.source))
    if card.category:
        yield "category", card.category[0]
    marked = bool(card.meta.get("crisis")) or speaks_of_crisis(card)
    yield "crisis card", "yes" if marked else "no"
    yield "ESConv card", "yes" if from_esconv(card) else "no"


def from_esconv(card: RoleCard) -> bool:
    """Whether the card was made from ESConv, which many supporters were trained on."""
    return "esconv" in " ".join(str(part) for part in (card.source, card.meta.get("source", ""), card.id)).lower()


def make_slices(
    cards: Iterable[RoleCard],
    points: Sequence[Mapping[str, Sequence[float]]],
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Slice]:
    """Slices of every kind with more than one value. `points`: of every supporter card id → values of its samples."""
    members: dict[tuple[str, str], set[str]] = {}
    for card in {card.id: card for card in cards}.values():
        for slice_ in memberships(card):
            members.setdefault(slice_, set()).add(card.id)
    kinds = [kind for kind, _ in members]
    return [
        _slice(kind, value, ids, points, confidence, seed)
        for (kind, value), ids in sorted(members.items(), key=lambda item: (kinds.index(item[0][0]), -len(item[1])))
        if kinds.count(kind) > 1
    ]


def _slice(
    kind: str,
    value: str,
    ids: set[str],
    points: Sequence[Mapping[str, Sequence[float]]],
    confidence: float,
    seed: int,
) -> Slice:
    inside = [{card: values for card, values in one.items() if card in ids} for one in points]
    return Slice(
        kind,
        value,
        len(ids),
        [mean_interval(one, confidence, seed, RESAMPLES) for one in inside],
        [None, *(paired_difference(inside[0], one, confidence, seed, RESAMPLES, test=False) for one in inside[1:])],
    )
