"""`esckit doctor`: what this machine can do."""

import json
from typing import Annotated

import typer


def doctor(
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Also ask this chat server, such as http://localhost:8000/v1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine can do: Python, devices, memory, disk, packages, hub, keys (never shown), models.

    ✓ fine, ! narrows what can be done, ✗ has to be corrected (exit code 1).

    Example: esckit doctor --endpoint http://localhost:8000/v1
    """
    from dataclasses import asdict

    from train.doctor import MARKS, examine

    findings = examine(endpoint)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False))
    else:
        for finding in findings:
            typer.echo(f"{MARKS[finding.verdict]} {finding.topic}: {finding.text}")
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)
