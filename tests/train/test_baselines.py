"""Baselines learn what length and words tell, in both languages, and nothing of the dialogues they are asked of."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from data_prep.records import Dialogue
from train.baselines import baseline_distributions, features, lengths, ordinal_regression

WORDS = {"en": ("sorry you feel sad", "buy milk and bread"), "zh": ("我很心疼你的难过", "记得去买牛奶面包")}


def spoken(n, language="en", warm=False, words=1):
    answer = " ".join([WORDS[language][0 if warm else 1]] * words)
    turns = [{"speaker": "seeker", "text": "I am low" if language == "en" else "我很低落"}]
    turns.append({"speaker": "supporter", "text": answer})
    return Dialogue.model_validate({"id": f"{language}{n}", "language": language, "source": "made", "turns": turns})


def of_one(kind, learned, levels, asked, count=3):
    rows = np.arange(len(learned))
    return baseline_distributions(kind, learned, rows, [np.array(levels)], [count], asked)[0]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_words_tell_warm_from_cold(language):
    learned = [spoken(n, language, warm=n % 2 == 1) for n in range(20)]
    found = of_one(
        "tfidf", learned, [2 * (n % 2) for n in range(20)], [spoken(90, language, True), spoken(91, language)]
    )
    assert found[0].argmax() == 2
    assert found[1].argmax() == 0
    assert found.sum(axis=1) == pytest.approx(1)
    # Both answers are of one length, which therefore tells nothing.
    blind = of_one("length", learned, [2 * (n % 2) for n in range(20)], [spoken(90, language, True)])
    assert blind[0] == pytest.approx([0.5, 0, 0.5], abs=0.05)


def test_length_tells_long_from_short_but_words_alone_do_not_carry_it():
    learned = [spoken(n, words=1 + n % 3 * 4) for n in range(30)]
    found = of_one("length", learned, [n % 3 for n in range(30)], [spoken(90, words=1), spoken(91, words=9)])
    assert found.argmax(axis=1).tolist() == [0, 2]


def test_lengths_by_hand():
    assert np.expm1(lengths([spoken(0, words=2)])[0]) == pytest.approx([8, 3, 2])
    assert np.expm1(lengths([spoken(0, "zh")])[0]) == pytest.approx([4, 2, 2])  # a character is half a word


def test_ordinal_regression_is_differences_of_logistic_ones():
    rng = np.random.default_rng(0)
    known, levels = rng.normal(size=(90, 2)), rng.integers(0, 3, 90)
    found = ordinal_regression(known, levels, 3, known[:5], 1.0)
    above = [LogisticRegression(max_iter=1000).fit(known, levels > k).predict_proba(known[:5])[:, 1] for k in (0, 1)]
    assert found == pytest.approx(np.column_stack([1 - above[0], above[0] - above[1], above[1]]))


def test_levels_nobody_gave_and_missing_ratings():
    learned = [spoken(n, words=1 + n) for n in range(8)]
    found = of_one("length", learned, [1, 1, -1, 1, 1, 1, -1, 1], [spoken(90)], count=4)
    assert found[0].argmax() == 1  # all ratings equal: nothing to regress, and no crash
    assert found[0].sum() == pytest.approx(1)
    assert (found >= 0).all()


def test_nothing_of_the_asked_dialogues_is_used_in_fitting():
    learned = [spoken(n, warm=n % 2 == 1) for n in range(10)]
    one, _ = features("tfidf", learned, [spoken(90)])
    other, _ = features("tfidf", learned, [spoken(90, "zh", words=30)])
    assert (one != other).nnz == 0


def test_texts_without_a_repeated_word():
    learned = [spoken(0), spoken(1, "zh")]
    assert of_one("tfidf", learned, [0, 1], [spoken(9)], count=2).sum() == pytest.approx(1)
