"""`esckit recipe check`: numbered pre-flight steps of a recipe. No model is loaded and no network is asked.

Every step is looked at even when one before it failed, so that one look tells everything there is to correct. A step
that cannot be judged here (a base model that only the hub knows) is skipped with the reason, never guessed.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from data_prep.chat_format import training_messages
from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import Dialogue, Rating, describe_invalid, iter_json_lines, read_text
from data_prep.rubric import check_ratings, load_rubric
from data_prep.sample import Sample
from train.model_files import ModelFiles, find_model
from train.recipe import ChatRecipe, Recipe, ScorerRecipe, examine_recipe, training_arguments_class
from train.recipe_faults import RecipeFaults, Step

Verdict = Literal["ok", "fault", "skipped"]
MARKS: dict[Verdict, str] = {"ok": "✓", "fault": "✗", "skipped": "⊘"}

# What depends on the machine a run will have; its own step judges it, by the machine the check runs on.
MACHINE = ("bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "deepspeed", "fsdp", "fsdp_config", "report_to")


@dataclass(frozen=True)
class StepResult:
    """One step of one recipe; `lines` are the faults, or one remark."""

    number: int
    name: str
    verdict: Verdict
    lines: tuple[str, ...] = ()


class SkippedError(Exception):
    """A step cannot be judged here; the message, one line, says why."""


def check_recipe(path: str | Path, with_data: bool = True) -> list[StepResult]:
    """The steps of one recipe in order. Without `with_data` the data files need not be there yet.

    Needs the libraries that own the `training` block, so it takes a few seconds once and little more per recipe.
    """
    steps: list[StepResult] = []

    def step(name: str, look: Callable[[], str | None]) -> None:
        verdict: Verdict
        lines: tuple[str, ...]
        try:
            remark = look()
            verdict, lines = "ok", (remark,) if remark else ()
        except SkippedError as reason:
            verdict, lines = "skipped", (str(reason),)
        except UserError as error:
            verdict, lines = "fault", tuple(str(error).splitlines())
        steps.append(StepResult(len(steps) + 1, name, verdict, lines))

    recipe: Recipe | None = None
    faults: RecipeFaults | None = None

    def readable() -> None:
        nonlocal recipe, faults
        recipe, faults = examine_recipe(path)

    def needs(look: Callable[[Recipe], str | None]) -> Callable[[], str | None]:
        def run() -> str | None:
            if recipe is None:
                raise SkippedError("the recipe has to be readable first")
            return look(recipe)

        return run

    def found(kind: Step) -> RecipeFaults:
        if faults is None:
            raise SkippedError("the recipe has to be readable first")
        if lines := faults.of(kind):
            raise UserError("\n".join(lines))
        return faults

    def keys() -> str | None:
        return "; ".join(found("keys").warnings) or None

    def training() -> str | None:
        found("training")
        return needs(check_arguments)()

    def names() -> str | None:
        found("names")
        return needs(lambda _: None)()

    def data_files() -> str | None:
        if not with_data:
            raise SkippedError("not looked at, as asked for")
        if missing := faults.of("data") if faults else []:
            how = [f"made by: {command}" for command in made_by(path)]
            raise UserError("\n".join([*missing, *(how or ["make or bring them first"])]))
        return needs(check_data)()

    step("YAML is readable", readable)
    step("keys and types", keys)
    step("training block fits the library", training)
    step("data files", data_files)
    step("rubric and prompts", names)
    step("base model", needs(check_model))
    step("chat template", needs(check_template))
    step("device", needs(check_device))
    step("result folder", needs(check_out))
    return steps


def made_by(path: str | Path) -> list[str]:
    """The `esckit …` commands in a recipe's comments: those that make its data. A `\\` at the end goes on."""
    commands: list[str] = []
    goes_on = False
    for line in read_text(path).splitlines():
        text = line.strip().removeprefix("#").strip() if line.lstrip().startswith("#") else ""
        if goes_on and text:
            commands[-1] += f" {text.removesuffix(chr(92)).strip()}"
        elif text.startswith(("esckit data ", "esckit cards ", "esckit ratings ")):
            commands.append(text.removesuffix("\\").strip())
        else:
            goes_on = False
            continue
        goes_on = text.endswith("\\")
    return commands


def check_arguments(recipe: Recipe) -> None:
    """Builds the library's arguments: values that are each of the right type may still not go together."""
    from train.output import make_arguments

    here = {key: value for key, value in recipe.training.items() if key not in MACHINE}
    plain = recipe.model_copy(update={"training": {**here, "report_to": "none"}})
    make_arguments(training_arguments_class(type(recipe)), plain)


# ---- data


def check_data(recipe: Recipe) -> str:
    """The first record of every file, all of which are there, is what the recipe's kind reads."""
    wrong: list[str] = []
    sets: list[tuple[Sequence[str], Callable[[Recipe, str], None]]] = [
        (recipe.data.train, _first_dialogue),
        (recipe.data.validation or (), _first_dialogue),
        (recipe.data.ratings if isinstance(recipe, ScorerRecipe) else (), _first_rating),
    ]
    count = 0
    for files, look in sets:
        for file in files:
            count += 1
            try:
                look(recipe, file)
            except UserError as error:
                wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    return f"{count} {'file' if count == 1 else 'files'}, the first record of each fits a {recipe.kind}"


def _first(file: str) -> tuple[str, Any]:
    for where, value in iter_json_lines(file):
        return where, value
    raise UserError(f"{file}: holds no record; expected one JSON object a line")


def _first_dialogue(recipe: Recipe, file: str) -> None:
    where, value = _first(file)
    messages = isinstance(value, dict) and "messages" in value
    if messages and isinstance(recipe, ScorerRecipe):
        raise UserError(f"{where}: is rendered messages; a scorer reads dialogues")
    try:
        record: Any = (Sample if messages else Dialogue).model_validate(value)
    except ValidationError as error:
        raise UserError(f"{where}: {describe_invalid(error)}") from None
    if isinstance(recipe, ScorerRecipe):
        return
    if isinstance(record, Sample):
        if record.side not in (None, recipe.kind):
            raise UserError(f"{where}: the sample was made for a {record.side}, this is to be a {recipe.kind}")
        if recipe.data.prompt is not None:
            raise UserError(f"{where}: holds messages with their system prompt in them; leave data.prompt out")
    else:
        training_messages(record, recipe.kind, _prompt(recipe), None, where)


def _prompt(recipe: ChatRecipe) -> Any:
    try:
        return load_prompt(recipe.data.prompt or recipe.kind)
    except UserError:  # told by its own step; the card alone decides here
        return load_prompt(recipe.kind)


def _first_rating(recipe: Recipe, file: str) -> None:
    from train.scorer_data import is_json_lines, read_ratings

    assert isinstance(recipe, ScorerRecipe)
    if not is_json_lines(file):
        if len(recipe.rubric) == 1:
            read_ratings([file], load_rubric(recipe.rubric[0]), recipe.data.key, recipe.data.rater)
        return
    where, value = _first(file)
    try:
        rating = Rating.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{where}: {describe_invalid(error)}") from None
    for name in recipe.rubric:
        try:
            rubric = load_rubric(name)
        except UserError:
            continue  # told by its own step
        if len(recipe.rubric) == 1 or rubric.name == rating.rubric:
            check_ratings([(where, rating)], rubric)


# ---- model, device, folder


def _model(recipe: Recipe) -> ModelFiles:
    found = find_model(recipe.model.base, recipe.model.revision)
    if found is None:
        raise SkippedError(f"{recipe.model.base} is not on this machine; the hub is asked for it when training starts")
    return found


def check_model(recipe: Recipe) -> str:
    """The base model is here, its configuration is readable, and its positions are enough."""
    files = _model(recipe)
    config = files.json("config.json")
    limit = config.get("max_position_embeddings")
    if isinstance(limit, int) and recipe.data.max_length > limit:
        raise UserError(
            f"data.max_length is {recipe.data.max_length}, but {recipe.model.base} reads at most {limit}; lower it"
        )
    return f"{config.get('model_type', 'unknown type')}, {files.where}"


def check_template(recipe: Recipe) -> str:
    """A chat model needs the template it will be talked to with."""
    if isinstance(recipe, ScorerRecipe):
        raise SkippedError("a scorer reads dialogues without one")
    try:
        files = _model(recipe)
    except UserError:
        raise SkippedError("the base model has to be here first") from None
    if files.path("chat_template.jinja") is not None:
        return "chat_template.jinja"
    if files.json("tokenizer_config.json").get("chat_template"):
        return "tokenizer_config.json"
    if not files.whole:
        raise SkippedError("the part of the model that is on this machine has none; the hub may")
    raise UserError(f"{recipe.model.base}: has no chat template; take the chat or instruct model of the family")


def check_device(recipe: Recipe) -> str:
    """What the recipe needs of a machine, against this one. Whether the memory is enough, `--plan` says."""
    import importlib.util

    import torch

    from train.models import load_options

    on_gpu = torch.cuda.is_available()
    wrong = []
    try:
        load_options(recipe.model)
    except UserError as error:
        wrong.append(str(error))
    if recipe.model.attention == "flash_attention_2" and not (on_gpu and importlib.util.find_spec("flash_attn")):
        wrong.append("model.attention: flash_attention_2 needs a GPU and the package flash_attn; leave it out")
    if not on_gpu:
        wrong += [
            f"training.{key}: needs a GPU and none is visible; leave it out, model.dtype decides"
            for key in ("bf16", "fp16", "tf32")
            if recipe.training.get(key)
        ]
    config = recipe.training.get("deepspeed")
    if isinstance(config, str) and not Path(config).is_file():
        wrong.append(f"training.deepspeed: file {config} not found (relative to {Path.cwd()})")
    if wrong:
        raise UserError("\n".join(wrong))
    slow = "" if on_gpu or recipe.model.dtype in ("auto", "float32") else f"; {recipe.model.dtype} crawls on a CPU"
    return (torch.cuda.get_device_name(0) if on_gpu else "CPU") + slow


def check_out(recipe: Recipe) -> str:
    """The result folder is free, or holds this recipe's run; and can be written."""
    from train.output import check_output, finished_metrics

    folder = Path(recipe.out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; `out` names a folder")
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK):
        raise UserError(f"{there}: cannot be written; choose another `out`")
    check_output(recipe, folder, resume=True)
    if finished_metrics(recipe):
        return f"{folder} holds the finished run of this recipe"
    unfinished = folder.is_dir() and any(path.is_file() for path in folder.rglob("*") if path.name != "recipe.yaml")
    return f"{folder} holds an unfinished run: --resume goes on" if unfinished else f"{folder} is free"
