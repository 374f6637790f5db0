"""The run folder: what was simulated, with which settings, and what scorers said of it. Nothing else writes one.

    RUN/manifest.json      written first: `settings` (all that changes a number) and `environment` (what ran it)
    RUN/dialogues.jsonl    append-only, one Transcript a line
    RUN/judgments.jsonl    append-only, one Judgment a line
    RUN/scorers.json       settings of every scorer whose judgments are in the folder

The records on disk are the only truth: what is left to do is computed from their keys.
"""

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from data_prep.errors import UserError
from data_prep.records import (
    Dialogue,
    Record,
    RoleCard,
    Speaker,
    Turn,
    describe_invalid,
    dump_line,
    parse_json,
    read_text,
    write_text,
)

FORMAT = "esckit-run/1"
VERSIONS_OF = ("esckit", "torch", "transformers", "tokenizers", "peft", "numpy")


class EndReason(StrEnum):
    """Why a dialogue ended. Everything but `rounds` is a fault of the side it names, never the other's."""

    rounds = "rounds"
    seeker_empty = "seeker_empty"
    supporter_empty = "supporter_empty"
    seeker_context_full = "seeker_context_full"
    supporter_context_full = "supporter_context_full"
    seeker_error = "seeker_error"
    supporter_error = "supporter_error"
    seeker_timeout = "seeker_timeout"
    supporter_timeout = "supporter_timeout"


class TranscriptTurn(Record):
    """One utterance of a simulation and what it cost. The fixed greeting costs nothing and has finish None."""

    speaker: Speaker
    text: str
    thinking: str | None = None
    """What a reasoning model wrote before its reply; kept apart, no model or scorer ever sees it."""
    finish: Literal["stop", "length"] | None = None
    new_tokens: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    """Wall time of the batch this turn was generated in; the one field that differs between equal runs."""


class Transcript(Record):
    """A simulated dialogue with its provenance. `turns` begin with the supporter's greeting."""

    key: str = Field(min_length=1)
    """`card.id#sample`: unique in a run."""
    card: RoleCard
    sample: int = Field(ge=0)
    supporter: str = Field(min_length=1)
    """The supporter's label in reports; the manifest says which model it is."""
    seeker: str = Field(min_length=1)
    turns: tuple[TranscriptTurn, ...] = Field(min_length=1)
    end_reason: EndReason
    detail: str | None = None
    """What an *_error end reason was, in one line."""
    seed: int

    def to_dialogue(self) -> Dialogue:
        """The words alone, as scorers, audits and rating sheets read them."""
        return Dialogue(
            id=self.key,
            language=self.card.language,
            source="simulation",
            turns=tuple(Turn(speaker=turn.speaker, text=turn.text) for turn in self.turns),
            card=self.card,
            meta={
                "supporter": self.supporter,
                "seeker": self.seeker,
                "sample": self.sample,
                "end_reason": self.end_reason.value,
            },
        )


class Judgment(Record):
    """What one scorer said of one dialogue on one dimension. Missing is None with a `reason`, never a number."""

    dialogue_key: str = Field(min_length=1)
    scorer: str = Field(min_length=1)
    rubric: str = Field(min_length=1)
    dimension: str = Field(min_length=1)
    probabilities: tuple[float, ...] | None = None
    """Over the levels of the dimension, lowest first; None for a scorer that only names a level."""
    expected: float | None = None
    """Mean of the distribution, in levels; the level itself where there is no distribution."""
    level: int | None = None
    """The single level the scorer would say."""
    label_mass: float | None = Field(default=None, ge=0, le=1.001)
    """Generative scorers: share of the probability that fell on any level at all."""
    raw: str | None = None
    """The scorer's reply where it was text."""
    reason: str | None = None
    """Why there is no value."""

    @model_validator(mode="after")
    def _value_or_reason(self) -> "Judgment":
        values = (self.probabilities, self.expected, self.level)
        if self.reason is None and self.expected is None:
            raise ValueError("a judgment has an expected level, or a reason why it has none")
        if self.reason is not None and any(value is not None for value in values):
            raise ValueError("a judgment with a reason for missing has no value")
        if self.expected is not None and not abs(self.expected) < float("inf"):
            raise ValueError("expected must be a finite number")
        if self.probabilities is not None and not (
            all(0 <= p <= 1.001 for p in self.probabilities) and abs(sum(self.probabilities) - 1) <= 1e-3
        ):  # written so that NaN fails
            raise ValueError("probabilities must lie in 0..1 and sum to 1")
        return self

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.dialogue_key, self.scorer, self.rubric, self.dimension)


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
            if note := _repair(folder / name):
                self.notes.append(note)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def add_transcripts(self, transcripts: Sequence[Transcript]) -> None:
        """Appends a finished batch with one write, flushed to disk before this returns."""
        _append(self.folder / "dialogues.jsonl", transcripts)

    def add_judgments(self, judgments: Sequence[Judgment]) -> None:
        """Appends judgments with one write, flushed to disk before this returns."""
        _append(self.folder / "judgments.jsonl", judgments)

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
    unlock = _lock(Path(path))
    return RunWriter(Path(path), load_run(path).manifest, unlock)


def open_run(path: str | Path, settings: dict[str, Any]) -> RunWriter:
    """A new run folder, or an existing one of the same settings to go on with.

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
        unlock = _lock(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); name another --out") from None
    try:
        manifest = _start(folder, settings) if not manifest_file.exists() else _resume(folder, settings)
        return RunWriter(folder, manifest, unlock)
    except BaseException:
        unlock()
        raise


def _start(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    manifest = {"format": FORMAT, "settings": settings, "environment": environment()}
    write_text(folder / "manifest.json", _pretty(manifest))
    return manifest


def _resume(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    manifest = load_run(folder).manifest
    if found := differences(manifest["settings"], settings):
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


def environment() -> dict[str, Any]:
    """Versions, machine and UTC time: what may differ between two runs of equal settings."""
    versions: dict[str, str | None] = {}
    for package in VERSIONS_OF:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


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


def _repair(path: Path) -> str | None:
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


def _append(path: Path, records: Iterable[Record]) -> None:
    block = "".join(dump_line(record) for record in records).encode()
    # One unbuffered write: a kill leaves the whole block, nothing of it, or a tail that `_repair` recognises.
    with open(path, "ab", buffering=0) as stream:
        start = stream.tell()
        written = stream.write(block)
        if written != len(block):
            stream.truncate(start)
            raise UserError(f"{path}: only {written} of {len(block)} bytes could be written; is the disk full?")
        os.fsync(stream.fileno())


def _lock(folder: Path) -> Callable[[], None]:
    """Takes the folder's writer lock; the kernel frees it when the process ends, however it ends."""
    import fcntl

    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UserError(f"{folder}: another process is writing this run; wait for it, or use another --out") from None

    return lambda: os.close(handle)
