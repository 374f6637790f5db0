"""ESC-Role and supporter fine-tuning on TRL's SFTTrainer, with rows that are tokenised and masked in rows.py."""

from dataclasses import asdict
from typing import Any

from data_prep.errors import UserError
from train.callbacks import run_training
from train.masking import ChatRenderer
from train.models import add_lora, load_causal, load_tokenizer
from train.output import finish, make_arguments, open_output, tidy_output
from train.perplexity import validation_figures
from train.recipe import ChatRecipe
from train.rows import ChatFormat, chat_rows, read_rows
from train.samples import make_sample_callback, sample_prompts


def make_trainer_class() -> Any:
    """SFTTrainer that reads rows by length in a seeded order. Made in a function: importing TRL takes seconds."""
    from trl import SFTTrainer

    from train.callbacks import make_exact_class
    from train.sampling import make_sampler

    class ChatTrainer(make_exact_class(SFTTrainer)):  # type: ignore[misc]
        order = "length"

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            rows: Any = self.train_dataset if train_dataset is None else train_dataset
            lengths = [len(ids) for ids in rows["input_ids"]]
            return make_sampler(self.order, lengths, self._train_batch_size, self.args.seed)

        def create_model_card(self, *args: Any, **kwargs: Any) -> None:
            """The library's card names neither data nor licences; ours is written when the run is published."""

    return ChatTrainer


def build_trainer(recipe: ChatRecipe) -> tuple[Any, dict[str, Any]]:
    """Model, rows and trainer of a recipe, and a report of the data; nothing is trained yet."""
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig

    set_seed(recipe.seed)  # before the adapter is drawn
    tokenizer = load_tokenizer(recipe.model)
    renderer = ChatRenderer(tokenizer)
    how = ChatFormat.of(recipe)
    located = read_rows(recipe.data.train, recipe.data.limit, recipe.seed, recipe.data.prompt)
    train_rows, report = chat_rows(how, renderer, located)
    data_report: dict[str, Any] = {"train": asdict(report)}
    eval_rows = None
    if recipe.data.validation:
        held_out = read_rows(recipe.data.validation, None, recipe.seed, recipe.data.prompt)
        eval_rows, report = chat_rows(how, renderer, held_out)
        data_report["validation"] = asdict(report)
    model = load_causal(recipe.model)
    check_context(model, recipe)
    if recipe.lora:
        model = add_lora(model, recipe.lora, "CAUSAL_LM")
    arguments = make_arguments(
        SFTConfig,
        recipe,
        max_length=None,  # rows already fit; the library must not cut them again
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = make_trainer_class()(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([asdict(row) for row in train_rows]),
        eval_dataset=Dataset.from_list([asdict(row) for row in eval_rows]) if eval_rows else None,
        processing_class=tokenizer,
    )
    trainer.order = recipe.data.order
    trainer.held_out = eval_rows or []
    if eval_rows and recipe.evaluation.samples:
        named = [(where, record.id, row) for (where, record), row in zip(held_out, eval_rows, strict=True)]
        prompts = sample_prompts(named, recipe.evaluation.samples, recipe.seed)
        max_new = recipe.evaluation.max_new_tokens
        trainer.add_callback(make_sample_callback(trainer, renderer, prompts, max_new, recipe.out))
    return trainer, data_report


def check_context(model: Any, recipe: ChatRecipe) -> None:
    """Raises UserError when max_length is more than the model's positions."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and recipe.data.max_length > limit:
        raise UserError(
            f"data.max_length is {recipe.data.max_length}, but {recipe.model.base} reads at most {limit}; lower it"
        )


def train_chat(recipe: ChatRecipe, resume: bool = False) -> dict[str, Any]:
    """Trains a seeker or supporter and saves it in `recipe.out`; returns the metrics that were written there.

    Raises UserError for faulty data, an unusable model, or an output folder that belongs to another run.
    """
    checkpoint = open_output(recipe, resume)
    trainer, data_report = build_trainer(recipe)
    run_training(trainer, recipe, checkpoint)
    trainer.save_model(recipe.out)
    if trainer.is_world_process_zero():
        tidy_output(recipe)
    return finish(trainer, recipe, data_report, validation_figures(trainer, trainer.held_out))
