"""Ranks with their uncertainty: what the paired tests allow to be said of a leaderboard's order."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from string import ascii_lowercase


@dataclass(frozen=True)
class RankInterval:
    """The ranks a supporter may truly have, 1 the best, and the letters of the groups it belongs to.

    Two supporters that share a letter were not told apart.
    """

    low: int
    high: int
    group: str


def rank_intervals(count: int, clear: Collection[tuple[int, int]]) -> list[RankInterval]:
    """Of `count` supporters in the order of their means; `clear` holds (better, worse) pairs of places.

    A supporter's best rank is one more than the number of clearly better ones, its worst `count` less the number of
    clearly worse ones. With pairs tested at a family-wise error of α (Holm), all intervals hold the true ranks at once
    with probability 1 - α at least (Mogstad, Romano, Shaikh and Wilhelm 2024, Inference for Ranks, section 3).
    """
    groups = letters(count, clear)
    return [
        RankInterval(
            1 + sum(worse == place for _, worse in clear), count - sum(better == place for better, _ in clear), group
        )
        for place, group in enumerate(groups)
    ]


def letters(count: int, clear: Collection[tuple[int, int]]) -> list[str]:
    """Compact letters: two share one exactly when they are not a clear pair (insert and absorb, Piepho 2004)."""
    columns: list[set[int]] = [set(range(count))]
    for one, other in clear:
        for column in [column for column in columns if {one, other} <= column]:
            columns.remove(column)
            columns += [column - {one}, column - {other}]
            columns = _absorbed(columns)
    columns.sort(key=lambda column: sorted(column))
    return ["".join(_letter(place) for place, column in enumerate(columns) if one in column) for one in range(count)]


def _absorbed(columns: Sequence[set[int]]) -> list[set[int]]:
    """Without columns that lie within another one."""
    kept: list[set[int]] = []
    for column in sorted(columns, key=len, reverse=True):
        if not any(column <= larger for larger in kept):
            kept.append(column)
    return kept


def _letter(place: int) -> str:
    """a to z, then aa-like names in brackets, so that names never run into each other."""
    if place < len(ascii_lowercase):
        return ascii_lowercase[place]
    return f"({ascii_lowercase[place // 26 - 1]}{ascii_lowercase[place % 26]})"
