"""The loss of a chat model over its supervised positions alone.

Most of a row is only read. The language-model head, the widest matrix of a small model, is asked for logits at the
positions whose next token carries loss, by the `logits_to_keep` mask that the models' own forward takes:

    tokens    system  user   hello  <turn>  hi     !      <end>  user
    labels    -100    -100   -100   -100    hi     !      <end>  -100
    kept                            x       x      x                     (each predicts the next token's label)

The forward is the (wrapped) model's own, so adapters, soft-capped or scaled logits, DeepSpeed and FSDP are as always.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from train.masking import IGNORED

# Rows of logits that are worked on at once: a block of this many stays in the processor's cache.
BLOCK = 16


class SummedCrossEntropy(torch.autograd.Function):
    """Sum of -log p(target), with the entropy and the top-1 hits of the same pass, for logits of shape (tokens, words).

    The softmax is the dear part. It is made once, in float32, and its memory becomes the gradient:
    softmax(logits) - onehot(targets). The logarithm of its divisor is read off the largest entry of each row,
    log sum exp(x) = max x - log max p, and H = log sum exp(x) - sum p x.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradient = torch.empty_like(logits)
        loss, entropy, correct = (logits.new_zeros((), dtype=torch.float32) for _ in range(3))
        for start in range(0, len(targets), BLOCK):
            rows = logits[start : start + BLOCK].float()
            wanted = targets[start : start + BLOCK, None]
            softmax = rows.softmax(-1)
            largest, chosen = rows.amax(-1, keepdim=True), rows.gather(1, wanted)
            log_total = largest - softmax.amax(-1, keepdim=True).log()
            loss += (log_total - chosen).sum()
            # Not linalg.vecdot, which autocast would round to half precision.
            entropy += (log_total[:, 0] - (softmax * rows).sum(-1)).sum()
            correct += (chosen == largest).sum()
            softmax.scatter_add_(1, wanted, torch.full_like(log_total, -1.0))
            gradient[start : start + BLOCK] = softmax
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(entropy, correct)
        return loss, entropy, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer[0]), None  # in place: a second backward is refused by torch, not wrong


@dataclass(frozen=True)
class SupervisedLoss:
    """Sums over the supervised tokens of a batch, as scalars on its device; only `total` has a gradient."""

    total: torch.Tensor
    """Negative log likelihood in nats, summed."""
    entropy: torch.Tensor
    """Of the predicted distributions, in nats, summed."""
    correct: torch.Tensor
    """Tokens that were the most likely one."""
    tokens: torch.Tensor
    """How many carry loss."""


def keeps_positions(model: Any) -> bool:
    """Whether the forward of this (bare) model takes a boolean mask of positions as `logits_to_keep`.

    The parameter alone does not say so: older code takes a count or one list of positions for all rows.
    """
    forward = inspect.unwrap(type(model).forward)
    return "logits_to_keep" in inspect.signature(forward).parameters and "slice_logits_to_keep" in forward.__globals__


def is_right_padded(mask: torch.Tensor | None) -> bool:
    """Whether all padding of a (batch, length) attention mask stands at the end of its rows.

    Then a causal model needs no mask: no real position looks ahead to the padding, and nobody asks what the padding
    sees. Without one, SDPA skips the upper half of the attention matrix instead of reading a mask for it.
    """
    return mask is not None and mask.ndim == 2 and bool((mask[:, 1:] <= mask[:, :-1]).all())


def supervised_loss(model: Any, inputs: dict[str, Any], keep: bool = True) -> SupervisedLoss:
    """One forward of `model` (wrapped or bare) and its summed loss.

    `inputs` are the forward's, with `labels` of shape (batch, length), -100 where nothing is learned; a label belongs
    to the position before it. With `keep` False the head is asked for every position and the selection made after,
    for a model whose forward has no `logits_to_keep`.
    """
    labels = inputs["labels"]
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    kept = shifted != IGNORED
    rest = {name: value for name, value in inputs.items() if name != "labels"}
    if is_right_padded(inputs.get("attention_mask")):
        del rest["attention_mask"]
    if keep:
        logits = model(**rest, logits_to_keep=kept, use_cache=False).logits
    else:
        logits = model(**rest, use_cache=False).logits[kept]
    total, entropy, correct = SummedCrossEntropy.apply(logits, shifted[kept].to(logits.device))
    return SupervisedLoss(total, entropy, correct, kept.sum())
