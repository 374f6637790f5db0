"""The result of an ablation: mean over seeds with an interval, and the difference to the base, seed by seed. Pure."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """One training; without a value `failure` says why."""

    variant: str
    seed: int
    value: float | None = None
    trainable_parameters: int | None = None
    steps: int | None = None
    train_seconds: float | None = None
    failure: str | None = None
    held_out_tokens: int | None = None
    """With loss; None for a scorer and without held-out data."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; the limits are None where fewer than two seeds make an interval impossible."""

    mean: float
    n: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Summary:
    """One variant."""

    variant: str
    value: Estimate | None
    """None when every seed failed."""
    difference: Estimate | None
    """To the base over the seeds that both finished; None for the base itself, and where there is none."""
    trainable_parameters: int | None
    train_seconds: float | None
    failed: int
    held_out_tokens: tuple[int, ...] = ()
    """The different numbers of held-out tokens its trainings were measured on; more than one is a warning."""


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and Student's t interval over seeds (Student 1908): right for means of few, nearly normal values."""
    from scipy.stats import t

    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, len(values))
    half = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Estimate(mean, len(values), mean - half, mean + half)


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary a variant in the order of the rows, the first of which is the base's."""
    names = list(dict.fromkeys(row.variant for row in rows))
    by_name = {name: [row for row in rows if row.variant == name] for name in names}
    base = _values(by_name[names[0]]) if names else {}
    result = []
    for name in names:
        values = _values(by_name[name])
        paired = [value - base[seed] for seed, value in values.items() if seed in base]
        done = [row for row in by_name[name] if row.value is not None]
        result.append(
            Summary(
                name,
                estimate(list(values.values())) if values else None,
                estimate(paired) if paired and name != names[0] else None,
                done[0].trainable_parameters if done else None,
                fmean(row.train_seconds or 0.0 for row in done) if done else None,
                len(by_name[name]) - len(done),
                tuple(sorted({row.held_out_tokens for row in done if row.held_out_tokens is not None})),
            )
        )
    return result


def _values(rows: Sequence[Row]) -> dict[int, float]:
    return {row.seed: row.value for row in rows if row.value is not None}


def csv_text(rows: Sequence[Row]) -> str:
    """Tidy: one line a training."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue()


def markdown(summaries: Sequence[Summary], metric: str) -> str:
    """The table, and under it what its columns mean."""
    lines = [
        f"| variant | {metric} | difference to the base | seeds | trainable parameters | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for found in summaries:
        count = str(found.value.n if found.value else 0) + (f" ({found.failed} failed)" if found.failed else "")
        parameters = "" if found.trainable_parameters is None else f"{found.trainable_parameters:,}"
        seconds = "" if found.train_seconds is None else f"{found.train_seconds:.0f}"
        cells = (_plain(found.variant), _shown(found.value), _shown(found.difference, True), count, parameters, seconds)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{_meaning(summaries)}\n"


def _meaning(summaries: Sequence[Summary]) -> str:
    tokens = {count for found in summaries for count in found.held_out_tokens}
    text = _of_intervals(summaries)
    if len(tokens) > 1:
        text += (
            f"\n\nNot all were measured on the same held-out text: {min(tokens):,} to {max(tokens):,} tokens. "
            "A prompt or max_length that differs keeps other turns, and part of a difference may come from that."
        )
    return text


def _of_intervals(summaries: Sequence[Summary]) -> str:
    if not has_intervals(summaries):
        return "One seed: there is no interval, and a small difference may be chance."
    return (
        "Brackets: 95 % interval over seeds (Student's t). A seed draws the first adapter, the order of the rows and, "
        "with data.limit, the dialogues. The difference is taken seed by seed; where its brackets hold 0 it may be "
        "chance."
    )


def has_intervals(summaries: Sequence[Summary]) -> bool:
    """Whether any variant finished two seeds."""
    return any(found.value is not None and found.value.n > 1 for found in summaries)


def _shown(found: Estimate | None, signed: bool = False) -> str:
    if found is None:
        return ""
    number = f"{found.mean:+.4g}" if signed else f"{found.mean:.4g}"
    if found.low is None or found.high is None:
        return number
    return f"{number} [{found.low:.4g}, {found.high:.4g}]"


def _plain(name: str) -> str:
    return name.replace("|", "\\|").replace("\n", " ")


def plot(summaries: Sequence[Summary], metric: str) -> bytes:
    """The table as a picture, PNG: a dot a variant with its interval, the base as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [found for found in summaries if found.value is not None]
    drawing = Figure(figsize=(6.4, 0.9 + 0.34 * len(shown)), layout="constrained", dpi=150)
    FigureCanvasAgg(drawing)
    axes: Any = drawing.add_subplot()
    for place, found in enumerate(shown):
        value = found.value
        assert value is not None
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [place, place], color="#0072B2", lw=2.2, alpha=0.55)
        axes.plot(value.mean, place, "o", color="#0072B2" if place else "#3b3f45", ms=6)
    if shown and shown[0].value is not None:
        axes.axvline(shown[0].value.mean, color="#b9bec5", lw=1)
    axes.set_yticks(range(len(shown)), [found.variant[:48] for found in shown], parse_math=False)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel(f"{metric} ({'mean and 95 % interval over seeds' if has_intervals(summaries) else 'one seed'})")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    stream = io.BytesIO()
    drawing.savefig(stream, format="png")
    return stream.getvalue()
