"""SMILE / SmileChat (arXiv 2305.00450): one dialogue a file, a JSON list of turns.

A turn is {"role": "client" | "counselor", "content": text, "annotation": [{"sentence", "label"}, …]}; the annotation
repeats the content in sentences and its labels were never filled in.

Repaired, and counted: whitespace at the edges of turns is stripped; a turn without text is dropped; a role in other
letters or with spaces around it is read as the name it is; a field we do not know is ignored. Noted, and left: runs
of one speaker, dialogues of one turn. Missing, and counted: the labels. All else is refused. U+FEFF, zero-width
spaces, <br>, HTML entities and U+FFFD inside texts stay: taking them out is cleaning, and a step of its own.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, Speaker, StrictDecoder, Turn, parse_json, read_text
from data_prep.sources.base import EMPTY_TURN, Conversion, Draft, Made, Options, Source
from data_prep.sources.reading import data_files, file_ids

SPEAKERS: dict[str, Speaker] = {"client": "seeker", "counselor": "supporter"}
FIELDS = {"role", "content", "annotation"}


def _labels(annotation: Any, draft: Draft, n: int) -> list[str]:
    """The labels of a turn's sentences; none of the published files has any."""
    if annotation is None:
        return []
    if not isinstance(annotation, list):
        raise draft.error(f"turn {n}: annotation is not a list")
    filled = False
    for entry in annotation:
        if not isinstance(entry, dict):
            raise draft.error(f"turn {n}: annotation holds something else than objects")
        if entry.get("label"):
            filled = True
    labels = [entry.get("label") or "" for entry in annotation] if filled else []
    if not all(isinstance(label, str) for label in labels):
        raise draft.error(f"turn {n}: annotation has a label that is not a text")
    return labels


def _turn(raw: Any, draft: Draft, n: int) -> Turn | None:
    """One turn; None when it has no text."""
    if not isinstance(raw, dict):
        raise draft.error(f"turn {n}: is not an object")
    role, content = raw.get("role"), raw.get("content")
    speaker = SPEAKERS.get(role) if isinstance(role, str) else None
    if speaker is None and isinstance(role, str):
        speaker = SPEAKERS.get(role.strip().casefold())
        draft.repairs["spelling of a role"] += 1
    if speaker is None:
        raise draft.error(f"turn {n}: role is none of {', '.join(SPEAKERS)}")
    if not isinstance(content, str):
        raise draft.error(f"turn {n}: content is not a text")
    labels = _labels(raw.get("annotation"), draft, n)
    if not raw.keys() <= FIELDS:
        draft.repairs["unknown field ignored"] += len(raw.keys() - FIELDS)
    text = draft.stripped(content, "turn")
    if not text:
        draft.repairs[EMPTY_TURN] += 1
        return None
    return Turn(speaker=speaker, text=text, meta={"labels": labels}) if labels else Turn(speaker=speaker, text=text)


def _dialogue(raw_turns: Any, dialogue_id: str, draft: Draft) -> Dialogue:
    if not isinstance(raw_turns, list) or not raw_turns:
        raise draft.error("is not a list of turns")
    turns = [turn for turn in (_turn(raw, draft, n) for n, raw in enumerate(raw_turns, start=1)) if turn is not None]
    if not turns:
        raise draft.error("no turn has text")
    speakers = [turn.speaker for turn in turns]
    for before, after in pairwise(speakers):
        if before == after:
            draft.noted[f"{after} turn after a {after} turn"] += 1
    if len(turns) == 1:
        draft.noted["dialogue of one turn"] += 1
    if not any(turn.meta for turn in turns):
        draft.missing["dialogue without labels"] += 1
    return Dialogue(id=dialogue_id, language="zh", source="smile", turns=tuple(turns))


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """One dialogue a file, in the natural order of the files' names; ids are `smile-<file stem>`.

    Of a folder, files that do not begin as a JSON list are skipped. Raises UserError when there is no such path.
    """
    files = data_files(path)
    decoder = StrictDecoder()
    for file, stem in zip(files, file_ids(files, path), strict=True):
        where, count = str(file), 0
        draft = Draft(where)
        try:
            text = read_text(file)
            if path.is_dir() and not text.lstrip().startswith("["):
                conversion.skip(file)
                continue
            raw_turns = parse_json(text, where, decoder)
            count = len(raw_turns) if isinstance(raw_turns, list) else 0
            dialogue = _dialogue(raw_turns, f"smile-{stem}", draft)
        except UserError as error:
            if not path.is_dir() and count == 0:
                raise
            conversion.turns_read += count
            conversion.refuse(where, error, count)
            continue
        conversion.turns_read += count
        draft.accept(conversion)
        yield where, [dialogue]


SMILE = Source(
    name="smile",
    title="SMILE (SmileChat): Chinese question-answer pairs expanded to dialogues by a language model",
    languages=("zh",),
    licence="CC0 1.0",
    files=("data/*.json (one dialogue a file)",),
    origin="SMILE: Single-turn to Multi-turn Inclusive Language Expansion (Findings of EMNLP 2024); qiuhuachuan/smile",
    makes="dialogues",
    stream=stream,
)
