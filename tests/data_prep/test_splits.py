import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, Turn
from data_prep.sources import get_source
from data_prep.splits import KINDS, groups, keys_of, leak_report, normalised, split_by_group

LONG = "I have not slept since my brother moved out in May"


def dialogue(number, opening=None, situation=None, card=None, reply="tell me more"):
    # Digits make the texts differ from one another once normalised.
    opening = opening or f"{number} is when everything changed for me, number {number}"
    return Dialogue(
        id=f"d{number}",
        language="en",
        source="made",
        turns=(
            Turn(speaker="supporter", text="Hello"),
            Turn(speaker="seeker", text=opening),
            Turn(speaker="supporter", text=f"{reply} {number}"),
        ),
        situation=situation,
        card=card,
    )


def card(identifier, problem=None, **changes):
    return RoleCard(id=identifier, language="en", problem=problem, source="made", **changes)


def together(first, second) -> bool:
    return len(groups([first, second])) == 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (dialogue(1), dialogue(2), False),
        (dialogue(1, card=card("a")), dialogue(2, card=card("a")), True),
        (dialogue(1, card=card("a", "lost a job")), dialogue(2, card=card("b", "Lost a  job!")), True),
        (dialogue(1, card=card("a", "lost a job", age="3")), dialogue(2, card=card("b", "lost a job", age="4")), True),
        (dialogue(1, card=card("a", "x", text="Age: 3")), dialogue(2, card=card("b", "y", text="age 3")), True),
        (dialogue(1, card=card("a")), dialogue(2, card=card("b")), False),
        (dialogue(1, card=card("a")), dialogue(2, card=card("a").model_copy(update={"language": "zh"})), False),
        (dialogue(1, situation="My cat died."), dialogue(2, situation=" my CAT died"), True),
        (dialogue(1, situation="My cat died."), dialogue(2, card=card("a", "my cat died")), True),
        (dialogue(1, situation=""), dialogue(2, situation=" ?"), False),
        (dialogue(1, LONG), dialogue(2, f"{LONG.upper()} ..."), True),
        (dialogue(1, "hi, how are you today"), dialogue(2, "hi, how are you today"), False),
        (dialogue(1, "我最近总是睡不着觉很难受"), dialogue(2, "我最近总是睡不着觉，很难受。"), True),
        (dialogue(1, "你好，我想聊聊"), dialogue(2, "你好，我想聊聊"), False),
        (dialogue(1, "!!"), dialogue(2, "??"), False),
    ],
)
def test_what_keeps_two_dialogues_together(first, second, same):
    assert together(first, second) == same


def test_the_same_short_dialogue_stays_together():
    first = dialogue(1, "hi", reply="ok").model_copy(update={"turns": dialogue(7, "hi").turns})
    second = dialogue(2, "hi").model_copy(update={"turns": dialogue(7, "Hi!").turns})
    assert together(first, second)


def test_groups_are_transitive():
    chain = [dialogue(1, LONG), dialogue(2, LONG, "my cat died"), dialogue(3, situation="my cat died"), dialogue(4)]
    assert sorted(sorted(d.id for d in group) for group in groups(chain)) == [["d1", "d2", "d3"], ["d4"]]


def test_normalising_keeps_letters_and_digits_of_any_script():
    assert normalised("  Ｈｅｌｌｏ,\u200b WORLD!  你好。 ") == "hello world你好"
    assert normalised("…😀") == ""


def test_sizes_are_exact_for_single_dialogues():
    parts = split_by_group([dialogue(n) for n in range(100)], {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=1)
    assert {name: len(part) for name, part in parts.items()} == {"train": 80, "valid": 10, "test": 10}


@pytest.mark.parametrize("seed", range(5))
def test_large_groups_go_first_so_that_small_ones_can_level_the_sizes(seed):
    dialogues = [dialogue(n, LONG if n < 5 else None) for n in range(10)]
    parts = split_by_group(dialogues, {"train": 0.5, "test": 0.5}, seed)
    assert [len(part) for part in parts.values()] == [5, 5]


def test_another_seed_gives_another_split_and_the_same_seed_the_same():
    dialogues = [dialogue(n) for n in range(40)]
    tests = [{d.id for d in split_by_group(dialogues, {"train": 0.8, "test": 0.2}, seed)["test"]} for seed in (1, 1, 2)]
    assert tests[0] == tests[1] != tests[2]


topics = st.integers(0, 9)
made = st.lists(st.tuples(topics, topics, topics), min_size=6, max_size=40)


@settings(max_examples=100, deadline=None)
@given(made, st.integers(0, 5), st.randoms(use_true_random=False))
def test_no_two_parts_share_anything_and_order_does_not_matter(rows, seed, shuffler):
    dialogues = [
        dialogue(
            n,
            opening=f"{'abcdefghij'[a]} is the name of what has kept me awake for weeks" if a < 5 else None,
            situation=f"{'abcdefghij'[b]} situation" if b < 5 else None,
            card=card("abcdefghij"[c]) if c < 5 else None,
        )
        for n, (a, b, c) in enumerate(rows)
    ]
    fractions = {"train": 0.7, "test": 0.3}
    try:
        parts = split_by_group(dialogues, fractions, seed)
    except UserError as error:
        parts = None
        reason = str(error)
    if parts is None:
        assert "would be empty" in reason
        assert len(groups(dialogues)) < 6
        return
    assert sorted(d.id for part in parts.values() for d in part) == sorted(d.id for d in dialogues)
    assert all(leak.shared == 0 for leak in leak_report(parts["train"], parts["test"]))
    largest = max(len(group) for group in groups(dialogues))
    assert abs(len(parts["test"]) - 0.3 * len(dialogues)) < largest
    shuffled = list(dialogues)
    shuffler.shuffle(shuffled)
    assert split_by_group(shuffled, fractions, seed) == parts


@pytest.mark.parametrize(
    ("fractions", "says"),
    [
        ({"train": 1.0}, "two or more parts"),
        ({"train": 0.8, "test": 0.1}, "sum to 0.9"),
        ({"train": 1.2, "test": -0.2}, "fraction of 'train' is 1.2"),
        ({"train": 1.0, "test": 0.0}, "fraction of 'train' is 1"),
        ({"train": float("nan"), "test": 0.5}, "fraction of 'train' is nan"),
    ],
)
def test_impossible_fractions(fractions, says):
    with pytest.raises(UserError, match=says):
        split_by_group([dialogue(1), dialogue(2)], fractions, 0)


def test_too_few_groups_and_repeated_ids_are_errors():
    with pytest.raises(UserError, match="2 dialogues make only 1 separate groups"):
        split_by_group([dialogue(1, LONG), dialogue(2, LONG)], {"train": 0.5, "test": 0.5}, 0)
    with pytest.raises(UserError, match="'d1' occurs twice"):
        split_by_group([dialogue(1), dialogue(1)], {"train": 0.5, "test": 0.5}, 0)


def test_the_leak_report_counts_both_sides_by_kind():
    a = [dialogue(1, LONG), dialogue(2, LONG), dialogue(3, situation="my cat died"), dialogue(4)]
    b = [dialogue(5, LONG), dialogue(6, situation="My cat died."), dialogue(4), dialogue(7)]
    report = {leak.kind: leak for leak in leak_report(a, b)}
    assert tuple(report) == KINDS
    assert {kind: leak.shared for kind, leak in report.items()} == {
        "id": 1,
        "card": 0,
        "situation": 1,
        "opening": 2,
        "text": 1,
    }
    assert report["opening"].ids_a == ("d1", "d2", "d4")
    assert report["opening"].ids_b == ("d4", "d5")
    assert str(report["opening"]) == "opening: 2 shared, 3 records of A and 2 of B"
    assert report["card"].ids_a == report["card"].ids_b == ()


def test_cards_made_from_a_dataset_leak_into_it_by_their_problem():
    leaks = {
        leak.kind: leak for leak in leak_report([dialogue(1, situation="My cat died.")], [card("c", "my cat died")])
    }
    assert (leaks["situation"].ids_a, leaks["situation"].ids_b) == (("d1",), ("c",))
    assert ("id", "c") in keys_of(card("c"))


def test_real_dialogues_split_without_a_leak(real_data):
    dialogues = get_source("esconv").read(real_data / "esconv" / "train.txt").dialogues
    # 908 of 910 situations differ, so at least two pairs must be found.
    assert len(groups(dialogues)) <= 908
    parts = split_by_group(dialogues, {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=0)
    assert [len(part) for part in parts.values()] == [728, 91, 91]
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not any(leak.shared for leak in leak_report(parts[one], parts[other]))
    shuffled = random.Random(1).sample(dialogues, len(dialogues))
    assert split_by_group(shuffled, {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=0) == parts
