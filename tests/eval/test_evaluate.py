"""Held-out figures on made data: paired perplexity, agreement beside the constant, and the verdict."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from data_prep.errors import UserError
from data_prep.records import Dialogue
from data_prep.rubric import Rubric
from eval.evaluate import perplexity_interval, perplexity_ratio, scorer_agreement, verdict
from eval.statistics import Interval

WORDS = {"en": "word", "zh": "词"}
RUBRIC = Rubric.model_validate(
    {
        "name": "made",
        "version": 1,
        "description": "made",
        "dimensions": [
            {
                "name": name,
                "scale": [low, high],
                "title": WORDS,
                "question": WORDS,
                "anchors": dict.fromkeys(range(low, high + 1), WORDS),
            }
            for name, low, high in (("warm", 0, 4), ("deep", 1, 3))
        ],
    }
)
TURN = {"speaker": "seeker", "text": "x"}
DIALOGUES = [
    Dialogue.model_validate({"id": f"d{n}", "language": "en", "source": "made", "turns": [TURN]}) for n in range(40)
]
LEVELS = {f"d{n}": {"warm": n % 5, "deep": n % 3 + 1} for n in range(40)}


class MadeScorer:
    """Says what it is told: all mass on one level a dialogue and dimension."""

    rubric = RUBRIC

    def __init__(self, told, training_levels):
        self.told, self.config, self.asked = told, SimpleNamespace(training_levels=training_levels), []

    def score(self, dialogues, batch_size=16):
        self.asked += [dialogue.id for dialogue in dialogues]
        return [
            {
                d.name: tuple(float(level == self.told(one.id)[d.name]) for level in d.levels())
                for d in RUBRIC.dimensions
            }
            for one in dialogues
        ]


def ratings_of(shift: int = 0, raters: tuple[str, ...] = ("a", "b")):
    return {
        identifier: {rater: {name: float(value) for name, value in levels.items()} for rater in raters}
        for identifier, levels in LEVELS.items()
    }


TRAINING = {"warm": [1, 2, 9, 3, 0], "deep": [5, 5, 1]}


def test_a_perfect_scorer_agrees_and_the_constant_predicts_the_training_mode():
    scorer = MadeScorer(LEVELS.__getitem__, TRAINING)
    warm, deep = scorer_agreement(scorer, DIALOGUES, ratings_of())
    assert (warm.dimension, warm.ratings, warm.constant_level) == ("warm", 80, 2)
    assert (deep.constant_level, deep.ratings) == (1, 80)  # levels begin at 1; the lowest of two modes
    assert warm.scorer["accuracy"].mean == 1
    assert warm.scorer["kappa"].mean == 1
    assert warm.scorer["mae"].mean == 0
    # By hand: always 2 against 0..4 in equal shares.
    assert warm.constant["accuracy"].mean == pytest.approx(0.2)
    assert warm.constant["within_one"].mean == pytest.approx(0.6)
    assert warm.constant["mae"].mean == pytest.approx(1.2)
    assert warm.constant["kappa"].mean == pytest.approx(0)
    assert verdict(warm).startswith("agrees with raters beyond any constant")
    assert "more often" not in verdict(warm)
    # Nobody outdoes a perfect scorer, so this one is made to miss half.
    missing = {**warm.scorer, "accuracy": Interval(0.5, None, None, 9)}
    better = {**warm.constant, "accuracy": Interval(0.6, None, None, 9)}
    outdone = dataclasses.replace(warm, scorer=missing, constant=better)
    assert verdict(outdone).endswith("the constant still hits the exact level more often")


def test_a_scorer_that_says_the_training_mode_is_the_constant_baseline():
    scorer = MadeScorer(lambda identifier: {"warm": 2, "deep": 1}, TRAINING)
    for figures in scorer_agreement(scorer, DIALOGUES, ratings_of()):
        assert figures.scorer == figures.constant
        assert verdict(figures).startswith("does not beat the constant predictor")


def test_a_scorer_that_guesses_does_not_beat_the_constant():
    guess = {f"d{n}": {"warm": (n * n * 7 + n // 5) % 5, "deep": (n * 5 // 7) % 3 + 1} for n in range(40)}
    for figures in scorer_agreement(MadeScorer(guess.__getitem__, TRAINING), DIALOGUES, ratings_of()):
        assert abs(figures.scorer["kappa"].mean) < 0.35
        assert verdict(figures).startswith("does not beat the constant predictor")


def test_intervals_count_dialogues_not_ratings():
    """Ten raters who agree are no ten times more evidence."""
    off = {f"d{n}": {"warm": min(n % 5 + n % 2, 4), "deep": n % 3 + 1} for n in range(40)}
    scorer = MadeScorer(off.__getitem__, TRAINING)
    few = scorer_agreement(scorer, DIALOGUES, ratings_of(raters=("a",)))[0].scorer["accuracy"]
    many = scorer_agreement(scorer, DIALOGUES, ratings_of(raters=tuple("abcdefghij")))[0].scorer["accuracy"]
    assert (many.low, many.high, many.n_cards) == (few.low, few.high, 40)


def test_missing_ratings_and_unrated_dialogues_are_left_out():
    ratings = ratings_of()
    del ratings["d0"]
    ratings["d1"]["a"]["warm"] = None
    del ratings["d1"]["b"]["warm"]
    ratings["unknown"] = {"a": {"warm": 0.0}}
    scorer = MadeScorer(LEVELS.__getitem__, TRAINING)
    warm, deep = scorer_agreement(scorer, DIALOGUES, ratings)
    assert (warm.ratings, deep.ratings) == (76, 78)
    assert "d0" not in scorer.asked
    assert len(scorer.asked) == 39
    assert "d0" not in ratings


def test_agreement_with_nobody_is_refused():
    scorer = MadeScorer(LEVELS.__getitem__, TRAINING)
    with pytest.raises(UserError, match="none of the dialogues has a rating"):
        scorer_agreement(scorer, DIALOGUES, {"other": {"a": {"warm": 1.0}}})
    with pytest.raises(UserError, match="no rating of deep for these dialogues"):
        scorer_agreement(scorer, DIALOGUES, {"d1": {"a": {"warm": 1.0, "deep": None}}})


BEFORE = [(3.0 * n + n % 4, n) for n in range(5, 45)]


def test_perplexity_weighs_tokens_not_dialogues():
    found = perplexity_interval([(10.0, 10), (60.0, 30)])
    assert found.mean == pytest.approx(math.exp(70 / 40))


def test_the_ratio_is_that_of_the_two_perplexities():
    after = [(loss - 0.4 * tokens + 0.3 * (tokens % 3), tokens) for loss, tokens in BEFORE]
    ratio = perplexity_ratio(BEFORE, after)
    assert ratio.mean == pytest.approx(perplexity_interval(after).mean / perplexity_interval(BEFORE).mean)
    assert ratio.low < ratio.mean < ratio.high < 1
    # Paired: far narrower than the two perplexities themselves.
    alone = perplexity_interval(BEFORE)
    assert (ratio.high - ratio.low) / ratio.mean < 0.5 * (alone.high - alone.low) / alone.mean


def test_the_same_model_twice_is_a_ratio_of_one():
    same = perplexity_ratio(BEFORE, BEFORE)
    assert same.mean == 1
    assert (same.low, same.high) in {(1, 1), (None, None)}


def test_models_of_other_tokenizers_are_not_compared():
    with pytest.raises(ValueError, match="did not read the same tokens"):
        perplexity_ratio(BEFORE, [(loss, tokens + 1) for loss, tokens in BEFORE])
