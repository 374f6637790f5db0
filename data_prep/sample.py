"""A rendered training sample: messages, each with a flag that says whether it is learned.

The `messages` layout is the one other tools read too; the flag is written on every message, so that none of them
falls back to learning all assistant messages of a history.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from data_prep.chat_format import ChatRole, Message
from data_prep.errors import UserError
from data_prep.records import Record, Speaker
from data_prep.sources.base import Conversion, Refusal, json_records

# Names of the sides in the layouts that general chat data come in.
CHAT_ROLES: dict[str, ChatRole] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}


class SampleMessage(Record):
    """One message; `train` has no default so that it is always written."""

    role: ChatRole
    content: str
    train: bool


class Sample(Record):
    """One conversation as a model sees it. `side` is who the assistant plays; None: neither (general data)."""

    id: str = Field(min_length=1)
    side: Speaker | None = None
    messages: tuple[SampleMessage, ...] = Field(min_length=1)
    meta: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _learns_something(self) -> "Sample":
        if any(message.train and message.role != "assistant" for message in self.messages):
            raise ValueError("only assistant messages can have train: true")
        if not any(message.train for message in self.messages):
            raise ValueError("no message has train: true; there is nothing to learn from it")
        if any(message.role == "system" for message in self.messages[1:]):
            raise ValueError("a system message that is not the first")
        return self

    def chat(self) -> list[Message]:
        """The messages without their flags, as a chat template takes them."""
        return [{"role": message.role, "content": message.content} for message in self.messages]

    def train_on(self) -> list[bool]:
        """The flags, one a message."""
        return [message.train for message in self.messages]


def whole_sample(identifier: str, side: Speaker | None, messages: Sequence[Message], meta: dict[str, Any]) -> Sample:
    """A conversation in one sample: every assistant message is learned."""
    flagged = [SampleMessage(**message, train=message["role"] == "assistant") for message in messages]
    return Sample(id=identifier, side=side, messages=tuple(flagged), meta=meta)


def per_turn(sample: Sample) -> list[Sample]:
    """One sample for each learned message: the history before it, and loss on it alone.

    Together they supervise what the whole conversation does, each target after the same prompt, at about three times
    the tokens.
    """
    expanded: list[Sample] = []
    for position, message in enumerate(sample.messages):
        if message.train:
            history = [earlier.model_copy(update={"train": False}) for earlier in sample.messages[:position]]
            identifier = f"{sample.id}#{len(expanded) + 1}"
            expanded.append(sample.model_copy(update={"id": identifier, "messages": (*history, message)}))
    return expanded


# ---- general conversations


def _general_messages(record: Any, repairs: Counter[str]) -> list[Message]:
    """Messages of `messages` (role, content) or `conversations` (from, value) records; `system` may stand beside."""
    if not isinstance(record, dict):
        raise UserError("is not an object")
    rows = record.get("messages", record.get("conversations"))
    if not isinstance(rows, list) or not rows:
        raise UserError("has no list under `messages` or `conversations`")
    found: list[Message] = []
    if isinstance(record.get("system"), str) and record["system"].strip():
        found.append({"role": "system", "content": record["system"]})
    for number, row in enumerate(rows, start=1):
        name = row.get("role", row.get("from")) if isinstance(row, dict) else None
        text = row.get("content", row.get("value")) if isinstance(row, dict) else None
        role = CHAT_ROLES.get(name.lower()) if isinstance(name, str) else None
        if role is None or not isinstance(text, str):
            raise UserError(f"message {number}: is no text by one of {', '.join(CHAT_ROLES)}")
        if not text.strip():
            raise UserError(f"message {number}: is empty")
        if role == "system" and found:
            raise UserError(f"message {number}: a system message that is not the first")
        if found and found[-1]["role"] == role:
            found[-1] = {"role": role, "content": f"{found[-1]['content']}\n{text}"}
            repairs["general: neighbouring messages of one side merged"] += 1
        else:
            found.append({"role": role, "content": text})
    if not any(message["role"] == "assistant" for message in found):
        raise UserError("has no assistant message")
    return found


def read_conversations(path: Path) -> tuple[list[Sample], Counter[str], list[Refusal]]:
    """General chat data, every assistant message learned: (samples, what was repaired, what was refused).

    Ids are made of the content, so that a draw depends on neither the order of the file nor its name; a conversation
    that occurs twice is taken once. Raises UserError when the file is neither a JSON array nor JSON Lines.
    """
    conversion = Conversion()
    samples: dict[str, Sample] = {}
    for where, _, record in json_records(path, conversion):
        merged: Counter[str] = Counter()
        try:
            messages = _general_messages(record, merged)
        except UserError as error:
            conversion.refuse(where, error)
            continue
        digest = hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()[:16]
        identifier = f"general-{digest}"
        if identifier in samples:
            conversion.repairs["general: conversation that occurs twice taken once"] += 1
            continue
        samples[identifier] = whole_sample(
            identifier, None, messages, {"source": path.name.encode(errors="replace").decode()}
        )
        conversion.repairs += merged
    return list(samples.values()), conversion.repairs, conversion.refused


def draw(samples: Sequence[Sample], count: int, seed: int) -> list[Sample]:
    """`count` of the samples at random by `seed`, whatever order they come in; ordered by id."""

    def key(sample: Sample) -> str:
        return hashlib.sha256(f"{seed}:{sample.id}".encode()).hexdigest()

    return sorted(sorted(samples, key=key)[:count], key=lambda sample: sample.id)
