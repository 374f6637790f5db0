"""Trains the ESC-RANK scorer from dialogues and ratings."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import sha256_of, write_records, write_text
from train.callbacks import run_training
from train.models import add_lora, load_tokenizer
from train.output import finish, make_arguments, open_output, tidy_output
from train.recipe import ScorerRecipe
from train.scorer_data import (
    Parts,
    RatingSet,
    Row,
    as_dialogues,
    collate,
    data_folder,
    rank_rows,
    rater_counts,
    rater_index,
    rating_records,
    read_parts,
    read_rating_set,
    read_ratings,
    row_length,
    weighted_counts,
)

__all__ = ["build_trainer", "read_ratings", "train_scorer"]


@dataclass
class RankData:
    """What a scorer is trained from."""

    ratings: RatingSet
    parts: Parts
    rows: dict[str, list[Row]]
    """Of each part that there is: train, validation, test."""
    raters: dict[str, int]
    """Those whose severity is learned, by index."""
    report: dict[str, Any]


def make_trainer_class() -> Any:
    """transformers' Trainer with our order of rows, a learning rate for the heads, kappa, and our folder layout."""
    from transformers import Trainer

    from train.callbacks import make_exact_class
    from train.sampling import LengthSampler, rows_per_step
    from train.scorer_model import load_weights, save_weights

    class RankTrainer(make_exact_class(Trainer)):  # type: ignore[misc]
        head_learning_rate: float
        soft_labels: bool
        optimizer: Any

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            rows: Any = self.train_dataset if train_dataset is None else train_dataset
            return LengthSampler([row_length(row) for row in rows], rows_per_step(self.args), self.args.seed)

        def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
            """The weight of all ratings of a step, on all devices: what its loss is divided by."""
            import torch

            total = torch.stack([batch["weights"].sum() for batch in batch_samples]).sum().to(device)
            return self.accelerator.gather(total).sum() if self.args.world_size > 1 else total

        def create_optimizer(self, model: Any = None) -> Any:
            if self.optimizer is None:
                target: Any = self.model if model is None else model
                named = [(n, p) for n, p in target.named_parameters() if p.requires_grad]
                new = [p for n, p in named if "backbone." not in n]
                others = [p for n, p in named if "backbone." in n]
                cls, options = self.get_optimizer_cls_and_kwargs(self.args, target)
                groups = [
                    {"params": others, "weight_decay": self.args.weight_decay},
                    {"params": new, "weight_decay": self.args.weight_decay, "lr": self.head_learning_rate},
                ]
                self.optimizer = cls([group for group in groups if group["params"]], **options)
            return self.optimizer

        def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
            """The loss over all held-out ratings at once: the library's is a mean of means of batches."""
            output = super().evaluation_loop(*args, **kwargs)
            prefix = kwargs.get("metric_key_prefix", "eval")
            heads = self.accelerator.unwrap_model(self.model).heads
            loss = held_out_loss(heads, output.predictions, output.label_ids, self.soft_labels)
            output.metrics[f"{prefix}_loss"] = loss
            return output

        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            folder = Path(output_dir or self.args.output_dir or ".")
            save_weights(self.accelerator.unwrap_model(self.model), folder, state_dict)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            load_weights(self.accelerator.unwrap_model(model or self.model), Path(resume_from_checkpoint))

        def _load_best_model(self) -> None:
            if self.is_deepspeed_enabled:  # its weights are in parts
                super()._load_best_model()
                return
            load_weights(self.accelerator.unwrap_model(self.model), Path(self.state.best_model_checkpoint or ""))

    return RankTrainer


def held_out_loss(heads: Any, logs: Any, labels: Any, soft: bool) -> float:
    """The heads' own loss of log probabilities [dialogues, dimensions, levels] on labels [.., raters, dimensions]."""
    import torch

    wanted = torch.as_tensor(labels)
    present = (wanted >= 0).float()
    weights = present / present.sum(1, keepdim=True).clamp(min=1) if soft else present
    device = heads.sharpness.device
    of_each = [torch.as_tensor(logs[:, d, :n], device=device) for d, n in enumerate(heads.level_counts)]
    return float(heads.loss(of_each, wanted.to(device), weights.to(device)))


def kappa_of(prediction: Any) -> dict[str, float]:
    """What the library asks after every evaluation."""
    from train.scorer_agreement import mean_kappa

    return {"kappa": mean_kappa(*levels_and_labels(prediction.predictions, prediction.label_ids))}


def levels_and_labels(logs: Any, labels: Any) -> tuple[Any, Any]:
    """Median levels [dialogues, dimensions], and labels with NaN for -100."""
    import numpy as np
    import torch

    from train.ordinal import median_level

    wanted = np.where(np.asarray(labels) < 0, np.nan, np.asarray(labels, dtype=float))
    return median_level(torch.as_tensor(logs)).numpy().astype(float), wanted


def prepare_data(recipe: ScorerRecipe, tokenizer: Any) -> RankData:
    """Reads, splits and encodes everything a recipe names."""
    ratings = read_rating_set(recipe)
    parts = read_parts(recipe, ratings)
    raters = rater_index(parts.train, ratings) if recipe.scorer.rater_effects else {}
    rows: dict[str, list[Row]] = {}
    report: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        located = getattr(parts, name)
        if name == "train" or located:
            rows[name], found = rank_rows(recipe, tokenizer, located, ratings, name, raters)
            report[name] = asdict(found)
    known = {dialogue.id for part in (parts.train, parts.validation, parts.test) for _, dialogue in part}
    report["rated_dialogues_in_no_file"] = len(ratings.ids() - known)
    report["illustrative"] = any(dialogue.meta.get("illustrative") for _, dialogue in parts.train)
    return RankData(ratings, parts, rows, raters, report)


def build_model(recipe: ScorerRecipe, data: RankData) -> Any:
    """The untrained scorer: it predicts how often each level was given."""
    from train.scorer import load_reader, new_heads
    from train.scorer_model import ScorerModel, first_position, pick_pooling

    backbone = load_reader(recipe.model)
    limit = getattr(backbone.config, "max_position_embeddings", None)
    if limit is not None and recipe.data.max_length > limit - first_position(backbone):
        raise UserError(
            f"data.max_length is {recipe.data.max_length}, but {recipe.model.base} reads at most "
            f"{limit - first_position(backbone)}; lower it"
        )
    pooling = pick_pooling(recipe.scorer.pooling, backbone.config)
    if recipe.lora:
        backbone = add_lora(backbone, recipe.lora, "FEATURE_EXTRACTION")
    heads = new_heads(backbone, data.ratings.rubrics, recipe.scorer.head)
    counts = data.ratings.level_counts()
    heads.set_priors(weighted_counts(data.rows["train"], counts))
    severity = new_severity(data) if data.raters else None
    return ScorerModel(backbone, heads, pooling, severity, recipe.scorer.frozen)


def new_severity(data: RankData) -> Any:
    """Nobody is severe yet."""
    import torch

    from train.ordinal import RaterSeverity

    columns = len(data.ratings.level_counts())
    severity = RaterSeverity(len(data.raters), columns)
    severity.counts.copy_(torch.tensor(rater_counts(data.rows["train"], len(data.raters), columns)))
    return severity


def build_trainer(recipe: ScorerRecipe) -> tuple[Any, dict[str, Any]]:
    """Model, rows and trainer of a recipe, and a report of the data; nothing is trained yet.

    The trainer's `rank_data` is all that was read.
    """
    from transformers import TrainingArguments, set_seed

    # Before the model: ZeRO-3 shares its weights out while they are read, once these arguments exist.
    arguments = make_arguments(TrainingArguments, recipe, label_names=["labels"])
    set_seed(recipe.seed)
    tokenizer = load_tokenizer(recipe.model)
    data = prepare_data(recipe, tokenizer)
    model = build_model(recipe, data)
    trainer = make_trainer_class()(
        model=model,
        args=arguments,
        train_dataset=data.rows["train"],
        eval_dataset=data.rows.get("validation"),
        data_collator=partial(collate, pad_id=tokenizer.pad_token_id),
        compute_metrics=kappa_of,
        processing_class=tokenizer,
    )
    trainer.head_learning_rate = recipe.scorer.head_learning_rate or 10 * arguments.learning_rate
    trainer.soft_labels = recipe.scorer.labels == "soft"
    trainer.rank_data = data
    return trainer, data.report


def train_scorer(recipe: ScorerRecipe, resume: bool = False) -> dict[str, Any]:
    """Trains a scorer, or the several of a recipe with members or folds, and saves it in `recipe.out`; returns the
    metrics that were written there.

    Raises UserError for faulty data, an unusable model, or an output folder that belongs to another run.
    """
    if recipe.is_many:
        from train.scorer_members import train_members

        return train_members(recipe, resume)
    checkpoint = open_output(recipe, resume)
    trainer, data_report = build_trainer(recipe)
    run_training(trainer, recipe, checkpoint)
    data: RankData = trainer.rank_data
    if recipe.scorer.calibration != "none":
        calibrate_on(trainer, data.rows["validation"], recipe.scorer.calibration)
    trainer.save_model(recipe.out)
    more = {"agreement": held_out_agreement(trainer, data)}
    if trainer.is_world_process_zero():
        if data.raters:
            save_severity(recipe, data)
        save_parts(recipe, data.ratings, data.parts)
        tidy_output(recipe)
        trainer.processing_class.save_pretrained(recipe.out)
        write_config(recipe, data, trainer.accelerator.unwrap_model(trainer.model).pooling)
    return finish(trainer, recipe, data_report, more=more)


def calibrate_on(trainer: Any, rows: Sequence[Row], how: Any) -> None:
    """Fits the calibration of a trained model's heads on validation rows, the same on every process."""
    from train.scorer_calibration import calibrate

    found = trainer.predict(rows)
    _, wanted = levels_and_labels(found.predictions, found.label_ids)
    calibrate(trainer.accelerator.unwrap_model(trainer.model).heads, how, found.predictions, wanted)


def held_out_agreement(trainer: Any, data: RankData) -> dict[str, Any]:
    """Agreement with the raters of every held-out part, by dimension, as the finished model scores it."""
    from train.scorer_agreement import agreement_table

    found = {}
    for name, rows in data.rows.items():
        if name != "train":
            predicted = trainer.predict(rows)
            levels, wanted = levels_and_labels(predicted.predictions, predicted.label_ids)
            table = agreement_table(data.ratings.columns(), levels, wanted)
            found[name] = {column: asdict(figures) for column, figures in table.items()}
    return found


def save_severity(recipe: ScorerRecipe, data: RankData) -> None:
    """raters.json, what was learned of each rater: above 0, lower levels than the average rater's (log odds a level).

    Read from the file beside the saved weights, which is then dropped: predictions need no rater. It is apart from
    the metrics because it names people, and is never uploaded.
    """
    from train.models import read_weights
    from train.scorer_model import RATERS

    file = Path(recipe.out) / RATERS
    severity = new_severity(data)
    severity.load_state_dict(read_weights(file))
    file.unlink()
    table, columns = severity.centred().tolist(), data.ratings.columns()
    found = {name: dict(zip(columns, table[index], strict=True)) for name, index in data.raters.items()}
    write_text(Path(recipe.out) / "raters.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def save_parts(recipe: ScorerRecipe, ratings: RatingSet, parts: Parts) -> None:
    """Keeps what a split held out, for `esckit evaluate`."""
    if recipe.data.split is None:
        return
    folder = data_folder(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    held = {"validation": parts.validation, "test": parts.test}
    for name, part in held.items():
        if part:
            write_records(folder / f"{name}.jsonl", as_dialogues(part))
    everybody = as_dialogues([*parts.train, *parts.validation, *parts.test])
    write_records(folder / "ratings.jsonl", rating_records(ratings, everybody))


def write_config(recipe: ScorerRecipe, data: RankData, pooling: str, members: Sequence[str] = ()) -> None:
    """Says in the result folder what the scorer is."""
    from train.scorer import ScorerConfig, TrainedRubric, save_config

    levels = iter(data.report["train"]["per_level"].values())
    rubrics = tuple(
        TrainedRubric(rubric=rubric, sha=rubric.sha, training_levels={name: next(levels) for name in rubric.names()})
        for rubric in data.ratings.rubrics
    )
    model = recipe.model
    config = ScorerConfig(
        base=model.base,
        revision=model.revision,
        dtype=model.dtype,
        attention=model.attention,
        quantization=model.quantization,
        head=recipe.scorer.head,
        pooling=pooling,
        max_length=recipe.data.max_length,
        long_dialogues=recipe.data.long_dialogues,
        weights="frozen" if recipe.scorer.frozen else "adapter" if recipe.lora else "backbone",
        rubrics=rubrics,
        members=tuple(members),
        illustrative=data.report["illustrative"],
        data_sha256={Path(file).name: sha256_of(Path(file)) for file in (*recipe.data.train, *recipe.data.ratings)},
    )
    save_config(config, Path(recipe.out))
