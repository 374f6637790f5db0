"""`esckit train --accelerate`: several processes of one training, started by Accelerate's own launcher.

    esckit train RECIPE --accelerate zero3 --num-processes 2
      checks everything that can be checked, prepares the rows
      └─ accelerate launch                  (this file's `main`, so that a failure is no page of traceback)
         ├─ esckit train RECIPE   RANK=0
         └─ esckit train RECIPE   RANK=1

Signals go to the training processes, which save a checkpoint and end; their exit code is passed on.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from train.recipe import ChatRecipe, Recipe
from train.world import ASKED, REPORTS, STRATEGY, read_reports

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "accelerate_configs"

# Processes that were told to stop finish a step and write a checkpoint; the library's own limit is 30 seconds.
SHUTDOWN_SECONDS = 180


@dataclass(frozen=True)
class Launch:
    """What the command line asked for."""

    config: str
    """A name in accelerate_configs/, or a path."""
    processes: int | None = None
    """Over all machines; None: one for every GPU."""
    machines: int = 1
    machine_rank: int = 0
    main_process_ip: str | None = None
    main_process_port: int | None = None
    cpu: bool = False


@dataclass(frozen=True)
class CheckedLaunch:
    """The same, found to be possible on this machine."""

    path: Path
    strategy: str
    """NO, MULTI_GPU, DEEPSPEED or FSDP."""
    processes: int
    cpu: bool
    wanted: Launch


def config_names() -> list[str]:
    """Names of the configurations that come with the toolkit."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file of a configuration's name or path. Raises UserError when there is none."""
    if (CONFIGS / f"{name}.yaml").is_file():
        return CONFIGS / f"{name}.yaml"
    if Path(name).is_file():
        return Path(name)
    raise UserError(f"--accelerate {name}: no such file or configuration; known: {', '.join(config_names())}")


def read_config(path: Path) -> Any:
    """Accelerate's own reading of a configuration. Raises UserError for what it refuses."""
    import yaml
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

    try:
        config = load_config_from_file(str(path))
    except (ValueError, TypeError, AttributeError, KeyError, OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: is no accelerate configuration: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(config, ClusterConfig):
        raise UserError(f"{path}: only configurations for machines of your own (LOCAL_MACHINE) can be launched")
    return config


def check_launch(wanted: Launch, gpus: int) -> CheckedLaunch:
    """What will be launched on a machine with so many visible GPUs.

    Raises UserError when that cannot be what was asked for.
    """
    path = find_config(wanted.config)
    config = read_config(path)
    strategy, name = str(config.distributed_type.value), wanted.config
    if strategy not in ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP"):
        raise UserError(f"{path}: distributed_type {strategy} is not supported; use NO, MULTI_GPU, DEEPSPEED or FSDP")
    cpu = wanted.cpu or config.use_cpu
    if cpu and strategy == "FSDP":
        raise UserError(f"--accelerate {name}: Accelerate runs FSDP on GPUs only; try zero3 with --cpu")
    if not cpu and gpus == 0:
        raise UserError(
            f"--accelerate {name}: needs a GPU and none is visible; use --accelerate cpu, "
            "or --cpu to try this configuration on the processor"
        )
    processes = _processes(wanted, config, strategy, cpu, gpus)
    _check_machines(wanted, processes)
    here = processes // wanted.machines
    if not cpu and here > gpus:
        raise UserError(f"--num-processes {processes}: {here} on this machine, which has {gpus} GPU(s); one each")
    return CheckedLaunch(path, strategy, processes, cpu, wanted)


def _processes(wanted: Launch, config: Any, strategy: str, cpu: bool, gpus: int) -> int:
    """Asked for, or said by the configuration, or one for every GPU of every machine."""
    in_file = config.num_processes if config.num_processes > 0 else None
    if strategy == "NO":
        if (wanted.processes or 1) > 1 or wanted.machines > 1:
            raise UserError(
                f"--accelerate {wanted.config}: is for one process, {wanted.processes or wanted.machines} were asked "
                "for; use multi_gpu, zero2 or zero3"
            )
        return 1
    found = wanted.processes or in_file
    if found is None and cpu:
        raise UserError("--num-processes: say how many processes; on the processor one is the fastest")
    return found or gpus * wanted.machines


def _check_machines(wanted: Launch, processes: int) -> None:
    if processes % wanted.machines:
        raise UserError(
            f"--num-processes {processes} cannot be shared by {wanted.machines} machines; give the sum of all"
        )
    if not 0 <= wanted.machine_rank < wanted.machines:
        raise UserError(
            f"--machine-rank {wanted.machine_rank}: the machines of --num-machines {wanted.machines} are numbered from "
            f"0 to {wanted.machines - 1}"
        )
    if wanted.machines > 1 and not (wanted.main_process_ip and wanted.main_process_port):
        raise UserError("--num-machines: the machines meet at --main-process-ip and --main-process-port; give both")


def prepare_rows(recipe: Recipe) -> None:
    """Tokenises once before the launch: processes that wait for one of them run into their time limit."""
    if isinstance(recipe, ChatRecipe):
        from train.row_cache import prepare

        prepare(recipe)


def visible_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def launch(recipe: Recipe, wanted: Launch, arguments: Sequence[str]) -> int:
    """Runs `esckit train ARGUMENTS` in the processes asked for, and returns the exit code.

    The message of the first process that had one is printed. Raises UserError before anything is started.
    """
    checked = check_launch(wanted, visible_gpus())
    prepare_rows(recipe)
    with tempfile.TemporaryDirectory(prefix="esckit-launch-") as reports:
        code = run_and_forward(command(checked, arguments), environment(checked, reports))
        told = read_reports(Path(reports))
    if told is not None and code != 0:
        code, message = told
        print(message, file=sys.stderr)
    elif code != 0:
        print(f"error: a training process ended with exit code {code}; its output is above", file=sys.stderr)
    return code


def command(checked: CheckedLaunch, arguments: Sequence[str]) -> list[str]:
    """The launcher's command line."""
    wanted = checked.wanted
    options: dict[str, Any] = {
        "--config_file": checked.path,
        "--num_processes": checked.processes,
        "--num_machines": wanted.machines,
        "--machine_rank": wanted.machine_rank,
        # 0: any free one, so that two runs on one machine do not meet
        "--main_process_port": wanted.main_process_port or (None if checked.strategy == "NO" else 0),
        "--main_process_ip": wanted.main_process_ip,
    }
    given = [str(part) for pair in options.items() if pair[1] is not None for part in pair]
    return [sys.executable, "-m", "train.launch", *given, "--module", "esckit", "train", *arguments]


def environment(checked: CheckedLaunch, reports: str) -> dict[str, str]:
    """What all processes of the run are told."""
    found = {
        **os.environ,
        ASKED: str(checked.processes),
        STRATEGY: checked.strategy,
        REPORTS: reports,
        # torchrun's --shutdown-timeout and its log of every process that ended, which Accelerate has no options for
        "PET_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
        "LOGLEVEL": os.environ.get("LOGLEVEL", "CRITICAL"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    if checked.cpu:
        found["CUDA_VISIBLE_DEVICES"] = ""
        found["DS_ACCELERATOR"] = "cpu"
        if checked.strategy != "DEEPSPEED":  # which would be left out, see `world.device_arguments`
            found["ACCELERATE_USE_CPU"] = "true"
    return found


def run_and_forward(line: list[str], variables: dict[str, str]) -> int:
    """Runs the launcher in a session of its own and returns its exit code; 128 + N after signal N.

    SIGTERM and Ctrl-C reach the training processes themselves: their launcher would give them little time to save.
    """
    process = subprocess.Popen(line, env=variables, start_new_session=True)

    def forward(number: int, frame: Any) -> None:
        for target in training_processes(process.pid) or [process.pid]:
            with suppress(ProcessLookupError):
                # A terminal that was closed is a reason to save, too.
                os.kill(target, signal.SIGTERM if number == signal.SIGHUP else number)

    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in wanted}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def training_processes(launcher: int) -> list[int]:
    """Process ids of the training processes that the launcher has started."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(launcher).children()]
    except psutil.NoSuchProcess:
        return []


def main() -> None:
    """`accelerate launch`, ending with the exit code of the process that failed first, and without a traceback."""
    import logging

    from accelerate.commands.launch import main as accelerate_launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.run").setLevel(logging.CRITICAL)
    try:
        accelerate_launch()
    except ChildFailedError as failed:
        code = failed.get_first_failure()[1].exitcode
        sys.exit(code if code >= 0 else 128 - code)
    except subprocess.CalledProcessError as failed:  # a single process is started without torchrun
        sys.exit(failed.returncode if failed.returncode >= 0 else 128 - failed.returncode)
    except SignalException as stopped:
        sys.exit(128 + int(stopped.sigval))
    except (ValueError, OSError) as error:
        print(f"error: accelerate launch: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
