"""Text metrics of a supporter's replies beside the reference replies, by three named definitions.

- `esckit`: ours, for English and Chinese: one way of cutting tokens, the usual formulas.
- `esconv`: as the metric script of the ESConv repository (codes_zcj/metric) computes. Its Distinct-n leaves out the
  last n-gram of every reply, which is kept here. For Chinese the script cuts by the model's own tokenizer; here these
  are characters.
- `nlpcc2025`: as the script of NLPCC 2025 shared task 8 computes, English only. Its METEOR looks synonyms up in
  WordNet, which is not at hand here: the stages are exact words and stems, and the value is somewhat lower.

Figures are 0..100. A reply that is missing takes part in none. Intervals are over dialogues.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from data_prep.errors import UserError
from data_prep.records import Language
from eval.metrics_formulas import (
    Floats,
    bleu,
    bleu_sums,
    distinct,
    distinct_interval,
    interval_of,
    mean_formula,
    meteor,
    ngrams,
    rouge_l,
)
from eval.metrics_tokens import Tokenizer, characters, plain_tokens, rouge_words, whitespace, whitespace_lower, words
from eval.metrics_vectors import Extreme, Vectors, extrema
from eval.statistics import Interval

METRICS = {
    "bleu2": "BLEU-2",
    "bleu4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR (exact, stem)",
    "distinct1": "Distinct-1",
    "distinct2": "Distinct-2",
    "distinct3": "Distinct-3",
    "extrema": "Vector Extrema",
    "bertscore": "F1 of token vectors",
    "length": "tokens a reply",
    "reference_length": "tokens a reference",
}
NOT_PERCENT = ("length", "reference_length")


@dataclass(frozen=True)
class Pair:
    """One reply and what the person said at that place."""

    dialogue: str
    language: Language
    reply: str
    reference: str


@dataclass(frozen=True)
class Definition:
    """How the metrics are computed. A metric that is not in `metrics` does not exist by this definition."""

    name: str
    metrics: tuple[str, ...]
    languages: tuple[Language, ...]
    tokens: Callable[[Language], Tokenizer]
    bleu: Literal["corpus", "mean of replies"]
    rouge_beta: float
    rouge_tokens: Tokenizer | None = None
    """Where ROUGE-L has its own."""
    distinct_tokens: Tokenizer | None = None
    distinct_drops_last: bool = False
    extreme: Extreme = "farthest"
    unknown_word: Literal["skip", "mean"] = "skip"
    extrema_missing: float | None = None
    """What stands for a pair without Vector Extrema; None: left out."""


_OVERLAP = ("bleu2", "bleu4", "rouge_l")
_DIVERSE = ("distinct1", "distinct2", "distinct3")
_LENGTHS = ("length", "reference_length")

DEFINITIONS = {
    one.name: one
    for one in (
        Definition(
            name="esckit",
            metrics=(*_OVERLAP, "meteor", *_DIVERSE, "extrema", *_LENGTHS),
            languages=("en", "zh"),
            tokens=plain_tokens,
            bleu="corpus",
            rouge_beta=1.0,
        ),
        Definition(
            name="esconv",
            metrics=(*_OVERLAP, *_DIVERSE, "extrema", *_LENGTHS),
            languages=("en", "zh"),
            tokens=plain_tokens,
            bleu="corpus",
            rouge_beta=1.2,
            distinct_drops_last=True,
            unknown_word="mean",
        ),
        Definition(
            name="nlpcc2025",
            metrics=("bleu4", "rouge_l", "meteor", "distinct2", "distinct3", "extrema"),
            languages=("en",),
            tokens=lambda language: whitespace,
            bleu="mean of replies",
            rouge_beta=1.0,
            rouge_tokens=rouge_words,
            distinct_tokens=whitespace_lower,
            extreme="largest",
            extrema_missing=0.0,
        ),
    )
}


@dataclass(frozen=True)
class Sums:
    """One metric, ready to be resampled: `values` [dialogues, k] and the formula of sums, or n-grams a dialogue."""

    values: Floats | None = None
    formula: Callable[[Floats], Floats] | None = None
    counts: list[Counter[tuple[str, ...]]] = field(default_factory=list)

    def interval(self, seed: int = 0) -> Interval:
        if self.values is None or self.formula is None:
            return distinct_interval(self.counts)
        return interval_of(self.values, self.formula, seed)

    def by_dialogue(self) -> list[float | None]:
        """The metric of every dialogue alone; None where it has none."""
        if self.values is None or self.formula is None:
            return [None if (value := distinct([count])) is None else 100 * value for count in self.counts]
        return [float(value) if np.isfinite(value) else None for value in self.formula(self.values)]


def measure(
    pairs: Sequence[Pair],
    definition: str = "esckit",
    vectors: Vectors | None = None,
    similarity: Callable[[str, str], float | None] | None = None,
) -> dict[str, Sums]:
    """Every metric that the definition has, over the dialogues in the order in which they first occur.

    Without `vectors` there is no Vector Extrema, without `similarity` (reply, reference -> 0..1) no figure of token
    vectors. Raises UserError when there is no pair, or a language that the definition does not know.
    """
    how = DEFINITIONS[definition]
    if not pairs:
        raise UserError("there is no reply with a reference to compare it with")
    strange = sorted({pair.language for pair in pairs} - set(how.languages))
    if strange:
        raise UserError(f"the definition {definition} is for {', '.join(how.languages)}, not for {strange[0]}")
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.dialogue, []).append(pair)
    cut = {
        id(pair): (how.tokens(pair.language)(pair.reply), how.tokens(pair.language)(pair.reference)) for pair in pairs
    }
    found: dict[str, Sums] = {}
    overlaps = _overlaps(groups, cut) if how.bleu == "corpus" else np.zeros((0, 0))
    for name in (*how.metrics, "bertscore"):
        if name.startswith("distinct"):
            found[name] = Sums(counts=[_ngrams_of(group, how, int(name[-1]), cut) for group in groups.values()])
        elif name.startswith("bleu") and how.bleu == "corpus":
            found[name] = Sums(overlaps, _corpus_bleu(int(name[-1])))
        elif (value := _of_pair(name, how, cut, vectors, similarity)) is not None:
            found[name] = Sums(_means(groups, value), mean_formula)
    return found


def figures(measured: Mapping[str, Sums], seed: int = 0) -> dict[str, Interval]:
    """Every metric with its 95 % interval over dialogues."""
    return {name: sums.interval(seed) for name, sums in measured.items()}


def vocabulary(pairs: Sequence[Pair]) -> set[str]:
    """Every token that a definition could look up in word vectors."""
    ways = (words, characters, whitespace)
    return {token for pair in pairs for text in (pair.reply, pair.reference) for way in ways for token in way(text)}


Cut = Mapping[int, tuple[list[str], list[str]]]


def _overlaps(groups: Mapping[str, Sequence[Pair]], cut: Cut) -> Floats:
    """[dialogues, 10]: what BLEU of any order is made of."""
    return np.array([sum(bleu_sums(*cut[id(pair)]) for pair in group) for group in groups.values()])


def _corpus_bleu(order: int) -> Callable[[Floats], Floats]:
    return lambda sums: 100 * bleu(sums, order, "geometric")


def _of_pair(
    name: str, how: Definition, cut: Cut, vectors: Vectors | None, similarity: Any
) -> Callable[[Pair], float | None] | None:
    """The metric of one pair, 0..100; None when it is not to be had."""

    def extreme(pair: Pair) -> float | None:
        assert vectors is not None
        value = extrema(*cut[id(pair)], vectors, how.extreme, how.unknown_word)
        value = how.extrema_missing if value is None else value
        return None if value is None else 100 * value

    def overlap(pair: Pair) -> float:
        tokens = how.rouge_tokens
        reply, reference = (tokens(pair.reply), tokens(pair.reference)) if tokens else cut[id(pair)]
        return 100 * rouge_l(reply, reference, how.rouge_beta)

    def alike(pair: Pair) -> float | None:
        value = similarity(pair.reply, pair.reference)
        return None if value is None else 100 * value

    ways: dict[str, Callable[[Pair], float | None] | None] = {
        "bleu4": lambda pair: float(100 * bleu(bleu_sums(*cut[id(pair)]), 4, "epsilon")),
        "rouge_l": overlap,
        "meteor": lambda pair: 100 * meteor(*cut[id(pair)], stems=pair.language == "en"),
        "extrema": extreme if vectors else None,
        "bertscore": alike if similarity and how.name == "esckit" else None,
        "length": lambda pair: float(len(cut[id(pair)][0])),
        "reference_length": lambda pair: float(len(cut[id(pair)][1])),
    }
    return ways[name]


def _means(groups: Mapping[str, Sequence[Pair]], value: Callable[[Pair], float | None]) -> Floats:
    """[dialogues, 2]: sum and number of the values of a dialogue's pairs."""
    rows = []
    for group in groups.values():
        given = [found for found in map(value, group) if found is not None]
        rows.append([sum(given), len(given)])
    return np.array(rows, dtype=float)


def _ngrams_of(group: Sequence[Pair], how: Definition, n: int, cut: Cut) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for pair in group:
        tokens = how.distinct_tokens(pair.reply) if how.distinct_tokens else cut[id(pair)][0]
        found = ngrams(tokens, n)
        counts.update(found[:-1] if how.distinct_drops_last else found)
    return counts


# ---- NLPCC 2025 task 8


TASK8_WEIGHTS = {
    "meteor": 0.2,
    "bleu4": 0.2,
    "rouge_l": 0.2,
    "extrema": 0.1,
    "distinct2": 0.1,
    "distinct3": 0.1,
    "g_score": 0.1,
}


def task8_overall(parts: Mapping[str, float | None]) -> float | None:
    """The overall score of NLPCC 2025 task 8, 0..100, of parts on 0..100; None while one of them is missing.

    `g_score` is an LLM judge's rating of 1 to 5, mean over replies, divided by 5, times 100.
    """
    given = {name: parts.get(name) for name in TASK8_WEIGHTS}
    if any(value is None for value in given.values()):
        return None
    return sum(weight * float(given[name] or 0.0) for name, weight in TASK8_WEIGHTS.items())
