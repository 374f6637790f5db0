"""The plan against real training steps: the peak memory of three made models, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_tokenizer
from tests.train.made import dialogue, write_lines
from train.plan import Planner
from train.plan_data import plan_data
from train.plan_model import find_config
from train.recipe import load_recipe

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process can be reset on Linux only"
)

LORA = {"r": 16, "alpha": 32, "dropout": 0.05}
# name: architecture, its numbers, LoRA or all weights, turns of a dialogue, rows of a batch, settings.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-lora": {
        "type": "llama",
        "config": {"vocab_size": 16000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4},
        "lora": LORA,
        "turns": 4,
        "batch": 2,
        "steps": 1,
    },
    "qwen2-full": {
        "type": "qwen2",
        "config": {"vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4},
        "lora": None,
        "turns": 4,
        "batch": 1,
    },
    "llama-eager-checkpointed": {
        "type": "llama",
        "config": {"vocab_size": 48000, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4},
        "lora": LORA,
        "turns": 8,
        "batch": 1,
        "steps": 1,
        "attention": "eager",
        "training": {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    },
}


def made_recipe(folder: Path, shape: dict[str, Any], steps: int) -> Path:
    """A recipe file with its model, tokenizer and dialogues in `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer()
    config = AutoConfig.for_model(
        shape["type"],
        **shape["config"],
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    # The seeker says much and the supporter little, so that most positions carry loss.
    texts = ["mm", "I can not sleep and work is hard; " * 6]
    rows = [dialogue(str(number), *(texts * (shape["turns"] // 2))) for number in range(shape["batch"] * 4)]
    content = {
        "kind": "seeker",
        "out": str(folder / "out"),
        "model": {"base": str(folder / "model"), "attention": shape.get("attention", "sdpa")},
        "lora": shape["lora"],
        "data": {"train": str(write_lines(folder / "rows.jsonl", rows)), "max_length": 2048},
        "training": {
            "per_device_train_batch_size": shape["batch"],
            "gradient_accumulation_steps": 1,
            "max_steps": steps,
            "save_strategy": "no",
            "disable_tqdm": True,
            **shape.get("training", {}),
        },
    }
    (folder / "recipe.yaml").write_text(json.dumps(content), encoding="utf-8")
    return folder / "recipe.yaml"


def measured(recipe: Path, warm_up: Path) -> float:
    """Peak bytes of training the recipe, in a process of its own, with large blocks mapped one by one: what tensors
    need, without the gaps between them that a heap keeps (the plan's `reserve`)."""
    command = [sys.executable, "-m", "tests.train.measure_memory", str(recipe), str(warm_up)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ESCKIT_CACHE": str(recipe.parent / "cache")}
    environment |= {"MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stdout.splitlines()[-1])["peak"])


@pytest.mark.parametrize("name", SHAPES)
def test_estimate_is_within_a_fifth_of_the_measured_peak(name: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "warm").mkdir()
    tiny = {"type": SHAPES[name]["type"], "lora": SHAPES[name]["lora"], "turns": 2, "batch": 1}
    tiny["config"] = {"vocab_size": 600, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    warm_up = made_recipe(tmp_path / "warm", tiny, 1)
    path = made_recipe(tmp_path, SHAPES[name], SHAPES[name].get("steps", 2))
    recipe = load_recipe(path)
    found = find_config(recipe.model)
    data = plan_data(recipe, found.tokenizer, found.config.vocab_size, 1)
    memory = Planner(found, data).memory(recipe, on_gpu=False)
    peak = measured(path, warm_up)
    assert memory.total is not None
    planned = memory.total - memory.parts["reserve"]
    parts = ", ".join(
        f"{part} {value / 2**20:.0f}" for part, value in memory.parts.items() if value and part != "reserve"
    )
    with capsys.disabled():
        print(f"\n{name}: {data.widest} planned {planned / 2**20:.0f} MB ({parts}), measured {peak / 2**20:.0f} MB")
    assert peak > 200 * 2**20, "too small to mean anything"
    assert abs(planned - peak) < 0.2 * peak
