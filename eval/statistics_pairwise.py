"""Pairwise judgments: strengths of supporters from who won against whom (Bradley and Terry 1952, with ties)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eval.statistics import Interval

Outcome = Literal["a", "b", "tie"]


@dataclass(frozen=True)
class PairOutcome:
    """Which of two supporters did better on a card; a judge whose answer flipped with the order said a tie."""

    card: str
    a: str
    b: str
    outcome: Outcome


@dataclass(frozen=True)
class BradleyTerry:
    """Strengths on the log scale, their mean 0, each with a percentile interval over cards; `mean` is None with a
    reason where no finite strength fits. `ties` is the tie parameter ν (0: ties never happen)."""

    strengths: dict[str, Interval]
    ties: float | None
    reason: str | None = None

    def wins(self, a: str, b: str) -> float | None:
        """Probability that a does better than b, a tie counted as half; None without strengths."""
        one, other = self.strengths[a].mean, self.strengths[b].mean
        if one is None or other is None:
            return None
        return 1 / (1 + float(np.exp(other - one)))


def bradley_terry(
    rows: Sequence[PairOutcome], confidence: float = 0.95, seed: int = 0, resamples: int = 500
) -> BradleyTerry:
    """Davidson's model (1970, JASA 65): P(a wins) : P(tie) : P(b wins) = πa : ν√(πa πb) : πb, by maximum likelihood.

    Intervals resample cards, since the pairs of one card resemble each other; resamples in which no finite estimate
    exists are left out, and where that is more than one in ten there is no interval.

    Raises ValueError for a supporter against itself.
    """
    if any(row.a == row.b for row in rows):
        raise ValueError("a supporter cannot be compared with itself")
    names = sorted({name for row in rows for name in (row.a, row.b)})
    cards = sorted({row.card for row in rows})
    counts = _count_by_card(rows, names, cards)
    total = counts.sum(axis=0)
    reason = _no_estimate(total, names)
    if reason:
        return BradleyTerry(
            {name: Interval(None, None, None, len(cards), reason=reason) for name in names}, None, reason
        )
    best, ties = _fit(total)
    low, high, missing = _limits(counts, confidence, seed, resamples)
    strengths = {}
    for place, name in enumerate(names):
        if missing:
            strengths[name] = Interval(float(best[place]), None, None, len(cards), reason=missing)
        else:
            strengths[name] = Interval(
                float(best[place]), float(low[place]), float(high[place]), len(cards), method="percentile"
            )
    return BradleyTerry(strengths, ties)


def _count_by_card(rows: Sequence[PairOutcome], names: list[str], cards: list[str]) -> NDArray[np.float64]:
    """cards × supporters × supporters: wins of the row against the column, a tie one half for each side, and in a last
    layer of the same shape the ties."""
    counts = np.zeros((len(cards), 2, len(names), len(names)))
    places, card_places = ({name: place for place, name in enumerate(found)} for found in (names, cards))
    for row in rows:
        a, b, card = places[row.a], places[row.b], card_places[row.card]
        if row.outcome == "tie":
            counts[card, 1, a, b] += 1
            counts[card, 1, b, a] += 1
        else:
            won, lost = (a, b) if row.outcome == "a" else (b, a)
            counts[card, 0, won, lost] += 1
    return counts


def _no_estimate(total: NDArray[np.float64], names: Sequence[str]) -> str | None:
    """Why no finite strength fits: the likelihood has a maximum just when every supporter can be reached from every
    other along "won or tied against" (Ford 1957)."""
    from scipy.sparse.csgraph import connected_components

    if len(names) < 2:
        return "there are no two supporters to compare"
    met, _ = connected_components((total[0] + total[0].T + total[1]) > 0, directed=False)
    if met > 1:
        return "some supporters never met, not even by way of others"
    strong, labels = connected_components((total[0] + total[1]) > 0, directed=True, connection="strong")
    if strong > 1:
        group = [name for name, label in zip(names, labels, strict=True) if label == labels[0]]
        return f"{', '.join(group)} won or lost all comparisons with the others: no finite strength fits"
    return None


def _fit(total: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Log strengths with mean 0, and ν."""
    from scipy.optimize import minimize

    size = total.shape[-1]
    wins, ties = total[0], np.triu(total[1])
    any_ties = bool(ties.any())

    def loss(parameters: NDArray[np.float64]) -> float:
        strength = parameters[:size] - parameters[:size].mean()
        gap = strength[:, None] - strength[None, :]
        tie = parameters[size] if any_ties else -np.inf
        # Relative to the mean strength of the two: win gap/2, loss -gap/2, tie ln ν.
        rest = np.logaddexp(np.logaddexp(gap / 2, -gap / 2), tie)
        likelihood = float((wins * (gap / 2 - rest)).sum())
        if any_ties:
            likelihood += float((ties * (tie - rest)).sum())
        return -likelihood + 1e-9 * float((parameters[:size] ** 2).sum())

    found = minimize(loss, np.zeros(size + any_ties), method="BFGS", options={"gtol": 1e-6})
    strengths = found.x[:size] - found.x[:size].mean()
    return strengths, float(np.exp(found.x[size])) if any_ties else 0.0


def _limits(
    counts: NDArray[np.float64], confidence: float, seed: int, resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], str | None]:
    generator = np.random.default_rng(seed)
    names = [""] * counts.shape[-1]
    found = []
    for _ in range(resamples):
        total = counts[generator.integers(0, len(counts), len(counts))].sum(axis=0)
        if _no_estimate(total, names) is None:
            found.append(_fit(total)[0])
    if len(found) < 0.9 * resamples:
        empty = np.empty(0)
        return empty, empty, "too few cards: in many resamples a supporter wins or loses everything"
    low, high = np.quantile(np.array(found), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high, None
