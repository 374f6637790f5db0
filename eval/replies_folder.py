"""The folder that keeps a supporter's replies, so that an evaluation that was stopped goes on.

OUT/replies.json     written first: all that changes a reply
OUT/replies.jsonl    append-only, one ReplyRecord a line; of a turn that was asked again the last line counts
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import parse_json, read_records, read_text, write_text
from eval.replies import RETRIED, ReplyRecord
from eval.runs import append_lines, differences, lock_folder, repair_lines

SETTINGS, LINES = "replies.json", "replies.jsonl"


class RepliesFolder:
    """Use with `with`: the folder is locked until then. `note` says what was repaired, None where nothing was."""

    def __init__(self, folder: Path, unlock: Callable[[], None]):
        self.folder = folder
        self._unlock = unlock
        self.note = repair_lines(folder / LINES)

    def __enter__(self) -> "RepliesFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def replies(self) -> dict[tuple[str, int], ReplyRecord]:
        """The last record of every (dialogue, turn)."""
        return read_replies(self.folder)

    def done(self) -> set[tuple[str, int]]:
        """What is not asked again: all but what failed in passing."""
        return {key for key, record in self.replies().items() if record.failure not in RETRIED}

    def add(self, records: Sequence[ReplyRecord]) -> None:
        """Appends with one write, flushed to disk before this returns."""
        append_lines(self.folder / LINES, records)


def read_replies(folder: Path) -> dict[tuple[str, int], ReplyRecord]:
    """Raises UserError for a damaged line."""
    path = folder / LINES
    if not path.exists() or not path.stat().st_size:
        return {}
    return {record.key: record for record in read_records(path, ReplyRecord)}


def open_replies(folder: Path, settings: dict[str, Any]) -> RepliesFolder:
    """A new folder, or one of the same settings to go on with.

    Raises UserError when it was begun with other settings (they are shown), holds something else, or is in use.
    """
    settings = json.loads(json.dumps(settings, ensure_ascii=False))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; --out names a folder")
    path = folder / SETTINGS
    if folder.exists() and not path.exists() and any(one.name[0] != "." for one in folder.iterdir()):
        raise UserError(f"{folder}: holds files but no {SETTINGS}, so it is of something else; name another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unlock = lock_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); name another --out") from None
    try:
        if not path.exists():
            write_text(path, json.dumps(settings, ensure_ascii=False, indent=1) + "\n")
        elif found := differences(parse_json(read_text(path), str(path)), settings):
            raise UserError(
                f"{folder}: was begun with other settings ({'; '.join(found[:6])}); use the same settings to go on, or "
                "another --out"
            )
        return RepliesFolder(folder, unlock)
    except BaseException:
        unlock()
        raise
