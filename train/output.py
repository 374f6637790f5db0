"""The folder of a training run: the resolved recipe first, checkpoints while it runs, metrics when it ends."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import UserError
from data_prep.records import sha256_of, write_text
from data_prep.rubric import load_rubric
from train.checkpoints import last_checkpoint, world_message
from train.model_card import card_text
from train.models import pick_dtype
from train.recipe import Recipe, ScorerRecipe, save_recipe
from train.trackers import finish_trackers, prepare_trackers
from train.world import check_world, device_arguments, parameter_count, skip_compiled_ops

RECIPE = "recipe.yaml"
START = "start.json"
"""What a run began with besides its recipe: number of processes, content of the data."""
LIBRARIES = ("torch", "transformers", "peft", "trl", "accelerate")


def open_output(recipe: Recipe, resume: bool) -> str | None:
    """Prepares `recipe.out` and returns the checkpoint to resume from, if any.

    Raises UserError when the folder already holds a run and `resume` is not asked for, when it was made by another
    recipe (the differing settings are named), from other data, or by another number of processes.
    """
    folder = Path(recipe.out)
    main_process = int(os.environ.get("RANK", "0")) == 0
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rubrics = {name: load_rubric(name).sha for name in recipe.rubric} if isinstance(recipe, ScorerRecipe) else {}
    start = {"world_size": world_size, "data_sha256": data_sha256(recipe), "rubrics": rubrics}
    if main_process:
        check_output(recipe, folder, resume, start)
    checkpoint = last_checkpoint(folder / "checkpoints", world_size, main_process) if resume else None
    if main_process:
        save_recipe(recipe, folder / RECIPE)
        if checkpoint is None:
            write_text(folder / START, json.dumps(start, indent=1) + "\n")
    return checkpoint


def check_output(recipe: Recipe, folder: Path, resume: bool, start: dict[str, Any] | None = None) -> None:
    """Raises UserError when the folder holds something else than an unfinished run of this recipe that may go on.

    `start` is what the run would begin with; None leaves that unchecked.
    """
    saved = folder / RECIPE
    ours = (saved, folder / START)
    data = folder / "data"  # parts of a split, made again from the same recipe
    if not any(path.is_file() and path not in ours and data not in path.parents for path in folder.rglob("*")):
        return  # a run that ended before its first checkpoint, on faulty data perhaps, left nothing to protect
    if not saved.is_file():
        raise UserError(f"{folder}: is not empty and holds no run of ours; choose another `out`")
    changed = differences(yaml.safe_load(saved.read_text(encoding="utf-8")), recipe.model_dump(mode="json"))
    if changed:
        raise UserError(f"{folder}: holds a run of another recipe ({'; '.join(changed)}); choose another `out`")
    if not resume:
        raise UserError(f"{folder}: already holds a run of this recipe; add --resume, or choose another `out`")
    begun = any((folder / "checkpoints").glob("checkpoint-*")) or (folder / "members").is_dir()
    if start and (folder / START).is_file() and begun:
        _check_start(folder, json.loads((folder / START).read_text(encoding="utf-8")), start)


def _check_start(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises UserError when the data or the number of processes are not those that the run began with."""
    changed = [file for file, sha in now["data_sha256"].items() if before["data_sha256"].get(file) != sha]
    if changed:
        raise UserError(
            f"{folder}: the run began with another content of {', '.join(changed)}; "
            "bring that back, or choose another `out`"
        )
    other = [name for name, sha in now["rubrics"].items() if before.get("rubrics", {}).get(name, sha) != sha]
    if other:
        raise UserError(f"{folder}: rubric {', '.join(other)} has changed since the run began; choose another `out`")
    if before["world_size"] != now["world_size"]:
        raise UserError(world_message(folder, before["world_size"], now["world_size"]))


def finished_metrics(recipe: Recipe) -> dict[str, Any] | None:
    """The metrics of a finished run of exactly this recipe, else None. metrics.json is the last thing written."""
    folder = Path(recipe.out)
    if not ((folder / "metrics.json").is_file() and (folder / RECIPE).is_file()):
        return None
    saved = yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8"))
    if differences(saved, recipe.model_dump(mode="json")):
        return None
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """`key: old in the folder, new now` for every value that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in differences(old.get(key), new.get(key), f"{at}.{key}" if at else key)
        ]
    return [] if old == new else [f"{at}: {old!r} in the folder, {new!r} now"]


def trainer_arguments(recipe: Recipe) -> dict[str, Any]:
    """The trainer's arguments: the recipe's `training` and what follows from the machine and the recipe's top."""
    import torch

    on_gpu = torch.cuda.is_available()
    arguments = dict(recipe.training)
    # Without this the SFT arguments default to bf16, which crawls on a CPU.
    arguments.setdefault("bf16", on_gpu and pick_dtype(recipe.model.dtype) is torch.bfloat16)
    for name, value in device_arguments(on_gpu).items():
        arguments.setdefault(name, value)
    arguments.setdefault("dataloader_pin_memory", on_gpu)
    arguments.setdefault("disable_tqdm", False)  # long work shows its progress
    if arguments.get("activation_offloading") and not on_gpu:
        raise UserError("training.activation_offloading: moves memory of a GPU, but no GPU is visible; leave it out")
    arguments["report_to"] = prepare_trackers(arguments["report_to"], recipe.out)
    return {
        **arguments,
        "output_dir": str(Path(recipe.out) / "checkpoints"),
        "seed": recipe.seed,
        "remove_unused_columns": not isinstance(recipe, ScorerRecipe),
    }


def make_arguments(arguments_class: Any, recipe: Recipe, **more: Any) -> Any:
    """The library's arguments of a recipe. Raises UserError for values that do not go together or are not known."""
    skip_compiled_ops()
    try:
        arguments = arguments_class(**trainer_arguments(recipe), **more)
    except (ValueError, TypeError) as error:
        raise UserError(f"training: {' '.join(str(error).split())}; correct it in the recipe") from None
    check_world(arguments)
    return arguments


def tidy_output(recipe: Recipe) -> None:
    """Drops what the libraries leave in the result folder and nobody should ship: a pickle of the arguments, an
    empty model card, and this machine's path of the base model (its name is kept instead)."""
    for folder in (Path(recipe.out), Path(recipe.out) / "adapter"):
        for name in ("training_args.bin", "README.md"):
            (folder / name).unlink(missing_ok=True)
        config = folder / "adapter_config.json"
        if config.is_file():
            content = json.loads(config.read_text(encoding="utf-8"))
            content["base_model_name_or_path"] = recipe.model.base
            write_text(config, json.dumps(content, indent=2) + "\n")


def finish(
    trainer: Any,
    recipe: Recipe,
    data_report: dict[str, Any],
    validation: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes and returns metrics.json: data, steps, losses, time, versions. Only the main process writes.

    `validation` is what the saved model predicts of the held-out data (`train.perplexity.validation_figures`); `more`
    is what only this kind of recipe has to tell.

    The last thing written in a run: its presence says that the run is finished.
    """
    history = trainer.state.log_history
    metrics = {
        "kind": recipe.kind,
        "data": data_report,
        "data_sha256": data_sha256(recipe),
        "steps": trainer.state.global_step,
        "train_loss": [entry["loss"] for entry in history if "loss" in entry],
        "eval_loss": [entry["eval_loss"] for entry in history if "eval_loss" in entry],
        "best_step": trainer.state.best_global_step if trainer.args.load_best_model_at_end else None,
        "stopped_early": trainer.state.global_step < trainer.state.max_steps,
        "validation": validation,
        "train_seconds": next((e["train_runtime"] for e in reversed(history) if "train_runtime" in e), None),
        "trainable_parameters": sum(parameter_count(p) for p in trainer.model.parameters() if p.requires_grad),
        "attention": getattr(trainer.model, "backbone", trainer.model).config._attn_implementation,
        "world_size": trainer.args.world_size,
        "versions": library_versions(),
        **(more or {}),
    }
    finish_trackers()
    if trainer.is_world_process_zero():
        write_metrics(recipe, metrics)
    return metrics


def write_metrics(recipe: Recipe, metrics: dict[str, Any]) -> None:
    """The card and, last, metrics.json."""
    write_text(Path(recipe.out) / "README.md", card_text(recipe.model_dump(mode="json"), metrics))
    write_text(Path(recipe.out) / "metrics.json", json.dumps(metrics, indent=1, ensure_ascii=False) + "\n")


def library_versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def data_sha256(recipe: Recipe) -> dict[str, str]:
    """Content of every file that the recipe reads."""
    return {file: sha256_of(Path(file)) for file in _files(recipe)}


def _files(recipe: Recipe) -> list[str]:
    files = [*recipe.data.train, *(recipe.data.validation or ())]
    if isinstance(recipe, ScorerRecipe):
        files += recipe.data.ratings
        files += [recipe.data.key] if recipe.data.key else []
        files += [name for name in recipe.rubric if Path(name).is_file()]
    return files
