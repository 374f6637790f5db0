"""Crisis content: which turns speak of suicide, self-harm or abuse, in English and Chinese.

A lexicon, not a judgment: it marks what a person should look at, and it neither changes nor removes a word. Figures
of speech are taken out before looking (I nearly died laughing, 我快笑死了). What is denied, feared or said of somebody
else is marked all the same, since a reader must see it too; what is only hinted at is often missed. Of 30 sentences
about a crisis that its patterns were not chosen on it finds 24 (English 10 of 15, Chinese 14 of 15), of 30 others that
look alike it marks none (tests/data_prep/crisis_sentences.py): that there is no mark means nothing.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from data_prep.crisis_terms import FIGURES, KINDS, TERMS, Kind

COMPILED = tuple((kind, anchors, re.compile(pattern)) for kind, anchors, pattern in TERMS)
ANCHORS = tuple(sorted({anchor for _, anchors, _ in TERMS for anchor in anchors}))
IN_LATIN = tuple(anchor for anchor in ANCHORS if anchor.isascii())
LATIN_WORD = re.compile("[a-z]{3}")
# One of these is in every anchor and every figure of speech of Latin letters as it stands before lower(), which makes
# two letters beside ASCII ones, and a text longer where the first of the two is in it.
LETTERS = "aeioukAEIOUK\u0130\u212a"


def _plain(text: str, letters: bool) -> str:
    """The text in the one form that patterns know; lower() is slow, and does nothing that counts without `letters`."""
    for curly in "\u2019\u2018\u02bc":
        text = text.replace(curly, "'")
    text = text.replace("\n", " ")
    return text.lower() if letters else text


def crisis_kinds(text: str) -> tuple[Kind, ...]:
    """Kinds of crisis content a text speaks of, in the order of KINDS; empty for most texts.

    Both languages are looked for in every text: people mix them.
    """
    chinese, letters = _first_look(text)
    lowered = _plain(text, letters)
    likely = [(kind, pattern) for kind, _, pattern in _likely(lowered, chinese, letters) if pattern.search(lowered)]
    if not likely:
        return ()
    literal = FIGURES.sub(" ~ ", lowered)
    found = {kind for kind, pattern in likely if pattern.search(literal)}
    return tuple(kind for kind in KINDS if kind in found)


@cache
def _places_of_anchors() -> tuple[Any, tuple[tuple[str, ...], ...]]:
    """Which words have a UTF-16 unit at their start, second and third place, shape (3, 65536), as bits, and the words
    of each of the 64 bits: LETTERS, Chinese anchors of one character, and the others, a few a bit.

    Anything may stand where a word has ended. No anchor has characters beyond the first plane.
    """
    import numpy as np

    chinese = [anchor for anchor in ANCHORS if not anchor.isascii()]
    # Neighbours share a bit. Those that differ in the first character only are not taken for what is none of them.
    longer = sorted((anchor for anchor in chinese if len(anchor) > 1), key=lambda anchor: (len(anchor), anchor[1:]))
    cuts = [len(longer) * number // 62 for number in range(63)]
    of_bit = [tuple(LETTERS), tuple(anchor for anchor in chinese if len(anchor) == 1)]
    of_bit += [tuple(longer[start:end]) for start, end in pairwise(cuts)]
    places = np.zeros((3, 1 << 16), dtype=np.uint64)
    for bit, words in enumerate(of_bit):
        for word in words:
            for place, units in enumerate(places):
                units[ord(word[place]) if place < len(word) else slice(None)] |= np.uint64(1 << bit)
    return places, tuple(of_bit)


def _first_look(text: str) -> tuple[set[str], bool]:
    """The Chinese anchors that occur in a text, and whether one of LETTERS does (or may, where all is ASCII).

    All characters are looked at at once, which tells most texts off.
    """
    import numpy as np

    if text.isascii():
        return set(), True
    (first, second, third), of_bit = _places_of_anchors()
    units = np.frombuffer((text + "\0\0").encode("utf-16-le", "surrogatepass"), dtype=np.uint16)
    hits = first.take(units[:-2])
    hits &= second.take(units[1:-1])
    hits &= third.take(units[2:])
    seen = int(np.bitwise_or.reduce(hits))
    likely = [bit for bit in range(1, 64) if seen >> bit & 1] if seen > 1 else []
    return {anchor for bit in likely for anchor in of_bit[bit] if anchor in text}, bool(seen & 1)


def _likely(lowered: str, chinese: set[str], letters: bool) -> Iterator[tuple[Kind, set[str], re.Pattern[str]]]:
    """The patterns that may find something in a text, given its `_first_look`, each with its anchors there."""
    present = set(chinese)
    if letters and LATIN_WORD.search(lowered):
        present.update(anchor for anchor in IN_LATIN if anchor in lowered)
    if present:
        for kind, anchors, pattern in COMPILED:
            held = present.intersection(anchors)
            if held:
                yield kind, held, pattern


def may_have_crisis(texts: Iterable[str]) -> bool:
    """False when `crisis_kinds` finds nothing in any of the texts; looks at all of them at once, which is quicker."""
    return may_have_crisis_joined("\0".join(texts))


def may_have_crisis_joined(joined: str) -> bool:
    """`may_have_crisis` of texts that are joined by NUL already."""
    # No case is folded and no text searched where not even an anchor occurs: Chinese has no case.
    chinese, letters = _first_look(joined)
    if not chinese and not letters:
        return False
    lowered = _plain(joined, letters)
    texts = lowered.split("\0")
    return any(
        pattern.search(text)
        for _, anchors, pattern in _likely(lowered, chinese, letters)
        for text in texts
        if any(map(text.__contains__, anchors))
    )
