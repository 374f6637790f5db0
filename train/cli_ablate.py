"""`esckit ablate`: variants of a recipe over seeds, each its own training, one table."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def ablate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to vary: one YAML file, see recipes/ablations.")],
    list_runs: Annotated[bool, typer.Option("--list", help="Check everything, list the runs, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table's figures as JSON.")] = False,
) -> None:
    """Train variants of a recipe over seeds and compare them. Stop it at any time; the same command goes on.

    A training that fails is recorded and the others go on; the exit code is then 1, and the next start tries again.

    Example: esckit ablate recipes/ablations/adapter.yaml
    """
    from data_prep.records import write_text
    from train.ablate import plan_runs
    from train.ablate_runs import open_folder, run_all
    from train.ablate_table import csv_text, markdown, plot, summarise

    ablation, runs = plan_runs(file)
    if list_runs:
        for run in runs:
            typer.echo(f"{run.name}: {shlex.join(['esckit', 'train', ablation.recipe, *run.overrides])}")
        return
    open_folder(ablation, runs)
    try:
        rows = run_all(ablation, runs, lambda line: typer.echo(line, err=True))
    except KeyboardInterrupt:
        typer.echo("stopped; what was finished is kept, the same command goes on", err=True)
        raise typer.Exit(130) from None
    summaries = summarise(rows)
    out = Path(ablation.out)
    write_text(out / "results.csv", csv_text(rows))
    write_text(out / "results.md", markdown(summaries, ablation.metric))
    (out / "results.png").write_bytes(plot(summaries, ablation.metric))
    if as_json:
        typer.echo(json.dumps([asdict(found) for found in summaries], indent=1, ensure_ascii=False))
    else:
        typer.echo(markdown(summaries, ablation.metric))
        typer.echo(f"{out}/results.md, results.csv (one line a training), results.png")
    if any(row.failure for row in rows):
        raise typer.Exit(1)
