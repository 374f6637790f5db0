"""How much there is to read: tokens, supervised tokens, shortened rows and steps of a recipe, before any model.

With the tokenizer at hand the rows are made as training makes them. Without it their lengths are estimated from the
number of characters, and everything else (turns, truncation, which turns carry loss) is as in training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.chat_format import Message
from data_prep.errors import UserError
from data_prep.rubric import load_rubric
from train.masking import IGNORED, ChatRenderer, Encoded
from train.models import open_tokenizer
from train.recipe import ChatRecipe, Recipe, ScorerRecipe
from train.rows import ChatFormat, chat_rows, read_dialogues, read_rows
from train.templates import stabilise

# Tokens a character, (CJK, kana, hangul and full-width signs; everything else), by the size of the vocabulary.
# Large: the tokenizer of Qwen1.5 and 2.5 (152 thousand) has 0.57-0.69 on three Chinese sets of counselling dialogues
# and the bundled samples, 0.21-0.24 on two English ones and the samples. Small: SmolLM2's (49 thousand), 1.75-1.78 and
# 0.21-0.25 on the same. Measured on 330 thousand Chinese and 330 thousand English characters.
RATIOS = {"large": (0.60, 0.23), "small": (1.77, 0.24)}
LARGE_VOCABULARY = 90_000
# What a chat template puts around a message: ChatML has <|im_start|>, role, newline, <|im_end|>, newline.
AROUND_MESSAGE = 5


@dataclass(frozen=True)
class DataPlan:
    """What the training files come to. Figures are None, with a `reason`, where they could not be had."""

    rows: int | None = None
    tokens: int | None = None
    supervised_tokens: int | None = None
    """None for a scorer: its loss is on ratings."""
    shortened: int | None = None
    longest: int | None = None
    estimated: bool = False
    """True: token figures come from the number of characters."""
    steps_per_epoch: int | None = None
    steps: int | None = None
    reason: str | None = None
    widest: tuple[int, int] | None = None
    """(length, supervised positions) of the largest batch on one device."""


def is_wide(character: str) -> bool:
    """Chinese, Japanese, Korean and full-width characters, which take far more tokens each than letters."""
    return (
        "\u2e80" <= character <= "\u9fff"
        or "\uac00" <= character <= "\ud7a3"
        or "\uf900" <= character <= "\ufaff"
        or "\uff00" <= character <= "\uffef"
        or character >= "\U00020000"
    )


def estimate_tokens(text: str, vocabulary: int) -> int:
    """Tokens of a text by the ratios above, at least one for any text."""
    wide_ratio, other_ratio = RATIOS["large" if vocabulary >= LARGE_VOCABULARY else "small"]
    wide = sum(map(is_wide, text))
    return max(round(wide * wide_ratio + (len(text) - wide) * other_ratio), 1 if text else 0)


class EstimatedRenderer:
    """Stands for a ChatRenderer where no tokenizer is: rows of the estimated length, their tokens all 0."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def encode(self, messages: Sequence[Message], train_on: Sequence[bool] | None = None) -> Encoded:
        labels: list[int] = []
        for index, message in enumerate(messages):
            learned = message["role"] == "assistant" if train_on is None else train_on[index]
            content = estimate_tokens(message["content"], self.vocabulary)
            labels += [IGNORED] * (AROUND_MESSAGE - 2)
            labels += [0 if learned else IGNORED] * (content + 1) + [IGNORED]
        return Encoded([0] * len(labels), labels)


class EstimatedTokenizer:
    """The same for a scorer's rows: what `encode_dialogue` asks of a tokenizer."""

    cls_token_id = sep_token_id = bos_token_id = eos_token_id = 0

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def __call__(self, text: str, **_options: Any) -> dict[str, list[int]]:
        return {"input_ids": [0] * estimate_tokens(text, self.vocabulary)}


def plan_data(recipe: Recipe, tokenizer: str | None, vocabulary: int, devices: int) -> DataPlan:
    """Reads the recipe's training files and counts; `tokenizer` is a folder or hub id, None: estimate.

    Raises UserError for faulty data, as training would.
    """
    files = [*recipe.data.train, *(recipe.data.ratings if isinstance(recipe, ScorerRecipe) else ())]
    absent = [file for file in files if not Path(file).is_file()]
    if absent:
        return DataPlan(reason=f"data file {absent[0]} is not there yet")
    opened = None
    if tokenizer is not None:
        try:
            opened = stabilise(
                open_tokenizer(
                    tokenizer, revision=recipe.model.revision, trust_remote_code=recipe.model.trust_remote_code
                )
            )
        except UserError:
            opened = None
    try:
        lengths, supervised, shortened = _measure(recipe, opened, vocabulary)
    except UserError as error:
        if opened is not None:
            raise
        return DataPlan(reason=f"by the estimate, {error}", estimated=True)  # an estimate refuses nobody's data
    batch = int(recipe.training["per_device_train_batch_size"])
    per_epoch, total = count_steps(len(lengths), recipe.training, devices)
    return DataPlan(
        rows=len(lengths),
        tokens=sum(lengths),
        supervised_tokens=sum(supervised) if isinstance(recipe, ChatRecipe) else None,
        shortened=shortened,
        longest=max(lengths),
        estimated=opened is None,
        steps_per_epoch=per_epoch,
        steps=total,
        widest=widest_batch(lengths, supervised, batch),
    )


def _measure(recipe: Recipe, tokenizer: Any, vocabulary: int) -> tuple[list[int], list[int], int]:
    """Length and supervised positions of every row, and how many dialogues were shortened."""
    if isinstance(recipe, ScorerRecipe):
        from train.rank import rank_rows, read_ratings

        rubric = load_rubric(recipe.rubric)
        located = read_dialogues(recipe.data.train, recipe.data.limit, recipe.seed)
        reader = tokenizer or EstimatedTokenizer(vocabulary)
        made, found = rank_rows(recipe, rubric, reader, located, read_ratings(recipe.data.ratings, rubric))
        return [len(row["input_ids"]) for row in made], [0] * len(made), found.shortened
    renderer: Any = ChatRenderer(tokenizer) if tokenizer else EstimatedRenderer(vocabulary)
    chats = read_rows(recipe.data.train, recipe.data.limit, recipe.seed, recipe.data.prompt)
    rows, report = chat_rows(ChatFormat.of(recipe), renderer, chats)
    lengths = [len(row.input_ids) for row in rows]
    supervised = [row.supervised() for row in rows]
    if recipe.data.packing:
        from train.packing import best_fit

        packs = best_fit(lengths, recipe.data.max_length, recipe.seed)
        lengths = [sum(lengths[index] for index in pack) for pack in packs]
        supervised = [sum(supervised[index] for index in pack) for pack in packs]
    if not lengths:
        raise UserError(f"{recipe.data.train[0]}: holds no dialogue; name another file in data.train")
    return lengths, supervised, report.shortened


def widest_batch(lengths: Sequence[int], supervised: Sequence[int], batch: int) -> tuple[int, int]:
    """(longest row, most supervised positions) over batches of rows of similar length, as the sampler makes them."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    groups = [order[start : start + batch] for start in range(0, len(order), batch)]
    return lengths[order[0]], max(sum(supervised[index] for index in group) for group in groups)


def count_steps(rows: int, training: dict[str, Any], devices: int) -> tuple[int, int]:
    """(optimiser steps an epoch, in all), as transformers' Trainer counts them: the last step of an epoch may be
    smaller; `max_steps` above 0 overrides the epochs."""
    batches = math.ceil(rows / (int(training["per_device_train_batch_size"]) * devices))
    per_epoch = max(math.ceil(batches / int(training["gradient_accumulation_steps"])), 1)
    limit = int(training.get("max_steps", -1) or -1)
    return per_epoch, limit if limit > 0 else math.ceil(float(training["num_train_epochs"]) * per_epoch)
