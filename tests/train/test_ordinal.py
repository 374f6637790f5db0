"""Ordinal heads: against a naive float64 computation, at extreme values, and on a planted ordering."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.resampling import bootstrap_interval
from train.ordinal import (
    KINDS,
    MISSING,
    CumulativeHeads,
    RaterSeverity,
    cumulative_log_probabilities,
    expected,
    make_heads,
    median_level,
)
from train.scorer_agreement import mean_kappa


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


# ---- all kinds behind one interface

WARM = torch.Generator().manual_seed(1)
COUNTS = [[0, 3, 10, 40, 7], [1, 0], [0, 2, 0, 0, 5000, 0, 1]]


def random_heads(kind: str, level_counts=(5, 2, 7), hidden: int = 8):
    heads = make_heads(kind, hidden, level_counts)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, generator=WARM)
    return heads


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_gives_distributions_that_start_at_the_frequencies(kind):
    heads = make_heads(kind, 8, [len(counts) for counts in COUNTS])
    heads.set_priors(COUNTS)
    for logs, counts in zip(heads(torch.randn(3, 8)), COUNTS, strict=True):
        assert logs.dtype == torch.float32
        smoothed = torch.tensor(counts) + 0.5
        shares = smoothed / smoothed.sum()
        torch.testing.assert_close(logs.exp().sum(1), torch.ones(3))
        if kind != "squared":
            torch.testing.assert_close(logs.exp(), shares.expand(3, -1), atol=1e-5, rtol=1e-3)
    for logs in random_heads(kind)(10 * torch.randn(4, 8)):
        torch.testing.assert_close(logs.exp().sum(1), torch.ones(4))
        assert torch.isfinite(logs).all()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_stays_in_float32_under_mixed_precision(kind):
    heads = random_heads(kind)
    features = torch.randn(3, 8)
    plain = heads(features)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = heads(features)
    for left, right in zip(plain, mixed, strict=True):
        assert torch.equal(left, right)
    half = heads.to(torch.bfloat16)(features.bfloat16())
    assert {logs.dtype for logs in half} == {torch.float32}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_missing_rating_has_no_gradient_in_any_kind(kind):
    """Ratings of one dialogue and dimension: the others get nothing, and splitting a batch changes nothing."""
    features = torch.randn(2, 8, generator=WARM, requires_grad=True)
    heads = random_heads(kind)
    labels = torch.full((2, 3, 3), MISSING)
    labels[0, 1, 2] = 4
    heads.loss(heads(features), labels).backward()
    assert features.grad is not None
    assert not features.grad[1].any()
    assert features.grad[0].abs().sum() > 0
    grads = [heads.score.weight.grad]
    rows = [sum(heads.outputs(n) for n in heads.level_counts[:2])]
    assert not grads[0][: rows[0]].any()
    assert grads[0][rows[0] :].abs().sum() > 0


def by_hand(kind: str, p: np.ndarray, level: int, spread: float) -> float:
    """The textbook loss of one rating, from probabilities in float64."""
    if kind == "coral":
        above = np.array([p[k + 1 :].sum() for k in range(len(p) - 1)])
        wanted = level > np.arange(len(p) - 1)
        return float(-(np.log(above[wanted]).sum() + np.log(1 - above[~wanted]).sum()))
    if kind == "squared":
        return float((((np.arange(len(p)) * p).sum() - level) / spread) ** 2)
    return float(-np.log(p[level]))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_loss_equals_its_formula(kind):
    heads = random_heads(kind)
    if kind == "squared":
        heads.spread.copy_(torch.tensor([0.7, 1.5, 2.0]))
    features = torch.randn(2, 8, generator=WARM)
    labels = torch.tensor([[[4, 0, 6], [3, MISSING, 2]], [[0, 1, MISSING], [MISSING, MISSING, MISSING]]])
    weights = torch.tensor([1.0, 0.25, 3.0]).expand(2, 2, 3)
    logs = heads(features)
    total = weight = 0.0
    for (row, rater, dimension), level in np.ndenumerate(labels.numpy()):
        if level != MISSING:
            p = logs[dimension][row].detach().double().exp().numpy()
            share = float(weights[row, rater, dimension])
            spread = float(heads.spread[dimension]) if kind == "squared" else 1.0
            total, weight = total + share * by_hand(kind, p, level, spread), weight + share
    assert float(heads.loss(logs, labels, weights).detach()) == pytest.approx(total / weight, rel=1e-4)
    assert float(heads.loss(logs, labels, weights, 20).detach()) == pytest.approx(total / 20, rel=1e-4)


def test_corn_multiplies_conditional_probabilities():
    heads = random_heads("corn", [4])
    features = torch.randn(2, 8)
    scores = torch.nn.functional.linear(heads.norm(features), heads.score.weight) + heads.bias[0]
    above = scores.double().sigmoid().cumprod(1)  # P(level > k)
    ones, zeros = torch.ones(2, 1), torch.zeros(2, 1)
    expected_p = torch.cat([ones, above], 1) - torch.cat([above, zeros], 1)
    torch.testing.assert_close(heads(features)[0].double().exp(), expected_p, atol=1e-5, rtol=1e-4)


def test_expected_and_median_levels_by_hand():
    p = torch.tensor([[0.4, 0.0, 0.0, 0.3, 0.3], [0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    assert median_level(p.log()).tolist() == [3, 0, 4]
    assert expected(p.clamp(min=1e-12).log()).tolist() == pytest.approx([2.1, 1.0, 4.0], abs=1e-5)


# ---- small data

PER_SET = 40


def contest(kind: str, seed: int) -> float:
    """Quadratic weighted kappa on fresh dialogues after learning from 40: levels are cuts of one noisy direction."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(PER_SET + 400, 12, generator=generator)
    strength = features @ torch.randn(12, generator=generator) / 12**0.5
    strength = strength + 0.4 * torch.randn(len(features), generator=generator)
    labels = torch.bucketize(strength, torch.tensor([-1.2, -0.6, -0.2, 0.2, 0.6, 1.2]))[:, None, None]
    heads = make_heads(kind, 12, [7])
    heads.set_priors([torch.bincount(labels[:PER_SET].flatten(), minlength=7).tolist()])
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.05, weight_decay=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        heads.loss(heads(features[:PER_SET]), labels[:PER_SET]).backward()
        optimizer.step()
    with torch.no_grad():
        found = median_level(heads(features[PER_SET:])[0]).double().numpy()
    return mean_kappa(found[:, None], labels[PER_SET:].double().numpy())


def test_ordinal_heads_win_on_small_data():
    """Paired over data sets, with a 95 % bootstrap interval: each ordinal kind against levels without an order."""
    sets = range(12)
    nominal = np.array([contest("cross_entropy", seed) for seed in sets])
    for kind in ("cumulative", "coral", "corn", "squared"):
        gain = np.array([contest(kind, seed) for seed in sets]) - nominal
        limits = bootstrap_interval(lambda index, gain=gain: gain[index].mean(-1), gain.mean(), len(gain))
        assert limits.low is not None
        assert limits.low > 0, (kind, gain.mean(), limits)


# ---- raters


def test_severities_of_a_rasch_model_are_found_again():
    """Ratings drawn from the model with known severities; the severe rater saw the better dialogues only."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1200, 48, generator=generator)
    places = torch.arange(5) - 2.0
    truth = features[:, :1] * places - places**2 / 2
    who = (features[:, 0] + torch.randn(1200, generator=generator) > 0).long()
    severities = torch.tensor([-0.7, 0.7])
    drawn = torch.multinomial((truth - severities[who][:, None] * places).softmax(1), 1, generator=generator)
    labels, raters = drawn[:, :, None], who[:, None]
    biases = {}
    for knows_raters in (True, False):
        heads, severity = make_heads("cross_entropy", 48, [5]), RaterSeverity(2, 1)
        severity.counts.copy_(torch.bincount(who, minlength=2)[:, None])
        optimizer = torch.optim.Adam([*heads.parameters(), *severity.parameters()], lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            by_rater = severity(raters) if knows_raters else None
            (heads.loss(heads(features), labels, severity=by_rater) + severity.prior()).backward()
            optimizer.step()
        with torch.no_grad():
            # How far the slope from bad to good dialogues is from that of the average rater.
            wanted, found = expected(truth.log_softmax(1)), expected(heads(features)[0])
            biases[knows_raters] = float((found - wanted)[features[:, 0] > 1].mean())
        if knows_raters:
            lenient, severe = severity.centred()[:, 0].tolist()
            assert severe - lenient == pytest.approx(1.4, abs=0.2)
    assert abs(biases[True]) < 0.15
    assert biases[False] < -0.3


def test_an_unknown_rater_is_of_average_severity():
    severity = RaterSeverity(3, 2)
    torch.nn.init.normal_(severity.severity)
    severity.counts.copy_(torch.tensor([[4.0, 0.0], [1.0, 2.0], [1.0, 2.0]]))
    found = severity(torch.tensor([[0, -1], [2, 1]]))
    assert found.shape == (2, 2, 2)
    assert not found[0, 1].any()
    assert (severity.centred() * severity.counts).sum(0).tolist() == pytest.approx([0, 0], abs=1e-5)
