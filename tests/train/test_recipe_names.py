"""Names that newer libraries dropped: translated with one warning, never guessed, never silently two things at once."""

from pathlib import Path

import pytest

from data_prep.errors import UserError
from train.recipe import ChatRecipe, load_recipe, training_arguments_class
from train.recipe_names import RENAMED

RECIPE = """\
kind: seeker
out: runs/x
model:
  base: made
{model}lora:
  r: 4
data:
  train: {train}
{data}training:
  logging_steps: 1
{training}"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "train.jsonl").write_text("", encoding="utf-8")

    def recipe(training: str = "", model: str = "", data: str = "  max_length: 64\n") -> Path:
        path = tmp_path / "r.yaml"
        values = {"training": training, "model": model, "data": data, "train": tmp_path / "train.jsonl"}
        path.write_text(RECIPE.format(**values), encoding="utf-8")
        return path

    return recipe


def load(path: Path, capsys, *overrides: str) -> tuple[ChatRecipe, list[str]]:
    recipe = load_recipe(path, overrides)
    assert isinstance(recipe, ChatRecipe)
    return recipe, capsys.readouterr().err.replace(str(path), "r.yaml").splitlines()


@pytest.mark.parametrize(
    ("old", "key", "value"),
    [
        ("warmup_ratio: 0.03", "warmup_steps", 0.03),
        ("warmup_ratio: 3e-2", "warmup_steps", 0.03),
        ("evaluation_strategy: 'no'", "eval_strategy", "no"),
        ("per_gpu_train_batch_size: 3", "per_device_train_batch_size", 3),
        ("per_gpu_eval_batch_size: 3", "per_device_eval_batch_size", 3),
        ("no_cuda: true", "use_cpu", True),
        ("include_inputs_for_metrics: true", "include_for_metrics", ["inputs"]),
        ("adafactor: true", "optim", "adafactor"),
        ("split_batches: true", "accelerator_config", {"split_batches": True}),
        ("use_liger: false", "use_liger_kernel", False),
    ],
)
def test_an_old_name_means_its_new_one(write, capsys, old, key, value):
    recipe, warnings = load(write(f"  {old}\n"), capsys)
    assert recipe.training[key] == value
    name = old.partition(":")[0]
    assert name not in recipe.training
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: r.yaml:12: training.{name} is training.{key}")


@pytest.mark.parametrize("old", ["group_by_length: true", "overwrite_output_dir: true", "save_safetensors: true"])
def test_an_old_name_without_a_meaning_is_told_and_left_out(write, capsys, old):
    recipe, warnings = load(write(f"  {old}\n"), capsys)
    name = old.partition(":")[0]
    assert name not in recipe.training
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: r.yaml:12: training.{name} does nothing any more: ")


def test_old_names_of_other_sections(write, capsys):
    recipe, warnings = load(write("  max_seq_length: 32\n", "  torch_dtype: torch.float16\n", ""), capsys)
    assert (recipe.data.max_length, recipe.model.dtype) == (32, "float16")
    assert sorted(line.partition(" now")[0] for line in warnings) == [
        "warning: r.yaml:12: training.max_seq_length is data.max_length",
        "warning: r.yaml:5: model.torch_dtype is model.dtype",
    ]
    recipe, _ = load(write(model="  load_in_4bit: true\n  use_flash_attention_2: true\n"), capsys)
    assert (recipe.model.quantization, recipe.model.attention) == ("4bit", "flash_attention_2")
    recipe, _ = load(write(model="  load_in_4bit: false\n"), capsys)
    assert recipe.model.quantization is None


@pytest.mark.parametrize(
    ("training", "fault"),
    [
        ("  warmup_ratio: 0.1\n  warmup_steps: 3\n", "r.yaml:12: training.warmup_ratio is the old name of"),
        ("  warmup_ratio: 1.0\n", "r.yaml:12: training.warmup_ratio: found 1.0, expected 0 up to below 1"),
        ("  warmup_ratio: true\n", "r.yaml:12: training.warmup_ratio: found True, expected 0 up to below 1"),
        ("  warmup_ratio: some\n", "r.yaml:12: training.warmup_ratio: found 'some', expected"),
        ("  adafactor: 3\n", "r.yaml:12: training.adafactor: found 3, expected true or false"),
        ("  max_seq_length: 8\n", "r.yaml:12: training.max_seq_length is the old name of data.max_length"),
        ("  per_gpu_train_batch_size: x\n", "r.yaml:12: training.per_device_train_batch_size: found 'x'"),
        ("  push_to_hub_token: made\n", "r.yaml:12: training.push_to_hub_token cannot be set here; log in with"),
        (
            "  split_batches: true\n  accelerator_config: file.json\n",
            "r.yaml:12: training.split_batches is training.accelerator_config.split_batches now, and acc",
        ),
        ("  tokenizer: x\n", "r.yaml:12: training.tokenizer cannot be set here; the base model's own"),
    ],
)
def test_what_cannot_be_translated_is_one_line(write, training, fault):
    path = write(training)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    (line,) = str(caught.value).replace(str(path), "r.yaml").splitlines()
    assert line.startswith(fault)


def test_an_override_by_its_old_name_wins_over_the_file(write, capsys):
    path = write("  warmup_steps: 3\n")
    recipe, warnings = load(path, capsys, "training.warmup_ratio=0.2")
    assert recipe.training["warmup_steps"] == 0.2
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: override 'training.warmup_ratio=0.2': training.warmup_ratio is")
    recipe, _ = load(write("  warmup_ratio: 0.1\n"), capsys, "training.warmup_steps=5")
    assert recipe.training["warmup_steps"] == 5
    with pytest.raises(UserError, match="is the old name of"):
        load_recipe(path, ["training={warmup_ratio: 0.1, warmup_steps: 2}"])


def test_only_one_process_of_many_warns(write, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert load(write("  group_by_length: true\n"), capsys)[1] == []


def test_the_table_is_true_of_the_installed_libraries():
    """Old names are unknown to the library (else the table would change what it means), new ones known."""
    from typing import get_type_hints

    hints = get_type_hints(training_arguments_class(ChatRecipe))
    for entry in RENAMED:
        if entry.old[0] == "training":
            assert entry.old[1] not in hints, entry
        if entry.new and entry.new[0] == "training":
            assert entry.new[1] in hints, entry
        elif entry.new:
            section, key = entry.new
            assert key in ChatRecipe.model_fields[str(section)].annotation.model_fields, entry  # type: ignore[union-attr]
    assert len({entry.old for entry in RENAMED}) == len(RENAMED)


# ---- numbers


def test_numbers_in_nested_settings_are_numbers(write, capsys):
    path = write("  lr_scheduler_kwargs: {min_lr: 1e-5, deeper: [2E3, '1e-5', -1.5e+2, 1e5x]}\n")
    kwargs = load(path, capsys)[0].training["lr_scheduler_kwargs"]
    assert kwargs == {"min_lr": 1e-5, "deeper": [2000.0, "1e-5", -150.0, "1e5x"]}
    overridden, _ = load(path, capsys, "training.lr_scheduler_kwargs.min_lr=3e-6")
    assert overridden.training["lr_scheduler_kwargs"]["min_lr"] == 3e-6


def test_text_that_looks_like_a_number_survives_saving(write, tmp_path):
    from train.recipe import save_recipe

    recipe = load_recipe(write("  lr_scheduler_kwargs: {a: '1e-5', b: 1e-5}\n  run_name: '1e5'\n"))
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
    assert recipe.training["run_name"] == "1e5"


@pytest.mark.parametrize(
    "override",
    [
        "data.limit=true",
        "data.max_length=true",
        "lora.r=true",
        "lora.dropout=false",
        "seed=true",
        "evaluation.samples=true",
        "training.logging_steps=true",
        "training.learning_rate=true",
        "training.max_steps=false",
    ],
)
def test_true_is_no_number(write, override):
    with pytest.raises(UserError, match=r"found (True|False), expected: .*a number, not true or false$"):
        load_recipe(write(), [override])


@pytest.mark.parametrize("override", ["lora.dropout=.nan", "training.learning_rate=.inf", "training.weight_decay=.nan"])
def test_a_number_is_finite(write, override):
    with pytest.raises(UserError, match=r"found (nan|inf), expected"):
        load_recipe(write(), [override])


def test_a_bare_no_of_yaml_is_explained():
    from train.recipe import load_recipe

    with pytest.raises(UserError, match="YAML reads a bare no as false: write \"'no'\""):
        load_recipe("recipes/quickstart/esc_role.yaml", ["training.eval_strategy=no"])
