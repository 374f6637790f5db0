"""Trains the ESC-RANK scorer from dialogues and ratings."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Rating, read_located, sha256_of
from data_prep.rubric import Rubric, check_ratings, load_rubric
from train.callbacks import run_training
from train.models import add_lora, load_backbone, load_tokenizer
from train.output import finish, make_arguments, open_output, tidy_output
from train.recipe import ScorerRecipe
from train.rows import Located, read_dialogues

Labels = list[list[int]]
"""[raters][dimensions] level indices from 0; -100 where a rater gave none."""


@dataclass
class RankReport:
    """What became of the dialogues and ratings of one file set."""

    dialogues: int = 0
    without_rating: int = 0
    ratings: int = 0
    missing_ratings: int = 0
    shortened: int = 0
    """Dialogues that lost their oldest turns to fit max_length."""
    per_level: dict[str, list[int]] = field(default_factory=dict)


def read_ratings(files: Sequence[str], rubric: Rubric) -> dict[str, dict[str, dict[str, float | None]]]:
    """dialogue id -> rater -> dimension -> value. Raises UserError for a rating off the rubric or given twice."""
    located = [pair for file in files for pair in read_located(file, Rating)]
    check_ratings(located, rubric)
    ratings: dict[str, dict[str, dict[str, float | None]]] = defaultdict(lambda: defaultdict(dict))
    for where, rating in located:
        given = ratings[rating.dialogue_id][rating.rater]
        if rating.dimension in given:
            raise UserError(
                f"{where}: rater {rating.rater!r} already rated {rating.dimension} of {rating.dialogue_id!r}; keep one"
            )
        given[rating.dimension] = rating.value
    return ratings


def label_matrix(raters: dict[str, dict[str, float | None]], rubric: Rubric) -> Labels:
    """Level indices of all raters of one dialogue."""
    rows = []
    for _, given in sorted(raters.items()):
        values = [(given.get(dimension.name), dimension.scale[0]) for dimension in rubric.dimensions]
        rows.append([-100 if value is None else int(value) - low for value, low in values])
    return rows


def rank_rows(
    recipe: ScorerRecipe, rubric: Rubric, tokenizer: Any, located: Sequence[Located], ratings: Any
) -> tuple[list[dict[str, Any]], RankReport]:
    """One row (`input_ids`, `labels` [raters][dimensions]) a rated dialogue.

    Raises UserError when no dialogue has a rating, or a dimension has none at all.
    """
    from train.scorer import encode_dialogue

    report = RankReport(per_level={d.name: [0] * len(d.levels()) for d in rubric.dimensions})
    rows = []
    for _, dialogue in located:
        labels = label_matrix(ratings.get(dialogue.id, {}), rubric)
        if not any(value != -100 for row in labels for value in row):
            report.without_rating += 1
            continue
        ids, shortened = encode_dialogue(tokenizer, dialogue, recipe.data.max_length)
        rows.append({"input_ids": ids, "labels": labels})
        report.dialogues += 1
        report.shortened += shortened
        for row in labels:
            for dimension, level in zip(rubric.dimensions, row, strict=True):
                if level == -100:
                    report.missing_ratings += 1
                else:
                    report.ratings += 1
                    report.per_level[dimension.name][level] += 1
    empty = [name for name, counts in report.per_level.items() if not any(counts)]
    if empty:
        files = ", ".join(recipe.data.ratings)
        raise UserError(f"{files}: no rating of {', '.join(empty)} for the dialogues given; check ids and rubric")
    return rows, report


def collate(rows: Sequence[dict[str, Any]], pad_id: int) -> dict[str, Any]:
    """Pads ids, and labels to the largest number of raters: [batch, raters, dimensions]."""
    import torch

    from train.scorer import pad_batch

    batch = pad_batch([row["input_ids"] for row in rows], pad_id)
    raters = max(len(row["labels"]) for row in rows)
    dimensions = len(rows[0]["labels"][0])
    labels = torch.full((len(rows), raters, dimensions), -100)
    for index, row in enumerate(rows):
        labels[index, : len(row["labels"])] = torch.tensor(row["labels"])
    return {**batch, "labels": labels}


def make_trainer_class() -> Any:
    """transformers' Trainer with our order of rows, a learning rate for the heads, and our folder layout."""
    from transformers import Trainer

    from train.callbacks import make_exact_class
    from train.sampling import LengthSampler
    from train.scorer import load_weights, save_weights

    class RankTrainer(make_exact_class(Trainer)):  # type: ignore[misc]
        head_learning_rate: float
        optimizer: Any

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            rows: Any = self.train_dataset if train_dataset is None else train_dataset
            return LengthSampler([len(row["input_ids"]) for row in rows], self._train_batch_size, self.args.seed)

        def create_optimizer(self, model: Any = None) -> Any:
            if self.optimizer is None:
                target: Any = self.model if model is None else model
                named = [(n, p) for n, p in target.named_parameters() if p.requires_grad]
                heads = [p for n, p in named if "heads." in n]
                others = [p for n, p in named if "heads." not in n]
                cls, options = self.get_optimizer_cls_and_kwargs(self.args, target)
                groups = [
                    {"params": others, "weight_decay": self.args.weight_decay},
                    {"params": heads, "weight_decay": self.args.weight_decay, "lr": self.head_learning_rate},
                ]
                self.optimizer = cls(groups, **options)
            return self.optimizer

        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            folder = Path(output_dir or self.args.output_dir or ".")
            save_weights(self.accelerator.unwrap_model(self.model), folder, state_dict)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            load_weights(self.accelerator.unwrap_model(model or self.model), Path(resume_from_checkpoint))

        def _load_best_model(self) -> None:
            load_weights(self.accelerator.unwrap_model(self.model), Path(self.state.best_model_checkpoint or ""))

    return RankTrainer


def build_trainer(recipe: ScorerRecipe) -> tuple[Any, dict[str, Any]]:
    """Model, rows and trainer of a recipe, and a report of the data; nothing is trained yet."""
    from functools import partial

    from transformers import TrainingArguments, set_seed

    from train.scorer import ScorerModel, first_position, new_heads, pick_pooling

    set_seed(recipe.seed)
    rubric = load_rubric(recipe.rubric)
    ratings = read_ratings(recipe.data.ratings, rubric)
    tokenizer = load_tokenizer(recipe.model)
    located = read_dialogues(recipe.data.train, recipe.data.limit, recipe.seed)
    held_out = read_dialogues(recipe.data.validation, None, recipe.seed) if recipe.data.validation else []
    train_rows, report = rank_rows(recipe, rubric, tokenizer, located, ratings)
    data_report: dict[str, Any] = {"train": asdict(report)}
    eval_rows: list[dict[str, Any]] | None = None
    if held_out:
        eval_rows, eval_report = rank_rows(recipe, rubric, tokenizer, held_out, ratings)
        data_report["validation"] = asdict(eval_report)
    known = {dialogue.id for _, dialogue in (*located, *held_out)}
    data_report["rated_dialogues_in_no_file"] = len(set(ratings) - known)
    data_report["illustrative"] = any(dialogue.meta.get("illustrative") for _, dialogue in located)

    backbone = load_backbone(recipe.model)
    limit = getattr(backbone.config, "max_position_embeddings", None)
    if limit is not None and recipe.data.max_length > limit - first_position(backbone):
        raise UserError(
            f"data.max_length is {recipe.data.max_length}, but {recipe.model.base} reads at most "
            f"{limit - first_position(backbone)}; lower it"
        )
    pooling = pick_pooling(recipe.scorer.pooling, backbone.config)
    if recipe.lora:
        backbone = add_lora(backbone, recipe.lora, "FEATURE_EXTRACTION")
    model = ScorerModel(backbone, new_heads(backbone, rubric), pooling)
    model.heads.set_priors(list(report.per_level.values()))
    cls = make_trainer_class()
    arguments = make_arguments(TrainingArguments, recipe, label_names=["labels"])
    trainer = cls(
        model=model,
        args=arguments,
        train_dataset=train_rows,
        eval_dataset=eval_rows,
        data_collator=partial(collate, pad_id=tokenizer.pad_token_id),
        processing_class=tokenizer,
    )
    trainer.head_learning_rate = recipe.scorer.head_learning_rate or 10 * arguments.learning_rate
    return trainer, data_report


def train_scorer(recipe: ScorerRecipe, resume: bool = False) -> dict[str, Any]:
    """Trains a scorer and saves it in `recipe.out`; returns the metrics that were written there.

    Raises UserError for faulty data, an unusable model, or an output folder that belongs to another run.
    """
    from train.scorer import ScorerConfig, save_config

    checkpoint = open_output(recipe, resume)
    trainer, data_report = build_trainer(recipe)
    run_training(trainer, recipe, checkpoint)
    trainer.save_model(recipe.out)
    if trainer.is_world_process_zero():
        tidy_output(recipe)
        trainer.processing_class.save_pretrained(recipe.out)
        rubric = load_rubric(recipe.rubric)
        config = ScorerConfig(
            base=recipe.model.base,
            revision=recipe.model.revision,
            dtype=recipe.model.dtype,
            attention=recipe.model.attention,
            pooling=trainer.accelerator.unwrap_model(trainer.model).pooling,
            max_length=recipe.data.max_length,
            adapter=recipe.lora is not None,
            rubric=rubric,
            rubric_sha=rubric.sha,
            illustrative=data_report["illustrative"],
            training_levels=data_report["train"]["per_level"],
            data_sha256={Path(file).name: sha256_of(Path(file)) for file in (*recipe.data.train, *recipe.data.ratings)},
        )
        save_config(config, Path(recipe.out))
    return finish(trainer, recipe, data_report)
