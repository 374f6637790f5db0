"""Ordinal heads: from one vector a dialogue to a distribution over the levels of every dimension.

Five kinds behind one interface, `make_heads`: whatever the kind, `forward` gives log probabilities of the levels, and
`expected` and `median_level` read them. They differ in how a vector becomes a distribution and in their loss:

    cumulative     one score s and ordered cut points c: P(level > k) = sigmoid(s - c_k), by likelihood of the level
                   (proportional odds; McCullagh 1980)
    coral          the same distribution; the loss sums a binary one over all cut points (Cao, Mirjalili, Raschka 2020)
    corn           P(level > k | level >= k) = sigmoid(w_k x + b_k), by likelihood (Shi, Cao, Raschka 2021)
    squared        p_k ∝ exp(-(k - s)² / 2 spread²), by the squared error of the expected level
    cross_entropy  softmax over levels, which knows no order

Everything is in float32, whatever the backbone is in. Untrained heads predict how often each level was given.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

MISSING = -100


class Heads(nn.Module, ABC):
    """What the kinds share: features in, calibrated log probabilities out, masked loss.

    Args:
        hidden_size: length of the vectors that come in.
        level_counts: number of levels of each dimension (at least 2 each).
    """

    def __init__(self, hidden_size: int, level_counts: Sequence[int]):
        super().__init__()
        self.level_counts = list(level_counts)
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
        self.score = nn.Linear(hidden_size, sum(map(self.outputs, self.level_counts)), bias=False)
        nn.init.zeros_(self.score.weight)
        # Fitted on validation ratings when training is done (train/scorer_calibration.py).
        self.register_buffer("sharpness", torch.ones(len(self.level_counts)))
        self.register_buffer("shifts", torch.zeros(len(self.level_counts), max(self.level_counts)))

    sharpness: Tensor
    shifts: Tensor

    @abstractmethod
    def outputs(self, levels: int) -> int:
        """Numbers of a dimension that are linear in the features."""

    def set_priors(self, counts: Sequence[Sequence[float]]) -> None:
        """Has the untrained heads predict `counts[d][k]` ratings at level k of dimension d, half a rating added to
        each: training has only the differences between dialogues to learn."""
        with torch.no_grad():
            for dimension, level_counts in enumerate(counts):
                smoothed = [count + 0.5 for count in level_counts]
                total = sum(smoothed)
                self.set_prior(dimension, [count / total for count in smoothed])

    @abstractmethod
    def set_prior(self, dimension: int, shares: Sequence[float]) -> None:
        """Has a dimension's untrained head predict these shares of its levels."""

    @abstractmethod
    def distribution(self, dimension: int, scores: Tensor) -> Tensor:
        """Log probabilities [batch, levels] from a dimension's scores [batch, outputs]."""

    def forward(self, pooled: Tensor) -> list[Tensor]:
        """Log probabilities of the levels: pooled [batch, hidden] -> one [batch, levels] a dimension, float32."""
        with torch.autocast(pooled.device.type, enabled=False):
            # DeepSpeed turns all weights to 16 bit, and an autocast would turn this product.
            scores = functional.linear(self.norm(pooled.float()), self.score.weight.float())
            parts = scores.split([self.outputs(levels) for levels in self.level_counts], dim=1)
            logs = [self.distribution(index, part) for index, part in enumerate(parts)]
        return logs if self.training else self.calibrated(logs)

    def calibrated(self, logs: Sequence[Tensor]) -> list[Tensor]:
        """p_k^sharpness · exp(shift_k), normalised: 1 and 0 change nothing."""
        return [
            (log * self.sharpness[index].float() + self.shifts[index, : log.shape[1]].float()).log_softmax(1)
            for index, log in enumerate(logs)
        ]

    def rating_loss(self, dimension: int, logs: Tensor, levels: Tensor) -> Tensor:
        """Loss of each rating: logs [..., levels], levels [...] from 0 -> [...]. The negative log likelihood."""
        return -logs.gather(-1, levels.unsqueeze(-1)).squeeze(-1)

    def loss(
        self,
        logs: Sequence[Tensor],
        labels: Tensor,
        weights: Tensor | None = None,
        divide_by: Tensor | int | None = None,
        severity: Tensor | None = None,
    ) -> Tensor:
        """Weighted mean loss of the ratings that are there.

        Args:
            logs: one [batch, levels] a dimension.
            labels: level indices from 0, [batch, raters, dimensions]; MISSING (-100) where there is no rating.
            weights: of each rating, the same shape; None: 1.
            divide_by: sum of the weights in the whole accumulated batch over all devices; None: those here.
            severity: how much lower each rater goes, the same shape: log odds a level.
        """
        total = logs[0].new_zeros(())
        present = labels != MISSING
        weights = present.float() if weights is None else torch.where(present, weights, torch.zeros_like(weights))
        for index, log in enumerate(logs):
            given = log.unsqueeze(1).expand(-1, labels.shape[1], -1)
            if severity is not None:
                # Linacre's many-facet Rasch model (1989): log(p_k / p_{k-1}) falls by the rater's severity.
                places = torch.arange(log.shape[1], device=log.device) - (log.shape[1] - 1) / 2
                given = (given - severity[:, :, index, None] * places).log_softmax(-1)
            # Masked-out entries read level 0 and count 0: shapes stay fixed, gradients of the rest untouched.
            each = self.rating_loss(index, given, labels[:, :, index].clamp(min=0))
            total = (
                total + (torch.where(present[:, :, index], each, torch.zeros_like(each)) * weights[:, :, index]).sum()
            )
        divisor = weights.sum() if divide_by is None else torch.as_tensor(divide_by, device=total.device)
        return total / divisor.clamp(min=1e-9)


class CumulativeHeads(Heads):
    """One score a dimension and ordered cut points, trained by likelihood."""

    def __init__(self, hidden_size: int, level_counts: Sequence[int]):
        super().__init__(hidden_size, level_counts)
        # Cut points are stored as a first one and positive steps, so that no update can put them out of order.
        self.first_cut = nn.Parameter(torch.zeros(len(self.level_counts)))
        # A dimension of two levels has no steps, and an empty parameter would upset sharded training.
        self.raw_steps = nn.ParameterDict(
            {str(d): nn.Parameter(torch.zeros(n - 2)) for d, n in enumerate(self.level_counts) if n > 2}
        )

    def outputs(self, levels: int) -> int:
        return 1

    def set_prior(self, dimension: int, shares: Sequence[float]) -> None:
        above = [sum(shares[k + 1 :]) for k in range(len(shares) - 1)]
        cuts = [-math.log(p / (1 - p)) for p in above]
        self.first_cut[dimension] = cuts[0]
        for index, (low, high) in enumerate(pairwise(cuts)):
            self.raw_steps[str(dimension)][index] = math.log(math.expm1(high - low))  # inverse softplus

    def cut_points(self, dimension: int) -> Tensor:
        """Increasing cut points of one dimension, shape [levels - 1]."""
        first = self.first_cut[dimension : dimension + 1].float()
        if self.level_counts[dimension] == 2:
            return first
        steps = functional.softplus(self.raw_steps[str(dimension)].float())
        return torch.cat([first, first + steps.cumsum(0)])

    def distribution(self, dimension: int, scores: Tensor) -> Tensor:
        return cumulative_log_probabilities(scores[:, 0], self.cut_points(dimension))


class CoralHeads(CumulativeHeads):
    """The same distribution, trained by the sum of binary losses "above cut k or not"."""

    def rating_loss(self, dimension: int, logs: Tensor, levels: Tensor) -> Tensor:
        below = logs.logcumsumexp(-1)[..., :-1]
        above = logs.flip(-1).logcumsumexp(-1).flip(-1)[..., 1:]
        is_above = levels.unsqueeze(-1) > torch.arange(logs.shape[-1] - 1, device=logs.device)
        return -torch.where(is_above, above, below).sum(-1)


class BiasedHeads(Heads):
    """Kinds whose dimensions have a bias for every output."""

    def __init__(self, hidden_size: int, level_counts: Sequence[int]):
        super().__init__(hidden_size, level_counts)
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(self.outputs(n))) for n in self.level_counts])


class ConditionalHeads(BiasedHeads):
    """CORN: of those at level k or higher, who is higher than k?"""

    def outputs(self, levels: int) -> int:
        return levels - 1

    def set_prior(self, dimension: int, shares: Sequence[float]) -> None:
        for k in range(len(shares) - 1):
            self.bias[dimension][k] = math.log(sum(shares[k + 1 :]) / shares[k])

    def distribution(self, dimension: int, scores: Tensor) -> Tensor:
        scores = scores + self.bias[dimension].float()
        reached = functional.pad(functional.logsigmoid(scores).cumsum(1), (1, 0))  # log P(level >= k)
        stopped = functional.pad(functional.logsigmoid(-scores), (0, 1))  # log P(level = k | level >= k)
        return reached + stopped


class NominalHeads(BiasedHeads):
    """Softmax over the levels."""

    def outputs(self, levels: int) -> int:
        return levels

    def set_prior(self, dimension: int, shares: Sequence[float]) -> None:
        self.bias[dimension].copy_(torch.tensor(shares).log())

    def distribution(self, dimension: int, scores: Tensor) -> Tensor:
        return (scores + self.bias[dimension].float()).log_softmax(1)


class SquaredHeads(BiasedHeads):
    """A number a dimension, spread over the levels by the training ratings' own spread.

    The squared error is divided by that spread squared, so that a scale of seven levels weighs no more than one of
    three. How sharp the distributions should be it does not learn; a calibration does.
    """

    spread: Tensor

    def __init__(self, hidden_size: int, level_counts: Sequence[int]):
        super().__init__(hidden_size, level_counts)
        self.register_buffer("spread", torch.ones(len(self.level_counts)))

    def outputs(self, levels: int) -> int:
        return 1

    def set_prior(self, dimension: int, shares: Sequence[float]) -> None:
        mean = sum(k * share for k, share in enumerate(shares))
        self.bias[dimension].fill_(mean)
        variance = sum((k - mean) ** 2 * share for k, share in enumerate(shares))
        self.spread[dimension] = max(math.sqrt(variance), 0.3)

    def distribution(self, dimension: int, scores: Tensor) -> Tensor:
        spread = self.spread[dimension].float()
        levels = torch.arange(self.level_counts[dimension], device=scores.device)
        distance = (levels - self.bias[dimension].float() - scores * spread) / spread
        return (-(distance**2) / 2).log_softmax(1)

    def rating_loss(self, dimension: int, logs: Tensor, levels: Tensor) -> Tensor:
        places = torch.arange(logs.shape[-1], device=logs.device, dtype=logs.dtype)
        return (((logs.exp() * places).sum(-1) - levels) / self.spread[dimension].float()) ** 2


KINDS: dict[str, type[Heads]] = {
    "cumulative": CumulativeHeads,
    "coral": CoralHeads,
    "corn": ConditionalHeads,
    "squared": SquaredHeads,
    "cross_entropy": NominalHeads,
}


def make_heads(kind: str, hidden_size: int, level_counts: Sequence[int]) -> Heads:
    """Fresh heads of one of the KINDS."""
    return KINDS[kind](hidden_size, level_counts)


def cumulative_log_probabilities(scores: Tensor, cuts: Tensor) -> Tensor:
    """log P(level = k) for scores [batch] and increasing cuts [levels - 1], shape [batch, levels].

    P(k) = sigmoid(c_{k+1} - s) - sigmoid(c_k - s), computed as a product so that no probability rounds to 0:
    sigmoid(a) - sigmoid(b) = sigmoid(a) * sigmoid(-b) * (1 - exp(b - a)) for a > b.
    """
    upper = cuts[None, :] - scores[:, None]
    first = functional.logsigmoid(upper[:, :1])
    last = functional.logsigmoid(-upper[:, -1:])
    gap = torch.log(-torch.expm1(-(cuts[1:] - cuts[:-1]).clamp(min=1e-6)))
    middle = functional.logsigmoid(upper[:, 1:]) + functional.logsigmoid(-upper[:, :-1]) + gap
    return torch.cat([first, middle, last], dim=1)


def expected(logs: Tensor) -> Tensor:
    """Expected level, from 0: [..., levels] -> [...]."""
    return (logs.exp() * torch.arange(logs.shape[-1], device=logs.device)).sum(-1)


def median_level(logs: Tensor) -> Tensor:
    """The lowest level, from 0, whose cumulative probability reaches one half: [..., levels] -> [...]."""
    return (logs.exp().double().cumsum(-1) < 0.5 - 1e-9).sum(-1).clamp(max=logs.shape[-1] - 1)


class RaterSeverity(nn.Module):
    """How severe each rater is on each dimension, against the average rating; used in training only.

    A rater's number is pulled to 0 by a standard normal prior, so that one with few ratings stays near the others.
    """

    counts: Tensor

    def __init__(self, raters: int, dimensions: int):
        super().__init__()
        self.severity = nn.Parameter(torch.zeros(raters, dimensions))
        self.register_buffer("counts", torch.ones(raters, dimensions), persistent=False)

    def centred(self) -> Tensor:
        """[raters, dimensions] with mean 0 over the ratings of each dimension: the predictions are of their average."""
        raw, counts = self.severity.float(), self.counts.float()
        return raw - (raw * counts).sum(0) / counts.sum(0).clamp(min=1)

    def forward(self, raters: Tensor) -> Tensor:
        """Rater indices [batch, raters], -1 for an unknown one -> [batch, raters, dimensions]."""
        known = (raters >= 0).unsqueeze(-1)
        return torch.where(known, self.centred()[raters.clamp(min=0)], 0.0)

    def prior(self) -> Tensor:
        """Minus the log of the prior, a rating of the training data."""
        return (self.severity.float() ** 2).sum() / 2 / self.counts.float().sum().clamp(min=1)
