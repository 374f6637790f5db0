"""Training steps with and without `train.memory.keep_freed_memory`, each in its own process, taking turns.

    python benchmarks/cpu_memory.py            # all-MiniLM-L6-v2 must be there: esckit model fetch minilm-l6

Prints wall time, user and system time and page faults of a step (the first two are warming up), and peak memory.
"""

import json
import resource
import subprocess
import sys
import time

STEPS = 8


def measure(kept: bool) -> dict[str, float]:
    """Runs the steps in this process; batches change in length as real ones do."""
    import torch

    import train.models
    from train.models import add_lora, load_backbone
    from train.recipe import LoraSection, ModelSection

    if not kept:
        train.models.keep_freed_memory = lambda: False  # the loaders would call it
    model = add_lora(load_backbone(ModelSection(base="minilm-l6")), LoraSection(), "FEATURE_EXTRACTION").train()
    torch.manual_seed(0)
    seconds, before = 0.0, resource.getrusage(resource.RUSAGE_SELF)
    for step in range(STEPS + 2):
        if step == 2:
            seconds, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        ids = torch.randint(1000, 20000, (8, (512, 400, 460, 350)[step % 4]))
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.square().mean().backward()
        model.zero_grad()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall s": (time.perf_counter() - seconds) / STEPS,
        "user s": (after.ru_utime - before.ru_utime) / STEPS,
        "system s": (after.ru_stime - before.ru_stime) / STEPS,
        "page faults": (after.ru_minflt - before.ru_minflt) / STEPS,
        "peak MB": after.ru_maxrss / 1024,
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1] == "kept")))
        return
    runs: dict[str, list[dict[str, float]]] = {"given back": [], "kept": []}
    for name in ["given back", "kept"] * 3:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    columns = list(runs["kept"][0])
    print("| freed memory | " + " | ".join(columns) + " |\n|---" * 1 + "|---" * len(columns) + "|")
    for name, found in runs.items():
        middle = [sorted(run[column] for run in found)[1] for column in columns]
        print(f"| {name} | " + " | ".join(f"{value:,.2f}" for value in middle) + " |")


if __name__ == "__main__":
    main()
