"""Near-duplicate cards across sources: the same trouble told in almost the same words is kept once.

Cards are few and short, so they are compared exactly and by words. `data_prep.duplicates`, made for sets of any size,
estimates from characters, knows no threshold below 0.5, and does worse here: of 326 reworded copies of the English
official cards it finds 321 and 5 that are none, and it misses the one pair there is among the Chinese ones.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from data_prep.cards import FIELDS, QUALITIES
from data_prep.errors import UserError
from data_prep.records import RoleCard
from data_prep.splits import CHINESE, normalised

THRESHOLD = 0.6
SHINGLE = 2
"""Units (words, Chinese characters) a shingle."""


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Runs of SHINGLE units of a normalised text; a Chinese character is a unit of its own. A short text is one."""
    units = CHINESE.sub(lambda found: f" {found.group()} ", normalised(text)).split()
    return frozenset(tuple(units[start : start + SHINGLE]) for start in range(max(1, len(units) - SHINGLE + 1)))


def duplicate_groups(texts: Sequence[str], threshold: float = THRESHOLD) -> list[list[int]]:
    """Positions of texts that say the same: connected components of "Jaccard of shingles >= threshold", those of two
    or more, each in order.

    Exact: two sets that similar share one of the first |s| - ceil(threshold * |s|) + 1 shingles of either when both
    are ordered from rare to frequent (prefix filter), so only those are compared.
    """
    sets = [shingles(text) for text in texts]
    frequency = Counter(shingle for found in sets for shingle in found)
    parent = list(range(len(texts)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    seen: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, found in enumerate(sets):
        ordered = sorted(found, key=lambda shingle: (frequency[shingle], shingle))
        prefix = ordered[: len(found) - math.ceil(threshold * len(found)) + 1]
        for other in {candidate for shingle in prefix for candidate in seen[shingle]}:
            shared = len(found & sets[other])
            if shared >= threshold * (len(found) + len(sets[other]) - shared):
                parent[root(index)] = root(other)
        for shingle in prefix:
            seen[shingle].append(index)
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(len(texts)):
        groups[root(index)].append(index)
    return [group for group in groups.values() if len(group) > 1]


@dataclass
class Deduplication:
    """Cards kept, in order; the groups of ids that said the same, the one kept first."""

    kept: list[RoleCard] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    across: Counter[str] = field(default_factory=Counter)
    """Groups by the sources in them, joined by " + "."""

    def report(self) -> dict[str, Any]:
        dropped = sum(len(group) - 1 for group in self.groups)
        return {"kept": len(self.kept), "dropped": dropped, "sources": dict(self.across), "groups": self.groups}


def _rank(card: RoleCard) -> tuple[int, int]:
    quality = QUALITIES.index(card.quality) if card.quality is not None else len(QUALITIES)
    return quality, -sum(getattr(card, name) is not None for name in FIELDS)


def dedupe(cards: Sequence[RoleCard], threshold: float = THRESHOLD) -> Deduplication:
    """Keeps one card of every group whose problems say the same in the same language: the best quality, then the
    most fields filled, then the first. Cards without a problem are compared with nothing.

    Raises UserError unless 0 < threshold <= 1.
    """
    if not 0 < threshold <= 1:
        raise UserError(f"--threshold: is {threshold:g}; expected a number above 0, at most 1")
    found = Deduplication()
    dropped: set[int] = set()
    for language in ("en", "zh"):
        places = [
            place for place, card in enumerate(cards) if card.language == language and normalised(card.problem or "")
        ]
        for group in duplicate_groups([cards[place].problem or "" for place in places], threshold):
            alike = sorted((places[index] for index in group), key=lambda place: (_rank(cards[place]), place))
            found.groups.append([cards[place].id for place in alike])
            found.across[" + ".join(sorted({cards[place].source for place in alike}))] += 1
            dropped.update(alike[1:])
    found.kept = [card for place, card in enumerate(cards) if place not in dropped]
    return found
