"""A scorer's training that is really launched: two processes by DDP, ZeRO-2 and ZeRO-3 give what one process gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.made_launched import launched, own_cache, write_recipe  # noqa: F401 - own_cache is a fixture
from tests.train.made_scorer import scorer_content
from train.output import finished_metrics
from train.rank import train_scorer
from train.recipe import ScorerRecipe, load_recipe


@pytest.fixture(scope="module")
def scorer_alone(tiny_encoder, tmp_path_factory) -> tuple[Path, ScorerRecipe, dict[str, Any]]:
    """A scorer with everything that has weights, kept by its best kappa: recipe file, the run of one process."""
    folder = tmp_path_factory.mktemp("scorer")
    encoder = shutil.copytree(tiny_encoder, folder / "encoder")
    config = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # every process draws its own
    (encoder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    content = scorer_content(encoder, folder / "out", max_steps=4)
    content["lora"]["dropout"] = 0
    content["training"] |= {"per_device_train_batch_size": 2, "load_best_model_at_end": True}
    # Or Adam makes steps of full size of gradients that are nothing but rounding.
    content["training"]["adam_epsilon"] = 1e-4
    content["data"] |= {"split": {"validation": 0.4, "test": 0}, "max_length": 64, "long_dialogues": "windows"}
    content["data"]["limit"] = 20
    content["scorer"] = {"rater_effects": True, "class_weights": "root", "calibration": "thresholds"}
    file = write_recipe(folder, content)
    recipe = load_recipe(file, [f"out={folder / 'one'}", "training.per_device_train_batch_size=4"])
    assert isinstance(recipe, ScorerRecipe)
    return file, recipe, train_scorer(recipe)


@pytest.mark.parametrize("config", ["cpu", "zero2", "zero3"])
def test_a_scorer_of_two_processes_equals_one(config, scorer_alone, tmp_path):
    file, alone, wanted = scorer_alone
    found = finished_metrics(launched(file, tmp_path / "two", config))
    assert found is not None
    assert found["world_size"] == 2
    for figure in ("train_loss", "eval_loss"):
        assert found[figure] == pytest.approx(wanted[figure], abs=1e-5)
    assert found["best_step"] == wanted["best_step"]
    for name in ("heads.safetensors", "adapter/adapter_model.safetensors"):
        weights, others = load_file(tmp_path / "two" / name), load_file(Path(alone.out) / name)
        assert weights.keys() == others.keys()
        for key, tensor in weights.items():
            assert tensor.numel() > 0
            assert "lora_B" not in key or float(tensor.norm()) > 1e-4
            torch.testing.assert_close(tensor, others[key], atol=2e-5, rtol=1e-3)
    severities = [json.loads((out / "raters.json").read_text()) for out in (tmp_path / "two", Path(alone.out))]
    for rater, severity in severities[1].items():
        assert severities[0][rater] == pytest.approx(severity, abs=1e-4)
