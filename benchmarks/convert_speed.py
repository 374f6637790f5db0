"""Speed and memory of `esckit data convert` on 55,000 made dialogues of the size of SMILE's.

    python benchmarks/convert_speed.py [--dialogues 55000] [--folder DIR]

Measures the converter against a bare loop over the same files, json.loads and json.dumps of every record and one
write, each in a process of its own. The aim: at most twice the time, and under 500 MB.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = "最近总是睡不好一想到明天的工作就觉得很紧张不知道该怎么办你愿意多说一点吗听起来这段时间你真的很辛苦"
ROOT = Path(__file__).parents[1]


def sentence(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(TEXT, k=length)) + "。"


def turns(rng: random.Random) -> list[dict]:
    """About 12 turns of 80 characters, every sentence repeated in the annotation, as in SMILE."""
    made = []
    for number in range(rng.randint(8, 15)):
        sentences = [sentence(rng, rng.randint(10, 50)) for _ in range(rng.randint(1, 4))]
        annotation = [{"sentence": text, "label": ""} for text in sentences]
        role = "counselor" if number % 2 else "client"
        made.append({"role": role, "content": "".join(sentences), "annotation": annotation})
    return made


def write_smile(folder: Path, count: int) -> None:
    rng = random.Random(0)
    for number in range(count):
        (folder / f"{number}.json").write_text(json.dumps(turns(rng), ensure_ascii=False, indent=4), encoding="utf-8")


def write_extes(path: Path, count: int, as_array: bool) -> None:
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as stream:
        for number in range(count):
            content = [
                {"AI Strategy": "Others", "AI": turn["content"]}
                if turn["role"] == "counselor"
                else {"User": turn["content"]}
                for turn in turns(rng)
            ]
            record = {"scene": "made", "description": sentence(rng, 60), "content": content}
            stream.write("[\n" if as_array and number == 0 else "" if not as_array or number == 0 else ",\n")
            stream.write(json.dumps(record, ensure_ascii=False) + ("" if as_array else "\n"))
        stream.write("\n]" if as_array else "")


def bare(path: Path, out: Path) -> None:
    """What cannot be done without: every record parsed, dumped and written."""
    with open(out, "w", encoding="utf-8") as stream:
        if path.is_dir():
            for number in range(sum(1 for _ in path.iterdir())):
                record = json.loads((path / f"{number}.json").read_text(encoding="utf-8"))
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
        elif path.suffix == ".jsonl":
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    stream.write(json.dumps(json.loads(line), ensure_ascii=False) + "\n")
        else:
            for record in json.loads(path.read_text(encoding="utf-8")):
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def convert(source: str, path: Path, out: Path) -> None:
    from data_prep.cli import write_converted
    from data_prep.sources import Conversion, get_source

    conversion = Conversion()
    chosen = get_source(source)
    write_converted(chosen.records(path, conversion), chosen.makes, out, None)
    assert not conversion.refused


def measured(*arguments: str) -> tuple[float, float]:
    """(seconds of the work, peak memory in MB) of one call of this file in its own process."""
    command = [sys.executable, __file__, "--work", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak)


def work(kind: str, path: Path, out: Path) -> None:
    sys.path.insert(0, str(ROOT))
    if kind != "bare":
        __import__("data_prep.cli"), __import__("data_prep.sources")  # importing is not converting
    start = time.process_time()
    if kind == "bare":
        bare(path, out)
    else:
        convert(kind, path, out)
    seconds = time.process_time() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=55_000)
    parser.add_argument("--folder", type=Path, help="where to make the files (default: a temporary folder)")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        kind, path, out = arguments.work
        work(kind, Path(path), Path(out))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        (folder / "smile").mkdir()
        write_smile(folder / "smile", arguments.dialogues)
        write_extes(folder / "extes.json", arguments.dialogues, as_array=True)
        write_extes(folder / "extes.jsonl", arguments.dialogues, as_array=False)
        print(f"{arguments.dialogues:,} dialogues; CPU seconds; peak memory in MB")
        print(f"{'input':28}{'bare s':>9}{'ours s':>9}{'ratio':>8}{'bare MB':>10}{'ours MB':>10}")
        for source, path in (("smile", "smile"), ("extes", "extes.json"), ("extes", "extes.jsonl")):
            bare_seconds, bare_peak = measured("bare", str(folder / path), str(folder / "bare.out"))
            seconds, peak = measured(source, str(folder / path), str(folder / "ours.out"))
            ratio = seconds / bare_seconds
            what = f"{source}, {'a file each' if path == source else 'one ' + path.split('.')[1] + ' file'}"
            print(f"{what:28}{bare_seconds:9.1f}{seconds:9.1f}{ratio:8.2f}{bare_peak:10.0f}{peak:10.0f}")


if __name__ == "__main__":
    main()
