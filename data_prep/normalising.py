"""When two texts read the same: the one form in which texts are compared by splits, leaks and duplicates."""

import re
import unicodedata

CHINESE = re.compile("[\u3400-\u9fff]")
BESIDE_CHINESE = re.compile("(?<=[\u3400-\u9fff]) | (?=[\u3400-\u9fff])")
# Everything but letters and digits of any script; `\w` also holds the underscore.
NEITHER = re.compile(r"[\W_]+")


def normalised(text: str) -> str:
    """Letters and digits only, in one case and width, single spaces: equal for texts that read the same."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    spaced = NEITHER.sub(" ", folded).strip()
    # Chinese has no spaces of its own: what is left of its punctuation must not tell two texts apart.
    return BESIDE_CHINESE.sub("", spaced)


def word_count(text: str) -> float:
    """Number of words of a normalised text; a Chinese character counts as half a word."""
    others, chinese = CHINESE.subn(" ", text)
    return len(others.split()) + chinese / 2
