"""The Hugging Face hub and our cache folder, for data sets and models alike."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

# Seconds for one answer of the hub, and for its first answer altogether (a name look-up can hang beyond the former).
HUB_TIMEOUT = 5.0
HUB_DEADLINE = 8.0

Result = TypeVar("Result")
Progress = Callable[[str], None]


def silent(_line: str) -> None:
    """The progress of nobody who watches."""


def cache_root() -> Path:
    """$ESCKIT_CACHE, or ~/.cache/esckit when that is unset or empty."""
    return Path(os.environ.get("ESCKIT_CACHE") or "~/.cache/esckit").expanduser().absolute()


def finished_record(folder: Path) -> dict[str, Any] | None:
    """What the folder's source.json says, or None when it is missing or a file it lists has not its size."""
    try:
        record: dict[str, Any] = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == entry["bytes"] for name, entry in record["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if whole else None


def offline_reason() -> str | None:
    """Why the hub cannot be asked and what was not found instead; None when it may be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and the hub client's cache does not hold it"
    return None


@cache
def hub_answers() -> bool:
    """Whether the hub answers anything at all; asked once a process.

    Its client tries a dead line for most of a minute, file by file, and says so in a dozen lines.
    """
    from huggingface_hub import constants, get_session

    if offline_reason():
        return False
    try:
        within(HUB_DEADLINE, lambda: get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT))
    except Exception:  # the HTTP library's errors are its own
        return False
    return True


def hub_snapshot(hub_id: str, kind: Literal["model", "dataset"], patterns: Sequence[str]) -> Path:
    """The files at the newest commit, in the hub client's own cache, which resumes broken downloads.

    The folder's name is the commit. Raises TimeoutError and whatever the client raises: its own errors, the HTTP
    library's and OSError.
    """
    from huggingface_hub import snapshot_download

    wanted = list(patterns)
    if offline_reason():
        return Path(snapshot_download(hub_id, repo_type=kind, allow_patterns=wanted, local_files_only=True))
    commit = within(HUB_DEADLINE, lambda: _latest_commit(hub_id, kind))
    return Path(
        snapshot_download(hub_id, repo_type=kind, revision=commit, allow_patterns=wanted, etag_timeout=HUB_TIMEOUT)
    )


def _latest_commit(hub_id: str, kind: Literal["model", "dataset"]) -> str:
    from huggingface_hub import HfApi

    commit = HfApi().repo_info(hub_id, repo_type=kind, timeout=HUB_TIMEOUT).sha
    if not commit:
        raise ValueError("the hub named no commit")
    return commit


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


def one_line(error: object, limit: int = 240) -> str:
    """An error as one line without control characters: kind, then the start of its message."""
    text = " ".join(str(error).split())
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text
