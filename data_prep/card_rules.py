"""Rules by which a role card is dropped before any model is asked: each has a name, a reason, and is counted.

They look for cards that cannot be played or hold what somebody else said; a rule that fires on a good card can be
switched off by name. All read the fields of a card, never its published text.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from data_prep.cards import FIELDS
from data_prep.errors import UserError
from data_prep.records import CARD_LABELS, RoleCard
from data_prep.splits import CHINESE, normalised, word_count

LEAST_WORDS = 6
"""Words of a problem that someone could talk about; a Chinese character counts as half a word."""

PLACEHOLDER = re.compile(
    r"\{\{|\}\}|\$\{|\blorem ipsum\b|\b(?:todo|tbd|fixme)\b|\bX{3,}\b|_{3,}"
    r"|[\[<(【（](?:(?:seeker|user|person|client|insert)\b[^\]>)】）]{0,40}|name|age|gender|occupation|problem|job|city"
    r"|姓名|年龄|性别|职业|问题|某某|此处[^\]>)】）]{0,20})[\]>)】）]",
    re.IGNORECASE,
)
# What a supporter or an assistant says, not what is said of a person. Words that people in trouble use of
# themselves ("should", "help") are not in it.
REPLY = re.compile(
    r"\bas an ai\b|\blanguage model\b|\bi'?m (?:so |very |really )?sorry (?:to hear|you'?re|that you)"
    r"|\bi hear you\b|\bhave you (?:tried|considered|thought (?:about|of))\b"
    r"|\bit (?:might|may|could|would) be helpful to\b|\bit(?:'s| is) (?:okay|ok|normal|understandable) to feel\b"
    r"|\byou(?:'re| are) not alone\b|\byou (?:should|could|might want to|may want to|need to)\b"
    r"|\bi (?:suggest|recommend|advise|would suggest|would recommend)\b|\bhope (?:this|that) helps\b"
    r"|\bhere(?:'s| is) (?:the|a|your) (?:role )?card\b|\bthe supporter\b"
    r"|作为(?:一个|一名)?(?:人工智能|AI|语言模型)|我(?:能|可以)?理解你|你可以(?:试试|尝试|考虑)|建议(?:你|您)|希望(?:以上|这些|我的)"
    r"|你并不孤单|抱抱你|楼主|题主你|支持者(?:建议|表示|认为)",
    re.IGNORECASE,
)
LABEL = re.compile(
    "(?:^|[.;。；]\\s*|\n\\s*)(?:"
    + "|".join(word for labels in CARD_LABELS.values() for word in labels)
    + ")\\s*[:：]",
    re.IGNORECASE,
)


def _texts(card: RoleCard) -> list[str]:
    return [text for text in (getattr(card, name) for name in FIELDS) if text is not None]


def no_problem(card: RoleCard) -> bool:
    """The card says no problem."""
    return card.problem is None or not normalised(card.problem)


def short_problem(card: RoleCard) -> bool:
    """The problem has too few words to be talked about."""
    return not no_problem(card) and word_count(normalised(card.problem or "")) < LEAST_WORDS


def placeholder(card: RoleCard) -> bool:
    """A field holds a blank to be filled in, or nothing but punctuation."""
    return any(PLACEHOLDER.search(text) or not normalised(text) for text in _texts(card))


def leaked_reply(card: RoleCard) -> bool:
    """A field holds what a supporter or an assistant says."""
    return any(REPLY.search(text.replace("’", "'")) for text in _texts(card))


def nested_labels(card: RoleCard) -> bool:
    """A field holds a labelled line of another one."""
    return any(LABEL.search(text) for text in _texts(card))


def wrong_language(card: RoleCard) -> bool:
    """The problem of a Chinese card has no Chinese in it, or that of an English card is half Chinese."""
    letters = [character for character in card.problem or "" if character.isalpha()]
    chinese = sum(CHINESE.match(character) is not None for character in letters)
    return bool(letters) and (chinese == 0 if card.language == "zh" else chinese * 2 > len(letters))


RULES: dict[str, Callable[[RoleCard], bool]] = {
    rule.__name__: rule
    for rule in (no_problem, short_problem, placeholder, leaked_reply, nested_labels, wrong_language)
}


@dataclass
class Ruling:
    """Cards that pass all rules, and the names of the rules that the others break, by card id."""

    kept: list[RoleCard] = field(default_factory=list)
    broken: dict[str, list[str]] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """Counts by rule, of all rules in force; a card that breaks two is counted at both."""
        counts = Counter(name for names in self.broken.values() for name in names)
        rules = {name: counts[name] for name in RULES if name not in self.without}
        return {"kept_by_rules": len(self.kept), "dropped_by_rules": len(self.broken), "rules": rules}


def apply_rules(cards: Iterable[RoleCard], without: Sequence[str] = ()) -> Ruling:
    """Sorts the cards by RULES, those named in `without` left out. Raises UserError for a name that is no rule."""
    for name in without:
        if name not in RULES:
            close = get_close_matches(name, RULES, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(f"--without: unknown rule {name!r}; known: {', '.join(RULES)}{hint}")
    ruling = Ruling(without=tuple(without))
    for card in cards:
        broken = [name for name, rule in RULES.items() if name not in without and rule(card)]
        if broken:
            ruling.broken[card.id] = broken
        else:
            ruling.kept.append(card)
    return ruling
