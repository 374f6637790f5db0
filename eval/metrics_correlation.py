"""Do automatic metrics follow human ratings? Rank correlations of a metric with ratings, dialogue by dialogue.

A metric may look right only because it tells models apart, or only because it counts words. So there are four figures:
over all replies, within models, between models, and with length held constant. Ranks are those of the whole sample;
intervals resample dialogues, and the same dialogue answered by several models is drawn as one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.metrics_formulas import Floats, interval_of
from eval.statistics import Interval

FEWEST_MODELS = 3


@dataclass(frozen=True)
class RatedReplies:
    """One model's replies in one dialogue: a metric's value, the mean rating, and tokens a reply."""

    model: str
    dialogue: str
    metric: float
    rating: float
    length: float


@dataclass(frozen=True)
class Correlation:
    """Spearman correlations, -1..1."""

    overall: Interval
    within: Interval
    """Of ranks within each model, all models together: what is left when no model is better than another."""
    between: Interval
    """Of the models' means."""
    partial: Interval
    """Over all, with length held constant."""
    replies: int
    models: int


def correlation(rows: Sequence[RatedReplies], seed: int = 0) -> Correlation:
    """Figures that do not exist say why. Checked against scipy and pingouin in the tests."""
    if not rows:
        none = Interval(None, None, None, 0, reason="there are no rated replies")
        return Correlation(none, none, none, none, 0, 0)
    models, dialogues = (_numbered([getattr(row, name) for row in rows]) for name in ("model", "dialogue"))
    values = np.array([[row.metric, row.rating, row.length] for row in rows], dtype=float)
    count = int(models.max()) + 1
    ranked = _ranks(values)
    inside = ranked.copy()
    for model in range(count):
        chosen = models == model
        inside[chosen] = _ranks(values[chosen]) / (chosen.sum() + 1)
    alike = "every reply has the same metric or the same rating"
    return Correlation(
        overall=_figure(_moments(ranked, dialogues), _pearson, seed, alike),
        within=_figure(_by_model(moments_of(inside), models, dialogues, count), _within(count), seed, alike),
        between=_between(values, models, dialogues, count, seed),
        partial=_figure(_moments(ranked, dialogues), _partial, seed, f"{alike}, or the ranks are those of length"),
        replies=len(rows),
        models=count,
    )


def _numbered(names: Sequence[str]) -> NDArray[np.int64]:
    return np.unique(np.array(names, dtype=object), return_inverse=True)[1].astype(np.int64)


def _ranks(values: Floats) -> Floats:
    from scipy.stats import rankdata

    return np.asarray(rankdata(values, axis=0))


def _figure(sums: Floats, formula: Callable[[Floats], Floats], seed: int, why: str) -> Interval:
    found = interval_of(sums, formula, seed)
    if found.mean is None:
        reason = "fewer than three rated replies" if sums[..., 0].sum() < 3 else why
        return Interval(None, None, None, found.n_cards, reason=reason)
    return found


def moments_of(values: Floats) -> Floats:
    """[rows, 10]: 1, x, y, z, and their products xx, yy, zz, xy, xz, yz."""
    x, y, z = values.T
    return np.stack([np.ones_like(x), x, y, z, x * x, y * y, z * z, x * y, x * z, y * z], axis=-1)


def _summed(rows: Floats, places: NDArray[np.int64], size: int) -> Floats:
    found = np.zeros((size, rows.shape[1]))
    np.add.at(found, places, rows)
    return found


def _moments(values: Floats, dialogues: NDArray[np.int64]) -> Floats:
    return _summed(moments_of(values), dialogues, int(dialogues.max()) + 1)


def _by_model(rows: Floats, models: NDArray[np.int64], dialogues: NDArray[np.int64], count: int) -> Floats:
    """[dialogues, models × 10]."""
    size = int(dialogues.max()) + 1
    return _summed(rows, dialogues * count + models, size * count).reshape(size, -1)


def centred(sums: Floats) -> Any:
    """Σ of squares and products about the mean: xx, yy, zz, xy, xz, yz of sums [..., 10]."""
    n = np.maximum(sums[..., 0], 1e-12)
    x, y, z = (sums[..., at] for at in (1, 2, 3))
    pairs = ((x, x), (y, y), (z, z), (x, y), (x, z), (y, z))
    return [sums[..., 4 + at] - a * b / n for at, (a, b) in enumerate(pairs)]


def _ratio(product: Any, one: Any, other: Any) -> Floats:
    spread = one * other
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((one > 1e-9) & (other > 1e-9), product / np.sqrt(np.maximum(spread, 1e-18)), np.nan)


def _pearson(sums: Floats) -> Floats:
    xx, yy, _, xy, _, _ = centred(sums)
    return np.where(sums[..., 0] >= 3, _ratio(xy, xx, yy), np.nan)


def _partial(sums: Floats) -> Floats:
    """(r_xy - r_xz r_yz) / sqrt((1 - r_xz²)(1 - r_yz²)), of ranks."""
    xx, yy, zz, xy, xz, yz = centred(sums)
    # Without any spread of length there is nothing to hold constant.
    r_xy = _ratio(xy, xx, yy)
    r_xz, r_yz = (np.where(zz > 1e-9, _ratio(product, one, zz), 0.0) for product, one in ((xz, xx), (yz, yy)))
    left = (1 - r_xz**2) * (1 - r_yz**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(left > 1e-9, (r_xy - r_xz * r_yz) / np.sqrt(np.maximum(left, 1e-18)), np.nan)
    return np.where(sums[..., 0] >= 3, found, np.nan)


def _within(count: int) -> Callable[[Floats], Floats]:
    def formula(sums: Floats) -> Floats:
        parts = sums.reshape(*sums.shape[:-1], count, 10)
        xx, yy, _, xy, _, _ = (part.sum(axis=-1) for part in centred(parts))
        return np.where(parts[..., 0].sum(axis=-1) >= 3, _ratio(xy, xx, yy), np.nan)

    return formula


def _between(
    values: Floats, models: NDArray[np.int64], dialogues: NDArray[np.int64], count: int, seed: int
) -> Interval:
    if count < FEWEST_MODELS:
        return Interval(None, None, None, count, reason=f"needs at least {FEWEST_MODELS} models, here {count}")

    def formula(sums: Floats) -> Floats:
        parts = sums.reshape(*sums.shape[:-1], count, 10)
        with np.errstate(invalid="ignore", divide="ignore"):
            x, y = (_ranks_last(parts[..., at] / parts[..., 0]) for at in (1, 2))
        x, y = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
        return _ratio((x * y).sum(axis=-1), (x * x).sum(axis=-1), (y * y).sum(axis=-1))

    return _figure(
        _by_model(moments_of(values), models, dialogues, count), formula, seed, "all models have the same mean"
    )


def _ranks_last(values: Floats) -> Floats:
    from scipy.stats import rankdata

    return np.asarray(rankdata(values, axis=-1, nan_policy="propagate"))
