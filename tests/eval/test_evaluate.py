"""Perplexity on made losses: weighted by tokens, and paired between two models."""

import math

import pytest

from eval.evaluate import perplexity_interval, perplexity_ratio

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
