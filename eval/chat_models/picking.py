"""The next token of each row from its logits: greedy, or drawn in a way that no other row has a part in."""

from collections.abc import Sequence
from typing import Protocol

import torch

from eval.chat_models.base import Sampling

NUCLEUS_FIRST_LOOK = 256


class Drawing(Protocol):
    """A row that tokens are drawn for: its own random numbers, and whether it still takes any."""

    @property
    def done(self) -> bool: ...

    def draw(self) -> float:
        """The row's next uniform number in 0..1."""
        ...


def pick(logits: torch.Tensor, sampling: Sampling, rows: Sequence[Drawing]) -> list[int | None]:
    """The next token of each row from its logits [rows, vocabulary]; None where they hold no distribution.

    One uniform number a token from the row's own generator, looked up in the cumulative distribution of the nucleus
    in the order of token ids: what is drawn depends on nothing but the row's logits, seed and position.
    """
    valid = logits.amax(-1).isfinite().tolist()
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
    else:
        probabilities = torch.softmax(logits / sampling.temperature, dim=-1)
        ids, weights = _nucleus(probabilities, sampling.top_p)
        cumulative = weights.double().cumsum(-1)
        uniform = [0.0 if row.done else row.draw() for row in rows]
        aims = torch.tensor(uniform, dtype=torch.double, device=logits.device) * cumulative[:, -1]
        # `<=`: a candidate of weight 0 is never the first whose sum exceeds the aim.
        places = (cumulative <= aims[:, None]).sum(-1, keepdim=True).clamp(max=ids.shape[-1] - 1)
        chosen = ids.gather(-1, places).squeeze(-1)
    return [token if good else None for token, good in zip(chosen.tolist(), valid, strict=True)]


def _nucleus(probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidate ids [rows, n], ascending, and their probabilities, 0 outside the smallest set that reaches top_p.

    Nucleus sampling of Holtzman et al. 2020 (arXiv 1904.09751). The most probable few hundred nearly always reach
    top_p, so the whole vocabulary is sorted only when they do not.
    """
    vocabulary = probabilities.shape[-1]
    if top_p >= 1:
        return torch.arange(vocabulary, device=probabilities.device).expand_as(probabilities), probabilities
    width = min(NUCLEUS_FIRST_LOOK, vocabulary)
    while True:
        weights, ids = probabilities.topk(width, dim=-1)
        before = weights.double().cumsum(-1) - weights
        if width == vocabulary or bool((before[:, -1] >= top_p).all()):
            break
        width = min(8 * width, vocabulary)
    weights = weights.masked_fill(before >= top_p, 0.0)
    ids, order = ids.sort(dim=-1)
    return ids, weights.gather(-1, order)
