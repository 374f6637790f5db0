"""Pre-flight steps of recipes, the schema, and the recipes that are shipped."""

import json
import os
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from typer.testing import CliRunner

from data_prep.rubric import load_rubric
from esckit import app
from tests.train.made import SAMPLES, dialogue, read_lines, write_lines
from train.best import has_validation
from train.recipe import RESERVED, ChatRecipe, ScorerRecipe, load_recipe, training_arguments_class
from train.recipe_check import StepResult, check_recipe, made_by
from train.recipe_schema import recipe_schema
from train.recipe_sections import as_list
from train.yaml_lines import load_yaml

ROOT = Path(__file__).parents[2]
SHIPPED = [
    path for path in sorted((ROOT / "recipes").glob("**/*.yaml")) if "kind" in (yaml.safe_load(path.read_text()) or {})
]
NAMES = [
    "YAML is readable",
    "keys and types",
    "training block fits the library",
    "data files",
    "rubric and prompts",
    "base model",
    "chat template",
    "device",
    "result folder",
]


@pytest.fixture
def recipe(tmp_path, tiny_model, monkeypatch):
    """Writes a sound seeker recipe with (old, new) changes of its text and gives its steps."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "train.jsonl", [dialogue("d1", "Hello.", "I am sad.")])
    text = f"""\
kind: seeker
out: runs/x
# --- data
#   esckit data convert esconv train.txt --out all.jsonl
#   esckit data build role all.jsonl \\
#     --out sets
model:
  base: {tiny_model}
lora:
  r: 4
data:
  train: train.jsonl
  max_length: 512
training:
  logging_steps: 1
"""

    def steps(*changes: tuple[str, str], with_data: bool = True) -> list[StepResult]:
        changed = text
        for old, new in changes:
            assert changed.count(old) == 1
            changed = changed.replace(old, new)
        (tmp_path / "r.yaml").write_text(changed, encoding="utf-8")
        return check_recipe("r.yaml", with_data)

    return steps


def verdicts(steps: list[StepResult]) -> str:
    return "".join({"ok": "+", "fault": "x", "skipped": "o"}[step.verdict] for step in steps)


def test_a_sound_recipe_passes_every_step_in_order(recipe):
    steps = recipe()
    assert [step.name for step in steps] == NAMES
    assert [step.number for step in steps] == list(range(1, 10))
    assert verdicts(steps) == "+++++++++"


@pytest.mark.parametrize(
    ("change", "expected", "line"),
    [
        (("  r: 4", "  r: [4"), "xoooooooo", "r.yaml:11: not valid YAML"),
        (("kind: seeker", "kind: patient"), "+xooooooo", "kind: found 'patient'"),
        (("  r: 4", "  rr: 4"), "+xooooooo", "unknown key 'rr' in lora"),
        (("logging_steps", "loging_steps"), "++x++++++", "unknown key 'loging_steps'"),
        (("logging_steps: 1", "lr_scheduler_type: cosin"), "++x++++++", "training: "),
        (("logging_steps: 1", "load_best_model_at_end: true"), "++x++++++", "set data.validation"),
        (("train.jsonl\n  max", "absent.jsonl\n  max"), "+++x+++++", "data.train: file absent.jsonl not found"),
        (("  max_length", "  prompt: nothing\n  max_length"), "++++x++++", "unknown prompt 'nothing'"),
        (("  r: 4", "  r: 4\nseed: 1"), "+++++++++", ""),
        (("logging_steps: 1", "bf16: true"), "+++++++x+", "training.bf16: needs a GPU"),
        (("logging_steps: 1", "deepspeed: ds.json"), "+++++++x+", "training.deepspeed: file ds.json not found"),
        (("  max_length: 512", "  max_length: 4096"), "+++++x+++", "reads at most 2048; lower it"),
        (("out: runs/x", "out: train.jsonl"), "++++++++x", "train.jsonl: is a file; `out` names a folder"),
        (("out: runs/x", "out: ."), "++++++++x", "is not empty and holds no run of ours"),
    ],
)
def test_each_fault_shows_in_its_step_and_the_others_are_looked_at(recipe, change, expected, line):
    steps = recipe(change)
    assert verdicts(steps) == expected
    assert any(line in told for step in steps for told in step.lines) or not line


def test_4bit_and_flash_attention_need_a_gpu(recipe):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    steps = recipe(("lora:", "  quantization: 4bit\n  attention: flash_attention_2\nlora:"))
    assert verdicts(steps) == "+++++++x+"
    assert len(steps[7].lines) == 2


def test_missing_data_come_with_the_commands_that_make_them(recipe):
    lines = recipe(("train.jsonl\n  max", "absent.jsonl\n  max"))[3].lines
    assert lines[1:] == (
        "made by: esckit data convert esconv train.txt --out all.jsonl",
        "made by: esckit data build role all.jsonl --out sets",
    )
    steps = recipe(("train.jsonl\n  max", "absent.jsonl\n  max"), with_data=False)
    assert verdicts(steps) == "+++o+++++"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "train.jsonl: holds no record"),
        ("{", "train.jsonl:1: "),
        ('{"id": "x"}\n', "train.jsonl:1: "),
        (json.dumps(dialogue("d", "Hi.", "I am sad.", card=False)) + "\n", "has no role card"),
        (
            json.dumps(
                {
                    "id": "s",
                    "side": "supporter",
                    "messages": [
                        {"role": "user", "content": "a", "train": False},
                        {"role": "assistant", "content": "b", "train": True},
                    ],
                }
            )
            + "\n",
            "made for a supporter, this is to be a seeker",
        ),
    ],
)
def test_the_first_record_has_to_fit_the_kind(recipe, tmp_path, content, fault):
    (tmp_path / "train.jsonl").write_text(content, encoding="utf-8")
    step = recipe()[3]
    assert step.verdict == "fault"
    assert fault in step.lines[0]
    assert "sad" not in step.lines[0]


def test_a_model_of_the_hub_is_not_judged_here(recipe, tiny_model, monkeypatch):
    from huggingface_hub import constants

    hub = (f"base: {tiny_model}", "base: made-by-nobody/model")
    steps = recipe(hub)  # the tests run with HF_HUB_OFFLINE: then it can never come
    assert verdicts(steps) == "+++++xo++"
    assert "HF_HUB_OFFLINE is set" in steps[5].lines[0]
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert verdicts(recipe(hub)) == "+++++oo++"
    assert verdicts(recipe((f"base: {tiny_model}", "base: nothing"))) == "+++++xo++"


def test_a_model_in_the_hub_cache_is_looked_at(recipe, tiny_model, tmp_path, monkeypatch):
    from huggingface_hub import constants

    folder = tmp_path / "hub" / "models--made--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    (folder / "snapshots").mkdir()
    os.symlink(tiny_model, folder / "snapshots" / ("a" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    steps = recipe((f"base: {tiny_model}", "base: made/model"))
    assert verdicts(steps) == "+++++++++"
    assert "cache" in steps[5].lines[0]


def test_a_base_model_without_a_template_is_told(recipe, tiny_model, tmp_path):
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    steps = recipe((f"base: {tiny_model}", f"base: {bare}"))
    assert verdicts(steps) == "++++++x++"
    assert "has no chat template" in steps[6].lines[0]


def test_an_unfinished_run_can_go_on_and_another_one_is_in_the_way(recipe, tmp_path):
    from train.output import open_output

    recipe()
    open_output(load_recipe("r.yaml"), False)
    (tmp_path / "runs" / "x" / "checkpoints").mkdir()
    (tmp_path / "runs" / "x" / "checkpoints" / "made").write_text("x")
    assert "unfinished run: --resume goes on" in recipe()[8].lines[0]
    step = recipe(("logging_steps: 1", "logging_steps: 2"))[8]
    assert step.verdict == "fault"
    assert "holds a run of another recipe" in step.lines[0]


def test_old_names_are_told_in_the_step_of_the_keys(recipe):
    step = recipe(("logging_steps: 1", "warmup_ratio: 0.1"))[1]
    assert step.verdict == "ok"
    assert "training.warmup_ratio is training.warmup_steps now" in step.lines[0]


def test_the_command_prints_steps_and_ends_with_2_on_a_fault(tmp_path, monkeypatch):
    (tmp_path / "bad.yaml").write_text("kind: patient\n")
    sound = str(ROOT / "recipes" / "quickstart" / "esc_role.yaml")
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["recipe", "check", sound, str(tmp_path / "bad.yaml")])
    assert done.exit_code == 2, done.output
    assert "  4 ✓ data files: 1 file, the first record of each fits a seeker" in done.output
    assert "  2 ✗ keys and types\n      " in done.output
    done = CliRunner().invoke(app, ["recipe", "check", "--json", str(tmp_path / "bad.yaml")])
    told = json.loads(done.output)
    assert (told[0]["ok"], len(told[0]["steps"]), done.exit_code) == (False, 9, 2)
    done = CliRunner().invoke(app, ["recipe", "schema", "--kind", "scorer"])
    assert json.loads(done.output) == recipe_schema("scorer")


# ---- the schema


@pytest.mark.parametrize(("kind", "shape"), [("seeker", ChatRecipe), ("scorer", ScorerRecipe)])
def test_the_schema_knows_every_key_and_what_it_means(kind, shape):
    schema = recipe_schema(kind)
    assert set(schema["properties"]) == set(shape.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["kind"]["const"] == kind
    training = schema["properties"]["training"]
    hints = get_type_hints(training_arguments_class(shape))
    offered = set(training["properties"])
    assert offered <= set(hints) - set(RESERVED)
    assert {"learning_rate", "warmup_steps", "eval_strategy", "optim"} <= offered
    assert training["properties"]["learning_rate"]["type"] == "number"
    assert training["properties"]["full_determinism"]["type"] == "boolean"
    assert "cosine" in json.dumps(training["properties"]["lr_scheduler_type"])
    sections = schema["$defs"]
    assert "hub id" in sections["ModelSection"]["properties"]["base"]["description"]
    assert "$ref" not in json.dumps(training)


def test_the_schema_of_all_kinds_tells_them_apart():
    schema = recipe_schema()
    assert "rubric" in schema["then"]["properties"]
    assert "rubric" not in schema["else"]["properties"]
    references = set(_references(schema))
    assert references
    assert references <= {f"#/$defs/{name}" for name in schema["$defs"]}


def _references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


# ---- what is shipped


def stub(path: Path, kind: str, rubric: str | None = None) -> None:
    """Made data in the layout that a recipe's file name says; ratings on the recipe's rubric."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rated = read_lines(SAMPLES / "rated_dialogues.jsonl")[:6]
    if "ratings" in path.name:
        ids = {d["id"] for d in rated}
        known = load_rubric(rubric or "esc_eval")
        values = [
            {
                "dialogue_id": i,
                "rater": path.stem,
                "rubric": known.name,
                "dimension": d.name,
                "value": d.levels()[n % len(d.levels())],
            }
            for n, i in enumerate(sorted(ids))
            for d in known.dimensions
        ]
        write_lines(path, values)
    elif path.name.endswith(".messages.jsonl"):
        learned = [
            {"role": "system", "content": "You help.", "train": False},
            {"role": "user", "content": "I am sad.", "train": False},
            {"role": "assistant", "content": "[Question] Why?", "train": True},
        ]
        write_lines(path, [{"id": f"{path.stem}-{n}", "side": kind, "messages": learned} for n in range(4)])
    elif kind == "scorer":
        write_lines(path, rated)
    else:
        write_lines(path, [dialogue(f"{path.stem}-{n}", "Hello.", "I am sad.", "Why?", "No sleep.") for n in range(4)])


def files_of(path: Path) -> list[Path]:
    data = yaml.safe_load(path.read_text())["data"]
    return [
        Path(file) for key in ("train", "dialogues", "validation", "ratings") for file in as_list(data.get(key) or [])
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_recipe_builds_a_trainer(path, tmp_path, monkeypatch, tiny_model, tiny_encoder):
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load(path.read_text())
    kind = content["kind"]
    for file in files_of(path):
        if file.parts[0] == "data_prep":  # the bundled samples
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((ROOT / file).read_bytes())
        else:
            stub(file, kind, content.get("rubric"))
    for step in check_recipe(path):
        told = " ".join(step.lines)
        # Not on the machine of a test: the base model, and the GPU that 4-bit loading needs.
        elsewhere = ("not on this machine" in told) or (step.name == "device" and "4bit needs" in told)
        assert step.verdict != "fault" or elsewhere, step
    base = tiny_encoder if kind == "scorer" else tiny_model
    recipe = load_recipe(
        path, [f"model.base={base}", "model.quantization=null", f"data.max_length={256 if kind == 'scorer' else 1024}"]
    )
    if isinstance(recipe, ScorerRecipe):
        from train.rank import build_trainer as build
    else:
        from train.sft import build_trainer as build
    trainer, report = build(recipe)
    assert report["train"]["dialogues"] > 0
    assert (trainer.eval_dataset is not None) == has_validation(recipe)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_recipe_is_short_and_in_groups(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 120
    assert lines[0].startswith("# ")
    groups = [line.split()[2].rstrip(":") for line in lines if line.startswith("# --- ")]
    assert groups == ["model", "LoRA", "data", "trainer"]
    commands = " ".join(made_by(path))
    for file in files_of(path):  # whoever reads the recipe finds the command that makes its data
        made_in = next((folder for folder in (file, *file.parents) if str(folder) in commands), None)
        assert file.parts[0] == "data_prep" or made_in is not None, file


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_recipe_says_only_what_differs_from_the_defaults(path):
    content, lines = load_yaml(path)
    text = path.read_text().splitlines()
    plain = ChatRecipe.model_validate(
        {"kind": "seeker", "out": "x", "model": {"base": "x"}, "lora": {}, "data": {"train": "x", "max_length": 8}}
    ).model_dump()
    from train.recipe import training_defaults

    fixed = ChatRecipe.model_validate({**plain, "lora": {} if "lora" in content else None})
    plain["training"] = training_defaults(fixed)
    for section in ("model", "lora", "data", "training"):
        for key, value in (content.get(section) or {}).items():
            same = key in plain[section] and plain[section][key] == value
            marked = "#" in text[lines[(section, key)] - 1]
            # `r` stands for the section, which has to hold something.
            assert not same or marked or key == "r", f"{section}.{key} is the default"


def test_the_recipe_of_the_paper_marks_what_the_paper_does_not_say():
    path = ROOT / "recipes" / "esc_role" / "qwen1.5-14b-chat-lora.yaml"
    content, lines = load_yaml(path)
    text = path.read_text().splitlines()
    unmarked = {
        f"{section}.{key}"
        for section in ("model", "lora", "data", "training")
        for key in content[section]
        if "# our choice" not in text[lines[(section, key)] - 1]
    }
    assert unmarked == {"model.base", "data.train", "data.expand"}
