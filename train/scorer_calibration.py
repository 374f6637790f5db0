"""Calibration of finished heads on validation ratings: how sharp the distributions are, and where levels begin.

p_k becomes p_k^sharpness · exp(shift_k), normalised. `temperature` fits the sharpness of each dimension (Guo et al.
2017, with 1 / sharpness as the temperature); `thresholds` also the shifts, which move the odds between neighbouring
levels. Both by likelihood of the validation ratings, with a weak prior that nothing changes, so that a level nobody
gave there keeps its place.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

Floats = NDArray[np.float64]
LIMIT = 3.0
"""Of the log of the sharpness and of each shift."""


def fit_calibration(logs: Floats, counts: Floats, how: Literal["temperature", "thresholds"]) -> tuple[float, Floats]:
    """Sharpness and shifts [levels] of one dimension.

    Args:
        logs: log probabilities [dialogues, levels].
        counts: weight of the ratings at each level [dialogues, levels].
    """
    levels = logs.shape[1]
    size = 1 + (levels if how == "thresholds" else 0)

    def cost(values: Floats) -> tuple[float, Floats]:
        sharpness, shifts = np.exp(values[0]), values[1:] if how == "thresholds" else np.zeros(levels)
        calibrated = log_softmax(logs * sharpness + shifts, axis=1)
        rest = counts.sum(1, keepdims=True) * np.exp(calibrated) - counts  # gradient by what is in the softmax
        gradient = np.concatenate([[(rest * logs).sum() * sharpness], rest.sum(0) if size > 1 else []])
        # The prior is standard normal: its gradient is the values themselves.
        return float(-(counts * calibrated).sum() + (values**2).sum() / 2), gradient + values

    found = minimize(cost, np.zeros(size), jac=True, method="L-BFGS-B", bounds=[(-LIMIT, LIMIT)] * size).x
    return float(np.exp(found[0])), np.asarray(found[1:] if size > 1 else np.zeros(levels))


def calibrate(heads: Any, how: Literal["temperature", "thresholds"], logs: Floats, labels: Floats) -> None:
    """Fits and sets the calibration of all dimensions of uncalibrated heads.

    logs [dialogues, dimensions, most levels], labels [dialogues, raters, dimensions] with NaN where there is none.
    """
    import torch

    for dimension, levels in enumerate(heads.level_counts):
        counts = (labels[:, :, dimension, None] == np.arange(levels)).sum(1).astype(float)
        sharpness, shifts = fit_calibration(logs[:, dimension, :levels].astype(float), counts, how)
        with torch.no_grad():
            heads.sharpness[dimension] = sharpness
            heads.shifts[dimension, :levels] = torch.as_tensor(shifts, dtype=heads.shifts.dtype)
