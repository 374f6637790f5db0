"""Stopping and resuming changes no bit: every order of rows, in an epoch and at its border, by copy and by signal."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from tests.train.made_scorer import scorer_content
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


def weights_of(out: str | Path) -> dict[str, torch.Tensor]:
    files = [path for path in Path(out).rglob("*.safetensors") if "checkpoints" not in path.parts]
    return {f"{path.name} {name}": tensor for path in files for name, tensor in load_file(path).items()}


def assert_same_result(left: str | Path, right: str | Path) -> None:
    first, second = weights_of(left), weights_of(right)
    assert first
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def as_if_killed_after(recipe: Recipe, step: int, folder: Path) -> Recipe:
    """The same run in another folder, as if it had been killed after the checkpoint of `step`."""
    killed = recipe.model_copy(update={"out": str(folder / "out")})
    checkpoint = f"checkpoints/checkpoint-{step}"
    shutil.copytree(Path(recipe.out) / checkpoint, folder / "out" / checkpoint)
    saved = (Path(recipe.out) / "recipe.yaml").read_text(encoding="utf-8").replace(recipe.out, killed.out)
    (folder / "out" / "recipe.yaml").write_text(saved, encoding="utf-8")
    shutil.copy(Path(recipe.out) / "start.json", folder / "out")
    return killed


def long_recipe(model: Path, data: Path, folder: Path, *overrides: str) -> Recipe:
    content = chat_content(model, folder / "whole", data, num_train_epochs=3, learning_rate=3e-3)
    content["training"] |= {"gradient_accumulation_steps": 3, "save_steps": 1, "save_total_limit": None}
    return recipe_of(folder, content, *overrides)


@pytest.mark.parametrize("way", WAYS)
def test_resuming_changes_no_bit(tiny_model, seven, tmp_path, way):
    recipe = long_recipe(tiny_model, seven, tmp_path, *WAYS[way])
    metrics = train(recipe)
    assert metrics["steps"] == 6
    # Inside the first epoch, at its border, inside the second, and after everything but the result was written.
    for step in (1, 2, 3, 6):
        resumed = as_if_killed_after(recipe, step, tmp_path / str(step))
        again = train(resumed, resume=True)
        assert_same_result(recipe.out, resumed.out)
        assert (again["steps"], again["train_loss"]) == (6, metrics["train_loss"])


@pytest.mark.parametrize("step", [2, 3, 6])
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
    cut(checkpoints / "checkpoint-5" / "optimizer.pt")
    capsys.readouterr()
    train(killed, resume=True)
    assert_same_result(recipe.out, killed.out)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "checkpoint-5 (optimizer.pt ends early); continuing from checkpoint-3" in warnings[0]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_a_checkpoint_and_the_resumed_run_is_the_undisturbed_one(
    tiny_model, seven, tmp_path, number, code
):
    content = chat_content(tiny_model, tmp_path / "whole", seven, num_train_epochs=40, learning_rate=3e-3)
    content["training"] |= {"gradient_accumulation_steps": 2, "save_strategy": "no"}
    whole = recipe_of(tmp_path, content)
    train(whole)
    stopped = whole.model_copy(update={"out": str(tmp_path / "stopped")})
    command = [sys.executable, "-m", "esckit", "train", str(tmp_path / "recipe.yaml"), f"out={stopped.out}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ))
    assert process.stderr
    seen = b""
    while b"| 3/80" not in seen and b"'loss'" not in seen and process.poll() is None:
        seen += os.read(process.stderr.fileno(), 4096)
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    said = (seen + rest).decode()
    assert process.returncode == code, said
    (checkpoint,) = (Path(stopped.out) / "checkpoints").iterdir()
    step = int(checkpoint.name.rpartition("-")[2])
    assert 0 < step < 80
    assert said.splitlines()[-1] == f"stopped; saved checkpoint {step}; continue with --resume"
    assert "Traceback" not in said
    assert not (Path(stopped.out) / "metrics.json").exists()
    assert not (Path(stopped.out) / "adapter_model.safetensors").exists()
    assert train(stopped, resume=True)["steps"] == 80
    assert_same_result(whole.out, stopped.out)
