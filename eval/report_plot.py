"""The one plot of a report: means with their intervals, per dimension and supporter, as inline SVG."""

import io
import re
import warnings
from typing import Any

from eval.report import AVERAGE, Report

# Okabe and Ito's colours, which stay apart for colour-blind readers; the marker changes when they run out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A")
MARKERS = ("o", "s", "D", "^", "v")
INK, GRID = "#3b3f45", "#e3e5e8"


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def dot_plot(report: Report) -> str:
    """An `<svg>` element: one row a column, one dot a supporter on 0..100, a line for its interval.

    Text stays text, so that the reader's own fonts show Chinese titles; matplotlib escapes it. The same report gives
    the same bytes.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "esckit", "font.size": 10.5}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Chinese glyphs that matplotlib's own font lacks are drawn by the browser, not by it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        step = 0.8 / max(1, len(report.entries))
        height = 0.62 + len(report.columns) * max(0.42, 0.13 * len(report.entries) + 0.16)
        figure = Figure(figsize=(6.0, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for place, entry in enumerate(report.entries):
            for row, column in enumerate(report.columns):
                interval = entry.figures[column.name].percent
                if interval.mean is None:
                    continue
                y = row + (place - (len(report.entries) - 1) / 2) * min(step, 0.28)
                if interval.low is not None and interval.high is not None:
                    axes.plot([interval.low, interval.high], [y, y], color=colour(place), lw=2.2, alpha=0.55)
                marker = MARKERS[place // len(COLOURS) % len(MARKERS)]
                axes.plot(interval.mean, y, marker, color=colour(place), ms=6.5, mec="white", mew=0.8)
        _decorate(axes, report)
        stream = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    # An HTML page wants the element alone: no XML prologue, no doctype.
    svg = stream.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


def _decorate(axes: Any, report: Report) -> None:
    # parse_math off: a title with two dollar signs is a title, not a formula.
    titles = ["".join(c for c in column.title if c.isprintable())[:40] for column in report.columns]
    axes.set_yticks(range(len(titles)), titles, parse_math=False)
    for label, column in zip(axes.get_yticklabels(), report.columns, strict=True):
        label.set_fontweight("bold" if column.name == AVERAGE else "normal")
        label.set_color(INK)
    axes.set_ylim(len(titles) - 0.5, -0.5)
    axes.axhline(0.5, color="#b9bec5", lw=0.8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the scale (0 to 100)", color=INK)
    axes.grid(axis="x", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)
