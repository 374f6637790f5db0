"""What held-out ratings are used for: kappa against an independent library, calibration against what was planted."""

import numpy as np
import pytest

from train.scorer_agreement import agreement_table, mean_kappa
from train.scorer_calibration import fit_calibration


def test_kappa_equals_an_independent_library():
    from sklearn.metrics import cohen_kappa_score

    generator = np.random.default_rng(0)
    levels = generator.integers(0, 5, (40, 2)).astype(float)
    labels = np.clip(levels[:, None, :] + generator.integers(-1, 2, (40, 3, 2)), 0, 4).astype(float)
    labels[generator.random(labels.shape) < 0.3] = np.nan
    labels[0] = np.nan
    expected = []
    for d in range(2):
        pairs = [(levels[i, d], v) for (i, _), v in np.ndenumerate(labels[:, :, d]) if not np.isnan(v)]
        expected.append(cohen_kappa_score(*zip(*pairs, strict=True), weights="quadratic"))
    assert mean_kappa(levels, labels) == pytest.approx(np.mean(expected), abs=1e-9)
    table = agreement_table(["a", "b"], levels, labels)
    assert table["b"].kappa == pytest.approx(expected[1])
    assert table["b"].low < expected[1] < table["b"].high
    flat = agreement_table(["a"], np.zeros((5, 1)), np.zeros((5, 2, 1)))["a"]
    assert (flat.kappa, flat.low) == (None, None)
    assert mean_kappa(np.zeros((5, 1)), np.zeros((5, 2, 1))) == 0


# ---- calibration


def test_temperature_finds_the_sharpness_that_was_planted():
    generator = np.random.default_rng(0)
    true = np.log(generator.dirichlet(np.ones(5), 4000))
    drawn = np.array([generator.choice(5, p=np.exp(row)) for row in true])
    counts = np.eye(5)[drawn]
    sharpness, shifts = fit_calibration(
        3 * true - np.log(np.exp(3 * true).sum(1, keepdims=True)), counts, "temperature"
    )
    assert sharpness == pytest.approx(1 / 3, abs=0.03)
    assert not shifts.any()


def test_thresholds_move_levels_that_are_said_too_seldom():
    generator = np.random.default_rng(0)
    true = np.log(generator.dirichlet(np.ones(3), 4000))
    counts = np.eye(3)[[generator.choice(3, p=np.exp(row)) for row in true]]
    planted = np.array([0.8, -0.8, 0.0])
    off = true - planted
    off -= np.log(np.exp(off).sum(1, keepdims=True))
    sharpness, shifts = fit_calibration(off, counts, "thresholds")
    assert sharpness == pytest.approx(1, abs=0.1)
    assert shifts - shifts[2] == pytest.approx(planted - planted[2], abs=0.15)


def test_calibration_of_nothing_changes_nothing():
    assert fit_calibration(np.log(np.full((4, 5), 0.2)), np.zeros((4, 5)), "thresholds")[0] == pytest.approx(1)
