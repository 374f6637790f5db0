"""Simulated interactions: role cards and two chat models in, transcripts out. Touches no file.

    greeting   fixed
    round 1    seeker, supporter
    ...
    round n    seeker, supporter

A whole batch of dialogues goes through the turns in step. A (run seed, card, sample) fully determines its dialogue.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from data_prep.chat_format import Message, chat_messages, seeker_system
from data_prep.errors import UserError
from data_prep.prompt import Prompt, load_prompt
from data_prep.records import Record, RoleCard, Speaker, Turn
from eval.chat_models.base import ChatModel, Reply, Request, Sampling
from eval.end_rules import natural_end, rules_sha
from eval.run_records import WHOLE, EndReason, Transcript, TranscriptTurn, in_shard


class SimulationSettings(Record):
    """Everything of a simulation that changes a transcript, apart from the cards and the models."""

    protocol: Literal["recommended", "official"] = "recommended"
    """The name of what the fields below amount to (`protocols.py`)."""
    rounds: int = Field(default=5, ge=1)
    """The most exchanges of a dialogue."""
    end: Literal["rounds", "natural"] = "rounds"
    """`natural`: also after an exchange in which the seeker took leave, or both sides only repeated themselves."""
    samples: int = Field(default=1, ge=1)
    """Dialogues per card."""
    seed: int = 0
    batch_size: int = Field(default=8, ge=1)
    """Changes results by float rounding only, but rounding can tip a token: it is a setting too."""
    seeker_sampling: Sampling = Sampling()
    supporter_sampling: Sampling = Sampling()
    greeting: str | Prompt = "greeting"
    """Prompt name, .yaml path, or a prompt itself; as are the next two."""
    seeker_prompt: str | Prompt = "seeker"
    supporter_prompt: str | Prompt = "supporter"
    greeting_shown_to_supporter: bool = True
    """Whether the supporter model sees the greeting as its own first words. The published ESC-Eval code: no."""
    shard: str = WHOLE
    """i/n: only the dialogues whose key hashes to this part. Changes which are made, never a word of one."""

    def prompt(self, name: Literal["greeting", "seeker_prompt", "supporter_prompt"]) -> Prompt:
        """One of the three. Raises UserError where its name stands for none."""
        value = getattr(self, name)
        return value if isinstance(value, Prompt) else load_prompt(value)

    def describe(self) -> dict[str, Any]:
        """For the manifest: each prompt with its version and hash, and the end rules with theirs."""
        prompts: dict[str, Any] = {name: self.prompt(name).reference() for name in _PROMPTS}
        rules: dict[str, Any] = {"end_rules": rules_sha()} if self.end == "natural" else {}
        return {**self.model_dump(mode="json", exclude={"shard", *_PROMPTS}), **prompts, **rules}


_PROMPTS: tuple[Literal["greeting", "seeker_prompt", "supporter_prompt"], ...] = (
    "greeting",
    "seeker_prompt",
    "supporter_prompt",
)


@dataclass
class LiveDialogue:
    """A dialogue that is going on."""

    card: RoleCard
    sample: int
    turns: list[TranscriptTurn] = field(default_factory=list)
    end: EndReason | None = None
    detail: str | None = None

    @property
    def key(self) -> str:
        return dialogue_key(self.card, self.sample)


def dialogue_key(card: RoleCard, sample: int) -> str:
    """What names a dialogue in its run."""
    return f"{card.id}#{sample}"


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from (run seed, card id, sample[, turn, role]): the same on every machine, unlike hash()."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def plan_batches(
    cards: Sequence[RoleCard], samples: int, batch_size: int, shard: str = WHOLE
) -> list[list[tuple[RoleCard, int]]]:
    """All (card, sample) pairs of a shard in batches of cards of like length (less padding).

    Depends on nothing that is already done, so that a resumed run lays its rows side by side as the first one did.
    Raises UserError when two cards have the same id.
    """
    ids = [card.id for card in cards]
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise UserError(f"card id {twice!r} occurs twice; ids must differ, they name the dialogues")
    by_length = sorted(cards, key=lambda card: (len(card.as_text()), card.id))
    pairs = [(card, sample) for card in by_length for sample in range(samples)]
    pairs = [pair for pair in pairs if in_shard(dialogue_key(*pair), shard)]
    return [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]


def simulate(
    cards: Sequence[RoleCard],
    seeker: ChatModel,
    supporter: ChatModel,
    settings: SimulationSettings,
    done: Collection[str] = frozenset(),
    seeker_name: str | None = None,
    supporter_name: str | None = None,
    on_turns: Callable[[int], None] | None = None,
) -> Iterator[list[Transcript]]:
    """Yields the transcripts of one finished batch after another, leaving out the keys in `done`.

    The names are labels for reports (default: the models' own). `on_turns` is told how many of the
    2 · rounds · dialogues utterances are settled since it was last told.
    """
    for pairs in plan_batches(cards, settings.samples, settings.batch_size, settings.shard):
        batch = [LiveDialogue(card, sample) for card, sample in pairs if dialogue_key(card, sample) not in done]
        if not batch:
            continue
        _run_batch(batch, seeker, supporter, settings, on_turns or (lambda _: None))
        names = (seeker_name or seeker.name, supporter_name or supporter.name)
        yield [finished(dialogue, names, settings) for dialogue in batch]


def finished(dialogue: LiveDialogue, names: tuple[str, str], settings: SimulationSettings) -> Transcript:
    """The record of a dialogue that has ended; `names` label seeker and supporter."""
    return Transcript(
        key=dialogue.key,
        card=dialogue.card,
        sample=dialogue.sample,
        supporter=names[1],
        seeker=names[0],
        turns=tuple(dialogue.turns),
        end_reason=dialogue.end or EndReason.rounds,
        detail=dialogue.detail,
        seed=derive_seed(settings.seed, dialogue.card.id, dialogue.sample),
    )


def _run_batch(
    batch: list[LiveDialogue],
    seeker: ChatModel,
    supporter: ChatModel,
    settings: SimulationSettings,
    on_turns: Callable[[int], None],
) -> None:
    for dialogue in batch:
        greet(dialogue, settings)
    left = 2 * settings.rounds
    for _ in range(settings.rounds):
        for side, model in (("seeker", seeker), ("supporter", supporter)):
            live = [dialogue for dialogue in batch if dialogue.end is None]
            if live:
                _speak(live, side, model, settings)  # type: ignore[arg-type]
            ended = sum(dialogue.end is not None for dialogue in live)
            # One utterance of each, and all that those which have just ended will never say.
            on_turns(len(live) + ended * (left - 1))
            left -= 1
    seeker.forget()
    supporter.forget()


def greet(dialogue: LiveDialogue, settings: SimulationSettings) -> None:
    """Begins a dialogue with the supporter's fixed words."""
    words = settings.prompt("greeting").render(dialogue.card.language)
    dialogue.turns = [TranscriptTurn(speaker="supporter", text=words)]


def _speak(live: Sequence[LiveDialogue], side: Speaker, model: ChatModel, settings: SimulationSettings) -> None:
    """Adds the next utterance of `side` to every dialogue, or ends it."""
    requests = [request_for(dialogue, side, settings) for dialogue in live]
    for dialogue, reply in zip(live, model.reply(requests, sampling_of(side, settings)), strict=True):
        take(dialogue, side, reply, settings)


def sampling_of(side: Speaker, settings: SimulationSettings) -> Sampling:
    return settings.seeker_sampling if side == "seeker" else settings.supporter_sampling


def request_for(dialogue: LiveDialogue, side: Speaker, settings: SimulationSettings) -> Request:
    """What the model of `side` is asked next. Depends on the dialogue alone, whichever engine runs it."""
    return Request(
        conversation=f"{dialogue.key}/{side}",
        messages=model_messages(dialogue.card, dialogue.turns, side, settings),
        seed=derive_seed(settings.seed, dialogue.card.id, dialogue.sample, len(dialogue.turns), side),
    )


def take(dialogue: LiveDialogue, side: Speaker, reply: Reply, settings: SimulationSettings) -> None:
    """Puts a reply into its dialogue, and ends the dialogue where it holds no words or where an end rule says so."""
    dialogue.end, dialogue.detail = _fault(reply, side)
    if dialogue.end is None:
        dialogue.turns.append(
            TranscriptTurn(
                speaker=side,
                text=reply.text,
                thinking=reply.thinking,
                finish=reply.finish,
                new_tokens=reply.new_tokens,
                prompt_tokens=reply.prompt_tokens,
                seconds=round(reply.seconds, 3),
            )
        )
        if settings.end == "natural":
            dialogue.end = natural_end(dialogue.turns)


def _fault(reply: Reply, side: Speaker) -> tuple[EndReason | None, str | None]:
    """Why a dialogue cannot go on after this reply, or (None, None)."""
    if reply.failure is not None:
        return EndReason(f"{side}_{reply.failure}"), reply.detail
    if not reply.text:
        detail = "the token budget ran out before the reply" if reply.finish == "length" else None
        return EndReason(f"{side}_empty"), detail
    return None, None


def model_messages(
    card: RoleCard, turns: Sequence[TranscriptTurn], side: Speaker, settings: SimulationSettings
) -> list[Message]:
    """What the model of `side` is shown: itself as assistant, the other as user, its system prompt first."""
    if side == "seeker":
        system = seeker_system(card, settings.prompt("seeker_prompt"))
    else:
        system = settings.prompt("supporter_prompt").render(card.language)
        turns = turns if settings.greeting_shown_to_supporter else turns[1:]
    return chat_messages([Turn(speaker=turn.speaker, text=turn.text) for turn in turns], side, system=system)
