"""How well a chat model predicts one side's turns: negative log likelihood over exactly the supervised tokens."""

from collections.abc import Callable, Sequence
from typing import Any

from train.masking import IGNORED, Encoded


def dialogue_losses(
    model: Any,
    rows: Sequence[Encoded],
    batch_size: int = 4,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[float, int]]:
    """(sum of negative log likelihoods in nats, number of supervised tokens) of each row, in the rows' order.

    Rows are read in batches of similar length, in float32 where it matters. Perplexity over rows is
    exp(sum of losses / sum of tokens), as language models are compared.
    """
    import torch

    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].input_ids))
    losses: list[tuple[float, int]] = [(0.0, 0)] * len(rows)
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            ids, mask, labels = batch_of([rows[index] for index in chosen])
            logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
            for index, row_logits, row_labels in zip(chosen, logits, labels, strict=True):
                at = (row_labels[1:] != IGNORED).nonzero()[:, 0]
                wanted = row_labels[1:][at].to(device)
                # Only supervised positions go to float32 and through the softmax: most of a row is only read.
                loss = torch.nn.functional.cross_entropy(row_logits[at.to(device)].float(), wanted, reduction="sum")
                losses[index] = (float(loss), len(at))
            if progress:
                progress(len(chosen))
    return losses


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
