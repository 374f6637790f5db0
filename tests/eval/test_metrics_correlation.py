"""Correlations of metrics with ratings against scipy and pingouin, and on data made to mislead."""

import numpy as np
import pandas as pd
import pingouin
import pytest
from scipy.stats import spearmanr

from eval.metrics_correlation import RatedReplies, correlation


def rows_of(metric, rating, length, model=None, dialogue=None):
    model = model if model is not None else ["m"] * len(metric)
    dialogue = dialogue if dialogue is not None else [f"d{at}" for at in range(len(metric))]
    columns = zip(model, dialogue, metric, rating, length, strict=True)
    return [RatedReplies(str(m), str(d), float(x), float(y), float(z)) for m, d, x, y, z in columns]


def test_overall_and_partial_are_those_of_scipy_and_pingouin():
    draws = np.random.default_rng(0)
    length = draws.integers(5, 40, 80)
    metric = length / 10 + draws.normal(size=80)
    rating = np.clip(np.round(length / 12 + draws.normal(size=80)), 0, 4)
    found = correlation(rows_of(metric, rating, length))
    assert found.overall.mean == pytest.approx(spearmanr(metric, rating).statistic)
    frame = pd.DataFrame({"x": metric, "y": rating, "z": length})
    expected = pingouin.partial_corr(frame, "x", "y", "z", method="spearman")["r"].iloc[0]
    assert found.partial.mean == pytest.approx(expected, abs=1e-9)
    assert found.overall.low < found.overall.mean < found.overall.high
    # Both follow length alone: without it little is left.
    assert found.overall.low > 0.1
    assert found.partial.low < 0 < found.partial.high
    assert "needs at least 3 models, here 1" in found.between.reason
    assert found.within.mean == pytest.approx(found.overall.mean)


def test_a_metric_that_only_tells_models_apart_has_nothing_within():
    draws = np.random.default_rng(1)
    model = np.repeat(np.arange(5), 60)
    dialogue = np.tile(np.arange(60), 5)
    metric, rating = model + draws.normal(size=300) * 0.5, model + draws.normal(size=300) * 0.5
    found = correlation(rows_of(metric, rating, draws.normal(size=300), model, dialogue))
    assert found.overall.low > 0.6
    assert found.between.mean == pytest.approx(1)
    assert found.within.low < 0 < found.within.high
    assert found.overall.n_cards == 60  # dialogues, not replies


def test_a_metric_that_follows_ratings_within_models_and_not_between():
    draws = np.random.default_rng(2)
    model = np.repeat(np.arange(4), 50)
    quality = draws.normal(size=200)
    metric = quality + 3 * np.array([0, 1, 2, 3])[model]
    rating = quality + 3 * np.array([3, 2, 1, 0])[model] + draws.normal(size=200) * 0.1
    found = correlation(rows_of(metric, rating, draws.normal(size=200), model, np.tile(np.arange(50), 4)))
    assert found.within.low > 0.9
    assert found.between.mean == pytest.approx(-1)
    assert found.overall.mean < 0


def test_what_does_not_exist_says_why():
    same = correlation(rows_of([1, 2, 3, 4], [2, 2, 2, 2], [5, 6, 7, 8]))
    assert same.overall.mean is None
    assert "same rating" in same.overall.reason
    few = correlation(rows_of([1, 2], [2, 1], [5, 6]))
    assert "fewer than three" in few.overall.reason
    none = correlation([])
    assert none.overall.mean is None
    assert none.models == 0
    assert correlation(rows_of([1, 2, 3, 4], [1, 3, 2, 4], [7, 7, 7, 7])).partial.mean == pytest.approx(0.8)
