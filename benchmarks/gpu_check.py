"""What this toolkit does on one GPU, beside the plain ways, in under five minutes and without a network.

    python benchmarks/gpu_check.py --json gpu_check.json
    python benchmarks/gpu_check.py --tiny        # the same with a tiny model; taken by itself where there is no GPU

Nothing has to be there: a chat model with the shape of Qwen2.5-1.5B is made with random weights (bfloat16 on a GPU),
and dialogues of the shape of ESConv of made words. The parts, each with a time budget (gpu_check_parts.py):

    model       makes the model
    loss        one batch: all logits, supervised positions only (train/loss.py), TRL's fused head: same loss and
                gradients, time and memory of forward and backward
    train       LoRA steps by `esckit train`'s own trainer (its loss, batches by length), and by transformers' Trainer
                as it comes (all logits, random order): tokens a second, peak memory beside the plan
    packing     packed rows beside batches by length, with SDPA, and with flash attention where the package is there
    simulation  the batched engine that keeps what it has read, beside `generate` on the whole prompt, one
                conversation after another: utterances a second, share of equal texts under greedy decoding

The parts run in a process of their own. One that fails, dies or takes far too long is reported with its error, and the
next ones go on in a new process. Runs that are compared take turns, after steps that warm up. Exit code 1: some part
has no result.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "benchmarks" / "gpu_check_parts.py"
# Seconds after which a part begins no further run; it is ended after GRACE times as many, and STARTING for the first
# look at the GPU and the imports.
BUDGETS = {"model": 40, "loss": 35, "train": 80, "packing": 55, "simulation": 65}
GRACE, STARTING = 1.3, 90


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# ---- the parts, in a process of their own


def run_parts(parts: list[str], tiny: bool, folder: Path) -> dict[str, dict[str, Any]]:
    """What each part has found, by its name; always with a `status` ("done", "failed", "stopped")."""
    found: dict[str, dict[str, Any]] = {}
    left = list(parts)
    while left:
        for name, result in one_worker(left, tiny, folder).items():
            found[name] = result
            print(f"{name}: {result['status']} after {result['seconds']:.0f} s", file=sys.stderr, flush=True)
        left = [name for name in left if name not in found]
    return found


def one_worker(parts: list[str], tiny: bool, folder: Path) -> dict[str, dict[str, Any]]:
    """Starts a process for the parts and returns those that it finished, and the one that it failed in."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ESCKIT_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}
    environment.setdefault("CUDA_VISIBLE_DEVICES", "0")
    command = [sys.executable, str(WORKER), str(folder), *parts]
    log = folder / "log.txt"
    with log.open("w", encoding="utf-8") as lines:
        worker = subprocess.Popen(
            command + ["--tiny"] * tiny, stdout=lines, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
        late = watch(worker, parts, folder)
    found = {name: result for name in parts if (result := read_part(folder, name))}
    unfinished = next((name for name in parts if found.get(name, {}).get("status", "running") == "running"), None)
    if unfinished and "failed" not in [result["status"] for result in found.values()]:
        last = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        error = late or f"the process ended with code {worker.returncode}: " + " | ".join(last[-3:])
        status = {"status": "stopped" if late else "failed", "error": error}
        found[unfinished] = {"seconds": 0.0, "rows": [], **found.get(unfinished, {}), **status}
    return {name: result for name, result in found.items() if result["status"] != "running"}


def watch(worker: subprocess.Popen[bytes], parts: list[str], folder: Path) -> str | None:
    """Waits for the process and ends it when its part takes too long; returns why it was ended."""
    since, current = time.monotonic(), ""
    while worker.poll() is None:
        time.sleep(0.1)
        running = next((name for name in parts if (read_part(folder, name) or {}).get("status") == "running"), "")
        if running != current:
            since, current = time.monotonic(), running
        limit = GRACE * BUDGETS[current] if current else STARTING
        if time.monotonic() - since > limit:
            worker.kill()
            worker.wait()
            return f"ended after {limit:.0f} s; what is here was measured before"
    return None


def read_part(folder: Path, name: str) -> dict[str, Any] | None:
    try:
        return json.loads((folder / f"part-{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


# ---- what is printed

COLUMNS = ("tokens/s", "supervised/s", "forwarded/s", "utterances/s", "ms", "peak GB", "times")


def cell(value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value or "")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(parts: dict[str, dict[str, Any]]) -> str:
    """One row for each way of each part; `times` is how many times as fast as the part's plain way."""
    shown = [name for name in COLUMNS if any(row.get(name) is not None for p in parts.values() for row in p["rows"])]
    lines = ["| part | way | " + " | ".join(shown) + " |", "|---|---|" + "---:|" * len(shown)]
    for name, part in parts.items():
        for row in part["rows"]:
            values = [cell(row.get(column)) for column in shown]
            if row.get("error"):
                values = [f"failed: {row['error']}"[:120], *values[1:]]
            lines.append(f"| {name} | {row['way']} | " + " | ".join(values) + " |")
        if part["status"] != "done":
            lines.append(f"| {name} | **{part['status']}** | {part['error'][:300]}" + " |" * len(shown))
    notes = [f"{name}: {note}" for name, part in parts.items() for note in part.get("notes", ())]
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model: shows that it works, measures nothing")
    parser.add_argument("--parts", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--json", help="write every figure here")
    given = parser.parse_args()
    tiny = given.tiny or not has_gpu()
    parts = [name for name in BUDGETS if name in given.parts or name == "model"]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = run_parts(parts, tiny, folder)
    result = {"tiny": tiny, "seconds": time.monotonic() - started, "parts": found}
    machine = found["model"].get("machine", {})
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if tiny:
        print("a tiny model: the figures only show that every part runs")
    print(f"\n{table(found)}")
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(part["status"] != "done" for part in found.values()))


if __name__ == "__main__":
    main()
