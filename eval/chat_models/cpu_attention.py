"""Attention for generating on a CPU: a step of one token a row is a small matrix product, and is done as one.

torch's fused kernel works in blocks of many queries; with one query a row and a mask it spends most of its time on
empty blocks, and grouped heads are copied for it first. The products below read every key once, groups together.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "esckit_cpu"
MOST_QUERIES = 16
"""Queries a row up to which the products are faster than the kernel (benchmarks/simulate_vs_official.py)."""


def cpu_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(q kᵀ · scaling + mask) v for query [rows, heads, n, size] and key, value [rows, groups, slots, size].

    Returns [rows, n, heads, size], as transformers expects. A query that sees nothing (a hole) gets the mean of all
    values: finite, and read by nobody.
    """
    rows, heads, count, size = query.shape
    if attention_mask is None or count > MOST_QUERIES or dropout:
        found: Any = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return found
    groups = key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    # All heads of a group beside each other: one product a group.
    asked = (query * scale).reshape(rows, groups, heads // groups * count, size)
    scores = (asked @ key.transpose(2, 3)).view(rows, groups, heads // groups, count, key.shape[2])
    mask = attention_mask[:, :, None, :, : key.shape[2]]
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    else:
        scores = scores + mask
    weights = scores.softmax(-1).view(rows, groups, heads // groups * count, key.shape[2])
    out = (weights @ value).view(rows, heads, count, size)
    return out.transpose(1, 2).contiguous(), None


def use_cpu_attention(model: Any) -> None:
    """Switches a model on a CPU that would use torch's kernel to this; other models are left alone."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    if inner.device.type == "cpu" and inner.config.get_text_config()._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, cpu_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        inner.set_attn_implementation(NAME)
