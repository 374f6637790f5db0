"""Runs an ablation: each training is a process of its own, finished ones are kept, failures are recorded.

OUT/ablation.yaml              what is compared; another content in a used folder is refused
OUT/runs/VARIANT/seed-N/       the result folder of that training, and its log beside it
OUT/results.csv, .md, .svg     one row a run; the table; the plot (`ablate_table.py`)
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import read_text, write_text
from train.ablate import Ablation, AblationRun, figure
from train.ablate_table import Row
from train.output import finished_metrics
from train.yaml_lines import dump_yaml, parse_yaml

DEFINITION = "ablation.yaml"


def open_folder(ablation: Ablation) -> None:
    """Prepares the folder. Raises UserError when it holds another ablation (what differs is named) or other files."""
    folder = Path(ablation.out)
    file = folder / DEFINITION
    content = ablation.model_dump(mode="json", exclude={"out"})
    if file.is_file():
        before = parse_yaml(read_text(file))
        changed = [key for key in content if before.get(key) != content[key] and key != "metric"]
        if changed:
            told = "; ".join(f"{key}: {before.get(key)!r} there, {content[key]!r} now" for key in changed)
            raise UserError(f"{folder}: holds another ablation ({told}); choose another `out`")
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty and holds no ablation; choose another `out`")
    write_text(file, dump_yaml(content))


def run_all(ablation: Ablation, runs: Sequence[AblationRun], tell: Callable[[str], None]) -> list[Row]:
    """Trains what is not finished; one row a run, with the reason of a failure. `tell` gets a line a run.

    Ctrl-C and SIGTERM reach the training that is going on, which saves a checkpoint; KeyboardInterrupt is raised then.
    """
    rows: list[Row] = []
    spent: list[float] = []
    for number, run in enumerate(runs, start=1):
        metrics = finished_metrics(run.recipe)
        state = "was finished before"
        if metrics is None:
            began = time.monotonic()
            failure = train_once(ablation, run)
            spent.append(time.monotonic() - began)
            metrics = finished_metrics(run.recipe)
            state = f"{spent[-1]:.0f} s"
            if metrics is None:
                rows.append(Row(run.variant, run.seed, failure=failure or "ended without a result"))
                tell(f"[{number}/{len(runs)}] {run.name}: failed: {rows[-1].failure}")
                continue
        rows.append(row_of(run, metrics, ablation.metric))
        left = sum(finished_metrics(later.recipe) is None for later in runs[number:])
        rest = f"; about {left * sum(spent) / len(spent) / 60:.0f} min left" if spent and left else ""
        tell(f"[{number}/{len(runs)}] {run.name}: {ablation.metric} {rows[-1].value:.4g} ({state}){rest}")
    return rows


def row_of(run: AblationRun, metrics: dict[str, Any], metric: str) -> Row:
    """Raises UserError for a metric that the run does not have."""
    return Row(
        run.variant,
        run.seed,
        figure(metrics, metric),
        metrics["trainable_parameters"],
        metrics["steps"],
        metrics["train_seconds"],
    )


def log_of(run: AblationRun) -> Path:
    """Where a run's output goes: beside its folder, which is the trainer's alone."""
    folder = Path(run.recipe.out)
    return folder.with_name(f"{folder.name}.log")


def train_once(ablation: Ablation, run: AblationRun) -> str | None:
    """Trains in a process of its own; None, or in one line why it failed."""
    log = log_of(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "esckit", "train", ablation.recipe, *run.overrides, "--resume"]
    with open(log, "a", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        code = _wait(process)
    return None if code == 0 else f"exit code {code}: {_last_words(log)} (see {log})"


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Waits; a signal to stop is passed on once, and raises KeyboardInterrupt when the training has ended."""
    stopped = False

    def stop(number: int, frame: Any) -> None:
        nonlocal stopped
        # A terminal's Ctrl-C reaches the training by itself, and a second one would cut its checkpoint short.
        if number == signal.SIGTERM and not stopped:
            process.send_signal(number)
        stopped = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped or code in (130, 143):
        raise KeyboardInterrupt
    return code


def _last_words(log: Path) -> str:
    """The last line that says something, the error's if there is one."""
    lines = [line.split("\r")[-1].strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (
        ([*filter(None, lines)] or ["no output"])[-1][:200] if not errors else errors[-1].removeprefix("error: ")[:200]
    )
