"""Ranks, bounds, superiority, variance components, pairwise strengths: against libraries, by hand, by simulation."""

import numpy as np
import pytest

from data_prep.records import RoleCard
from eval.slices import make_slices, memberships
from eval.statistics import (
    mean_interval,
    paired_difference,
    probability_of_superiority,
    sign_flip_family,
    sign_flip_p,
    worst_case_bounds,
)
from eval.statistics_pairwise import PairOutcome, bradley_terry
from eval.statistics_ranks import letters, rank_intervals
from eval.statistics_variance import Rated, variance_components


def made_card(name, language="en", source="made", **fields):
    return RoleCard(id=name, language=language, source=source, **fields)


def cards(values):
    return {f"card-{number}": [value] for number, value in enumerate(values)}


# --- ranks


def test_rank_intervals_by_hand():
    # 0 beats 2 and 3, 1 beats 3.
    found = rank_intervals(4, [(0, 2), (0, 3), (1, 3)])
    assert [(one.low, one.high) for one in found] == [(1, 2), (1, 3), (2, 4), (3, 4)]
    assert [one.group for one in found] == ["a", "ab", "bc", "c"]


@pytest.mark.parametrize("seed", range(30))
def test_letters_are_shared_exactly_by_pairs_that_are_not_clear(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 9))
    clear = [(a, b) for a in range(count) for b in range(a + 1, count) if generator.random() < 0.4]
    groups = letters(count, clear)
    for a in range(count):
        for b in range(a + 1, count):
            assert bool(set(groups[a]) & set(groups[b])) == ((a, b) not in clear)
    assert all(groups)


# --- superiority and bounds


def test_superiority_is_the_mann_whitney_measure_of_pairs():
    assert probability_of_superiority([1, 2, 0, -1]).mean == 0.625
    alike = probability_of_superiority([1.0, 2.0, 3.0])
    assert (alike.mean, alike.low) == (1.0, None)
    assert "same value" in alike.reason


def test_superiority_says_little_where_the_mean_difference_is_one_cards():
    a, b = cards([0.0] * 9 + [50.0]), cards([1.0] * 9 + [0.0])
    found = paired_difference(a, b)
    assert found.interval.mean == pytest.approx(4.1)
    assert found.superiority.mean == pytest.approx(0.1)


def test_worst_case_bounds_by_hand():
    # Card a: 80 and one missing; card b: 40; card c: one missing.
    found = worst_case_bounds({"a": [80], "b": [40]}, {"a": 1, "c": 1}, 0, 100)
    assert found == pytest.approx(((40 + 40 + 0) / 3, (90 + 40 + 100) / 3))
    assert worst_case_bounds({"a": [80]}, {}, 0, 100) == (80, 80)
    assert worst_case_bounds({}, {}, 0, 100) is None


# --- many tests at once


def test_a_family_of_tests_has_the_p_values_of_single_ones_and_finer():
    generator = np.random.default_rng(8)
    tests = [
        {f"c{n}": float(generator.normal(shift, 5)) for n in range(size)}
        for shift, size in [(0, 40), (1, 40), (2, 30), (9, 40), (3, 6)]
    ]
    found = sign_flip_family(tests, resamples=40_000)
    single = [sign_flip_p(list(test.values()), resamples=39_999) for test in tests]
    assert found == pytest.approx(single, abs=0.01)
    assert found[4] == single[4], "few cards: all flips are made"
    assert found[3] == pytest.approx(1 / 40_001), "below what 9,999 flips can show"
    assert sign_flip_family([{}]) == [None]


# --- variance components


def test_components_equal_reml_on_balanced_data():
    import pandas as pd
    from statsmodels.regression.mixed_linear_model import MixedLM

    generator = np.random.default_rng(3)
    rows = [
        (f"c{card}", f"c{card}#{sample}", 50 + effect + generator.normal(0, 4))
        for card, effect in enumerate(generator.normal(0, 8, 40))
        for sample in range(3)
    ]
    found = variance_components([Rated(card, dialogue, "j", value) for card, dialogue, value in rows])
    frame = pd.DataFrame(rows, columns=["card", "dialogue", "value"])
    model = MixedLM.from_formula("value ~ 1", frame, groups="card").fit(reml=True)
    assert found.card == pytest.approx(float(model.cov_re.iloc[0, 0]), rel=0.01)
    assert found.sample == pytest.approx(float(model.scale), rel=0.01)
    assert (found.judge, found.rest) == (None, None)


def test_components_are_right_on_average_with_judges_and_unequal_cards():
    generator = np.random.default_rng(4)
    found = []
    for _ in range(300):
        judges = generator.normal(0, 3, 4)
        rows = []
        for card, size in enumerate([1, 2, 3, 1, 4, 2, 2, 3, 1, 1]):
            effect = generator.normal(0, 6)
            for sample in range(size):
                own = generator.normal(0, 4)
                rows += [
                    Rated(f"{card}", f"{card}#{sample}", f"j{number}", effect + own + judge + generator.normal(0, 2))
                    for number, judge in enumerate(judges)
                ]
        one = variance_components(rows)
        found.append((one.card, one.sample, one.judge, one.rest))
    # A true value of 36 with ten cards is estimated with an error of about half of itself; the mean of 300 is not.
    assert np.mean(found, axis=0) == pytest.approx([36, 16, 9, 4], rel=0.15)


def test_what_is_not_repeated_is_unknown_and_below_zero_is_said():
    once = variance_components([Rated(str(card), str(card), "j", float(card)) for card in range(5)])
    assert (once.card, once.sample, once.judge) == (None, None, None)
    apart = [Rated(card, f"{card}{s}", "j", value) for card in "ab" for s, value in enumerate([0.0, 10.0])]
    assert variance_components(apart).below_zero == ("card",)
    assert variance_components(apart).card == 0
    with pytest.raises(ValueError, match="two values"):
        variance_components([Rated("a", "a0", "j", 1.0)] * 2)


# --- pairwise


def test_two_supporters_have_the_strengths_of_their_odds():
    # 30 wins to 10 without ties: ln 3 apart.
    rows = [PairOutcome(f"{n}", "x", "y", "a" if n < 30 else "b") for n in range(40)]
    found = bradley_terry(rows)
    assert found.strengths["x"].mean - found.strengths["y"].mean == pytest.approx(np.log(3), abs=1e-3)
    assert (found.wins("x", "y"), found.ties) == (pytest.approx(0.75, abs=1e-3), 0)
    assert found.strengths["x"].low > 0


def test_davidsons_tie_parameter_by_hand():
    # Equal strengths: P(tie) = ν / (2 + ν); 20 of 40 are ties, so ν = 2.
    rows = [PairOutcome(f"{n}", "x", "y", ["a", "b", "tie", "tie"][n % 4]) for n in range(40)]
    found = bradley_terry(rows)
    assert found.ties == pytest.approx(2, abs=1e-3)
    assert found.strengths["x"].mean == pytest.approx(0, abs=1e-6)


def test_strengths_are_found_again():
    true, generator, rows = {"u": 0.8, "v": 0.0, "w": -0.8}, np.random.default_rng(5), []
    for n in range(600):
        a, b = generator.choice(sorted(true), 2, replace=False)
        one, other = np.exp(true[a]), np.exp(true[b])
        weights = np.array([one, 0.7 * np.sqrt(one * other), other])
        rows.append(PairOutcome(f"{n}", a, b, generator.choice(["a", "tie", "b"], p=weights / weights.sum())))
    found = bradley_terry(rows, resamples=100)
    assert {name: one.mean for name, one in found.strengths.items()} == pytest.approx(true, abs=0.2)
    assert found.ties == pytest.approx(0.7, abs=0.15)


def test_no_strength_where_none_exists():
    never = bradley_terry([PairOutcome("1", "x", "y", "a"), PairOutcome("1", "u", "v", "b")])
    assert "never met" in never.reason
    swept = bradley_terry([PairOutcome(f"{n}", "x", "y", "a") for n in range(9)])
    assert "won or lost all" in swept.reason
    assert swept.strengths["x"].mean is None
    assert swept.wins("x", "y") is None
    with pytest.raises(ValueError, match="itself"):
        bradley_terry([PairOutcome("1", "x", "x", "tie")])


# --- slices


def test_slices_hold_each_card_once_a_kind_and_leave_out_kinds_of_one_value():
    made = [
        made_card(f"{n}", language=["en", "zh"][n % 2], source=["esconv", "other"][n < 4], category=("work",))
        for n in range(10)
    ]
    points = [{card.id: [float(n)] for n, card in enumerate(made)}, {card.id: [0.0] for card in made}]
    found = make_slices([*made, *made], points)
    assert {(one.kind, one.value): one.cards for one in found} == {
        ("language", "en"): 5,
        ("language", "zh"): 5,
        ("source", "esconv"): 6,
        ("source", "other"): 4,
        ("ESConv card", "yes"): 6,
        ("ESConv card", "no"): 4,
    }
    zh = next(one for one in found if one.value == "zh")
    assert zh.means[0].mean == 5
    assert zh.behind[1].interval.mean == 5
    assert ("crisis card", "yes") in memberships(made_card("x", problem="I want to end my life"))


# --- coverage by simulation


def test_intervals_cover_and_tests_hold_their_level():
    generator = np.random.default_rng(6)
    covered = rejected = found_true = 0
    for run in range(200):
        base = generator.normal(50, 10, 40)
        a, b = base + generator.normal(0, 6, 40), base + generator.normal(0, 6, 40)
        null = paired_difference(cards(a), cards(b), seed=run, resamples=499)
        covered += null.interval.low <= 0 <= null.interval.high
        rejected += null.p_value < 0.05
        found_true += paired_difference(cards(a + 4), cards(b), seed=run, resamples=499).p_value < 0.05
    # 200 draws: the 99.9 % range around .95 is .89 to .99, around .05 it is .01 to .11.
    assert 0.89 <= covered / 200 <= 0.99
    assert 0.01 <= rejected / 200 <= 0.11
    # The smallest difference found with probability .8 is about 3.9 points here.
    assert 0.7 <= found_true / 200 <= 0.92


def test_mean_interval_covers_for_skewed_scores():
    generator = np.random.default_rng(7)
    truth = 100 * 5 / 6  # mean of Beta(5, 1)
    hits = 0
    for run in range(200):
        found = mean_interval(cards(100 * generator.beta(5, 1, 60)), seed=run, resamples=499)
        hits += found.low <= truth <= found.high
    assert 0.88 <= hits / 200 <= 0.99
