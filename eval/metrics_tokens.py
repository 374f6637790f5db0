"""How texts are cut into tokens before they are compared. Each way is named where its figures are shown.

English words are those of NLTK's word tokenizer. Its sentence splitter needs no downloaded data here, because it is
used untrained: it takes "mr." for the end of a sentence, and that full stop becomes a token of its own. Chinese is
compared by characters; a run of Latin letters or digits is one token.
"""

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from data_prep.records import Language

Tokenizer = Callable[[str], list[str]]

CHARACTERS = re.compile(r"[a-z0-9]+|\S")
WORD = re.compile(r"[a-z0-9]+")
STEMMED_FROM = 4  # rouge-score leaves shorter words as they are


@cache
def _nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer(), NLTKWordTokenizer()


def words(text: str) -> list[str]:
    """English: lower-cased words and punctuation marks as NLTK cuts them; `can't` is `ca`, `n't`."""
    sentences, one = _nltk()
    return [token for sentence in sentences.tokenize(text.lower()) for token in one.tokenize(sentence)]


def characters(text: str) -> list[str]:
    """Chinese: every character that is no white space; Latin letters and digits in a row stay together."""
    return CHARACTERS.findall(text.lower())


def whitespace(text: str) -> list[str]:
    """What stands between white space, as it is written."""
    return text.split()


def whitespace_lower(text: str) -> list[str]:
    return text.lower().split()


def rouge_words(text: str) -> list[str]:
    """As the rouge-score package cuts with its stemmer on: runs of a-z and 0-9, words of four letters on stemmed."""
    return [stem(word) if len(word) >= STEMMED_FROM else word for word in WORD.findall(text.lower())]


@cache
def _porter() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Porter's stem of an English word, in NLTK's form of the algorithm."""
    return str(_porter().stem(word))


def plain_tokens(language: Language) -> Tokenizer:
    """Words of English, characters of Chinese."""
    return characters if language == "zh" else words
