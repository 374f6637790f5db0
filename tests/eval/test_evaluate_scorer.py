"""A scorer's evaluation on made data: baselines, human ceiling, languages, what is missing, the verdict."""

import csv
import io
import json
from dataclasses import asdict

import numpy as np
import pytest

from data_prep.errors import UserError
from data_prep.records import Dialogue
from data_prep.rubric import Rubric
from eval.evaluate_scorer import evaluate_scorer, group_numbers, verdict
from eval.scorer_tables import markdown, show, tidy
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
TRAINING = {"warm": [1, 2, 9, 3, 0], "deep": [5, 5, 1]}
SAID = {
    "en": ("alone", "I hear how hard that was and it makes me sad for you"),
    "zh": ("我很孤单", "听到这些我很心疼你"),
}


def talk(n, language="en", words=1, **more):
    problem, answer = SAID[language]
    turns = [
        {"speaker": "seeker", "text": f"{problem} {n}"},
        {"speaker": "supporter", "text": " ".join([answer] * words)},
    ]
    content = {"id": f"d{n}", "language": language, "source": "made", "turns": turns}
    return Dialogue.model_validate({**content, **more})


# Answers of one length, so that nothing but the scorer knows the levels.
DIALOGUES = [talk(n) for n in range(40)]
LEVELS = {f"d{n}": {"warm": n * n % 5, "deep": n // 3 % 3 + 1} for n in range(120)}


def scores_of(told, dialogues=DIALOGUES):
    """All mass on one level a dialogue and dimension."""
    return [
        {d.name: tuple(float(level == told(one.id)[d.name]) for level in d.levels()) for d in RUBRIC.dimensions}
        for one in dialogues
    ]


def ratings_of(raters=("a", "b"), dialogues=DIALOGUES):
    return {
        one.id: {rater: {name: float(value) for name, value in LEVELS[one.id].items()} for rater in raters}
        for one in dialogues
    }


PERFECT = scores_of(LEVELS.__getitem__)


def evaluated(*given, group_by=("situation",), **more):
    """Made answers are near duplicates: grouped by text they would all be one group."""
    return evaluate_scorer(RUBRIC, *given, group_by=group_by, **more)


def test_a_perfect_scorer_beats_the_constant_which_is_the_training_mode():
    found = evaluated(PERFECT, DIALOGUES, ratings_of(), TRAINING)
    warm, deep = found.dimensions
    assert (warm.dimension, warm.language, warm.ratings, warm.dialogues, warm.constant_level) == (
        "warm",
        "en",
        80,
        40,
        2,
    )
    assert (deep.constant_level, deep.levels) == (1, [1, 2, 3])  # levels begin at 1; the lowest of two modes
    assert warm.counts == [16, 32, 0, 0, 32]
    figures = warm.predictors["scorer"].figures
    assert (figures["accuracy"].mean, figures["kappa"].mean, figures["mae"].mean) == (1, 1, 0)
    assert warm.predictors["scorer"].confusion == np.diag(warm.counts).tolist()
    # By hand: always 2 where 0, 1 and 4 are given, 1:2:2.
    constant = warm.predictors["constant"].figures
    assert (constant["accuracy"].mean, constant["within_one"].mean) == (0, pytest.approx(0.4))
    assert constant["mae"].mean == pytest.approx((2 + 2 * 1 + 2 * 2) / 5)
    assert constant["kappa"].mean == pytest.approx(0)
    assert warm.differences["constant"]["kappa"].mean == pytest.approx(1)
    assert warm.verdict.startswith("beats the constant predictor")
    assert "more often" not in warm.verdict


def test_a_scorer_that_says_the_training_mode_is_the_constant_baseline():
    scores = scores_of(lambda identifier: {"warm": 2, "deep": 1})
    for part in evaluated(scores, DIALOGUES, ratings_of(), TRAINING).dimensions:
        assert part.predictors["scorer"].figures["mae"] == part.predictors["constant"].figures["mae"]
        assert part.verdict.startswith("does not beat the constant predictor")


def test_a_scorer_that_guesses_does_not_beat_the_constant():
    guess = {f"d{n}": {"warm": (n * 7 + n // 5) % 5, "deep": (n * 5 // 7) % 3 + 1} for n in range(40)}
    for part in evaluated(scores_of(guess.__getitem__), DIALOGUES, ratings_of(), TRAINING).dimensions:
        assert part.verdict.startswith("does not beat the constant predictor")


def test_the_verdict_says_where_the_constant_is_better_and_what_beats_the_scorer():
    part = evaluated(PERFECT, DIALOGUES, ratings_of(), TRAINING).dimensions[0]

    def said(**beside):
        made = {
            who: {name: Interval(sum(limits) / 2, *limits, 9) for name, limits in figures.items()}
            for who, figures in beside.items()
        }
        return verdict(part.predictors, made, [0, 1])

    level = {"kappa": (0.1, 0.3), "accuracy": (-0.1, 0.1), "mae": (-0.1, 0.1)}
    assert said(constant=level) == "beats the constant predictor (kappa +0.20 [+0.10, +0.30])"
    worse = {**level, "accuracy": (-0.2, -0.1), "mae": (0.1, 0.2)}
    assert "but the constant hits the exact level more often and is closer on average" in said(constant=worse)
    assert "is worse than length" in said(constant=level, length={"kappa": (-0.3, -0.1)})
    assert "not told apart from TF-IDF" in said(constant=level, tfidf={"kappa": (-0.3, 0.1)})
    assert "below one rater against the others" in said(constant=level, human={"kappa": (-0.3, -0.1)})


def test_the_level_may_be_the_most_probable_one():
    scores = [{"warm": (0.45, 0.0, 0.1, 0.0, 0.45), "deep": (0.4, 0.2, 0.4)}] * 40
    median, mode = (
        evaluated(scores, DIALOGUES, ratings_of(), TRAINING, level=level).dimensions[0].predictors["scorer"].confusion
        for level in ("median", "mode")
    )
    assert [sum(column) for column in zip(*median, strict=True)] == [0, 0, 80, 0, 0]
    assert [sum(column) for column in zip(*mode, strict=True)] == [80, 0, 0, 0, 0]


def test_equal_ratings_are_said_to_decide_nothing():
    same = {one.id: {"a": {"warm": 3.0, "deep": 2.0}} for one in DIALOGUES}
    for part in evaluated(PERFECT, DIALOGUES, same, TRAINING).dimensions:
        assert part.verdict.startswith("cannot be told from a constant: every rating here is")
        assert part.predictors["scorer"].figures["spearman"].mean is None


def test_every_rater_is_measured_against_the_others():
    # Three raters; c is always one level off where there is room.
    ratings = ratings_of(("a", "b"))
    for identifier, raters in ratings.items():
        raters["c"] = {"warm": float(abs(LEVELS[identifier]["warm"] - 1)), "deep": None}
    del ratings["d0"]["b"], ratings["d0"]["c"]  # one rater only: nobody to compare with
    warm, deep = evaluated(PERFECT, DIALOGUES, ratings, TRAINING).dimensions
    assert (warm.ratings, warm.predictors["human"].ratings) == (118, 117)
    # a and b meet (own level, c): the lower of the two is said. c meets two equal ones, and is always wrong.
    lower = sum(2 * (LEVELS[f"d{n}"]["warm"] == 0) for n in range(1, 40))
    assert warm.predictors["human"].figures["accuracy"].mean == pytest.approx(lower / 117)
    assert warm.predictors["human"].figures["ece"].mean is None
    assert deep.predictors["human"].figures["kappa"].mean == 1  # a and b alone, who agree
    assert "human" not in evaluated(PERFECT, DIALOGUES, ratings_of(("a",))).dimensions[0].predictors


def test_missing_ratings_scores_and_dialogues_are_counted_and_left_out():
    ratings = ratings_of()
    del ratings["d0"]
    ratings["d1"]["a"]["warm"] = None
    del ratings["d1"]["b"]["warm"]
    ratings["unknown"] = {"a": {"warm": 0.0}}
    scores = [None if n == 2 else one for n, one in enumerate(PERFECT)]
    found = evaluated(scores, DIALOGUES, ratings, TRAINING)
    assert (found.dialogues, found.without_rating, found.unscored, found.ratings_elsewhere) == (40, 1, 1, 1)
    warm, deep = found.dimensions
    assert (warm.ratings, deep.ratings) == (76, 78)
    assert warm.predictors["scorer"].ratings == 74
    assert warm.predictors["scorer"].figures["kappa"].mean == 1
    assert warm.predictors["constant"].ratings == 76
    with pytest.raises(UserError, match="none of the dialogues has a rating"):
        evaluated(PERFECT, DIALOGUES, {"other": {"a": {"warm": 1.0}}})
    with pytest.raises(UserError, match="no rating of deep for these dialogues"):
        evaluated(PERFECT, DIALOGUES, {"d1": {"a": {"warm": 1.0, "deep": None}}})


def by_length(numbers, language="en"):
    """Dialogues whose answer is longer the higher the level of warm, and their ratings."""
    dialogues = [talk(n, language, words=1 + 2 * LEVELS[f"d{n}"]["warm"]) for n in numbers]
    return dialogues, ratings_of(("a",), dialogues)


def test_the_length_baseline_is_fitted_on_training_dialogues_or_across_groups():
    (held, ratings), (learned, more) = by_length(range(40)), by_length(range(40, 120))
    scores = scores_of(LEVELS.__getitem__, held)
    crossed = evaluated(scores, held, ratings)
    assert crossed.baselines == "fitted on these dialogues, 5-fold cross-validation over groups"
    fitted = evaluated(scores, held, {**ratings, **more}, baselines_from=learned)
    assert fitted.baselines == "fitted on 80 training dialogues"
    assert fitted.ratings_elsewhere == 80
    for found in (crossed, fitted):
        warm, deep = found.dimensions
        assert warm.predictors["length"].figures["kappa"].mean > 0.8
        assert abs(deep.predictors["length"].figures["kappa"].mean) < 0.4
    # Without training counts the constant comes from the dialogues that the baselines are fitted on.
    assert fitted.dimensions[0].constant_level == 1
    with pytest.raises(UserError, match="is also in --on"):
        evaluated(scores, held, ratings, baselines_from=held[:2])
    with pytest.raises(UserError, match="no rating of warm"):
        evaluated(scores, held, ratings, baselines_from=learned)


def test_languages_stand_apart_and_together():
    english, first = by_length(range(20))
    chinese, second = by_length(range(20, 50), "zh")
    dialogues = [*chinese, *english]
    found = evaluated(scores_of(LEVELS.__getitem__, dialogues), dialogues, {**first, **second})
    parts = [(part.dimension, part.language, part.ratings) for part in found.dimensions[:3]]
    assert parts == [("warm", "all", 50), ("warm", "en", 20), ("warm", "zh", 30)]
    assert found.dimensions[2].predictors["length"].figures["kappa"].mean > 0.5


def test_groups_are_what_a_split_keeps_together():
    why = ("lost my job and my flat in one week", "my sister will not speak to me", "exams begin and I can not sleep")
    told = [talk(n, situation=why[n // 2]) for n in range(6)]
    assert group_numbers(told, ["situation"]).tolist() == [0, 0, 1, 1, 2, 2]
    one = [talk(n, situation="lost my job and my flat in the same week") for n in range(6)]
    found = evaluated(scores_of(LEVELS.__getitem__, one), one, ratings_of(dialogues=one))
    assert "all dialogues are of one group" in found.baselines
    assert found.dimensions[0].predictors["scorer"].figures["mae"].reason == "an interval needs at least two groups"
    assert "length" not in found.dimensions[0].predictors


def test_tables_hold_the_figures(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    found = evaluated(PERFECT, DIALOGUES, ratings_of(), TRAINING)
    result = json.loads(json.dumps({"scorer": {"name": "made [red]"}, "shortened": 2, **asdict(found)}))
    page = markdown(result)
    assert "| figure | scorer | constant 2 | length only | TF-IDF | one rater |" in page
    assert "| quadratic weighted kappa | 1.00 | 0.00 |" in page
    assert "| 4 | 0 | 0 | 0 | 0 | 32 |" in page  # the confusion matrix
    assert "**warm (en)** beats the constant predictor" in page
    assert "2 dialogues are longer than the scorer reads" in page
    rows = list(csv.DictReader(io.StringIO(tidy(result))))
    kappa = next(row for row in rows if row["predictor"] == "scorer" and row["figure"] == "kappa")
    assert (kappa["dimension"], kappa["language"], kappa["value"], kappa["low"]) == ("warm", "en", "1.0", "")
    assert kappa["reason"] == "every resample gives the same value"
    assert any(row["predictor"] == "scorer - tfidf" and row["figure"] == "mae" for row in rows)
    assert sum(int(row["value"]) for row in rows if row["figure"].startswith("confusion")) == 2 * 5 * 80
    show(result)
    printed = capsys.readouterr().out
    assert "quadratic weighted kappa" in printed
    assert "beats the constant predictor" in printed
