"""The ShareGPT layout, read by many training tools.

    {"id": "…", "system": "…", "conversations": [{"from": "human" | "gpt" | "system", "value": "…"}, …]}

`user` and `assistant` are read as well. The human is the seeker unless --seeker gpt says otherwise; a system prompt
(the first turn, or the field `system`) is kept in `meta`, as are further plain fields of the record. Text is
verbatim. A turn without text is dropped, nested fields we do not know are ignored, both counted; all else is refused.
"""

from collections.abc import Iterator
from pathlib import Path

from data_prep.sources.base import Conversion, Made, Options, Source
from data_prep.sources.messages import stream_chats


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues; ids are the record's own, else `sharegpt-<file>-<position>`."""
    return stream_chats(path, options, conversion, "sharegpt", ("conversations", "from", "value"))


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
