"""From scored runs to the figures of a report: pure, no files written (`report_pages.py` writes them).

One run gives a table; two or more are compared card by card. Figures are on 0..100 (percent of each dimension's
scale), means also in levels. The average is the plain mean of the dimensions of one dialogue, as in ESC-Eval, and is
missing when one of them is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from data_prep.errors import UserError
from data_prep.rubric import Rubric
from eval.runs import EndReason, Judgment, Run, Transcript, differences
from eval.statistics import (
    Interval,
    PairedDifference,
    card_means,
    holm,
    mean_interval,
    paired_difference,
    smallest_detectable_difference,
    to_percent,
)

AVERAGE = "average"
ALPHA = 0.05
FEW_CARDS = 10
# What may differ between compared runs: the system under test, and how much was run. The supporter's prompt and
# sampling belong to the system under test, but a reader must know of them, so they are noted.
NOTED_SETTINGS = ("simulation.supporter_",)
FREE_SETTINGS = (
    "supporter.",
    "cards.",
    "simulation.seed:",
    "simulation.samples:",
    "simulation.batch_size:",
    *NOTED_SETTINGS,
)


@dataclass(frozen=True)
class Column:
    """A dimension of the rubric, or the average of all. `scale` is None for an average over unlike scales."""

    name: str
    title: str
    scale: tuple[int, int] | None


@dataclass(frozen=True)
class Figure:
    """One supporter on one column: on 0..100, and in levels where the column has a scale."""

    percent: Interval
    level: Interval | None
    detectable: float | None
    """Smallest difference, in points of 100, to another supporter on as many cards that would be found with
    probability 0.8 if the two were unrelated; pairing on the same cards usually finds smaller ones."""


@dataclass
class Entry:
    """One supporter of one run."""

    label: str
    run: str
    supporter: str
    transcripts: list[Transcript]
    judgments: dict[tuple[str, str], Judgment]
    """By (dialogue key, dimension)."""
    points: dict[str, dict[str, list[float]]]
    """Column → card → one value a sample, on 0..100."""
    figures: dict[str, Figure]
    end_reasons: Counter[str]
    missing: Counter[str]
    """Dialogues without a full set of judgments, by reason."""
    cut_turns: int
    """Supporter turns that ended at the token limit."""


@dataclass
class Comparison:
    """a minus b, in points of 100; a is the one with the higher average."""

    a: Entry
    b: Entry
    by_column: dict[str, PairedDifference]
    holm_p: dict[str, float | None] = field(default_factory=dict)
    """The average: corrected over all pairs. The dimensions: over all pairs and dimensions."""

    @property
    def clear(self) -> bool:
        p = self.holm_p[AVERAGE]
        return p is not None and p < ALPHA


@dataclass
class Report:
    """All figures; entries are ordered by their average, the best first."""

    runs: list[Run]
    rubric: Rubric
    scorers: dict[str, dict[str, Any]]
    columns: list[Column]
    entries: list[Entry]
    comparisons: list[Comparison]
    confidence: float
    seed: int
    warnings: list[str]


def build_report(
    runs: Sequence[Run], scorer: str | None = None, force: bool = False, confidence: float = 0.95, seed: int = 0
) -> Report:
    """Figures of one run, or of several compared on the cards they share.

    `scorer` names whose judgments count (`name@hash`, or the name where that is enough); it may be left out while
    there is only one. Raises UserError for a run that is not scored, for several scorers and none named, and, unless
    `force`, for runs that differ in more than the supporter.
    """
    if not runs:
        raise UserError("a report needs at least one run folder")
    warnings: list[str] = []
    chosen = _choose_scorers(runs, scorer, force, warnings)
    rubric = _one_rubric(runs, chosen)
    _check_comparable(runs, force, warnings)
    columns = _columns(rubric)
    entries = [
        entry
        for run, label in zip(runs, chosen, strict=True)
        for entry in _entries(run, label, rubric, columns, confidence, seed)
    ]
    _name_apart(entries)
    entries.sort(key=_by_average)
    comparisons = _compare(entries, columns, confidence, seed)
    scorers = {label: run.scorers()[label] for run, label in zip(runs, chosen, strict=True)}
    warnings += _warnings(runs, entries, comparisons, scorers)
    return Report(list(runs), rubric, scorers, columns, entries, comparisons, confidence, seed, warnings)


def _choose_scorers(runs: Sequence[Run], asked: str | None, force: bool, warnings: list[str]) -> list[str]:
    """The scorer label to use of every run."""
    chosen = []
    for run in runs:
        present = sorted({judgment.scorer for judgment in run.judgments()})
        if not present:
            raise UserError(f"{run.folder}: is not scored; run: esckit score {run.folder} --scorer PATH")
        fitting = [name for name in present if asked is None or name == asked or name.split("@")[0] == asked]
        if not fitting:
            raise UserError(f"{run.folder}: scorer {asked!r} did not judge here; known: {', '.join(present)}")
        if len(fitting) > 1:
            raise UserError(
                f"{run.folder}: judged by {len(fitting)} scorers ({', '.join(fitting)}); name one with --scorer"
            )
        chosen.append(fitting[0])
    for run, label in zip(runs, chosen, strict=True):
        if label != chosen[0]:
            found = f"{runs[0].folder} was judged by {chosen[0]}, {run.folder} by {label}"
            if not force:
                raise UserError(f"{found}; score both with one scorer, or compare anyway with --force")
            warnings.append(f"Forced: {found}; a difference may be the scorers', not the supporters'.")
    return chosen


def _one_rubric(runs: Sequence[Run], chosen: Sequence[str]) -> Rubric:
    rubrics = []
    for run, label in zip(runs, chosen, strict=True):
        stored = run.scorers().get(label)
        if stored is None or "rubric" not in stored:
            raise UserError(f"{run.folder / 'scorers.json'}: says nothing of scorer {label!r}; score the run again")
        rubrics.append(Rubric.model_validate(stored["rubric"]))
    shape = [(dimension.name, dimension.scale) for dimension in rubrics[0].dimensions]
    for run, rubric in zip(runs, rubrics, strict=True):
        # Not even --force can subtract a scale of 1..5 from one of 0..4.
        if [(dimension.name, dimension.scale) for dimension in rubric.dimensions] != shape:
            raise UserError(
                f"{run.folder}: rubric {rubric.name} has other dimensions than {rubrics[0].name} of {runs[0].folder}"
            )
    return rubrics[0]


def _check_comparable(runs: Sequence[Run], force: bool, warnings: list[str]) -> None:
    first = runs[0]
    cards = {one.card.id: one.card for one in first.transcripts()}
    for run in runs[1:]:
        lines = [
            line.replace(" in the folder", f" in {first.folder.name}").replace(" now", f" in {run.folder.name}")
            for line in differences(first.settings, run.settings)
        ]
        if noted := [line for line in lines if line.startswith(NOTED_SETTINGS)]:
            warnings.append(f"The supporters were set up differently: {_listed(noted)}.")
        found = [line for line in lines if not line.startswith(FREE_SETTINGS)]
        changed = sorted({c.card.id for c in run.transcripts() if cards.get(c.card.id, c.card) != c.card})
        if changed:
            found.append(f"card {changed[0]!r} is another card there ({len(changed)} such cards)")
        if not found:
            continue
        if not force:
            raise UserError(
                f"{run.folder}: differs from {first.folder} in more than the supporter ({_listed(found)}); "
                "simulate both alike, or compare anyway with --force"
            )
        warnings.append(f"Forced: {run.folder.name} differs in more than the supporter ({_listed(found)}).")


def _listed(lines: Sequence[str]) -> str:
    return "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")


def _columns(rubric: Rubric) -> list[Column]:
    scales = {dimension.scale for dimension in rubric.dimensions}
    shared = scales.pop() if len(scales) == 1 else None
    dimensions = [Column(d.name, d.title.en, d.scale) for d in rubric.dimensions]
    return [Column(AVERAGE, "Average", shared), *dimensions]


def _entries(
    run: Run, scorer: str, rubric: Rubric, columns: Sequence[Column], confidence: float, seed: int
) -> list[Entry]:
    """One entry a supporter: a run has one, unless it was merged."""
    judgments = {(j.dialogue_key, j.dimension): j for j in run.judgments() if j.scorer == scorer}
    grouped: dict[str, list[Transcript]] = {}
    for transcript in run.transcripts():
        grouped.setdefault(transcript.supporter, []).append(transcript)
    entries = []
    for supporter, transcripts in grouped.items():
        points: dict[str, dict[str, list[float]]] = {column.name: {} for column in columns}
        missing: Counter[str] = Counter()
        for transcript in transcripts:
            found = _points_of(transcript, judgments, rubric)
            for name, value in found.items():
                points[name].setdefault(transcript.card.id, []).append(value)
            if AVERAGE not in found:
                missing[_why_missing(transcript, judgments, rubric)] += 1
        entries.append(
            Entry(
                label=supporter,
                run=str(run.folder),
                supporter=supporter,
                transcripts=transcripts,
                judgments={key: j for key, j in judgments.items() if key[0] in {t.key for t in transcripts}},
                points=points,
                figures={column.name: _figure(points[column.name], column, confidence, seed) for column in columns},
                end_reasons=Counter(transcript.end_reason.value for transcript in transcripts),
                missing=missing,
                cut_turns=sum(t.speaker == "supporter" and t.finish == "length" for x in transcripts for t in x.turns),
            )
        )
    return entries


def _points_of(transcript: Transcript, judgments: dict[tuple[str, str], Judgment], rubric: Rubric) -> dict[str, float]:
    """Values on 0..100 of the dimensions that have one, and their average when all have."""
    found = {}
    for dimension in rubric.dimensions:
        judgment = judgments.get((transcript.key, dimension.name))
        if judgment is not None and judgment.expected is not None:
            found[dimension.name] = to_percent(judgment.expected, dimension.scale)
    if len(found) == len(rubric.dimensions):
        found[AVERAGE] = sum(found.values()) / len(found)
    return found


def _why_missing(transcript: Transcript, judgments: dict[tuple[str, str], Judgment], rubric: Rubric) -> str:
    for name in rubric.names():
        judgment = judgments.get((transcript.key, name))
        if judgment is None:
            return "not scored yet"
        if judgment.reason is not None:
            return judgment.reason
    raise AssertionError("a dialogue with all its judgments is not missing")


def _figure(points: dict[str, list[float]], column: Column, confidence: float, seed: int) -> Figure:
    percent = mean_interval(points, confidence, seed)
    level = None
    if column.scale is not None:
        low, high = column.scale
        limits = (percent.mean, percent.low, percent.high)
        mean, bottom, top = (None if p is None else low + p / 100 * (high - low) for p in limits)
        level = Interval(mean, bottom, top, percent.n_cards, percent.method, percent.reason)
    # The difference of two unrelated supporters of this spread varies √2 times as much as either.
    spread = [mean * 2**0.5 for mean in card_means(points).values()]
    return Figure(percent, level, smallest_detectable_difference(spread))


def _by_average(entry: Entry) -> tuple[bool, float]:
    """The best first, those without a score last."""
    mean = entry.figures[AVERAGE].percent.mean
    return (mean is None, -(mean or 0.0))


def _name_apart(entries: Sequence[Entry]) -> None:
    """Equal supporter names get their run folder's name, and a number should that be equal too."""
    names = Counter(entry.supporter for entry in entries)
    seen: Counter[str] = Counter()
    for entry in entries:
        if names[entry.supporter] > 1:
            entry.label = f"{entry.supporter} ({entry.run.rstrip('/').split('/')[-1]})"
        seen[entry.label] += 1
        if seen[entry.label] > 1:
            entry.label += f" {seen[entry.label]}"


def _compare(entries: Sequence[Entry], columns: Sequence[Column], confidence: float, seed: int) -> list[Comparison]:
    comparisons = [
        Comparison(
            a, b, {c.name: paired_difference(a.points[c.name], b.points[c.name], confidence, seed) for c in columns}
        )
        for a, b in combinations(entries, 2)
    ]
    dimensions = [column.name for column in columns if column.name != AVERAGE]
    for names in ([AVERAGE], dimensions):
        family = [(comparison, name) for comparison in comparisons for name in names]
        adjusted = holm([comparison.by_column[name].p_value for comparison, name in family])
        for (comparison, name), p in zip(family, adjusted, strict=True):
            comparison.holm_p[name] = p
    return comparisons


def _warnings(
    runs: Sequence[Run],
    entries: Sequence[Entry],
    comparisons: Sequence[Comparison],
    scorers: dict[str, dict[str, Any]],
) -> list[str]:
    found = []
    for label, stored in scorers.items():
        if str(stored.get("identity", {}).get("illustrative", "")).lower() == "true":
            found.append(
                f"Scorer {label} was trained on the bundled illustrative samples: its scores show that the chain works "
                "and say nothing about any supporter."
            )
    for entry in entries:
        done, total = len(entry.transcripts) - sum(entry.missing.values()), len(entry.transcripts)
        failed = sum(n for reason, n in entry.end_reasons.items() if reason.startswith("supporter"))
        if done < total:
            fault = f"; {failed} of them by the supporter's fault, which flatters it" if failed else ""
            found.append(f"{entry.label}: {total - done} of {total} dialogues have no score and are left out{fault}.")
        cards = entry.figures[AVERAGE].percent.n_cards
        if 0 < cards < FEW_CARDS:
            found.append(f"{entry.label}: only {cards} cards; intervals of so few are rough.")
    averages = [comparison.by_column[AVERAGE] for comparison in comparisons]
    if any(average.only_a or average.only_b for average in averages):
        shared = sorted({average.interval.n_cards for average in averages})
        span = f"{shared[0]}" if len(shared) == 1 else f"{shared[0]} to {shared[-1]}"
        found.append(f"Supporters are compared on the cards that both of a pair have scores for: {span} cards.")
    # All signs alike on n cards has a two-sided p of 2 / 2^n: below six cards it cannot get under 0.05.
    if any(average.interval.n_cards > 0 and 2 / 2**average.interval.n_cards > ALPHA for average in averages):
        found.append("On fewer than six shared cards no difference can be called clear, however large it is.")
    return found + [note for run in runs for note in dict.fromkeys(run.notes)]


def finished(entry: Entry) -> int:
    """Number of dialogues that are whole: no side failed."""
    return sum(count for reason, count in entry.end_reasons.items() if not EndReason(reason).is_fault)
