"""ESC-Role and supporter fine-tuning on TRL's SFTTrainer, with rows that are tokenised and masked in rows.py."""

import sys
from dataclasses import asdict
from typing import Any

from data_prep.errors import UserError
from train.callbacks import run_training
from train.masking import ChatRenderer
from train.models import add_lora, load_causal, load_tokenizer
from train.output import finish, make_arguments, open_output, tidy_output
from train.perplexity import validation_figures
from train.publish import save_generation_config
from train.recipe import ChatRecipe
from train.row_cache import RowSet, prepare
from train.rows import ChatFormat, encode_record, read_rows
from train.samples import make_sample_callback, sample_prompts


def make_trainer_class() -> Any:
    """SFTTrainer with our order of rows and our loss. Made in a function: importing TRL takes seconds."""
    import torch
    from trl import SFTTrainer

    from train.callbacks import make_exact_class
    from train.loss import keeps_positions, supervised_loss
    from train.sampling import make_sampler, rows_per_step

    class ChatTrainer(make_exact_class(SFTTrainer)):  # type: ignore[misc]
        order = "length"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.model_accepts_loss_kwargs = True  # both losses divide by the tokens of the whole step
            model: Any = self.model
            self._keeps = keeps_positions(model.get_base_model() if hasattr(model, "get_base_model") else model)
            self._library_loss = needs_library_loss(self)

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            rows: Any = self.train_dataset if train_dataset is None else train_dataset
            return make_sampler(self.order, row_lengths(rows), rows_per_step(self.args), self.args.seed)

        def compute_loss(
            self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if self._library_loss or return_outputs:
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            found = supervised_loss(model, inputs, self._keeps)
            self._log_tokens(found, inputs)
            if num_items_in_batch is None:
                return found.total / found.tokens
            # Counted over all ranks, while their gradients are averaged.
            ranks = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            return found.total * ranks / num_items_in_batch

        def _log_tokens(self, found: Any, inputs: dict[str, Any]) -> None:
            """The library's own figures, in one gathering instead of four: entropy, accuracy and tokens read."""
            model: Any = self.model
            mode = "train" if model.training else "eval"
            mask = inputs.get("attention_mask")
            read = mask.sum() if mask is not None else found.tokens.new_tensor(inputs["input_ids"].numel())
            sums = [found.entropy, found.correct, found.tokens, read]
            gathered = self.accelerator.gather(torch.stack([one.detach().float() for one in sums])[None])
            entropy, correct, tokens, read_all = gathered.double().sum(0).tolist()
            self._metrics[mode]["entropy"].append(entropy / max(tokens, 1))
            self._metrics[mode]["mean_token_accuracy"].append(correct / max(tokens, 1))
            if mode == "train":
                self._total_train_tokens += int(read_all)
            self._metrics[mode]["num_tokens"] = [self._total_train_tokens]

        def create_model_card(self, *args: Any, **kwargs: Any) -> None:
            """The library's card names neither data nor licences; ours is written when the run is published."""

    return ChatTrainer


def needs_library_loss(trainer: Any) -> bool:
    """Whether TRL's own loss is taken: where it has a fused kernel for supervised positions (a GPU with Triton), and
    for what ours does not do: another loss, smoothed labels, a router's loss, sequences cut over devices."""
    from transformers.utils import is_triton_available

    fused = trainer.args.device.type in ("cuda", "xpu") and is_triton_available()
    other = trainer.args.loss_type != "nll" or trainer.args.label_smoothing_factor > 0 or trainer.aux_loss_enabled
    return fused or other or trainer.accelerator.parallelism_config is not None


def row_lengths(rows: Any) -> list[int]:
    """Tokens of each row of a dataset, without turning the tokens into Python numbers."""
    import pyarrow.compute

    return pyarrow.compute.list_value_length(rows.data.column("input_ids")).to_pylist()


def make_dataset(rows: RowSet, recipe: ChatRecipe, packed: bool) -> Any:
    """The rows as the trainer reads them; packed ones also say how long each of their dialogues is."""
    from datasets import Dataset

    from train.packing import pack_rows

    encoded: Any = rows.encoded()
    if packed:
        encoded = pack_rows(encoded, recipe.data.max_length, recipe.seed)
    return Dataset.from_list([asdict(row) for row in encoded])


def build_trainer(recipe: ChatRecipe) -> tuple[Any, dict[str, Any]]:
    """Model, rows and trainer of a recipe, and a report of the data; nothing is trained yet."""
    from transformers import set_seed
    from trl import SFTConfig

    from train.packing import FLASH, check_isolation, make_packed_collator

    # Before the model: ZeRO-3 shares its weights out while they are read, once these arguments exist.
    arguments = make_arguments(
        SFTConfig,
        recipe,
        max_length=None,  # rows already fit; the library must not cut them again
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    set_seed(recipe.seed)  # before the adapter is drawn
    tokenizer = load_tokenizer(recipe.model)
    renderer = ChatRenderer(tokenizer)
    if arguments.process_index == 0:
        for note in renderer.notes:
            print(f"note: {note}", file=sys.stderr)
    prepared = prepare(recipe, tokenizer)
    model = load_causal(recipe.model)
    check_context(model, recipe)
    if recipe.lora:
        model = add_lora(model, recipe.lora, "CAUSAL_LM")
    packing = recipe.data.packing
    flash = model.config._attn_implementation in FLASH
    trainer = make_trainer_class()(
        model=model,
        args=arguments,
        data_collator=make_packed_collator(tokenizer.pad_token_id, flash) if packing else None,
        train_dataset=make_dataset(prepared.train, recipe, packing),
        eval_dataset=make_dataset(prepared.validation, recipe, False) if prepared.validation else None,
        processing_class=tokenizer,
    )
    trainer.order = recipe.data.order
    trainer.held_out = prepared.validation.encoded() if prepared.validation else []
    if packing and trainer.args.world_size == 1:  # among several ranks a model may not be whole anywhere
        check_isolation(trainer.model, len(tokenizer))
    if recipe.evaluation.samples:
        add_samples(trainer, recipe, renderer)
    return trainer, prepared.report()


def add_samples(trainer: Any, recipe: ChatRecipe, renderer: ChatRenderer) -> None:
    """Has the trainer answer some held-out turns at every evaluation; what they are is fixed by the seed."""
    how = ChatFormat.of(recipe).held_out()
    located = read_rows(recipe.data.validation or (), None, recipe.seed, recipe.data.prompt)
    named = [
        (where, record.id, row) for where, record in located for row in encode_record(how, renderer, where, record)[0]
    ]
    prompts = sample_prompts(named, recipe.evaluation.samples, recipe.seed)
    limit = recipe.evaluation.max_new_tokens
    trainer.add_callback(make_sample_callback(trainer, renderer, prompts, limit, recipe.out))


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
        save_generation_config(recipe.out, ChatRenderer(trainer.processing_class))
    return finish(trainer, recipe, data_report, validation_figures(trainer, trainer.held_out))
