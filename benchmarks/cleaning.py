"""What cleaning costs beside parsing: N made Chinese dialogues of the usual size, streamed from file to file.

    python benchmarks/cleaning.py [N]

Prints processor time a dialogue: for a bare `json.loads` + `json.dumps` of the same lines, for reading and writing our
records, for every step alone, and for `clean` with its default steps; and the peak memory of the streamed run.
"""

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from data_prep.cleaning import STEPS, clean
from data_prep.cli_clean import stream_dialogues
from data_prep.records import Dialogue, Turn, dump_line

TURNS, CHARACTERS = 12, 40
COMMON = "的我你是不了在有人这个们中来上大为和说时要就出会可也到下子过得自后以心里想好家天没都多事现感觉工作"


def made(count: int) -> Iterable[Dialogue]:
    draw = random.Random(0)
    for number in range(count):
        turns = tuple(
            Turn(
                speaker="supporter" if position % 2 else "seeker",
                text="，".join("".join(draw.choices(COMMON, k=CHARACTERS // 2)) for _ in range(2)) + "。",
            )
            for position in range(TURNS)
        )
        yield Dialogue(id=f"d{number}", language="zh", source="made", turns=turns)


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(dump_line(dialogue) for dialogue in made(count))

        def through(change: Callable[[Iterable[Dialogue]], Iterable[Dialogue]]) -> None:
            with open(target, "w", encoding="utf-8") as file:
                file.writelines(dump_line(dialogue) for dialogue in change(stream_dialogues(source)))

        def bare() -> None:
            with open(source, encoding="utf-8") as lines, open(target, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(json.loads(line), ensure_ascii=False) + "\n" for line in lines)

        baseline = seconds(bare)
        rows = [("bare json", baseline), ("our records, no step", seconds(lambda: through(lambda made: made)))]
        for step in STEPS.values():
            rows.append((f"with {step.name}", seconds(lambda step=step: through(lambda made: clean(made, [step])))))
        rows.append(("default steps", seconds(lambda: through(clean))))
    for name, spent in rows:
        print(f"{name:<24} {spent / count * 1e6:8.0f} µs a dialogue, {spent / baseline:5.1f} times bare json")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB for {count:,} dialogues")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
