"""A chat model against held-out dialogues: perplexity, alone and paired. A scorer: eval/evaluate_scorer.py."""

import math
from collections.abc import Sequence

from eval.statistics import Interval, ratio_interval


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
