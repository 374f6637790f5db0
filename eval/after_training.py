"""What follows the training of a scorer whose data were split: the test part, measured once, and a report."""

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

REPORT = "report.md"
WIDTH = "120"
LIMITS = (
    "The scores compare supporters under one kind of seeker and this rubric. They repeat these raters and are no "
    "clinical judgment."
)


def evaluate_new_scorer(recipe: Any) -> None:
    """Runs `esckit evaluate` on the part that a scorer's recipe held out as `test`, and writes report.md.

    Does nothing for other recipes, and where the report is there already.
    """
    folder = Path(recipe.out)
    test, ratings = folder / "data" / "test.jsonl", folder / "data" / "ratings.jsonl"
    if recipe.kind != "scorer" or recipe.data.split is None or not test.is_file() or (folder / REPORT).is_file():
        return
    import typer

    from data_prep.records import write_text
    from eval.evaluate_judge import JudgeQuestion, evaluate_judge
    from eval.scorer_tables import show

    shown = io.StringIO()
    with wide_tables(), redirect_stdout(shown):
        show(evaluate_judge(JudgeQuestion(str(folder), str(test), [str(ratings)])))
    command = f"esckit evaluate {folder} --on {test} --ratings {ratings}"
    typer.echo(f"\nthe test part, which nothing was chosen by ({command}):\n{shown.getvalue()}")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    write_text(folder / REPORT, report_text(folder.name, metrics, command, shown.getvalue()))
    typer.echo(f"report: {folder / REPORT}")


@contextmanager
def wide_tables() -> Iterator[None]:
    """Tables of one width wherever the command runs."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def report_text(name: str, metrics: dict[str, Any], command: str, figures: str) -> str:
    """The report as Markdown: what was read, what was held out, how well the scorer does there."""
    data = metrics["data"]
    rows = [
        f"| {part} | {data[part]['dialogues']} | {data[part]['ratings']} | {data[part]['missing_ratings']} "
        f"| {data[part]['shortened'] + data[part]['windowed']} |"
        for part in ("train", "validation", "test")
        if part in data
    ]
    levels = [f"| {column} | {' '.join(map(str, counts))} |" for column, counts in data["train"]["per_level"].items()]
    notes = []
    if data["illustrative"]:
        notes.append("**Trained on illustrative samples: no figure here says anything of people.**\n")
    if data["rated_dialogues_in_no_file"]:
        notes.append(f"{data['rated_dialogues_in_no_file']} rated dialogues are in no dialogue file and not used.\n")
    return (
        "\n".join(
            [
                f"# Scorer {name}\n",
                *notes,
                "Parts share no group (`data.group_by` of the recipe), near duplicates included.\n",
                "| part | dialogues | ratings | missing | longer than max_length |",
                "|---|---|---|---|---|",
                *rows,
                "\n| dimension | training ratings at each level, lowest first |",
                "|---|---|",
                *levels,
                "\n## The test part\n",
                f"Nothing was chosen by it. Made by `{command}`:\n",
                f"```\n{figures.strip()}\n```\n",
                LIMITS,
            ]
        )
        + "\n"
    )
