"""What the parts of gpu_check.py share: sizes, recipes, clock and memory, the record of a part, and runs in turn."""

import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_check import BUDGETS

from train.models import device_name
from train.plan import Plan, make_plan
from train.recipe import ChatRecipe, load_recipe

GB = 2**30
# Dialogues and their most turns, batch sizes to choose from, steps (the first `warm` are not counted), how often runs
# that are compared are repeated, and for the simulation cards, rounds, tokens a reply and cards for the slow way.
FULL = {"dialogues": 96, "length": 40, "batches": (8, 4, 2, 1), "warm": 4, "steps": 14, "rounds": 2, "repeats": 6}
FULL |= {"cards": 16, "turns": 3, "new": 48, "alone": 3}
TINY = {"dialogues": 8, "length": 4, "batches": (2,), "warm": 1, "steps": 3, "rounds": 1, "repeats": 2}
TINY |= {"cards": 3, "turns": 2, "new": 6, "alone": 2}


class Check:
    """What all parts share: folder, sizes, device, the time that is left, and the record of the part."""

    def __init__(self, folder: Path, tiny: bool):
        self.folder, self.tiny = folder, tiny
        self.size: dict[str, Any] = TINY if tiny else FULL
        self.device = device_name()
        self.model = folder / "model"

    def begin(self, part: str) -> None:
        self.part, self.started = part, time.monotonic()
        self.found: dict[str, Any] = {"status": "running", "seconds": 0.0, "rows": [], "notes": []}
        self.save()

    def save(self, **more: Any) -> None:
        self.found |= {**more, "seconds": time.monotonic() - self.started}
        path = self.folder / f"part-{self.part}.json"
        path.with_suffix(".new").write_text(json.dumps(self.found), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def has_time(self, seconds: float) -> bool:
        return time.monotonic() - self.started + seconds < BUDGETS[self.part]

    def clock(self) -> float:
        """Seconds, when all that was asked of the GPU is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def forget(self, give_back: bool = True) -> None:
        """Begins a new count of memory; with `give_back` torch's reserve is emptied, and the next run pays for it."""
        if self.device != "cuda":
            return
        if give_back:
            gc.collect()  # a trainer and its model hold each other
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> dict[str, float]:
        """GB since `forget`: held by tensors, and by torch with its reserve."""
        if self.device != "cuda":
            return {}
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return {"peak GB": allocated / GB, "reserved GB": reserved / GB}

    def recipe(self, name: str, batch: int, **changes: Any) -> ChatRecipe:
        content = {
            "kind": "seeker",
            "out": str(self.folder / "out" / name),
            "model": {"base": str(self.model), "attention": changes.get("attention", "sdpa")},
            "lora": {"r": 16, "alpha": 32, "dropout": changes.get("dropout", 0.05)},
            "data": {
                "train": str(self.folder / "dialogues.jsonl"),
                "max_length": 2048,
                "packing": changes.get("packing", False),
            },
            "training": {
                "per_device_train_batch_size": batch,
                "gradient_accumulation_steps": 1,
                "max_steps": self.size["steps"],
                "logging_steps": 1,
                "save_strategy": "no",
                "disable_tqdm": True,
            },
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return load_recipe(path)  # type: ignore[return-value]

    def fitting(self, name: str) -> tuple[ChatRecipe, Plan]:
        """The recipe with the largest batch that fits this machine by the plan, and the plan."""
        for batch in self.size["batches"]:
            recipe = self.recipe(name, batch)
            plan = make_plan(recipe)
            if plan.fits or self.device != "cuda":
                break
        return recipe, plan


Ways = dict[str, Callable[[], dict[str, Any]]]


def take_turns(check: Check, ways: Ways, times: int, rate: str, plain: str, afresh: bool) -> list[dict[str, Any]]:
    """Runs every way `times` times in turn, as far as the time goes, but each once; returns a row a way.

    A row holds the medians over the runs and, as `times`, how many times as fast it is by `rate` as the `plain` way.
    `afresh`: each run loads all it needs. A way that does not fit into the memory is left out, with its error.
    """
    runs: dict[str, list[Any]] = {way: [] for way in ways}
    errors: dict[str, str] = {}
    earlier, earlier_runs = check.found["rows"], check.found.get("runs", {})
    for number in range(times):
        for way, run in ways.items():
            before = time.monotonic()
            spent = max((one["total"] for one in runs[way]), default=0.0)
            if way in errors or (number and not check.has_time(spent)):
                continue
            check.forget(give_back=afresh)
            try:
                found = run()
                runs[way].append({**found, **check.peak(), "total": time.monotonic() - before})
            except torch.OutOfMemoryError as error:
                errors[way] = str(error).split(". ")[0]
            rows = [*earlier, *rows_of(runs, errors, rate, plain)]
            check.save(runs={**earlier_runs, **runs}, rows=rows)
    return rows_of(runs, errors, rate, plain)


def rows_of(runs: dict[str, list[Any]], errors: dict[str, str], rate: str, plain: str) -> list[dict[str, Any]]:
    """One row a way: medians of the runs' numbers, or the error."""
    rows = []
    for way, found in runs.items():
        if found and way not in errors:
            numbers = [key for key, value in found[0].items() if isinstance(value, int | float)]
            rows.append({"way": way, **{key: statistics.median(one[key] for one in found) for key in numbers}})
    base = next((row[rate] for row in rows if row["way"] == plain), None)
    for row in rows:
        row["times"] = None if base is None else base / row[rate] if rate == "ms" else row[rate] / base
    return [*rows, *({"way": way, "error": error} for way, error in errors.items())]
