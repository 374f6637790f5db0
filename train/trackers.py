"""Where a run's curves go: nowhere, TensorBoard, or wandb; the latter offline unless there is a key for it."""

import netrc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from data_prep.errors import UserError

KNOWN = ("wandb", "tensorboard", "none")

# Where `wandb login` has left its key, formerly and today.
WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")

# Asking for curves is not asking for error reports to a third party, or for an upload of code and terminal output.
WANDB_DEFAULTS = {
    "WANDB_PROJECT": "esckit",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_CONSOLE": "off",
}


def prepare_trackers(report_to: Any, out: str) -> list[str]:
    """Checks `training.report_to`, sets the trackers' environment (what is set already stays), returns their names.

    Both write beside the run, in `out`. wandb without a key would end the run: it goes offline instead, and says so
    once. Raises UserError for a tracker that is not known or not installed.
    """
    asked = [report_to] if isinstance(report_to, str) else list(report_to or ())
    unknown = [name for name in asked if name not in KNOWN]
    if unknown:
        raise UserError(f"training.report_to: {unknown[0]!r} is not supported; known: {', '.join(KNOWN)}")
    names = [name for name in asked if name != "none"]
    for name in names:
        if find_spec(name) is None:
            raise UserError(f"training.report_to: {name} is not installed; run: pip install {name}")
    if "tensorboard" in names:
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(Path(out) / "tensorboard"))
    if "wandb" in names:
        for key, value in {**WANDB_DEFAULTS, "WANDB_DIR": out}.items():
            os.environ.setdefault(key, value)
        if not _has_wandb_key() and "WANDB_MODE" not in os.environ:
            os.environ["WANDB_MODE"] = "offline"
            if os.environ.get("RANK", "0") == "0":
                print("warning: no wandb key is set; logging offline (`wandb sync` uploads it later)", file=sys.stderr)
    return names


def _has_wandb_key() -> bool:
    """Whether wandb could log in; the key itself is not looked at."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    named = os.environ.get("WANDB_BASE_URL")
    hosts = (urlparse(named).hostname or "",) if named else WANDB_HOSTS
    try:
        known = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc").hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in known for host in hosts)


@contextmanager
def tracker_errors() -> Iterator[None]:
    """Tells wandb's failures, such as a network that is not there, in one line."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "wandb":
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"wandb: {reason}; set WANDB_MODE=offline, or training.report_to: none") from None


def log_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
    """Shows a table in wandb when a wandb run is going on in this process; nothing otherwise."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.log(
            {name: wandb.Table(columns=list(columns), data=[list(row) for row in rows]), "train/global_step": step}
        )


def finish_trackers() -> None:
    """Ends this process's wandb run, so that the next one in it does not go on in the same curves."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
