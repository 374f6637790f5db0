"""The cleaning steps that compare how dialogues open: near duplicates of an earlier opening are marked or dropped."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_prep.plain import PlainDialogue
from data_prep.records import Dialogue
from data_prep.splits import first_words, opening
from data_prep.tidying import Counts

Read = Dialogue | PlainDialogue
NOTHING: Counts = Counter()


def opening_of(record: Read) -> str:
    """How a dialogue opens, normalised, as splits compare it; empty when that is a few words only."""
    if isinstance(record, Dialogue):
        return opening(record)
    for speaker, text in zip(record.speakers, record.texts, strict=True):
        if speaker == "seeker":
            return first_words(text)
    return ""


class Openings:
    """Compares each opening with those before it; of near duplicates only the first is remembered."""

    def __init__(self, drop: bool) -> None:
        from data_prep.duplicates import NearIndex

        self._drop = drop
        self._index = NearIndex()
        # Openings met before, by hash, and the id of the first dialogue that opens so: an exact copy of an opening is
        # like what that one is like, and needs no signature.
        self._met: dict[int, str] = {}
        self._ahead: dict[str, Any] = {}

    def look_ahead(self, openings: Sequence[str]) -> None:
        """Hashes the openings that are to come next, together."""
        from data_prep.duplicates import signatures_of_normalised

        new = list({text for text in openings if text and hash(text) not in self._met})
        self._ahead = dict(zip(new, signatures_of_normalised(new), strict=True))

    def _like(self, identifier: str, text: str) -> str | None:
        """The id of the first dialogue that opens so, or nearly so; None when it is this one."""
        if not text:
            return None
        met = self._met.get(hash(text))
        if met is not None:
            return met
        found = self._ahead[text]
        matches = self._index.matches(found)
        if not matches:
            self._index.add(identifier, found)
        like = str(matches[0]) if matches else None
        self._met[hash(text)] = like or identifier
        return like

    def compare(self, record: Read, text: str) -> tuple[Read | None, Counts]:
        """The record, marked if its opening `text` is like an earlier one or None if such are dropped."""
        like = self._like(record.id, text)
        if self._drop and like is not None:
            return None, Counter({"dialogues dropped": 1})
        if isinstance(record, PlainDialogue):
            if like is None:
                return record, NOTHING
            record = record.dialogue()
        if record.meta.get("near_duplicate_opening") == like:
            return record, NOTHING
        # A mark of another set of dialogues says nothing about this one.
        meta = {key: value for key, value in record.meta.items() if key != "near_duplicate_opening"}
        if like is not None:
            meta["near_duplicate_opening"] = like
        return record.model_copy(update={"meta": meta}), Counter(
            {"dialogues marked": 1} if like is not None else {"marks removed": 1}
        )
