"""Options of the library that a recipe passes through do take effect, in chat recipes and, where they can, scorers."""

import pytest
import torch

from data_prep.errors import UserError
from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from tests.train.made_scorer import scorer_content
from train.rank import train_scorer
from train.sft import build_trainer, train_chat


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    made = [dialogue(f"d{n}", "how are you?", "I am sad", "why?", "work " * (9 * n + 1)) for n in range(2)]
    return write_lines(tmp_path_factory.mktemp("data") / "two.jsonl", made)


def losses(model, data, folder, *overrides: str, lora: bool = True) -> list[float]:
    folder.mkdir()
    content = chat_content(model, folder / "out", data, max_steps=2, learning_rate=1e-2, warmup_steps=0)
    content["training"] |= {"save_strategy": "no"}
    content["lora"] = {**content["lora"], "dropout": 0} if lora else None
    return train_chat(recipe_of(folder, content, *overrides))["train_loss"]


@pytest.mark.parametrize("lora", [True, False])
def test_noise_on_the_embeddings_changes_the_loss_and_grows_with_alpha(tiny_model, two, tmp_path, lora):
    plain = losses(tiny_model, two, tmp_path / "plain", lora=lora)
    some, much = (
        losses(tiny_model, two, tmp_path / str(alpha), f"training.neftune_noise_alpha={alpha}", lora=lora)
        for alpha in (0.001, 50)
    )
    assert some[0] != plain[0]
    assert some[0] == pytest.approx(plain[0], rel=1e-2)
    assert abs(much[0] - plain[0]) > 5 * abs(some[0] - plain[0])


@pytest.mark.parametrize("lora", [True, False])
def test_recomputing_activations_changes_no_loss(tiny_model, two, tmp_path, lora):
    plain = losses(tiny_model, two, tmp_path / "plain", lora=lora)
    saving = losses(tiny_model, two, tmp_path / "saving", "training.gradient_checkpointing=true", lora=lora)
    assert saving == pytest.approx(plain, abs=1e-5)
    assert plain[1] != plain[0]  # the second loss has seen the gradients of the first


def test_gradient_checkpointing_reads_every_layer_twice(tiny_model, two, tmp_path):
    calls = {}
    for name in ("false", "true"):
        (folder := tmp_path / name).mkdir()
        content = chat_content(tiny_model, folder / "out", two, max_steps=1, save_strategy="no")
        trainer, _ = build_trainer(recipe_of(folder, content, f"training.gradient_checkpointing={name}"))
        seen = calls.setdefault(name, [])
        trainer.model.get_base_model().model.layers[0].mlp.register_forward_pre_hook(
            lambda *_, seen=seen: seen.append(1)
        )
        trainer.train()
    assert len(calls["true"]) == 2 * len(calls["false"]) > 0


def test_activations_are_offloaded_only_when_asked_and_only_from_a_gpu(tiny_model, two, tmp_path):
    content = chat_content(tiny_model, tmp_path / "out", two, max_steps=1)
    plain = recipe_of(tmp_path, content)
    asked = recipe_of(tmp_path, content, "training.activation_offloading=true")
    if torch.accelerator.is_available():
        contexts = [build_trainer(recipe)[0].maybe_activation_offload_context for recipe in (plain, asked)]
        assert [isinstance(one, torch.autograd.graph.saved_tensors_hooks) for one in contexts] == [False, True]
    else:
        with pytest.raises(UserError, match=r"^training\.activation_offloading: .* no GPU is visible; leave it out$"):
            build_trainer(asked)


@pytest.mark.parametrize("lora", [True, False])
def test_the_scorer_takes_noise_and_recomputation_too(tiny_encoder, tmp_path, lora):
    found = {}
    for name, options in {
        "plain": [],
        "noise": ["training.neftune_noise_alpha=5"],
        "recompute": ["training.gradient_checkpointing=true"],
    }.items():
        content = scorer_content(tiny_encoder, tmp_path / name / "out", max_steps=2, save_strategy="no", warmup_steps=0)
        content["lora"] = {**content["lora"], "dropout": 0} if lora else None
        (tmp_path / name).mkdir()
        found[name] = train_scorer(recipe_of(tmp_path / name, content, *options))["train_loss"]
    assert found["noise"][1] != found["plain"][1]  # the first loss is that of the priors: fresh heads read nothing
    if not lora:  # the made encoder has dropout of its own, so only equal random states give equal losses
        assert found["recompute"] == pytest.approx(found["plain"], abs=1e-5)
    assert found["recompute"][1] != found["recompute"][0]
