import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.duplicates import BAND_LIMIT, SIZE, NearIndex, near_pairs, shingle_length, signature, similarity
from data_prep.errors import UserError
from data_prep.normalising import normalised

ENGLISH = (
    "I lost my job in spring and since then I can hardly sleep, my savings are gone and I do not dare to tell my "
    "parents, who are proud of me and ask every Sunday how the office is doing"
)
CHINESE = (
    "我去年春天丢了工作，从那以后几乎睡不着觉，存款也花光了，我不敢告诉父母，"
    "他们一直以我为荣，每个星期天都问我公司怎么样，我只能说一切都好"
)


def exact(first: str, second: str) -> float:
    """Jaccard similarity of the character n-grams, counted one by one."""
    sets = []
    for text in (normalised(first), normalised(second)):
        length = shingle_length(text)
        sets.append({text[start : start + length] for start in range(max(1, len(text) - length + 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize(
    ("first", "second", "near"),
    [
        (ENGLISH, ENGLISH.upper().replace(",", " --"), True),
        (ENGLISH, ENGLISH.replace("spring", "autumn"), True),
        (ENGLISH, "Well, " + ENGLISH, True),
        (ENGLISH, ENGLISH[: len(ENGLISH) // 2], False),
        (ENGLISH, "My cat died and nobody at home understands why I cannot stop crying about it", False),
        (CHINESE, CHINESE.replace("，", " "), True),
        (CHINESE, CHINESE.replace("去年春天", "去年秋天"), True),
        (CHINESE, "最近总是和男朋友吵架，他不愿意见我的父母，我不知道这段感情还有没有必要继续下去", False),
        (CHINESE, ENGLISH, False),
    ],
)
def test_reworded_texts_are_found_and_others_are_not(first, second, near):
    assert list(near_pairs([("a", first), ("b", second)])) == ([("a", "b")] if near else [])


def test_the_estimate_is_the_jaccard_similarity_within_its_standard_error():
    draw = random.Random(0)
    errors = []
    for text in (ENGLISH, CHINESE):
        for changes in range(0, 60, 3):
            other = list(text)
            for _ in range(changes):
                other[draw.randrange(len(other))] = draw.choice("abcdefgh" if text is ENGLISH else "天地人和日月星")
            true = exact(text, "".join(other))
            errors.append(similarity(signature(text), signature("".join(other))) - true)
    assert max(abs(error) for error in errors) < 4 * 0.5 / SIZE**0.5
    assert abs(sum(errors) / len(errors)) < 0.02


def test_all_near_pairs_of_many_texts_are_found_and_only_those():
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlu", k=6)) for _ in range(500)]
    texts = []
    for number in range(300):
        text = draw.choices(words, k=50) if number % 3 else list(texts[number - 2] if number > 2 else words[:50])
        if number % 3 == 0:
            text[draw.randrange(50)] = "changed"
        texts.append(text)
    joined = [" ".join(text) for text in texts]
    found = set(near_pairs(enumerate(joined)))
    copies = {(number - 2, number) for number in range(3, 300, 3)}
    assert len(copies - found) <= 2
    assert all(exact(joined[one], joined[other]) > 0.65 for one, other in found)


def test_copies_cost_one_entry_and_are_paired_with_the_first():
    assert list(near_pairs([(1, ENGLISH), (2, ENGLISH + "!"), (3, ENGLISH)])) == [(1, 2), (1, 3)]
    index = NearIndex()
    for name in range(1000):
        index.add(name, signature(ENGLISH))
    assert len(index) == 1


def test_a_pile_of_look_alikes_stays_bounded():
    index = NearIndex()
    for number in range(BAND_LIMIT * 3):
        index.add(number, signature(f"{ENGLISH} {number * number}"))
    assert len(index.matches(signature(ENGLISH))) >= BAND_LIMIT
    assert all(len(members) <= BAND_LIMIT for members in index._members.values())


def test_texts_without_a_letter_have_no_duplicates_and_short_ones_are_compared_whole():
    assert signature("") is None
    assert signature("?! 😀") is None
    assert list(near_pairs([(1, "..."), (2, "...")])) == []
    assert list(near_pairs([(1, "ab"), (2, "AB."), (3, "ac")])) == [(1, 2)]


@pytest.mark.parametrize("threshold", [0.49, 1.01, float("nan")])
def test_impossible_thresholds(threshold):
    with pytest.raises(UserError, match=r"expected a number from 0\.5 to 1"):
        NearIndex(threshold)


def test_signatures_are_the_same_in_every_process():
    code = (
        "import sys; from data_prep.duplicates import near_pairs, signature;"
        f"print(signature({ENGLISH!r})[:5].tolist(), list(near_pairs([(1, {ENGLISH!r}), (2, {ENGLISH!r} + ' ok')])))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {f"{signature(ENGLISH)[:5].tolist()} [(1, 2)]\n"}


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_has_a_signature_or_none_and_equals_itself(first, second):
    found = signature(first)
    assert (found is None) == (normalised(first) == "")
    if found is not None:
        assert similarity(found, signature(first)) == 1
        if normalised(first) == normalised(second):
            assert (found == signature(second)).all()
