"""`esckit score` and `esckit report`: judgments of a run's dialogues, and what they say of the supporters."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eval.progress import progress_bar

if TYPE_CHECKING:
    from eval.report import Report


def score(
    run: Annotated[Path, typer.Argument(help="Run folder of `esckit simulate`.")],
    scorer: Annotated[str, typer.Option(help="Folder of a trained scorer.")],
    rubric: Annotated[
        str | None,
        typer.Option(help="Rubric to judge by, for a scorer of several: a name, or a .yaml file as trained."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Dialogues read at once; changes the speed only.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Judge every dialogue of a run on every dimension. Stop it at any time; the same command goes on.

    Example: esckit score runs/first --scorer runs/quickstart/esc_rank
    """
    from eval.judge import load_judge, score_run
    from eval.runs import append_to_run

    console = Console(stderr=True, markup=False, highlight=False)
    with append_to_run(run) as opened:
        judge = load_judge(scorer, rubric)
        for note in opened.notes:
            console.print(note)
        with progress_bar("dialogues", len(opened.transcripts()), console) as advance:
            summary = score_run(opened, judge, batch_size, advance)
        shortened = judge.shortened(opened.transcripts())
    missing = sum(summary.missing.values())
    if as_json:
        found = {
            "run": str(run),
            "scorer": summary.scorer,
            "dialogues": summary.dialogues,
            "scored": summary.scored,
            "already": summary.already,
            "missing": dict(summary.missing),
            "shortened": shortened,
        }
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        typer.echo(
            f"{run}: {summary.scored} dialogues scored by {summary.scorer}, {summary.already} were done before, "
            f"{missing} of {summary.dialogues} without a score"
        )
        if shortened:
            typer.echo(f"  {shortened} were longer than the scorer reads; not all of their turns counted")
        for reason, count in sorted(summary.missing.items()):
            typer.echo(f"  {count}: {reason}")
    if missing:
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Scored run folders: one, two to compare, or many to rank.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default: RUN/report of the first.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Whose judgments count, where there are several.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs that differ otherwise too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Which supporter is better, by how much and how surely: report.html, report.md and scores.csv.

    Example: esckit report runs/base runs/tuned --out reports/base-and-tuned
    """
    from eval.report import build_report
    from eval.report_pages import write_report
    from eval.report_text import answer
    from eval.runs import load_run

    built = build_report([load_run(run) for run in runs], scorer, force)
    files = write_report(built, out or runs[0] / "report")
    if as_json:
        typer.echo(json.dumps(figures(built, files), ensure_ascii=False, indent=2))
    else:
        for line in (*answer(built), *(f"Note: {warning}" for warning in built.warnings), *map(str, files)):
            typer.echo(line)
    if any(entry.missing for entry in built.entries):
        raise typer.Exit(1)


def figures(report: "Report", files: list[Path]) -> dict[str, Any]:
    """The figures of a report for a script, unrounded; missing ones are null."""
    from dataclasses import asdict

    from eval.report_text import answer

    return {
        "answer": " ".join(answer(report)),
        "rubric": {"name": report.rubric.name, "version": report.rubric.version, "sha": report.rubric.sha},
        "scorers": list(report.scorers),
        "supporters": [
            {
                "label": entry.label,
                "run": entry.run,
                "dialogues": len(entry.transcripts),
                "missing": dict(entry.missing),
                "end_reasons": dict(entry.end_reasons),
                "scores": {name: asdict(figure) for name, figure in entry.figures.items()},
            }
            for entry in report.entries
        ],
        "differences": [
            {
                "a": comparison.a.label,
                "b": comparison.b.label,
                "column": name,
                "points": asdict(found.interval),
                "p": found.p_value,
                "p_holm": comparison.holm_p[name],
                "detectable": found.detectable,
                "only_a": found.only_a,
                "only_b": found.only_b,
            }
            for comparison in report.comparisons
            for name, found in comparison.by_column.items()
        ],
        "warnings": report.warnings,
        "files": [str(path) for path in files],
    }
