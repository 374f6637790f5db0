"""One reading of prompts by a local model: what prompts of a row share is read once, the rest after it.

    row 0   s s s s s     . . t t t c       s: shared, t: a prompt's own rest, c: a label's beginning, .: hole, masked
    row 1   s s s . .     t t t t t c

Positions count real tokens only, so a hole never changes a result.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many first tokens all prompts share; at most all but the last of the shortest, whose logits are needed."""
    shortest = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    for place in range(shortest):
        if any(prompt[place] != first[place] for prompt in prompts):
            return place
    return shortest


class Reading:
    """Rows of shared beginnings, read once, that any number of continuations are read after.

    `rows[r]` are the token ids of row r's beginning; all may be empty. The model must be in evaluation mode.
    """

    def __init__(self, model: Any, rows: Sequence[Sequence[int]]):
        self.model = model
        self.inner = model.get_base_model() if hasattr(model, "peft_config") else model
        # transformers 5.24 renamed the argument; the older name goes when pyproject asks for 5.24.
        known = inspect.signature(self.inner.forward).parameters
        self.argument = "cache" if "cache" in known else "past_key_values"
        self.device = next(model.parameters()).device
        self.lengths = torch.tensor([len(row) for row in rows], device=self.device)
        self.width = max(len(row) for row in rows)
        self.mask = torch.arange(self.width, device=self.device) < self.lengths[:, None]
        self.cache = DynamicCache(config=model.config.get_text_config()) if self.width else None
        if self.width:
            ids = [[*row, *[0] * (self.width - len(row))] for row in rows]
            self._forward(torch.tensor(ids, device=self.device), self.mask, 1)

    def logits(self, tails: Sequence[Sequence[int]], keep: int) -> Any:
        """Float32 logits [rows, keep, vocabulary] of the last `keep` tokens of every row's continuation."""
        width = max(len(tail) for tail in tails)
        ids = torch.tensor([[0] * (width - len(tail)) + list(tail) for tail in tails], device=self.device)
        counts = torch.tensor([len(tail) for tail in tails], device=self.device)
        real = torch.arange(width, device=self.device) >= width - counts[:, None]
        out = self._forward(ids, real, keep)
        if self.cache is not None:
            self.cache.crop(-width)
        return out.logits[:, -keep:].float()

    def _forward(self, ids: Any, real: Any, keep: int) -> Any:
        fresh = self.cache is None or self.cache.get_seq_length() == 0
        mask = real if fresh else torch.cat([self.mask, real], dim=1)
        before = 0 if fresh else self.lengths[:, None]
        positions = (before + real.cumsum(1) - 1).clamp(min=0)
        options = {"use_cache": False} if self.cache is None else {"use_cache": True, self.argument: self.cache}
        return self.model(
            input_ids=ids, attention_mask=mask.long(), position_ids=positions, logits_to_keep=keep, **options
        )


def can_share(config: Any) -> bool:
    """Whether what was read can be cut back: not with sliding windows or recurrent states."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


@torch.inference_mode()
def read_prompts(
    model: Any, prompts: Sequence[Sequence[Sequence[int]]], chains: Sequence[Sequence[tuple[int, ...]]], share: bool
) -> Iterator[list[Any]]:
    """For every prompt number k: the logits after each of `chains[k]`, float32 [rows, 1 + len(chain), vocabulary].

    `prompts[k][r]` are the ids of row r's k-th prompt. With `share`, what the prompts of a row have in common is read
    once; a single prompt with a single chain is one plain forward either way.
    """
    rows = list(zip(*prompts, strict=True))
    many = len(prompts) > 1 or len(chains[0]) > 1
    common = [common_length(row) if share and many else 0 for row in rows]
    reading = Reading(model, [row[0][:length] for row, length in zip(rows, common, strict=True)])
    for asked, ends in zip(prompts, chains, strict=True):
        yield [
            reading.logits(
                [[*prompt[length:], *end] for prompt, length in zip(asked, common, strict=True)], len(end) + 1
            )
            for end in ends
        ]
