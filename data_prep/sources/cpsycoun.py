"""CPsyCoun (arXiv 2405.16433): counselling sessions rebuilt by a language model from Chinese case reports.

CPsyCounD_raw is text, one session a file: a line begins with who speaks, `来访者：` or `心理咨询师：`. CPsyCounE, made
for evaluation, is a JSON list of strings that begin with `求助者：` or `支持者：`, five files in each of nine folders.
They are two sources, so that nobody trains on the sessions meant for evaluation by accident.

Repaired, and counted, in CPsyCounD:
- a line without a speaker (a stage note, a numbered piece of advice) belongs to the turn above and is joined to it
  by a newline; before the first turn there is none, and the session is refused;
- a speaker with a remark, `来访者（姚先生）：`, is who stands before the remark;
- a member of the family who joins in, `妈妈：`, and somebody introduced by name, `来访者（天远）：`, speaking under
  that name alone, are on the seeker's side;
the label as it stood is kept in the turn's `meta` for the last two. In both: whitespace at the edges of turns is
stripped, a turn without text dropped. CRLF and LF both end a line, blank lines are no turns. Noted, and kept: runs of
one speaker, and sessions whose turns are those of an earlier one.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, Speaker, Turn, parse_json, read_text
from data_prep.sources.base import EMPTY_TURN, Conversion, Draft, Made, Options, Source
from data_prep.sources.reading import data_files, file_ids, slug, starts_with

SPEAKERS: dict[str, Speaker] = {"来访者": "seeker", "心理咨询师": "supporter"}
SPEAKERS_E: dict[str, Speaker] = {"求助者": "seeker", "支持者": "supporter"}
FAMILY = frozenset(
    (
        "妈妈",
        "母亲",
        "爸爸",
        "父亲",
        "父母",
        "家长",
        "女儿",
        "儿子",
        "孩子",
        "丈夫",
        "妻子",
        "老公",
        "老婆",
        "爷爷",
        "奶奶",
        "外公",
        "外婆",
        "哥哥",
        "姐姐",
        "弟弟",
        "妹妹",
    )
)
NAME, REMARK = r"(?P<name>[^\s：:，。、！？；（）()]{1,12})", r"(?P<remark>[^（）()：:\n]{1,20})"
LABEL = re.compile(rf"\s*{NAME}(?:[（(]{REMARK}[）)])?\s*[：:]")
PREFIX_E = re.compile(f"\\s*({'|'.join(SPEAKERS_E)})\\s*[：:]")
LINE_END = re.compile("\r\n|\n")


def _introduced(lines: list[str]) -> set[str]:
    """Names that stand in brackets after `来访者` somewhere in the session."""
    labels = [LABEL.match(line) for line in lines]
    return {found["remark"] for found in labels if found and found["name"] == "来访者" and found["remark"]}


def _speaker(line: str, names: set[str], draft: Draft) -> tuple[Speaker, str, str | None] | None:
    """(speaker, what is said, the label where it is not one of the two), or None for a line without a speaker."""
    found = LABEL.match(line)
    if found is None:
        return None
    name, said = found["name"], line[found.end() :]
    label = name if found["remark"] is None else f"{name}（{found['remark']}）"
    if name in SPEAKERS:
        if found["remark"] is None:
            return SPEAKERS[name], said, None
        draft.repairs["speaker with a remark in brackets"] += 1
        return SPEAKERS[name], said, label
    if name in FAMILY:
        draft.repairs["member of the family taken for the seeker's side"] += 1
        return "seeker", said, label
    if names and all(part in names for part in re.split("[和与]", name)):
        draft.repairs["speaker by name taken for the seeker's side"] += 1
        return "seeker", said, label
    return None


def _session(text: str, draft: Draft) -> list[tuple[Speaker, str, str | None]]:
    """The turns of a CPsyCounD text, not yet stripped."""
    lines = [line for line in LINE_END.split(text) if line.strip()]
    names = _introduced(lines)
    turns: list[tuple[Speaker, str, str | None]] = []
    for number, line in enumerate(lines, start=1):
        spoken = _speaker(line, names, draft)
        if spoken is not None:
            turns.append(spoken)
        elif turns:
            speaker, said, label = turns[-1]
            turns[-1] = (speaker, f"{said}\n{line}", label)
            draft.repairs["line without a speaker joined to the turn above"] += 1
        else:
            raise draft.error(f"line {number} has no speaker and no turn above it")
    return turns


def _strings(values: Any, draft: Draft) -> list[tuple[Speaker, str, str | None]]:
    """The turns of a CPsyCounE list, not yet stripped."""
    if not isinstance(values, list):
        raise draft.error("is not a list of utterances")
    turns: list[tuple[Speaker, str, str | None]] = []
    for n, value in enumerate(values, start=1):
        found = PREFIX_E.match(value) if isinstance(value, str) else None
        if found is None:
            raise draft.error(f"turn {n}: does not begin with one of {'： '.join(SPEAKERS_E)}：")
        turns.append((SPEAKERS_E[found[1]], value[found.end() :], None))
    return turns


def _dialogue(
    raw: list[tuple[Speaker, str, str | None]], identifier: str, source: str, meta: dict[str, Any], draft: Draft
) -> Dialogue:
    turns = []
    for speaker, said, label in raw:
        text = draft.stripped(said, "turn")
        if not text:
            draft.repairs[EMPTY_TURN] += 1
            continue
        turns.append(Turn(speaker=speaker, text=text, meta={"label": label} if label is not None else {}))
    if not turns:
        raise draft.error("no turn has text")
    draft.noted["turn after a turn of the same speaker"] += sum(
        before.speaker == after.speaker for before, after in pairwise(turns)
    )
    return Dialogue(id=identifier, language="zh", source=source, turns=tuple(turns), meta=meta)


def _read_text(file: Path, draft: Draft) -> list[tuple[Speaker, str, str | None]]:
    return _session(read_text(file), draft)


def _read_strings(file: Path, draft: Draft) -> list[tuple[Speaker, str, str | None]]:
    return _strings(parse_json(read_text(file), str(file)), draft)


def _stream(
    path: Path,
    conversion: Conversion,
    source: str,
    is_json: bool,
    read: Callable[[Path, Draft], list[tuple[Speaker, str, str | None]]],
) -> Iterator[Made]:
    files = data_files(path)
    seen: dict[bytes, str] = {}
    for file, stem in zip(files, file_ids(files, path), strict=True):
        where, draft, raw = str(file), Draft(str(file)), []
        meta: dict[str, Any] = {}
        if is_json:
            # Five files of the same names in each topic's folder, whichever of the folders is given.
            topic = file.resolve().parent.name
            stem, meta = f"{slug(topic)}-{slug(file.stem)}", {"topic": topic}
        try:
            if path.is_dir() and (starts_with(file) in ("[", "{")) != is_json:
                conversion.skip(file)
                continue
            raw = read(file, draft)
            dialogue = _dialogue(raw, f"{source}-{stem}", source, meta, draft)
        except UserError as error:
            if not path.is_dir() and not raw:
                raise
            conversion.turns_read += len(raw)
            conversion.refuse(where, error, len(raw))
            continue
        conversion.turns_read += len(raw)
        said = "\0".join(f"{turn.speaker} {turn.text}" for turn in dialogue.turns)
        earlier = seen.setdefault(hashlib.sha256(said.encode()).digest(), dialogue.id)
        if earlier != dialogue.id:
            draft.noted["exact duplicate of an earlier session: kept, marked in meta"] += 1
            dialogue = dialogue.model_copy(update={"meta": {**meta, "duplicate_of": earlier}})
        draft.accept(conversion)
        yield where, [dialogue]


def stream_d(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """One dialogue a text file, in the natural order of the names; ids are `cpsycound-<file stem>`.

    Of a folder, files that begin as JSON are skipped. Raises UserError when there is no such path.
    """
    return _stream(path, conversion, "cpsycound", False, _read_text)


def stream_e(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """One dialogue a JSON file; ids are `cpsycoune-<topic>-<file stem>`, the topic being the file's folder.

    Of a folder, files that do not begin as JSON are skipped. Raises UserError when there is no such path.
    """
    return _stream(path, conversion, "cpsycoune", True, _read_strings)


ORIGIN = (
    "CPsyCoun: A Report-based Multi-turn Dialogue Reconstruction and Evaluation Framework (Findings of ACL 2024); "
    "CAS-SIAT-XinHai/CPsyCoun"
)
CPSYCOUND = Source(
    name="cpsycound",
    title="CPsyCounD: Chinese counselling sessions rebuilt by a language model from case reports",
    languages=("zh",),
    licence="CC BY 4.0",
    files=("CPsyCounD_raw/*.txt (one session a file)",),
    origin=ORIGIN,
    makes="dialogues",
    stream=stream_d,
)
CPSYCOUNE = Source(
    name="cpsycoune",
    title="CPsyCounE: 45 sessions on nine topics, meant for evaluation",
    languages=("zh",),
    licence="CC BY 4.0",
    files=("CPsyCounE/<topic>/*.json (one session a file)",),
    origin=ORIGIN,
    makes="dialogues",
    stream=stream_e,
)
