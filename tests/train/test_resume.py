"""Stopping and resuming changes no bit: any order of rows, inside an epoch and at its border, killed or stopped."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.made import as_if_killed_after, assert_same_result, chat_content, dialogue, recipe_of, write_lines
from tests.train.made_scorer import scorer_content
from train.callbacks import stop_request
from train.checkpoints import TrainingStopped, checkpoint_problem, last_checkpoint
from train.rank import train_scorer
from train.recipe import Recipe, ScorerRecipe
from train.sft import train_chat

CLEAN = ("how are you?", "I am sad", "why is that?", "I can not sleep, 最近压力很大")

# What a run may differ in and still must be resumed exactly. Two steps an epoch, of three batches and of one.
WAYS: dict[str, list[str]] = {
    "by length": [],
    "in random order": ["data.order=random"],
    "with noise on the embeddings": ["training.neftune_noise_alpha=5"],
    "all weights, recomputed": ["lora=null", "training.gradient_checkpointing=true", "training.learning_rate=1e-3"],
}


@pytest.fixture(scope="module")
def seven(tmp_path_factory) -> Path:
    """Seven dialogues of different lengths: four batches of two an epoch, the last one smaller."""
    made = [dialogue(f"d{n}", *CLEAN, *["really", "yes, I am so tired of it"] * (n % 4)) for n in range(7)]
    return write_lines(tmp_path_factory.mktemp("data") / "seven.jsonl", made)


def train(recipe: Recipe, resume: bool = False) -> dict[str, Any]:
    return train_scorer(recipe, resume) if isinstance(recipe, ScorerRecipe) else train_chat(recipe, resume)


def long_recipe(model: Path, data: Path, folder: Path, *overrides: str) -> Recipe:
    content = chat_content(model, folder / "whole", data, max_steps=5, learning_rate=3e-3)
    content["training"] |= {"gradient_accumulation_steps": 3, "save_steps": 1, "save_total_limit": None}
    return recipe_of(folder, content, *overrides)


@pytest.mark.parametrize("way", WAYS)
def test_resuming_changes_no_bit(tiny_model, seven, tmp_path, way):
    recipe = long_recipe(tiny_model, seven, tmp_path, *WAYS[way])
    metrics = train(recipe)
    assert metrics["steps"] == 5
    # Inside the first epoch, at its border, inside the second, and after everything but the result was written (in
    # the middle of the third: the library would train a step more).
    for step in (1, 2, 3, 5) if way == "by length" else (2, 3):
        resumed = as_if_killed_after(recipe, step, tmp_path / str(step))
        again = train(resumed, resume=True)
        assert_same_result(recipe.out, resumed.out)
        assert (again["steps"], again["train_loss"]) == (5, metrics["train_loss"])


@pytest.mark.parametrize("step", [2, 3])
def test_resuming_a_scorer_changes_no_bit(tiny_encoder, tmp_path, step):
    content = scorer_content(tiny_encoder, tmp_path / "whole", num_train_epochs=3, gradient_accumulation_steps=2)
    content["training"] |= {"save_steps": 1, "save_total_limit": None}
    recipe = recipe_of(tmp_path, content)
    assert train(recipe)["steps"] == 6
    resumed = as_if_killed_after(recipe, step, tmp_path / str(step))
    assert train(resumed, resume=True)["steps"] == 6
    assert_same_result(recipe.out, resumed.out)


def test_evaluation_and_samples_move_no_random_state(tiny_model, seven, tmp_path):
    """A checkpoint at an epoch's end is written before that epoch's evaluation, and a resumed run does not make up
    for it; with dropout on, nothing but equal random states gives equal adapters."""
    plain = long_recipe(tiny_model, seven, tmp_path)
    train(plain)
    looked_at = [f"data.validation={seven}", "training.eval_strategy=epoch", "evaluation.samples=2"]
    looked_at += ["evaluation.max_new_tokens=5", f"out={tmp_path / 'evaluated'}"]
    evaluated = long_recipe(tiny_model, seven, tmp_path, *looked_at)
    assert len(train(evaluated)["eval_loss"]) == 3
    assert_same_result(plain.out, evaluated.out)
    resumed = as_if_killed_after(evaluated, 4, tmp_path / "4")
    train(resumed, resume=True)
    assert_same_result(plain.out, resumed.out)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_the_checkpoint_before_a_damaged_one_is_resumed(tiny_model, seven, tmp_path, capsys):
    recipe = long_recipe(tiny_model, seven, tmp_path)
    train(recipe)
    killed = as_if_killed_after(recipe, 3, tmp_path)
    checkpoints = Path(killed.out) / "checkpoints"
    shutil.copytree(Path(recipe.out) / "checkpoints" / "checkpoint-5", checkpoints / "checkpoint-5")
    for file in (Path(recipe.out) / "checkpoints" / "checkpoint-4").iterdir():
        assert checkpoint_problem(file.parent) is None
        content = file.read_bytes()
        if file.suffix in (".safetensors", ".pt", ".pth", ".bin", ".json"):
            cut(file)
            assert file.name in str(checkpoint_problem(file.parent))
        file.write_bytes(content)
    cut(checkpoints / "checkpoint-5" / "optimizer.pt")
    capsys.readouterr()
    train(killed, resume=True)
    assert_same_result(recipe.out, killed.out)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "checkpoint-5 (optimizer.pt ends early); continuing from checkpoint-3" in warnings[0]


def start(recipe_file: Path, out: Path, **environment: str) -> subprocess.Popen[bytes]:
    """`esckit train` in a process of its own."""
    command = [sys.executable, "-m", "esckit", "train", str(recipe_file), f"out={out}"]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )


def wait_for_a_step(process: subprocess.Popen[bytes], of: int) -> bytes:
    """What the process has said until its progress shows that one of so many steps is done."""
    assert process.stderr
    seen = b""
    while not re.search(rb"\b[1-9]\d*/%d \[" % of, seen) and (more := os.read(process.stderr.fileno(), 4096)):
        seen += more
    return seen


def test_sigterm_saves_a_checkpoint_and_the_resumed_run_is_the_undisturbed_one(tiny_model, seven, tmp_path):
    content = chat_content(tiny_model, tmp_path / "whole", seven, num_train_epochs=12, learning_rate=3e-3)
    content["training"] |= {"gradient_accumulation_steps": 3, "save_strategy": "no"}
    whole = recipe_of(tmp_path, content)
    process = start(tmp_path / "recipe.yaml", tmp_path / "stopped")
    seen = wait_for_a_step(process, of=24)
    process.send_signal(signal.SIGTERM)
    said = (seen + process.communicate(timeout=60)[1]).decode()
    assert process.returncode == 143, said
    (checkpoint,) = (tmp_path / "stopped" / "checkpoints").iterdir()
    step = int(checkpoint.name.rpartition("-")[2])
    assert 0 < step < 24
    assert said.splitlines()[-1] == f"stopped; saved checkpoint {step}; continue with --resume"
    assert "Traceback" not in said
    assert not {"metrics.json", "adapter_model.safetensors"} & {path.name for path in (tmp_path / "stopped").iterdir()}
    stopped = whole.model_copy(update={"out": str(tmp_path / "stopped")})
    assert train(stopped, resume=True)["steps"] == train(whole)["steps"] == 24
    assert_same_result(whole.out, stopped.out)


def test_two_processes_stop_at_the_same_step_though_one_was_told(tiny_model, seven, tmp_path):
    content = chat_content(tiny_model, tmp_path / "out", seven, num_train_epochs=50, save_strategy="no")
    recipe_of(tmp_path, content)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    ranks = [
        start(tmp_path / "recipe.yaml", tmp_path / "out", RANK=str(rank), LOCAL_RANK=str(rank), **shared)
        for rank in range(2)
    ]
    try:
        seen = wait_for_a_step(ranks[0], of=100)
        ranks[1].send_signal(signal.SIGTERM)
        others = ranks[1].communicate(timeout=60)[1].decode()
        said = (seen + ranks[0].communicate(timeout=60)[1]).decode()
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [143, 143], said + others
    (checkpoint,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert checkpoint_problem(checkpoint, world_size=2) is None
    assert said.count("stopped; saved checkpoint") == 1
    assert "saved checkpoint" not in others


class Interrupt:
    """Raises SIGINT in this process at chosen steps, as a person at the keyboard would."""

    def __init__(self, *steps: int):
        self.steps = steps

    def __call__(self, args, state, control, **kwargs):
        if state.global_step in self.steps:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_ctrl_c_ends_with_the_checkpoint_of_its_step(tiny_model, seven, tmp_path, monkeypatch, at):
    """At the epoch's border the checkpoint is the one after its evaluation; in the last step nothing is stopped."""
    content = chat_content(tiny_model, tmp_path / "out", seven, num_train_epochs=3, gradient_accumulation_steps=3)
    content["data"]["validation"] = str(seven)
    recipe = recipe_of(tmp_path, content)
    monkeypatch.setattr("transformers.trainer_callback.DefaultFlowCallback.on_optimizer_step", Interrupt(at - 1))
    before = signal.getsignal(signal.SIGINT)
    if at == 6:
        assert train(recipe)["steps"] == 6
    else:
        with pytest.raises(TrainingStopped, match=rf"saved checkpoint {at}; continue") as caught:
            train(recipe)
        assert caught.value.exit_code == 130
        checkpoint = Path(str(last_checkpoint(tmp_path / "out" / "checkpoints", world_size=1)))
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        assert state["global_step"] == at
        assert sum("eval_loss" in entry for entry in state["log_history"]) == at // 2
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_is_immediate_but_not_the_echo_of_the_first(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("train.callbacks.time.monotonic", lambda: now[0])
    with stop_request() as request:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the launcher passes on what the terminal has sent already
        signal.raise_signal(signal.SIGTERM)
        assert request.number == signal.SIGINT
        now[0] = 2.0
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
