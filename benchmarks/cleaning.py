"""What cleaning costs beside parsing: N made Chinese dialogues, or those of a file, streamed from file to file.

    python benchmarks/cleaning.py [N [CHARACTERS]]
    python benchmarks/cleaning.py DIALOGUES.jsonl

Prints processor time a dialogue, the least of three runs in turn: for a bare `json.loads` + `json.dumps` of the same
lines, and for what `esckit data clean` does with no step, with every step alone, and with its default steps; each
reads a file and writes one. Then the peak memory. Dialogues have 12 turns of CHARACTERS characters, 84 unless given:
those of SMILE have 11.6 turns of 83 on average. All openings differ, which is the slowest case.
"""

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_prep.cleaning import STEPS, CleaningReport, Step
from data_prep.cli_clean import cleaned_lines
from data_prep.records import Dialogue, Turn, dump_line

TURNS, CHARACTERS = 12, 84
RUNS = 3
COMMON = "的我你是不了在有人这个们中来上大为和说时要就出会可也到下子过得自后以心里想好家天没都多事现感觉工作"


def made(count: int, characters: int) -> Iterator[Dialogue]:
    draw = random.Random(0)
    for number in range(count):
        turns = tuple(
            Turn(
                speaker="supporter" if position % 2 else "seeker",
                text="，".join("".join(draw.choices(COMMON, k=characters // 2)) for _ in range(2)) + "。",
            )
            for position in range(TURNS)
        )
        yield Dialogue(id=f"d{number}", language="zh", source="made", turns=turns)


def bare(source: Path) -> Iterator[str]:
    with open(source, encoding="utf-8") as lines:
        for line in lines:
            yield json.dumps(json.loads(line), ensure_ascii=False) + "\n"


def seconds(lines: Iterable[str], target: Path) -> float:
    start = time.process_time()
    with open(target, "w", encoding="utf-8") as file:
        file.writelines(lines)
    return time.process_time() - start


def measure(source: Path, count: int) -> None:
    ways: dict[str, list[Step] | None] = {"bare json": None, "our records, no step": []}
    ways |= {f"with {step.name}": [step] for step in STEPS.values()}
    ways["default steps"] = None
    spent: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RUNS):
            for name, steps in ways.items():
                lines = bare(source) if name == "bare json" else cleaned_lines(source, steps, CleaningReport())
                spent[name].append(seconds(lines, Path(folder) / "out.jsonl"))
    baseline = min(spent["bare json"])
    for name, runs in spent.items():
        each = min(runs)
        print(f"{name:<24} {each / count * 1e6:8.0f} µs a dialogue, {each / baseline:5.1f} times bare json")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB for {count:,} dialogues")


def main(given: list[str]) -> None:
    if given and not given[0].isdecimal():
        with open(given[0], "rb") as lines:
            count = sum(1 for _ in lines)
        measure(Path(given[0]), count)
        return
    count, characters = (*map(int, given), *(5000, CHARACTERS)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(dump_line(dialogue) for dialogue in made(count, characters))
        measure(source, count)


if __name__ == "__main__":
    main(sys.argv[1:])
