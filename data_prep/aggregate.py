"""Several raters' ratings as one: mean, median, majority, adjudicated, or kept as a distribution.

The trainer reads every rater's ratings as they are, so training needs none of this; aggregation is for gold labels,
tables and papers. No rule here invents a level: where it names none, the value is missing and the reason says why.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, median

from pydantic import Field

from data_prep.errors import UserError
from data_prep.records import Rating, Record
from data_prep.rubric import Rubric

METHODS = ("mean", "median", "majority", "adjudicated", "distribution")
Decision = tuple[float | None, str | None]
"""(value, None) or (None, reason)."""


class RatingDistribution(Record):
    """How often each level of one dimension was given to one dialogue."""

    dialogue_id: str = Field(min_length=1)
    rubric: str = Field(min_length=1)
    dimension: str = Field(min_length=1)
    counts: dict[int, int]
    """level -> raters who gave it; every level of the scale is there, lowest first."""
    raters: int
    """Raters with a value."""
    missing: int
    """Raters who looked at it and gave none."""


def by_mean(values: Mapping[str, float]) -> Decision:
    """The arithmetic mean; often between two levels, so for tables and not for training."""
    return fmean(values.values()), None


def by_median(values: Mapping[str, float]) -> Decision:
    """The median when it is a level. Between two levels of an even number of raters it is missing: neither of the two
    has the better claim, and always taking the lower (or upper) one would shift every figure."""
    middle = median(values.values())
    if middle != int(middle):
        return None, f"the median of {len(values)} raters lies between two levels"
    return float(middle), None


def by_majority(values: Mapping[str, float]) -> Decision:
    """The level that more than half of the raters gave; a tie, or a mere plurality, is missing."""
    level, count = Counter(values.values()).most_common(1)[0]
    if 2 * count <= len(values):
        return None, f"no level was given by more than half of {len(values)} raters"
    return level, None


def by_adjudicator(values: Mapping[str, float], adjudicator: str) -> Decision:
    """The adjudicator's value; without one, the value that all raters agree on; else missing."""
    if adjudicator in values:
        return values[adjudicator], None
    if len(set(values.values())) == 1:
        return next(iter(values.values())), None
    return None, f"{len(values)} raters differ and the adjudicator gave no value"


def aggregate(
    ratings: Iterable[Rating], rubric: Rubric, method: str, adjudicator: str | None = None
) -> list[Rating] | list[RatingDistribution]:
    """One record a dialogue and dimension, sorted by dialogue and dimension.

    The values of all methods but `distribution` are Rating records whose rater is the method's name. Raises UserError
    for an unknown method, and for an adjudicator that is missing, not needed, or has no rating at all.
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}; one of: {', '.join(METHODS)}")
    groups: dict[tuple[str, str], dict[str, float | None]] = defaultdict(dict)
    for rating in ratings:
        groups[rating.dialogue_id, rating.dimension][rating.rater] = rating.value
    raters = sorted({rater for group in groups.values() for rater in group})
    if (method == "adjudicated") != (adjudicator is not None):
        raise UserError("--adjudicator NAME goes with --method adjudicated, and only with it")
    if adjudicator is not None and adjudicator not in raters:
        raise UserError(f"adjudicator {adjudicator!r} gave no rating; raters: {', '.join(raters)}")
    order = {name: index for index, name in enumerate(rubric.names())}
    keys = sorted(groups, key=lambda about: (about[0], order[about[1]]))
    if method == "distribution":
        return [_distribution(*about, groups[about], rubric) for about in keys]
    rules: dict[str, Callable[[Mapping[str, float]], Decision]] = {
        "mean": by_mean,
        "median": by_median,
        "majority": by_majority,
        "adjudicated": lambda values: by_adjudicator(values, adjudicator or ""),
    }
    found = []
    for dialogue_id, dimension in keys:
        values = {rater: v for rater, v in sorted(groups[dialogue_id, dimension].items()) if v is not None}
        value, reason = rules[method](values) if values else (None, "no rater gave a value")
        found.append(
            Rating(
                dialogue_id=dialogue_id,
                rater=method,
                rubric=rubric.name,
                dimension=dimension,
                value=value,
                reason=reason,
            )
        )
    return found


def _distribution(
    dialogue_id: str, dimension: str, given: Mapping[str, float | None], rubric: Rubric
) -> RatingDistribution:
    values = Counter(value for value in given.values() if value is not None)
    return RatingDistribution(
        dialogue_id=dialogue_id,
        rubric=rubric.name,
        dimension=dimension,
        counts={level: values.get(level, 0) for level in rubric.dimension(dimension).levels()},
        raters=values.total(),
        missing=len(given) - values.total(),
    )
