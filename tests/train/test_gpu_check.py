"""benchmarks/gpu_check.py on a tiny model: it must be known to work before somebody has a GPU for an hour."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_check

    return gpu_check


def test_every_part_runs_and_agrees_with_the_plain_way(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--tiny", "--json", str(tmp_path / "found.json")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    parts = found["parts"]
    assert found["tiny"] is True
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(
        ("model", "loss", "train", "packing", "simulation"), "done"
    )
    rows = {name: {row["way"]: row for row in part["rows"]} for name, part in parts.items()}
    assert [row["equal"] for row in parts["loss"]["rows"][1:]] == [True, True]
    assert parts["simulation"]["equal auto"] == [8, 8]
    for way in ("esckit", "plain Trainer"):
        assert rows["train"][way]["supervised/s"] > 0
        assert rows["train"][way]["tokens/s"] <= rows["train"][way]["forwarded/s"]
        assert len(parts["train"]["runs"][way][0]["losses"]) == 3
    assert rows["packing"].keys() == {"by length, sdpa", "packed, sdpa"}
    assert parts["train"]["plan"]["total"] > 0
    for line in (
        "| simulation | one by one, auto |",
        "loss: supervised positions: loss",
        "8 of 8 utterances are the same",
    ):
        assert line in done.stdout


FAULTY = """
import json, os, sys, time
folder, *parts = [text for text in sys.argv[1:] if text != "--tiny"]
for name in parts:
    def say(status, **more):
        with open(f"{folder}/part-{name}.json", "w") as file:
            json.dump({"status": status, "seconds": 1.0, "rows": [{"way": "w", "ms": 2.0}], **more}, file)
    say("running")
    if name == "loss":
        say("failed", error="ValueError: no good")
        sys.exit(1)
    if name == "train":
        print("Segmentation fault of sorts", file=sys.stderr, flush=True)
        os._exit(139)
    if name == "packing":
        time.sleep(60)
    say("done")
"""


def test_a_part_that_fails_dies_or_hangs_is_told_and_the_others_go_on(gpu_check, tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(FAULTY, encoding="utf-8")
    monkeypatch.setattr(gpu_check, "WORKER", worker)
    monkeypatch.setitem(gpu_check.BUDGETS, "packing", 0.5)
    found = gpu_check.run_parts(list(gpu_check.BUDGETS), True, tmp_path)
    assert {name: part["status"] for name, part in found.items()} == {
        "model": "done",
        "loss": "failed",
        "train": "failed",
        "packing": "stopped",
        "simulation": "done",
    }
    assert found["loss"]["error"] == "ValueError: no good"
    assert "code 139" in found["train"]["error"]
    assert "Segmentation fault of sorts" in found["train"]["error"]
    assert "ended after" in found["packing"]["error"]
    printed = gpu_check.table(found)
    assert "| packing | w | 2 |" in printed  # what was measured before is kept
    assert "| train | **failed** |" in printed


def test_a_process_that_dies_before_any_part_fails_each_part_once(gpu_check, tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text("raise SystemExit('no such library')", encoding="utf-8")
    monkeypatch.setattr(gpu_check, "WORKER", worker)
    found = gpu_check.run_parts(["model", "loss"], True, tmp_path)
    assert ["no such library" in part["error"] for part in found.values()] == [True, True]


def test_a_way_that_needs_too_much_memory_leaves_the_others_their_figures(gpu_check, tmp_path):
    import gpu_check_runs

    check = gpu_check_runs.Check(tmp_path, tiny=True)
    check.begin("train")
    calls = []

    def full():
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")

    ways = {"ours": lambda: {"tokens/s": 4.0}, "plain": full}
    rows = gpu_check_runs.take_turns(check, ways, 2, "tokens/s", "plain", afresh=True)
    assert [(row["way"], row.get("error"), row.get("times")) for row in rows] == [
        ("ours", None, None),
        ("plain", "CUDA out of memory", None),
    ]
    assert len(calls) == 1
    assert json.loads((tmp_path / "part-train.json").read_text(encoding="utf-8"))["rows"] == rows
    assert "failed: CUDA out of memory" in gpu_check.table({"train": {**check.found, "status": "done"}})
