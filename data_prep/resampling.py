"""Bootstrap intervals over dialogues or role cards: BCa, percentile where BCa is undefined, none where none exists."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANY = 5000


@dataclass(frozen=True)
class Limits:
    """Confidence limits; None with a reason where no interval exists."""

    low: float | None = None
    high: float | None = None
    method: str | None = None
    reason: str | None = None


def weights_of(index: NDArray[np.int64], units: int) -> NDArray[np.float64]:
    """[resamples, units]: how often each unit is drawn in [resamples, draws] of their indices."""
    shifted = index + units * np.arange(len(index))[:, None]
    return np.bincount(shifted.ravel(), minlength=units * len(index)).reshape(len(index), units).astype(float)


def bootstrap_interval(
    statistic: Callable[[NDArray[np.int64]], Any],
    estimate: float,
    units: int,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 1999,
    unit: str = "dialogues",
) -> Limits:
    """BCa interval (Efron 1987) of a statistic of unit indices, [resamples, draws] -> [resamples].

    Percentile where BCa is undefined, and beyond MANY units, where the two agree and BCa's jackknife takes a resample a
    unit. None when there are fewer than two units (the reason calls them `unit`), when
    the statistic is undefined in any resample (a figure that may vanish has no honest interval), or when all resamples
    give the same value.
    """
    from scipy.stats import bootstrap

    if units < 2:
        return Limits(reason=f"an interval needs at least two {unit}")
    with warnings.catch_warnings():
        # Degenerate data are told apart below; the libraries' warnings would only repeat it on the terminal.
        warnings.simplefilter("ignore")
        result = bootstrap(
            (np.arange(units),),
            # scipy asks for the whole sample, for resamples and for the jackknife: [draws] or [..., draws].
            lambda index, axis: np.asarray(statistic(index.reshape(-1, index.shape[-1]))).reshape(index.shape[:-1]),
            vectorized=True,
            n_resamples=resamples,
            batch=max(1, 4_000_000 // units),
            confidence_level=confidence,
            method="BCa" if units <= MANY else "percentile",
            rng=np.random.default_rng(seed),
        )
    drawn = np.asarray(result.bootstrap_distribution)
    undefined = int((~np.isfinite(drawn)).sum())
    if undefined:
        return Limits(reason=f"undefined in {undefined} of {resamples} resamples, so no interval")
    if np.ptp(drawn) < 1e-12:
        return Limits(reason="every resample gives the same value")
    low, high = result.confidence_interval
    if np.isfinite(low) and np.isfinite(high):
        return Limits(float(low), float(high), "BCa" if units <= MANY else "percentile")
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Limits(float(low), float(high), "percentile")
