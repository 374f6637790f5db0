"""Every formula against an independent library or a case worked by hand."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, cohen_kappa_score, mean_absolute_error

from eval.statistics import (
    agreement,
    agreement_intervals,
    constant_agreement,
    holm,
    mean_interval,
    paired_difference,
    sign_flip_p,
    smallest_detectable_difference,
    to_percent,
)

LEVELS = range(5)


def cards(values):
    return {f"card-{number}": [value] for number, value in enumerate(values)}


def test_percent_of_the_scales_in_use():
    assert [to_percent(level, (0, 4)) for level in (0, 1, 2.5, 4)] == [0, 25, 62.5, 100]
    assert [to_percent(level, (1, 5)) for level in (1, 3, 5)] == [0, 50, 100]
    assert to_percent(1, (0, 2)) == 50


def test_samples_are_averaged_within_a_card_before_cards_are():
    # Card a has three samples; were dialogues pooled the mean would be (3 + 3 + 3 + 1) / 4 = 2.5.
    assert mean_interval({"a": [3, 3, 3], "b": [1]}).mean == 2.0


def test_interval_is_scipys_bca_over_card_means():
    values = np.random.default_rng(1).normal(2, 0.7, 40)
    found = mean_interval(cards(values), seed=5)
    expected = stats.bootstrap(
        (values,), np.mean, method="BCa", n_resamples=9999, rng=np.random.default_rng(5)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert found.method == "BCa"
    assert found == mean_interval(cards(values), seed=5)


def test_repeating_a_card_adds_no_certainty():
    values = np.random.default_rng(2).normal(2, 0.7, 20)
    once = mean_interval(cards(values))
    tenfold = mean_interval({card: value * 10 for card, value in cards(values).items()})
    assert (tenfold.low, tenfold.high) == pytest.approx((once.low, once.high))
    assert tenfold.n_cards == 20


@pytest.mark.parametrize(
    ("values", "mean", "reason"),
    [
        ({}, None, "no card"),
        ({"a": []}, None, "no card"),
        ({"a": [3]}, 3, "two cards"),
        (cards([2, 2, 2, 2]), 2, "same value"),
    ],
)
def test_no_interval_has_a_reason(values, mean, reason):
    found = mean_interval(values)
    assert (found.mean, found.low, found.high) == (mean, None, None)
    assert reason in found.reason


def test_nan_is_refused_as_a_value():
    with pytest.raises(ValueError, match="not finite"):
        mean_interval({"a": [1.0, float("nan")]})


def test_simulated_coverage_of_the_interval():
    # 300 experiments of 40 cards with a skewed truth; a 95 % interval should hold it in 91..98 % of them.
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(300):
        found = mean_interval(cards(rng.gamma(2.0, 1.0, 40)), seed=seed, resamples=499)
        held += found.low <= 2.0 <= found.high
    assert 0.90 <= held / 300 <= 0.98


def test_pairing_uses_shared_cards_and_counts_the_dropped():
    found = paired_difference({"a": [4], "b": [3], "c": [1]}, {"b": [1], "c": [1, 3], "d": [2], "e": [0]})
    assert found.differences == {"b": 2, "c": -1}
    assert (found.only_a, found.only_b, found.interval.n_cards) == (1, 2, 2)
    assert found.interval.mean == 0.5


def test_pairing_removes_what_the_cards_have_in_common():
    rng = np.random.default_rng(3)
    hardness = rng.normal(2, 1.0, 60)
    a, b = hardness + 0.2 + rng.normal(0, 0.1, 60), hardness + rng.normal(0, 0.1, 60)
    found = paired_difference(cards(a), cards(b))
    assert found.interval.low > 0.1
    assert found.p_value < 0.001
    assert found.detectable < 0.1
    assert stats.ttest_ind(a, b).pvalue > 0.05, "unpaired, the same data show nothing"


def test_no_shared_card_has_no_difference():
    found = paired_difference({"a": [1]}, {"b": [1]})
    assert (found.interval.mean, found.p_value, found.detectable) == (None, None, None)


def test_sign_flip_p_by_enumeration():
    differences = [0.5, 1.0, -0.25, 2.0, 0.75]
    flips = [np.mean(np.multiply(signs, differences)) for signs in product([1, -1], repeat=5)]
    expected = np.mean([abs(flip) >= np.mean(differences) - 1e-12 for flip in flips])
    assert sign_flip_p(differences) == pytest.approx(expected)
    assert sign_flip_p([1, 1, 1, 1, 1]) == pytest.approx(2 / 32)
    assert sign_flip_p([0, 0, 0]) == 1.0


def test_sign_flip_false_alarms():
    rng = np.random.default_rng(4)
    alarms = sum(sign_flip_p(rng.normal(0, 1, 12), resamples=4999) <= 0.05 for _ in range(300))
    assert 4 <= alarms <= 28


def test_holm_by_hand():
    # 0.01·4, 0.03·3 = 0.09, 0.04·2 = 0.08 raised to 0.09, 0.5·1.
    assert holm([0.04, 0.01, 0.5, 0.03]) == pytest.approx([0.09, 0.04, 0.5, 0.09])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.01, None, 0.02]) == pytest.approx([0.02, None, 0.02])
    assert holm([]) == []


def test_smallest_detectable_difference_by_hand_and_by_simulation():
    differences = [1.0, 2.0, 3.0, 4.0]  # s = 1.29099, n = 4, t(.975, 3) = 3.18245, t(.8, 3) = 0.97847
    assert smallest_detectable_difference(differences) == pytest.approx((3.18245 + 0.97847) * 1.29099 / 2, rel=1e-4)
    assert smallest_detectable_difference([1.0]) is None
    assert smallest_detectable_difference([1.0, 1.0]) is None
    rng = np.random.default_rng(6)
    noise = rng.normal(0, 1, (2000, 30))
    effect = (stats.t.ppf(0.975, 29) + stats.t.ppf(0.8, 29)) / np.sqrt(30)
    power = (stats.ttest_1samp(noise + effect, 0, axis=1).pvalue < 0.05).mean()
    assert 0.77 <= power <= 0.83


def rated(n=200, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, n)
    predicted = np.clip(truth + rng.integers(-2, 3, n), 0, 4)
    return truth.tolist(), predicted.tolist()


def test_agreement_is_sklearns():
    truth, predicted = rated()
    found = agreement(truth, predicted, LEVELS)
    assert found.n == 200
    assert found.accuracy == pytest.approx(accuracy_score(truth, predicted))
    assert found.mae == pytest.approx(mean_absolute_error(truth, predicted))
    assert found.within_one == pytest.approx(np.mean(np.abs(np.subtract(truth, predicted)) <= 1))
    expected = cohen_kappa_score(truth, predicted, labels=list(LEVELS), weights="quadratic")
    assert found.kappa == pytest.approx(expected)


def test_kappa_of_levels_that_never_occur_keeps_their_distance():
    # Levels 0 and 4 only: without explicit levels they would look like neighbours.
    truth, predicted = [0, 4, 0, 4], [0, 4, 4, 4]
    expected = cohen_kappa_score(truth, predicted, labels=list(LEVELS), weights="quadratic")
    assert agreement(truth, predicted, LEVELS).kappa == pytest.approx(expected)
    assert agreement(truth, predicted, LEVELS).within_one == 0.75


def test_kappa_without_variance_is_missing_not_a_number():
    found = agreement([3, 3, 3], [3, 3, 3], LEVELS)
    assert found.kappa is None
    assert found.accuracy == 1.0
    assert "same level" in found.reason


def test_level_off_the_scale_is_refused():
    with pytest.raises(ValueError, match="level 5"):
        agreement([1, 2], [1, 5], LEVELS)
    with pytest.raises(ValueError, match="lengths"):
        agreement([1, 2], [1], LEVELS)


def test_agreement_of_nothing():
    found = agreement([], [], LEVELS)
    assert (found.n, found.accuracy, found.kappa) == (0, None, None)
    assert found.reason


def test_constant_prediction_knows_nothing_though_within_one_is_high():
    truth = [3] * 60 + [2] * 25 + [4] * 10 + [0] * 5
    found = constant_agreement(truth, 3, range(100), LEVELS)
    assert found["within_one"].mean == 0.95
    assert found["kappa"].mean == 0
    assert found["within_one"].low < 0.95 < found["within_one"].high


def test_agreement_intervals_resample_groups():
    truth, predicted = rated(120)
    alone = agreement_intervals(truth, predicted, range(120), LEVELS, seed=1)
    # The same pairs, each ten times in one group: no information is gained, so no interval may shrink.
    repeated = agreement_intervals(truth * 10, predicted * 10, list(range(120)) * 10, LEVELS, seed=1)
    for name in ("accuracy", "within_one", "kappa", "mae"):
        assert alone[name].mean == pytest.approx(repeated[name].mean)
        assert (repeated[name].low, repeated[name].high) == pytest.approx((alone[name].low, alone[name].high))
        assert alone[name].low < alone[name].mean < alone[name].high


def test_agreement_interval_is_scipys_own_for_kappa():
    truth, predicted = rated(80)

    def kappa(a, b):
        return cohen_kappa_score(a, b, labels=list(LEVELS), weights="quadratic")

    expected = stats.bootstrap(
        (np.array(truth), np.array(predicted)),
        kappa,
        paired=True,
        vectorized=False,
        n_resamples=999,
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = agreement_intervals(truth, predicted, range(80), LEVELS, seed=1)["kappa"]
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.05)


def test_perfect_agreement_has_no_interval_but_a_reason():
    found = agreement_intervals([0, 1, 2, 3], [0, 1, 2, 3], range(4), LEVELS)
    assert found["accuracy"].mean == 1.0
    assert found["accuracy"].low is None
    assert found["accuracy"].reason
