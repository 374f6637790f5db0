"""What a scorer reads of a long dialogue, under every policy."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.records import Dialogue
from tests.train.made import dialogue
from train.plan_data import EstimatedTokenizer
from train.scorer_text import encode_dialogue, window_batch


class Letters:
    """A tokenizer of one token a character; a turn begins with its speaker."""

    cls_token_id, sep_token_id, bos_token_id, eos_token_id = 1, 2, None, None

    def __call__(self, text, **options):
        assert options == {"split_special_tokens": True, "add_special_tokens": False}
        return {"input_ids": [ord(c) for c in text]}


def read(texts, max_length, how):
    made = Dialogue.model_validate(dialogue("d", *texts))
    windows, long = encode_dialogue(Letters(), made, max_length, how)
    assert all(window[0] == 1 for window in windows)
    return ["".join("|" if t == 2 else chr(t) for t in window[1:]) for window in windows], long


TEXTS = ("one", "two", "three", "four")
WHOLE = "supporter: one|seeker: two|supporter: three|seeker: four|"


@pytest.mark.parametrize("how", ["last_turns", "head_and_tail", "windows"])
def test_a_dialogue_that_fits_is_read_whole(how):
    assert read(TEXTS, len(WHOLE) + 1, how) == ([WHOLE], False)


def test_last_turns_keep_the_end():
    assert read(TEXTS, 34, "last_turns") == (["supporter: three|seeker: four|"], True)


def test_head_and_tail_keep_both_and_mark_the_gap():
    texts = ("one", "two", "in between", "as well", "three", "four")
    assert read(texts, 56, "head_and_tail") == (["supporter: one|[...]|supporter: three|seeker: four|"], True)


def test_head_and_tail_of_one_long_turn_are_its_beginning_and_its_end():
    (found,), long = read(("a" * 50 + "b" * 50,), 61, "head_and_tail")
    assert long
    assert len(found) <= 60
    assert found.startswith("supporter: aaaa")
    assert found.endswith("bbbb|")
    assert "|[...]|" in found


def test_windows_overlap_by_half_and_cover_everything():
    texts = [f"turn number {n:02d}" for n in range(10)]
    found, long = read(texts, 101, "windows")
    assert long
    turns = [window.split("|")[:-1] for window in found]
    assert [len(window) for window in turns] == [4, 4, 4, 4]
    for before, after in pairwise(turns):
        assert before[-2:] == after[:2]
    assert {text.split(": ")[1] for window in turns for text in window} == set(texts)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.integers(14, 70),
    st.sampled_from(["last_turns", "head_and_tail", "windows"]),
)
def test_no_policy_reads_more_than_it_may_or_loses_a_window(lengths, max_length, how):
    """Every turn has its own letter, so what was read can be counted."""
    texts = [chr(0x4E00 + n) * length or "。" for n, length in enumerate(lengths)]
    windows, long = read(texts, max_length, how)
    assert max(map(len, windows)) <= max_length - 1
    whole = sum(len(text) + len(("supporter: ", "seeker: ")[n % 2]) + 1 for n, text in enumerate(texts))
    assert long == (whole > max_length - 1)
    if how != "windows":
        assert len(windows) == 1
        assert windows[0].endswith("|")
    else:
        letters = {letter for text in texts for letter in text}
        assert letters <= set("".join(windows))
        total = {letter: sum(window.count(letter) for window in windows) for letter in letters}
        assert all(total[text[0]] >= len(text) for text in texts)


def test_the_estimate_of_a_plan_reads_the_same_way():
    made = Dialogue.model_validate(dialogue("d", "a" * 100, "b" * 100))
    assert encode_dialogue(EstimatedTokenizer(50_000), made, 20, "windows")[1]


def test_windows_of_several_dialogues_stand_in_order():
    batch = window_batch([[[5, 6]], [[7], [8, 9, 10]], [[11]]], 0)
    assert batch["dialogue_of"].tolist() == [0, 1, 1, 2]
    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 0, 0], [8, 9, 10], [11, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [2, 1, 3, 1]
