"""Run as a program in a process of its own: trains a recipe and prints its peak memory, to be held against the plan.

    python -m tests.train.measure_memory RECIPE WARM_UP_RECIPE

A warm-up run comes first, so that libraries, thread pools and code are not counted; then the kernel's record of the
peak is reset (/proc/self/clear_refs, Linux only) and the recipe is trained. Prints one JSON line.
"""

import gc
import json
import sys
from pathlib import Path

import train.models


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak since the reset) of this process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return float(line.split()[1]) * 1024
    raise ValueError(field)


def train_once(path: str) -> None:
    from train.recipe import load_recipe
    from train.sft import build_trainer

    trainer, _ = build_trainer(load_recipe(path))
    trainer.train()


def main() -> None:
    recipe, warm_up = sys.argv[1:]
    # The heap of a CPU run keeps what is freed, and so also the gaps between tensors of different size.
    train.models.keep_freed_memory = lambda: False
    train_once(warm_up)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    train_once(recipe)
    print(json.dumps({"peak": resident("VmHWM") - before}))


if __name__ == "__main__":
    main()
