"""The `messages` layout of OpenAI and most training tools; SoulChatCorpus is published in it.

    {"id": 0, "topic": "…", "messages": [{"role": "system" | "user" | "assistant", "content": "…"}, …]}

JSON Lines, an array, one object, or a folder of such files. The user is the seeker unless --seeker assistant says
otherwise; a system prompt (the first turn, or the field `system`) is kept in `meta`, as are further plain fields of
the record. Text is verbatim. A turn without text is dropped, nested fields we do not know are ignored, both counted;
all else is refused.
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


def stream_chats(
    path: Path, options: Options, conversion: Conversion, layout: str, keys: tuple[str, str, str]
) -> Iterator[Made]:
    """Dialogues of a list of messages; `keys` are those of list, role and text.

    Ids are the record's own, else `<layout>-<file>-<position>`.
    """
    seeker = chat_seeker(options)

    def parse(record: dict[str, Any], draft: LayoutDraft) -> Parts:
        system, turns = chat_turns(record, keys, draft)
        meta = plain_fields(record, {"id", "language", keys[0], EXTRAS}, draft)
        if system is not None:
            if "system" in record:
                raise draft.error("has two system prompts, a first turn and a field `system`; keep one of them")
            meta["system"] = system
        return Parts(chat_speakers(turns, seeker, draft), meta, extras=record.get(EXTRAS))

    return stream_dialogues(path, options, conversion, layout, parse)


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues; ids are the record's own, else `messages-<file>-<position>`."""
    return stream_chats(path, options, conversion, "messages", ("messages", "role", "content"))


MESSAGES = Source(
    name="messages",
    title='Chats as {"messages": [{"role", "content"}]}, for example SoulChatCorpus',
    languages=("en", "zh"),
    licence="that of the data you bring (SoulChatCorpus: Apache-2.0)",
    files=("*.jsonl", "*.json", "SoulChatCorpus-sft-multi-Turn.json"),
    origin="your own data, or SoulChat (Findings of EMNLP 2023); scutcyr/SoulChat, whose corpus is on ModelScope",
    makes="dialogues",
    stream=stream,
    takes=("seeker",),
)
