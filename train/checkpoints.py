"""Checkpoints of a run: which of them were written to their end, and which one a resumed run continues from.

A run that is killed while it saves leaves half a folder behind:

    checkpoints/checkpoint-5     whole: continued from
    checkpoints/checkpoint-10    optimizer.pt ends early: told in one line and put aside as incomplete-10
"""

import json
import shutil
import sys
import zipfile
from pathlib import Path

from data_prep.errors import UserError

STATE = "trainer_state.json"


class TrainingStopped(Exception):  # noqa: N818 (no error: it was asked for)
    """Training was asked to stop by a signal and has saved a checkpoint; `exit_code` is 128 + the signal's number."""

    def __init__(self, step: int, signal_number: int):
        self.step, self.exit_code = step, 128 + signal_number
        super().__init__(f"stopped; saved checkpoint {step}; continue with --resume")


def last_checkpoint(folder: Path, world_size: int, main_process: bool = True) -> str | None:
    """The newest whole checkpoint in `folder`; newer ones that are damaged are told and put aside, as are none.

    Every process finds the same one; only the main process warns and moves. Raises UserError when a checkpoint was
    written by another number of processes, or without what a run needs to continue exactly.
    """
    damaged: list[str] = []
    chosen: Path | None = None
    for path in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        check_world(path, world_size)
        problem = checkpoint_problem(path, world_size)
        if problem is None:
            chosen = path
            break
        damaged.append(f"{path.name} ({problem})")
        if main_process:
            # The library counts folders of this name when it deletes old checkpoints: half a one must not be kept
            # in place of a whole one.
            aside = path.with_name(f"incomplete-{_step(path)}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    if damaged and main_process:
        instead = f"continuing from {chosen.name}" if chosen else "no earlier one: starting from the beginning"
        print(f"warning: {folder}: not written to its end: {', '.join(damaged)}; {instead}", file=sys.stderr)
    if chosen is None:
        return None
    if not any(chosen.glob("rng_state*.pth")):
        raise UserError(
            f"{chosen}: holds weights only (training.save_only_model), so it cannot be continued; "
            "start again in another `out`"
        )
    return str(chosen)


def _step(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def check_world(checkpoint: Path, world_size: int) -> None:
    """Raises UserError when one process is to continue what several began, or the other way round."""
    alone = (checkpoint / "rng_state.pth").is_file()
    several = len(list(checkpoint.glob("rng_state_*.pth")))
    if (alone and world_size > 1) or (several and world_size == 1) or several > world_size:
        raise UserError(world_message(checkpoint, 1 if alone else several, world_size))


def world_message(where: Path, before: int, now: int) -> str:
    """Why a run of one number of processes cannot be continued by another."""
    return (
        f"{where}: comes from a run of {before} process(es), this one has {now} and would read other batches; "
        f"continue with --num-processes {before}, or choose another `out`"
    )


def checkpoint_problem(folder: Path, world_size: int = 1) -> str | None:
    """What is wrong with a checkpoint folder of so many processes, or None when it was written to its end.

    Looks at names, sizes, safetensors headers, archive directories and JSON, so it costs no time on big files.
    """
    state = folder / STATE
    if not state.is_file():
        return f"{STATE} is missing"
    weights = [
        *folder.glob("*.safetensors"),
        *folder.glob("backbone/*.safetensors"),
        *folder.glob("adapter/*.safetensors"),
    ]
    sharded = [path for path in (*folder.glob("global_step*"), *folder.glob("pytorch_model_fsdp*")) if path.is_dir()]
    if not weights and not sharded:
        return "no weights"
    # Nothing but weights is what `save_only_model` leaves; with one other part, all must be there.
    if sharded or any(any(folder.glob(name)) for name in ("rng_state*.pth", "scheduler.pt", "optimizer*")):
        absent = _absent_parts(folder, world_size)
        if absent:
            return f"{absent} is missing"
    for path in sorted(folder.rglob("*")):
        problem = file_problem(path) if path.is_file() else None
        if problem:
            return f"{path.relative_to(folder)} {problem}"
    return None


def _absent_parts(folder: Path, world_size: int) -> str | None:
    """The first part of a full checkpoint that is not there: random states, optimiser, scheduler."""
    ranks = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{rank}.pth" for rank in range(world_size)]
    for name in ranks:
        if not (folder / name).is_file():
            return name
    latest = folder / "latest"
    if latest.is_file() or any(folder.glob("global_step*")):  # DeepSpeed's own folder, named in `latest`
        if not latest.is_file():
            return "latest"
        named = folder / latest.read_text(encoding="utf-8", errors="replace").strip()
        if not any(named.glob("*model_states.pt")):
            return f"{named.name}/*model_states.pt"
        shards = len(list(named.glob("*optim_states.pt")))
        # Without ZeRO the optimiser is in the model states; with it every process writes its own part.
        return f"{named.name}/*optim_states.pt of a process" if shards not in (0, world_size) else None
    if not any(folder.glob("optimizer*")):
        return "optimizer.pt"
    return None if (folder / "scheduler.pt").is_file() else "scheduler.pt"


def file_problem(path: Path) -> str | None:
    """What is wrong with one file by its kind, or None; unknown kinds are not looked into."""
    if path.suffix == ".safetensors":
        return _safetensors_problem(path)
    if path.suffix in (".pt", ".pth", ".bin"):
        # torch writes an archive whose directory comes last.
        return None if zipfile.is_zipfile(path) else "ends early"
    if path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return "is no valid JSON"
    return None


def _safetensors_problem(path: Path) -> str | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            return "ends early"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "has no valid header"
    return None if size == 8 + length + max(ends, default=0) else "ends early"
