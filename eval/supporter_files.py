"""What an evaluation of supporters leaves in its folder, and correlations of its metrics with people's ratings.

OUT/figures.json, figures.md    everything that was printed
OUT/by_dialogue.jsonl           metrics and mean ratings of every dialogue, for --beside of another evaluation
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Record, read_records, write_records, write_text
from eval.evaluate_chat import ChatAnswer, ChatQuestion
from eval.metrics_correlation import RatedReplies, correlation
from eval.supporter_tables import markdown

BY_DIALOGUE = "by_dialogue.jsonl"
LEFT_OUT = ("length", "reference_length")


class DialogueFigures(Record):
    """One model's replies in one dialogue. `ratings`: dimension -> mean of the raters."""

    model: str
    dialogue: str
    metrics: dict[str, float | None]
    ratings: dict[str, float] = {}


@dataclass(frozen=True)
class Rated:
    """People's ratings: dialogue -> dimension -> mean of the raters, and the rated replies of other models."""

    means: dict[str, dict[str, float]]
    others: list[DialogueFigures]


def read_rated(model: str, ratings: Sequence[str], rubric: str | None, beside: Sequence[str]) -> Rated:
    """Before anything long begins. Raises UserError for faulty ratings, and for a folder without rated replies."""
    means = _mean_ratings(ratings, rubric) if ratings else {}
    others = [one for folder in beside for one in _read_beside(Path(folder))]
    if any(one.model == model for one in others):
        raise UserError(f"--beside: model {model!r} is the one that is evaluated; name the folders of others")
    return Rated(means, others)


def finish(found: ChatAnswer, asked: ChatQuestion, rated: Rated) -> None:
    """Adds correlations to the result where there are ratings, and writes the folder where there is one.

    Raises UserError when no rated dialogue has a reply.
    """
    model = asked.models[0]
    rows = [
        DialogueFigures(model=model, dialogue=dialogue, metrics=metrics, ratings=rated.means.get(dialogue, {}))
        for dialogue, metrics in found.values[model].items()
    ]
    if rated.means:
        if not any(row.ratings for row in rows):
            raise UserError("none of the dialogues with replies has a rating; do the dialogue ids of the files match?")
        found.result["correlations"] = correlations([*rows, *rated.others], asked.seed)
    if asked.out is not None:
        write_text(asked.out / "figures.json", json.dumps(found.result, indent=1, ensure_ascii=False) + "\n")
        write_text(asked.out / "figures.md", f"# {model} on {Path(asked.on).name}\n\n{markdown(found.result)}")
        write_records(asked.out / BY_DIALOGUE, rows)


def correlations(rows: Sequence[DialogueFigures], seed: int = 0) -> dict[str, dict[str, Any]]:
    """dimension -> metric -> the four correlations, over the dialogues that have both."""
    dimensions = list(dict.fromkeys(name for row in rows for name in row.ratings))
    metrics = [name for name in (rows[0].metrics if rows else ()) if name not in LEFT_OUT]
    found: dict[str, dict[str, Any]] = {}
    for dimension in dimensions:
        for metric in metrics:
            both = [
                RatedReplies(row.model, row.dialogue, value, row.ratings[dimension], row.metrics.get("length") or 0.0)
                for row in rows
                if (value := row.metrics.get(metric)) is not None and dimension in row.ratings
            ]
            found.setdefault(dimension, {})[metric] = asdict(correlation(both, seed))
    return found


def _mean_ratings(files: Sequence[str], rubric: str | None) -> dict[str, dict[str, float]]:
    from data_prep.rubric import load_rubric
    from train.rank import read_ratings

    given: Mapping[str, Any] = read_ratings(list(files), load_rubric(rubric or "esc_eval"))
    found: dict[str, dict[str, float]] = {}
    for dialogue, raters in given.items():
        values: dict[str, list[float]] = {}
        for dimensions in raters.values():
            for name, value in dimensions.items():
                if value is not None:
                    values.setdefault(name, []).append(value)
        found[dialogue] = {name: sum(each) / len(each) for name, each in values.items()}
    return found


def _read_beside(folder: Path) -> list[DialogueFigures]:
    path = folder / BY_DIALOGUE
    if not path.is_file():
        raise UserError(f"--beside {folder}: holds no {BY_DIALOGUE}; name the --out of an evaluation with replies")
    rows = read_records(path, DialogueFigures)
    if not any(row.ratings for row in rows):
        raise UserError(f"--beside {folder}: was made without --ratings; evaluate that supporter again with them")
    return rows
