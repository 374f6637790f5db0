"""Every field of a recipe changes what is trained: the trainer's arguments, its rows, its model, or how it is loaded.

The fields are walked, so that a new one without a case fails here: a field that is validated, documented and read by
nothing is worse than none.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from data_prep.errors import UserError
from data_prep.records import Dialogue, read_records
from tests.train.made import SAMPLES, chat_content, dialogue, read_lines, recipe_of, write_lines
from tests.train.made_scorer import scorer_content
from train.models import load_options
from train.recipe import ChatRecipe, Recipe, ScorerRecipe, training_defaults

# ---- what a recipe comes to


def model_view(trainer: Any) -> Any:
    """Parameters with shape, type and content; what the modules were set to; the attention in force."""
    model = trainer.model
    parameters = [
        (name, tuple(p.shape), str(p.dtype), p.requires_grad, float(p.detach().double().abs().sum()))
        for name, p in model.named_parameters()
    ]
    modules = [
        (name, getattr(module, "p", None), str(getattr(module, "scaling", None)))
        for name, module in model.named_modules()
        if "lora" in name or hasattr(module, "scaling")
    ]
    attention = {getattr(module.config, "_attn_implementation", None) for module in model.modules() if _has(module)}
    return parameters, modules, sorted(map(str, attention)), getattr(model, "pooling", None)


def _has(module: Any) -> bool:
    return hasattr(module, "config") and not isinstance(module.config, dict)


def callback_view(trainer: Any) -> Any:
    plain = (int, float, str, bool, type(None), BaseModel)
    return [
        (type(callback).__name__, {k: str(v) for k, v in vars(callback).items() if isinstance(v, plain)})
        for callback in trainer.callback_handler.callbacks
    ]


VIEWS = {
    "arguments": lambda t: json.dumps([t.args.to_dict(), getattr(t, "head_learning_rate", None)], default=str),
    "rows": lambda t: [dict(row) for row in t.train_dataset],
    "held-out rows": lambda t: [dict(row) for row in t.eval_dataset],
    "order": lambda t: list(t._get_train_sampler()),
    "model": model_view,
    "callbacks": callback_view,
}


def resolved(recipe: Recipe, part: str) -> Any:
    """One part of what a recipe comes to; the error where it comes to none (4-bit loading without a GPU)."""
    try:
        if part == "loading":
            return str(load_options(recipe.model))
        if part == "result":
            return trained_result(recipe)
        if isinstance(recipe, ScorerRecipe):
            from train.rank import build_trainer as build
        else:
            from train.sft import build_trainer as build  # type: ignore[assignment]
        return VIEWS[part](build(recipe)[0])  # type: ignore[arg-type]
    except UserError as error:
        return f"error: {error}"


def trained_result(recipe: Recipe) -> Any:
    """What one step comes to: the names of the scorers it made, and the calibration of the first."""
    import tempfile

    from train.rank import train_scorer
    from train.scorer import Scorer

    assert isinstance(recipe, ScorerRecipe)
    with tempfile.TemporaryDirectory() as out:
        short = {**recipe.training, "max_steps": 1, "save_strategy": "no"}
        metrics = train_scorer(recipe.model_copy(update={"training": short, "out": f"{out}/run"}))
        scorer = Scorer.load(f"{out}/run")
        return metrics.get("members"), scorer.model.heads.sharpness.tolist()


def fields_of(shape: type[BaseModel], at: str = "") -> Iterator[str]:
    """Every field by its dotted name; a section that may be absent counts itself too."""
    for name, field in shape.model_fields.items():
        options = [field.annotation, *get_args(field.annotation)]
        section = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if section is None:
            if not (get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1):
                yield at + name
        else:
            if type(None) in options:
                yield at + name
            yield from fields_of(section, f"{at}{name}.")


# ---- a field, the overrides that change it (the paths are made in `folder`), and the part that has to differ

MODEL = {
    "model.base": (["model.base={folder}/other-model"], "model"),
    "model.revision": (["model.revision=abc"], "loading"),
    "model.dtype": (["model.dtype=float16"], "model"),
    "model.attention": (["model.attention=eager"], "model"),
    "model.quantization": (["model.quantization=4bit"], "loading"),
    "model.trust_remote_code": (["model.trust_remote_code=true"], "loading"),
    "lora": (["lora=null"], "model"),
    "lora.r": (["lora.r=2"], "model"),
    "lora.alpha": (["lora.alpha=16"], "model"),
    "lora.dropout": (["lora.dropout=0.3"], "model"),
    "lora.dora": (["lora.dora=true"], "model"),
    "training": (["training.weight_decay=0.5"], "arguments"),
    "seed": (["seed=7"], "order"),
    "out": (["out={folder}/elsewhere"], "arguments"),
}

CHAT = {
    **MODEL,
    "kind": (["kind=supporter"], "rows"),
    "lora.targets": (["lora.targets=[q_proj]"], "model"),
    "data.train": (["data.train={folder}/other.jsonl"], "rows"),
    "data.validation": (["data.validation={folder}/other.jsonl"], "held-out rows"),
    "data.max_length": (["data.max_length=160"], "rows"),
    "data.prompt": (["data.prompt={folder}/prompt.yaml"], "rows"),
    "data.greeting": (["data.greeting=null"], "rows"),
    "data.limit": (["data.limit=2"], "rows"),
    "data.expand": (["data.expand=turns"], "rows"),
    "data.loss": (["data.loss=last"], "rows"),
    "data.packing": (["data.packing=true"], "rows"),
    "data.order": (["data.order=random"], "order"),
    "evaluation.samples": (["evaluation.samples=2"], "callbacks"),
    "evaluation.max_new_tokens": (["evaluation.samples=1", "evaluation.max_new_tokens=16"], "callbacks"),
    "evaluation.patience": (["evaluation.patience=2"], "arguments"),
}

BEST = ["training.load_best_model_at_end=true"]
SPLIT = ["data.validation=null", "data.split.validation=0.3"]

SCORER = {
    **MODEL,
    "lora.targets": (["lora.targets=[query]"], "model"),
    "rubric": (["rubric=esconv_survey", "data.ratings={folder}/survey.jsonl"], "model"),
    "scorer.head": (["scorer.head=corn"], "model"),
    "scorer.labels": (["scorer.labels=soft"], "rows"),
    "scorer.class_weights": (["scorer.class_weights=balanced"], "rows"),
    "scorer.rater_effects": (["scorer.rater_effects=true"], "model"),
    "scorer.frozen": (["scorer.frozen=true"], "model", ["lora=null"]),
    "scorer.pooling": (["scorer.pooling=last"], "model"),
    "scorer.head_learning_rate": (["scorer.head_learning_rate=0.5"], "arguments"),
    "scorer.calibration": (["scorer.calibration=temperature"], "result"),
    "scorer.members": (["scorer.members=2"], "result"),
    "scorer.folds": (["scorer.folds=3"], "result"),
    "data.train": (["data.train={folder}/other.jsonl"], "rows"),
    "data.validation": (["data.validation={folder}/other.jsonl"], "held-out rows"),
    "data.split": (SPLIT, "rows"),
    "data.split.validation": (["data.split.validation=0.4"], "held-out rows", SPLIT),
    "data.split.test": (["data.split.test=0.4"], "rows", SPLIT),
    "data.group_by": (["data.group_by=[language]"], "rows", SPLIT),
    "data.ratings": (["data.ratings={folder}/ratings.jsonl"], "rows"),
    "data.key": (
        ["data.key={folder}/other-key.json"],
        "rows",
        ["data.ratings={folder}/sheet.csv", "data.key={folder}/key.json"],
    ),
    "data.rater": (["data.rater=ann"], "rows", ["data.ratings={folder}/wide.csv"]),
    "data.max_length": (["data.max_length=64"], "rows"),
    "data.long_dialogues": (["data.long_dialogues=windows"], "rows", ["data.max_length=64"]),
    "data.limit": (["data.limit=3"], "rows"),
    "evaluation.metric": (["evaluation.metric=loss"], "arguments", BEST),
    "evaluation.patience": (["evaluation.patience=2"], "arguments"),
}

# Fields whose effect is not built yet. Their cases have to fail (strictly), so that whoever builds one has to take it
# out of this list.
PENDING: set[str] = set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model, tiny_encoder) -> Path:
    """What the overrides name: other models, dialogues, ratings and a prompt."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    place = tmp_path_factory.mktemp("fields")
    for name, source, loader in (("chat", tiny_model, AutoModelForCausalLM), ("scorer", tiny_encoder, AutoModel)):
        model = loader.from_pretrained(source)
        with torch.no_grad():
            next(model.parameters()).mul_(2)
        model.save_pretrained(place / name / "other-model")
        AutoTokenizer.from_pretrained(source).save_pretrained(place / name / "other-model")
    texts = ["I can not sleep.", "How are you feeling today?", "Sad. I can not sleep and I am sad today.", "Hello."]
    made = [dialogue(f"d{n}", *(texts[(n + k) % 4] for k in range(4 + n % 3)), opening=("seeker", "supporter")[n % 2])
            for n in range(5)]  # fmt: skip
    write_lines(place / "chat" / "train.jsonl", made)
    write_lines(place / "chat" / "held.jsonl", made[:2])
    write_lines(place / "chat" / "other.jsonl", [dialogue("o1", "Hello.", "I am sad.", "Why?", "I can not sleep.")])
    prompt = {"name": "made", "version": 1, "text": {"en": "Be this person: {{ card }}", "zh": "{{ card }}"}}
    (place / "chat" / "prompt.yaml").write_text(json.dumps(prompt), encoding="utf-8")
    rated = read_lines(SAMPLES / "rated_dialogues.jsonl")
    write_lines(place / "scorer" / "held.jsonl", rated[:2])
    write_lines(place / "scorer" / "other.jsonl", rated[-8:])
    ratings = read_lines(SAMPLES / "ratings.jsonl")
    write_lines(
        place / "scorer" / "ratings.jsonl",
        [{**r, "value": None if r["value"] is None else 4 - r["value"]} for r in ratings],
    )
    survey = [
        {"dialogue_id": d["id"], "rater": "a", "rubric": "esconv_survey", "dimension": name, "value": n % 5 + 1}
        for n, d in enumerate(rated)
        for name in ("empathy", "relevance")
    ]
    write_lines(place / "scorer" / "survey.jsonl", survey)
    write_sheets(place / "scorer", [d["id"] for d in rated])
    return place


def write_sheets(place: Path, ids: list[str]) -> None:
    """A blinded sheet with the right key and another one, and a sheet that does not say who rated."""
    from data_prep.rubric import load_rubric

    rubric = load_rubric("esc_eval")
    names = rubric.names()
    for file, order in (("key.json", ids), ("other-key.json", ids[::-1])):
        items = {f"item-{n}": identifier for n, identifier in enumerate(order)}
        key = {
            "rubric": rubric.name,
            "rubric_sha": rubric.sha,
            "seed": 0,
            "items": items,
            "raters": {"ann": list(items)},
        }
        (place / file).write_text(json.dumps(key), encoding="utf-8")
    levels = {n: ",".join(str((n + d) % 5) for d in range(len(names))) for n in range(len(ids))}
    blinded = [f"item,rater,{','.join(names)}", *(f"item-{n},ann,{row}" for n, row in levels.items())]
    (place / "sheet.csv").write_text("\n".join(blinded), encoding="utf-8")
    wide = [f"dialogue_id,{','.join(names)}", *(f"{ids[n]},{row}" for n, row in levels.items())]
    (place / "wide.csv").write_text("\n".join(wide), encoding="utf-8")


@pytest.fixture(scope="module")
def chat(folder, tiny_model):
    content = chat_content(tiny_model, folder / "out", folder / "chat" / "train.jsonl")
    content["data"]["validation"] = str(folder / "chat" / "held.jsonl")
    return folder / "chat", content, {}


@pytest.fixture(scope="module")
def scorer(folder, tiny_encoder):
    content = scorer_content(tiny_encoder, folder / "out")
    content["data"]["validation"] = str(folder / "scorer" / "held.jsonl")
    return folder / "scorer", content, {}


def assert_changed(made: Any, overrides: list[str], part: str, given: list[str], tmp_path: Path) -> None:
    """`given` are overrides of both sides, where a field has an effect only beside others."""
    place, content, known = made

    def recipe(*texts: str) -> Recipe:
        return recipe_of(tmp_path, content, *(text.format(folder=place) for text in texts))

    key = (part, *given)
    if key not in known:  # the same for all cases of a part; observed twice, so that noise is no change
        known[key] = resolved(recipe(*given), part)
        assert resolved(recipe(*given), part) == known[key]
        # A sheet without raters is an error until the field says who rated.
        assert not str(known[key]).startswith("error") or "no rater" in known[key]
    assert resolved(recipe(*given, *overrides), part) != known[key]


def cases(table: dict[str, Any]) -> list[Any]:
    waits = pytest.mark.xfail(reason="not built yet", strict=True, raises=AssertionError)
    return [
        pytest.param(overrides, part, given[0] if given else [], id=name, marks=[waits] if name in PENDING else [])
        for name, (overrides, part, *given) in table.items()
    ]


@pytest.mark.parametrize(("overrides", "part", "given"), cases(CHAT))
def test_every_field_of_a_chat_recipe_has_an_effect(chat, overrides, part, given, tmp_path):
    assert_changed(chat, overrides, part, given, tmp_path)


@pytest.mark.parametrize(("overrides", "part", "given"), cases(SCORER))
def test_every_field_of_a_scorer_recipe_has_an_effect(scorer, overrides, part, given, tmp_path):
    assert_changed(scorer, overrides, part, given, tmp_path)


@pytest.mark.parametrize(("shape", "table"), [(ChatRecipe, CHAT), (ScorerRecipe, SCORER)])
def test_no_field_is_without_a_case(shape, table):
    assert sorted(fields_of(shape)) == sorted(table)


def test_the_walk_finds_fields_at_every_depth():
    found = set(fields_of(ChatRecipe))
    assert {"seed", "lora", "lora.r", "model.base", "data.train", "evaluation.patience"} <= found
    assert "model" not in found  # a section that is always there is its fields
    assert "kind" not in set(fields_of(ScorerRecipe))  # one value only: nothing to change


OTHER = {
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 7,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 3,
    "per_device_eval_batch_size": 3,
    "gradient_accumulation_steps": 3,
    "gradient_checkpointing": True,
    "logging_steps": 3,
    "logging_first_step": False,
    "save_strategy": "no",
    "save_total_limit": 5,
    "eval_strategy": "no",
    "report_to": "tensorboard",
}


@pytest.mark.parametrize("key", sorted(OTHER))
def test_every_default_of_the_training_block_can_be_changed(key, chat, tmp_path):
    from trl import SFTConfig

    from train.output import make_arguments

    _, content, _ = chat
    bare = {**content, "training": {}}
    before = make_arguments(SFTConfig, recipe_of(tmp_path, bare))
    after = make_arguments(SFTConfig, recipe_of(tmp_path, bare, f"training.{key}={json.dumps(OTHER[key])}"))
    assert getattr(after, key) != getattr(before, key)


def test_every_default_of_the_training_block_has_such_a_case(chat, tmp_path):
    _, content, _ = chat
    assert sorted(training_defaults(recipe_of(tmp_path, content))) == sorted(OTHER)


def test_the_made_dialogues_are_readable(chat):
    assert len(read_records(chat[0] / "train.jsonl", Dialogue)) == 5
