"""Dialogues that are nothing but an id, a language, a source, speakers and ordinary texts, taken from their line.

Most lines of a large file are like that, and cleaning has nothing to do to most of them. They are written as they
were read: parsing JSON and making records in between would cost more than all that cleaning looks for.
"""

import re
from typing import get_args

from data_prep.records import Dialogue, Language, Speaker
from data_prep.tidying import UNUSUAL

LANGUAGES, SPEAKERS = frozenset(get_args(Language)), frozenset(get_args(Speaker))
# What JSON escapes (beside quotation marks and \n), or what cleaning may have to do with.
NOT_PLAIN = re.compile(rf"[\x00-\x09\x0b-\x1f\\]|{UNUSUAL.pattern}".replace("]|[", ""))
# Strings in quotes before the first turn and in a turn, keys included, and what stands between them.
BEFORE, A_TURN = 15, 8


class PlainDialogue:
    """A dialogue as a line holds it, from `plain_dialogue`; none of its texts has a character that is UNUSUAL."""

    __slots__ = ("id", "language", "line", "source", "speakers", "texts")

    def __init__(
        self, line: str, identifier: str, language: str, source: str, speakers: list[str], texts: list[str]
    ) -> None:
        self.line, self.id, self.language, self.source = line, identifier, language, source
        self.speakers, self.texts = speakers, texts

    def joined(self) -> str:
        """All texts joined, begun and ended by NUL."""
        return "\0" + "\0".join(self.texts) + "\0"

    def dialogue(self) -> Dialogue:
        turns = [{"speaker": speaker, "text": text} for speaker, text in zip(self.speakers, self.texts, strict=True)]
        return Dialogue.model_validate(
            {"id": self.id, "language": self.language, "source": self.source, "turns": turns}
        )


def plain_dialogue(line: str) -> PlainDialogue | None:
    """The dialogue of a line, if it is a plain one and the line is what `dump_line` writes for it; None for any other.

    Where nothing is escaped, every quotation mark begins or ends a string. What stands between them is put together
    again by the one pattern of a plain dialogue; when that gives the line, the line says just this.
    """
    if line.find("\n") != len(line) - 1 or NOT_PLAIN.search(line):
        return None
    pieces = line.split('"')
    if len(pieces) < BEFORE + A_TURN:
        return None
    identifier, language, source = pieces[3], pieces[7], pieces[11]
    speakers, texts = pieces[BEFORE + 2 :: A_TURN], pieces[BEFORE + 6 :: A_TURN]
    turns = '"}, {"speaker": "'.join(
        [f'{speaker}", "text": "{text}' for speaker, text in zip(speakers, texts, strict=False)]
    )
    written = (
        f'{{"id": "{identifier}", "language": "{language}", "source": "{source}", '
        f'"turns": [{{"speaker": "{turns}"}}]}}\n'
    )
    if written != line or not identifier or not source:
        return None
    if language not in LANGUAGES or not SPEAKERS.issuperset(speakers):
        return None
    return PlainDialogue(line, identifier, language, source, speakers, texts)
