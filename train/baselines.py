"""What a scorer has to beat: regressions on length and on words, fitted on the same ratings.

Both are cumulative: for every level but the highest a logistic regression tells "above it, or not", and the levels'
probabilities are the differences (Frank & Hall 2001). They read English and Chinese alike.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.normalising import normalised, word_count
from data_prep.records import Dialogue

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BASELINES = {
    "length": "ordinal regression on the words of each side and the number of turns",
    "tfidf": "ordinal regression on TF-IDF of the words and word pairs of each side",
}
SIDES = ("supporter", "seeker")
# A Chinese character, or a run of other letters and digits.
TOKEN = r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+"
STRENGTH = {"length": 1.0, "tfidf": 10.0}
"""Inverse of the penalty (C). Fixed: a baseline must not be tuned on the data it is measured on."""


def baseline_distributions(
    kind: str,
    learned: Sequence[Dialogue],
    rows: Ints,
    levels: Sequence[Ints],
    level_counts: Sequence[int],
    asked: Sequence[Dialogue],
) -> list[Floats]:
    """Distributions [asked, levels] of one of BASELINES, one array a dimension.

    Args:
        learned: training dialogues; nothing of `asked` is used in fitting.
        rows: [ratings] index into `learned`, one entry for each rater of each dialogue.
        levels: of each dimension [ratings] the level given, an index from 0, or -1 where there is none.
    """
    known, new = features(kind, learned, asked)
    return [
        ordinal_regression(known[rows[given >= 0]], given[given >= 0], count, new, STRENGTH[kind])
        for given, count in zip(levels, level_counts, strict=True)
    ]


def features(kind: str, learned: Sequence[Dialogue], asked: Sequence[Dialogue]) -> tuple[Any, Any]:
    """Feature matrices of both sets, scaled or weighted by what `learned` says alone."""
    if kind == "length":
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(lengths(learned))
        return scaler.transform(lengths(learned)), scaler.transform(lengths(asked))
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    columns = []
    for side in SIDES:
        vectorizer = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        try:
            columns.append((vectorizer.fit_transform(said(learned, side)), vectorizer.transform(said(asked, side))))
        except ValueError:  # no word of this side occurs twice
            continue
    if not columns:
        return np.zeros((len(learned), 1)), np.zeros((len(asked), 1))
    known, new = zip(*columns, strict=True)
    return hstack(known, format="csr"), hstack(new, format="csr")


def said(dialogues: Sequence[Dialogue], side: str) -> list[str]:
    return [" ".join(turn.text for turn in one.turns if turn.speaker == side) for one in dialogues]


def lengths(dialogues: Sequence[Dialogue]) -> Floats:
    """[dialogues, 3]: log of one and the words of the supporter, of the seeker, and the number of turns."""
    words = [[word_count(normalised(text)) for text in said(dialogues, side)] for side in SIDES]
    return np.log1p(np.array([*words, [len(one.turns) for one in dialogues]], dtype=float).T)


def ordinal_regression(known: Any, levels: Ints, count: int, new: Any, strength: float) -> Floats:
    """[new rows, count] probabilities after fitting on `known` rows and their levels, from 0."""
    from sklearn.linear_model import LogisticRegression

    above = np.ones((new.shape[0], count + 1))
    above[:, count] = 0
    for level in range(count - 1):
        higher = levels > level
        if higher.all() or not higher.any():
            above[:, level + 1] = (higher.sum() + 0.5) / (len(levels) + 1)
        else:
            fitted = LogisticRegression(C=strength, max_iter=1000).fit(known, higher)
            above[:, level + 1] = fitted.predict_proba(new)[:, 1]
    # Fitted one by one, the chances of being above need not fall from level to level; the levels' must not be negative.
    above = np.minimum.accumulate(above, axis=1)
    return -np.diff(above, axis=1)
