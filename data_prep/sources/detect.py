"""What a file looks like, by its content: for the message to somebody who named the wrong source."""

import json
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import parse_json, read_text
from data_prep.sources.layouts import first_line
from data_prep.sources.reading import data_files, starts_with

OURS = "our own records"
LARGEST = 50_000_000
"""Bytes of the largest JSON file that is read as a whole for a hint; JSON Lines need their first line only."""


def _first_record(path: Path) -> Any:
    """The first record of a JSON array, JSON Lines or one object; None when there is none to be had."""
    if path.is_dir():
        try:
            path = next((file for file in data_files(path) if first_line(file).lstrip()[:1] in ("{", "[")), path)
        except UserError:
            return None
    line = first_line(path)
    try:
        return json.loads(line) if line.lstrip().startswith("{") else _whole(path)
    except (ValueError, RecursionError):
        return _whole(path)


def _whole(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST:
            return None
        value = parse_json(read_text(path), str(path))
    except (OSError, UserError):
        return None
    return next(iter(value), None) if isinstance(value, list) else value


def _first_of(record: dict[str, Any], name: str) -> dict[str, Any]:
    """The first object of a list of objects, or an empty one."""
    entries = record.get(name)
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}


def _by_turns(record: dict[str, Any]) -> str | None:
    message, conversation = _first_of(record, "messages"), _first_of(record, "conversations")
    if {"role", "content"} <= set(message):
        theirs = str(message["role"]).casefold() in ("therapist", "client")
        return "patienthub-sessions" if theirs else "messages"
    if {"from", "value"} <= set(conversation):
        return "sharegpt"
    turn = _first_of(record, "dialog")
    if "speaker" in turn and {"text", "content"} & set(turn):
        return "esconv"
    turn = _first_of(record, "turns")
    if {"speaker", "text"} <= set(turn):
        return OURS if {"id", "source", "language"} <= set(record) else "sdialog"
    return None


def _by_fields(record: dict[str, Any]) -> str | None:
    fields = set(record)
    metadata = record.get("_metadata")
    if isinstance(metadata, dict) and "className" in metadata:
        return "sdialog-personas"
    for name, needed in (
        ("psych8k", {"instruction", "input", "output"}),
        ("esceval-cards", {"base", "res", "source", "language"}),
        ("esc-judge-personas", {"pid", "role", "final_persona"}),
        ("mhp", {"title", "selftext"}),
    ):
        if needed <= fields:
            return name
    first = record.get("0")
    if isinstance(first, list) and first and isinstance(first[0], str):
        return "esceval-transcripts"
    return "esceval-scores" if isinstance(first, dict) and "fluency" in first else None


def layout_of(path: str | Path) -> str | None:
    """The source whose layout the first record of a file (or folder) has, or None when that is not certain.

    OURS for the toolkit's own records. Never raises for the content of a file.
    """
    record = _first_record(Path(path))
    if not isinstance(record, dict):
        return None
    return _by_turns(record) or _by_fields(record)


def hint(path: str | Path, source: str) -> str:
    """The end of an error about `path`: what it looks like, or nothing where that is not certain or is `source`."""
    found = layout_of(path)
    if found is None or found == source:
        return ""
    if found == OURS:
        return f"; {path} holds {OURS} already; nothing is left to convert"
    return f"; {path} looks like source {found}; try: esckit data convert {found} {path} --out FILE"


OUR_FIELDS = {
    "Dialogue": ("dialogues", {"turns"}, {"turns"}),
    "RoleCard": ("role cards", {"problem", "text", "age", "occupation"}, {"id", "language", "source"}),
    "Rating": ("ratings", {"rater", "dimension", "dialogue_id"}, {"dimension", "dialogue_id"}),
    "Sample": ("rendered messages", {"messages"}, {"messages"}),
}
"""What our records are called, fields of which one record has some, and those by which they are told from others."""


def _our_kind(record: dict[str, Any]) -> str | None:
    """Which of our records this is, complete or not; None for a record of somebody else's."""
    turn = _first_of(record, "turns")
    if "speaker" in turn and ({"id", "source", "language"} & set(record)) and "turns" in record:
        named = {"source", "language"} & set(record) or turn["speaker"] in ("seeker", "supporter")
        return "Dialogue" if named else None
    if "train" in _first_of(record, "messages"):
        return "Sample"
    for kind in ("Rating", "RoleCard"):
        _, some, all_of = OUR_FIELDS[kind]
        if some & set(record) and all_of <= set(record) and "turns" not in record:
            return kind
    return None


def our_kind(path: str | Path) -> str | None:
    """Which of our records the first of a file is (Dialogue, RoleCard, Rating or Sample), if it is one."""
    record = _first_record(Path(path))
    return _our_kind(record) if isinstance(record, dict) else None


def _not_text(path: Path) -> str | None:
    """What a file is that is no text; None for text, be it UTF-16."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"PK\x03\x04"):
        return "is a ZIP file, such as a spreadsheet (XLSX; save it as CSV)"
    if b"\0" in head and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return "is not a text file"
    return None


def not_ours(path: str | Path, kind: str) -> str | None:
    """What to say when a file was expected to hold our records of a `kind` (Dialogue, RoleCard, Rating, …).

    None when its first record is such a record, if a faulty one, or nothing is known about it: then the fault itself
    says more. Never raises for the content of a file.
    """
    if kind not in OUR_FIELDS or Path(path).is_dir() or not Path(path).exists():
        return None
    what = OUR_FIELDS[kind][0]
    if told := _not_text(Path(path)):
        return f"{path}: {told}, expected {what} as JSON Lines, one object a line"
    record = _first_record(Path(path))
    if record is None:
        return None
    if not isinstance(record, dict):
        return f"{path}: its first record is no JSON object, expected {what} as JSON Lines, one object a line"
    found = _our_kind(record)
    if found == kind:
        is_list = starts_with(Path(path)) == "["
        return f"{path}: is a JSON list; esckit reads {what} as JSON Lines, one object a line" if is_list else None
    if found is not None:
        return f"{path}: holds {OUR_FIELDS[found][0]}, expected {what}"
    layout = layout_of(path)
    if layout is None and OUR_FIELDS[kind][1] & set(record):
        return None
    convert = f"convert it first: esckit data convert {layout or 'SOURCE'} {path} --out FILE.jsonl"
    if layout is None:
        return f"{path}: is not a file of esckit {what}; {convert} (for SOURCE see: esckit data sources)"
    return f"{path}: is not a file of esckit {what}, it looks like source {layout}; {convert}"
