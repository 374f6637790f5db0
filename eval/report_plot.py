"""The plots of a report as inline SVG: means with intervals, differences to the first, spread over cards."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from eval.report_records import AVERAGE, Report
from eval.statistics import Interval

# Okabe and Ito's colours, which stay apart for colour-blind readers; the marker changes when they run out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A")
MARKERS = ("o", "s", "D", "^", "v")
INK, GRID = "#3b3f45", "#e3e5e8"


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def dot_plot(report: Report) -> str:
    """An `<svg>` element: one row a column, one dot a supporter on 0..100, a line for its interval."""
    height = 0.62 + len(report.columns) * max(0.42, 0.13 * len(report.entries) + 0.16)
    step = 0.8 / max(1, len(report.entries))

    def draw(axes: Any) -> None:
        for place, entry in enumerate(report.entries):
            for row, column in enumerate(report.columns):
                y = row + (place - (len(report.entries) - 1) / 2) * min(step, 0.28)
                _dot(axes, entry.figures[column.name].percent, y, place)
        _decorate(axes, report)

    return _svg(height, draw)


def difference_plot(report: Report) -> str:
    """The first supporter minus each other one, on the average, in points of 100, with intervals; none for one."""
    behind = [comparison for comparison in report.comparisons if comparison.a is report.entries[0]]
    places = {id(entry): place for place, entry in enumerate(report.entries)}

    def draw(axes: Any) -> None:
        for row, comparison in enumerate(behind):
            _dot(axes, comparison.by_column[AVERAGE].interval, row, places[id(comparison.b)])
        names = [_printable(comparison.b.label) for comparison in behind]
        _rows(axes, names, f"{_printable(report.entries[0].label)} minus this, points of 100")
        axes.axvline(0, color=INK, lw=0.9)

    return _svg(0.7 + 0.36 * len(behind), draw) if behind else ""


def distribution_plot(report: Report) -> str:
    """How the cards' averages are spread: the middle half in a box, lines to the 5th and 95th percent, dots beyond."""
    values = [
        [sum(points) / len(points) for points in entry.points[AVERAGE].values() if points] for entry in report.entries
    ]

    def draw(axes: Any) -> None:
        for place, found in enumerate(values):
            if found:
                box = axes.boxplot(
                    found,
                    positions=[place],
                    orientation="horizontal",
                    widths=0.55,
                    whis=(5, 95),
                    patch_artist=True,
                    flierprops={"marker": ".", "ms": 3, "mec": colour(place), "mfc": colour(place)},
                    medianprops={"color": "white", "lw": 1.6},
                )
                for part in (*box["whiskers"], *box["caps"]):
                    part.set_color(colour(place))
                box["boxes"][0].set(facecolor=colour(place), edgecolor=colour(place), alpha=0.85)
        _rows(axes, [_printable(entry.label) for entry in report.entries], "average of a card (0 to 100)")
        axes.set_xlim(0, 100)

    return _svg(0.7 + 0.42 * len(values), draw)


def _dot(axes: Any, interval: Interval, y: float, place: int) -> None:
    if interval.mean is None:
        return
    if interval.low is not None and interval.high is not None:
        axes.plot([interval.low, interval.high], [y, y], color=colour(place), lw=2.2, alpha=0.55)
    marker = MARKERS[place // len(COLOURS) % len(MARKERS)]
    axes.plot(interval.mean, y, marker, color=colour(place), ms=6.5, mec="white", mew=0.8)


def _svg(height: float, draw: Callable[[Any], None]) -> str:
    """A figure as one `<svg>` element.

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
        figure = Figure(figsize=(6.0, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        stream = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    # An HTML page wants the element alone: no XML prologue, no doctype.
    svg = stream.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:40]


def _rows(axes: Any, names: Sequence[str], unit: str) -> None:
    """One named row each, the first on top."""
    # parse_math off: a name with two dollar signs is a name, not a formula.
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(unit, color=INK, parse_math=False)
    axes.grid(axis="x", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)


def _decorate(axes: Any, report: Report) -> None:
    _rows(axes, [_printable(column.title) for column in report.columns], "percent of the scale (0 to 100)")
    for label, column in zip(axes.get_yticklabels(), report.columns, strict=True):
        label.set_fontweight("bold" if column.name == AVERAGE else "normal")
        label.set_color(INK)
    axes.axhline(0.5, color="#b9bec5", lw=0.8)
    axes.set_xlim(0, 100)
