"""Dialogues that were not simulated here, as judges take them; and their judgments, kept in a folder and gone on with.

OUT/judgments.jsonl    append-only. The key holds a hash of the words and the card, the scorer's label all of the
                       judge, so that a judgment is never taken for one of another text or another judge.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, read_records
from eval.judge import Judge, scorer_label
from eval.run_records import EndReason, Judgment, Transcript, TranscriptTurn
from eval.runs import append_lines, lock_folder, repair_lines

LINES = "judgments.jsonl"

Judged = list[dict[str, Judgment]]
"""Of every dialogue: dimension -> judgment."""


def as_transcript(dialogue: Dialogue) -> Transcript:
    """A dialogue as a judge takes it; one without a card gets one on which nothing is mentioned."""
    card = dialogue.card or RoleCard(id=dialogue.id, language=dialogue.language, source=dialogue.source)
    if card.language != dialogue.language:
        card = card.model_copy(update={"language": dialogue.language})
    turns = tuple(TranscriptTurn(speaker=turn.speaker, text=turn.text) for turn in dialogue.turns)
    content = repr([card.as_text(), [(turn.speaker, turn.text) for turn in turns]])
    return Transcript(
        key=f"{dialogue.id}@{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}",
        card=card,
        sample=0,
        supporter=str(dialogue.meta.get("supporter") or "unknown"),
        seeker=str(dialogue.meta.get("seeker") or "unknown"),
        turns=turns,
        end_reason=EndReason.imported,
        seed=None,
    )


class JudgmentStore:
    """Judgments of a folder, or of this process alone where there is none."""

    def __init__(self, folder: Path | None):
        self._path = folder / LINES if folder else None
        self._known: dict[tuple[str, str, str, str], Judgment] = {}
        if self._path:
            repair_lines(self._path)
            if self._path.exists() and self._path.stat().st_size:
                self._known = {one.key: one for one in read_records(self._path, Judgment)}

    def judge(
        self,
        judge: Judge,
        dialogues: Sequence[Dialogue],
        batch_size: int,
        advance: Callable[[float], None] = lambda share: None,
        fresh: bool = False,
    ) -> Judged:
        """Every judgment of the dialogues, in order. What is known is not asked again, unless `fresh`."""
        transcripts = [as_transcript(one) for one in dialogues]
        label, names = scorer_label(judge), judge.rubric.names()
        known = {} if fresh else {key: one for key, one in self._known.items() if key[1] == label}
        found = {(one.dialogue_key, one.dimension): one for one in known.values()}
        open_ones = {one.key: one for one in transcripts if any((one.key, name) not in found for name in names)}
        advance(len(transcripts) - sum(one.key in open_ones for one in transcripts))
        have = {key for key in found if key[0] in open_ones}
        for batch in judge.judge(list(open_ones.values()), batch_size, have):
            new = [one for one in batch if (one.dialogue_key, one.dimension) not in found]
            found |= {(one.dialogue_key, one.dimension): one for one in new}
            if not fresh:
                self._add(new)
            advance(len(new) / len(names))
        return [{name: found[one.key, name] for name in names} for one in transcripts]

    def _add(self, judgments: Sequence[Judgment]) -> None:
        self._known |= {one.key: one for one in judgments}
        if self._path and judgments:
            append_lines(self._path, judgments)


@contextmanager
def open_store(folder: Path | None) -> Iterator[JudgmentStore]:
    """Locks the folder. Raises UserError when it cannot be written, is in use, or a line is damaged."""
    if folder is None:
        yield JudgmentStore(None)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unlock = lock_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); name another --out") from None
    try:
        yield JudgmentStore(folder)
    finally:
        unlock()
