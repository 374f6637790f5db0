"""When two texts read the same: the one form in which texts are compared by splits, leaks and duplicates."""

import re
import unicodedata

CHINESE = re.compile("[\u3400-\u9fff]")
CHINESE_RUN = re.compile("[\u3400-\u9fff]+")
BESIDE_CHINESE = re.compile(" (?:(?<=[\u3400-\u9fff] )|(?=[\u3400-\u9fff]))")
# Everything but letters and digits of any script; `\w` also holds the underscore.
NEITHER = re.compile(r"[\W_]+")
# Characters that NFKC leaves alone or, as full-width marks, keeps apart from letters: most texts hold no others, and
# for them lower() is what NFKC and casefold() come to.
SIMPLE = re.compile("[\x00-\x7f\u3400-\u4db5\u4e00-\u9fa5，。！？、；：（）“”‘’…《》【】～]*")


def normalised(text: str) -> str:
    """Letters and digits only, in one case and width, single spaces: equal for texts that read the same."""
    folded = text.lower() if SIMPLE.fullmatch(text) else unicodedata.normalize("NFKC", text).casefold()
    spaced = NEITHER.sub(" ", folded).strip()
    # Chinese has no spaces of its own: what is left of its punctuation must not tell two texts apart.
    return BESIDE_CHINESE.sub("", spaced)


def word_count(text: str) -> float:
    """Number of words of a normalised text; a Chinese character counts as half a word."""
    chinese = chinese_count(text)
    if chinese == len(text):
        return chinese / 2
    return len(CHINESE_RUN.sub(" ", text).split()) + chinese / 2


def chinese_count(text: str) -> int:
    """Number of Chinese characters in a text."""
    return sum(map(len, CHINESE_RUN.findall(text)))
