"""`replay:FILE`: a model that says again what a file says: of a run folder, of dialogues, of the official transcripts.

A dialogue is found by its key (`card.id#sample`) or by its card; its k-th answer is said as the k-th answer.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.chat_format import merge_runs
from data_prep.errors import UserError
from data_prep.records import Dialogue, Turn, first_json_line, read_records, read_text, sha256_of
from eval.chat_models.base import Reply, Request, Sampling, Stats
from eval.runs import Transcript, TranscriptTurn, load_run

Said = list[TranscriptTurn]


class ReplayChatModel:
    """Replays a file. Sampling and seed mean nothing to it. Raises UserError for a file that is none of the three."""

    concurrency = 0
    down = None
    context_length = 10**9

    def __init__(self, name: str):
        self.name = name
        self.stats = Stats()
        path = Path(name.removeprefix("replay:"))
        if path.is_dir():
            path = load_run(path).folder / "dialogues.jsonl"
        self._file = path
        self._said = _read(path)

    def describe(self) -> dict[str, Any]:
        return {"kind": "replay", "sha256": sha256_of(self._file)}

    def forget(self) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""

    def reply(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        return [self._reply(request) for request in requests]

    async def reply_one(self, request: Request, sampling: Sampling) -> Reply:
        return self._reply(request)

    def _reply(self, request: Request) -> Reply:
        key, _, side = request.conversation.rpartition("/")
        turns = self._said.get(key)
        if turns is None:
            return Reply("", failure="error", detail=f"{self._file.name} holds no dialogue of this key or card")
        if side == "supporter" and turns and turns[0].speaker == side:
            turns = turns[1:]  # its greeting, which answers nobody
        own = [turn for turn in turns if turn.speaker == side]
        number = sum(message["role"] == "user" for message in request.messages)
        if number > len(own):
            return Reply("", failure="error", detail=f"{self._file.name}: the {side} answers {len(own)} times here")
        turn = own[number - 1]
        return Reply(turn.text.strip(), turn.finish or "stop", None, None, turn.thinking, 0, turn.new_tokens)


def _read(path: Path) -> dict[str, Said]:
    """Turns by key; a dialogue that is no transcript gets the key of its card and its place among those of it."""
    if not path.is_file():
        raise UserError(f"replay:{path}: file not found; name a run folder or a file of dialogues")
    if read_text(path).lstrip()[:1] == "{" and _is_official(path):
        from data_prep.official import read_transcripts

        # The language decides nothing here: only the words are said again.
        return _by_card(read_transcripts(path, "en"))
    first = first_json_line(path)
    if isinstance(first, dict) and "end_reason" in first:
        return {made.key: _merged(made.turns) for made in read_records(path, Transcript)}
    return _by_card(read_records(path, Dialogue))


def _is_official(path: Path) -> bool:
    try:
        content = json.loads(read_text(path))
    except ValueError:
        return False
    return isinstance(content, dict) and bool(content) and all(isinstance(value, list) for value in content.values())


def _by_card(dialogues: Sequence[Dialogue]) -> dict[str, Said]:
    said: dict[str, Said] = {}
    counts: dict[str, int] = {}
    for dialogue in dialogues:
        turns = _merged([TranscriptTurn(speaker=turn.speaker, text=turn.text) for turn in dialogue.turns])
        card = dialogue.card.id if dialogue.card else dialogue.id
        number = counts.get(card, 0)
        counts[card] = number + 1
        said[dialogue.id] = turns
        said.setdefault(f"{card}#{number}", turns)
    return said


def _merged(turns: Sequence[TranscriptTurn]) -> Said:
    """Neighbouring turns of one speaker as one, as every prompt shows them."""
    plain = merge_runs([Turn(speaker=turn.speaker, text=turn.text) for turn in turns])
    if len(plain) == len(turns):
        return list(turns)
    return [TranscriptTurn(speaker=turn.speaker, text=turn.text) for turn in plain]
