"""Writes a report: report.md, report.html (one file, no network) and scores.csv.

All text is hostile: HTML goes through Jinja2's autoescape, every value in Markdown through `markdown_cell`, dialogues
lie in a JSON block, and the page's own policy forbids all loading and every script but the viewer's, by its hash.
Dialogues that one page cannot hold lie in pages beside it.
"""

import csv
import io
import re
from pathlib import Path
from typing import Any

from data_prep.records import write_text
from eval.report_audit import THRESHOLD
from eval.report_records import Report
from eval.report_text import (
    NOT_CLINICAL,
    agreement_rows,
    answer,
    audit_rows,
    count_rows,
    difference_row,
    heat_rows,
    leak_rows,
    ledger_rows,
    provenance_rows,
    rank_rows,
    reference_rows,
    reference_text,
    score_rows,
    slice_rows,
    variance_rows,
    visible,
)
from eval.report_viewer import SCRIPT, Part, script_hash, viewer_parts

TEMPLATES = Path(__file__).parent / "templates"
CSV_COLUMNS = ("run", "supporter", "card", "sample", "dimension", "expected", "level", "scorer", "reason")


def write_report(report: Report, out: str | Path) -> list[Path]:
    """Writes report.md, scores.csv, report.html and, where one page cannot hold all dialogues, dialogues-N.html.

    All go into the folder `out`, each atomically. Returns their paths.
    """
    out = Path(out)
    view = _view(report)
    parts = viewer_parts(report)
    names = [f"dialogues-{number}.html" for number in range(1, len(parts) + 1)] if len(parts) > 1 else []
    files = {out / "report.md": _markdown(view), out / "scores.csv": scores_csv(report)}
    files[out / "report.html"] = _html(
        "report.html.j2",
        view,
        parts[0] if len(parts) == 1 else None,
        {
            **_plots(report),
            "pages": [{"file": name, "part": part} for name, part in zip(names, parts, strict=False)],
        },
    )
    for name, part in zip(names, parts, strict=False):
        files[out / name] = _html("dialogues.html.j2", view, part, {"name": name})
    for path, text in files.items():
        # A lone surrogate is legal in JSON and in Python but not in a UTF-8 file.
        write_text(path, text.encode("utf-8", "replace").decode("utf-8"))
    for stale in out.glob("dialogues-*.html"):
        if stale not in files:
            stale.unlink()
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
        "columns": [visible(column.title) for column in report.columns],
        "heat": heat_rows(report),
        "audit": audit_rows(report),
        "threshold": f"{THRESHOLD:.0%}",
        "agreement": agreement_rows(report),
        "ledger": ledger_rows(report),
        "leaks": leak_rows(report),
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


def _plots(report: Report) -> dict[str, Any]:
    from markupsafe import Markup

    from eval.report_plot import difference_plot, distribution_plot, dot_plot

    return {
        "plot": Markup(dot_plot(report)),
        "gaps": Markup(difference_plot(report)) if len(report.entries) > 2 else None,
        "spread": Markup(distribution_plot(report)),
    }


def _html(template: str, view: dict[str, Any], part: Part | None, more: dict[str, Any]) -> str:
    """A page; `part` is the data of its viewer, None for a page without one."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True)
    viewer = None
    if part is not None:
        viewer = {"data": Markup(part.data), "script": Markup(SCRIPT), "dialogues": part.dialogues, "cards": part.cards}
    return environment.get_template(template).render(view, viewer=viewer, script_hash=script_hash(), **more)
