"""What a run folder holds: transcripts, judgments, and the plan of which dialogues belong into it."""

import hashlib
import re
from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from data_prep.errors import UserError
from data_prep.records import Dialogue, Record, RoleCard, Speaker, Turn

WHOLE = "1/1"


def parse_shard(text: str) -> tuple[int, int]:
    """(i, n) of "i/n", i from 1 to n. Raises UserError for anything else."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if not found or int(found[1]) > int(found[2]):
        raise UserError(f"--shard is {text!r}; write i/n with i from 1 to n, as in 1/4, 2/4, 3/4 and 4/4")
    return int(found[1]), int(found[2])


def in_shard(key: str, shard: str) -> bool:
    """Whether the dialogue of this key belongs to shard i/n: by a hash of the key, the same on every machine."""
    part, parts = parse_shard(shard)
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % parts == part - 1


class EndReason(StrEnum):
    """Why a dialogue ended. A fault (`is_fault`) is that of the side it names, never the other's."""

    rounds = "rounds"
    """It went through all its rounds."""
    seeker_goodbye = "seeker_goodbye"
    """The seeker took leave and the supporter answered; only where the settings let dialogues end by themselves."""
    loop = "loop"
    """Both sides said again what they had said before; likewise."""
    imported = "imported"
    """Made elsewhere: the file does not say why it ended."""
    seeker_empty = "seeker_empty"
    supporter_empty = "supporter_empty"
    seeker_context_full = "seeker_context_full"
    supporter_context_full = "supporter_context_full"
    seeker_error = "seeker_error"
    supporter_error = "supporter_error"
    seeker_timeout = "seeker_timeout"
    supporter_timeout = "supporter_timeout"

    @property
    def is_fault(self) -> bool:
        """Whether a side failed; a dialogue that ended otherwise is whole and may be scored."""
        return self not in (EndReason.rounds, EndReason.seeker_goodbye, EndReason.loop, EndReason.imported)


class TranscriptTurn(Record):
    """One utterance of a simulation and what it cost. The fixed greeting costs nothing and has finish None."""

    speaker: Speaker
    text: str
    thinking: str | None = None
    """What a reasoning model wrote before its reply; kept apart, no model or scorer ever sees it."""
    finish: Literal["stop", "length"] | None = None
    new_tokens: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    """Wall time of the batch this turn was generated in; the one field that differs between equal runs."""


class Transcript(Record):
    """A simulated dialogue with its provenance. `turns` begin with the supporter's greeting."""

    key: str = Field(min_length=1)
    """`card.id#sample`: unique in a run."""
    card: RoleCard
    sample: int = Field(ge=0)
    supporter: str = Field(min_length=1)
    """The supporter's label in reports; the manifest says which model it is."""
    seeker: str = Field(min_length=1)
    turns: tuple[TranscriptTurn, ...] = Field(min_length=1)
    end_reason: EndReason
    detail: str | None = None
    """What an *_error end reason was, in one line."""
    seed: int | None
    """What its draws follow from; None where the dialogue was made elsewhere."""

    def to_dialogue(self) -> Dialogue:
        """The words alone, as scorers, audits and rating sheets read them."""
        return Dialogue(
            id=self.key,
            language=self.card.language,
            source="simulation",
            turns=tuple(Turn(speaker=turn.speaker, text=turn.text) for turn in self.turns),
            card=self.card,
            meta={
                "supporter": self.supporter,
                "seeker": self.seeker,
                "sample": self.sample,
                "end_reason": self.end_reason.value,
            },
        )


class Judgment(Record):
    """What one scorer said of one dialogue on one dimension. Missing is None with a `reason`, never a number."""

    dialogue_key: str = Field(min_length=1)
    scorer: str = Field(min_length=1)
    rubric: str = Field(min_length=1)
    dimension: str = Field(min_length=1)
    probabilities: tuple[float, ...] | None = None
    """Over the levels of the dimension, lowest first; None for a scorer that only names a level."""
    expected: float | None = None
    """Mean of the distribution, in levels; the level itself where there is no distribution."""
    level: int | None = None
    """The single level the scorer would say."""
    label_mass: float | None = Field(default=None, ge=0, le=1.001)
    """Generative scorers: share of the probability that fell on any level at all."""
    raw: str | None = None
    """The scorer's reply where it was text."""
    reason: str | None = None
    """Why there is no value."""

    @model_validator(mode="after")
    def _value_or_reason(self) -> "Judgment":
        values = (self.probabilities, self.expected, self.level)
        if self.reason is None and self.expected is None:
            raise ValueError("a judgment has an expected level, or a reason why it has none")
        if self.reason is not None and any(value is not None for value in values):
            raise ValueError("a judgment with a reason for missing has no value")
        if self.expected is not None and not abs(self.expected) < float("inf"):
            raise ValueError("expected must be a finite number")
        if self.probabilities is not None and not (
            all(0 <= p <= 1.001 for p in self.probabilities) and abs(sum(self.probabilities) - 1) <= 1e-3
        ):  # written so that NaN fails
            raise ValueError("probabilities must lie in 0..1 and sum to 1")
        return self

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.dialogue_key, self.scorer, self.rubric, self.dimension)


class Plan(Record):
    """Which dialogues a run folder is to hold: samples 0 to `samples` - 1 of every card, or a shard of these."""

    cards: tuple[str, ...]
    """Ids, in the order of the card file."""
    samples: int = Field(ge=1)
    shard: str = WHOLE

    def dialogue_keys(self) -> list[str]:
        """The keys of its dialogues, by card and sample."""
        keys = (f"{card}#{sample}" for card in self.cards for sample in range(self.samples))
        return [key for key in keys if in_shard(key, self.shard)]
