"""From scored runs to the figures of a report: pure, no files written (`report_pages.py` writes them).

One run gives a table; two or more are compared card by card. Figures are on 0..100 (percent of each dimension's
scale), means also in levels. The average is the plain mean of the dimensions of one dialogue, as in ESC-Eval, and is
missing when one of them is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from data_prep.errors import UserError
from data_prep.rubric import Rubric
from eval.families import same_family
from eval.report_audit import audit_warning, summarise_audit
from eval.report_records import ALPHA, AVERAGE, FEW_CARDS, Column, Comparison, Entry, Figure, Report
from eval.report_runs import check_comparable, choose_scorers, judgments_by, one_rubric
from eval.runs import EndReason, Judgment, Run, Transcript
from eval.score_spread import spread_warning
from eval.slices import make_slices
from eval.statistics import (
    RESAMPLES,
    Interval,
    card_means,
    holm,
    mean_interval,
    paired_difference,
    sign_flip_family,
    smallest_detectable_difference,
    to_percent,
    worst_case_bounds,
)
from eval.statistics_ranks import rank_intervals
from eval.statistics_variance import Components, Rated, variance_components
from eval.study import Agreement, agreement, people_of


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
    chosen = choose_scorers(runs, scorer, force, warnings)
    rubric = one_rubric(runs, chosen)
    check_comparable(runs, force, warnings)
    columns = _columns(rubric)
    entries = [
        entry
        for run, label in zip(runs, chosen, strict=True)
        for entry in _entries(run, label, rubric, columns, confidence, seed)
    ]
    _name_apart(entries)
    entries.sort(key=_by_average)
    comparisons = _compare(entries, columns, confidence, seed)
    _rank(entries, comparisons)
    cards = [transcript.card for entry in entries for transcript in entry.transcripts]
    slices = make_slices(cards, [entry.points[AVERAGE] for entry in entries], confidence, seed)
    scorers = {
        name: run.scorers()[name]
        for run, label in zip(runs, chosen, strict=True)
        for name in judgments_by(run, label)[0]
    }
    warnings += _warnings(runs, entries, comparisons, scorers)
    warnings += _spread(entries, rubric)
    return Report(
        list(runs),
        rubric,
        scorers,
        columns,
        entries,
        comparisons,
        confidence,
        seed,
        warnings,
        slices,
        agreement=_agreement(runs, entries, chosen, rubric, seed),
    )


def _spread(entries: Sequence[Entry], rubric: Rubric) -> list[str]:
    judgments = [judgment for entry in entries for judgment in entry.judgments.values()]
    label = " and ".join(sorted({judgment.scorer for judgment in judgments})) or "nobody"
    line = spread_warning(label, judgments, rubric.names())
    return [line] if line else []


def _agreement(
    runs: Sequence[Run], entries: Sequence[Entry], chosen: Sequence[str], rubric: Rubric, seed: int
) -> list[Agreement]:
    pairs = []
    for run, label in zip(runs, chosen, strict=True):
        people = people_of(run, rubric)
        if people is None or people == label:
            continue
        rated = judgments_by(run, people)[1]
        for entry in entries:
            if entry.run == str(run.folder):
                cards = {transcript.key: transcript.card.id for transcript in entry.transcripts}
                pairs.append((entry.label, entry.judgments, rated, cards))
    return agreement(rubric, pairs, seed)


def _columns(rubric: Rubric) -> list[Column]:
    scales = {dimension.scale for dimension in rubric.dimensions}
    shared = scales.pop() if len(scales) == 1 else None
    dimensions = [Column(d.name, d.title.en, d.scale) for d in rubric.dimensions]
    return [Column(AVERAGE, "Average", shared), *dimensions]


def _entries(
    run: Run, scorer: str, rubric: Rubric, columns: Sequence[Column], confidence: float, seed: int
) -> list[Entry]:
    """One entry a supporter: a run has one, unless it was merged."""
    _, judgments = judgments_by(run, scorer)
    grouped: dict[str, list[Transcript]] = {}
    for transcript in run.transcripts():
        grouped.setdefault(transcript.supporter, []).append(transcript)
    entries = []
    for supporter, transcripts in grouped.items():
        points: dict[str, dict[str, list[float]]] = {column.name: {} for column in columns}
        missing: Counter[str] = Counter()
        unscored: Counter[str] = Counter()
        by_dialogue: dict[str, dict[str, float]] = {}
        for transcript in transcripts:
            found = by_dialogue[transcript.key] = _points_of(transcript, judgments, rubric)
            for name, value in found.items():
                points[name].setdefault(transcript.card.id, []).append(value)
            if AVERAGE not in found:
                missing[_why_missing(transcript, judgments, rubric)] += 1
                unscored[transcript.card.id] += 1
        entries.append(
            Entry(
                label=supporter,
                run=str(run.folder),
                supporter=supporter,
                transcripts=transcripts,
                judgments={key: j for key, j in judgments.items() if key[0] in by_dialogue},
                points=points,
                dialogue_points=by_dialogue,
                audit=summarise_audit(transcripts, run.settings.get("simulation", {}).get("rounds")),
                figures={column.name: _figure(points[column.name], column, confidence, seed) for column in columns},
                end_reasons=Counter(transcript.end_reason.value for transcript in transcripts),
                missing=missing,
                cut_turns=sum(t.speaker == "supporter" and t.finish == "length" for x in transcripts for t in x.turns),
                bounds=worst_case_bounds(points[AVERAGE], unscored, 0, 100),
                variance=_variance(run, transcripts, rubric),
            )
        )
    return entries


def _variance(run: Run, transcripts: Sequence[Transcript], rubric: Rubric) -> Components | None:
    """Components of the average over all scorers that judged this run on the same rubric."""
    by_scorer: dict[str, dict[tuple[str, str], Judgment]] = {}
    for judgment in run.judgments():
        if judgment.rubric == rubric.name:
            by_scorer.setdefault(judgment.scorer, {})[judgment.dialogue_key, judgment.dimension] = judgment
    values = [
        Rated(transcript.card.id, transcript.key, scorer, found[AVERAGE])
        for scorer, judgments in by_scorer.items()
        for transcript in transcripts
        if AVERAGE in (found := _points_of(transcript, judgments, rubric))
    ]
    repeated = len({value.dialogue for value in values}) > len({value.card for value in values})
    return variance_components(values) if repeated or len(by_scorer) > 1 else None


def _rank(entries: Sequence[Entry], comparisons: Sequence[Comparison]) -> None:
    scored = [entry for entry in entries if entry.figures[AVERAGE].percent.mean is not None]
    if len(scored) < 2:
        return
    places = {id(entry): place for place, entry in enumerate(scored)}
    clear = []
    for comparison in comparisons:
        mean = comparison.by_column[AVERAGE].interval.mean
        if comparison.clear and mean is not None:
            pair = (comparison.a, comparison.b) if mean > 0 else (comparison.b, comparison.a)
            clear.append((places[id(pair[0])], places[id(pair[1])]))
    for entry, rank in zip(scored, rank_intervals(len(scored), clear), strict=True):
        entry.rank = rank


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
            a,
            b,
            {
                c.name: paired_difference(a.points[c.name], b.points[c.name], confidence, seed, test=False)
                for c in columns
            },
        )
        for a, b in combinations(entries, 2)
    ]
    dimensions = [column.name for column in columns if column.name != AVERAGE]
    for names in ([AVERAGE], dimensions):
        family = [(comparison, name) for comparison in comparisons for name in names]
        _test(family, seed)
        adjusted = holm([comparison.by_column[name].p_value for comparison, name in family])
        for (comparison, name), p in zip(family, adjusted, strict=True):
            comparison.holm_p[name] = p
    return comparisons


def _test(family: Sequence[tuple[Comparison, str]], seed: int) -> None:
    """p values of tests that are corrected together: with so many flips that the correction over all of them does not
    make every p value too large."""
    tests = [comparison.by_column[name].differences for comparison, name in family]
    found = sign_flip_family(tests, seed, max(RESAMPLES, int(20 * len(family) / ALPHA)))
    for (comparison, name), p in zip(family, found, strict=True):
        comparison.by_column[name] = replace(comparison.by_column[name], p_value=p)


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
    for label, stored in scorers.items():
        own = same_family(str(stored.get("identity", {}).get("base") or label), [entry.supporter for entry in entries])
        if own and stored.get("identity", {}).get("kind") in ("llm", "generative"):
            found.append(f"Judge {label} is of the family of {', '.join(own)}, and judges may favour their own kind.")
    for entry in entries:
        done, total = len(entry.transcripts) - sum(entry.missing.values()), len(entry.transcripts)
        failed = sum(n for reason, n in entry.end_reasons.items() if reason.startswith("supporter"))
        if done < total:
            fault = f"; {failed} of them by the supporter's fault, which flatters it" if failed else ""
            found.append(f"{entry.label}: {total - done} of {total} dialogues have no score and are left out{fault}.")
        cards = entry.figures[AVERAGE].percent.n_cards
        if 0 < cards < FEW_CARDS:
            found.append(f"{entry.label}: only {cards} cards; intervals of so few are rough.")
    if line := audit_warning({entry.label: entry.audit for entry in entries}):
        found.append(line)
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
