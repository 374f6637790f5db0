"""Every figure of a scorer against scikit-learn, scipy or a hand-worked case; intervals over groups."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, cohen_kappa_score, confusion_matrix, f1_score, mean_absolute_error

from eval.scorer_figures import (
    FIGURES,
    Predictions,
    Sampled,
    by_median,
    by_mode,
    confusion,
    differences,
    figures,
    numbered,
)

LEVELS = [0, 1, 2, 3, 4]
NAN = float("nan")


def made(n=200, seed=0, levels=5):
    """Levels rated, and distributions that know something of them; some rows have the very same distribution."""
    rng = np.random.default_rng(seed)
    rated = rng.integers(0, levels, n)
    centre = np.clip(rated + rng.normal(0, 1.2, n), 0, levels - 1).round(1)
    raw = np.exp(-((np.arange(levels) - centre[:, None]) ** 2) / 1.5)
    return rated, by_median(raw / raw.sum(axis=1, keepdims=True))


def certain(levels, count=5):
    """All mass on one level each."""
    return by_median(np.eye(count)[levels])


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_sklearn_and_scipy(seed):
    rated, said = made(seed=seed)
    expected = said.probabilities @ LEVELS
    found = {name: interval.mean for name, interval in figures(rated, said, np.arange(200)).items()}
    assert set(found) == set(FIGURES)
    assert found["accuracy"] == pytest.approx(accuracy_score(rated, said.levels))
    assert found["within_one"] == pytest.approx((abs(rated - said.levels) <= 1).mean())
    assert found["mae"] == pytest.approx(mean_absolute_error(rated, said.levels))
    assert found["macro_f1"] == pytest.approx(f1_score(rated, said.levels, average="macro"))
    kappa = cohen_kappa_score(rated, said.levels, labels=LEVELS, weights="quadratic")
    assert found["kappa"] == pytest.approx(kappa)
    assert found["spearman"] == pytest.approx(stats.spearmanr(rated, expected.round(3)).statistic)
    assert found["kendall"] == pytest.approx(stats.kendalltau(rated, expected.round(3)).statistic)
    assert found["bias"] == pytest.approx((expected - rated).mean())


def test_calibration_error_by_hand():
    # Four rows at .6 (one of them right), two at .9 (both right): (4 |.25 - .6| + 2 |1 - .9|) / 6.
    six, nine = [0.6, 0.4], [0.1, 0.9]
    said = by_median(np.array([six, six, six, six, nine, nine]))
    found = figures(np.array([0, 1, 1, 1, 1, 1]), said, np.arange(6))["ece"]
    assert found.mean == pytest.approx((4 * 0.35 + 2 * 0.1) / 6)
    # Certain and always right: the last bin takes in 1.
    assert figures(np.array([0, 1, 0]), certain([0, 1, 0], 2), np.arange(3))["ece"].mean == 0


def test_the_level_is_the_median_as_in_a_judgment():
    from eval.judge import median_level

    rows = np.random.default_rng(3).dirichlet(np.full(5, 0.3), 300)
    rows = np.vstack([rows, [0.5, 0.5, 0, 0, 0], [0, 0, 0, 0.5, 0.5]])
    assert by_median(rows).levels.tolist() == [median_level(row, LEVELS) for row in rows]


def test_the_mode_is_the_most_probable_level():
    rows = np.array([[0.45, 0.1, 0.45], [0.2, 0.3, 0.5], [NAN] * 3])
    assert by_mode(rows).levels[:2].tolist() == [0, 2]
    assert by_median(rows).levels[:2].tolist() == [1, 1]
    assert by_mode(rows).given().tolist() == [True, True, False]


@pytest.mark.parametrize("name", list(FIGURES))
def test_resampled_figures_are_the_figures_of_the_resampled_rows(name):
    """Sums with weights against the rows written out, groups of unequal size."""
    rated, said = made(60, seed=4)
    groups = numbered(np.random.default_rng(5).integers(0, 20, 60))
    sampled = Sampled(rated, said, groups)
    weights = np.random.default_rng(6).multinomial(sampled.groups, np.full(sampled.groups, 1 / sampled.groups), 5)
    found = sampled.figure(name, weights.astype(float))
    for row, value in zip(weights, found, strict=True):
        rows = np.repeat(np.arange(60), row[groups])
        alone = Sampled(rated[rows], said.of(rows), np.zeros(len(rows), dtype=np.int64))
        assert value == pytest.approx(alone.figure(name, np.ones((1, 1)))[0])


def test_intervals_resample_groups():
    rated, said = made(120, seed=1)
    alone = figures(rated, said, np.arange(120), seed=1)
    # The same rows, each ten times in one group: no information is gained, so no interval may shrink.
    rows = np.tile(np.arange(120), 10)
    repeated = figures(rated[rows], said.of(rows), rows, seed=1)
    for name in ("accuracy", "within_one", "kappa", "mae", "bias", "macro_f1", "spearman"):
        assert (repeated[name].low, repeated[name].high) == pytest.approx((alone[name].low, alone[name].high)), name
        assert alone[name].low < alone[name].mean < alone[name].high
        assert repeated[name].n_cards == 120


def test_interval_of_kappa_is_scipys_own():
    rated, said = made(80)

    def kappa(a, b):
        return cohen_kappa_score(a, b, labels=LEVELS, weights="quadratic")

    pairs = (rated, said.levels)
    rng = np.random.default_rng(1)
    expected = stats.bootstrap(pairs, kappa, paired=True, vectorized=False, n_resamples=999, rng=rng)
    found = figures(rated, said, np.arange(80), seed=1)["kappa"]
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval), abs=0.05)


def test_levels_that_never_occur_keep_their_distance():
    # Levels 0 and 4 only: without explicit levels they would look like neighbours.
    rated, said = np.array([0, 4, 0, 4]), certain([0, 4, 4, 4])
    found = figures(rated, said, np.arange(4))
    assert found["kappa"].mean == pytest.approx(
        cohen_kappa_score(rated, said.levels, labels=LEVELS, weights="quadratic")
    )
    assert found["within_one"].mean == 0.75
    assert found["macro_f1"].mean == pytest.approx(f1_score(rated, said.levels, average="macro"))


def test_what_never_varies_has_no_rank_correlation_but_a_reason():
    rated = np.array([3] * 60 + [2] * 25 + [4] * 10 + [0] * 5)
    found = figures(rated, certain([3] * 100), np.arange(100))
    assert found["within_one"].mean == 0.95
    assert found["within_one"].low < 0.95 < found["within_one"].high
    assert found["kappa"].mean == 0
    assert found["spearman"].mean is None
    assert "same level" in found["kendall"].reason
    same = figures(np.full(3, 3), certain([3] * 3), np.arange(3))
    assert same["kappa"].mean is None
    assert same["accuracy"].mean == 1
    assert same["accuracy"].low is None
    assert same["accuracy"].reason


def test_rows_without_a_prediction_are_left_out():
    rated, said = made(40)
    probabilities = said.probabilities.copy()
    probabilities[::4] = NAN
    some = by_median(probabilities)
    kept = np.arange(40) % 4 != 0
    found = figures(rated, some, np.arange(40))
    assert found["accuracy"].n_cards == 30
    assert found["accuracy"].mean == (rated[kept] == said.levels[kept]).mean()
    assert np.array_equal(confusion(rated, some), confusion_matrix(rated[kept], said.levels[kept], labels=LEVELS))
    nothing = Predictions(said.levels, np.full_like(probabilities, NAN))
    assert figures(rated, nothing, np.arange(40))["kappa"].reason == "nothing was predicted"
    assert differences(rated, said, nothing, np.arange(40), ["kappa"])["kappa"].mean is None


def test_differences_are_paired():
    rated, said = made(150, seed=2)
    # Another predictor that is the same but for a few rows: its own interval is wide, the difference's is not.
    levels = said.levels.copy()
    levels[:6] = rated[:6]
    other = certain(levels)
    found = differences(rated, other, said, np.arange(150), ["accuracy", "mae"])["accuracy"]
    alone = figures(rated, said, np.arange(150))["accuracy"]
    assert found.mean == pytest.approx((rated == levels).mean() - (rated == said.levels).mean())
    assert found.high - found.low < (alone.high - alone.low) / 2
    same = differences(rated, said, said, np.arange(150), ["kappa"])["kappa"]
    assert (same.mean, same.low) == (0, None)
