"""Psych8k (ChatCounselor, arXiv 2309.15461): questions of clients and answers, made from 260 interviews.

    {"instruction": "…", "input": "what the client says", "output": "the answer"}

A record is a dialogue of two turns. The instruction, the same sentence in nearly all records, is kept in `meta`.
Text is verbatim; fields we do not know are ignored and counted. A record without input or output is refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.sources.base import Conversion, Made, Options, Source
from data_prep.sources.layouts import UNKNOWN, LayoutDraft, Parts, stream_dialogues

FIELDS = ("instruction", "input", "output")


def _parse(record: dict[str, Any], draft: LayoutDraft) -> Parts:
    draft.turns = sum(isinstance(record.get(name), str) for name in ("input", "output"))
    for name in FIELDS:
        if not isinstance(record.get(name), str):
            raise draft.error(f"`{name}` is not a text; expected {', '.join(FIELDS)}")
    for name in ("input", "output"):
        if not record[name].strip():
            raise draft.error(f"`{name}` is empty")
    draft.repairs[UNKNOWN] += len(set(record) - {*FIELDS, "id"})
    turns = [("seeker", record["input"]), ("supporter", record["output"])]
    return Parts(turns, {"instruction": record["instruction"]})  # type: ignore[arg-type]


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues of two turns; ids are `psych8k-<file>-<position>`."""
    english = Options(language=options.language or "en")
    return stream_dialogues(path, english, conversion, "psych8k", _parse, extras_of=lambda record: None)


PSYCH8K = Source(
    name="psych8k",
    title="Psych8k: clients' questions and counsellors' answers, made from interviews",
    languages=("en",),
    licence="as its hub page states",
    files=("Alexander_Street_shareGPT_2.0.json",),
    origin="ChatCounselor (arXiv 2309.15461); EmoCareAI/ChatPsychiatrist",
    hub_id="EmoCareAI/Psych8k",
    makes="dialogues",
    stream=stream,
    agreement="Needs access: its authors grant it on request, on the hub page of the dataset.",
)
