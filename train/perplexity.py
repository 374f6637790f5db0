"""How well a chat model predicts one side's turns: negative log likelihood over exactly the supervised tokens."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from train.masking import IGNORED, Encoded

Loss = tuple[float, int]
"""Sum of negative log likelihoods in nats, number of tokens."""


def turn_losses(
    model: Any,
    rows: Sequence[Encoded],
    batch_size: int = 4,
    progress: Callable[[int], None] | None = None,
) -> list[list[Loss]]:
    """The loss of each learned turn of each row, in the rows' order: a run of supervised tokens is a turn.

    Rows are read once, in batches of similar length, in float32 where it matters. Perplexity is
    exp(sum of losses / sum of tokens), as language models are compared.
    """
    import torch

    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].input_ids))
    losses: list[list[Loss]] = [[] for _ in rows]
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            ids, mask, labels = batch_of([rows[index] for index in chosen])
            shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED).to(device)
            each = _position_losses(model, ids.to(device), mask.to(device), shifted)
            for index, row_labels, row_losses in zip(chosen, labels, each, strict=True):
                at = (row_labels[1:] != IGNORED).nonzero()[:, 0]
                turn = (at.diff(prepend=at[:1]) > 1).cumsum(0)
                sums = torch.bincount(turn, weights=row_losses.double().cpu())
                losses[index] = list(zip(sums.tolist(), torch.bincount(turn).tolist(), strict=True))
            if progress:
                progress(len(chosen))
    return losses


def _position_losses(model: Any, ids: Any, mask: Any, shifted: Any) -> Any:
    """For each row the losses [its supervised positions] in float32; `shifted` [rows, length] labels the next token.

    Only supervised positions go through the head and the softmax: most of a row is only read.
    """
    import torch

    from train.loss import keeps_positions

    inner = getattr(model, "module", model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    kept = shifted != IGNORED
    inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if keeps_positions(inner):
        logits = model(**inputs, logits_to_keep=kept).logits
    else:
        logits = model(**inputs).logits[kept]
    losses = torch.nn.functional.cross_entropy(logits.float(), shifted[kept], reduction="none")
    return losses.split(kept.sum(dim=1).tolist())


def total(losses: Sequence[Loss]) -> Loss:
    """The losses of several turns as one."""
    return sum(loss for loss, _ in losses), sum(tokens for _, tokens in losses)


def dialogue_losses(
    model: Any,
    rows: Sequence[Encoded],
    batch_size: int = 4,
    progress: Callable[[int], None] | None = None,
) -> list[Loss]:
    """The loss of each row, in the rows' order."""
    return [total(turns) for turns in turn_losses(model, rows, batch_size, progress)]


def perplexity(losses: Sequence[Loss]) -> float | None:
    """exp(loss / tokens); None when there is no token, or the loss is NaN or beyond what a float holds."""
    loss, tokens = total(losses)
    mean = loss / tokens if tokens else math.nan
    return math.exp(mean) if mean < 700 else None


def by_turn(losses: Sequence[Sequence[Loss]]) -> list[dict[str, Any]]:
    """Perplexity at each turn position: `turn` (from 1, among a row's learned turns), `tokens`, `perplexity`.

    In a dialogue that lost its oldest turns the first one kept is turn 1.
    """
    longest = max(map(len, losses), default=0)
    positions = [[turns[at] for turns in losses if at < len(turns)] for at in range(longest)]
    return [
        {"turn": at + 1, "tokens": total(turns)[1], "perplexity": perplexity(turns)}
        for at, turns in enumerate(positions)
    ]


def validation_figures(trainer: Any, rows: Sequence[Encoded]) -> dict[str, Any] | None:
    """`perplexity` and `by_turn` of the trainer's model on held-out rows; None without rows.

    Every process reads its share and as many batches as the others, since under ZeRO-3 each forward is a joint one.
    """
    from torch import distributed

    if not rows:
        return None
    several = trainer.args.world_size > 1
    rank, world = trainer.args.process_index, trainer.args.world_size
    model = trainer.model_wrapped if several else trainer.model
    model.eval()
    share = list(rows[rank::world])
    filled = share + [rows[0]] * (math.ceil(len(rows) / world) - len(share))
    losses = turn_losses(model, filled, trainer.args.per_device_eval_batch_size)[: len(share)]
    if several:
        shares: list[Any] = [None] * world
        distributed.all_gather_object(shares, losses)
        losses = [turns for share in shares for turns in share]
    return {"perplexity": perplexity([total(turns) for turns in losses]), "by_turn": by_turn(losses)}


def batch_of(rows: Sequence[Encoded]) -> tuple[Any, Any, Any]:
    """Ids, attention mask and labels [rows, longest], padded on the right."""
    import torch

    longest = max(len(row.input_ids) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full((len(rows), longest), IGNORED)
    for index, row in enumerate(rows):
        ids[index, : len(row.input_ids)] = torch.tensor(row.input_ids)
        mask[index, : len(row.input_ids)] = 1
        labels[index, : len(row.labels)] = torch.tensor(row.labels)
    return ids, mask, labels
