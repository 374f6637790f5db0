"""The words and formatted figures of a report, shared by its Markdown and its HTML page."""

import json
import unicodedata
from typing import Any

from eval.report_records import ALPHA, AVERAGE, Column, Comparison, Entry, Report
from eval.statistics import Interval, PairedDifference
from eval.statistics_variance import Components

NOT_CLINICAL = "Scores compare supporters under this seeker and rubric; they are not clinical judgments."
NONE = "–"


def visible(text: str) -> str:
    """Control and direction characters as `⟨U+202E⟩`: in a name or reason they can only mislead the reader."""
    return "".join(f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def number(value: float | None, digits: int = 1, signed: bool = False) -> str:
    """A figure with a true minus sign, `–` for a missing one."""
    if value is None:
        return NONE
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    # −0.0 is 0.0.
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", "−")


def limits(interval: Interval, digits: int = 1, signed: bool = False) -> str:
    """`50.1 to 61.3`, or why there is none."""
    if interval.low is None:
        return f"none: {interval.reason}" if interval.reason else NONE
    return f"{number(interval.low, digits, signed)} to {number(interval.high, digits, signed)}"


def p_text(p: float | None) -> str:
    if p is None:
        return NONE
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def answer(report: Report) -> tuple[str, str]:
    """Which supporter is better (one line), and by how much and how surely (one or two sentences)."""
    if len(report.entries) == 1:
        return _answer_for_one(report)
    if len(report.entries) == 2:
        return _answer_for_two(report)
    best = report.entries[0]
    mean = best.figures[AVERAGE].percent.mean
    if mean is None:
        return "No supporter has a score", "The counts below say why."
    with_best = [comparison for comparison in report.comparisons if comparison.a is best]
    beaten = [f"{visible(c.b.label)} ({_short(c)})" for c in with_best if c.clear]
    level_with = [f"{visible(c.b.label)} ({_short(c)})" for c in with_best if not c.clear]
    detail = "Differences in points of 100, on shared cards, corrected for all pairs (Holm). "
    detail += f"Clearly ahead of {', '.join(beaten)}. " if beaten else "Clearly ahead of none. "
    detail += f"Not clearly ahead of {', '.join(level_with)}." if level_with else ""
    return f"{visible(best.label)} has the highest average: {number(mean)} of 100", detail.strip()


def _answer_for_one(report: Report) -> tuple[str, str]:
    entry = report.entries[0]
    figure = entry.figures[AVERAGE]
    if figure.percent.mean is None:
        return f"{visible(entry.label)} has no score", "The counts below say why."
    head = f"{visible(entry.label)} scores {number(figure.percent.mean)} of 100 on average"
    detail = f"{_percent(report)} interval {limits(figure.percent)}, over {figure.percent.n_cards} cards."
    if figure.detectable is not None:
        detail += (
            f" Another supporter on as many cards would have to differ by about {number(figure.detectable)} points to "
            "be told apart surely enough; pairing on the same cards usually needs less."
        )
    return head, detail


def _answer_for_two(report: Report) -> tuple[str, str]:
    comparison = report.comparisons[0]
    a, b = visible(comparison.a.label), visible(comparison.b.label)
    average = comparison.by_column[AVERAGE]
    if average.interval.mean is None:
        return f"{a} and {b} cannot be compared", "They share no card on which both have a score."
    sure = (
        f"{_percent(report)} interval {limits(average.interval, signed=True)}; "
        f"p {_equals(comparison.holm_p[AVERAGE])}; {average.interval.n_cards} shared cards"
    )
    if comparison.clear:
        head = f"{a} scores higher than {b}, by {number(average.interval.mean)} points of 100"
        return head, f"Average of all dimensions, paired on cards: {sure}."
    detail = f"{a} minus {b}: {number(average.interval.mean, signed=True)} points of 100 ({sure})."
    if average.detectable is not None:
        detail += f" A true difference below about {number(average.detectable)} points would often be missed here."
    return f"No clear difference between {a} and {b}", detail


def _short(comparison: Comparison) -> str:
    return number(comparison.by_column[AVERAGE].interval.mean, signed=True)


def _equals(p: float | None) -> str:
    return p_text(p) if p is not None and p < 0.001 else f"= {p_text(p)}"


def _percent(report: Report) -> str:
    return f"{report.confidence * 100:g} %"


def score_rows(entry: Entry, report: Report) -> list[dict[str, Any]]:
    """One row a column: mean and interval in levels and on 0..100."""
    rows = []
    for column in report.columns:
        figure = entry.figures[column.name]
        rows.append(
            {
                "title": visible(column.title),
                "average": column.name == AVERAGE,
                "level": number(figure.level.mean, 2) if figure.level else NONE,
                "level_limits": limits(figure.level, 2) if figure.level else NONE,
                "percent": number(figure.percent.mean),
                "percent_limits": limits(figure.percent),
                "cards": figure.percent.n_cards,
                "detectable": number(figure.detectable),
            }
        )
    return rows


def difference_row(comparison: Comparison, column: Column) -> dict[str, Any]:
    """One paired difference as text."""
    found = comparison.by_column[column.name]
    p = comparison.holm_p[column.name]
    mean = found.interval.mean
    clear = p is not None and mean is not None and p < ALPHA
    higher = (comparison.a if (mean or 0) > 0 else comparison.b).label
    return {
        "a": visible(comparison.a.label),
        "b": visible(comparison.b.label),
        "title": visible(column.title),
        "average": column.name == AVERAGE,
        "difference": number(mean, signed=True),
        "limits": limits(found.interval, signed=True),
        "p": p_text(p),
        "detectable": number(found.detectable),
        "superiority": superiority_text(found),
        "cards": found.interval.n_cards,
        "clear": clear,
        "higher": visible(higher) if clear else None,
    }


def rank_rows(report: Report) -> list[dict[str, Any]]:
    """The leaderboard: every supporter's average, and how far it is behind the best on the cards they share."""
    best = report.entries[0]
    behind = {c.b.label: difference_row(c, report.columns[0]) for c in report.comparisons if c.a is best}
    rows = []
    for entry in report.entries:
        figure = entry.figures[AVERAGE].percent
        rows.append(
            {
                "label": visible(entry.label),
                "percent": number(figure.mean),
                "limits": limits(figure),
                "rank": rank_text(entry),
                "group": entry.rank.group if entry.rank else NONE,
                "bounds": bounds_text(entry),
                "behind": behind.get(entry.label),
            }
        )
    return rows


def rank_text(entry: Entry) -> str:
    if entry.rank is None:
        return NONE
    low, high = entry.rank.low, entry.rank.high
    return f"{low}" if low == high else f"{low} to {high}"


def bounds_text(entry: Entry) -> str:
    """The average were all missing dialogues as bad, or as good, as can be."""
    if entry.bounds is None:
        return NONE
    low, high = entry.bounds
    return "nothing missing" if low == high else f"{number(low)} to {number(high)}"


def superiority_text(found: PairedDifference) -> str:
    """Share of cards on which the first is better, as percent with its interval."""
    one = found.superiority
    if one.mean is None:
        return NONE
    text = f"{one.mean * 100:.0f} %"
    return text if one.low is None or one.high is None else f"{text} ({one.low * 100:.0f} to {one.high * 100:.0f})"


def slice_rows(report: Report) -> list[dict[str, Any]]:
    """One row a slice, one cell a supporter; with two supporters their difference, too."""
    rows = []
    for part in report.slices:
        row = {"kind": part.kind, "value": visible(part.value), "cards": part.cards, "difference": None}
        row["cells"] = [
            f"{number(mean.mean)} ({limits(mean)})" if mean.low else number(mean.mean) for mean in part.means
        ]
        if len(report.entries) == 2 and (behind := part.behind[1]) is not None:
            row["difference"] = f"{number(behind.interval.mean, signed=True)} ({limits(behind.interval, signed=True)})"
        rows.append(row)
    return rows


def variance_rows(report: Report) -> list[dict[str, Any]]:
    """Standard deviations, in points of 100, of what repeats; nothing where nothing does."""

    def shown(value: float | None, name: str, found: Components) -> str:
        if value is None:
            return NONE
        return f"{number(value**0.5)} (estimate below zero)" if name in found.below_zero else number(value**0.5)

    rows = []
    for entry in report.entries:
        if (found := entry.variance) is not None:
            rows.append(
                {
                    "label": visible(entry.label),
                    "card": shown(found.card, "card", found),
                    "sample": shown(found.sample, "sample", found),
                    "judge": shown(found.judge, "judge", found),
                    "rest": shown(found.rest, "rest", found),
                    "counts": f"{found.cards} cards, {found.dialogues} dialogues, {found.judges} judges",
                }
            )
    return rows


def reference_rows(report: Report) -> list[dict[str, Any]]:
    """Published systems and ours in one list by their averages; `ours` marks a row of this report."""
    if report.reference is None:
        return []
    there = report.reference.matched
    rows: list[dict[str, Any]] = [
        {"label": visible(name), "average": row[AVERAGE], "ours": False, "same": NONE}
        for name, row in report.reference.systems.items()
    ]
    for entry in report.entries:
        mean = entry.figures[AVERAGE].percent.mean
        same = visible(there.get(entry.label, "not in the table"))
        rows.append({"label": visible(entry.label), "average": mean, "ours": True, "same": same})
    rows.sort(key=lambda row: -(row["average"] if row["average"] is not None else -1))
    return [{**row, "average": number(row["average"], 2)} for row in rows]


def reference_text(report: Report) -> list[str]:
    """What may be compared with the published table, and how far both orders agree."""
    if report.reference is None:
        return []
    tau = report.reference.tau
    agreement = "The orders cannot be compared" if tau.mean is None else f"Kendall's tau-b {number(tau.mean, 2)}"
    over = f"{tau.n_cards} systems on both sides"
    return [
        *map(visible, report.reference.notes),
        f"{agreement}: {_percent(report)} interval {limits(tau, 2)}; {over}.",
    ]


def audit_rows(report: Report) -> list[dict[str, Any]]:
    """One row a fault that anybody has, one cell a supporter; `above` marks those over the threshold."""
    rows = []
    for place, rate in enumerate(report.entries[0].audit.rates):
        found = [entry.audit.rates[place] for entry in report.entries]
        if not any(one.dialogues for one in found):
            continue
        cells = []
        for one, entry in zip(found, report.entries, strict=True):
            text = NONE
            if one.share is not None and one.low is not None and one.high is not None:
                text = f"{one.share:.0%} ({one.low:.0%} to {one.high:.0%})"
            cells.append({"text": text, "above": one in entry.audit.above})
        rows.append({"side": rate.side, "fault": rate.fault, "cells": cells})
    return rows


def heat_rows(report: Report) -> list[dict[str, Any]]:
    """One row a supporter, one cell a column: the mean on 0..100, and a shade from 0 to 1 within what occurs."""
    means = [[entry.figures[column.name].percent.mean for column in report.columns] for entry in report.entries]
    known = [mean for row in means for mean in row if mean is not None]
    low, span = (min(known), (max(known) - min(known)) or 1.0) if known else (0.0, 1.0)
    return [
        {
            "label": visible(entry.label),
            "cells": [
                {"text": number(mean), "shade": None if mean is None else round((mean - low) / span, 2)} for mean in row
            ],
        }
        for entry, row in zip(report.entries, means, strict=True)
    ]


def leak_rows(report: Report) -> list[dict[str, Any]] | None:
    """What the cards share with each training file, kinds with nothing shared left out; None without such files."""
    from data_prep.leaks import ABOUT

    if report.leaks is None:
        return None
    return [
        {
            "file": visible(name),
            "found": "; ".join(f"{leak.shared} × {ABOUT[leak.kind]}" for leak in leaks if leak.shared)
            or "nothing shared",
        }
        for name, leaks in report.leaks
    ]


def agreement_rows(report: Report) -> list[dict[str, Any]]:
    """Judge and people, one row a dimension: kappa, Spearman, MAE, and the same of the constant."""
    rows = []
    titles = {column.name: column.title for column in report.columns}
    for one in report.agreement:
        row: dict[str, Any] = {"title": visible(titles[one.dimension]), "dialogues": one.dialogues}
        for name in ("kappa", "spearman", "mae", "within_one"):
            judge, constant = one.judge[name], one.constant[name]
            interval = f" ({limits(judge, 2)})" if judge.low is not None else ""
            row[name] = f"{number(judge.mean, 2)}{interval}"
            row[f"constant_{name}"] = number(constant.mean, 2)
        rows.append(row)
    return rows


def ledger_rows(report: Report) -> list[dict[str, str]]:
    """What went in, and what its licences forbid."""
    from eval.licences import ledger

    sources = {str(t.card.meta.get("source", t.card.source)) for entry in report.entries for t in entry.transcripts}
    return [
        {"kind": row.kind, "name": visible(row.name), "licence": visible(row.licence), "forbids": row.forbids}
        for row in ledger(report.runs, report.scorers, sources)
    ]


def count_rows(report: Report) -> list[dict[str, Any]]:
    """Dialogues, scores and end reasons of every supporter."""

    def listed(counts: Any) -> str:
        return ", ".join(f"{visible(reason)}: {n}" for reason, n in sorted(counts.items())) or "none"

    return [
        {
            "label": visible(entry.label),
            "dialogues": len(entry.transcripts),
            "cards": len({transcript.card.id for transcript in entry.transcripts}),
            "scored": len(entry.transcripts) - sum(entry.missing.values()),
            "ends": listed(entry.end_reasons),
            "missing": listed(entry.missing),
            "bounds": bounds_text(entry),
            "cut": entry.cut_turns,
        }
        for entry in report.entries
    ]


def provenance_rows(report: Report) -> list[dict[str, Any]]:
    """Every setting of the manifests as `name`, `values` (one a run; a single one where all agree)."""
    flats = [
        flatten({"settings": run.settings, "environment": run.manifest.get("environment", {})}) for run in report.runs
    ]
    rows = []
    for name in dict.fromkeys(name for flat in flats for name in flat):
        values = [visible(flat.get(name, NONE)) for flat in flats]
        rows.append({"name": visible(name), "values": values[:1] if len(set(values)) == 1 else values})
    for label, stored in report.scorers.items():
        for name, value in flatten(stored.get("identity", {})).items():
            rows.append({"name": visible(f"scorer {label} {name}"), "values": [visible(value)]})
    rubric = report.rubric
    rows.append({"name": "rubric", "values": [visible(f"{rubric.name} version {rubric.version} ({rubric.sha})")]})
    method = (
        "samples averaged within a card; BCa bootstrap over cards (9,999 resamples); sign-flip permutation tests; "
        f"Holm's correction; seed {report.seed}"
    )
    rows.append({"name": "statistics", "values": [method]})
    return rows


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """Leaves of nested dicts by dotted name, as text."""
    if isinstance(value, dict) and value:
        leaves: dict[str, str] = {}
        for key, below in value.items():
            leaves |= flatten(below, f"{name}.{key}" if name else str(key))
        return leaves
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {name: text if len(text) <= 600 else f"{text[:600]} … ({len(text)} characters)"}
