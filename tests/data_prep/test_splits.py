import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.leaks import KINDS, dataset_name, explain_cards, leak_report
from data_prep.official import read_cards
from data_prep.records import Dialogue, RoleCard, Turn
from data_prep.sources import get_source
from data_prep.splits import GROUP_KINDS, groups, keys_of, normalised, split_by_group, value_of

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
    dialogues = [dialogue(n) for n in range(100)]
    parts = split_by_group(dialogues, {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=1, near=None)
    assert {name: len(part) for name, part in parts.items()} == {"train": 80, "valid": 10, "test": 10}


@pytest.mark.parametrize("seed", range(5))
def test_large_groups_go_first_so_that_small_ones_can_level_the_sizes(seed):
    dialogues = [dialogue(n, LONG if n < 5 else None) for n in range(10)]
    parts = split_by_group(dialogues, {"train": 0.5, "test": 0.5}, seed, near=None)
    assert [len(part) for part in parts.values()] == [5, 5]


def test_another_seed_gives_another_split_and_the_same_seed_the_same():
    dialogues = [dialogue(n) for n in range(40)]
    tests = [
        {d.id for d in split_by_group(dialogues, {"train": 0.8, "test": 0.2}, seed, near=None)["test"]}
        for seed in (1, 1, 2)
    ]
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
        parts = split_by_group(dialogues, fractions, seed, near=None)
    except UserError as error:
        parts = None
        reason = str(error)
    if parts is None:
        assert "would be empty" in reason
        assert len(groups(dialogues)) < 6
        return
    assert sorted(d.id for part in parts.values() for d in part) == sorted(d.id for d in dialogues)
    assert all(leak.shared == 0 for leak in leak_report(parts["train"], parts["test"], near=None))
    largest = max(len(group) for group in groups(dialogues))
    assert abs(len(parts["test"]) - 0.3 * len(dialogues)) < largest
    shuffled = list(dialogues)
    shuffler.shuffle(shuffled)
    assert split_by_group(shuffled, fractions, seed, near=None) == parts


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
    report = {leak.kind: leak for leak in leak_report(a, b, near=None)}
    assert tuple(report) == tuple(kind for kind in KINDS if not kind.startswith("near_"))
    assert {kind: leak.shared for kind, leak in report.items()} == {
        "id": 1,
        "card": 0,
        "situation": 1,
        "opening": 2,
        "text": 1,
        "card_source": 0,
        "phrase": 0,
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


REWORDED = LONG.replace("in May", "in June")
# Made dialogues differ in a number only, which is a near duplicate: these have texts of their own.
WORDS = ["apple", "river", "stone", "cloud", "lamp", "chair", "garden", "window", "paper", "music", "winter", "bridge"]


def apart(number, **changes):
    draw = random.Random(number)
    said = " ".join(draw.choices(WORDS, k=30))
    return dialogue(number, f"{number} {said}", **changes)


def test_near_duplicates_stay_together_unless_that_is_switched_off():
    first, second, third = apart(1), apart(2), apart(3)
    pairs = [
        (dialogue(1, LONG), dialogue(2, REWORDED)),
        (
            apart(1, situation="My brother moved out and I can not sleep any more since then"),
            apart(2, card=card("c", "my brother moved out, and I cannot sleep any more since then")),
        ),
        (first, first.model_copy(update={"id": "copy", "turns": (*first.turns, Turn(speaker="seeker", text="bye"))})),
    ]
    for one, other in pairs:
        assert len(groups([one, other], near=0.8)) == 1
    assert len(groups([*pairs[0]], near=None)) == 2
    assert len(groups([*pairs[0]], near=1.0)) == 2
    assert len(groups([first, second, third], near=0.8)) == 3
    # Two words are alike by chance.
    assert len(groups([apart(1, situation="job crisis"), apart(2, situation="job crises")], near=0.5)) == 2


def test_a_split_with_near_duplicates_leaks_none_and_does_not_depend_on_the_order():
    dialogues = [apart(n) for n in range(40)]
    dialogues += [d.model_copy(update={"id": f"near-{d.id}", "situation": f"s{d.id}"}) for d in dialogues[::4]]
    dialogues = [
        d.model_copy(update={"turns": (*d.turns, Turn(speaker="seeker", text="thanks"))}) if "near" in d.id else d
        for d in dialogues
    ]
    fractions = {"train": 0.6, "test": 0.4}
    parts = split_by_group(dialogues, fractions, seed=3)
    assert not any(leak.shared for leak in leak_report(parts["train"], parts["test"]))
    assert split_by_group(dialogues[::-1], fractions, seed=3) == parts
    report = {leak.kind: leak for leak in leak_report(dialogues[:40], dialogues[40:])}
    assert len(report["near_text"].ids_b) == len(report["near_opening"].ids_b) == 10
    assert report["near_text"].ids_a == tuple(sorted(d.id for d in dialogues[:40:4]))


def test_grouping_by_any_key():
    dialogues = [apart(n).model_copy(update={"meta": {"client": n % 3, "deep": {"er": str(n % 2)}}}) for n in range(12)]
    assert len(groups(dialogues, ["meta.client"])) == 3
    assert len(groups(dialogues, ["meta.deep.er"])) == 2
    assert len(groups(dialogues, ["meta.client", "meta.deep.er"])) == 1
    assert len(groups(dialogues, ["source"])) == 1
    alike = [apart(1, situation="my cat died"), apart(2, situation="my cat died")]
    assert (len(groups(alike)), len(groups(alike, ["card", "opening"]))) == (1, 2)
    # Who has no value is alone.
    assert len(groups([*dialogues, apart(50), apart(51)], ["meta.client"])) == 5
    carded = apart(1, card=card("a", "x", age="30")).model_copy(update={"meta": {"list": ["b", "a"], "none": []}})
    assert [value_of(carded, key) for key in ("card.age", "card.category", "meta.list", "meta.none", "language")] == [
        "30",
        None,
        '["b", "a"]',
        None,
        "en",
    ]
    for typed, meant in (
        ("situations", "situation"),
        ("openings", "opening"),
        ("sorce", "source"),
        ("meta.cliemt", "meta.client"),
        ("card.agee", "card.age"),
    ):
        with pytest.raises(UserError, match=f"--group-by: .*did you mean '{meant}'"):
            groups([*dialogues, carded], [typed])
    with pytest.raises(UserError, match=r"no dialogue has a value for 'meta\.clint'"):
        groups(dialogues, ["meta.clint"])
    for key in ("turns", "meta", "language.x", "situations"):
        with pytest.raises(UserError, match="is no key of a dialogue"):
            groups(dialogues, [key])


@pytest.mark.parametrize("seed", range(4))
def test_stratified_parts_have_their_share_of_every_value(seed):
    kinds = ["common"] * 60 + ["less"] * 30 + ["rare"] * 10
    dialogues = [
        apart(n).model_copy(update={"language": "zh" if n % 4 == 0 else "en", "meta": {"kind": kind}})
        for n, kind in enumerate(kinds)
    ]
    fractions = {"train": 0.8, "valid": 0.1, "test": 0.1}
    parts = split_by_group(dialogues, fractions, seed, stratify=["language", "meta.kind"])
    for name, part in parts.items():
        assert abs(len(part) - 100 * fractions[name]) <= 2
        for value, total in (("common", 60), ("less", 30), ("rare", 10)):
            assert abs(sum(d.meta["kind"] == value for d in part) - total * fractions[name]) <= 2
        assert abs(sum(d.language == "zh" for d in part) - 25 * fractions[name]) <= 2
    assert all(any(d.meta["kind"] == "rare" for d in part) for part in parts.values())
    assert split_by_group(dialogues[::-1], fractions, seed, stratify=["language", "meta.kind"]) == parts
    with pytest.raises(UserError, match=r"--stratify: no dialogue has a value for 'meta\.kin'"):
        split_by_group(dialogues, fractions, seed, stratify=["meta.kin"])


def test_cards_that_name_the_dataset_of_the_other_side_are_a_leak():
    said = "since the flood took our house I have been living out of two suitcases"
    dialogues = [apart(1, situation=said), apart(2), apart(3, card=card("own", "my own trouble"))]
    cards = [
        card("told", f"The user says that {said}").model_copy(update={"source": "MADE"}),
        card("anew", "a person who lost a home").model_copy(update={"source": "Made"}),
        card("near", said.replace("two", "three")).model_copy(update={"source": "made"}),
        card("other", said[:30]).model_copy(update={"source": "elsewhere"}),
    ]
    report = leak_report(dialogues, cards)
    assert tuple(leak.kind for leak in report) == KINDS
    by_kind = {leak.kind: leak for leak in report}
    assert by_kind["card_source"].ids_b == ("anew", "near", "told")
    assert by_kind["card_source"].ids_a == ("d1", "d2", "d3")
    assert by_kind["card_source"].shared == 1
    assert by_kind["phrase"].ids_b == ("near", "told")
    assert by_kind["phrase"].ids_a == ("d1",)
    assert "near" in by_kind["near_situation"].ids_b
    (sentence,) = explain_cards(report, dialogues, cards)
    assert sentence.startswith("3 of the 4 cards of B name the dataset of A as their source. For 2 of them the texts")
    (mirrored,) = explain_cards(leak_report(cards, dialogues), cards, dialogues)
    assert mirrored.startswith("3 of the 4 cards of A name the dataset of B")
    # A dataset's own cards, and two parts of one dataset, are no leak of this kind.
    assert explain_cards(leak_report(dialogues, dialogues), dialogues, dialogues) == []
    assert dataset_name("ES-Conv") == dataset_name("esconv ") == "esconv"
    assert dataset_name("Psych") == dataset_name("psych8k")


def test_a_dialogue_played_from_a_card_leaks_into_the_cards_dataset():
    played = apart(9, card=card("c").model_copy(update={"source": "ESconv"}))
    trained_on = apart(1).model_copy(update={"source": "esconv"})
    by_kind = {leak.kind: leak for leak in leak_report([trained_on], [played])}
    assert (by_kind["card_source"].ids_a, by_kind["card_source"].ids_b) == (("d1",), ("d9",))


def test_phrases_in_chinese_and_phrases_that_everybody_says():
    said = "去年冬天我在火车站丢了全部的行李"
    one = dialogue(1, f"你好，{said}，怎么办").model_copy(update={"language": "zh"})
    cards = [card("c", f"求助者说{said}").model_copy(update={"source": "elsewhere", "language": "zh"})]
    found = {leak.kind: leak for leak in leak_report([one], cards)}
    assert (found["phrase"].ids_a, found["phrase"].ids_b) == (("d1",), ("c",))
    many = [one.model_copy(update={"id": f"m{number}"}) for number in range(4)]
    assert {leak.kind: leak.shared for leak in leak_report(many, cards)}["phrase"] == 0


def test_real_official_cards_come_from_esconv(real_data):
    dialogues = [
        found
        for name in ("train", "valid")
        for found in get_source("esconv").read(real_data / "esconv" / f"{name}.txt").dialogues
    ]
    english = read_cards(real_data / "esceval" / "card_high_en.json")
    report = leak_report(dialogues, english)
    by_kind = {leak.kind: leak for leak in report}
    assert len(by_kind["card_source"].ids_b) == 158
    assert by_kind["card_source"].ids_b == tuple(sorted(found.id for found in english if found.source == "ESconv"))
    # The cards were written anew by a model: no problem is a near duplicate, 13 keep a phrase of the seeker's, and
    # none of these is a card of another dataset.
    assert by_kind["near_situation"].shared == 0
    assert len(by_kind["phrase"].ids_b) == 13
    assert set(by_kind["phrase"].ids_b) <= set(by_kind["card_source"].ids_b)
    (sentence,) = explain_cards(report, dialogues, english)
    assert sentence.startswith("158 of the 331 cards of B name the dataset of A as their source. For 13 of them")
    chinese = read_cards(real_data / "esceval" / "card_high_zh.json")
    assert not any(leak.shared for leak in leak_report(dialogues, chinese) if leak.kind in ("card_source", "phrase"))


def test_real_dialogues_are_stratified_by_problem(real_data):
    dialogues = get_source("esconv").read(real_data / "esconv" / "train.txt").dialogues
    fractions = {"train": 0.8, "valid": 0.1, "test": 0.1}
    parts = split_by_group(dialogues, fractions, 0, GROUP_KINDS, ["language", "meta.problem_type"])
    kinds = {d.meta["problem_type"] for d in dialogues}
    for name, part in parts.items():
        assert abs(len(part) - fractions[name] * 910) <= 3
        for kind in kinds:
            total = sum(d.meta["problem_type"] == kind for d in dialogues)
            assert abs(sum(d.meta["problem_type"] == kind for d in part) - total * fractions[name]) <= 2
