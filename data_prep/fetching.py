"""Fetches a dataset's files from the Hugging Face hub into a folder that says where they come from.

The folder appears whole or not at all. Its `source.json` holds the dataset id, the commit the files are of, the
licence as we know it, and the size and sha256 of every file. Without a hub, or for a dataset that is not on it, the
error says which files to bring and from where: nobody is left with a traceback of an HTTP library.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from data_prep.errors import UserError
from data_prep.records import sha256_of
from data_prep.sources.base import Source

# Text our converters read, and what says how it may be used; nothing that executes.
KEEP = ("*.json", "*.jsonl", "*.txt", "*.csv", "*.tsv", "*.md", "LICENSE*", "LICENCE*")
# Seconds for one answer of the hub, and for its first answer altogether (a name look-up can hang beyond the former).
HUB_TIMEOUT = 5.0
HUB_DEADLINE = 8.0

Progress = Callable[[str], None]


def _silent(_line: str) -> None:
    pass


def dataset_folder(name: str) -> Path:
    """Where a dataset is kept by default: $ESCKIT_CACHE (or ~/.cache/esckit) / datasets / name."""
    root = Path(os.environ.get("ESCKIT_CACHE") or "~/.cache/esckit").expanduser().absolute()
    return root / "datasets" / name


def what_to_bring(source: Source) -> str:
    """Which files to bring by hand, from where, and what to do with them; half a sentence."""
    agreed = f"({source.agreement}) " if source.agreement else ""
    return (
        f"bring {', '.join(source.files)} from {source.origin}, {agreed}"
        f"then: esckit data convert {source.name} PATH --out FILE"
    )


def fetch_dataset(source: Source, out: Path | None = None, progress: Progress = _silent) -> Path:
    """The folder of a dataset's files, downloaded unless it is there already; `progress` is told each step.

    Raises UserError when the dataset is not on the hub, the hub cannot be reached or refuses, and when the folder
    holds something else.
    """
    folder = out if out is not None else dataset_folder(source.name)
    if source.hub_id is None:
        raise UserError(f"{source.name} is not on the hub; {what_to_bring(source)}")
    if is_fetched(folder, source.hub_id):
        progress(f"{source.name}: already in {folder}")
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: holds something else than {source.name} as fetched; choose an empty folder")
    progress(f"{source.name}: fetching {source.hub_id}")
    try:
        snapshot = _snapshot(source.hub_id)
    except Exception as error:  # the client raises its own errors, the HTTP library's and OSError alike
        raise UserError(
            f"cannot fetch {source.name} from hub dataset {source.hub_id} ({_reason(error)}); {what_to_bring(source)}"
        ) from None
    _put(snapshot, folder, source)
    progress(f"{source.name}: ready in {folder}")
    return folder


def is_fetched(folder: Path, hub_id: str) -> bool:
    """Whether the folder's source.json is of this dataset and every file it lists still has its size."""
    try:
        record = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        sizes = all((folder / name).stat().st_size == entry["bytes"] for name, entry in record["files"].items())
        return sizes and record["hub_id"] == hub_id
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _snapshot(hub_id: str) -> Path:
    """The files at the newest commit, through the hub client's own cache, which resumes broken downloads."""
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        return Path(snapshot_download(hub_id, repo_type="dataset", allow_patterns=list(KEEP), local_files_only=True))
    commit = _within(HUB_DEADLINE, lambda: _latest_commit(hub_id))
    return Path(
        snapshot_download(
            hub_id, repo_type="dataset", revision=commit, allow_patterns=list(KEEP), etag_timeout=HUB_TIMEOUT
        )
    )


def _latest_commit(hub_id: str) -> str:
    from huggingface_hub import HfApi

    commit = HfApi().dataset_info(hub_id, timeout=HUB_TIMEOUT).sha
    if not commit:
        raise ValueError("the hub named no commit")
    return commit


def _within(seconds: float, work: Callable[[], str]) -> str:
    """The result of `work`, or TimeoutError; the thread left behind dies with the process."""
    done: list[str] = []
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


def _reason(error: Exception, limit: int = 200) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and the hub client's cache does not hold it"
    if isinstance(error, GatedRepoError):
        return "access must be asked for on its hub page, and the token set in HF_TOKEN"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= limit else text[: limit - 1] + '…'}"


def _put(snapshot: Path, folder: Path, source: Source) -> None:
    """Copies the files beside the folder's place, writes source.json last, and renames."""
    work: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        files: dict[str, Any] = {}
        for file in sorted(path for path in snapshot.rglob("*") if path.is_file()):
            name = file.relative_to(snapshot).as_posix()
            target = work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            files[name] = {"bytes": target.stat().st_size, "sha256": sha256_of(target)}
        if not files:
            raise UserError(f"hub dataset {source.hub_id} holds none of {', '.join(KEEP)}; {what_to_bring(source)}")
        record = {
            "name": source.name,
            "hub_id": source.hub_id,
            "commit": snapshot.name,
            "licence": source.licence,
            "fetched_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": files,
        }
        (work / "source.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        work.chmod(0o755)
        work.replace(folder)
        work = None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
