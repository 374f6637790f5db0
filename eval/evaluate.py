"""A trained thing against held-out data: perplexity of a chat model, agreement of a scorer with raters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue
from data_prep.rubric import Rubric
from eval.judge import median_level
from eval.statistics import Interval, agreement_intervals, constant_agreement, ratio_interval

FIGURES = ("accuracy", "within_one", "kappa", "mae")


def perplexity_interval(losses: Sequence[tuple[float, int]], seed: int = 0) -> Interval:
    """exp(loss per token) over dialogues, with a bootstrap interval over dialogues.

    `losses` are (sum of negative log likelihoods, tokens) a dialogue. The interval is taken of the mean loss and
    then exponentiated, which the bootstrap allows because exp is increasing.
    """
    found = ratio_interval([loss for loss, _ in losses], [tokens for _, tokens in losses], seed=seed)
    return _exp(found)


def perplexity_ratio(
    before: Sequence[tuple[float, int]], after: Sequence[tuple[float, int]], seed: int = 0
) -> Interval:
    """Perplexity after / before on the same dialogues, paired: below 1 is better. Raises ValueError on other tokens."""
    if [tokens for _, tokens in before] != [tokens for _, tokens in after]:
        raise ValueError("the two models did not read the same tokens; compare models of one tokenizer")
    differences = [late - early for (early, _), (late, _) in zip(before, after, strict=True)]
    return _exp(ratio_interval(differences, [tokens for _, tokens in before], seed=seed))


def _exp(found: Interval) -> Interval:
    mean, low, high = (None if value is None else math.exp(value) for value in (found.mean, found.low, found.high))
    return Interval(mean, low, high, found.n_cards, method=found.method, reason=found.reason)


@dataclass(frozen=True)
class ScorerFigures:
    """One dimension: the scorer's agreement with the raters beside that of the constant prediction."""

    dimension: str
    ratings: int
    constant_level: int
    scorer: dict[str, Interval]
    constant: dict[str, Interval]


def scorer_agreement(
    scorer: Any, dialogues: Sequence[Dialogue], ratings: Any, seed: int = 0, batch_size: int = 16
) -> list[ScorerFigures]:
    """Agreement of a scorer with every rating of every dialogue, dimension by dimension.

    `ratings` is dialogue id -> rater -> dimension -> value or None (`train.rank.read_ratings`). Each rating is a
    pair with the scorer's median level; intervals resample dialogues. The constant predicts the level that was most
    frequent in the scorer's training ratings. Raises UserError when a dimension has no rating here.
    """
    rated = [dialogue for dialogue in dialogues if dialogue.id in ratings]
    if not rated:
        raise UserError("none of the dialogues has a rating; do the dialogue ids of the two files match?")
    predictions = scorer.score(rated, batch_size=batch_size)
    return [
        _figures(scorer.rubric, name, rated, predictions, ratings, scorer.config.training_levels[name], seed)
        for name in scorer.rubric.names()
    ]


def _figures(
    rubric: Rubric, name: str, dialogues: Sequence[Dialogue], predictions: Any, ratings: Any, counts: Any, seed: int
) -> ScorerFigures:
    levels = list(rubric.dimension(name).levels())
    truth, predicted, groups = [], [], []
    for dialogue, prediction in zip(dialogues, predictions, strict=True):
        for given in ratings[dialogue.id].values():
            if given.get(name) is not None:
                truth.append(int(given[name]))
                predicted.append(median_level(prediction[name], levels))
                groups.append(dialogue.id)
    if not truth:
        raise UserError(f"no rating of {name} for these dialogues; agreement with nobody cannot be measured")
    constant = levels[max(range(len(counts)), key=counts.__getitem__)]
    return ScorerFigures(
        dimension=name,
        ratings=len(truth),
        constant_level=constant,
        scorer=agreement_intervals(truth, predicted, groups, levels, seed=seed),
        constant=constant_agreement(truth, constant, groups, levels, seed=seed),
    )


def verdict(figures: ScorerFigures) -> str:
    """In words, whether the scorer beats the constant prediction; only an interval that excludes chance counts."""
    kappa = figures.scorer["kappa"]
    low = kappa.low
    if kappa.reason == "every resample gives the same value":
        low = kappa.mean  # right everywhere: there is no spread to make an interval of
    if low is not None and low > 0:
        hits, constant_hits = figures.scorer["accuracy"].mean, figures.constant["accuracy"].mean
        but = "; the constant still hits the exact level more often" if (hits or 0) < (constant_hits or 0) else ""
        return f"agrees with raters beyond any constant (kappa interval above 0){but}"
    return "does not beat the constant predictor (kappa interval includes 0 or is undefined)"
