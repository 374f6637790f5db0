"""Every formula against an independent library or a case worked by hand."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from eval.statistics import (
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


def test_one_shared_card_tells_nothing():
    found = paired_difference({"a": [90.0]}, {"a": [10.0], "b": [5.0]})
    assert (found.p_value, found.interval.mean, found.interval.low, found.only_b) == (1.0, 80.0, None, 1)
