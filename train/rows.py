"""What a chat recipe's data become: dialogues or rendered messages in, encoded rows with their loss mask out."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Literal, TypeVar

from data_prep.chat_format import Message, training_messages
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
    """Those that were used; `left_out` are not among them."""
    rows: int = 0
    """More than dialogues when every learned turn has a row of its own."""
    tokens: int = 0
    supervised_tokens: int = 0
    shortened: int = 0
    """Dialogues that lost their oldest turns to fit max_length, in one of their rows at least."""
    messages_dropped: int = 0
    """Over all rows."""
    rendered: int = 0
    """Dialogues that came as messages: their system prompt and greeting are those of the file, not of the recipe."""
    left_out: int = 0
    """Dialogues without a marked turn (`data.loss: marked`)."""

    def add(self, rows: Sequence[Encoded], dropped: Sequence[int]) -> None:
        """Counts one dialogue that became `rows`, which lost `dropped` messages each."""
        self.dialogues += 1
        self.rows += len(rows)
        self.tokens += sum(len(row.input_ids) for row in rows)
        self.supervised_tokens += sum(row.supervised() for row in rows)
        self.messages_dropped += sum(dropped)
        self.shortened += any(dropped)


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
    """How a dialogue becomes rows. Training and evaluation share it, so that they cannot differ."""

    side: Speaker
    prompt: Prompt
    greeting: Prompt | None
    max_length: int
    loss: Literal["all", "last", "marked"] = "all"
    expand: Literal["dialogues", "turns"] = "dialogues"

    @classmethod
    def of(cls, recipe: ChatRecipe) -> "ChatFormat":
        return cls(
            side=recipe.kind,
            prompt=load_prompt(recipe.data.prompt or recipe.kind),
            greeting=load_prompt(recipe.data.greeting) if recipe.data.greeting else None,
            max_length=recipe.data.max_length,
            loss=recipe.data.loss,
            expand=recipe.data.expand,
        )

    def held_out(self) -> "ChatFormat":
        """The format of held-out data: always whole dialogues, which predict the same turns for a third of the work
        and keep the losses of differently expanded runs comparable."""
        return replace(self, expand="dialogues")


def marked_turns(dialogue: Dialogue, side: Speaker, where: str) -> list[bool]:
    """For each run of turns by one speaker (one message in a chat): whether it is to be learned.

    A turn of the trained side is marked by `learn: true` in its meta. Raises UserError when `learn` is neither true
    nor false, and when only some turns of one message are marked: the message can be learned only as a whole.
    """
    learned: list[bool] = []
    number = 0
    for speaker, run in groupby(dialogue.turns, key=lambda turn: turn.speaker):
        marks = [turn.meta.get("learn", False) for turn in run]
        first, number = number + 1, number + len(marks)
        if speaker != side:
            learned.append(False)
        elif any(type(mark) is not bool for mark in marks):
            raise UserError(f"{where}: turns {first}-{number}: meta.learn must be true or false; correct it")
        elif len(set(marks)) > 1:
            raise UserError(
                f"{where}: turns {first}-{number} follow each other and are learned as one message, but only some have "
                "learn: true; mark all of them or none"
            )
        else:
            learned.append(marks[0])
    return learned


def learned_messages(record: Dialogue | Sample, how: ChatFormat, where: str) -> tuple[list[Message], list[bool]]:
    """The messages of a dialogue or sample, and for each whether it carries loss (none may: nothing is marked).

    A sample's own flags are its marks, so that "all" and "marked" mean the same for it.
    """
    if isinstance(record, Sample):
        if record.side not in (None, how.side):
            raise UserError(f"{where}: the sample was made for a {record.side}, this is to be a {how.side}")
        messages, learned = record.chat(), record.train_on()
    else:
        messages = training_messages(record, how.side, how.prompt, how.greeting, where)
        learned = [message["role"] == "assistant" for message in messages]
        if how.loss == "marked":
            marks = marked_turns(record, how.side, where)
            learned = [False] * (len(messages) - len(marks)) + marks  # system prompt and greeting stand before
    if how.loss == "last":
        last = max(index for index, learn in enumerate(learned) if learn)
        learned = [index == last for index in range(len(learned))]
    return messages, learned


def encode_record(
    how: ChatFormat, renderer: ChatRenderer, where: str, record: Dialogue | Sample
) -> tuple[list[Encoded], list[int]]:
    """The rows of one dialogue or sample and the number of messages each lost to max_length; none: nothing marked.

    `expand: turns` gives a row for each learned message, with everything before it as context that carries no loss.
    Each such row is fitted for itself: where a whole dialogue loses its oldest turns, every turn is still learned.
    """
    messages, learned = learned_messages(record, how, where)
    targets = [index for index, learn in enumerate(learned) if learn]
    if not targets:
        return [], []
    if how.expand == "dialogues":
        fitted = [fit(renderer, messages, how.max_length, where, learned)]
    else:
        fitted = [
            fit(renderer, messages[: at + 1], how.max_length, f"{where}: message {at + 1}", [False] * at + [True])
            for at in targets
        ]
    return [row for row, _ in fitted], [dropped for _, dropped in fitted]


def chat_rows(
    how: ChatFormat, renderer: ChatRenderer, located: Sequence[LocatedRow]
) -> tuple[list[Encoded], RowReport]:
    """All rows: one a dialogue, loss on the trained side's turns, or as `how.expand` and `how.loss` say.

    Raises UserError, naming file and line, for a dialogue from which nothing could be learned and for a sample of
    the other side. Dialogues without a marked turn are left out and counted; it is an error when none has one.
    """
    rows: list[Encoded] = []
    report = RowReport()
    for where, record in located:
        made, dropped = encode_record(how, renderer, where, record)
        rows += made
        if made:
            report.add(made, dropped)
            report.rendered += isinstance(record, Sample)
        else:
            report.left_out += 1
    if located and not rows:
        file = located[0][0].rpartition(":")[0]
        raise UserError(
            f"{file}: data.loss is marked, but no {how.side} turn has learn: true in its meta; "
            "mark the turns to be learned, or set data.loss: all"
        )
    return rows, report


def preview_rows(recipe: ChatRecipe, count: int) -> list[Any]:
    """The first `count` rows as Rich texts that show which tokens carry loss. Loads the tokenizer only."""
    renderer = ChatRenderer(load_tokenizer(recipe.model))
    located = read_rows(recipe.data.train, recipe.data.limit, recipe.seed, recipe.data.prompt)
    return [preview(row, renderer) for row in islice(_each_row(ChatFormat.of(recipe), renderer, located), count)]


def _each_row(how: ChatFormat, renderer: ChatRenderer, located: Sequence[LocatedRow]) -> Iterator[Encoded]:
    for where, record in located:
        yield from encode_record(how, renderer, where, record)[0]
