"""What a chat recipe's data become: dialogues or rendered messages in, encoded rows with their loss mask out."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from data_prep.chat_format import training_messages
from data_prep.errors import UserError
from data_prep.prompt import Prompt, load_prompt
from data_prep.records import Dialogue, Speaker, first_json_line, read_located
from data_prep.sample import Sample
from train.masking import ChatRenderer, Encoded, fit, preview
from train.models import load_tokenizer
from train.recipe import ChatRecipe


@dataclass
class RowReport:
    """What became of the dialogues of one file set."""

    dialogues: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    shortened: int = 0
    """Dialogues that lost their oldest turns to fit max_length."""
    messages_dropped: int = 0
    rendered: int = 0
    """Rows that came as messages: their system prompt and greeting are those of the file, not of the recipe."""


Located = tuple[str, Dialogue]
LocatedRow = tuple[str, Dialogue] | tuple[str, Sample]
PairT = TypeVar("PairT")


def read_dialogues(files: Sequence[str], limit: int | None, seed: int) -> list[Located]:
    """All dialogues of the files with their `file:line`; with a limit, a random sample in file order."""
    return sampled([pair for file in files for pair in read_located(file, Dialogue)], limit, seed)


def sampled(located: list[PairT], limit: int | None, seed: int) -> list[PairT]:
    """A random sample in the order of the list; all of it without a limit."""
    if limit is None or limit >= len(located):
        return located
    chosen = sorted(random.Random(seed).sample(range(len(located)), limit))
    return [located[index] for index in chosen]


def read_rows(files: Sequence[str], limit: int | None, seed: int, prompt: str | None = None) -> list[LocatedRow]:
    """As `read_dialogues`, for files of dialogues and of rendered messages (`esckit data build`).

    The first record of a file tells which it is. Raises UserError when the recipe sets a `prompt` that a file of
    messages could not follow.
    """
    located: list[LocatedRow] = []
    for file in files:
        first = first_json_line(file)
        if not (isinstance(first, dict) and "messages" in first):
            located += read_located(file, Dialogue)
        elif prompt is None:
            located += read_located(file, Sample)
        else:
            raise UserError(
                f"{file}: holds messages whose system prompt is already in them, data.prompt would change nothing; "
                "leave data.prompt out, or train on the dialogues"
            )
    return sampled(located, limit, seed)


@dataclass(frozen=True)
class ChatFormat:
    """How a dialogue becomes a row. Training and evaluation share it, so that they cannot differ."""

    side: Speaker
    prompt: Prompt
    greeting: Prompt | None
    max_length: int

    @classmethod
    def of(cls, recipe: ChatRecipe) -> "ChatFormat":
        return cls(
            side=recipe.kind,
            prompt=load_prompt(recipe.data.prompt or recipe.kind),
            greeting=load_prompt(recipe.data.greeting) if recipe.data.greeting else None,
            max_length=recipe.data.max_length,
        )


def chat_rows(
    how: ChatFormat, renderer: ChatRenderer, located: Sequence[LocatedRow]
) -> tuple[list[Encoded], RowReport]:
    """One encoded row a dialogue, loss on the trained side's turns; or one a sample, loss on its flagged messages.

    Raises UserError, naming file and line, for a dialogue from which nothing could be learned and for a sample of
    the other side.
    """
    rows = []
    report = RowReport()
    for where, record in located:
        if isinstance(record, Sample):
            if record.side not in (None, how.side):
                raise UserError(f"{where}: the sample was made for a {record.side}, this is to be a {how.side}")
            encoded, dropped = fit(renderer, record.chat(), how.max_length, where, record.train_on())
            report.rendered += 1
        else:
            messages = training_messages(record, how.side, how.prompt, how.greeting, where)
            encoded, dropped = fit(renderer, messages, how.max_length, where)
        rows.append(encoded)
        report.dialogues += 1
        report.tokens += len(encoded.input_ids)
        report.supervised_tokens += encoded.supervised()
        report.messages_dropped += dropped
        report.shortened += dropped > 0
    return rows, report


def preview_rows(recipe: ChatRecipe, count: int) -> list[Any]:
    """The first `count` rows as Rich texts that show which tokens carry loss. Loads the tokenizer only."""
    tokenizer = load_tokenizer(recipe.model)
    renderer = ChatRenderer(tokenizer)
    located = read_rows(recipe.data.train, recipe.data.limit, recipe.seed, recipe.data.prompt)[:count]
    rows, _ = chat_rows(ChatFormat.of(recipe), renderer, located)
    return [preview(row, renderer) for row in rows]
