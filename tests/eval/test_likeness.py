"""Simulated beside real seekers: the figures by hand, and a classifier that can and cannot tell them apart."""

import random

import pytest

from data_prep.records import Dialogue, RoleCard, Turn
from eval.likeness import compare_seekers, distinct, seeker_turns, thanks_curve, two_sample_auc

WORDS = [
    "sleep",
    "work",
    "money",
    "rent",
    "night",
    "boss",
    "exam",
    "friend",
    "mother",
    "quiet",
    "angry",
    "tired",
    "afraid",
    "alone",
    "home",
    "school",
]
CHINESE = ["睡觉", "工作", "房租", "晚上", "老板", "考试", "朋友", "妈妈", "生气", "害怕", "孤单", "学校"]


def made(count: int, seed: int, ending: str = "", words=WORDS, language: str = "en") -> list[Dialogue]:
    draw = random.Random(seed)
    dialogues = []
    for number in range(count):
        turns = []
        for _ in range(3):
            text = " ".join(draw.choices(words, k=draw.randint(4, 9)))
            turns += [Turn(speaker="seeker", text=f"{text}{ending}"), Turn(speaker="supporter", text="I see.")]
        card = RoleCard(id=f"{seed}-{number}", language=language, problem=" ".join(words[:10]), source="made")
        dialogues.append(Dialogue(id=f"{seed}-{number}", language=language, source="made", turns=turns, card=card))
    return dialogues


@pytest.mark.parametrize(("words", "language"), [(WORDS, "en"), (CHINESE, "zh")])
def test_equal_seekers_cannot_be_told_apart_and_different_ones_can(words, language):
    same = compare_seekers(made(40, 1, "", words, language), made(40, 2, "", words, language), 3, resamples=99)
    assert 0.3 < same.auc < 0.7
    assert same.auc_low < 0.5 < same.auc_high
    told = compare_seekers(made(40, 1, " 谢谢", words, language), made(40, 2, "", words, language), 3, resamples=99)
    assert told.auc > 0.95
    assert told.thanks_by_round == ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))


def test_a_classifier_does_not_learn_the_cards():
    """Both sets play the same cards: what it knows of a card must not help it, as no card is on both sides."""
    first, second = made(30, 1), made(30, 1)
    found = compare_seekers(first, second, 3, resamples=99)
    assert found.auc == pytest.approx(0.5, abs=0.2)


def test_too_few_dialogues_have_no_auc():
    found = compare_seekers(made(4, 1), made(40, 2), 3, resamples=99)
    assert found.auc is None
    assert "needs 10 dialogues" in found.reason
    assert found.features[0].simulated[0] > 0
    assert compare_seekers([], made(12, 2), 3).features == ()


def test_figures_by_hand():
    turns = [
        Turn(speaker="supporter", text="Hello"),
        Turn(speaker="seeker", text="Why me? Why now?"),
        Turn(speaker="seeker", text="I am sad."),
        Turn(speaker="supporter", text="I see"),
        Turn(speaker="seeker", text="Thank you."),
        Turn(speaker="supporter", text="Bye"),
        Turn(speaker="seeker", text="a later turn"),
    ]
    dialogue = Dialogue(id="a", language="en", source="made", turns=turns)
    assert seeker_turns(dialogue, 2) == ["Why me? Why now?\nI am sad.", "Thank you."]
    found = {
        feature.name: feature.simulated[0]
        for feature in compare_seekers([dialogue, dialogue], [dialogue, dialogue], 2, resamples=99).features
    }
    assert found["words a turn"] == pytest.approx((7 + 2) / 2)
    assert found["sentences a turn"] == pytest.approx((3 + 1) / 2)
    assert found["turns with a question"] == 0.5
    assert found["turns with thanks"] == 0.5


def test_distinct_n_by_hand():
    assert distinct(["a b a b"], 1) == 2 / 4
    assert distinct(["a b a b"], 2) == 2 / 3
    assert distinct(["我我你"], 1) == 2 / 3
    assert distinct([""], 2) == 0.0
    assert distinct([" ".join(map(str, range(60))) + " 0" * 500], 1) == 1.0  # only the first 60 words count


def test_thanks_by_round():
    curve = thanks_curve([["no", "thank you", "no"], ["no", "no"], ["谢谢", "好", "嗯"]], 3)
    assert curve == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    assert thanks_curve([], 3) == ()


def test_auc_needs_both_kinds():
    assert two_sample_auc([["a"]], [["b"]] * 20, ["x"], list(range(20)))[0] is None
