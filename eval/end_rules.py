"""When a dialogue is over by itself: the seeker has taken leave, or neither side says anything new.

Both are looked at after an exchange, so the supporter always has the last word, as it has after the last round.
"""

import hashlib
import re
from collections.abc import Sequence

from data_prep.records import Speaker
from eval.audit_phrases import FILLER, GOODBYE, THANKS, plain
from eval.run_records import EndReason, TranscriptTurn

SENTENCE_END = re.compile(r"[.!?;\n。！？；…~～]+")
# `take care of my son` is no leave, nor is what somebody was or was not told.
NO_LEAVE = re.compile(
    r"\btake care of\b|\b(?:say|says|said|saying|to) (?:a |my |our )?(?:good ?bye|bye|good ?night)"
    r"|[说讲道](?:声|了|过|句)?(?:再见|拜拜|晚安)",
    re.IGNORECASE,
)
WORDS = re.compile(r"[A-Za-z']+|[\u4e00-\u9fff]")
MOST_OTHER_WORDS = {"latin": 2, "han": 4}
NOT_WORDS = re.compile(r"[\W_]+")


def natural_end(turns: Sequence[TranscriptTurn]) -> EndReason | None:
    """Why a dialogue with these turns should end here, or None. Only an exchange that is complete can end it."""
    if len(turns) < 2 or turns[-1].speaker != "supporter" or turns[-2].speaker != "seeker":
        return None
    if takes_leave(turns[-2].text):
        return EndReason.seeker_goodbye
    if all(_repeats(turns, side) for side in ("seeker", "supporter")):
        return EndReason.loop
    return None


def takes_leave(text: str) -> bool:
    """Whether the last sentence is a goodbye and next to nothing else.

    "I could not say goodbye to him" and "I take care of my mother" hold the words and are none.
    """
    parts = [part for part in SENTENCE_END.split(text) if WORDS.search(part)]
    if not parts:
        return False
    last = plain(parts[-1])
    if NO_LEAVE.search(last) or not GOODBYE.search(last):
        return False
    rest = WORDS.findall(FILLER.sub(" ", THANKS.sub(" ", GOODBYE.sub(" ", last))))
    han = sum(word > "\u4e00" for word in rest)
    return len(rest) - han <= MOST_OTHER_WORDS["latin"] and han <= MOST_OTHER_WORDS["han"]


def _repeats(turns: Sequence[TranscriptTurn], side: Speaker) -> bool:
    """Whether the last words of a side are words that it has said before, but for case, spaces and signs."""
    said = [NOT_WORDS.sub("", turn.text).casefold() for turn in turns if turn.speaker == side]
    return said[-1] in said[:-1]


def rules_sha() -> str:
    """First 12 hex digits of the sha256 over all that the rules go by, for the manifest."""
    patterns = [pattern.pattern for pattern in (GOODBYE, THANKS, FILLER, SENTENCE_END, NO_LEAVE)]
    return hashlib.sha256(repr([patterns, MOST_OTHER_WORDS]).encode()).hexdigest()[:12]
