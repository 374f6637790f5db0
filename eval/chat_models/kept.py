"""What is kept of conversations between turns, and a cache layer that keys and values can be laid into."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

SLOTS_AT_ONCE = 64


@dataclass
class Held:
    """What is kept of one conversation: its ids, and for every layer keys and values [heads, len(ids), head size]."""

    ids: list[int] = field(default_factory=list)
    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class RoomyLayer(DynamicLayer):
    """A cache layer with room to spare, so that adding a token does not copy all that came before it."""

    room: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def holding(
        cls, pairs: Sequence[tuple[torch.Tensor, torch.Tensor] | None], lengths: Sequence[int], width: int
    ) -> Any:
        """A layer of `width` slots with the first `lengths[row]` keys and values of every pair; the rest is 0."""
        layer = cls()
        some = next(pair for pair in pairs if pair is not None)
        layer.lazy_initialization(*some)
        layer.room = tuple(_room(len(pairs), like[None], width) for like in some)  # type: ignore[assignment]
        for row, (pair, length) in enumerate(zip(pairs, lengths, strict=True)):
            if pair is not None:
                for room, kept in zip(layer.room, pair, strict=True):  # type: ignore[arg-type]
                    room[row, :, :length] = kept[:, :length]
        layer._show(width)
        return layer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = (key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(*new)
        used = self.get_seq_length()
        end = used + key_states.shape[-2]
        if self.room is None or end > self.room[0].shape[-2]:
            roomier = tuple(_room(len(states), states, end) for states in new)
            if self.room is not None:
                for room, old in zip(roomier, self.room, strict=True):
                    room[:, :, :used] = old[:, :, :used]
            self.room = roomier  # type: ignore[assignment]
        for room, states in zip(self.room, new, strict=True):  # type: ignore[arg-type]
            room[:, :, used:end] = states
        self._show(end)
        return self.keys, self.values  # type: ignore[return-value]

    def _show(self, slots: int) -> None:
        assert self.room is not None
        self.keys, self.values = self.room[0][:, :, :slots], self.room[1][:, :, :slots]


def _room(rows: int, like: torch.Tensor, slots: int) -> torch.Tensor:
    """Zeros (a hole must be finite) for `slots` slots and some more; otherwise like `like` [rows, heads, n, size]."""
    _, heads, _, size = like.shape
    return like.new_zeros(rows, heads, slots + SLOTS_AT_ONCE, size)
