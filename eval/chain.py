"""Runs a chain of esckit commands, each as its own process, and says what it runs.

Every command of a chain can be typed by hand and goes on where it was stopped, so a chain that was killed is simply
started again. A process each: memory is given back between stages, and a stage sees what a user would.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from data_prep.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLES = REPOSITORY / "data_prep" / "samples"


@dataclass(frozen=True)
class Stage:
    """One command. `incomplete_ok`: exit code 1 (some items without a result) does not stop the chain."""

    title: str
    arguments: Sequence[str]
    incomplete_ok: bool = False
    capture: Path | None = None
    """File that keeps what the command printed to standard output."""


def recipe(name: str) -> str:
    """Path of a shipped recipe. Raises UserError outside a clone of the repository."""
    path = REPOSITORY / "recipes" / name
    if not path.is_file():
        raise UserError(f"{path}: file not found; this command runs from a clone of the repository")
    return shown(path)


def shown(path: Path) -> str:
    """A path as a person would type it: relative where it lies below the working folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def run_chain(stages: Sequence[Stage]) -> list[float]:
    """Runs the stages in order; returns the seconds each took. Raises UserError at the first that fails."""
    seconds = []
    for number, stage in enumerate(stages, start=1):
        typer.secho(f"\n[{number}/{len(stages)}] {stage.title}", bold=True, err=True)
        typer.secho(f"$ esckit {' '.join(map(_quoted, stage.arguments))}", dim=True, err=True)
        began = time.monotonic()
        _run(stage, number, len(stages))
        seconds.append(time.monotonic() - began)
        typer.secho(f"  {seconds[-1]:.0f} s", dim=True, err=True)
    return seconds


def _run(stage: Stage, number: int, total: int) -> None:
    command = [sys.executable, "-m", "esckit", *stage.arguments]
    if stage.capture is None:
        code = subprocess.run(command, check=False).returncode
    else:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        code = done.returncode
        if code == 0 or (code == 1 and stage.incomplete_ok):
            stage.capture.parent.mkdir(parents=True, exist_ok=True)
            stage.capture.write_text(done.stdout, encoding="utf-8")
    if code == 0 or (code == 1 and stage.incomplete_ok):
        return
    raise UserError(
        f"stage {number} of {total} ({stage.title}) ended with exit code {code}; its message is above. "
        "Start the same command again to go on from there"
    )


def _quoted(argument: str) -> str:
    return f"'{argument}'" if " " in argument else argument


def run_as_command(main: Callable[[], None]) -> None:
    """Runs the `main` of a chain's module; a UserError is one line on standard error and exit code 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
