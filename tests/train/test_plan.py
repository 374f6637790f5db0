"""The plan: counts against models that are really built, formulas against what autograd keeps, and the command."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_prep.errors import UserError
from esckit import app
from tests.train.made import SAMPLES, chat_content, dialogue, recipe_of, write_lines
from train.plan import Planner, advise, check_memory, make_plan, needs_gpu
from train.plan_data import DataPlan, count_steps, estimate_tokens, plan_data, widest_batch
from train.plan_memory import FOUR_BIT_BYTES, GIB, STRATEGIES, Step, activations_kept, one_device
from train.plan_model import count, find_config, known_shapes
from train.recipe import ChatRecipe, ModelSection, Recipe, ScorerRecipe, load_recipe

RECIPES = [
    path
    for path in sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))
    if "\nkind: " in path.read_text(encoding="utf-8")  # the others are sweeps
]
NUMBERS = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}


def made_config(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig

    grouped = {} if kind == "bert" else {"num_key_value_heads": 2}
    return AutoConfig.for_model(kind, **{**NUMBERS, **grouped, **more})


def small_recipe(lora: dict[str, Any] | None, kind: str = "seeker", **model: Any) -> Recipe:
    content: dict[str, Any] = {
        "kind": kind,
        "model": {"base": "x", "dtype": "float32", **model},
        "lora": lora,
        "out": "x",
    }
    if kind == "scorer":
        data = {"train": ["a"], "ratings": ["a"], "max_length": 512}
        return ScorerRecipe.model_validate({**content, "rubric": "esc_eval", "data": data})
    return ChatRecipe.model_validate({**content, "data": {"train": ["a"], "max_length": 512}})


@pytest.mark.parametrize("name", known_shapes())
def test_bundled_shape_has_the_published_number_of_parameters(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    entry = known_shapes()[name]
    values = dict(entry["config"])
    kind = values.pop("model_type")
    with torch.device("meta"):
        factory: Any = AutoModel if kind == "bert" else AutoModelForCausalLM
        model = factory.from_config(AutoConfig.for_model(kind, **values))
    if kind == "bert":
        model.pooler = None
    assert sum(parameter.numel() for parameter in model.parameters()) == entry["parameters"]


KEPT = [
    ("llama", {}, None, {}),
    ("llama", {}, {"r": 8, "dropout": 0.0}, {}),
    ("qwen2", {}, {"r": 8, "dropout": 0.05}, {}),
    ("qwen3", {"head_dim": 32}, None, {}),
    ("gemma2", {"head_dim": 32}, {"r": 8, "dropout": 0.0}, {"attention": "eager"}),
    ("llama", {}, {"r": 8, "dropout": 0.0}, {"attention": "eager"}),
    ("llama", {"num_key_value_heads": 8}, None, {"padded": False}),
    ("llama", {}, {"r": 8, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}, {}),
    ("llama", {}, {"r": 8, "dropout": 0.05}, {"checkpointing": True}),
    ("bert", {}, {"r": 8, "dropout": 0.05}, {}),
]


@pytest.mark.parametrize(("kind", "numbers", "lora", "settings"), KEPT)
def test_activation_formula_counts_what_autograd_keeps(
    kind: str, numbers: dict[str, Any], lora: dict[str, Any] | None, settings: dict[str, Any]
) -> None:
    scorer = kind == "bert"
    config = made_config(kind, **numbers)
    recipe = small_recipe(lora, "scorer" if scorer else "seeker")
    step = Step(batch=2, length=128, supervised=0, dtype_bytes=4, on_gpu=False, **settings)
    step = replace(step, dropout=lora["dropout"] if lora else 0.0)
    planned, _ = activations_kept(count(recipe, config, on_gpu=False), step)
    assert planned == pytest.approx(kept_bytes(config, recipe, step), rel=0.07)


def kept_bytes(config: Any, recipe: Recipe, step: Step) -> int:
    """Bytes of the different tensors that autograd saves in one forward pass, parameters not counted."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    from train.models import add_lora

    scorer = isinstance(recipe, ScorerRecipe)
    factory: Any = AutoModel if scorer else AutoModelForCausalLM
    model = factory.from_config(config, attn_implementation=step.attention)
    if recipe.lora:
        model = add_lora(model, recipe.lora, "FEATURE_EXTRACTION" if scorer else "CAUSAL_LM")
    model.train()
    if step.checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    inner = model if scorer else (model.get_base_model() if recipe.lora else model).model
    ids = torch.randint(5, config.vocab_size, (step.batch, step.length))
    mask = torch.ones_like(ids)
    if step.padded:
        mask[0, step.length // 2 :] = 0
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}
    alive = []  # a freed tensor's address could come again

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        inner(input_ids=ids, attention_mask=mask, **({} if scorer else {"use_cache": False}))
    return sum(found.values())


def test_trainable_parameters_are_those_of_the_real_adapter() -> None:
    from transformers import AutoModelForCausalLM

    from train.models import add_lora

    config = made_config("qwen2")
    for lora in ({"r": 8}, {"r": 4, "targets": ["q_proj"]}, {"r": 8, "dora": True}):
        recipe = small_recipe(lora)
        assert recipe.lora is not None
        real = add_lora(AutoModelForCausalLM.from_config(config), recipe.lora, "CAUSAL_LM")
        planned = count(recipe, config)
        assert planned.trainable == sum(p.numel() for p in real.parameters() if p.requires_grad)
        assert planned.adapters == planned.trainable


def test_four_bit_packs_the_matrices_and_leaves_the_head_and_embeddings() -> None:
    config = made_config("llama")
    plain, packed = (
        count(small_recipe({"r": 8}, dtype="bfloat16", **more), config) for more in ({}, {"quantization": "4bit"})
    )
    matrices = sum(each.inputs * each.outputs for layer in plain.layers for each in layer.linears)
    assert packed.weight_bytes == pytest.approx(plain.weight_bytes - matrices * (2 - FOUR_BIT_BYTES))
    assert plain.adapter_bytes == 4 * plain.adapters  # PEFT: float32 over a half-precision base
    assert packed.adapter_bytes == 2 * packed.adapters


def test_strategies_split_what_they_say() -> None:
    model = count(small_recipe(None, dtype="bfloat16"), made_config("llama"))
    step = Step(batch=1, length=64, supervised=32)
    found = {name: one_device(model, step, name, 4).parts for name in STRATEGIES}
    assert found["ZeRO-1"]["optimiser"] == 12 * model.parameters / 4  # float32 copy and two moments
    assert found["ZeRO-2"]["gradients"] == found["ZeRO-1"]["gradients"] / 4
    assert found["ZeRO-3"]["weights"] == model.weight_bytes / 4 + 2 * model.largest_layer_bytes
    assert found["FSDP"]["gradients"] == 4 * model.parameters / 4
    assert found["DDP"]["gradients"] == 2 * model.trainable_bytes
    refused = one_device(replace(model, four_bit=True), step, "ZeRO-3", 4)
    assert refused.total is None
    assert refused.needs


def test_less_is_needed_with_what_saves_memory() -> None:
    model = count(small_recipe({"r": 8}), made_config("llama"))
    step = Step(batch=4, length=512, supervised=512, dtype_bytes=4, attention="eager", dropout=0.05)

    def total(**changes: Any) -> float:
        return one_device(model, replace(step, **changes)).total or math.inf

    assert total(attention="sdpa") < total()
    assert total(checkpointing=True) < total()
    assert total(offloading=True) < total()
    model = replace(model, vocab=50_000)
    assert total(supervised=2048, on_gpu=False) > 1.5 * total(supervised=512, on_gpu=False)


def test_steps_are_the_trainers(tiny_model: Path, tmp_path: Path) -> None:
    from train.sft import build_trainer

    rows = [dialogue(str(number), "hello", "I can not sleep", "oh", "yes") for number in range(11)]
    content = chat_content(tiny_model, tmp_path / "out", write_lines(tmp_path / "rows.jsonl", rows), num_train_epochs=2)
    content["training"]["gradient_accumulation_steps"] = 3
    recipe = recipe_of(tmp_path, content)
    data = plan_data(recipe, str(tiny_model), 600, 1)
    trainer, report = build_trainer(recipe)
    trainer.train()
    assert data.steps == trainer.state.global_step == 4
    assert (data.tokens, data.supervised_tokens) == (report["train"]["tokens"], report["train"]["supervised_tokens"])
    assert count_steps(11, {**recipe.training, "max_steps": 3}, 1) == (2, 3)
    assert count_steps(11, recipe.training, 2) == (1, 2)


def test_widest_batch_is_of_rows_of_similar_length() -> None:
    assert widest_batch([5, 9, 8, 2], [1, 3, 4, 2], 2) == (9, 7)
    assert widest_batch([5], [1], 4) == (5, 1)


def test_estimated_tokens_follow_the_script_and_the_vocabulary() -> None:
    assert estimate_tokens("", 150_000) == 0
    assert estimate_tokens("a", 150_000) == 1
    assert estimate_tokens("睡不好" * 100, 150_000) == 180
    assert estimate_tokens("睡不好" * 100, 49_000) == 531
    assert estimate_tokens("sleep well " * 100, 150_000) == 253


def test_estimate_is_near_the_tokenizer_where_there_is_one() -> None:
    """SmolLM2's own tokenizer against the ratios for small vocabularies, on the bundled samples."""
    from train.fetch import model_path

    folder = model_path("smollm2-135m-instruct")
    if folder is None:
        pytest.skip("smollm2-135m-instruct is not on this machine: esckit model fetch smollm2-135m-instruct")
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "quickstart" / "esc_role.yaml", ["data.limit=null"])
    exact = plan_data(recipe, str(folder), 49_152, 1)
    guessed = plan_data(recipe, None, 49_152, 1)
    assert guessed.estimated
    assert not exact.estimated
    assert guessed.tokens == pytest.approx(exact.tokens, rel=0.15)
    assert guessed.supervised_tokens == pytest.approx(exact.supervised_tokens, rel=0.2)
    assert guessed.rows == exact.rows


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_plans_without_a_network_or_data(path: Path) -> None:
    plan = make_plan(load_recipe(path, need_files=False))
    assert plan.single.total
    assert plan.parameters > plan.trainable / 2
    assert plan.data.rows or plan.data.reason


SAID = re.compile(r"# memory: ([0-9.]+) GB on one GPU by the plan(.*)")


@pytest.mark.parametrize("path", [path for path in RECIPES if SAID.search(path.read_text(encoding="utf-8"))], ids=str)
def test_memory_in_a_recipe_is_that_of_the_plan(path: Path) -> None:
    said = SAID.search(path.read_text(encoding="utf-8"))
    assert said
    plan = make_plan(load_recipe(path, need_files=False), devices=8, memory_gib=24)
    assert f"{plan.single.total / GIB:.1f}" == said[1]
    assert ("fits 24 GB" in said[2]) == (plan.single.total < 24 * GIB)
    if "ZeRO-3" in said[2]:
        assert f" {plan.spread['ZeRO-3'].total / GIB:.1f} GB on each of eight" in said[2]
    if "4bit" in said[2]:
        packed = make_plan(load_recipe(path, ["model.quantization=4bit"], need_files=False))
        assert said[2].endswith(f"4bit {packed.single.total / GIB:.1f} GB")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["train", *arguments])


def big_recipe(tmp_path: Path, **model: Any) -> Path:
    content = {
        "kind": "seeker",
        "out": str(tmp_path / "out"),
        "model": {"base": "Qwen/Qwen2.5-7B-Instruct", **model},
        "lora": {"r": 16},
        "data": {"train": str(tmp_path / "none.jsonl"), "max_length": 2048},
        "training": {"per_device_train_batch_size": 1, "gradient_checkpointing": True},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_7b_lora_and_qlora_fit_24_gb_and_full_does_not(tmp_path: Path) -> None:
    for quantization in (None, "4bit"):
        path = str(big_recipe(tmp_path, quantization=quantization))
        plan = json.loads(run(path, "--plan", "--device-memory", "24", "--json").stdout)
        assert plan["fits"]
        assert plan["single"]["total"] < 24 * GIB
    full = run(str(big_recipe(tmp_path)), "lora=null", "--plan", "--device-memory", "24")
    assert full.exit_code == 0
    assert "does not fit" in full.stdout
    assert "lora.r=16" in full.stdout
    assert "--accelerate zero3" in full.stdout
    assert "tokens and steps are unknown" in full.stdout


def test_config_can_be_given(tmp_path: Path) -> None:
    made_config("qwen2").save_pretrained(tmp_path / "model")
    path = str(big_recipe(tmp_path, base="nobody/knows-it"))
    with pytest.raises(UserError, match="add --config"):
        make_plan(load_recipe(path, need_files=False))
    for where in (tmp_path / "model", tmp_path / "model" / "config.json"):
        plan = json.loads(run(path, "--plan", "--config", str(where), "--json").stdout)
        assert plan["config_from"].endswith("config.json")
        assert plan["parameters"] < 1_000_000
    (tmp_path / "bad.json").write_text("[1]", encoding="utf-8")
    for bad in ("bad.json", "absent.json"):
        with pytest.raises(UserError, match=bad):
            find_config(ModelSection(base="x"), str(tmp_path / bad))


def test_options_of_the_plan_belong_to_it(tmp_path: Path) -> None:
    outcome = run(str(big_recipe(tmp_path)), "--json")
    assert outcome.exit_code == 2


def test_advice_makes_it_fit_with_the_cheapest_changes(tmp_path: Path) -> None:
    overrides = ["training.gradient_checkpointing=false", "training.per_device_train_batch_size=4"]
    recipe = load_recipe(big_recipe(tmp_path), overrides, need_files=False)
    planner = Planner(find_config(recipe.model), DataPlan())
    advice = advise(recipe, planner, 24 * GIB)
    assert advice.fits
    assert advice.memory <= 24 * GIB
    assert [text for text, _ in advice.changes][-1] == "training.gradient_checkpointing=true"
    written = [word for text, _ in advice.changes for word in text.split()]
    changed = load_recipe(tmp_path / "recipe.yaml", [*overrides, *written], need_files=False)
    assert planner.memory(changed).total == pytest.approx(advice.memory)
    assert not advise(recipe, planner, 1 * GIB).fits


def test_a_run_without_memory_is_warned_of_before_anything_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: there it is an error")
    (tmp_path / "none.jsonl").write_bytes((SAMPLES / "dialogues.jsonl").read_bytes())
    recipe = load_recipe(big_recipe(tmp_path))
    monkeypatch.setattr("train.plan.cpu_memory", lambda: 8.0 * GIB)
    warning = check_memory(recipe)
    assert warning
    assert "\n" not in warning
    assert "8.0 GB" in warning
    monkeypatch.setattr("train.plan.cpu_memory", lambda: 800.0 * GIB)
    assert check_memory(recipe) is None


def test_a_gpu_recipe_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for override in ("model.quantization=4bit", "model.attention=flash_attention_2", "training.bf16=true"):
        sentence = needs_gpu(load_recipe(big_recipe(tmp_path), [override], need_files=False))
        assert sentence
        assert "needs a GPU" in sentence
    assert needs_gpu(load_recipe(big_recipe(tmp_path), need_files=False)) is None
