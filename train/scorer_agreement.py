"""How far a scorer's distributions agree with raters: the figures that training chooses by and that its card states.

`esckit evaluate` measures more, beside baselines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.agreement_formulas import kappas, moments
from data_prep.resampling import Limits, bootstrap_interval, weights_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DimensionAgreement:
    """Quadratic weighted kappa of the median level with every rating, with limits over dialogues."""

    ratings: int
    dialogues: int
    kappa: float | None
    """None where raters and scorer say one level only."""
    low: float | None
    high: float | None
    reason: str | None
    """Why there is no interval."""


def kappa_parts(levels: Floats, labels: Floats) -> Floats:
    """[dialogues, 6] moments of (predicted level, rating) pairs; levels [dialogues], labels [dialogues, raters] with
    NaN where there is no rating. Summed over dialogues they give the kappa."""
    predicted = np.broadcast_to(levels[:, None], labels.shape)
    parts = moments(predicted.reshape(-1, 1), labels.reshape(-1, 1))
    return np.asarray(parts.reshape(*labels.shape, 6).sum(axis=1))


def mean_kappa(levels: Floats, labels: Floats) -> float:
    """Mean over the dimensions of the kappa of levels [dialogues, dimensions] with labels [dialogues, raters,
    dimensions]. A dimension whose kappa is undefined counts as 0: a scorer that cannot tell dialogues apart."""
    found = [kappas(kappa_parts(levels[:, d], labels[:, :, d]).sum(0))[0] for d in range(levels.shape[1])]
    return float(np.mean(np.nan_to_num(found)))


def agreement_table(names: Sequence[str], levels: Floats, labels: Floats) -> dict[str, DimensionAgreement]:
    """The figures of every dimension; the shapes are those of `mean_kappa`."""
    return {name: _dimension(levels[:, d], labels[:, :, d]) for d, name in enumerate(names)}


def _dimension(levels: Floats, labels: Floats) -> DimensionAgreement:
    rated = ~np.isnan(labels).all(axis=1)
    parts = kappa_parts(levels[rated], labels[rated])
    whole = float(kappas(parts.sum(0))[0])
    if np.isnan(whole):
        limits = Limits(reason="scorer and raters say one level only")
    else:

        def statistic(index: NDArray[np.int64]) -> Any:
            return kappas(weights_of(index, len(parts)) @ parts)[:, 0]

        limits = bootstrap_interval(statistic, whole, len(parts))
    count = int((~np.isnan(labels)).sum())
    value = None if np.isnan(whole) else whole
    return DimensionAgreement(count, int(rated.sum()), value, limits.low, limits.high, limits.reason)
