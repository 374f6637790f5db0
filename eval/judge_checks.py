"""What a judge's levels depend on besides quality. Pure: judgments, ratings and lengths in, figures out.

Levels are those of the rubric; a judgment that is missing takes part in nothing. Intervals are 95 % and resample
groups of dialogues, as everywhere in the evaluation of a judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.normalising import normalised, word_count
from data_prep.records import Dialogue
from data_prep.resampling import bootstrap_interval, weights_of
from eval.judge_input import Judged
from eval.metrics_correlation import centred, moments_of
from eval.metrics_formulas import RESAMPLES, interval_of, mean_formula
from eval.statistics import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LENGTH = "levels per doubling of the supporter's words"
COMPARISON = "first supporter less second, in levels; `people` on the same pairs"
LONGER = 1.25
"""One dialogue is longer than another from this ratio of words on; nearer ones are of like length."""
MOST_PAIRED = 1000
"""Dialogues of which pairs are made; of more, so many at random."""
LEVEL_STEP = 0.05
"""Levels that a judgment must change by to count as risen or fallen."""
ROUNDING = 1e-4
"""Levels: what other neighbours in a batch change by rounding alone."""


@dataclass(frozen=True)
class Row:
    """A check on one dimension."""

    dimension: str
    dialogues: int
    figures: dict[str, Interval]
    verdict: str
    spread: float | None = None
    """Standard deviation of the judge's own levels over the dialogues, where levels are judged twice."""


@dataclass(frozen=True)
class Check:
    """One check. Either it has rows, or `reason` says why it does not apply or could not be made."""

    name: str
    what: str
    rows: list[Row] = field(default_factory=list)
    reason: str | None = None


@dataclass(frozen=True)
class Material:
    """The dialogues that a judge was asked about, and what people said of them."""

    dialogues: Sequence[Dialogue]
    group: Ints
    """[dialogues] numbers from 0."""
    human: Sequence[dict[str, float]]
    """Of every dialogue: dimension -> mean of the raters, in levels; absent where nobody rated."""
    dimensions: Sequence[str]
    seed: int = 0

    def log_lengths(self) -> Floats:
        """[dialogues] log2 of the supporter's words."""
        return np.array([np.log2(max(1.0, supporter_words(one))) for one in self.dialogues])


def supporter_words(dialogue: Dialogue) -> float:
    return sum(word_count(normalised(turn.text)) for turn in dialogue.turns if turn.speaker == "supporter")


def expected_of(judged: Judged, dimension: str) -> Floats:
    """[dialogues] expected level, NaN where there is none."""
    values = [one[dimension].expected for one in judged]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def human_of(material: Material, dimension: str) -> Floats:
    return np.array([one.get(dimension, np.nan) for one in material.human], dtype=float)


# ---- the same dialogues, judged twice


def changes(
    name: str,
    what: str,
    before: Judged,
    after: Judged,
    material: Material,
    verdict: Callable[[dict[str, Interval]], str],
    places: Sequence[int] | None = None,
) -> Check:
    """Judgments `after` less those `before`, dialogue by dialogue.

    `places` are the indices of the dialogues in the material when only some were judged again.
    """
    group = material.group[np.arange(len(material.dialogues)) if places is None else np.array(places, dtype=int)]
    rows = []
    for dimension in material.dimensions:
        first = expected_of(before, dimension)
        change = expected_of(after, dimension) - first
        told = [
            a[dimension].level is not None
            and b[dimension].level is not None
            and a[dimension].level != b[dimension].level
            for a, b in zip(before, after, strict=True)
        ]
        given = np.isfinite(change)
        columns = {
            "shift": change,
            "absolute": np.abs(change),
            "other_level": np.array(told, dtype=float),
            "rises": (change > LEVEL_STEP).astype(float),
            "falls": (change < -LEVEL_STEP).astype(float),
        }
        figures = {key: mean_over(column[given], group[given], material.seed) for key, column in columns.items()}
        spread = float(first[given].std(ddof=1)) if given.sum() > 1 else None
        told_so = verdict(figures) + _of_spread(figures["shift"], spread)
        rows.append(Row(dimension, int(given.sum()), figures, told_so, spread))
    return Check(name, what, rows)


def _of_spread(shift: Interval, spread: float | None) -> str:
    """How large a shift that was told is beside the differences that the judge makes between dialogues."""
    if not spread or shift.mean is None or not direction(shift):
        return ""
    return f", {abs(shift.mean) / spread:.2f} of its own spread over dialogues"


def mean_over(values: Floats, group: Ints, seed: int) -> Interval:
    """Mean of the values with an interval over their groups."""
    if not len(values):
        return Interval(None, None, None, 0, reason="no dialogue has both judgments")
    places = np.unique(group, return_inverse=True)[1]
    sums = np.zeros((int(places.max()) + 1, 2))
    np.add.at(sums, places, np.stack([values, np.ones_like(values)], axis=1))
    return interval_of(sums, mean_formula, seed, unit="groups of dialogues")


def verdict_of_reward(figures: dict[str, Interval]) -> str:
    """For a variant that adds no support."""
    shift = figures["shift"]
    if shift.mean is None:
        return f"cannot be told: {shift.reason}"
    way = direction(shift)
    if way > 0:
        return f"gives more for it: {in_words(shift)} levels"
    if way < 0:
        return f"gives less for it: {in_words(shift)} levels"
    return f"not told from no change: {in_words(shift)} levels"


def verdict_of_sameness(figures: dict[str, Interval]) -> str:
    """For asking again, or in another way, which should change nothing."""
    shift, other = figures["shift"], figures["other_level"]
    if shift.mean is None or other.mean is None:
        return f"cannot be told: {shift.reason}"
    if (figures["absolute"].mean or 0.0) < ROUNDING:
        return "the same judgments"
    moved = {1: "higher on the whole", 0: "no shift on the whole", -1: "lower on the whole"}[direction(shift)]
    return f"another level in {100 * other.mean:.0f} % of dialogues; {moved} ({in_words(shift)} levels)"


def direction(interval: Interval) -> int:
    """1 or -1 where an interval leaves 0 out, or where every dialogue changes alike; else 0."""
    if interval.mean is None:
        return 0
    if interval.low is None or interval.high is None:
        alike = interval.reason == "every resample gives the same value"
        return int(np.sign(interval.mean)) if alike and abs(interval.mean) > LEVEL_STEP else 0
    return int(interval.low > 0) - int(interval.high < 0)


def in_words(interval: Interval) -> str:
    if interval.mean is None:
        return "undefined"
    if interval.low is None:
        return f"{interval.mean:+.2f}"
    return f"{interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


# ---- length


def length_slope(judged: Judged, material: Material) -> Check:
    """Levels per doubling of the supporter's words: alone, and with people's mean rating held constant (least squares).

    Beside it the raters' own slope, and pairs of dialogues that people rated the same: the longer less the shorter.
    """
    lengths = material.log_lengths()
    rows = []
    for dimension in material.dimensions:
        said, meant = expected_of(judged, dimension), human_of(material, dimension)
        given = np.isfinite(said) & np.isfinite(meant)
        group = np.unique(material.group[given], return_inverse=True)[1]
        sums = np.zeros((int(group.max()) + 1 if given.any() else 0, 10))
        np.add.at(sums, group, moments_of(np.stack([said, meant, lengths], axis=1)[given]))
        figures = {
            "judge": interval_of(sums, _slope_alone(0), material.seed, "groups of dialogues"),
            "people": interval_of(sums, _slope_alone(1), material.seed, "groups of dialogues"),
            "held": interval_of(sums, _slope_held, material.seed, "groups of dialogues"),
            "matched": _matched(said[given], meant[given], lengths[given], group, material.seed),
        }
        rows.append(Row(dimension, int(given.sum()), figures, _verdict_of_length(figures)))
    return Check("length", LENGTH, rows)


def _slope_alone(of: int) -> Callable[[Floats], Floats]:
    def slope(sums: Floats) -> Floats:
        parts = centred(sums)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(parts[2] > 1e-9, parts[4 + of] / parts[2], np.nan)

    return slope


def _slope_held(sums: Floats) -> Floats:
    """Slope on length of the regression of the judge (x) on rating (y) and length (z): the normal equations solved."""
    _, yy, zz, xy, xz, yz = centred(sums)
    left = yy * zz - yz**2
    with np.errstate(invalid="ignore", divide="ignore"):
        # Where people gave one and the same level there is nothing to hold.
        return np.where(
            yy <= 1e-9,
            np.where(zz > 1e-9, xz / zz, np.nan),
            np.where(left > 1e-9, (xz * yy - xy * yz) / left, np.nan),
        )


def _verdict_of_length(figures: dict[str, Interval]) -> str:
    held = figures["held"]
    if held.mean is None:
        return f"cannot be told: {held.reason}"
    way = direction(held)
    told = {1: "longer replies score higher", -1: "longer replies score lower", 0: "no length slope told from 0"}[way]
    return f"{told} at the same human rating ({in_words(held)} a doubling)"


def _matched(said: Floats, meant: Floats, lengths: Floats, group: Ints, seed: int) -> Interval:
    """Longer less shorter, over all pairs with the same mean rating and LONGER times the words."""
    chosen = np.arange(len(said))
    if len(chosen) > MOST_PAIRED:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, MOST_PAIRED, replace=False))
    longer, shorter = np.nonzero(
        (np.abs(meant[chosen, None] - meant[chosen]) < 1e-9)
        & (lengths[chosen, None] - lengths[chosen] >= np.log2(LONGER))
    )
    longer, shorter = chosen[longer], chosen[shorter]
    return over_pairs(said[longer] - said[shorter], group[longer], group[shorter], seed)


def over_pairs(values: Floats, one: Ints, other: Ints, seed: int) -> Interval:
    """Mean of values of pairs, whose two sides belong to groups; the bootstrap redraws groups, never pairs.

    A pair between two groups counts as often as both are drawn together, one inside a group as often as it is drawn.
    """
    from scipy.sparse import csr_array

    if not len(values):
        return Interval(None, None, None, 0, reason="there are no such pairs")
    names, places = np.unique(np.concatenate([one, other]), return_inverse=True)
    a, b = places[: len(one)], places[len(one) :]
    size = len(names)
    inside = a == b
    sums = np.zeros((size, 2))
    np.add.at(sums, a[inside], np.stack([values, np.ones_like(values)], axis=1)[inside])
    tables = [
        csr_array((v[~inside], (a[~inside], b[~inside])), shape=(size, size)) for v in (values, np.ones_like(values))
    ]

    def figure(weights: Floats) -> Any:
        above, below = (
            weights @ sums[:, at] + ((table.T @ weights.T).T * weights).sum(axis=-1) for at, table in enumerate(tables)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            return above / below

    value = float(values.mean())
    limits = bootstrap_interval(
        lambda index: figure(weights_of(index, size)), value, size, seed=seed, resamples=RESAMPLES, unit="groups"
    )
    return Interval(value, limits.low, limits.high, size, limits.method, limits.reason)


# ---- supporters compared, plain and at like length


def comparisons(judged: Judged, material: Material) -> Check:
    """Every two supporters among the dialogues: the judge's difference and people's, plain and at like length.

    Two dialogues are a pair when they are of one card, or any two where the supporters share no card. At like length:
    pairs whose words differ by less than LONGER times.
    """
    names = [one.meta.get("supporter") for one in material.dialogues]
    supporters = sorted({name for name in names if isinstance(name, str) and name})
    if len(supporters) < 2:
        return Check("comparison", COMPARISON, reason="the dialogues name fewer than two supporters (meta.supporter)")
    lengths = material.log_lengths()
    rows = []
    for at, first in enumerate(supporters):
        for second in supporters[at + 1 :]:
            one, other = _pairs(material, names, first, second)
            like = np.abs(lengths[one] - lengths[other]) < np.log2(LONGER)
            for dimension in material.dimensions:
                rows.append(
                    _comparison(f"{dimension}: {first} - {second}", dimension, judged, material, one, other, like)
                )
    return Check("comparison", COMPARISON, rows)


def _pairs(material: Material, names: Sequence[Any], first: str, second: str) -> tuple[Ints, Ints]:
    cards = [one.card.id if one.card else None for one in material.dialogues]
    a, b = (np.array([at for at, name in enumerate(names) if name == who]) for who in (first, second))
    one, other = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    same = np.array([cards[x] is not None and cards[x] == cards[y] for x, y in zip(one, other, strict=True)])
    return (one[same], other[same]) if same.any() else (one, other)


def _comparison(
    title: str, dimension: str, judged: Judged, material: Material, one: Ints, other: Ints, like: Any
) -> Row:
    figures = {}
    for who, values in (("judge", expected_of(judged, dimension)), ("people", human_of(material, dimension))):
        difference = values[one] - values[other]
        for how, chosen in (("plain", np.isfinite(difference)), ("matched", np.isfinite(difference) & like)):
            figures[f"{who}_{how}"] = over_pairs(
                difference[chosen], material.group[one[chosen]], material.group[other[chosen]], material.seed
            )
    plain, matched = direction(figures["judge_plain"]), direction(figures["judge_matched"])
    words = {1: "first higher", 0: "not told apart", -1: "second higher"}
    if figures["judge_matched"].mean is None:
        verdict = f"plain: {words[plain]}; at like length: {figures['judge_matched'].reason}"
    else:
        verdict = f"plain: {words[plain]}; at like length: {words[matched]}"
    return Row(title, len(set(one.tolist()) | set(other.tolist())), figures, verdict)
