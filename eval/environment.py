"""What ran a run: versions, machine, git commit and time. None of it changes a number by itself."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

VERSIONS_OF = ("esckit", "torch", "transformers", "tokenizers", "peft", "numpy")


def environment() -> dict[str, Any]:
    """Versions, machine, commit of this code and UTC time: what may differ between two runs of equal settings."""
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
        "git_commit": git_commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def git_commit(folder: Path = Path(__file__).resolve().parents[1]) -> str | None:
    """The commit the code in `folder` is of, with `+changes` where files differ from it; None outside a checkout."""
    # A package installed inside another project's checkout has not that project's commit.
    if not (folder / ".git").exists():
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None where it says nothing, is not there or takes too long."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
