"""Training sets for the two sides of a dialogue: which dialogues, with which card or context, as which messages.

Values in, values out; the command line reads and writes the files. A dialogue is used as it is or refused with a
reason; what happens to the used ones (runs merged, a greeting put first) is counted.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Literal

from data_prep.chat_format import Message, merge_runs, training_messages
from data_prep.errors import UserError
from data_prep.leaks import Leak, leak_report
from data_prep.prompt import Prompt
from data_prep.records import Dialogue, RoleCard, Speaker, Turn
from data_prep.sample import Sample, draw, per_turn, whole_sample
from data_prep.sources.base import Refusal
from data_prep.sources.esconv import STRATEGIES
from data_prep.splits import split_by_group

Located = tuple[str, Dialogue]
Expansion = Literal["whole", "turns"]
Strategy = Literal["none", "prompt", "prefix"]

NO_PARTS = "train"
"""Name of the only part when nothing is split."""


@dataclass(frozen=True)
class Part:
    """One part of a training set: its dialogues, and the samples rendered from them (and from what was mixed in)."""

    name: str
    dialogues: list[Dialogue]
    samples: list[Sample]


@dataclass
class Tally:
    """What became of the dialogues: `repairs` and `missing` by kind, and each refused one with where and why."""

    repairs: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Split:
    """How to split; without fractions everything is one part."""

    fractions: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    near: float | None = 0.8
    """Similarity from which dialogues are near duplicates and stay on one side; None looks at equality only."""

    def parts(self, dialogues: Sequence[Dialogue]) -> dict[str, list[Dialogue]]:
        """Whole groups to parts, each ordered by id: the result does not depend on the order of `dialogues`."""
        if not self.fractions:
            return {NO_PARTS: sorted(dialogues, key=lambda dialogue: dialogue.id)}
        return split_by_group(dialogues, self.fractions, self.seed, near=self.near)


def leaks_between(parts: Mapping[str, Sequence[Dialogue]]) -> dict[tuple[str, str], list[Leak]]:
    """The leak report of every pair of parts."""
    names = list(parts)
    pairs = [(first, second) for at, first in enumerate(names) for second in names[at + 1 :]]
    return {pair: leak_report(parts[pair[0]], parts[pair[1]]) for pair in pairs}


def unusable(dialogue: Dialogue, side: Speaker) -> str | None:
    """Why `side` cannot be trained on a dialogue; None when it can."""
    if side not in dialogue.speakers():
        return f"no {side} turn"
    if side == "seeker" and dialogue.card is None:
        return "no role card"
    if dialogue.card is not None and dialogue.card.language != dialogue.language:
        return "the card is in another language than the dialogue"
    if not all(turn.text.strip() for turn in merge_runs(dialogue.turns)):
        return "a turn without text"
    return None


def usable(located: Sequence[Located], side: Speaker, tally: Tally) -> list[Dialogue]:
    """The dialogues `side` can be trained on; the others are refused. Raises UserError when none is left."""
    kept = []
    for where, dialogue in located:
        reason = unusable(dialogue, side)
        if reason is None:
            kept.append(dialogue)
        else:
            tally.refused.append(Refusal(where, reason, len(dialogue.turns)))
    if not kept:
        reasons = Counter(refusal.reason for refusal in tally.refused)
        told = "; ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        raise UserError(f"no dialogue can be used to train a {side} ({told or 'there is none'}); nothing was written")
    return kept


def count_formatting(dialogues: Sequence[Dialogue], side: Speaker, greeting: Prompt | None, tally: Tally) -> None:
    """Counts what rendering does to the dialogues beside putting a system prompt first."""
    for dialogue in dialogues:
        runs = sum(first.speaker == second.speaker for first, second in pairwise(dialogue.turns))
        tally.repairs["turn merged into the turn of the same speaker before it"] += runs
        opens = greeting is not None and dialogue.turns[0].speaker == side
        tally.repairs["greeting put before a dialogue that the trained side opens"] += opens


# ---- cards


def _card_keys(card: RoleCard) -> set[str]:
    named = (card.meta.get(key) for key in ("dialogue_id", "source_id"))
    return {card.id, *(value for value in named if isinstance(value, str) and value)}


def _dialogue_keys(dialogue: Dialogue) -> set[str]:
    named = (dialogue.meta.get(key) for key in ("card_id", "source_id"))
    own = {dialogue.card.id} if dialogue.card is not None else set()
    return {dialogue.id, *own, *(value for value in named if isinstance(value, str) and value)}


def join_cards(located: Sequence[Located], cards: Sequence[RoleCard], tally: Tally) -> list[Located]:
    """Dialogues with the card of a card file in place of their own; without one there they have none.

    A card belongs to a dialogue when its id, `meta["dialogue_id"]` or `meta["source_id"]` is the dialogue's id, the
    id of the card it has, `meta["card_id"]` or `meta["source_id"]`. Two different cards for one dialogue refuse it.
    """
    by_key: dict[str, list[int]] = {}
    for index, card in enumerate(cards):
        for key in _card_keys(card):
            by_key.setdefault(key, []).append(index)
    joined: list[Located] = []
    used: set[int] = set()
    for where, dialogue in located:
        found = {index for key in _dialogue_keys(dialogue) for index in by_key.get(key, [])}
        used |= found
        if len(found) > 1:
            tally.refused.append(Refusal(where, "more than one card of the card file belongs to it"))
            continue
        given = cards[found.pop()] if found else None
        joined.append((where, dialogue.model_copy(update={"card": given})))
    tally.figures["cards joined to dialogues"] = len(used)
    tally.figures["cards without a dialogue"] = len(cards) - len(used)
    return joined


# ---- general conversations


@dataclass(frozen=True)
class Mix:
    """General chat data: `ratio` conversations of `samples` for every dialogue of the first part."""

    name: str
    ratio: Decimal
    samples: Sequence[Sample]

    def drawn(self, dialogues: int, seed: int) -> list[Sample]:
        """A random draw. Raises UserError when there are too few, with how many there are."""
        wanted = int((self.ratio * dialogues).to_integral_value())
        if wanted > len(self.samples):
            raise UserError(
                f"{self.name}: a ratio of {self.ratio} to {dialogues} dialogues asks for {wanted} conversations, there "
                f"are {len(self.samples)}; lower the ratio or bring more"
            )
        if wanted == 0:
            raise UserError(f"{self.name}: a ratio of {self.ratio} to {dialogues} dialogues is no conversation at all")
        return draw(self.samples, wanted, seed)


def add_mixes(samples: list[Sample], mixes: Sequence[Mix], dialogues: int, seed: int, tally: Tally) -> list[Sample]:
    """Samples with every mix's draw after them. Raises UserError when two mixes hold the same conversation."""
    mixed = list(samples)
    taken: dict[str, str] = {}
    for mix in sorted(mixes, key=lambda mix: mix.name):
        for sample in mix.drawn(dialogues, seed):
            if sample.id in taken:
                raise UserError(f"{mix.name}: holds a conversation that {taken[sample.id]} holds too; mix one of them")
            taken[sample.id] = mix.name
            mixed.append(sample)
            tally.figures[f"general conversations mixed in from {mix.name}"] += 1
    return mixed


# ---- the two builds


def render_parts(
    parts: Mapping[str, Sequence[Dialogue]],
    render: Callable[[Dialogue], Sample],
    expansion: Expansion,
    mixes: Sequence[Mix] = (),
    seed: int = 0,
    tally: Tally | None = None,
) -> list[Part]:
    """Samples of every part; general conversations go into the first part only: the others measure."""
    rendered: list[Part] = []
    for name, dialogues in parts.items():
        samples = [render(dialogue) for dialogue in dialogues]
        if mixes and not rendered:
            samples = add_mixes(samples, mixes, len(dialogues), seed, tally or Tally())
        if expansion == "turns":
            samples = [turn for sample in samples for turn in per_turn(sample)]
        rendered.append(Part(name, list(dialogues), samples))
    return rendered


def sample_of(dialogue: Dialogue, side: Speaker, messages: Sequence[Message]) -> Sample:
    meta = {"dialogue": dialogue.id, "source": dialogue.source, "language": dialogue.language}
    return whole_sample(dialogue.id, side, messages, meta)


def build_role(
    located: Sequence[Located],
    prompt: Prompt,
    greeting: Prompt | None,
    expansion: Expansion,
    split: Split,
    cards: Sequence[RoleCard] | None = None,
    mixes: Sequence[Mix] = (),
) -> tuple[list[Part], Tally]:
    """The training set of a seeker: card as system prompt, seeker as assistant, supporter as user.

    Raises UserError when no dialogue is usable, a part would be empty, or a mix has too few conversations.
    """
    tally = Tally()
    if cards is not None:
        located = join_cards(located, cards, tally)
    kept = usable(located, "seeker", tally)
    count_formatting(kept, "seeker", greeting, tally)
    for dialogue in kept:
        card = dialogue.card
        tally.missing["no problem on the card"] += card is not None and card.problem is None and card.text is None

    def render(dialogue: Dialogue) -> Sample:
        return sample_of(dialogue, "seeker", training_messages(dialogue, "seeker", prompt, greeting, dialogue.id))

    return render_parts(split.parts(kept), render, expansion, mixes, split.seed, tally), tally


@dataclass(frozen=True)
class SupporterFormat:
    """How a supporter's samples are rendered. `context` is the template of what is added to the system prompt."""

    prompt: Prompt
    context: Prompt
    strategy: Strategy = "none"
    situation: bool = False
    persona: bool = False


PERSONA_LABELS = {"en": ("Age", "Gender", "Occupation"), "zh": ("年龄", "性别", "职业")}


def persona_of(dialogue: Dialogue) -> str:
    """Labelled lines of what the card says of the person, the problem left out; empty when it says nothing.

    The card's own fields come first, then those of its `meta["persona"]` (a mapping of texts), in its order.
    """
    card = dialogue.card
    if card is None:
        return ""
    labels = PERSONA_LABELS[card.language]
    rows = list(zip(labels, (card.age, card.gender, card.occupation), strict=True))
    more = card.meta.get("persona")
    if isinstance(more, dict):
        rows += [(str(key), value) for key, value in more.items() if isinstance(value, str)]
    colon = "：" if card.language == "zh" else ": "
    return "\n".join(f"{label}{colon}{value}" for label, value in rows if value and value.strip())


def situation_of(dialogue: Dialogue) -> str:
    """The situation of the dialogue, else the problem of its card; empty when neither is there."""
    problem = dialogue.card.problem if dialogue.card is not None else None
    return (dialogue.situation or problem or "").strip()


def with_prefix(turn: Turn) -> Turn:
    """A supporter turn that begins with its strategy in brackets, as in ESConv; others as they are."""
    if turn.speaker == "seeker" or turn.strategy is None:
        return turn
    return turn.model_copy(update={"text": f"[{turn.strategy}] {turn.text}"})


def render_supporter(dialogue: Dialogue, how: SupporterFormat) -> Sample:
    """One dialogue as a supporter's sample. Turns in a row keep each its own prefix."""
    # Prefixed after the check for empty turns: a prefix alone is no reply.
    turns = tuple(map(with_prefix, dialogue.turns)) if how.strategy == "prefix" else dialogue.turns
    told = dialogue.model_copy(update={"turns": turns})
    messages = training_messages(told, "supporter", how.prompt, None, dialogue.id)
    context = how.context.render(
        dialogue.language,
        strategies="all" if how.strategy == "prompt" else "",
        persona=persona_of(dialogue) if how.persona else "",
        situation=situation_of(dialogue) if how.situation else "",
    ).strip()
    if context:
        messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{context}"}
    return sample_of(dialogue, "supporter", messages)


def _foreign_strategy(dialogue: Dialogue) -> bool:
    return any(
        turn.speaker == "supporter" and turn.strategy is not None and turn.strategy not in STRATEGIES
        for turn in dialogue.turns
    )


def build_supporter(
    located: Sequence[Located], how: SupporterFormat, expansion: Expansion, split: Split
) -> tuple[list[Part], Tally]:
    """The training set of a supporter: supporter as assistant, seeker as user.

    With strategy prefixes a dialogue with a strategy that is none of the eight is refused; a turn without one has no
    prefix and is counted. A situation or persona that is asked for but not there is left out and counted.
    Raises UserError when no dialogue is usable or a part would be empty.
    """
    tally = Tally()
    accepted: list[Located] = []
    for where, dialogue in located:
        if how.strategy == "prefix" and _foreign_strategy(dialogue):
            tally.refused.append(Refusal(where, "a strategy that is none of the eight", len(dialogue.turns)))
        else:
            accepted.append((where, dialogue))
    kept = usable(accepted, "supporter", tally)
    count_formatting(kept, "supporter", None, tally)
    for dialogue in kept:
        if how.strategy == "prefix":
            said = [turn.strategy for turn in dialogue.turns if turn.speaker == "supporter"]
            tally.repairs["strategy put before the text of a supporter turn"] += len(said) - said.count(None)
            tally.missing["supporter turn without strategy: no prefix"] += said.count(None)
        tally.missing["no situation: left out of the prompt"] += how.situation and not situation_of(dialogue)
        tally.missing["no persona: left out of the prompt"] += how.persona and not persona_of(dialogue)
    parts = render_parts(split.parts(kept), lambda dialogue: render_supporter(dialogue, how), expansion)
    return parts, tally
