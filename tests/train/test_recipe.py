"""Recipes: every fault named with its line, all at once; what is accepted really reaches the trainer."""

import re
from pathlib import Path

import pytest
import yaml

from data_prep.errors import UserError
from train.output import make_arguments
from train.recipe import RESERVED, ChatRecipe, ScorerRecipe, load_recipe, save_recipe
from train.recipe_sections import as_list
from train.yaml_lines import load_yaml

SEEKER = """\
kind: seeker
out: runs/x
model:
  base: smollm2-135m-instruct
lora:
  r: 16
data:
  train: {train}
  max_length: 512
training:
  learning_rate: 1e-4
"""


@pytest.fixture
def seeker(tmp_path):
    """Writes a seeker recipe, changed by (old, new) pairs of text, and gives its path."""
    (tmp_path / "train.jsonl").write_text("", encoding="utf-8")

    def write(*changes: tuple[str, str]) -> Path:
        text = SEEKER.format(train=tmp_path / "train.jsonl")
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        path = tmp_path / "r.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def faults_of(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    return str(caught.value).replace(str(path), "r.yaml").splitlines()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("out:", "outt: x\nout:", "r.yaml:2: unknown key 'outt' in the recipe; did you mean 'out'?"),
        ("  r: 16", "  r: 16\n  alfa: 3", "r.yaml:7: unknown key 'alfa' in lora; did you mean 'alpha'?"),
        ("  max_length", "  max_len: 3\n  max_length", "r.yaml:9: unknown key 'max_len' in data; did you mean"),
        (
            "learning_rate:",
            "learning_rte:",
            "r.yaml:11: unknown key 'learning_rte' in training; did you mean 'learning_rate'?",
        ),
        ("  r: 16", "  zzz: 3", "r.yaml:6: unknown key 'zzz' in lora; known keys: alpha, dora, dropout, r, targets"),
        ("  r: 16", "  r: many", "r.yaml:6: lora.r: found 'many', expected"),
        ("  r: 16", "  dropout: 1.0", "r.yaml:6: lora.dropout: found 1.0, expected: Input should be less than 1"),
        ("lora:\n  r: 16", "lora: 3", "r.yaml:5: lora: found 3, expected"),
        ("1e-4", "[1]", "r.yaml:11: training.learning_rate: found [1], expected: Input should be a valid number"),
        ("1e-4", "fast", "r.yaml:11: training.learning_rate: found 'fast', expected: Input should be a valid number"),
        ("  base: smollm2-135m-instruct", "  dtype: int8", "r.yaml:3: model.base is missing; it has no default"),
        ("out: runs/x\n", "", "r.yaml: out is missing; it has no default"),
        ("  r: 16", "  r: 16\n  r: 8", "r.yaml:7: key 'r' is set twice (first in line 6)"),
        ("  r: 16", "  16: r", "r.yaml:6: key 16 is not text; put it in quotes"),
        ("  r: 16", "  r: [16", "r.yaml:7: not valid YAML"),
        ("seeker", "patient", "r.yaml:1: kind: found 'patient', expected 'seeker', 'supporter' or 'scorer'"),
        ("  r: 16", "  r: !!python/name:os.system", "r.yaml:6: not valid YAML: could not determine a constructor"),
        ("runs/x", "2024-01-01", "r.yaml:2: out: found datetime.date(2024, 1, 1), expected: Input should be a valid s"),
        ("runs/x", "2024-99-99", "r.yaml:2: the value is neither text nor a number nor a date; put it in quotes"),
        ("runs/x", "&a [*a]", "r.yaml: is nested too deeply, or an alias"),
    ],
)
def test_a_fault_is_one_line_with_file_and_line(seeker, old, new, fault):
    found = faults_of(seeker((old, new)))
    assert len(found) <= 2
    assert any(line.startswith(fault) for line in found), found


def test_all_faults_are_reported_at_once(seeker):
    path = seeker(("  r: 16", "  rr: 16"), ("max_length: 512", "max_length: 2"), ("learning_rate", "seed"))
    path.write_text(path.read_text().replace("train.jsonl", "absent.jsonl"))
    found = "\n".join(faults_of(path))
    for part in (":6: unknown key 'rr'", ":8: data.train: file", ":9: data.max_length", ":11: training.seed cannot"):
        assert part in found, found


@pytest.mark.parametrize("key", sorted(RESERVED))
def test_reserved_keys_say_what_to_do_instead(seeker, key):
    (fault,) = faults_of(seeker(("learning_rate: 1e-4", f"{key}: 1")))
    assert fault == f"r.yaml:11: training.{key} cannot be set here; {RESERVED[key]}"


def test_text_such_as_1e_4_becomes_a_number(seeker):
    assert yaml.safe_load("x: 1e-4")["x"] == "1e-4"  # YAML 1.1 wants 1.0e-4; nobody writes that
    learning_rate = load_recipe(seeker()).training["learning_rate"]
    assert isinstance(learning_rate, float)
    assert learning_rate == 1e-4
    assert load_recipe(seeker(), ["training.learning_rate=2e-4"]).training["learning_rate"] == 2e-4


def test_a_missing_data_file_is_named_with_its_line(seeker, tmp_path):
    path = seeker(("  max_length", "  validation:\n    - train.jsonl\n    - valid.jsonl\n  max_length"))
    found = faults_of(path)
    assert found[0].startswith("r.yaml:10: data.validation: file train.jsonl not found")
    assert found[1].startswith("r.yaml:11: data.validation: file valid.jsonl not found")
    assert len(found) == 2


@pytest.mark.parametrize("text", ["- kind: seeker\n", "", "seeker", "3"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"r\.yaml: a recipe is a YAML mapping that starts with"):
        load_recipe(tmp_path / "r.yaml")


def test_overrides_reach_every_depth(seeker):
    overrides = ["seed=7", "lora.r=4", "training.logging_steps=1", "lora.targets=[q_proj, v_proj]", "data.limit=3"]
    recipe = load_recipe(seeker(), overrides)
    assert isinstance(recipe, ChatRecipe)
    assert recipe.lora is not None
    assert (recipe.seed, recipe.lora.r, recipe.training["logging_steps"], recipe.data.limit) == (7, 4, 1, 3)
    assert recipe.lora.targets == ("q_proj", "v_proj")
    assert load_recipe(seeker(), ["lora="]).lora is None
    assert load_recipe(seeker(), ["out=a=b"]).out == "a=b"


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("lora.rr=1", "override 'lora.rr=1': unknown key 'rr' in lora; did you mean 'r'?"),
        ("new.key=1", "override 'new.key=1': unknown key 'new' in the recipe"),
        ("training.warmup=1", "override 'training.warmup=1': unknown key 'warmup' in training; did you mean 'warmup_"),
        ("lora.r=x", "override 'lora.r=x': lora.r: found 'x', expected"),
        ("lora={r: 0}", "override 'lora={r: 0}': lora.r: found 0, expected"),
        ("training.seed=1", "override 'training.seed=1': training.seed cannot be set here; set `seed` at the top"),
        ("data.train=absent", "override 'data.train=absent': data.train: file absent not found"),
        ("out={", "override 'out={': the value is not valid YAML"),
        ("out", "override 'out': expected key=value"),
        ("=3", "override '=3': expected key=value"),
        ("out.x=3", "override 'out.x=3': 'out' is a value, not a section"),
    ],
)
def test_faults_of_overrides_name_the_override(seeker, override, fault):
    (found,) = faults_of(seeker(), override)
    assert found.startswith(fault)


def test_a_folder_for_a_file_and_a_file_for_a_folder(seeker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "none").mkdir()
    for name in ("train.jsonl", "valid.jsonl", "datasheet.md"):
        (tmp_path / "set" / name).write_text("", encoding="utf-8")
    (tmp_path / "busy").write_text("", encoding="utf-8")
    recipe = seeker()
    assert faults_of(recipe, "data.train=set") == [
        "override 'data.train=set': data.train: set is a folder; name a file: one of its train.jsonl, valid.jsonl"
    ]
    assert faults_of(recipe, "data.validation=none") == [
        "override 'data.validation=none': data.validation: none is a folder; name a file: a JSON Lines file; "
        "this folder has none"
    ]
    assert faults_of(recipe, "out=busy") == [
        "override 'out=busy': out: busy is a file; `out` names the folder of the run, choose another"
    ]
    assert (tmp_path / "busy").read_text(encoding="utf-8") == ""


def test_saved_recipes_hold_the_defaults_and_load_to_the_same(seeker, tmp_path):
    recipe = load_recipe(seeker(), ["training.warmup_steps=3"])
    assert recipe.training["lr_scheduler_type"] == "cosine"
    assert recipe.training["per_device_train_batch_size"] == 4
    assert recipe.training["eval_strategy"] == "no"
    assert recipe.training["warmup_steps"] == 3
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
    assert load_recipe(seeker(), ["lora=", "training={}"]).training["learning_rate"] == 1e-5


def test_saying_after_how_many_steps_to_save_means_steps(seeker, tmp_path):
    assert load_recipe(seeker()).training["save_strategy"] == "epoch"
    held_out = f"data.validation={tmp_path / 'train.jsonl'}"
    assert load_recipe(seeker(), [held_out]).training["eval_strategy"] == "epoch"
    training = load_recipe(seeker(), ["training.save_steps=5", "training.eval_steps=5", held_out]).training
    assert (training["save_strategy"], training["eval_strategy"]) == ("steps", "steps")
    assert (
        load_recipe(seeker(), ["training.save_steps=5", "training.save_strategy=epoch"]).training["save_strategy"]
        == "epoch"
    )


def test_the_trainer_gets_what_the_recipe_says(seeker):
    from trl import SFTConfig

    asked = {"learning_rate": 3e-4, "weight_decay": 0.1, "num_train_epochs": 2.0, "max_grad_norm": 0.5, "save_steps": 7}
    recipe = load_recipe(seeker(), ["seed=11", *(f"training.{key}={value}" for key, value in asked.items())])
    arguments = make_arguments(SFTConfig, recipe)
    for key, value in {**recipe.training, **asked}.items():
        assert getattr(arguments, key) == ([] if (key, value) == ("report_to", "none") else value), key
    assert (arguments.seed, arguments.data_seed, arguments.bf16) == (11, None, False)
    assert arguments.output_dir == str(Path("runs/x/checkpoints"))


@pytest.mark.parametrize(
    "override",
    [
        "training.lr_scheduler_type=cosin",
        "training.optim=adamw_tor",
        "training={fp16: true, bf16: true}",
    ],
)
def test_values_that_the_library_refuses_are_one_line(seeker, override):
    from trl import SFTConfig

    with pytest.raises(UserError, match=r"^training: [^\n]+$"):
        make_arguments(SFTConfig, load_recipe(seeker(), [override]))


def test_every_shipped_recipe_loads(monkeypatch):
    """Their data files may have to be fetched or built first; nothing else may be amiss."""
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    paths = [path for path in sorted(root.glob("recipes/**/*.yaml")) if "kind" in (load_yaml(path)[0] or {})]
    assert any("quickstart" in str(path) for path in paths)
    for path in paths:
        data = load_yaml(path)[0]["data"]
        files = [file for key in ("train", "validation", "ratings") for file in as_list(data.get(key, []))]
        if all(Path(file).is_file() for file in files):
            assert isinstance(load_recipe(path), ChatRecipe | ScorerRecipe)
        else:
            faults = faults_of(path)
            assert all(re.search(r"data\.\w+: file .* not found", fault) for fault in faults), faults


@pytest.mark.parametrize(("key", "kind"), [("data.prompt", "prompt"), ("data.greeting", "prompt")])
def test_an_unknown_prompt_is_told_before_a_model_is_loaded(seeker, key, kind):
    faults = faults_of(seeker(), f"{key}=seekr")
    assert len(faults) == 1
    assert faults[0].startswith(f"override '{key}=seekr': unknown {kind} 'seekr'")


def test_a_supporter_has_no_greeting_to_answer(seeker):
    faults = faults_of(seeker(), "kind=supporter", "data.greeting=greeting")
    assert faults == [
        "override 'data.greeting=greeting': data.greeting: only a seeker answers a greeting; leave it out"
    ]
