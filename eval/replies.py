"""A supporter's replies to reference dialogues, turn by turn: at every supporter turn the model is shown the real
history and asked what it would say. What it said before is never part of the history.

    real:     seeker 1   supporter 1   seeker 2   supporter 2
    asked:             ^ reply 1                ^ reply 2

Dialogues go through their turns in step, a batch at a time, and what was read of a history is kept for the next turn.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from data_prep.chat_format import Message, merge_runs
from data_prep.records import Dialogue, Language, Record, Speaker
from data_prep.sample import Sample
from data_prep.sources.esconv import STRATEGIES
from eval.chat_models.base import ChatModel, Reply, Request, Sampling, answers_one_by_one
from eval.simulate import derive_seed
from train.rows import ChatFormat, LocatedRow, learned_messages

RETRIED = ("error", "timeout")
"""Failures that another try may cure: the same command asks again."""


@dataclass(frozen=True)
class ReferenceTurn:
    """A supporter turn of a real dialogue. `turn` counts the dialogue's turns of that side from 1."""

    dialogue: str
    side: Speaker
    turn: int
    language: Language
    history: list[Message]
    reference: str
    """What the person said, without a strategy in front."""
    strategy: str | None

    @property
    def key(self) -> tuple[str, int]:
        return self.dialogue, self.turn


class ReplyRecord(Record):
    """One line of replies.jsonl. Either `reply`, or `failure` says why there is none."""

    dialogue: str = Field(min_length=1)
    turn: int = Field(ge=1)
    reply: str | None
    """As the model wrote it, a strategy in front included."""
    finish: Literal["stop", "length"] | None = None
    failure: str | None = None
    detail: str | None = None
    thinking: str | None = None
    prompt_tokens: int = Field(default=0, ge=0)
    new_tokens: int = Field(default=0, ge=0)

    @property
    def key(self) -> tuple[str, int]:
        return self.dialogue, self.turn


@dataclass
class ReferenceTurns:
    """The turns of every dialogue that has any, and why others were left out."""

    dialogues: list[list[ReferenceTurn]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def all(self) -> list[ReferenceTurn]:
        return [turn for turns in self.dialogues for turn in turns]


def split_strategy(text: str) -> tuple[str | None, str]:
    """(strategy, rest) of a text that begins with one of ESConv's eight in brackets; (None, text) of any other."""
    for name in STRATEGIES:
        if text.startswith(f"[{name}]"):
            return name, text[len(name) + 2 :].strip()
    return None, text


def reference_turns(located: Sequence[LocatedRow], how: ChatFormat) -> ReferenceTurns:
    """Every turn of `how.side` that answers something. Raises UserError like `learned_messages`."""
    found = ReferenceTurns()
    for where, record in located:
        messages, learned = learned_messages(record, how, where)
        named = _strategies(record, how)
        turns: list[ReferenceTurn] = []
        number = 0
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            number += 1
            strategy, text = split_strategy(message["content"])
            if not learned[at]:
                found.left_out["turns that carry no loss in the file"] += 1
            elif messages[at - 1]["role"] != "user":
                found.left_out["turns that open a dialogue: nothing to reply to"] += 1
            elif not text.strip():
                found.left_out["turns that are empty: no reference"] += 1
            else:
                strategy = strategy or (named[number - 1] if named else None)
                language = record.language if isinstance(record, Dialogue) else _language(record)
                turns.append(ReferenceTurn(record.id, how.side, number, language, messages[:at], text, strategy))
        if turns:
            found.dialogues.append(turns)
        else:
            found.left_out["dialogues without a turn that is left"] += 1
    return found


def _strategies(record: Dialogue | Sample, how: ChatFormat) -> list[str | None] | None:
    """The annotated strategy of every merged turn of the side; a sample has none."""
    if isinstance(record, Sample):
        return None
    named = [turn.strategy for turn in merge_runs(record.turns) if turn.speaker == how.side]
    return [name if name in STRATEGIES else None for name in named]


def _language(sample: Sample) -> Language:
    """A sample says no language: Chinese where it has more Chinese characters than Latin letters."""
    text = "".join(message.content for message in sample.messages)
    chinese = sum("一" <= character <= "鿿" for character in text)
    return "zh" if chinese > sum(character.isascii() and character.isalpha() for character in text) else "en"


def answer(
    dialogues: Sequence[Sequence[ReferenceTurn]],
    model: ChatModel,
    sampling: Sampling,
    seed: int = 0,
    batch_size: int = 8,
    done: Collection[tuple[str, int]] = frozenset(),
    on_turns: Callable[[int], None] | None = None,
) -> Iterator[list[ReplyRecord]]:
    """Yields the replies of one turn after another of a batch of dialogues, then of the next batch; none in `done`.

    The batches depend on nothing that is done already, so a resumed run lays rows side by side as the first one did.
    A model on a server has as many dialogues side by side as it takes requests.
    """
    report = on_turns or (lambda count: None)
    ordered = sorted(dialogues, key=lambda turns: (-_length(turns), turns[0].dialogue))
    size = max(batch_size, model.concurrency) if answers_one_by_one(model) else batch_size
    for start in range(0, len(ordered), size):
        batch = ordered[start : start + size]
        for at in range(max(map(len, batch))):
            step = [turns[at] for turns in batch if at < len(turns)]
            asked = [turn for turn in step if turn.key not in done]
            if asked:
                replies = model.reply([_request(turn, seed) for turn in asked], sampling)
                yield [_record(turn, reply) for turn, reply in zip(asked, replies, strict=True)]
            report(len(step))
        model.forget()


def _length(turns: Sequence[ReferenceTurn]) -> int:
    return sum(len(message["content"]) for message in turns[-1].history)


def _request(turn: ReferenceTurn, seed: int) -> Request:
    """A dialogue is one conversation, named as in a simulation, so that a file can be replayed."""
    name = f"{turn.dialogue}/{turn.side}"
    return Request(name, turn.history, derive_seed(seed, turn.dialogue, turn.turn, "reply"))


def _record(turn: ReferenceTurn, reply: Reply) -> ReplyRecord:
    failure, detail = reply.failure, reply.detail
    if failure is None and not reply.text:
        failure = "empty"
        detail = "the token budget ran out before the reply" if reply.finish == "length" else None
    return ReplyRecord(
        dialogue=turn.dialogue,
        turn=turn.turn,
        reply=None if failure else reply.text,
        finish=None if failure else reply.finish,
        failure=failure,
        detail=detail,
        thinking=reply.thinking,
        prompt_tokens=reply.prompt_tokens,
        new_tokens=reply.new_tokens,
    )
