"""Ordinal heads: against a naive float64 computation, at extreme values, and on a planted ordering."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train.ordinal import MISSING, CumulativeHeads, cumulative_log_probabilities


def naive(scores: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """P(level = k) as differences of P(level > k) = 1 / (1 + exp(c_k - s)), in float64."""
    above = 1 / (1 + np.exp(cuts[None, :] - scores[:, None]))
    ones, zeros = np.ones((len(scores), 1)), np.zeros((len(scores), 1))
    padded = np.concatenate([ones, above, zeros], axis=1)
    return padded[:, :-1] - padded[:, 1:]


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=4),
    st.floats(-5, 5, width=32),
    st.lists(st.floats(0.0625, 4, width=32), max_size=9),
)
def test_probabilities_equal_a_naive_computation(scores, first, steps):
    cuts = np.cumsum([first, *steps])
    found = cumulative_log_probabilities(torch.tensor(scores), torch.tensor(cuts, dtype=torch.float32)).exp().numpy()
    np.testing.assert_allclose(found, naive(np.array(scores), cuts), atol=2e-6)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("size", [0.0, 50.0, 500.0])
@pytest.mark.parametrize("levels", [2, 5, 11])
def test_extreme_scores_stay_finite_with_finite_gradients(size, levels):
    scores = torch.tensor([-size, size], requires_grad=True)
    cuts = torch.linspace(-2, 2, levels - 1).requires_grad_()
    logs = cumulative_log_probabilities(scores, cuts)
    assert torch.isfinite(logs).all()
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(2))
    logs.sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert torch.isfinite(cuts.grad).all()


def test_untrained_heads_predict_the_smoothed_frequencies():
    counts = [[0, 3, 10, 40, 7], [1, 0], [0, 0, 0, 0, 0, 5000, 0, 0, 0, 1, 0]]
    heads = CumulativeHeads(8, [len(dimension) for dimension in counts])
    heads.set_priors(counts)
    for logs, dimension in zip(heads(torch.randn(3, 8)), counts, strict=True):
        smoothed = torch.tensor(dimension) + 0.5
        expected = (smoothed / smoothed.sum()).expand(3, -1)
        torch.testing.assert_close(logs.exp(), expected, atol=1e-5, rtol=1e-3)


@settings(max_examples=50)
@given(st.lists(st.floats(-300, 300, width=32), min_size=10, max_size=10), st.floats(-300, 300, width=32))
def test_cut_points_stay_in_order_whatever_an_update_does(raw, first):
    heads = CumulativeHeads(4, [12, 2])
    with torch.no_grad():
        heads.raw_steps["0"].copy_(torch.tensor(raw))
        heads.first_cut.fill_(first)
    cuts = heads.cut_points(0)
    assert cuts.shape == (11,)
    assert (cuts[1:] >= cuts[:-1]).all()
    assert heads.cut_points(1).tolist() == [first]
    loss = heads.loss(heads(torch.randn(2, 4)), torch.tensor([[[5, 0]], [[0, 1]]]), None)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in heads.parameters())


def test_loss_is_the_mean_negative_log_likelihood_of_the_ratings_there():
    heads = made_heads([5, 2])
    labels = torch.tensor([[[4, 0], [3, MISSING]], [[0, 1], [MISSING, MISSING]]])
    first, second = (logs.exp() for logs in heads(PAIR))
    chosen = [first[0, 4], second[0, 0], first[0, 3], first[1, 0], second[1, 1]]
    by_hand = -sum(float(torch.log(p.detach())) for p in chosen)
    assert float(heads.loss(heads(PAIR), labels, None).detach()) == pytest.approx(by_hand / 5, rel=1e-5)
    assert float(heads.loss(heads(PAIR), labels, divide_by=10).detach()) == pytest.approx(by_hand / 10, rel=1e-5)


PAIR = torch.tensor([[0.3, -1.0, 2.0, 0.1], [1.0, 0.5, -0.2, -0.7]])


def made_heads(level_counts: list[int]) -> CumulativeHeads:
    torch.manual_seed(3)
    heads = CumulativeHeads(4, level_counts)
    torch.nn.init.normal_(heads.score.weight)
    torch.nn.init.normal_(heads.first_cut)
    return heads


def gradients(labels: torch.Tensor, rows: slice, count: int) -> list[torch.Tensor]:
    heads = made_heads([5, 3])
    heads.loss(heads(PAIR[rows]), labels, divide_by=count).backward()
    return [parameter.grad for parameter in heads.parameters()]


def test_a_missing_rating_changes_nothing_for_the_others():
    whole = gradients(torch.tensor([[[4, 1]], [[MISSING, MISSING]]]), slice(0, 2), 2)
    alone = gradients(torch.tensor([[[4, 1]]]), slice(0, 1), 2)
    for left, right in zip(whole, alone, strict=True):
        torch.testing.assert_close(left, right)
    split = [
        gradients(torch.tensor([[[4, MISSING]]]), slice(0, 1), 2),
        gradients(torch.tensor([[[MISSING, 1]]]), slice(0, 1), 2),
    ]
    for left, one, two in zip(alone, *split, strict=True):
        torch.testing.assert_close(left, one + two)


def test_no_rating_at_all_is_no_loss_and_no_nan():
    heads = made_heads([5, 3])
    loss = heads.loss(heads(PAIR), torch.full((2, 1, 2), MISSING), None)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(not parameter.grad.any() for parameter in heads.parameters())


def test_a_planted_ordering_is_learned():
    """Level = rank of one hidden direction, with noise: the heads must find it, for two and for eleven levels."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 32, generator=generator)
    direction = torch.randn(32, generator=generator)
    strength = features @ direction + 0.5 * torch.randn(400, generator=generator)
    ranks = strength.argsort().argsort() / 400
    labels = torch.stack([(ranks * 2).long(), (ranks * 11).long()], dim=1)[:, None, :]
    heads = CumulativeHeads(32, [2, 11])
    heads.set_priors([torch.bincount(labels[:, 0, d], minlength=n).tolist() for d, n in enumerate([2, 11])])
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.05)
    before = None
    for _ in range(200):
        loss = heads.loss(heads(features[:300]), labels[:300], None)
        before = float(loss.detach()) if before is None else before
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        held_out = heads(features[300:])
    assert float(heads.loss(held_out, labels[300:])) < 0.75 * before
    expected = (held_out[1].exp() * torch.arange(11)).sum(1)
    assert float(torch.corrcoef(torch.stack([expected, labels[300:, 0, 1].float()]))[0, 1]) > 0.85
    assert float((held_out[0].argmax(1) == labels[300:, 0, 0]).float().mean()) > 0.85
