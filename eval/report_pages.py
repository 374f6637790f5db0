"""Writes a report: report.md, report.html (one file, no script, no network) and scores.csv.

All text is hostile: HTML goes through Jinja2's autoescape, every value in Markdown through `markdown_cell`, and the
page forbids scripts and loading by its own policy.
"""

import csv
import io
import re
from pathlib import Path
from typing import Any

from data_prep.records import write_text
from eval.report import AVERAGE, Entry, Report
from eval.report_text import (
    NONE,
    NOT_CLINICAL,
    answer,
    count_rows,
    difference_row,
    number,
    provenance_rows,
    rank_rows,
    reference_rows,
    reference_text,
    score_rows,
    slice_rows,
    variance_rows,
    visible,
)
from eval.runs import EndReason, Transcript

TEMPLATES = Path(__file__).parent / "templates"
CSV_COLUMNS = ("run", "supporter", "card", "sample", "dimension", "expected", "level", "scorer", "reason")


def write_report(report: Report, out: str | Path) -> list[Path]:
    """Writes the three files into the folder `out`, each atomically, and returns their paths."""
    out = Path(out)
    view = _view(report)
    files = {
        out / "report.md": _markdown(view),
        out / "report.html": _html(report, view),
        out / "scores.csv": scores_csv(report),
    }
    for path, text in files.items():
        # A lone surrogate is legal in JSON and in Python but not in a UTF-8 file.
        write_text(path, text.encode("utf-8", "replace").decode("utf-8"))
    return list(files)


def markdown_cell(value: Any) -> str:
    """A value as Markdown text that is one line, holds no markup and cannot leave its table cell."""
    text = visible(" ".join(str(value).split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~$#!])", r"\\\1", text)


def scores_csv(report: Report) -> str:
    """Tidy: one row a dialogue and dimension; `expected` and `level` are empty, with a reason, where missing."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for entry in report.entries:
        for transcript in entry.transcripts:
            for name in report.rubric.names():
                judgment = entry.judgments.get((transcript.key, name))
                values: tuple[Any, ...] = (None, None, None, "not scored yet")
                if judgment is not None:
                    values = (judgment.expected, judgment.level, judgment.scorer, judgment.reason)
                writer.writerow([entry.run, entry.supporter, transcript.card.id, transcript.sample, name, *values])
    return stream.getvalue()


def _view(report: Report) -> dict[str, Any]:
    """What both templates show, as text."""
    from eval.report_plot import colour

    head, detail = answer(report)
    pairs = [difference_row(c, column) for c in report.comparisons for column in report.columns]
    two = len(report.entries) == 2
    return {
        "head": head,
        "detail": detail,
        "not_clinical": NOT_CLINICAL,
        "warnings": [visible(warning) for warning in report.warnings],
        "percent": f"{report.confidence * 100:g} %",
        "pairs": pairs,
        "two": two,
        "ranks": rank_rows(report),
        "colours": {visible(entry.label): colour(place) for place, entry in enumerate(report.entries)},
        "entries": [
            {"label": visible(entry.label), "rows": score_rows(entry, report), "colour": colour(place)}
            for place, entry in enumerate(report.entries)
        ],
        "slices": slice_rows(report),
        "variance": variance_rows(report),
        "reference": reference_rows(report),
        "reference_notes": reference_text(report),
        "counts": count_rows(report),
        "runs": [visible(run.folder.name) for run in report.runs],
        "provenance": provenance_rows(report),
        "rubric": visible(f"{report.rubric.name} {report.rubric.version}"),
        "scorers": visible(", ".join(report.scorers)),
    }


def _markdown(view: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, finalize=markdown_cell, autoescape=False
    )
    text = environment.get_template("report.md.j2").render(view)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _html(report: Report, view: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from eval.report_plot import dot_plot

    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("report.html.j2").render(
        view, plot=Markup(dot_plot(report)), cards=_cards(report, view)
    )


def _cards(report: Report, view: dict[str, Any]) -> list[dict[str, Any]]:
    """The dialogues of every card side by side, cards in the order of the first run that has them."""
    cards: dict[str, dict[str, Any]] = {}
    for entry, shown in zip(report.entries, view["entries"], strict=True):
        means = {card: sum(points) / len(points) for card, points in entry.points[AVERAGE].items()}
        for transcript in sorted(entry.transcripts, key=lambda transcript: transcript.sample):
            identifier = transcript.card.id
            card = cards.setdefault(
                identifier,
                {
                    "id": visible(identifier),
                    "language": transcript.card.language,
                    "text": transcript.card.as_text(),
                    "scores": [],
                    "dialogues": [],
                },
            )
            if not any(score["label"] == shown["label"] for score in card["scores"]):
                mean = number(means.get(identifier))
                card["scores"].append({"label": shown["label"], "colour": shown["colour"], "mean": mean})
            card["dialogues"].append(
                {**_dialogue(transcript, entry, report), **{k: shown[k] for k in ("label", "colour")}}
            )
    return list(cards.values())


def _dialogue(transcript: Transcript, entry: Entry, report: Report) -> dict[str, Any]:
    found = []
    for dimension in report.rubric.dimensions:
        judgment = entry.judgments.get((transcript.key, dimension.name))
        value = judgment.expected if judgment is not None else None
        found.append(f"{visible(dimension.title.en)} {number(value) if value is not None else NONE}")
    ended = None
    if transcript.end_reason is not EndReason.rounds:
        ended = visible(": ".join(filter(None, (transcript.end_reason.value, transcript.detail))))
    return {
        "sample": transcript.sample,
        "scores": " · ".join(found),
        "ended": ended,
        "turns": [
            {"speaker": t.speaker, "text": t.text, "thinking": t.thinking, "cut": t.finish == "length"}
            for t in transcript.turns
        ],
    }
