"""A supporter's replies beside the reference replies: text metrics by every definition, and strategies."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_prep.errors import UserError
from data_prep.sources.esconv import STRATEGIES
from eval.metrics import DEFINITIONS, Pair, Sums, figures, measure, task8_overall
from eval.metrics_formulas import interval_of
from eval.metrics_vectors import Vectors
from eval.replies import ReferenceTurn, ReplyRecord, split_strategy
from eval.statistics import Interval, ratio_interval
from eval.strategies import macro_f1

Replies = Mapping[tuple[str, int], ReplyRecord]
Similarity = Callable[[str, str], float | None]


@dataclass(frozen=True)
class Extras:
    """What some metrics need and only the user has. `g_score`: 0..100, as an LLM judge gave it."""

    vectors: Vectors | None = None
    similarity: Similarity | None = None
    g_score: float | None = None


@dataclass(frozen=True)
class NamedStrategies:
    """Strategies that replies begin with, against the annotated ones; 0..1. A reply that names none is no hit."""

    turns: int
    unnamed: int
    accuracy: Interval
    macro_f1: Interval


@dataclass(frozen=True)
class LanguageFigures:
    """One language: tokens of two languages are different things, so there is no figure of both together."""

    language: str
    replies: int
    dialogues: int
    definitions: dict[str, dict[str, Interval]]
    task8: float | None
    """Overall score of NLPCC 2025 task 8, 0..100."""
    task8_lacks: list[str]


@dataclass(frozen=True)
class SupporterEvaluation:
    turns: int
    replies: int
    missing: dict[str, int]
    """Turns without a reply, by reason; they take part in no figure."""
    cut: int
    """Replies that the token budget ended."""
    left_out: dict[str, int]
    languages: list[LanguageFigures] = field(default_factory=list)
    strategies: NamedStrategies | None = None
    """None where the references have no strategies, or no reply names one."""


def pairs_of(turns: Sequence[ReferenceTurn], replies: Replies) -> list[Pair]:
    """Every reply, without the strategy in front, and its reference."""
    found = []
    for turn in turns:
        record = replies.get(turn.key)
        if record is not None and record.reply is not None:
            found.append(Pair(turn.dialogue, turn.language, split_strategy(record.reply)[1], turn.reference))
    return found


def evaluate_supporter(
    turns: Sequence[ReferenceTurn],
    replies: Replies,
    extras: Extras | None = None,
    left_out: Mapping[str, int] | None = None,
    seed: int = 0,
) -> SupporterEvaluation:
    """Raises UserError when not one turn has a reply."""
    extras = extras or Extras()
    pairs = pairs_of(turns, replies)
    records = [replies.get(turn.key) for turn in turns]
    missing = Counter(
        "not asked" if record is None else record.failure or "" for record in records if _lacks_reply(record)
    )
    if not pairs:
        told = ", ".join(f"{count} {reason}" for reason, count in missing.most_common()) or "no turn was asked"
        raise UserError(f"the supporter gave no reply at all ({told}); nothing can be measured")
    by_language: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_language.setdefault(pair.language, []).append(pair)
    return SupporterEvaluation(
        turns=len(turns),
        replies=len(pairs),
        missing=dict(missing),
        cut=sum(record is not None and record.finish == "length" for record in records),
        left_out=dict(left_out or {}),
        languages=[_language(name, group, extras, seed) for name, group in sorted(by_language.items())],
        strategies=named_strategies(turns, replies, seed),
    )


def _lacks_reply(record: ReplyRecord | None) -> bool:
    return record is None or record.reply is None


def chance(turns: Sequence[ReferenceTurn], extras: Extras | None = None, seed: int = 0) -> list[LanguageFigures]:
    """What real replies reach that were taken from other dialogues: no supporter that listens should stay below it.

    A language with a single dialogue has none.
    """
    draws = np.random.default_rng(seed)
    found = []
    for language in sorted({turn.language for turn in turns}):
        spoken = [turn for turn in turns if turn.language == language]
        order = [spoken[at] for at in draws.permutation(len(spoken))]
        pairs = []
        for at, turn in enumerate(order):
            others = (order[(at + step) % len(order)] for step in range(1, len(order)))
            other = next((one for one in others if one.dialogue != turn.dialogue), None)
            if other is not None:
                pairs.append(Pair(turn.dialogue, turn.language, other.reference, turn.reference))
        if pairs:
            found.append(_language(language, pairs, extras or Extras(), seed))
    return found


def _language(language: str, pairs: Sequence[Pair], extras: Extras, seed: int) -> LanguageFigures:
    found = {
        name: figures(measure(pairs, name, extras.vectors, extras.similarity), seed)
        for name, how in DEFINITIONS.items()
        if language in how.languages
    }
    values: dict[str, float | None] = {name: one.mean for name, one in found.get("nlpcc2025", {}).items()}
    values["g_score"] = extras.g_score
    lacks = [name for name in ("extrema", "g_score") if values.get(name) is None]
    return LanguageFigures(
        language=language,
        replies=len(pairs),
        dialogues=len({pair.dialogue for pair in pairs}),
        definitions=found,
        task8=task8_overall(values) if "nlpcc2025" in found else None,
        task8_lacks=lacks if "nlpcc2025" in found else [],
    )


def named_strategies(turns: Sequence[ReferenceTurn], replies: Replies, seed: int = 0) -> NamedStrategies | None:
    """Accuracy and macro-F1 over the strategies that occur, with intervals over dialogues."""
    names = [*STRATEGIES, None]
    tables: dict[str, Any] = {}
    for turn in turns:
        record = replies.get(turn.key)
        if turn.strategy is None or record is None or record.reply is None:
            continue
        table = tables.setdefault(turn.dialogue, np.zeros((len(names), len(names))))
        table[names.index(turn.strategy), names.index(split_strategy(record.reply)[0])] += 1
    if not tables:
        return None
    stacked = np.stack(list(tables.values()))
    total = stacked.sum(axis=0)
    unnamed = int(total[:, -1].sum())
    if unnamed == total.sum():
        return None
    occurring = total.sum(axis=1) > 0

    def f1(sums: Any) -> Any:
        return macro_f1(sums.reshape(*sums.shape[:-1], *total.shape), occurring)

    hits = np.trace(stacked, axis1=1, axis2=2)
    return NamedStrategies(
        turns=int(total.sum()),
        unnamed=unnamed,
        accuracy=ratio_interval(hits.tolist(), stacked.sum(axis=(1, 2)).tolist(), seed=seed),
        macro_f1=interval_of(stacked.reshape(len(stacked), -1), f1, seed),
    )


# ---- two supporters, and one dialogue at a time


def compare(
    turns: Sequence[ReferenceTurn], one: Replies, other: Replies, extras: Extras | None = None, seed: int = 0
) -> dict[str, dict[str, Interval]]:
    """By language, metrics (definition `esckit`) of `one` less those of `other`, on the turns that both replied to.

    Paired: both see the same resamples of dialogues. Distinct-n is left out: of its difference there is no interval.
    """
    extras = extras or Extras()
    both = [turn for turn in turns if all(not _lacks_reply(replies.get(turn.key)) for replies in (one, other))]
    found: dict[str, dict[str, Interval]] = {}
    for language in sorted({turn.language for turn in both}):
        spoken = [turn for turn in both if turn.language == language]
        a, b = (
            measure(pairs_of(spoken, replies), "esckit", extras.vectors, extras.similarity) for replies in (one, other)
        )
        found[language] = {
            name: _difference(a[name], b[name], seed)
            for name in a
            if a[name].values is not None and name != "reference_length"
        }
    return found


def _difference(one: Sums, other: Sums, seed: int) -> Interval:
    formula = one.formula
    assert one.values is not None
    assert other.values is not None
    assert formula is not None
    width = one.values.shape[1]
    return interval_of(
        np.concatenate([one.values, other.values], axis=1),
        lambda sums: formula(sums[..., :width]) - formula(sums[..., width:]),
        seed,
    )


def by_dialogue(
    turns: Sequence[ReferenceTurn], replies: Replies, extras: Extras | None = None
) -> dict[str, dict[str, float | None]]:
    """dialogue id -> metric (definition `esckit`) -> its value on that dialogue's replies alone."""
    extras = extras or Extras()
    pairs = pairs_of(turns, replies)
    measured = measure(pairs, "esckit", extras.vectors, extras.similarity)
    columns = {name: sums.by_dialogue() for name, sums in measured.items()}
    names = list(dict.fromkeys(pair.dialogue for pair in pairs))
    return {name: {metric: column[at] for metric, column in columns.items()} for at, name in enumerate(names)}
