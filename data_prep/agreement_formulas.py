"""The formulas of agreement: per-dialogue parts whose sums over dialogues give the figure.

A table is [dialogues, raters] with NaN where a rater gave no value. Each figure is a pair of functions: one makes
[dialogues, parts], the other turns [..., parts] sums into [...] values, NaN where undefined. Checked in the tests
against independent libraries on random tables with missing cells.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def moments(x: Floats, y: Floats) -> Floats:
    """[dialogues, columns × 6] of two [dialogues, columns] tables: n, x, y, xx, yy, xy where both have a value."""
    both = ~np.isnan(x) & ~np.isnan(y)
    x, y = np.where(both, x, 0), np.where(both, y, 0)
    return np.stack([both.astype(float), x, y, x * x, y * y, x * y], axis=-1).reshape(len(x), 6 * x.shape[1])


def pair_moments(table: Floats) -> Floats:
    """Moments of every pair of raters."""
    pairs = list(combinations(range(table.shape[1]), 2))
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    return moments(table[:, first], table[:, second])


def kappas(sums: Floats) -> Floats:
    """Quadratic weighted kappa (Cohen 1968) of each column of moments: 1 - observed / expected squared distance.

    With squared distances both are moments: sum (x - y)² = xx + yy - 2 xy, and between independent draws from the two
    margins xx + yy - 2 x y / n. NaN where two raters share no dialogue, or both always say the same one level.
    """
    n, x, y, xx, yy, xy = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 6), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = xx + yy - 2 * x * y / n
        # Sums of whole and half numbers are exact, a zero divided by n may leave dust.
        return np.where(expected > 1e-9, 1 - (xx + yy - 2 * xy) / expected, np.nan)


def mean_kappa(sums: Floats) -> Floats:
    """Mean over the pairs that have a kappa."""
    found = kappas(sums)
    return np.asarray(np.nanmean(found, axis=-1)) if found.shape[-1] else np.full(found.shape[:-1], np.nan)


def ac2_parts(table: Floats, levels: Floats) -> Floats:
    """For every dialogue: weighted agreement and whether it has a pair; each level's share; one."""
    counts = (table[:, :, None] == levels).sum(axis=1).astype(float)
    places = np.arange(len(levels))
    weights = 1 - ((places[:, None] - places) / (len(levels) - 1)) ** 2
    n = counts.sum(axis=1)
    paired = n >= 2
    agreeing = (counts * (counts @ weights - 1)).sum(axis=1) / np.where(paired, n * (n - 1), 1)
    columns = (np.where(paired, agreeing, 0)[:, None], paired[:, None], counts / n[:, None], np.ones((len(n), 1)))
    return np.concatenate(columns, axis=1)


def ac2(sums: Floats, levels: int) -> Floats:
    """Gwet's AC2 (Gwet 2014, Handbook of Inter-Rater Reliability, ch. 4): (pa - pe) / (1 - pe).

    pa: mean weighted agreement of the dialogues with two ratings or more; pe = T / (q (q - 1)) · sum p (1 - p) with T
    the sum of all weights, q levels, and p each level's mean share over all rated dialogues.
    """
    places = np.arange(levels)
    total = (1 - ((places[:, None] - places) / (levels - 1)) ** 2).sum()
    shares = sums[..., 2:-1] / sums[..., -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = sums[..., 0] / sums[..., 1]
        chance = total / (levels * (levels - 1)) * (shares * (1 - shares)).sum(axis=-1)
        return np.asarray((observed - chance) / (1 - chance))


def anova_parts(table: Floats) -> Floats:
    """For every dialogue rated by all k raters: one, squared row mean, sum of squares, the k ratings."""
    if not table.size:
        return np.zeros((0, 3))
    one = np.ones(len(table))
    return np.column_stack([one, table.mean(axis=1) ** 2, (table**2).sum(axis=1), table])


def icc(sums: Floats, average: bool) -> Floats:
    """ICC(2,1), or ICC(2,k) when `average` (Shrout & Fleiss 1979; McGraw & Wong's A,1 and A,k): two-way random."""
    n, means_squared, squares = sums[..., 0], sums[..., 1], sums[..., 2]
    k = sums.shape[-1] - 3
    columns = sums[..., 3:] / n[..., None]
    correction = n * k * columns.mean(axis=-1) ** 2
    rows = k * means_squared - correction
    raters = n * (columns**2).sum(axis=-1) - correction
    ms_rows, ms_raters = rows / (n - 1), raters / (k - 1)
    ms_error = (squares - correction - rows - raters) / ((n - 1) * (k - 1))
    if average:
        below = ms_rows + (ms_raters - ms_error) / n
    else:
        below = ms_rows + (k - 1) * ms_error + k * (ms_raters - ms_error) / n
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(below) > 1e-9, (ms_rows - ms_error) / below, np.nan)


def component_parts(table: Floats) -> Floats:
    """For every dialogue: one, its ratings, their number squared, n · mean², sum of squares; each rater's sum and n."""
    given = ~np.isnan(table)
    values = np.where(given, table, 0)
    n = given.sum(axis=1)
    sums = values.sum(axis=1)
    columns = [np.ones(len(table)), n, n**2, sums**2 / np.maximum(n, 1), (values**2).sum(axis=1)]
    return np.column_stack([*columns, values, given])


def icc_from_components(sums: Floats) -> Floats:
    """Share of the dialogues' variance in the variance of one rating, two-way random, not everybody rating everything.

    Variance components by Henderson's method I (Henderson 1953; Searle, Casella & McCulloch 1992, ch. 5): three sums
    of squares are set equal to their expectations. Equals ICC(2,1) when nothing is missing.
    """
    raters = (sums.shape[-1] - 5) // 2
    rows, n, n_squared, by_rows, squares = np.moveaxis(sums[..., :5], -1, 0)
    totals, given = sums[..., 5 : 5 + raters], sums[..., 5 + raters :]
    by_raters = (totals**2 / np.maximum(given, 1)).sum(axis=-1)
    overall = totals.sum(axis=-1) ** 2 / n
    columns = (given > 0).sum(axis=-1)
    k_rows, k_raters = n_squared / n, (given**2).sum(axis=-1) / n
    # Rows: dialogues, raters, everything; columns: variance of dialogues, of raters, of the rest.
    system = np.stack(
        [
            n - k_rows,
            rows - k_raters,
            rows - 1,
            columns - k_rows,
            n - k_raters,
            columns - 1,
            n - k_rows,
            n - k_raters,
            n - 1,
        ],
        axis=-1,
    ).reshape(*n.shape, 3, 3)
    found = np.stack([by_rows - overall, by_raters - overall, squares - overall], axis=-1)
    solvable = np.abs(np.linalg.det(system)) > 1e-6
    system = np.where(solvable[..., None, None], system, np.eye(3))
    components = np.linalg.solve(system, found[..., None])[..., 0]
    total = components.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(solvable & (np.abs(total) > 1e-9), components[..., 0] / total, np.nan)


def pair_shares(table: Floats, distance: int) -> Floats:
    """For every dialogue: the share of its pairs of raters at most `distance` levels apart, and one if it has pairs."""
    both = ~np.isnan(table)[:, :, None] & ~np.isnan(table)[:, None, :]
    both &= ~np.eye(table.shape[1], dtype=bool)
    with np.errstate(invalid="ignore"):
        close = both & (np.abs(table[:, :, None] - table[:, None, :]) <= distance)
    pairs = both.sum(axis=(1, 2))
    return np.column_stack([close.sum(axis=(1, 2)) / np.maximum(pairs, 1), pairs > 0]).astype(float)


def ratio(sums: Floats) -> Floats:
    """First sum over second: the mean share, every dialogue counted once."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


def others(table: Floats, middle: Callable[..., Any]) -> Floats:
    """[dialogues, raters]: mean or median of all other raters, NaN where the rater or all others gave none."""
    found = np.full(table.shape, np.nan)
    for rater in range(table.shape[1]):
        rest = np.delete(table, rater, axis=1)
        rows = ~np.isnan(table[:, rater]) & (~np.isnan(rest)).any(axis=1)
        if rows.any():
            found[rows, rater] = middle(rest[rows], axis=1)
    return found


def consensus_moments(table: Floats) -> Floats:
    """Moments of every rater with the median of the others; a median between two levels stays between them."""
    return moments(table, others(table, np.nanmedian))


def consensus_distances(table: Floats, kind: str) -> Floats:
    """For every dialogue and rater, interleaved: hit (within one level of the others' median) or distance from the
    others' mean, and one where there is such a comparison."""
    middle = others(table, np.nanmean if kind == "mae" else np.nanmedian)
    away = np.abs(table - middle)
    valid = ~np.isnan(away)
    found = np.where(valid, away if kind == "mae" else away <= 1, 0)
    return np.stack([found, valid], axis=-1).reshape(len(table), 2 * table.shape[1]).astype(float)


def mean_ratio(sums: Floats) -> Floats:
    """Mean over raters of first sum over second, raters without a comparison left out."""
    pairs = sums.reshape(*sums.shape[:-1], -1, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = pairs[..., 0] / pairs[..., 1]
    return np.asarray(np.nanmean(shares, axis=-1))
