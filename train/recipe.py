"""A recipe is one YAML file that says what is trained, from what, and how.

It is checked completely before any model is loaded: unknown keys with a suggestion, wrong types, missing files, and
the `training:` block against the trainer's own argument class. All faults are reported at once, one line each.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import write_text
from data_prep.rubric import load_rubric
from train.best import best_defaults, evaluation_faults, has_validation
from train.recipe_faults import RecipeFaults, explain
from train.recipe_names import translate
from train.recipe_scorer import ScorerRecipe, scorer_faults
from train.recipe_sections import Files, LoraSection, ModelSection, Section, as_list
from train.recipe_training import check_training
from train.yaml_lines import Location, dump_yaml, load_yaml, parse_yaml


class ChatData(Section):
    """Dialogues for a seeker or a supporter."""

    train: Files
    validation: Files | None = None
    max_length: int = Field(ge=8)
    """Tokens; longer dialogues lose their oldest turns, never the card or the last turn."""
    prompt: str | None = None
    """System prompt by name or path; default: the one named like the kind."""
    greeting: str | None = "greeting"
    """The supporter's opening line put before a dialogue that the seeker opens; null for none. For a seeker only."""
    limit: int | None = Field(None, ge=1)
    """Use only this many training dialogues (a random sample by `seed`)."""
    order: Literal["length", "random"] = "length"
    """length: batches of similar length, in a seeded order: less padding. random: rows in a seeded order."""
    expand: Literal["dialogues", "turns"] = "dialogues"
    """turns: a row for every learned turn, as the paper did. The same supervision for about three times the work."""
    loss: Literal["all", "last", "marked"] = "all"
    """Which turns of the trained side carry loss: all, the last, or those whose `meta` holds `learn: true`."""
    packing: bool = False
    """Several dialogues in one row, none of them seeing another. Pays with flash attention only."""


class EvaluationSection(Section):
    """What is looked at on the validation data while a chat model trains, besides its loss."""

    samples: int = Field(default=0, ge=0)
    """So many held-out turns are answered by the model at every evaluation and kept in the result folder."""
    max_new_tokens: int = Field(default=128, ge=1)
    """Length limit of those answers."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations without a lower held-out loss, and keep the best checkpoint."""


class ChatRecipe(Section):
    kind: Literal["seeker", "supporter"]
    model: ModelSection
    lora: LoraSection | None = None
    data: ChatData
    evaluation: EvaluationSection = EvaluationSection()
    training: dict[str, Any] = {}
    seed: int = Field(0, ge=0, lt=2**32)
    out: str
    """Folder of the result."""


Recipe = ChatRecipe | ScorerRecipe

# Set by the toolkit; a recipe that sets them too would mean two different things at once.
RESERVED = {
    "output_dir": "set `out` instead",
    "seed": "set `seed` at the top of the recipe",
    "data_seed": "set `seed` at the top of the recipe",
    "max_length": "set `data.max_length` instead",
    "remove_unused_columns": "the rows are prepared by the toolkit",
    "dataset_kwargs": "the rows are prepared by the toolkit",
    "assistant_only_loss": "the loss is on the trained side's turns always",
    "completion_only_loss": "the loss is on the trained side's turns always",
    "packing": "not supported; batches are made by length",
    "label_names": "set by the toolkit",
    "trust_remote_code": "set `model.trust_remote_code` instead",
    "chat_template_path": "not supported; save the template with the tokenizer of the base model",
    "eos_token": "not supported; the template's turn terminator is learned",
    "model_init_kwargs": "set the `model` section instead",
    "tokenizer": "the base model's own tokenizer is used",
    "processing_class": "the base model's own tokenizer is used",
    "push_to_hub_token": "log in with `hf auth login`; a recipe is no place for a secret",
    "hub_token": "log in with `hf auth login`; a recipe is no place for a secret",
    "train_sampling_strategy": "set `data.order` instead; its order is seeded",
}


def training_defaults(recipe: Recipe) -> dict[str, Any]:
    """What `training` means where the recipe is silent: the centre of practice for this kind of data."""
    frozen = isinstance(recipe, ScorerRecipe) and recipe.scorer.frozen
    return {
        "learning_rate": 1e-4 if recipe.lora or frozen else 1e-5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": False,
        "logging_steps": 10,
        "logging_first_step": True,
        # Whoever says after how many steps to save or evaluate means steps.
        "save_strategy": "steps" if "save_steps" in recipe.training else "epoch",
        "save_total_limit": 2,
        "eval_strategy": ("steps" if "eval_steps" in recipe.training else "epoch") if has_validation(recipe) else "no",
        "report_to": "none",
        **best_defaults(recipe),
    }


def load_recipe(path: str | Path, overrides: Sequence[str] = (), need_files: bool = True) -> Recipe:
    """Reads and checks a recipe; `overrides` are `key=value` (dots go into sections, values are YAML).

    Without `need_files` data files that are not there yet are no fault: a plan is made before the data are.

    The returned recipe's `training` holds the defaults too, so that it is the whole truth when saved. Raises one
    UserError with a line for each fault; warns on stderr, in one line each, of names that newer libraries dropped.
    """
    recipe, faults = examine_recipe(path, overrides, need_files)
    if int(os.environ.get("RANK", "0")) == 0:
        for warning in faults.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    faults.raise_if_any()
    assert recipe is not None
    return recipe


def examine_recipe(
    path: str | Path, overrides: Sequence[str] = (), need_files: bool = True
) -> tuple[Recipe | None, RecipeFaults]:
    """As `load_recipe`, with the faults in the hand: the recipe is there unless its keys or types are wrong.

    Raises UserError for what is no YAML mapping and for an override that is no `key=value`.
    """
    content, lines = load_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a YAML mapping that starts with `kind: seeker | supporter | scorer`")
    faults = RecipeFaults(str(path), lines)
    translate(content, faults)
    for text in overrides:
        location = _override(content, text)
        faults.overridden[location] = text
        translate(content, faults, location)
    shape = _shape(content, faults)
    if shape is None:
        return None, faults
    recipe: Recipe | None = None
    try:
        recipe = shape.model_validate(content)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            explain(fault, shape, faults)
    training = content.get("training")
    checked = {}
    if isinstance(training, dict):
        checked = check_training(training, training_arguments_class(shape), RESERVED, faults)
    if need_files:
        _check_files(content.get("data"), faults)
    if recipe is not None and Path(recipe.out).is_file():
        faults.add(("out",), f"out: {recipe.out} is a file; `out` names the folder of the run, choose another", "out")
    _check_names(recipe, faults)
    contradictions = [*evaluation_faults(recipe)]
    if isinstance(recipe, ScorerRecipe):
        contradictions += scorer_faults(recipe)
    for location, message in contradictions:
        faults.add(location, message, "training" if location[0] == "training" else "keys")
    if recipe is not None:
        recipe = recipe.model_copy(update={"training": {**training_defaults(recipe), **checked}})
    return recipe, faults


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Writes the resolved recipe: every value in force, defaults included."""
    write_text(path, dump_yaml(recipe.model_dump(mode="json")))


def _override(content: dict[str, Any], text: str) -> Location:
    """Puts one `key=value` into the content and says where."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"override {text!r}: expected key=value, for example training.learning_rate=2e-4")
    *sections, last = key.split(".")
    place = content
    for section in sections:
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise UserError(f"override {text!r}: {section!r} is a value, not a section")
    try:
        place[last] = parse_yaml(value)
    except yaml.YAMLError:
        raise UserError(
            f"override {text!r}: the value is not valid YAML; put text with special signs in quotes"
        ) from None
    return tuple(key.split("."))


def _shape(content: dict[str, Any], faults: RecipeFaults) -> type[Recipe] | None:
    kind = content.get("kind")
    if kind == "scorer":
        return ScorerRecipe
    if kind not in ("seeker", "supporter"):
        told = f"kind: found {kind!r}, expected 'seeker', 'supporter' or 'scorer'"
        if kind is None and {"compare", "grid"} & set(content):
            told = "is an ablation, not a recipe; check it with: esckit ablate FILE --list"
        elif kind is None and {"name", "version", "text"} <= set(content):
            told = "is a prompt, not a recipe; name it in data.prompt of one"
        faults.add(("kind",), told)
        return None
    return ChatRecipe


def training_arguments_class(shape: type[BaseModel]) -> Any:
    """The library class that `training:` is checked by and passed to."""
    if shape is ScorerRecipe:
        from transformers import TrainingArguments

        return TrainingArguments
    from trl import SFTConfig

    return SFTConfig


def _check_files(data: Any, faults: RecipeFaults) -> None:
    """Looks for the data files, also in a recipe that is faulty elsewhere; wrong types were reported before."""
    for key in ("train", "dialogues", "validation", "ratings", "key"):
        files = as_list(data.get(key)) if isinstance(data, dict) else None
        for index, file in enumerate(files if isinstance(files, list) else []):
            if not isinstance(file, str) or Path(file).is_file():
                continue
            if Path(file).is_dir():
                held = sorted(found.name for found in Path(file).glob("*.jsonl"))
                hint = f"one of its {', '.join(held[:6])}" if held else "a JSON Lines file; this folder has none"
                message = f"data.{key}: {file} is a folder; name a file: {hint}"
            else:
                message = f"data.{key}: file {file} not found (relative to {Path.cwd()})"
            faults.add(("data", key, index), message, "data")


def _check_names(recipe: Recipe | None, faults: RecipeFaults) -> None:
    """Looks the rubric and the prompts up, so that a wrong name is told before a model is loaded."""
    if recipe is None:
        return
    if isinstance(recipe, ScorerRecipe):
        wanted: dict[Location, Any] = {
            ("rubric", index): partial(load_rubric, name) for index, name in enumerate(recipe.rubric)
        }
    else:
        names = {"prompt": recipe.data.prompt or recipe.kind, "greeting": recipe.data.greeting}
        if recipe.kind == "supporter" and "greeting" in recipe.data.model_fields_set and recipe.data.greeting:
            faults.add(("data", "greeting"), "data.greeting: only a seeker answers a greeting; leave it out", "names")
        wanted = {("data", key): partial(load_prompt, name) for key, name in names.items() if name is not None}
    for location, look_up in wanted.items():
        try:
            look_up()
        except UserError as error:
            faults.add(location, str(error), "names")
