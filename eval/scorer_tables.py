"""A scorer's evaluation as a terminal table, a Markdown page and tidy CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval.scorer_figures import FIGURES

PREDICTORS = {
    "scorer": "scorer",
    "constant": "constant",
    "length": "length only",
    "tfidf": "TF-IDF",
    "human": "one rater",
}
SHORT = {
    "accuracy": "ACC",
    "within_one": "ACC_soft",
    "macro_f1": "macro-F1",
    "kappa": "kappa",
    "spearman": "Spearman",
    "kendall": "Kendall",
    "mae": "MAE",
    "bias": "bias",
    "ece": "ECE",
}
"""Every figure, in the order of the tables, as a terminal has room for it."""
NOTES = """\
ACC (exact), ACC_soft (within one), macro-F1, quadratic weighted kappa and MAE are of the predicted level; Spearman,
Kendall and bias (predicted less rated) of the expected level; ECE, the calibration error, of the predicted level's
probability, in ten bins. Intervals are 95 % BCa bootstrap intervals over groups: dialogues that share a card,
situation, opening or text, unless grouped otherwise. The constant is the most frequent training level. One rater: the
rater against the others of the same dialogue."""


def cell(interval: Mapping[str, Any], digits: int = 2) -> str:
    """`0.57 [0.50, 0.63]`, the value alone where there is no interval, a dash where there is no value."""
    if interval["mean"] is None:
        return "-"
    if interval["low"] is None:
        return f"{interval['mean']:.{digits}f}"
    return f"{interval['mean']:.{digits}f} [{interval['low']:.{digits}f}, {interval['high']:.{digits}f}]"


def title(part: Mapping[str, Any]) -> str:
    counts = " ".join(f"{level}:{count}" for level, count in zip(part["levels"], part["counts"], strict=True))
    rated = f"{part['ratings']} ratings of {part['dialogues']} dialogues"
    return f"{part['dimension']} ({part['language']}): {rated} ({counts})"


def heads(part: Mapping[str, Any]) -> list[str]:
    """The predictors of a part, as column heads; the constant says which level."""
    constant = f"constant {part['constant_level']}"
    return [constant if who == "constant" else label for who, label in PREDICTORS.items() if who in part["predictors"]]


def lines(part: Mapping[str, Any], names: Mapping[str, str] = FIGURES) -> list[list[str]]:
    """One line a figure: its name, and a cell for each predictor."""
    shown = [part["predictors"][who]["figures"] for who in PREDICTORS if who in part["predictors"]]
    return [[names[name], *(cell(figures[name]) for figures in shown)] for name in SHORT]


def notes(result: Mapping[str, Any]) -> Iterator[str]:
    """What a reader has to know of the whole, a sentence each."""
    yield f"the predicted level is the distribution's {result['level']}"
    yield f"regressions: {result['baselines']}"
    yield f"intervals over {result['groups']} groups of dialogues"
    for reason, count in sorted(result.get("missing", {}).items()):
        yield f"{count} judgments are missing: {reason}"
    for key, what in (
        ("without_rating", "dialogues have no rating in the files given: left out"),
        ("unscored", "rated dialogues have no score: left out of the scorer's figures"),
        ("ratings_elsewhere", "rated dialogues are not among those of --on: not used"),
        ("shortened", "dialogues are longer than the scorer reads: not all of their turns were read"),
    ):
        if result.get(key):
            yield f"{result[key]} {what}"


def show(result: Mapping[str, Any]) -> None:
    """Prints tables and verdicts."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{result['scorer']['name']} on {result['dialogues']} dialogues, 95 % intervals")
    for part in result["dimensions"]:
        table = Table(title=title(part), title_justify="left")
        for index, head in enumerate(["figure", *heads(part)]):
            table.add_column(head, overflow="fold", min_width=0 if index == 0 else 5)
        for line in lines(part, SHORT):
            table.add_row(*line)
        console.print(table)
    for part in result["dimensions"]:
        console.print(f"{part['dimension']} ({part['language']}): {part['verdict']}", soft_wrap=True, markup=False)
    for note in (" ".join(NOTES.split()), *notes(result)):
        console.print(note, soft_wrap=True, markup=False)


def markdown(result: Mapping[str, Any], level: int = 2) -> str:
    """Tables, confusion matrices and verdicts; headings begin at `level`."""
    text = []
    for part in result["dimensions"]:
        text += [f"{'#' * level} {title(part)}", "", _table(["figure", *heads(part)], lines(part)), ""]
        text += [f"**{part['dimension']} ({part['language']})** {part['verdict']}.", "", _confusion(part), ""]
    return "\n".join([*text, NOTES, "", *(f"- {note}" for note in notes(result)), ""])


def _confusion(part: Mapping[str, Any]) -> str:
    rows = part["predictors"]["scorer"]["confusion"]
    head = ["rated \\ scorer says", *map(str, part["levels"])]
    return _table(head, [[str(level), *map(str, row)] for level, row in zip(part["levels"], rows, strict=True)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


COLUMNS = (
    *("dimension", "language", "predictor", "figure", "value", "low", "high"),
    *("ratings", "groups", "method", "reason"),
)


def tidy(result: Mapping[str, Any]) -> str:
    """CSV, one line a dimension, language, predictor and figure; then `scorer - OTHER` for the paired differences,
    and `confusion` lines with the number of ratings as value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in result["dimensions"]:
        place = (part["dimension"], part["language"])
        for who, found in part["predictors"].items():
            for name, interval in found["figures"].items():
                writer.writerow([*place, who, name, *_values(interval, found["ratings"])])
            for rated, row in zip(part["levels"], found["confusion"], strict=True):
                for said, count in zip(part["levels"], row, strict=True):
                    writer.writerow([*place, who, f"confusion {rated} as {said}", count, *[""] * 6])
        for who, found in part["differences"].items():
            for name, interval in found.items():
                writer.writerow([*place, f"scorer - {who}", name, *_values(interval, "")])
    return out.getvalue()


def _values(interval: Mapping[str, Any], ratings: Any) -> list[Any]:
    found = [interval["mean"], interval["low"], interval["high"], ratings, interval["n_cards"]]
    return ["" if value is None else value for value in (*found, interval["method"], interval["reason"])]
