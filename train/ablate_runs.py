"""Runs an ablation: each training is a process of its own, finished ones are kept, failures are recorded.

OUT/ablation.yaml              what is compared; only seeds may be added to a used folder
OUT/runs/VARIANT/seed-N/       the result folder of that training, and its log beside it
OUT/results.csv, .md, .png     one row a run; the table; the plot (`ablate_table.py`)
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from data_prep.errors import UserError
from data_prep.records import read_text, sha256_of, write_text
from train.ablate import Ablation, AblationRun, figure
from train.ablate_table import Row
from train.output import check_output, differences, finished_metrics
from train.yaml_lines import dump_yaml, parse_yaml

DEFINITION = "ablation.yaml"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def open_folder(ablation: Ablation, runs: Sequence[AblationRun]) -> None:
    """Prepares the folder. Raises UserError, before anything runs, when what is there would not belong to the table.

    That is another ablation (what differs is named), runs of a recipe or of data that have changed since, or files of
    something else. Seeds may be added: every run that is there stays what it was.
    """
    folder = Path(ablation.out)
    file = folder / DEFINITION
    content = ablation.model_dump(mode="json", exclude={"out", "metric"})
    if file.is_file():
        before = parse_yaml(read_text(file))
        more_seeds = set(before.get("seeds") or ()) < set(ablation.seeds)  # takes nothing back
        changed = differences({**before, "seeds": content["seeds"]} if more_seeds else before, content)
        if changed:
            raise UserError(f"{folder}: holds another ablation ({'; '.join(changed)}); choose another `out`")
        for run in runs:
            check_output(run.recipe, Path(run.recipe.out), resume=True)
        _check_data(folder, runs)
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty and holds no ablation; choose another `out`")
    write_text(file, dump_yaml(content))


def _check_data(folder: Path, runs: Sequence[AblationRun]) -> None:
    """Raises UserError when finished runs read another content of the data: the others would not compare with them."""
    then: set[tuple[str, str]] = set()
    for run in runs:
        then |= set(((finished_metrics(run.recipe) or {}).get("data_sha256") or {}).items())
    for name, sha in sorted(then):
        if sha256_of(Path(name)) != sha:
            raise UserError(
                f"{folder}: finished runs read another content of {name}; bring that back, or choose another `out`"
            )


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
        came_to = rows[-1].failure or f"{ablation.metric} {rows[-1].value:.4g}"
        tell(f"[{number}/{len(runs)}] {run.name}: {came_to} ({state}){rest}")
    return rows


def row_of(run: AblationRun, metrics: dict[str, Any], metric: str) -> Row:
    """Raises UserError for a metric that the run does not have."""
    value = figure(metrics, metric)
    return Row(
        run.variant,
        run.seed,
        value,
        metrics["trainable_parameters"],
        metrics["steps"],
        metrics["train_seconds"],
        None if value is not None else f"{metric} is no finite number; the training came apart",
        ((metrics.get("data") or {}).get("validation") or {}).get("supervised_tokens"),
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
        code = _wait(command, output)
    return None if code == 0 else f"exit code {code}: {_last_words(log)} (see {log})"


def _wait(command: Sequence[str], output: IO[str]) -> int:
    """The exit code of the command; a signal to stop is passed on once and raises KeyboardInterrupt in the end."""
    process: subprocess.Popen[bytes] | None = None
    stopped = passed = False

    def stop(number: int, frame: Any) -> None:
        nonlocal stopped, passed
        stopped = True
        if process is not None and not passed:
            passed = True
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        # In a session of its own: a terminal's Ctrl-C would reach it besides ours, and a second signal cuts its
        # checkpoint short.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        if stopped:  # between the two lines
            stop(signal.SIGTERM, None)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt
    return code


def _last_words(log: Path) -> str:
    """The last error in one line, or the last line when none is marked as such."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.split("\r")[-1].strip() for line in text.splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or [line for line in lines if line] or ["no output"])[-1][:200]
