"""`esckit run`: a suite of supporters, from one file to one report."""

import json
from pathlib import Path
from typing import Annotated

import typer


def run(
    suite: Annotated[Path, typer.Argument(help="Suite file, see recipes/leaderboard.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it, for example limit=10.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be run, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what became of every supporter as JSON.")] = False,
) -> None:
    """Simulate, audit, score and report all supporters of a suite. Stop it at any time; the same command goes on.

    A supporter that fails is recorded in OUT/suite.json and the others go on; the exit code is then 1.

    Example: esckit run recipes/leaderboard/esc_eval.yaml --plan
    """
    from eval.suite import esckit, load_suite, plan_lines, run_suite

    chosen = load_suite(suite, overrides or [])
    if plan:
        for line in plan_lines(chosen):
            typer.echo(line)
        return
    state = run_suite(chosen, esckit, lambda line: typer.secho(line, bold=True, err=True))
    failed = [name for name, found in state["supporters"].items() if found["state"] == "failed"]
    lost = [name for name, found in state["supporters"].items() if found.get("losses")]
    if as_json:
        typer.echo(json.dumps(state, ensure_ascii=False, indent=2))
    else:
        for name, found in state["supporters"].items():
            typer.echo(f"{name}: {found['state']}" + (f": {found['why']}" if "why" in found else ""))
        typer.echo(state["report"] or "no report: nothing could be scored")
    if failed or lost or state["report"] is None:
        raise typer.Exit(1)
