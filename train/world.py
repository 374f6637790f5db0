"""The processes of one training run: what each is told by its launcher, and whether they are as many as were asked for.

`train.launch` sets the variables below; a run that was started by `accelerate launch` or `torchrun` has only theirs.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.errors import UserError

ASKED = "ESCKIT_WORLD_SIZE"
"""How many processes the launcher was asked for."""
STRATEGY = "ESCKIT_STRATEGY"
"""The distributed type of the accelerate configuration, such as DEEPSPEED."""
REPORTS = "ESCKIT_REPORTS"
"""Folder where every process leaves why it ended, so that the launcher tells it once."""


def process_index() -> int:
    """0 for the main process, and for one that was not launched with others."""
    return int(os.environ.get("RANK", "0"))


def _set(name: str) -> bool:
    return os.environ.get(name, "").lower() == "true"


def device_arguments(on_gpu: bool) -> dict[str, Any]:
    """The trainer arguments that decide where it computes and how its processes talk.

    DDP need not look for unused parameters: an adapter and a full tuning use all that they train. A mixture of experts
    may not, and DDP says so; then set `training.ddp_find_unused_parameters: true`. DeepSpeed on the CPU is told its
    backend and nothing of the CPU: with `use_cpu` the library would leave DeepSpeed out, without the backend it would
    count one process.
    """
    if on_gpu:
        return {"use_cpu": False, "ddp_find_unused_parameters": False}
    if _set("ACCELERATE_USE_DEEPSPEED"):
        return {"use_cpu": False, "ddp_backend": "gloo"}
    return {"use_cpu": True, "ddp_find_unused_parameters": False}


def skip_compiled_ops() -> None:
    """Has DeepSpeed on the CPU talk by gloo alone: its shared-memory operator is compiled at the first use, which takes
    minutes and fails without a compiler."""
    if _set("ACCELERATE_USE_DEEPSPEED") and os.environ.get("DS_ACCELERATOR") == "cpu":
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def check_world(arguments: Any) -> None:
    """Raises UserError when the trainer's arguments hold another number of processes, or another way of sharing
    the work, than was asked for.

    A launch that cannot do what it was asked for must not quietly train in another batch size.
    """
    if arguments.n_gpu > 1:  # the library would copy the model to all of them at every step (DataParallel)
        raise UserError(
            f"{arguments.n_gpu} GPUs are visible and this is one process; use all of them: "
            f"esckit train RECIPE --accelerate multi_gpu --num-processes {arguments.n_gpu}, "
            "or one: CUDA_VISIBLE_DEVICES=0 esckit train RECIPE"
        )
    found = arguments.world_size
    asked = int(os.environ.get(ASKED) or os.environ.get("WORLD_SIZE") or 1)
    # Accelerate sets an address where it wants several processes; without RANK it has started one by itself.
    alone = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "RANK" not in os.environ
    if ASKED not in os.environ and alone:
        raise UserError(
            "accelerate was asked for several processes and started one (its MULTI_CPU does that without MPI); "
            "use: esckit train RECIPE --accelerate cpu --num-processes N"
        )
    if found != asked:
        raise UserError(f"{asked} processes were asked for, but this run has {found}; see docs/cluster.md")
    strategy = os.environ.get(STRATEGY)
    really = str(arguments.distributed_state.distributed_type.value)
    if (strategy == "DEEPSPEED") != (really == "DEEPSPEED") and strategy is not None:
        raise UserError(f"the configuration says {strategy}, but this run is {really}; see docs/cluster.md")


def settle_deepspeed(trainer: Any) -> None:
    """Has DeepSpeed's offload take the trainer's own optimiser: its CPU Adam is compiled at the first use, which fails
    wherever compiler and CUDA toolkit do not fit torch."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if plugin is not None:
        # "auto" is filled in from the recipe; a remark that the library's own count differs is no news.
        logging.getLogger("accelerate.accelerator").addFilter(
            lambda record: "steps mismatch" not in record.getMessage()
        )
        plugin.deepspeed_config["zero_force_ds_cpu_optimizer"] = False


def parameter_count(parameter: Any) -> int:
    """Numbers in a parameter; under ZeRO-3 a process holds only its part, or none."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


# ---- how a process ends


@contextmanager
def process_report() -> Iterator[None]:
    """How a training process ends: a stopped one with its message and exit code (raises SystemExit).

    Within a launched run the message, and a UserError's, goes to the launcher instead of the terminal, and only the
    main process keeps its standard output.
    """
    from train.checkpoints import TrainingStopped

    folder = os.environ.get(REPORTS)
    if folder is None:
        try:
            yield
        except TrainingStopped as stopped:
            if process_index() == 0:
                print(stopped, file=sys.stderr)
            raise SystemExit(stopped.exit_code) from None
        return
    if process_index() != 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    try:
        yield
    except UserError as error:
        _leave(folder, 2, f"error: {error}")
    except TrainingStopped as stopped:
        _leave(folder, stopped.exit_code, str(stopped))


def _leave(folder: str, code: int, message: str) -> None:
    path = Path(folder) / f"{process_index():05d}.json"
    path.with_suffix(".part").write_text(json.dumps({"code": code, "message": message}), encoding="utf-8")
    path.with_suffix(".part").replace(path)
    raise SystemExit(code)


def read_reports(folder: Path) -> tuple[int, str] | None:
    """Exit code and message of the first process that left any, else None."""
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        return int(found["code"]), str(found["message"])
    return None
