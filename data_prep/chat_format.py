"""From a role card and a dialogue to the messages a chat template renders.

Seeker training has the seeker as `assistant`; supporter training has it the other way round.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

from data_prep.errors import UserError
from data_prep.prompt import Prompt
from data_prep.records import Dialogue, RoleCard, Speaker, Turn

ChatRole = Literal["system", "user", "assistant"]


class Message(TypedDict):
    role: ChatRole
    content: str


def merge_runs(turns: Sequence[Turn]) -> list[Turn]:
    """Joins neighbouring turns of one speaker with a newline: chat templates want the two sides to alternate.

    The merged turn keeps the first strategy and counts what it holds in meta["merged"].
    """
    merged: list[Turn] = []
    for turn in turns:
        if merged and merged[-1].speaker == turn.speaker:
            last = merged[-1]
            count = last.meta.get("merged")  # a turn read from a file may hold anything here
            merged[-1] = last.model_copy(
                update={
                    "text": f"{last.text}\n{turn.text}",
                    "meta": {**last.meta, "merged": count + 1 if type(count) is int else 2},
                }
            )
        else:
            merged.append(turn)
    return merged


def seeker_system(card: RoleCard, prompt: Prompt) -> str:
    """The seeker's system prompt: the card filled into the template of the card's language."""
    return prompt.render(card.language, card=card.as_text())


def chat_messages(
    turns: Sequence[Turn], assistant: Speaker, system: str | None = None, greeting: str | None = None
) -> list[Message]:
    """Messages with `assistant` as the model's side; neighbouring turns of one speaker are merged.

    `greeting`, when given, is put before the first turn as the other side's opening line if the assistant's own
    turn comes first, as it happens in a simulation.
    """
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    merged = merge_runs(turns)
    if greeting is not None and merged and merged[0].speaker == assistant:
        messages.append({"role": "user", "content": greeting})
    for turn in merged:
        role: ChatRole = "assistant" if turn.speaker == assistant else "user"
        messages.append({"role": role, "content": turn.text})
    return messages


def training_messages(
    dialogue: Dialogue, side: Speaker, prompt: Prompt, greeting: Prompt | None, where: str
) -> list[Message]:
    """Messages for training `side` on one dialogue; `where` (file:line) is named in errors.

    The seeker's system prompt holds the role card, so a dialogue without one is refused; the supporter's does not.
    The greeting is a supporter's line, so it is put before a seeker who opens, never before a supporter.
    Raises UserError when the dialogue has no turn of `side` or, for the seeker, no card.
    """
    if side not in dialogue.speakers():
        raise UserError(f"{where}: dialogue {dialogue.id!r} has no {side} turn; there is nothing to learn from it")
    if side == "seeker":
        if dialogue.card is None:
            raise UserError(f"{where}: dialogue {dialogue.id!r} has no role card; seeker training needs one")
        system = seeker_system(dialogue.card, prompt)
    else:
        system = prompt.render(dialogue.language)
    opening = greeting.render(dialogue.language) if greeting and side == "seeker" else None
    return chat_messages(dialogue.turns, side, system=system, greeting=opening)
