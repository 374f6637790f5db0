"""The order of rows: a function of seed and epoch, every row once, little padding."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from train.sampling import LengthSampler, length_order, make_sampler, random_order

LENGTHS = random.Random(1).choices(range(1, 501), k=1003)


@given(st.lists(st.integers(1, 50), max_size=80), st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_every_row_comes_once_for_any_lengths(lengths, batch_size, seed, epoch):
    assert sorted(length_order(lengths, batch_size, seed, epoch)) == list(range(len(lengths)))


def test_the_order_depends_on_seed_and_epoch_alone():
    first = length_order(LENGTHS, 4, seed=1, epoch=0)
    random.random()
    assert length_order(LENGTHS, 4, seed=1, epoch=0) == first
    assert length_order(LENGTHS, 4, seed=1, epoch=1) != first
    assert length_order(LENGTHS, 4, seed=2, epoch=0) != first
    assert length_order(LENGTHS, 4, seed=0, epoch=0) != first


def test_the_sampler_follows_the_epoch_it_is_told():
    sampler = LengthSampler(LENGTHS, 4, seed=1)
    assert len(sampler) == len(LENGTHS)
    assert list(sampler) == length_order(LENGTHS, 4, 1, 0)
    assert list(sampler) == length_order(LENGTHS, 4, 1, 0)
    sampler.set_epoch(3)
    assert list(sampler) == length_order(LENGTHS, 4, 1, 3)


def padding(order: list[int], batch_size: int) -> int:
    batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
    return sum(max(LENGTHS[i] for i in batch) - LENGTHS[j] for batch in batches for j in batch)


def test_batches_are_of_similar_length_and_come_in_random_order():
    order = length_order(LENGTHS, 8, seed=1, epoch=0)
    by_chance = list(range(len(LENGTHS)))
    random.Random(0).shuffle(by_chance)
    assert padding(order, 8) < 0.1 * padding(by_chance, 8)
    longest = [max(LENGTHS[i] for i in order[at : at + 8]) for at in range(0, len(order), 8)]
    rising = sum(late >= early for early, late in pairwise(longest))
    assert 0.35 < rising / (len(longest) - 1) < 0.65  # neither ascending nor descending


def test_the_smaller_batch_is_last():
    """So that every other group of four is one whole batch: shifted by a row, groups would straddle two batches."""
    for seed in range(20):
        order = length_order(LENGTHS, 4, seed, 0)
        assert padding(order, 4) < 0.5 * padding(order[3:] + order[:3], 4)


@given(st.integers(0, 80), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_a_random_order_has_every_row_once(count, seed, epoch):
    assert sorted(random_order(count, seed, epoch)) == list(range(count))
    assert random_order(count, seed, epoch) == random_order(count, seed, epoch)


def test_a_random_order_depends_on_seed_and_epoch_and_ignores_length():
    sampler = make_sampler("random", LENGTHS, 8, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    orders = [first, list(sampler), list(make_sampler("random", LENGTHS, 8, seed=2))]
    assert len({tuple(order) for order in orders}) == 3
    assert first == random_order(len(LENGTHS), 1, 0) == list(make_sampler("random", [1] * len(LENGTHS), 2, seed=1))
    assert min(padding(order, 8) for order in orders) > 5 * padding(list(make_sampler("length", LENGTHS, 8, 1)), 8)
