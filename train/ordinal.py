"""Ordinal heads: from one vector a dialogue to a distribution over the levels of every dimension.

Cumulative link with ordered cut points (proportional odds; McCullagh 1980): a dimension has one score s and cut
points c_1 < c_2 < ... < c_{K-1}, and P(level > k) = sigmoid(s - c_k). The loss is the likelihood of the level that
was chosen. Everything is in float32, whatever the backbone is in.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

MISSING = -100


class OrdinalHeads(nn.Module):
    """One ordinal head a dimension.

    Args:
        hidden_size: length of the vectors that come in.
        level_counts: number of levels of each dimension (at least 2 each).
    """

    def __init__(self, hidden_size: int, level_counts: Sequence[int]):
        super().__init__()
        self.level_counts = list(level_counts)
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
        self.score = nn.Linear(hidden_size, len(self.level_counts), bias=False)
        nn.init.zeros_(self.score.weight)
        # Cut points are stored as a first one and positive steps, so that no update can put them out of order.
        self.first_cut = nn.Parameter(torch.zeros(len(self.level_counts)))
        # A dimension of two levels has no steps, and an empty parameter would upset sharded training.
        self.raw_steps = nn.ParameterDict(
            {str(d): nn.Parameter(torch.zeros(n - 2)) for d, n in enumerate(self.level_counts) if n > 2}
        )

    def set_priors(self, counts: Sequence[Sequence[int]]) -> None:
        """Puts the cut points where a constant prediction would: `counts[d][k]` ratings at level k of dimension d.

        Before the first step the heads then predict how often each level occurs (with half a rating added to each),
        and training has only the differences between dialogues to learn.
        """
        with torch.no_grad():
            for dimension, level_counts in enumerate(counts):
                smoothed = [count + 0.5 for count in level_counts]
                total = sum(smoothed)
                above = [sum(smoothed[k + 1 :]) / total for k in range(len(smoothed) - 1)]
                cuts = [-math.log(p / (1 - p)) for p in above]
                self.first_cut[dimension] = cuts[0]
                for index, (low, high) in enumerate(pairwise(cuts)):
                    self.raw_steps[str(dimension)][index] = math.log(math.expm1(high - low))  # inverse softplus

    def cut_points(self, dimension: int) -> Tensor:
        """Increasing cut points of one dimension, shape [levels - 1]."""
        first = self.first_cut[dimension : dimension + 1]
        if self.level_counts[dimension] == 2:
            return first
        steps = functional.softplus(self.raw_steps[str(dimension)])
        return torch.cat([first, first + steps.cumsum(0)])

    def forward(self, pooled: Tensor) -> list[Tensor]:
        """Log probabilities of the levels: pooled [batch, hidden] -> one [batch, levels] a dimension, float32."""
        with torch.autocast(pooled.device.type, enabled=False):  # a trainer in bfloat16 would round the scores
            scores = self.score(self.norm(pooled.float()))
        return [
            cumulative_log_probabilities(scores[:, index], self.cut_points(index))
            for index in range(len(self.level_counts))
        ]


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


def ordinal_loss(log_probabilities: Sequence[Tensor], labels: Tensor, rating_count: Tensor | int | None) -> Tensor:
    """Mean negative log likelihood of the ratings that are there.

    Args:
        log_probabilities: one [batch, levels] a dimension.
        labels: level indices from 0, [batch, raters, dimensions]; MISSING (-100) where there is no rating.
        rating_count: ratings to divide by (those of the whole accumulated batch over all devices); None: those here.
    """
    total = log_probabilities[0].new_zeros(())
    for index, logs in enumerate(log_probabilities):
        wanted = labels[:, :, index]
        present = wanted != MISSING
        # Indexing a masked-out entry by 0 and multiplying by 0 keeps shapes fixed and gradients of the rest untouched.
        chosen = logs.gather(1, wanted.clamp(min=0))
        total = total - torch.where(present, chosen, torch.zeros_like(chosen)).sum()
    if rating_count is None:
        rating_count = (labels != MISSING).sum()
    return total / torch.as_tensor(rating_count, device=total.device).clamp(min=1)
