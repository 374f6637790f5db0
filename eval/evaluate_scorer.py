"""A scorer against people: agreement on every dimension and language, beside what it has to beat.

Beside the scorer stand the constant (always the level most frequent in training), regressions on length and on words
(train/baselines.py) and, where several people rated a dialogue, each of them against the others. Every rating of
every rater is one row; intervals resample groups of dialogues, since dialogues of one card or opening resemble each
other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.records import Dialogue
from data_prep.rubric import Rubric
from data_prep.splits import GROUP_KINDS, NEAR, groups
from eval.scorer_figures import LEVEL_RULES, Floats, Ints, Predictions, confusion, differences, figures, numbered
from eval.statistics import Interval

Given = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""dialogue id -> rater -> dimension -> value (`train.rank.read_ratings`)."""
Scores = Sequence[Mapping[str, Sequence[float]] | None]
"""Of every dialogue: dimension -> distribution, where there is one; or None where there is no score at all."""

COMPARED = ("kappa", "accuracy", "mae")
FOLDS = 5


@dataclass(frozen=True)
class Rows:
    """The ratings of one dimension: parallel arrays, one entry a rating."""

    dialogue: Ints
    """Index of the dialogue."""
    rated: Ints
    """Level given, an index from 0."""
    group: Ints
    human: Floats
    """[N, levels]: shares of the levels that the others gave to this dialogue; NaN where nobody else did."""


@dataclass(frozen=True)
class Predictor:
    """One predictor on one dimension and language."""

    ratings: int
    """Rows it says something of."""
    figures: dict[str, Interval]
    confusion: list[list[int]]
    """[rated level][predicted level], lowest first."""


@dataclass(frozen=True)
class DimensionFigures:
    """One dimension in one language, or in all that occur."""

    dimension: str
    language: str
    ratings: int
    dialogues: int
    groups: int
    levels: list[int]
    counts: list[int]
    """Ratings at each level."""
    constant_level: int
    predictors: dict[str, Predictor]
    """scorer, constant, and as far as they exist length, tfidf, human."""
    differences: dict[str, dict[str, Interval]]
    """Scorer less each other predictor, on the ratings that both speak of: kappa, accuracy, mae."""
    verdict: str = ""


@dataclass(frozen=True)
class ScorerEvaluation:
    """Everything `esckit evaluate` says of a scorer."""

    dialogues: int
    without_rating: int
    unscored: int
    """Rated dialogues that the scorer gave no score."""
    ratings_elsewhere: int
    """Rated dialogues that are not among those given."""
    groups: int
    baselines: str
    """What the regressions were fitted on, in words."""
    level: str
    """How a distribution becomes a level: one of LEVEL_RULES."""
    dimensions: list[DimensionFigures] = field(default_factory=list)


def evaluate_scorer(
    rubric: Rubric,
    scores: Scores,
    dialogues: Sequence[Dialogue],
    ratings: Given,
    training_levels: Mapping[str, Sequence[int]] | None = None,
    baselines_from: Sequence[Dialogue] = (),
    group_by: Sequence[str] = GROUP_KINDS,
    level: str = "median",
    seed: int = 0,
    named_levels: bool = False,
) -> ScorerEvaluation:
    """Agreement of scores with every rating, dimension by dimension and language by language.

    `scores` are those of `dialogues`, in order. `training_levels` are the ratings that the scorer learned from, by
    level, which the constant is taken of; without them it is of what the regressions are fitted on. These are fitted
    on `baselines_from`, whose ratings are in `ratings` too, or else by cross-validation over groups of `dialogues`.
    `level` is one of LEVEL_RULES, the same for everybody but the constant. `named_levels`: the distributions only say
    which level was named, so that there is no calibration to measure.
    Raises UserError when no dialogue has a rating, a dimension has none, or training dialogues are among those given.
    """
    rated = [index for index, one in enumerate(dialogues) if is_rated(ratings.get(one.id, {}))]
    if not rated:
        raise UserError("none of the dialogues has a rating; do the dialogue ids of the two files match?")
    known = {one.id for one in dialogues}
    shared = sorted(known & {one.id for one in baselines_from})
    if shared:
        raise UserError(
            f"--baselines-from: dialogue {shared[0]!r} is also in --on; a baseline must not see its answers"
        )
    chosen = [dialogues[index] for index in rated]
    found = [scores[index] for index in rated]
    group = group_numbers(chosen, group_by)
    rows = {name: rows_of(rubric, name, chosen, ratings, group) for name in rubric.names()}
    rest, constants, how = baselines(rubric, chosen, rows, ratings, baselines_from, group, seed)
    if training_levels is not None:
        constants = {name: constant(training_levels[name], len(chosen)) for name in rubric.names()}
    rule = LEVEL_RULES[level]
    result = ScorerEvaluation(
        dialogues=len(dialogues),
        without_rating=len(dialogues) - len(chosen),
        unscored=sum(not one for one in found),
        ratings_elsewhere=sum(is_rated(raters) for name, raters in ratings.items() if name not in known),
        groups=int(group.max()) + 1,
        baselines=how,
        level=level,
    )
    for name in rubric.names():
        said = {"scorer": rule(distributions(rubric, name, found)), "constant": constants[name]}
        said |= {kind: rule(by_dimension[name]) for kind, by_dimension in rest.items()}
        for language, part in languages(chosen, rows[name]):
            result.dimensions.append(_measured(rubric, name, language, part, said, level, seed, named_levels))
    return result


def _measured(
    rubric: Rubric,
    name: str,
    language: str,
    rows: Rows,
    said: Mapping[str, Predictions],
    level: str,
    seed: int,
    named_levels: bool,
) -> DimensionFigures:
    levels = list(rubric.dimension(name).levels())
    spoken = {who: predictions.of(rows.dialogue) for who, predictions in said.items()}
    if not np.isnan(rows.human).all():
        spoken["human"] = LEVEL_RULES[level](rows.human)
    predictors = {}
    for who, one in spoken.items():
        found = figures(rows.rated, one, rows.group, seed)
        if who == "human" or (who == "scorer" and named_levels):
            said_by = "a person" if who == "human" else "this judge"
            found["ece"] = Interval(None, None, None, found["ece"].n_cards, reason=f"{said_by} gives no probabilities")
        predictors[who] = Predictor(int(one.given().sum()), found, confusion(rows.rated, one))
    beside = {
        who: differences(rows.rated, spoken["scorer"], one, rows.group, COMPARED, seed)
        for who, one in spoken.items()
        if who != "scorer"
    }
    counts = np.bincount(rows.rated, minlength=len(levels))
    return DimensionFigures(
        dimension=name,
        language=language,
        ratings=len(rows.rated),
        dialogues=len(set(rows.dialogue.tolist())),
        groups=len(set(rows.group.tolist())),
        levels=levels,
        counts=[int(count) for count in counts],
        constant_level=levels[int(spoken["constant"].levels[0])],
        predictors=predictors,
        differences=beside,
        verdict=verdict(predictors, beside, [levels[index] for index in np.flatnonzero(counts)]),
    )


# ---- in words


def verdict(
    predictors: Mapping[str, Predictor], beside: Mapping[str, Mapping[str, Interval]], rated: Sequence[int]
) -> str:
    """In words, whether the scorer beats the constant predictor and the others; only an interval without 0 counts."""
    if len(rated) == 1:
        return f"cannot be told from a constant: every rating here is {rated[0]}"
    against = beside["constant"]
    better = sign(against["kappa"])
    cell = in_words(against["kappa"])
    if better > 0:
        text = f"beats the constant predictor (kappa {cell})"
        worse = [label for name, label, way in EXACT if way * sign(against[name]) < 0]
        if worse:
            text += f", but the constant {' and '.join(worse)}"
    else:
        text = f"does not beat the constant predictor (kappa {cell})"
    for who, label in (("length", "length"), ("tfidf", "TF-IDF")):
        if who in beside:
            told = {1: "beats", 0: "not told apart from", -1: "is worse than"}[sign(beside[who]["kappa"])]
            text += f"; {told} {label} (kappa {in_words(beside[who]['kappa'])})"
    if "human" in beside:
        told = {1: "above", 0: "not told apart from", -1: "below"}[sign(beside["human"]["kappa"])]
        text += f"; {told} one rater against the others (kappa {in_words(beside['human']['kappa'])})"
    return text


EXACT = (("accuracy", "hits the exact level more often", 1), ("mae", "is closer on average", -1))


def sign(difference: Interval) -> int:
    """1 or -1 when a paired difference is told from 0, else 0."""
    low, high = difference.low, difference.high
    if low is None or high is None:
        # Right everywhere leaves no spread for an interval, and no doubt either.
        sure = difference.reason == "every resample gives the same value"
        low = high = difference.mean if sure and difference.mean is not None else 0.0
    return int(low > 0) - int(high < 0)


def in_words(interval: Interval) -> str:
    """`+0.17 [+0.05, +0.31]`, or why not."""
    if interval.mean is None:
        return f"undefined: {interval.reason}"
    if interval.low is None:
        return f"{interval.mean:+.2f}, no interval: {interval.reason}"
    return f"{interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


# ---- rows and predictions


def is_rated(raters: Mapping[str, Mapping[str, float | None]]) -> bool:
    return any(value is not None for given in raters.values() for value in given.values())


def group_numbers(dialogues: Sequence[Dialogue], group_by: Sequence[str]) -> Ints:
    """[dialogues] number of the group each belongs to: those that a split keeps together (`data_prep.splits`)."""
    where = {one.id: number for number, group in enumerate(groups(dialogues, group_by, NEAR)) for one in group}
    return numbered([where[one.id] for one in dialogues])


def rows_of(rubric: Rubric, name: str, dialogues: Sequence[Dialogue], ratings: Given, group: Ints) -> Rows:
    """Raises UserError when nobody rated the dimension here."""
    dimension = rubric.dimension(name)
    size, low = len(dimension.levels()), dimension.scale[0]
    index, rated, human = [], [], []
    for place, dialogue in enumerate(dialogues):
        given = [values.get(name) for _, values in sorted(ratings[dialogue.id].items())]
        levels = [int(value) - low for value in given if value is not None]
        counts = np.bincount(levels, minlength=size)
        for level in levels:
            others = counts - (np.arange(size) == level)
            index.append(place)
            rated.append(level)
            human.append(others / others.sum() if len(levels) > 1 else np.full(size, np.nan))
    if not rated:
        raise UserError(f"no rating of {name} for these dialogues; agreement with nobody cannot be measured")
    places = np.array(index)
    return Rows(places, np.array(rated), group[places], np.array(human, dtype=float))


def languages(dialogues: Sequence[Dialogue], rows: Rows) -> Iterator[tuple[str, Rows]]:
    """("all", every row) where there are several languages, and each language's rows."""
    spoken = np.array([dialogues[index].language for index in rows.dialogue])
    found = sorted(set(spoken.tolist()))
    if len(found) > 1:
        yield "all", rows
    for language in found:
        chosen = spoken == language
        yield language, Rows(rows.dialogue[chosen], rows.rated[chosen], rows.group[chosen], rows.human[chosen])


def distributions(rubric: Rubric, name: str, scores: Scores) -> Floats:
    """[dialogues, levels], NaN for a dialogue without a score."""
    missing = [float("nan")] * len(rubric.dimension(name).levels())
    return np.array([missing if one is None or name not in one else list(one[name]) for one in scores], dtype=float)


def constant(counts: Sequence[int] | Ints, size: int) -> Predictions:
    """Always the most frequent level (the lowest of several), with the shares of the levels as its distribution."""
    shares = np.asarray(counts, dtype=float) / np.sum(counts)
    return Predictions(np.full(size, int(np.argmax(shares))), np.tile(shares, (size, 1)))


def baselines(
    rubric: Rubric,
    dialogues: Sequence[Dialogue],
    rows: Mapping[str, Rows],
    ratings: Given,
    learned: Sequence[Dialogue],
    group: Ints,
    seed: int,
) -> tuple[dict[str, dict[str, Floats]], dict[str, Predictions], str]:
    """Distributions of each regression by dimension, [dialogues, levels]; a constant a dimension; fitted on what."""
    from train.baselines import BASELINES, baseline_distributions

    names, sizes = rubric.names(), [len(one.levels()) for one in rubric.dimensions]
    everything = {
        name: constant(np.bincount(rows[name].rated, minlength=n), len(dialogues))
        for name, n in zip(names, sizes, strict=True)
    }
    if learned:
        table = _table(rubric, learned, ratings)
        empty = [name for name, given in zip(names, table[1], strict=True) if (given < 0).all()]
        if empty:
            raise UserError(f"--baselines-from: no rating of {empty[0]} for those dialogues; add theirs with --ratings")
        constants = {
            name: constant(np.bincount(given[given >= 0], minlength=n), len(dialogues))
            for name, given, n in zip(names, table[1], sizes, strict=True)
        }
        found = {
            kind: dict(zip(names, baseline_distributions(kind, learned, *table, sizes, dialogues), strict=True))
            for kind in BASELINES
        }
        return found, constants, f"fitted on {len(set(table[0].tolist()))} training dialogues"
    folds = min(FOLDS, int(group.max()) + 1)
    if folds < 2:
        return {}, everything, "not fitted: all dialogues are of one group; name training dialogues (--baselines-from)"
    crossed = {kind: _crossed(kind, rubric, dialogues, ratings, group, folds, seed) for kind in BASELINES}
    return crossed, everything, f"fitted on these dialogues, {folds}-fold cross-validation over groups"


def _crossed(
    kind: str, rubric: Rubric, dialogues: Sequence[Dialogue], ratings: Given, group: Ints, folds: int, seed: int
) -> dict[str, Floats]:
    """Every dialogue by a regression that saw nothing of its group."""
    from sklearn.model_selection import GroupKFold

    from train.baselines import baseline_distributions

    sizes = [len(one.levels()) for one in rubric.dimensions]
    found = {name: np.full((len(dialogues), n), np.nan) for name, n in zip(rubric.names(), sizes, strict=True)}
    for fit, ask in GroupKFold(folds, shuffle=True, random_state=seed).split(group, groups=group):
        learned = [dialogues[index] for index in fit]
        rows, levels = _table(rubric, learned, ratings)
        if any((given < 0).all() for given in levels):
            continue  # a dimension rated in this fold only: its rows stay without a prediction
        asked = [dialogues[index] for index in ask]
        for name, each in zip(
            rubric.names(), baseline_distributions(kind, learned, rows, levels, sizes, asked), strict=True
        ):
            found[name][ask] = each
    return found


def _table(rubric: Rubric, dialogues: Sequence[Dialogue], ratings: Given) -> tuple[Ints, list[Ints]]:
    """One row a dialogue and rater: index of the dialogue, and of each dimension the level from 0 or -1."""
    index, levels = [], []
    for place, dialogue in enumerate(dialogues):
        for _, given in sorted(ratings.get(dialogue.id, {}).items()):
            values = [(given.get(one.name), one.scale[0]) for one in rubric.dimensions]
            if all(value is None for value, _ in values):
                continue
            index.append(place)
            levels.append([-1 if value is None else int(value) - low for value, low in values])
    table: NDArray[Any] = np.array(levels, dtype=np.int64).reshape(-1, len(rubric.dimensions))
    return np.array(index, dtype=np.int64), list(table.T)
