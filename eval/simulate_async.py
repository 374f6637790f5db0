"""The engine for models that answer one request at a time: every dialogue goes its own way, many of them at once.

Who is shown what, which seed decides a turn and how a dialogue ends are those of the lock-step engine (simulate.py),
so the same replies give the same records; only their order in the run folder differs. A slow dialogue holds up
nobody: with a lock-step batch all would wait for the slowest reply of every turn.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence

from data_prep.records import RoleCard, Speaker
from eval.chat_models.base import AsyncChatModel, refuse_if_down
from eval.runs import Transcript
from eval.simulate import (
    LiveDialogue,
    SimulationSettings,
    dialogue_key,
    finished,
    greet,
    plan_batches,
    request_for,
    sampling_of,
    take,
)

IDLE_CONCURRENCY = 8  # where neither side waits for anything


def simulate_one_by_one(
    cards: Sequence[RoleCard],
    seeker: AsyncChatModel,
    supporter: AsyncChatModel,
    settings: SimulationSettings,
    on_finished: Callable[[Transcript], None],
    done: Collection[str] = frozenset(),
    seeker_name: str | None = None,
    supporter_name: str | None = None,
    on_turns: Callable[[int], None] | None = None,
) -> None:
    """Runs all dialogues but those in `done` and gives each to `on_finished` the moment it ends.

    The other arguments are those of `simulate`. Memory is bounded by the dialogues under way, not by the cards.
    Raises UserError for a card id that occurs twice, and when a server has gone for good: what was under way then
    ends in a recorded error, and nothing new is begun. What `on_finished` raises stops the run.
    """
    names = (seeker_name or seeker.name, supporter_name or supporter.name)
    # Each dialogue is with one model at a time: to keep both busy takes as many as both can answer together.
    at_once = seeker.concurrency + (supporter.concurrency if supporter is not seeker else 0) or IDLE_CONCURRENCY
    waiting = _waiting(cards, settings, done)

    async def go() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(worker())
        finally:
            for model in (seeker, supporter):
                await model.close()

    async def worker() -> None:
        for card, sample in waiting:
            dialogue = LiveDialogue(card, sample)
            await _hold(dialogue, seeker, supporter, settings, on_turns or (lambda _: None))
            on_finished(finished(dialogue, names, settings))
            if seeker.down or supporter.down:
                return

    try:
        asyncio.run(go())
    except* Exception as group:
        # The first is the cause, whatever the others met while they were stopped.
        raise group.exceptions[0] from None
    refuse_if_down([seeker, supporter])


def _waiting(
    cards: Sequence[RoleCard], settings: SimulationSettings, done: Collection[str]
) -> Iterator[tuple[RoleCard, int]]:
    """What is left to do. Longest cards first, so that no long dialogue is left running alone at the end."""
    batches = plan_batches(cards, settings.samples, 1, settings.shard)
    return (pair for [pair] in reversed(batches) if dialogue_key(*pair) not in done)


async def _hold(
    dialogue: LiveDialogue,
    seeker: AsyncChatModel,
    supporter: AsyncChatModel,
    settings: SimulationSettings,
    on_turns: Callable[[int], None],
) -> None:
    greet(dialogue, settings)
    sides: tuple[tuple[Speaker, AsyncChatModel], ...] = (("seeker", seeker), ("supporter", supporter))
    left = 2 * settings.rounds
    for _ in range(settings.rounds):
        for side, model in sides:
            reply = await model.reply_one(request_for(dialogue, side, settings), sampling_of(side, settings))
            take(dialogue, side, reply, settings)
            if dialogue.end is not None:
                on_turns(left)
                return
            on_turns(1)
            left -= 1
