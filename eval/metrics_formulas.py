"""Formulas of text overlap and diversity, on tokens. What is summed over replies comes first, so that a bootstrap over
dialogues only adds the sums up again with other weights.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.resampling import bootstrap_interval, weights_of
from eval.metrics_tokens import stem
from eval.statistics import Interval

Floats = NDArray[np.float64]
ORDERS = 4
EPSILON = 0.1
RESAMPLES = 1999


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]


# ---- BLEU


def bleu_sums(reply: Sequence[str], reference: Sequence[str]) -> Floats:
    """[10]: matches of 1- to 4-grams, n-grams of the reply (at least 1 each, as NLTK counts), both lengths."""
    matches, totals = [], []
    for n in range(1, ORDERS + 1):
        said, meant = Counter(ngrams(reply, n)), Counter(ngrams(reference, n))
        matches.append((said & meant).total())
        totals.append(max(1, said.total()))
    return np.array([*matches, *totals, len(reply), len(reference)], dtype=float)


def bleu(sums: Floats, order: int, smoothing: Literal["geometric", "epsilon"]) -> Floats:
    """BLEU (Papineni et al. 2002) up to `order`-grams of sums [..., 10] -> [...], 0..1; one reference.

    An order without a match is smoothed (Chen and Cherry 2014): `geometric`, their method 3, counts the k-th such
    order as 1/2^k of a match; `epsilon`, their method 1, as 0.1. No unigram in common is 0.
    """
    matches, totals = sums[..., :ORDERS], sums[..., ORDERS : 2 * ORDERS]
    said, meant = sums[..., -2], sums[..., -1]
    none = matches == 0
    instead = 0.5 ** none.cumsum(axis=-1) if smoothing == "geometric" else EPSILON
    # A resample that drew nothing has no n-grams; it is 0 below.
    precision = np.where(none, instead, matches) / np.maximum(totals, 1)
    brevity = np.where(said > meant, 1.0, np.exp(1 - meant / np.maximum(said, 1)))
    found = brevity * np.exp(np.log(precision[..., :order]).mean(axis=-1))
    return np.asarray(np.where(none[..., 0], 0.0, found))


# ---- ROUGE-L and METEOR


def lcs_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, by Hyyrö's bit-parallel algorithm (2004)."""
    places: dict[str, int] = {}
    for at, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << at
    everything = (1 << len(one)) - 1
    row = everything
    for token in other:
        hits = row & places.get(token, 0)
        row = ((row + hits) | (row - hits)) & everything
    return len(one) - row.bit_count()


def rouge_l(reply: Sequence[str], reference: Sequence[str], beta: float) -> float:
    """ROUGE-L (Lin 2004), 0..1: (1 + b²) P R / (R + b² P) of the longest common subsequence; 0 without one."""
    common = lcs_length(reply, reference)
    if not common:
        return 0.0
    precision, recall = common / len(reply), common / len(reference)
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision)


class _NoSynonyms:
    """In place of WordNet, which would have to be downloaded."""

    def synsets(self, word: str) -> list[Any]:
        return []


class _Stems:
    """Porter's, each word once: stemming is most of METEOR's time."""

    def stem(self, word: str) -> str:
        return stem(word)


class _NoStems:
    def stem(self, word: str) -> str:
        return word


def meteor(reply: Sequence[str], reference: Sequence[str], stems: bool = True) -> float:
    """METEOR (Lavie and Agarwal 2007) as NLTK computes it, 0..1, of exact words and then of Porter stems only.

    The third stage, synonyms of WordNet, is left out: values lie somewhat below those that have it.
    """
    from nltk.translate.meteor_score import single_meteor_score

    stemmer = _Stems() if stems else _NoStems()
    return float(single_meteor_score(reference, reply, stemmer=stemmer, wordnet=_NoSynonyms()))


# ---- Distinct-n


def distinct(counts: Sequence[Counter[tuple[str, ...]]]) -> float | None:
    """Different n-grams / n-grams (Li et al. 2016), 0..1, of all units together; None without any."""
    everything: Counter[tuple[str, ...]] = Counter()
    for count in counts:
        everything.update(count)
    return len(everything) / everything.total() if everything else None


def distinct_interval(counts: Sequence[Counter[tuple[str, ...]]]) -> Interval:
    """Distinct-n of units (dialogues), 0..100, with a jackknife interval over them.

    Not a bootstrap: a unit drawn twice repeats all its n-grams, which lowers Distinct-n in every resample. Leaving one
    out changes it by the n-grams that no other has: the variance is (D - 1) / D · Σ (left out - mean)², with Student's
    t on D - 1 degrees (Efron and Tibshirani 1993, chapter 11).
    """
    from scipy.stats import t

    units = len(counts)
    value = distinct(counts)
    if value is None:
        return Interval(None, None, None, units, reason="no reply is long enough")
    if units < 2:
        return Interval(100 * value, None, None, units, reason="an interval needs at least two dialogues")
    holders = Counter(ngram for count in counts for ngram in count)
    total = sum(count.total() for count in counts)
    left = [
        (len(holders) - sum(holders[ngram] == 1 for ngram in count), total - count.total())
        for count in counts
        if total > count.total()
    ]
    if len(left) < units:
        return Interval(100 * value, None, None, units, reason="all n-grams are of one dialogue")
    without = np.array([kinds / tokens for kinds, tokens in left])
    error = np.sqrt((units - 1) / units * ((without - without.mean()) ** 2).sum())
    if error < 1e-12:
        return Interval(100 * value, None, None, units, reason="every dialogue left out gives the same value")
    half = float(t.ppf(0.975, units - 1) * error)
    return Interval(100 * value, 100 * max(0.0, value - half), 100 * min(1.0, value + half), units, "jackknife")


# ---- intervals over dialogues


def interval_of(sums: Floats, formula: Callable[[Floats], Floats], seed: int = 0, unit: str = "dialogues") -> Interval:
    """`formula` of sums [units, k], which maps [..., k] to [...], with a BCa bootstrap interval over the units."""
    units = len(sums)
    value = float(formula(sums.sum(axis=0))) if units else float("nan")
    if not np.isfinite(value):
        return Interval(None, None, None, units, reason="there is nothing to measure")
    limits = bootstrap_interval(
        lambda index: formula(weights_of(index, units) @ sums), value, units, seed=seed, resamples=RESAMPLES, unit=unit
    )
    return Interval(value, limits.low, limits.high, units, limits.method, limits.reason)


def mean_formula(sums: Floats) -> Floats:
    """Sum / count of sums [..., 2]; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])
