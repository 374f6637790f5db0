"""Is a simulated seeker like a real one? Two sets of dialogues in, figures side by side and a classifier's AUC out.

Only the seeker's words are compared, of the first `rounds` seeker turns of every dialogue, since dialogues that go on
longer would differ by that alone. The unit is the dialogue. Figures per dialogue are averaged and given with a
bootstrap interval; the classifier is asked to tell the two sets apart (a two-sample test: Lopez-Paz and Oquab 2017,
arXiv 1610.06545), 0.5 means that it cannot, 1 that it always can.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.normalising import normalised, word_count
from data_prep.records import Dialogue
from data_prep.resampling import bootstrap_interval
from eval.audit_card import ENOUGH_WORDS, content_words
from eval.audit_phrases import THANKS, plain

FOLDS = 5
# Dialogues a set must have for the classifier: of fewer, a fold has next to nothing to learn from.
ENOUGH = 10


@dataclass(frozen=True)
class Feature:
    """A figure of the two sets, each a mean over dialogues with limits; `difference` is simulated minus real."""

    name: str
    simulated: tuple[float, float | None, float | None]
    real: tuple[float, float | None, float | None]
    difference: tuple[float, float | None, float | None]


@dataclass(frozen=True)
class Likeness:
    """How far a simulated seeker is from real ones."""

    simulated: int
    real: int
    features: tuple[Feature, ...]
    thanks_by_round: tuple[tuple[float, ...], tuple[float, ...]]
    """Share of dialogues whose seeker has thanked by round 1, 2, …: simulated, real."""
    disclosure: tuple[tuple[float, ...], tuple[float, ...]]
    """Mean share of the card's content words used by round 1, 2, …; empty where the cards are too short."""
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    reason: str | None = None
    """Why there is no AUC."""


def compare_seekers(
    simulated: Sequence[Dialogue], real: Sequence[Dialogue], rounds: int, seed: int = 0, resamples: int = 1999
) -> Likeness:
    """Compares the first `rounds` seeker turns. Dialogues in which the seeker says nothing are left out."""
    sides = [[(d, words) for d in dialogues if (words := seeker_turns(d, rounds))] for dialogues in (simulated, real)]
    texts = [[words for _, words in side] for side in sides]
    features = tuple(
        _feature(name, [np.array([measure(words) for words in side]) for side in texts], seed, resamples)
        for name, measure in FEATURES.items()
        if all(texts)
    )
    groups = [[dialogue.card.id if dialogue.card else dialogue.id for dialogue, _ in side] for side in sides]
    auc, low, high, reason = two_sample_auc(texts[0], texts[1], groups[0], groups[1], seed, resamples)
    return Likeness(
        len(texts[0]),
        len(texts[1]),
        features,
        (thanks_curve(texts[0], rounds), thanks_curve(texts[1], rounds)),
        (_disclosure(sides[0], rounds), _disclosure(sides[1], rounds)),
        auc,
        low,
        high,
        reason,
    )


def seeker_turns(dialogue: Dialogue, rounds: int) -> list[str]:
    """The seeker's first turns; those that follow each other are one."""
    turns: list[str] = []
    before = None
    for turn in dialogue.turns:
        if turn.speaker == "seeker":
            if before == "seeker":
                turns[-1] += "\n" + turn.text
            else:
                turns.append(turn.text)
        before = turn.speaker
    return [text for text in turns[:rounds] if text.strip()]


# ---- figures of one seeker


def words_of(texts: Sequence[str]) -> list[str]:
    """Words, and Chinese characters one by one."""
    import re

    return re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", normalised(" ".join(texts)))


def distinct(texts: Sequence[str], n: int) -> float:
    """Share of different n-grams among the n-grams of the first 60 words (Distinct-n, Li et al. 2016).

    Of a fixed number of words, since the longer a text, the lower the share.
    """
    words = words_of(texts)[:60]
    grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def _lengths(texts: Sequence[str]) -> list[float]:
    return [word_count(normalised(text)) for text in texts]


def _share(texts: Sequence[str], holds: Callable[[str], object]) -> float:
    return sum(bool(holds(text)) for text in texts) / len(texts)


FEATURES: Mapping[str, Callable[[Sequence[str]], float]] = {
    "words a turn": lambda texts: float(np.mean(_lengths(texts))),
    "spread of words a turn": lambda texts: float(np.std(_lengths(texts))),
    "sentences a turn": lambda texts: float(
        np.mean([max(1, sum(text.count(mark) for mark in ".!?。！？")) for text in texts])
    ),
    "turns with a question": lambda texts: _share(texts, lambda text: "?" in text or "？" in text),
    "turns with thanks": lambda texts: _share(texts, lambda text: THANKS.search(plain(text))),
    "distinct-1 of 60 words": lambda texts: distinct(texts, 1),
    "distinct-2 of 60 words": lambda texts: distinct(texts, 2),
}


def _feature(name: str, values: Sequence[NDArray[np.float64]], seed: int, resamples: int) -> Feature:
    first, second = values
    difference = float(first.mean() - second.mean())
    low = high = None
    if min(len(first), len(second)) > 1:
        draw = np.random.default_rng(seed)
        drawn = [found[draw.integers(0, len(found), (resamples, len(found)))].mean(axis=1) for found in values]
        low, high = (float(limit) for limit in np.quantile(drawn[0] - drawn[1], (0.025, 0.975)))
    return Feature(
        name,
        _mean_with_limits(first, seed, resamples),
        _mean_with_limits(second, seed, resamples),
        (difference, low, high),
    )


def _mean_with_limits(
    values: NDArray[np.float64], seed: int, resamples: int
) -> tuple[float, float | None, float | None]:
    def mean(index: NDArray[np.int64]) -> Any:
        return values[index].mean(axis=-1)

    limits = bootstrap_interval(mean, float(values.mean()), len(values), 0.95, seed, resamples)
    return float(values.mean()), limits.low, limits.high


def thanks_curve(texts: Sequence[Sequence[str]], rounds: int) -> tuple[float, ...]:
    """Share of dialogues whose seeker has thanked or agreed by round 1, 2, …"""
    first = [next((at for at, text in enumerate(words) if THANKS.search(plain(text))), rounds) for words in texts]
    return tuple(sum(at <= number for at in first) / len(first) for number in range(rounds)) if first else ()


def _disclosure(side: Sequence[tuple[Dialogue, list[str]]], rounds: int) -> tuple[float, ...]:
    """Mean over dialogues with a card of enough words; a seeker who has stopped has told what it has told."""
    curves = []
    for dialogue, words in side:
        wanted = content_words((dialogue.card.problem if dialogue.card else None) or "")
        if len(wanted) < ENOUGH_WORDS:
            continue
        told: set[str] = set()
        curve = []
        for number in range(rounds):
            told |= wanted & content_words(words[number]) if number < len(words) else set()
            curve.append(len(told) / len(wanted))
        curves.append(curve)
    return tuple(float(value) for value in np.mean(curves, axis=0)) if curves else ()


# ---- the classifier


def two_sample_auc(
    simulated: Sequence[Sequence[str]],
    real: Sequence[Sequence[str]],
    simulated_groups: Sequence[Hashable],
    real_groups: Sequence[Hashable],
    seed: int = 0,
    resamples: int = 1999,
) -> tuple[float | None, float | None, float | None, str | None]:
    """Area under the ROC curve of a classifier that never saw the dialogue or its card, with limits; or the reason.

    Logistic regression on TF-IDF of character n-grams (which serve both languages) and of the number of words a turn.
    Dialogues of one group (a card) are on one side of every split. The interval resamples the out-of-fold scores, so it
    leaves out how much the classifier itself would vary.
    """
    if min(len(simulated), len(real)) < ENOUGH:
        return None, None, None, f"the classifier needs {ENOUGH} dialogues of each kind"
    from sklearn.metrics import roc_auc_score

    texts = ["\n".join(words) for words in (*simulated, *real)]
    lengths = np.array([[np.mean(_lengths(words))] for words in (*simulated, *real)])
    truth = np.array([1] * len(simulated) + [0] * len(real))
    groups = _numbers([*simulated_groups, *real_groups])
    scores = _out_of_fold(texts, lengths, truth, groups, seed)
    found = float(roc_auc_score(truth, scores))
    draw = np.random.default_rng(seed)
    places = [np.flatnonzero(truth == kind) for kind in (0, 1)]
    drawn = []
    for _ in range(min(resamples, 999)):
        index = np.concatenate([draw.choice(some, len(some)) for some in places])
        drawn.append(roc_auc_score(truth[index], scores[index]))
    low, high = (float(limit) for limit in np.quantile(drawn, (0.025, 0.975)))
    return found, low, high, None


def _numbers(groups: Sequence[Hashable]) -> NDArray[np.int64]:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(group, len(known)) for group in groups])


def _out_of_fold(
    texts: Sequence[str], lengths: NDArray[Any], truth: NDArray[Any], groups: NDArray[Any], seed: int
) -> NDArray[Any]:
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    table = np.empty((len(texts), 2), dtype=object)
    table[:, 0], table[:, 1] = texts, lengths[:, 0]
    as_numbers = FunctionTransformer(lambda column: np.asarray(column, dtype=float))
    model = make_pipeline(
        make_column_transformer(
            (TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2, sublinear_tf=True), 0),
            (make_pipeline(as_numbers, StandardScaler()), [1]),
        ),
        LogisticRegression(C=10.0, max_iter=1000, class_weight="balanced"),
    )
    scores = np.full(len(texts), np.nan)
    for train, test in StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed).split(table, truth, groups):
        if len(set(truth[train])) < 2:
            scores[test] = 0.0
            continue
        scores[test] = model.fit(table[train], truth[train]).decision_function(table[test])
    return scores
