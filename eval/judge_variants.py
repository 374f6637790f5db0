"""Variants of a dialogue that add no support, to see what a judge pays for: padding, a list's look, advice again.

Each is mechanical, in English and Chinese, and changes the supporter's turns only. A judge of quality should not give
such a variant more than the dialogue it was made from.
"""

import re
from collections.abc import Callable
from itertools import cycle

from data_prep.records import Dialogue, Language, Turn

SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]*[\"'”’」）)]*\s*")
FILLERS: dict[Language, tuple[str, ...]] = {
    "en": (
        "That is what I wanted to say at this point.",
        "I have now written down what came to my mind.",
        "These were my words about what you wrote.",
    ),
    "zh": ("这就是我此刻想说的。", "我把想到的都写下来了。", "以上是我对你所写内容的话。"),
}
ADVICE: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"\b(you could|you can|you might|you may want|try|maybe|perhaps|consider|how about|what if you|why not|"
        r"i suggest|i would|i'd|it (?:may|might|could) help)\b",
        re.IGNORECASE,
    ),
    "zh": re.compile("建议|可以|试试|试着|不妨|要不|考虑|或许|最好"),
}
AGAIN: dict[Language, str] = {"en": "To say it once more: {}", "zh": "再说一遍：{}"}
JOIN: dict[Language, str] = {"en": " ", "zh": ""}


def sentences(text: str) -> list[str]:
    """Sentences with their marks, white space at the ends dropped."""
    return [found for one in SENTENCE.findall(text) if (found := one.strip())]


def padded(dialogue: Dialogue) -> Dialogue | None:
    """A sentence that says nothing after every supporter turn."""
    fillers = cycle(FILLERS[dialogue.language])
    return _changed(dialogue, "padded", lambda text: f"{text}{JOIN[dialogue.language]}{next(fillers)}")


def listed(dialogue: Dialogue) -> Dialogue | None:
    """Every supporter turn of several sentences as a numbered list of the same sentences."""

    def numbered(text: str) -> str:
        found = sentences(text)
        return "\n".join(f"{at}. {one}" for at, one in enumerate(found, start=1)) if len(found) > 1 else text

    return _changed(dialogue, "listed", numbered)


def repeated_advice(dialogue: Dialogue) -> Dialogue | None:
    """The supporter's first sentence of advice again, at the end of each of its later turns."""
    known: list[str] = []

    def again(text: str) -> str:
        earlier = known[0] if known else None
        known.extend(one for one in sentences(text) if ADVICE[dialogue.language].search(one))
        return f"{text}{JOIN[dialogue.language]}{AGAIN[dialogue.language].format(earlier)}" if earlier else text

    return _changed(dialogue, "repeated_advice", again)


VARIANTS: dict[str, Callable[[Dialogue], Dialogue | None]] = {
    "padded": padded,
    "listed": listed,
    "repeated_advice": repeated_advice,
}


def _changed(dialogue: Dialogue, name: str, change: Callable[[str], str]) -> Dialogue | None:
    """The dialogue with every supporter text changed, under another id; None where nothing changes."""
    turns: list[Turn] = []
    for turn in dialogue.turns:
        changed = turn.speaker == "supporter" and turn.text.strip() != ""
        turns.append(turn.model_copy(update={"text": change(turn.text)}) if changed else turn)
    if tuple(turns) == dialogue.turns:
        return None
    return dialogue.model_copy(update={"id": f"{dialogue.id}~{name}", "turns": tuple(turns)})
