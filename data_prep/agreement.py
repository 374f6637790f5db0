"""Do the raters agree? Per dimension: alpha, weighted kappa, AC2, ICC, shares, and the leave-one-rater-out ceiling.

A table is [dialogues, raters] with NaN where a rater gave no value. Every figure is a function of sums over dialogues
(of counts, moments, squares), so that resampling dialogues is adding the sums up again with other weights; only alpha
is computed by the `krippendorff` package instead. Formulas are checked in the tests against independent libraries on
random tables with missing cells. A figure that does not exist is None, with the reason beside it.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.agreement_formulas import (
    ac2,
    ac2_parts,
    anova_parts,
    component_parts,
    consensus_distances,
    consensus_moments,
    icc,
    icc_from_components,
    kappas,
    mean_kappa,
    mean_ratio,
    others,
    pair_moments,
    pair_shares,
    ratio,
)
from data_prep.records import Rating
from data_prep.rubric import Dimension, Rubric

Floats = NDArray[np.float64]
Formula = Callable[[Floats], Floats]
"""[..., parts] sums over dialogues -> [...] values, NaN where undefined."""

FIGURES = {
    "alpha": "Krippendorff's alpha, ordinal",
    "kappa": "quadratic weighted kappa, mean of all pairs of raters",
    "ac2": "Gwet's AC2, quadratic weights",
    "icc_2_1": "ICC(2,1): one rater, absolute agreement",
    "icc_2_k": "ICC(2,k): mean of all raters, absolute agreement",
    "icc_all": "ICC of one rater from all ratings, incomplete ones too",
    "exact": "share of pairs with the same level",
    "within_one": "share of pairs at most one level apart",
    "ceiling_kappa": "kappa of each rater with the median of the others, mean of raters",
    "ceiling_within_one": "share of ratings within one level of the others' median, mean of raters",
    "ceiling_mae": "distance of each rater from the others' mean, in levels, mean of raters",
}


@dataclass(frozen=True)
class Figure:
    """One agreement figure with its bootstrap interval over dialogues."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    dialogues: int
    """Dialogues it rests on."""
    method: str | None = None
    """BCa (Efron 1987), or percentile where the BCa correction is undefined."""
    reason: str | None = None
    """Why there is no value, or no interval."""


@dataclass(frozen=True)
class RaterFigures:
    """One rater beside the others, on one dimension."""

    rater: str
    ratings: int
    mean: float | None
    bias: float | None
    """Mean of (own level - mean of the others' levels) over shared dialogues: above 0 is milder."""
    kappa: float | None
    """Mean quadratic kappa with the other raters."""
    pointed_out: str | None = None
    """Why this rater is pointed out; None for everybody else. See `disagrees_with_all`."""


@dataclass(frozen=True)
class DimensionAgreement:
    """Everything about one dimension."""

    dimension: str
    dialogues: int
    """Dialogues with at least one rating."""
    shared: int
    """Dialogues with at least two."""
    ratings: int
    missing: int
    """Ratings given as missing."""
    counts: dict[int, int]
    """level -> how often it was given."""
    figures: dict[str, Figure]
    raters: list[RaterFigures]


def rating_table(ratings: Iterable[Rating], dimension: str) -> tuple[Floats, list[str], list[str]]:
    """([dialogues, raters] levels with NaN for none, dialogue ids, raters), both sorted."""
    found = [rating for rating in ratings if rating.dimension == dimension]
    ids = sorted({rating.dialogue_id for rating in found})
    raters = sorted({rating.rater for rating in found})
    rows, columns = ({name: place for place, name in enumerate(names)} for names in (ids, raters))
    table = np.full((len(ids), len(raters)), np.nan)
    for rating in found:
        if rating.value is not None:
            table[rows[rating.dialogue_id], columns[rating.rater]] = rating.value
    return table, ids, raters


def agreement(
    ratings: Sequence[Rating], rubric: Rubric, confidence: float = 0.95, seed: int = 0, resamples: int = 1999
) -> list[DimensionAgreement]:
    """Agreement on every dimension of the rubric that has ratings, in its order. Seeded: same input, same figures."""
    found = []
    for dimension in rubric.dimensions:
        table, _, raters = rating_table(ratings, dimension.name)
        if table.size:
            given = sum(rating.dimension == dimension.name for rating in ratings)
            found.append(dimension_agreement(table, raters, dimension, given, confidence, seed, resamples))
    return found


def dimension_agreement(
    table: Floats,
    raters: Sequence[str],
    dimension: Dimension,
    given: int,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 1999,
) -> DimensionAgreement:
    """All figures of one table; `given` counts the ratings with those given as missing."""
    levels = np.array(dimension.levels(), dtype=float)
    whole = table
    table = table[:, (~np.isnan(table)).any(axis=0)]  # a rater without any value is no rater of this dimension
    settings = (confidence, seed, resamples)
    rated = table[(~np.isnan(table)).any(axis=1)]
    shared = rated[(~np.isnan(rated)).sum(axis=1) >= 2]
    complete = table[~np.isnan(table).any(axis=1)] if table.shape[1] > 1 else table[:0]
    figures = {"alpha": alpha_figure(shared, levels, *settings)}
    summed: dict[str, tuple[Floats, Floats, Formula]] = {
        "kappa": (shared, pair_moments(shared), mean_kappa),
        "ac2": (rated, ac2_parts(rated, levels), lambda sums: ac2(sums, len(levels))),
        "icc_2_1": (complete, anova_parts(complete), lambda sums: icc(sums, average=False)),
        "icc_2_k": (complete, anova_parts(complete), lambda sums: icc(sums, average=True)),
        "icc_all": (shared, component_parts(shared), icc_from_components),
        "exact": (shared, pair_shares(shared, 0), ratio),
        "within_one": (shared, pair_shares(shared, 1), ratio),
        "ceiling_kappa": (shared, consensus_moments(shared), mean_kappa),
        "ceiling_within_one": (shared, consensus_distances(shared, "within_one"), mean_ratio),
        "ceiling_mae": (shared, consensus_distances(shared, "mae"), mean_ratio),
    }
    for name, (rows, parts, formula) in summed.items():
        figures[name] = summed_figure(name, len(rows), parts, formula, *settings)
    counts = {int(level): int((table == level).sum()) for level in levels}
    ratings = sum(counts.values())
    return DimensionAgreement(
        dimension.name,
        len(rated),
        len(shared),
        ratings,
        given - ratings,
        counts,
        figures,
        rater_figures(whole, raters),
    )


WITHOUT = {
    "icc_2_1": "fewer than two dialogues were rated by every rater; see icc_all",
    "icc_2_k": "fewer than two dialogues were rated by every rater; see icc_all",
}
TOO_FEW = "no dialogue has ratings by two raters"
NO_SPREAD = "all ratings are the same level, so chance agreement is perfect too"


def summed_figure(
    name: str, dialogues: int, parts: Floats, formula: Formula, confidence: float, seed: int, resamples: int
) -> Figure:
    """A figure that is a formula of sums over dialogues; `parts` is [dialogues, parts]."""
    from data_prep.resampling import bootstrap_interval, weights_of

    enough = 2 if name.startswith("icc_2") else 1
    if dialogues < enough:
        return Figure(name, None, None, None, dialogues, reason=WITHOUT.get(name, TOO_FEW))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing, which are NaN and told as undefined
        value = float(formula(parts.sum(axis=0)))
        if not np.isfinite(value):
            reason = TOO_FEW if not parts.any() or name == "ac2" else NO_SPREAD
            return Figure(name, None, None, None, dialogues, reason=reason)
        interval = bootstrap_interval(
            lambda index: formula(weights_of(index, dialogues) @ parts), value, dialogues, confidence, seed, resamples
        )
    return Figure(name, value, interval.low, interval.high, dialogues, interval.method, interval.reason)


def alpha_figure(table: Floats, levels: Floats, confidence: float, seed: int, resamples: int) -> Figure:
    """Krippendorff's alpha with the ordinal metric (Krippendorff 2019, Content Analysis, ch. 12), by his package."""
    import krippendorff

    from data_prep.resampling import bootstrap_interval

    if not len(table):
        return Figure("alpha", None, None, None, 0, reason=TOO_FEW)
    counts = (table[:, :, None] == levels).sum(axis=1)

    def of(rows: NDArray[Any]) -> float:
        return float(krippendorff.alpha(value_counts=rows, value_domain=levels, level_of_measurement="ordinal"))

    with np.errstate(all="ignore"):
        value = of(counts)
        if not np.isfinite(value):
            return Figure("alpha", None, None, None, len(table), reason=NO_SPREAD)
        interval = bootstrap_interval(
            lambda index: np.array([of(counts[rows]) for rows in index]), value, len(table), confidence, seed, resamples
        )
    return Figure("alpha", value, interval.low, interval.high, len(table), interval.method, interval.reason)


MIN_SHARED = 5
LOW_KAPPA = 0.2
OTHERS_KAPPA = 0.4


def rater_figures(table: Floats, raters: Sequence[str]) -> list[RaterFigures]:
    """Every rater beside the others."""
    count = len(raters)
    matrix, shared = np.full((count, count), np.nan), np.zeros((count, count))
    sums = pair_moments(table).sum(axis=0)
    for (a, b), kappa, n in zip(combinations(range(count), 2), kappas(sums), sums[::6], strict=True):
        matrix[a, b] = matrix[b, a] = kappa
        shared[a, b] = shared[b, a] = n
    beside = table - others(table, np.nanmean)
    found = []
    for place, rater in enumerate(raters):
        own, row, differences = table[:, place], matrix[place], beside[:, place]
        found.append(
            RaterFigures(
                rater,
                int((~np.isnan(own)).sum()),
                _mean(own),
                _mean(differences),
                _mean(row),
                disagrees_with_all(matrix, shared, place),
            )
        )
    return found


def _mean(values: Floats) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def disagrees_with_all(matrix: Floats, shared: Floats, rater: int) -> str | None:
    """Why a rater is pointed out, or None. The rule, on [raters, raters] kappas and numbers of shared dialogues:

    among pairs that share at least 5 dialogues, the rater has kappas with at least two others, every one of them is
    below 0.2 ("slight" in Landis & Koch 1977), and the others' kappas among themselves average at least 0.4
    ("moderate"). It says that this rater reads the scale differently, not who is right.
    """
    usable = np.where(shared >= MIN_SHARED, matrix, np.nan)
    own = usable[rater][~np.isnan(usable[rater])]
    rest = np.delete(np.delete(usable, rater, axis=0), rater, axis=1)
    among = rest[~np.isnan(rest)]
    if len(own) < 2 or not len(among) or (own >= LOW_KAPPA).any() or among.mean() < OTHERS_KAPPA:
        return None
    turned = " (is the scale read upside down?)" if own.mean() <= -LOW_KAPPA else ""
    return (
        f"kappa with every other rater is below {LOW_KAPPA:g} (mean {own.mean():.2f}), while the others reach "
        f"{among.mean():.2f} among themselves{turned}"
    )
