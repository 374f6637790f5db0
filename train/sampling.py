"""The order in which training rows are read: batches of similar length or at random, fixed by seed and epoch.

The library's own length grouping draws from an unseeded generator, so that a resumed run reads other rows than an
undisturbed one. These orders are functions of (seed, epoch) alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

# How many batches are sorted by length together: more means less padding, fewer means more random batches.
BATCHES_PER_POOL = 32


def length_order(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[int]:
    """All row indices once, so that consecutive groups of `batch_size` are rows of similar length.

    Rows are shuffled, cut into pools, sorted by length within a pool and cut into batches; then the batches are
    shuffled. The last, smaller batch stays last, so that every other group is a full batch.
    """
    generator = _generator(seed, epoch)
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    pool_size = batch_size * BATCHES_PER_POOL
    batches: list[list[int]] = []
    for start in range(0, len(shuffled), pool_size):
        pool = sorted(shuffled[start : start + pool_size], key=lambda index: lengths[index])
        batches += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    tail = [batches.pop()] if batches and len(batches[-1]) < batch_size else []
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [index for batch in [*(batches[i] for i in order), *tail] for index in batch]


def random_order(count: int, seed: int, epoch: int) -> list[int]:
    """All row indices once, whatever their length."""
    return torch.randperm(count, generator=_generator(seed, epoch)).tolist()


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


class LengthSampler(Sampler[int]):
    """`length_order` as a torch sampler; Accelerate calls `set_epoch` before every epoch, also after a resume."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths, self.batch_size, self.seed, self.epoch = list(lengths), batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(length_order(self.lengths, self.batch_size, self.seed, self.epoch))


class RandomOrderSampler(LengthSampler):
    """`random_order` in the same form."""

    def __iter__(self) -> Iterator[int]:
        return iter(random_order(len(self.lengths), self.seed, self.epoch))


def rows_per_step(arguments: Any) -> int:
    """Rows between two optimiser steps, over all processes: what `length_order` groups by.

    Batches of one step are then of similar length on every process, so that none waits for another, and a step reads
    the same rows however they are shared out: 4 at once, 4 times 1, or 2 on each of 2 processes.
    """
    return arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * max(1, arguments.world_size)


def make_sampler(order: str, lengths: Sequence[int], batch_size: int, seed: int) -> LengthSampler:
    """The sampler of a recipe's `data.order`: "length" or "random"."""
    return {"length": LengthSampler, "random": RandomOrderSampler}[order](lengths, batch_size, seed)
