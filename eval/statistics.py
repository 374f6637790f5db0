"""The statistics of a report: means over cards, paired differences, corrections.

The unit is the role card (or another group): samples of one card are averaged first and cards are resampled, because
dialogues of one card resemble each other and treating them as independent makes intervals too narrow. Everything
is pure: values in, values out, seeded. A figure that does not exist is None, with the reason beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_prep.resampling import bootstrap_interval

Floats = NDArray[np.float64]
RESAMPLES = 9999


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence limits; `n_cards` is the number of independent units behind it.

    `low` and `high` are None where no interval exists; `reason` then says why. `method` is the bootstrap used:
    "BCa" (Efron 1987), or "percentile" where the BCa correction is undefined for the data.
    """

    mean: float | None
    low: float | None
    high: float | None
    n_cards: int
    method: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class PairedDifference:
    """Supporter a minus supporter b, card by card."""

    interval: Interval
    p_value: float | None
    """Two-sided sign-flip permutation test; exact up to 13 cards, 9,999 random flips beyond."""
    detectable: float | None
    """Smallest difference that would probably be found: see `smallest_detectable_difference`."""
    only_a: int
    """Cards dropped because only a has values for them."""
    only_b: int
    differences: dict[str, float] = field(repr=False)
    """Difference of every card used."""
    superiority: Interval = field(default_factory=lambda: Interval(None, None, None, 0, reason="no card has a value"))
    """Probability, in 0..1, that a does better than b on a card: see `probability_of_superiority`."""


def to_percent(level: float, scale: tuple[int, int]) -> float:
    """A level of `scale` on 0..100: the lowest level is 0, the highest 100 (on 0..4: level × 25, as in ESC-Eval)."""
    low, high = scale
    return (level - low) / (high - low) * 100


def card_means(values_per_card: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean of the samples of every card that has at least one. Raises ValueError for NaN or infinity."""
    means = {card: float(np.mean(values)) for card, values in values_per_card.items() if len(values)}
    wrong = [card for card, mean in means.items() if not np.isfinite(mean)]
    if wrong:
        raise ValueError(f"card {wrong[0]!r} has a value that is not finite; leave missing values out")
    return means


def mean_interval(
    values_per_card: Mapping[str, Sequence[float]],
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean over cards, each card counted once, with a BCa bootstrap interval over cards."""
    means = np.array(list(card_means(values_per_card).values()))
    return _mean_of(means, confidence, seed, resamples)


def paired_difference(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
    test: bool = True,
) -> PairedDifference:
    """Mean of (a - b) over the cards that both have, with a BCa interval and a sign-flip permutation p value.

    Without `test` there is no p value: for figures that are none, or tested with others (`sign_flip_family`).

    Flipping the sign of a card's difference is exchanging the two supporters on that card, which changes nothing
    if they are equally good (Fisher's randomisation test for pairs).
    """
    means_a, means_b = card_means(a), card_means(b)
    differences = {card: mean - means_b[card] for card, mean in means_a.items() if card in means_b}
    values = np.array(list(differences.values()))
    return PairedDifference(
        interval=_mean_of(values, confidence, seed, resamples),
        p_value=sign_flip_p(values, seed, resamples) if test else None,
        detectable=smallest_detectable_difference(values),
        only_a=len(means_a) - len(differences),
        only_b=len(means_b) - len(differences),
        differences=differences,
        superiority=probability_of_superiority(values, confidence, seed, resamples),
    )


def probability_of_superiority(
    differences: Sequence[float] | Floats, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Share of cards on which a is better, a tie counted half: P(d > 0) + P(d = 0)/2, paired (Grissom and Kim 2012,
    Effect Sizes for Research, chapter 6). 0.5 where neither is better."""
    values = np.asarray(differences, dtype=float)
    return _mean_of(np.where(np.abs(values) < 1e-9, 0.5, values > 0), confidence, seed, resamples)


def worst_case_bounds(
    values_per_card: Mapping[str, Sequence[float]], missing_per_card: Mapping[str, int], low: float, high: float
) -> tuple[float, float] | None:
    """Mean over cards if every missing value were `low`, and if it were `high` (Manski 1989): nothing is assumed of why
    they are missing. None where no card has a value or a missing one."""
    cards = [card for card in {**values_per_card, **missing_per_card} if _size(values_per_card, missing_per_card, card)]
    if not cards:
        return None
    ends = []
    for filled in (low, high):
        ends.append(
            sum(
                (sum(values_per_card.get(card, ())) + filled * missing_per_card.get(card, 0))
                / _size(values_per_card, missing_per_card, card)
                for card in cards
            )
            / len(cards)
        )
    return ends[0], ends[1]


def _size(values: Mapping[str, Sequence[float]], missing: Mapping[str, int], card: str) -> int:
    return len(values.get(card, ())) + missing.get(card, 0)


def sign_flip_p(differences: Sequence[float] | Floats, seed: int = 0, resamples: int = RESAMPLES) -> float | None:
    """Two-sided p value of "the mean difference is 0" by flipping signs; None without differences.

    All 2^n flips are made while they are at most `resamples`; otherwise `resamples` random ones.
    """
    from scipy.stats import permutation_test

    values = np.asarray(differences, dtype=float)
    if len(values) == 0:
        return None
    # Flipping all signs at once changes nothing of the size: with one card both flips are as large as what was seen.
    if not values.any() or len(values) == 1:
        return 1.0
    result = permutation_test(
        (values,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=1000,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def sign_flip_family(
    tests: Sequence[Mapping[str, float]], seed: int = 0, resamples: int = RESAMPLES
) -> list[float | None]:
    """`sign_flip_p` of many tests at once, by card, with the same random flips for all of them.

    A correction over m tests multiplies p by up to m, and no p of random flips lies below 1 / (resamples + 1): a large
    family needs more flips than a single test, and one matrix product makes them for all. A card that a test lacks
    counts as a difference of 0, which changes neither the sum nor any flipped one.
    """
    cards = sorted({card for test in tests for card in test})
    exact = [2 ** len(test) <= resamples for test in tests]
    found = [
        sign_flip_p(list(test.values()), seed, resamples) if few else None
        for test, few in zip(tests, exact, strict=True)
    ]
    many = [place for place, few in enumerate(exact) if not few]
    if not many:
        return found
    table = np.array([[tests[place].get(card, 0.0) for place in many] for card in cards])
    seen = np.abs(table.sum(axis=0)) - 1e-9 * np.abs(table).sum(axis=0)
    generator = np.random.default_rng(seed)
    as_large, left = np.ones(len(many)), resamples
    while left:
        size = min(left, 2000)
        signs = generator.integers(0, 2, (size, len(cards)), dtype=np.int8) * 2.0 - 1.0
        as_large += (np.abs(signs @ table) >= seen).sum(axis=0)
        left -= size
    for place, count in zip(many, as_large, strict=True):
        found[place] = float(count) / (resamples + 1)
    return found


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p values (Holm 1979), in the order given.

    The i-th smallest of m is multiplied by m - i + 1, made monotone and capped at 1. None stays None and does not
    count towards m.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[place] = largest
    return adjusted


def smallest_detectable_difference(
    differences: Sequence[float] | Floats, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """The true mean difference that a two-sided paired test at `alpha` finds with probability `power`.

    (t[1 - alpha/2, n - 1] + t[power, n - 1]) · s / sqrt(n), with s the standard deviation of the n differences:
    the minimum detectable effect of Bloom (1995), Evaluation Review 19(5). Same unit as the differences. None for
    fewer than two differences or when they are all equal, since no spread can be estimated then.
    """
    from scipy.stats import t

    values = np.asarray(differences, dtype=float)
    n = len(values)
    if n < 2 or np.ptp(values) == 0:
        return None
    multiplier = t.ppf(1 - alpha / 2, n - 1) + t.ppf(power, n - 1)
    return float(multiplier * values.std(ddof=1) / np.sqrt(n))


def ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 1999,
) -> Interval:
    """sum(numerators) / sum(denominators) with a bootstrap interval over the units, one entry each.

    For figures such as loss per token, where units (dialogues) differ in size and their ratios must not be averaged.
    Raises ValueError when the lengths differ or a denominator is not positive.
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if above.shape != below.shape or (below <= 0).any():
        raise ValueError("numerators and denominators must be of one length, denominators positive")
    if not len(above):
        return Interval(None, None, None, 0, reason="there is nothing to take a ratio of")
    return _bootstrap(
        float(above.sum() / below.sum()),
        lambda index: above[index].sum(axis=-1) / below[index].sum(axis=-1),
        len(above),
        confidence,
        seed,
        resamples,
    )


def _mean_of(values: Floats, confidence: float, seed: int, resamples: int) -> Interval:
    if len(values) == 0:
        return Interval(None, None, None, 0, reason="no card has a value")
    # Within a rounding error of each other counts as equal: averaging samples leaves such dust.
    if len(values) > 1 and np.ptp(values) < 1e-9:
        return Interval(float(values[0]), None, None, len(values), reason="all cards have the same value")
    return _bootstrap(
        float(values.mean()),
        lambda index: values[index].mean(axis=-1),
        len(values),
        confidence,
        seed,
        resamples,
    )


def _bootstrap(
    estimate: float,
    statistic: Callable[[NDArray[np.int64]], Floats],
    n: int,
    confidence: float,
    seed: int,
    resamples: int,
) -> Interval:
    limits = bootstrap_interval(statistic, estimate, n, confidence, seed, resamples, unit="cards")
    return Interval(estimate, limits.low, limits.high, n, limits.method, limits.reason)
