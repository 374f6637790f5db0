"""The run folder: what was simulated, with which settings, and what scorers said of it. Nothing else writes one.

    RUN/manifest.json      written first: `settings` (all that changes a number), `plan` (which dialogues belong here)
                           and `environment` (what ran it)
    RUN/dialogues.jsonl    append-only, one Transcript a line
    RUN/judgments.jsonl    append-only, one Judgment a line
    RUN/scorers.json       settings of every scorer whose judgments are in the folder

The records on disk are the only truth: what is left to do is computed from their keys.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from data_prep.errors import UserError
from data_prep.records import Record, describe_invalid, dump_line, parse_json, read_text, write_records, write_text
from eval.environment import environment
from eval.run_records import EndReason, Judgment, Plan, Transcript, TranscriptTurn

__all__ = ["EndReason", "Judgment", "Plan", "Run", "RunWriter", "Transcript", "TranscriptTurn", "load_run", "open_run"]

FORMAT = "esckit-run/1"


LineT = TypeVar("LineT", Transcript, Judgment)


class Run:
    """A run folder that is read. `notes` are one-line remarks for the user (a torn line that was left out)."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest
        self.notes: list[str] = []

    @property
    def settings(self) -> dict[str, Any]:
        return self.manifest["settings"]

    @property
    def plan(self) -> Plan | None:
        """None for a folder of an earlier version, which did not note it."""
        return Plan.model_validate(self.manifest["plan"]) if "plan" in self.manifest else None

    def missing(self) -> list[str]:
        """Keys of dialogues that belong here and are not here yet."""
        have = {transcript.key for transcript in self.transcripts()}
        return [key for key in self.plan.dialogue_keys() if key not in have] if self.plan else []

    def transcripts(self) -> list[Transcript]:
        """All dialogues in the order they were finished. Raises UserError for a damaged line or a key twice."""
        return self._read("dialogues.jsonl", Transcript)

    def judgments(self) -> list[Judgment]:
        """All judgments in the order they were made. Raises UserError for a damaged line or a key twice."""
        return self._read("judgments.jsonl", Judgment)

    def scorers(self) -> dict[str, Any]:
        """Settings of the scorers by their name."""
        path = self.folder / "scorers.json"
        return parse_json(read_text(path), str(path)) if path.exists() else {}

    def _read(self, name: str, kind: type[LineT]) -> list[LineT]:
        path = self.folder / name
        if not path.exists():
            return []
        # Only complete lines count: what follows the last line end is being written, or was torn by a crash.
        lines, torn = _complete_lines(path.read_bytes())
        if torn:
            self.notes.append(f"{path}: the last line is incomplete and was left out")
        records: list[LineT] = []
        seen: set[Any] = set()
        for number, line in enumerate(lines, start=1):
            record = _parse_line(line, f"{path}:{number}", kind)
            if record.key in seen:
                raise UserError(f"{path}:{number}: key {record.key!r} occurs twice; remove one of the two lines")
            seen.add(record.key)
            records.append(record)
        return records


class RunWriter(Run):
    """A run folder that is written: holds its lock until closed (use with `with`); killing the process frees it."""

    def __init__(self, folder: Path, manifest: dict[str, Any], unlock: Callable[[], None]):
        super().__init__(folder, manifest)
        self._unlock = unlock
        for name in ("dialogues.jsonl", "judgments.jsonl"):
            if note := repair_lines(folder / name):
                self.notes.append(note)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def add_transcripts(self, transcripts: Sequence[Transcript]) -> None:
        """Appends a finished batch with one write, flushed to disk before this returns."""
        append_lines(self.folder / "dialogues.jsonl", transcripts)

    def add_judgments(self, judgments: Sequence[Judgment]) -> None:
        """Appends judgments with one write, flushed to disk before this returns."""
        append_lines(self.folder / "judgments.jsonl", judgments)

    def set_aside_faulty(self) -> list[str]:
        """Moves dialogues that a fault ended, and their judgments, into dialogues.failed.jsonl and
        judgments.failed.jsonl, so that they are missing and will be made again. Returns their keys.

        The copy is written before anything is taken out: a crash in between leaves a record twice, never lost.
        """
        faulty = [one for one in self.transcripts() if one.end_reason.is_fault]
        keys = {one.key for one in faulty}
        if not keys:
            return []
        stale = [one for one in self.judgments() if one.dialogue_key in keys]
        append_lines(self.folder / "dialogues.failed.jsonl", faulty)
        if stale:
            append_lines(self.folder / "judgments.failed.jsonl", stale)
            # Judgments first: without their dialogue they would be of nothing.
            fine = [one for one in self.judgments() if one.dialogue_key not in keys]
            write_records(self.folder / "judgments.jsonl", fine)
        write_records(self.folder / "dialogues.jsonl", [one for one in self.transcripts() if one.key not in keys])
        return sorted(keys)

    def set_aside_missing(self, scorer: str) -> int:
        """Moves a scorer's missing judgments into judgments.failed.jsonl, so that they will be made again; how many."""
        judgments = self.judgments()
        missing = [one for one in judgments if one.scorer == scorer and one.reason is not None]
        if missing:
            append_lines(self.folder / "judgments.failed.jsonl", missing)
            kept = [one for one in judgments if one.scorer != scorer or one.reason is None]
            write_records(self.folder / "judgments.jsonl", kept)
        return len(missing)

    def note(self, name: str, value: Any) -> None:
        """Adds to the manifest what changes no number and is no setting: where a merged or imported run comes from."""
        self.manifest[name] = _as_json({"value": value})["value"]
        write_text(self.folder / "manifest.json", _pretty(self.manifest))

    def add_scorer(self, name: str, settings: dict[str, Any]) -> None:
        """Stores a scorer's settings before its first judgment; raises UserError when that name has others here."""
        known = self.scorers()
        settings = _as_json(settings)
        if name in known:
            if found := differences(known[name], settings):
                raise UserError(
                    f"{self.folder}: scorer {name!r} judged here with other settings ({'; '.join(found)}); "
                    "give the new one another name"
                )
            return
        write_text(self.folder / "scorers.json", _pretty({**known, name: settings}))


def load_run(path: str | Path) -> Run:
    """A run folder for reading. Raises UserError when it is none."""
    folder = Path(path)
    file = folder / "manifest.json"
    if not file.is_file():
        what = "does not exist" if not folder.exists() else "is no run folder (it has no manifest.json)"
        raise UserError(f"{folder}: {what}; name a folder that `esckit simulate --out` made")
    manifest = parse_json(read_text(file), str(file))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or "settings" not in manifest:
        raise UserError(f"{file}: is no manifest of a run (format {FORMAT}); was it made by another version?")
    return Run(folder, manifest)


def append_to_run(path: str | Path) -> RunWriter:
    """An existing run folder for writing (scorers). Raises UserError when it is none or is being written."""
    load_run(path)
    unlock = lock_folder(Path(path))
    return RunWriter(Path(path), load_run(path).manifest, unlock)


def open_run(path: str | Path, settings: dict[str, Any], plan: Plan | None = None) -> RunWriter:
    """A new run folder, or an existing one of the same settings and plan to go on with.

    Raises UserError when the folder holds other settings (they are shown), when it holds something that is no run,
    or when another process is writing it. A different environment does not refuse; it is noted in the manifest.
    """
    folder = Path(path)
    settings = _as_json(settings)
    manifest_file = folder / "manifest.json"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; --out names a folder")
    if folder.exists() and not manifest_file.exists() and any(p.name[0] != "." for p in folder.iterdir()):
        raise UserError(f"{folder}: holds files but no manifest.json, so it is no run folder; name another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unlock = lock_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); name another --out") from None
    try:
        manifest = (_resume if manifest_file.exists() else _start)(folder, settings, plan)
        return RunWriter(folder, manifest, unlock)
    except BaseException:
        unlock()
        raise


def _start(folder: Path, settings: dict[str, Any], plan: Plan | None) -> dict[str, Any]:
    manifest = {"format": FORMAT, "settings": settings, "environment": environment()}
    if plan is not None:
        manifest["plan"] = plan.model_dump(mode="json")
    write_text(folder / "manifest.json", _pretty(manifest))
    return manifest


def _resume(folder: Path, settings: dict[str, Any], plan: Plan | None) -> dict[str, Any]:
    manifest = load_run(folder).manifest
    found = differences(manifest["settings"], settings)
    if plan is not None and "plan" in manifest:
        found += differences({"shard": manifest["plan"]["shard"]}, {"shard": plan.shard})
    if found:
        shown = "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")
        raise UserError(
            f"{folder}: was begun with other settings ({shown}); use the same settings to go on, or another --out"
        )
    now = environment()
    latest = [manifest["environment"], *manifest.get("resumed", [])][-1]
    if differences({**latest, "time": None}, {**now, "time": None}):
        manifest["resumed"] = [*manifest.get("resumed", []), now]
        write_text(folder / "manifest.json", _pretty(manifest))
    return manifest


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Every leaf in which two nested dicts differ, as `sampling.temperature: 0.7 in the folder, 1.0 now`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        below = (
            differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{name}.{key}" if name else key) for key in keys
        )
        return [line for lines in below for line in lines]
    # 1 == 1.0 == True in Python, but not in a manifest.
    if _show(old) == _show(new):
        return []
    return [f"{name}: {_short(old)} in the folder, {_short(new)} now"]


_ABSENT = object()


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _short(value: Any) -> str:
    text = _show(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """What reading the written settings would give (tuples become lists), so that comparing is fair."""
    return json.loads(json.dumps(settings, ensure_ascii=False, allow_nan=False))


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _complete_lines(raw: bytes) -> tuple[list[bytes], bytes]:
    """The lines that end with a line end, and the rest."""
    *lines, rest = raw.split(b"\n")
    return lines, rest


def _parse_line(line: bytes, where: str, kind: type[LineT]) -> LineT:
    try:
        return kind.model_validate(parse_json(line.decode("utf-8"), where))
    except UnicodeDecodeError:
        raise UserError(f"{where}: is not valid UTF-8; the file was damaged after it was written") from None
    except ValidationError as error:
        raise UserError(f"{where}: {describe_invalid(error)}") from None


def repair_lines(path: Path) -> str | None:
    """Cuts a last line that a crash left without its end; returns what was done, for the user."""
    if not path.exists():
        return None
    _, torn = _complete_lines(path.read_bytes())
    if not torn:
        return None
    with open(path, "rb+") as stream:
        stream.truncate(path.stat().st_size - len(torn))
        os.fsync(stream.fileno())
    return f"{path}: the last line was incomplete (an earlier run was stopped while writing) and was removed"


def append_lines(path: Path, records: Iterable[Record]) -> None:
    block = "".join(dump_line(record) for record in records).encode()
    # One unbuffered write: a kill leaves the whole block, nothing of it, or a tail that `repair_lines` recognises.
    with open(path, "ab", buffering=0) as stream:
        start = stream.tell()
        try:
            written = stream.write(block)
            if written != len(block):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(stream.fileno())
        except OSError as error:
            stream.truncate(start)
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); what was finished before is kept, "
                "make room and give the same command again"
            ) from None


def lock_folder(folder: Path) -> Callable[[], None]:
    """Takes the folder's writer lock; the kernel frees it when the process ends, however it ends."""
    import fcntl

    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UserError(f"{folder}: another process is writing this run; wait for it, or use another --out") from None

    return lambda: os.close(handle)
