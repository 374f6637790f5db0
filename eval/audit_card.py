"""A role card beside what a seeker says: words read off it, the share told so far, and what contradicts it. Pure."""

import re
from collections.abc import Iterator, Sequence

from data_prep.normalising import chinese_count, normalised, word_count
from data_prep.records import RoleCard
from eval import audit_phrases as phrases
from eval.runs import Transcript

# Content words a card must have for a share of them to mean anything: of fewer, one word more or less decides.
ENOUGH_WORDS = 8
# Words in a row taken over from the card's problem, or half of the problem.
COPIED_WORDS = 12


def copied_share(card: RoleCard, text: str) -> str | None:
    """Why a text counts as read off the card; None when it does not.

    Words in a row that it shares with the card's problem: COPIED_WORDS of them, or half of a longer problem.
    A Chinese character counts as half a word.
    """
    problem, said = normalised(card.problem or ""), normalised(text)
    if not problem or not said:
        return None
    units_of_card, units_said = _units(problem), _units(said)
    longest = _longest_run(units_of_card, units_said)
    chinese = chinese_count(problem) * 2 >= len(problem)
    words = longest / 2 if chinese else longest
    limit = min(COPIED_WORDS, max(6.0, word_count(problem) / 2))
    return f"{words:.0f} words in a row are the card's" if words >= limit else None


def _units(text: str) -> list[str]:
    """Words, and Chinese characters one by one."""
    return re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text)


def _longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest run of equal items, by the usual table kept as one row."""
    best, above = 0, [0] * (len(second) + 1)
    for item in first:
        row = [0] * (len(second) + 1)
        for place, other in enumerate(second, start=1):
            if item == other:
                row[place] = above[place - 1] + 1
                best = max(best, row[place])
        above = row
    return best


# ---- what the seeker has told of its card


# Beside scikit-learn's list of function words: words of every card and of every talk about feelings.
COMMON_WORDS = frozenset(
    {"feel", "feels", "feeling", "felt", "want", "wants", "really", "just", "seeker", "user", "person"}
)
CHINESE_STOP = set("的了我你他她它是在和也都就不很有没这那要会能对被把着过与及或但而又还因为所以个一们吧呢啊吗让给从到")


def content_words(text: str) -> set[str]:
    """What of a text carries its matter: words of four letters or more that are no function words, roughly stemmed;
    of Chinese the pairs of neighbouring characters without function characters."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    folded = normalised(text)
    left_out = ENGLISH_STOP_WORDS | COMMON_WORDS
    words = {_stem(word) for word in re.findall(r"[a-z]{4,}", folded) if word not in left_out}
    pairs = {
        run[at : at + 2]
        for run in re.findall("[\u3400-\u9fff]+", folded)
        for at in range(len(run) - 1)
        if not CHINESE_STOP.intersection(run[at : at + 2])
    }
    return words | pairs


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "ied", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word


def disclosure(transcript: Transcript) -> list[float] | None:
    """Share of the card's content words that the seeker has used by each of its turns, never falling, 0 to 1.

    None when the card has fewer than ENOUGH_WORDS of them. What is told in other words does not count, so the share
    is low even for a good seeker: it is for comparing seekers, and first turns with last ones.
    """
    wanted = content_words(transcript.card.problem or "")
    if len(wanted) < ENOUGH_WORDS:
        return None
    told: set[str] = set()
    curve = []
    for turn in transcript.turns:
        if turn.speaker == "seeker":
            told |= wanted & content_words(turn.text)
            curve.append(len(told) / len(wanted))
    return curve


# ---- what contradicts the card


def contradictions(card: RoleCard, text: str) -> Iterator[str]:
    """What a text says of its speaker's age, gender or occupation that the card says otherwise."""
    age = card_age(card.age or "")
    if age is not None:
        for said in _ages(text):
            if abs(said - age) > 1:
                yield f"says an age of {said}, the card {age}"
    gender = next((name for name, known in phrases.CARD_GENDER.items() if known.search(card.gender or "")), None)
    if gender is not None:
        other = "female" if gender == "male" else "male"
        if phrases.SELF_GENDER[other].search(text) and not phrases.SELF_GENDER[gender].search(text):
            yield f"speaks as {other}, the card says {gender}"
    yield from _other_occupation(card, text)


def card_age(text: str) -> int | None:
    """The age in years where a card states one number; None for ranges and words."""
    numbers = re.findall(r"\d{1,3}", text)
    return (
        int(numbers[0]) if len(numbers) == 1 and not re.search(r"\+|\ds\b|多|几|左右|under|over|above", text) else None
    )


def _ages(text: str) -> Iterator[int]:
    for match in phrases.AGE_EN.finditer(text):
        yield int(match[1])
    for match in phrases.AGE_ZH.finditer(text):
        yield chinese_number(match[1])


def chinese_number(text: str) -> int:
    """1 to 99, in digits or Chinese numerals."""
    if text.isdigit():
        return int(text)
    digits = {digit: value for value, digit in enumerate("零一二三四五六七八九")}
    tens, _, ones = text.partition("十")
    return (digits[tens] if tens else 1) * 10 + (digits[ones] if ones else 0)


CLAIMS = tuple(
    (
        re.compile(f"{phrases.CLAIM_EN.format(english)}|{phrases.CLAIM_ZH.format(chinese)}", re.IGNORECASE),
        re.compile(f"\\b(?:{english})|{chinese}", re.IGNORECASE),
    )
    for english, chinese in phrases.OCCUPATIONS
)


def _other_occupation(card: RoleCard, text: str) -> Iterator[str]:
    """A claimed occupation of another family than the card's, unless the card's problem speaks of it too."""
    known = card.occupation or ""
    if not any(family.search(known) for _, family in CLAIMS):
        return
    for claim, family in CLAIMS:
        if claim.search(text) and not family.search(f"{known} {card.problem or ''}"):
            yield "claims another occupation than the card's"
