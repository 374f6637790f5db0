"""The cleaning steps that compare how dialogues open: near duplicates of an earlier opening are marked or dropped."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_prep.records import Dialogue
from data_prep.tidying import Counts


class Openings:
    """Compares each opening with those before it; of near duplicates only the first is remembered."""

    def __init__(self, drop: bool) -> None:
        from data_prep.duplicates import NearIndex

        self._drop = drop
        self._index = NearIndex()
        # Openings met before, by hash, and the id of the first dialogue that opens so: an exact copy of an opening is
        # like what that one is like, and needs no signature.
        self._met: dict[int, str] = {}
        # By identity of the turns, which later steps leave as they are.
        self._ahead: dict[int, tuple[str, Any | None]] = {}

    def look_ahead(self, dialogues: Sequence[Dialogue]) -> None:
        """Hashes the openings of dialogues that are to come, together."""
        from data_prep.duplicates import signatures
        from data_prep.splits import opening

        openings = [opening(dialogue) for dialogue in dialogues]
        new = list({text for text in openings if text and hash(text) not in self._met})
        found = dict(zip(new, signatures(new), strict=True))
        self._ahead = {
            id(dialogue.turns): (text, found.get(text)) for dialogue, text in zip(dialogues, openings, strict=True)
        }

    def _like(self, dialogue: Dialogue) -> str | None:
        text, found = self._ahead[id(dialogue.turns)]
        met = self._met.get(hash(text)) if text else None
        if met is not None or found is None:
            return met
        matches = self._index.matches(found)
        if not matches:
            self._index.add(dialogue.id, found)
        like = str(matches[0]) if matches else None
        self._met[hash(text)] = like or dialogue.id
        return like

    def __call__(self, dialogue: Dialogue) -> tuple[Dialogue | None, Counts]:
        new = self._like(dialogue)
        if self._drop and new is not None:
            return None, Counter({"dialogues dropped": 1})
        if dialogue.meta.get("near_duplicate_opening") == new:
            return dialogue, Counter()
        # A mark of another set of dialogues says nothing about this one.
        meta = {key: value for key, value in dialogue.meta.items() if key != "near_duplicate_opening"}
        if new is not None:
            meta["near_duplicate_opening"] = new
        return dialogue.model_copy(update={"meta": meta}), Counter(
            {"dialogues marked": 1} if new is not None else {"marks removed": 1}
        )
