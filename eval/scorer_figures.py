"""How well predicted distributions agree with ratings: every figure, and its bootstrap interval over groups.

A rating is one row: the level a person gave (an index from 0), and what a predictor says of the same dialogue, a
distribution over the levels. Every figure is a formula of sums over groups of rows, so that resampling groups is
adding the sums up again with other weights. Checked in the tests against scikit-learn and scipy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from data_prep.agreement_formulas import kappas
from data_prep.resampling import bootstrap_interval, weights_of
from eval.statistics import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIGURES = {
    "accuracy": "exact level (ACC)",
    "within_one": "within one level (ACC_soft)",
    "kappa": "quadratic weighted kappa",
    "macro_f1": "macro-F1",
    "spearman": "Spearman's rho",
    "kendall": "Kendall's tau-b",
    "mae": "mean absolute error, levels",
    "bias": "bias, levels",
    "ece": "expected calibration error",
}
BINS = 10
RESAMPLES = 1999


@dataclass(frozen=True)
class Predictions:
    """What one predictor says of N rows: `levels` [N] indices from 0, `probabilities` [N, levels].

    A row of NaN probabilities is one that the predictor says nothing of; its level is not read.
    """

    levels: Ints
    probabilities: Floats

    def given(self) -> NDArray[np.bool_]:
        return np.asarray(~np.isnan(self.probabilities).any(axis=1))

    def of(self, rows: NDArray[Any]) -> "Predictions":
        return Predictions(self.levels[rows], self.probabilities[rows])


def by_median(probabilities: Floats) -> Predictions:
    """The level is the lowest whose cumulative probability reaches one half, as in `eval.judge.median_level`."""
    levels = (np.nan_to_num(probabilities).cumsum(axis=1) < 0.5 - 1e-9).sum(axis=1)
    return Predictions(levels.clip(max=probabilities.shape[1] - 1), probabilities)


def by_mode(probabilities: Floats) -> Predictions:
    """The level is the most probable one, the lowest of several: hits most levels exactly, whatever their order."""
    return Predictions(np.nan_to_num(probabilities).argmax(axis=1), probabilities)


LEVEL_RULES = {"median": by_median, "mode": by_mode}


@dataclass(frozen=True)
class Sums:
    """Per group, or per resample: what the figures are made of. Shapes begin with [groups] or [resamples]."""

    confusion: Floats
    """[.., levels, levels]: rated, predicted."""
    error: Floats
    """[..]: sum of (expected level - rated level)."""
    confidence: Floats
    """[.., bins]: sum of the probabilities of the predicted levels."""
    hits: Floats
    """[.., bins]: predicted levels that are the rated ones."""
    joint: Any
    """[.., levels, values]: rated level, expected level by size. Sparse and flat, [groups, levels × values], before
    the resampling."""


class Sampled:
    """Rows of one predictor, summed by group and ready to be resampled."""

    def __init__(self, rated: Ints, predicted: Predictions, groups: Ints):
        count, levels = int(groups.max()) + 1, predicted.probabilities.shape[1]
        self.groups, self.levels = count, levels
        rows = np.arange(len(rated))
        confidence = predicted.probabilities[rows, predicted.levels]
        expected = predicted.probabilities @ np.arange(levels)
        # The last bin takes in 1.
        bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
        # To a thousandth of a level: ties stay ties whatever the batch, and the table of a large set stays small.
        values, places = np.unique(expected.round(3), return_inverse=True)
        self.values = len(values)

        def summed(columns: Ints, width: int, weights: Any = 1.0) -> Any:
            data = np.broadcast_to(np.asarray(weights, dtype=float), rated.shape)
            return csr_array((data, (groups, columns)), shape=(count, width))

        self.parts = {
            "confusion": summed(rated * levels + predicted.levels, levels**2),
            "error": summed(np.zeros_like(rated), 1, expected - rated),
            "confidence": summed(bins, BINS, confidence),
            "hits": summed(bins, BINS, predicted.levels == rated),
            "joint": summed(rated * self.values + places, levels * self.values),
        }

    def sums(self, weights: Floats, name: str) -> Sums:
        """Weighted sums, weights [resamples, groups]; only the parts that the figure `name` needs are made."""
        found: dict[str, Any] = dict.fromkeys(("confusion", "error", "confidence", "hits", "joint"))
        for part in NEEDS.get(name, ("confusion",)):
            # scipy multiplies sparse by dense from the left.
            found[part] = (self.parts[part].T @ weights.T).T
        shapes = {"confusion": (self.levels, self.levels), "joint": (self.levels, self.values), "error": ()}
        for part, shape in shapes.items():
            if found[part] is not None:
                found[part] = found[part].reshape(len(weights), *shape)
        return Sums(**found)

    def figure(self, name: str, weights: Floats) -> Floats:
        """[resamples] values of a figure, NaN where it is undefined."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(FORMULAS[name](self.sums(weights, name)))


NEEDS = {
    "bias": ("confusion", "error"),
    "ece": ("confusion", "confidence", "hits"),
    "spearman": ("joint",),
    "kendall": ("joint",),
}


def _share(sums: Sums, close: Callable[[Floats], Any]) -> Floats:
    """Mean over rows of a function of |rated - predicted|."""
    index = np.arange(sums.confusion.shape[-1])
    away = np.abs(index[:, None] - index).astype(float)
    return np.asarray((sums.confusion * close(away)).sum(axis=(-2, -1)) / sums.confusion.sum(axis=(-2, -1)))


def _kappa(sums: Sums) -> Floats:
    """Quadratic weighted kappa (Cohen 1968)."""
    levels = sums.confusion.shape[-1]
    x, y = (grid.ravel().astype(float) for grid in np.indices((levels, levels)))
    moments = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=-1)
    return kappas(sums.confusion.reshape(-1, levels**2) @ moments)[:, 0]


def _macro_f1(sums: Sums) -> Floats:
    """Mean over levels of 2 · hits / (rated + predicted); levels that are neither rated nor predicted are left out."""
    hits = np.diagonal(sums.confusion, axis1=-2, axis2=-1)
    both = sums.confusion.sum(axis=-1) + sums.confusion.sum(axis=-2)
    return np.asarray(np.where(both > 0, 2 * hits / np.maximum(both, 1), 0).sum(axis=-1) / (both > 0).sum(axis=-1))


def _bias(sums: Sums) -> Floats:
    return np.asarray(sums.error / sums.confusion.sum(axis=(-2, -1)))


def _ece(sums: Sums) -> Floats:
    """Guo et al. (2017): ten bins of the predicted level's probability; |hits - confidence| summed, per row."""
    return np.asarray(np.abs(sums.hits - sums.confidence).sum(axis=-1) / sums.confusion.sum(axis=(-2, -1)))


def _spearman(sums: Sums) -> Floats:
    """Pearson correlation of mid-ranks (Spearman 1904), which is right with ties; NaN where one side never varies."""

    def centred(counts: Floats) -> Floats:
        """Mid-ranks less their mean, (n + 1) / 2."""
        n = counts.sum(axis=-1, keepdims=True)
        return np.asarray(counts.cumsum(axis=-1) - counts / 2 - n / 2)

    rated, expected = sums.joint.sum(axis=-1), sums.joint.sum(axis=-2)
    x, y = centred(rated), centred(expected)
    together = ((sums.joint * y[:, None, :]).sum(axis=-1) * x).sum(axis=-1)
    spread = (rated * x**2).sum(axis=-1) * (expected * y**2).sum(axis=-1)
    return np.where(spread > 1e-9, together / np.sqrt(spread), np.nan)


def _kendall(sums: Sums) -> Floats:
    """Tau-b (Kendall 1945): (concordant - discordant) / sqrt(pairs untied in one · pairs untied in the other)."""
    rated, expected = sums.joint.sum(axis=-1), sums.joint.sum(axis=-2)
    n = rated.sum(axis=-1)
    # Of every cell: rows of lower levels and lower values, less rows of lower levels and higher values.
    up_to = sums.joint.cumsum(axis=-1)
    balance = 2 * up_to - sums.joint - up_to[..., -1:]
    lower = balance.cumsum(axis=-2) - balance
    difference = (sums.joint * lower).sum(axis=(-2, -1))
    untied = (n**2 - (rated**2).sum(axis=-1)) * (n**2 - (expected**2).sum(axis=-1)) / 4
    return np.where(untied > 1e-9, difference / np.sqrt(untied), np.nan)


FORMULAS: dict[str, Callable[[Sums], Floats]] = {
    "accuracy": lambda sums: _share(sums, lambda away: away == 0),
    "within_one": lambda sums: _share(sums, lambda away: away <= 1),
    "kappa": _kappa,
    "macro_f1": _macro_f1,
    "spearman": _spearman,
    "kendall": _kendall,
    "mae": lambda sums: _share(sums, lambda away: away),
    "bias": _bias,
    "ece": _ece,
}
UNDEFINED = "ratings or predictions are one and the same level throughout"


def figures(rated: Ints, predicted: Predictions, groups: Ints, seed: int = 0) -> dict[str, Interval]:
    """Every figure of FIGURES of the rows that the predictor says something of, with 95 % intervals over groups.

    `groups` [N] are numbers from 0. `Interval.n_cards` counts the groups.
    """
    rows = predicted.given()
    if not rows.any():
        return {name: Interval(None, None, None, 0, reason="nothing was predicted") for name in FIGURES}
    sampled = Sampled(rated[rows], predicted.of(rows), numbered(groups[rows]))
    return {
        name: _interval(lambda weights, name=name: sampled.figure(name, weights), sampled.groups, seed)  # type: ignore[misc]
        for name in FIGURES
    }


def differences(
    rated: Ints, one: Predictions, other: Predictions, groups: Ints, names: Sequence[str], seed: int = 0
) -> dict[str, Interval]:
    """Figures of `one` less those of `other` on the rows that both say something of; both see the same resamples."""
    rows = one.given() & other.given()
    if not rows.any():
        return {name: Interval(None, None, None, 0, reason="no row has both") for name in names}
    numbers = numbered(groups[rows])
    first, second = (Sampled(rated[rows], each.of(rows), numbers) for each in (one, other))

    def difference(weights: Floats, name: str) -> Floats:
        return first.figure(name, weights) - second.figure(name, weights)

    return {
        name: _interval(lambda weights, name=name: difference(weights, name), first.groups, seed)  # type: ignore[misc]
        for name in names
    }


def confusion(rated: Ints, predicted: Predictions) -> list[list[int]]:
    """Rows: rated level, columns: predicted level; lowest first."""
    size, rows = predicted.probabilities.shape[1], predicted.given()
    found = np.zeros((size, size), dtype=int)
    np.add.at(found, (rated[rows], predicted.levels[rows]), 1)
    return [[int(cell) for cell in row] for row in found]


def numbered(groups: Sequence[Any] | NDArray[Any]) -> Ints:
    """Names of groups as numbers from 0."""
    return np.unique(np.asarray(groups), return_inverse=True)[1].astype(np.int64)


def _interval(statistic: Callable[[Floats], Floats], groups: int, seed: int) -> Interval:
    value = float(statistic(np.ones((1, groups)))[0])
    if not np.isfinite(value):
        return Interval(None, None, None, groups, reason=UNDEFINED)
    limits = bootstrap_interval(
        lambda index: statistic(weights_of(index, groups)), value, groups, 0.95, seed, RESAMPLES, unit="groups"
    )
    return Interval(value, limits.low, limits.high, groups, limits.method, limits.reason)
