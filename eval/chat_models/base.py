"""What a chat model is to a simulation: a batch of conversations in, one reply each out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard

from pydantic import Field, field_validator

from data_prep.chat_format import Message
from data_prep.errors import UserError
from data_prep.records import Record


class Sampling(Record):
    """How the next token is chosen."""

    max_new_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=0.7, ge=0, allow_inf_nan=False)
    """0: always the most probable token (greedy)."""
    top_p: float = Field(default=0.9, gt=0, le=1)
    """Only the most probable tokens that together reach this share are drawn from; 1: all."""
    stop: tuple[str, ...] = ()
    """A reply ends before the first of these."""

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("a stop string must not be empty")
        return value


@dataclass(frozen=True)
class Request:
    """One conversation that waits for the model's next words.

    `conversation` names it, the same name on every turn, so that a model can keep what it has read. `seed` decides
    the draw: the same request to the same model gives the same reply whatever else is in the batch.
    """

    conversation: str
    messages: Sequence[Message]
    seed: int


@dataclass(frozen=True)
class Reply:
    """What the model said, or why it could not: exactly one of `finish` and `failure` is set."""

    text: str
    """Stripped of white space at both ends; empty with a failure."""
    finish: Literal["stop", "length"] | None = None
    failure: Literal["context_full", "error", "timeout", "empty"] | None = None
    detail: str | None = None
    """What the failure was, in one line, without any text of the conversation."""
    thinking: str | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    """Wall time of the batch this reply was generated in."""


@dataclass
class Stats:
    """Token counts since the model was loaded."""

    prompt_read: int = 0
    """Prompt tokens that went through the model."""
    prompt_reused: int = 0
    """Prompt tokens whose computation was kept from an earlier turn."""
    generated: int = 0
    reread: int = 0
    """Turns at which what was kept was no beginning of the new prompt, so that a part of it was read again."""
    halved: int = 0
    """Times a batch was halved because memory did not hold it."""


class ChatModel(Protocol):
    """A model that talks. Implementations keep nothing but what `forget` drops."""

    name: str
    context_length: int
    """Most tokens of prompt and reply together."""
    stats: Stats

    def describe(self) -> dict[str, Any]:
        """Everything that decides this model's replies (weights, template, dtype), as JSON, for the manifest."""

    def reply(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """One reply per request, in order. A request that cannot be answered gets a failure, not an exception."""

    def forget(self) -> None:
        """Drops what is kept of conversations; they can still go on, at the cost of reading them again."""


class AsyncChatModel(ChatModel, Protocol):
    """A model that answers one request at a time while others are on their way; it needs no batch."""

    concurrency: int
    """Most requests that are worth having on their way at once; 0 where an answer takes no time."""

    @property
    def down(self) -> str | None:
        """Why no further request has any hope (nobody there, key refused), or None."""

    async def reply_one(self, request: Request, sampling: Sampling) -> Reply:
        """The reply to one request. A request that cannot be answered gets a failure, not an exception."""

    async def close(self) -> None:
        """Hangs up; a later request connects anew."""


def answers_one_by_one(model: ChatModel) -> TypeGuard[AsyncChatModel]:
    """Whether a model can be used by the engine for endpoints."""
    return hasattr(model, "reply_one")


def refuse_if_down(models: Sequence[ChatModel]) -> None:
    """Raises UserError when a model has no hope of answering any more."""
    for model in models:
        if reason := getattr(model, "down", None):
            raise UserError(
                f"model {model.name}: {reason} Finished dialogues are kept; the same command goes on with the rest"
            )


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stop strings, stripped; all of it where there is none."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return text[: min(places)].strip() if places else text


def notes_of(models: Sequence[ChatModel]) -> list[str]:
    """What a user should know of how their chat templates are used, each line once; only local models have one."""
    return list(dict.fromkeys(note for model in models for note in getattr(model, "notes", ())))


def split_thinking(text: str) -> tuple[str, str | None]:
    """The reply, and what a reasoning model wrote before it between <think> and </think> (None when nothing).

    A budget that ran out inside the thinking leaves an empty reply.
    """
    before, closed, after = text.rpartition("</think>")
    if closed:
        return after.strip(), before.replace("<think>", "", 1).strip() or None
    if text.lstrip().startswith("<think>"):
        return "", text.replace("<think>", "", 1).strip() or None
    return text.strip(), None
