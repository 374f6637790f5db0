"""Trainings that are really launched: two processes by DDP, ZeRO-2 and ZeRO-3 give what one process gives.

On the CPU, over gloo, with the configurations that a GPU machine uses. One launch takes some ten seconds.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.made import chat_content, dialogue, write_lines
from tests.train.made_launched import launched, own_cache, write_recipe  # noqa: F401 - own_cache is a fixture
from train.output import finished_metrics
from train.recipe import ChatRecipe, Recipe, load_recipe
from train.sft import train_chat

ROOT = Path(__file__).parents[2]
STEPS = 6
CLEAN = ("how are you?", "I am sad", "why is that?", "I can not sleep, 最近压力很大")


@pytest.fixture(scope="module")
def eight(tmp_path_factory) -> Path:
    """Eight dialogues of different lengths: two steps of four rows an epoch."""
    made = [dialogue(f"d{n}", *CLEAN, *["really", "yes, I am so tired of it"] * (n % 4)) for n in range(8)]
    return write_lines(tmp_path_factory.mktemp("data") / "eight.jsonl", made)


@pytest.fixture(scope="module")
def recipe_file(tiny_model, eight, tmp_path_factory) -> Path:
    """Two rows at once, twice a step: with two processes one row each, twice a step."""
    folder = tmp_path_factory.mktemp("launched")
    content = chat_content(tiny_model, folder / "out", eight, max_steps=STEPS, learning_rate=3e-3, save_steps=2)
    content["lora"]["dropout"] = 0  # every process draws its own
    content["training"] |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "save_total_limit": 9}
    return write_recipe(folder, content)


def one_process(recipe_file: Path, out: Path, rows: int, accumulation: int) -> ChatRecipe:
    overrides = [
        f"out={out}",
        f"training.per_device_train_batch_size={rows}",
        f"training.gradient_accumulation_steps={accumulation}",
    ]
    recipe = load_recipe(recipe_file, overrides)
    assert isinstance(recipe, ChatRecipe)
    train_chat(recipe)
    return recipe


@pytest.fixture(scope="module")
def alone(recipe_file, tmp_path_factory) -> ChatRecipe:
    """The same rows a step in one process."""
    return one_process(recipe_file, tmp_path_factory.mktemp("alone") / "out", 2, 2)


def adapter_of(out: str | Path) -> dict[str, torch.Tensor]:
    return load_file(Path(out) / "adapter_model.safetensors")


def assert_equal_runs(found: Recipe, expected: Recipe, processes: int = 2) -> None:
    """Losses, adapter and counts of two finished runs are equal within float noise, and nothing is empty."""
    metrics, wanted = finished_metrics(found), finished_metrics(expected)
    assert metrics is not None
    assert wanted is not None
    assert metrics["world_size"] == processes
    assert metrics["train_loss"] == pytest.approx(wanted["train_loss"], abs=2e-6)
    assert metrics["trainable_parameters"] == wanted["trainable_parameters"] > 0
    weights, others = adapter_of(found.out), adapter_of(expected.out)
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert tensor.numel() > 0
        if "lora_B" in name:
            assert float(tensor.norm()) > 1e-3  # trained
        torch.testing.assert_close(tensor, others[name], atol=2e-6, rtol=1e-5)


def test_rows_at_once_and_accumulated_are_the_same_run(recipe_file, alone, tmp_path):
    for rows, accumulation in ((4, 1), (1, 4)):
        assert_equal_runs(one_process(recipe_file, tmp_path / f"out{rows}", rows, accumulation), alone, processes=1)


def test_two_processes_equal_one(recipe_file, alone, tmp_path):
    assert_equal_runs(launched(recipe_file, tmp_path / "out", "cpu"), alone)


def test_zero3_equals_one_process_and_resumes(recipe_file, alone, tmp_path):
    whole = launched(recipe_file, tmp_path / "out", "zero3")
    assert_equal_runs(whole, alone)
    # As if it had been killed while it wrote its second checkpoint.
    for gone in ("metrics.json", "adapter_model.safetensors", f"checkpoints/checkpoint-{STEPS}"):
        path = Path(whole.out) / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    half = Path(whole.out) / "checkpoints/checkpoint-4"
    next(half.glob("global_step*/*rank_1*optim_states.pt")).unlink()
    assert_equal_runs(launched(recipe_file, tmp_path / "out", "zero3", resume=True), alone)
    assert (half.parent / "incomplete-4").is_dir()


def test_full_tuning_under_zero3_saves_whole_weights(recipe_file, tmp_path):
    """Also across two launchers that meet at an address, as two machines do."""
    content = json.loads(recipe_file.read_text(encoding="utf-8"))
    del content["lora"], content["training"]["save_steps"]
    content["training"] |= {"max_steps": 2, "save_strategy": "no", "optim": "sgd", "learning_rate": 0.1}
    file = write_recipe(tmp_path, content)
    expected = one_process(file, tmp_path / "one", 2, 2)
    line = [sys.executable, "-m", "esckit", "train", str(file), f"out={tmp_path / 'out'}"]
    line += ["--accelerate", "multi_node", "--cpu", "--num-processes", "2", "--num-machines", "2"]
    line += ["--main-process-ip", "127.0.0.1", "--main-process-port", str(free_port()), "--machine-rank"]
    machines = [subprocess.Popen([*line, str(rank)], cwd=ROOT) for rank in (1, 0)]
    assert [machine.wait(timeout=300) for machine in machines] == [0, 0]
    weights, others = load_file(tmp_path / "out/model.safetensors"), load_file(tmp_path / "one/model.safetensors")
    assert weights.keys() == others.keys()
    start = load_file(Path(expected.model.base) / "model.safetensors")
    assert any(not torch.equal(tensor, start[name]) for name, tensor in weights.items())
    for name, tensor in weights.items():
        assert tensor.numel() > 0
        torch.testing.assert_close(tensor, others[name], atol=2e-6, rtol=1e-5)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_zero2_stopped_by_sigterm_saves_and_resumes_to_the_same_run(recipe_file, alone, tmp_path):
    out = tmp_path / "out"
    line = [sys.executable, "-m", "esckit", "train", str(recipe_file), f"out={out}"]
    line += ["--accelerate", "zero2", "--num-processes", "2", "--cpu"]
    log = tmp_path / "log"
    with log.open("w") as file:
        running = subprocess.Popen(line, cwd=ROOT, stdout=file, stderr=file)
    wait_for(out / "checkpoints/checkpoint-2/trainer_state.json", running)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=120) == 128 + signal.SIGTERM
    text = log.read_text(encoding="utf-8")
    assert text.count("continue with --resume") == 1
    assert "Traceback" not in text
    assert not (out / "metrics.json").exists()

    assert subprocess.run([*line, "--resume"], cwd=ROOT, check=False).returncode == 0
    assert_equal_runs(load_recipe(recipe_file, [f"out={out}"]), alone)

    again = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    errors = [text for text in again.stderr.splitlines() if "error" in text.lower()]
    assert errors == [f"error: {out}: already holds a run of this recipe; add --resume, or choose another `out`"]
    assert "Traceback" not in again.stderr


def wait_for(path: Path, running: subprocess.Popen[bytes]) -> None:
    for _ in range(6000):
        if path.is_file():
            return
        assert running.poll() is None, "ended before it could be stopped"
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")
