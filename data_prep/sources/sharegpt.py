"""The ShareGPT layout, read by many training tools.

    {"id": "…", "system": "…", "conversations": [{"from": "human" | "gpt" | "system", "value": "…"}, …]}

`user` and `assistant` are read as well. The human is the seeker unless --seeker gpt says otherwise; a system prompt
(the first turn, or the field `system`) is kept in `meta`, as are further plain fields of the record. Text is
verbatim. A turn without text is dropped, nested fields we do not know are ignored, both counted; all else is refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.sources.base import Conversion, Made, Options, Source
from data_prep.sources.layouts import (
    EXTRAS,
    LayoutDraft,
    Parts,
    chat_seeker,
    chat_speakers,
    chat_turns,
    plain_fields,
    stream_dialogues,
)


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues; ids are the record's own, else `sharegpt-<file>-<position>`."""
    seeker = chat_seeker(options)

    def parse(record: dict[str, Any], draft: LayoutDraft) -> Parts:
        system, turns = chat_turns(record, ("conversations", "from", "value"), draft)
        meta = plain_fields(record, {"id", "language", "conversations", EXTRAS}, draft)
        if system is not None:
            if "system" in record:
                raise draft.error("has two system prompts, a first turn and a field `system`; keep one of them")
            meta["system"] = system
        return Parts(chat_speakers(turns, seeker, draft), meta, extras=record.get(EXTRAS))

    return stream_dialogues(path, options, conversion, "sharegpt", parse)


SHAREGPT = Source(
    name="sharegpt",
    title='Chats as {"conversations": [{"from", "value"}]}',
    languages=("en", "zh"),
    licence="that of the data you bring",
    files=("*.json", "*.jsonl"),
    origin="your own data; the layout of the ShareGPT collections",
    makes="dialogues",
    stream=stream,
    takes=("seeker",),
)
