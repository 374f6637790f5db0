"""Fetches a dataset's files from the Hugging Face hub into a folder that says where they come from.

The folder appears whole or not at all. Its `source.json` holds the dataset id, the commit the files are of, the
licence as we know it, and the size and sha256 of every file. Without a hub, or for a dataset that is not on it, the
error says which files to bring and from where: nobody is left with a traceback of an HTTP library.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from data_prep.errors import UserError
from data_prep.hub import Progress, cache_root, finished_record, hub_snapshot, offline_reason, one_line, silent
from data_prep.records import sha256_of
from data_prep.sources.base import Source

# Text our converters read, and what says how it may be used; nothing that executes.
KEEP = ("*.json", "*.jsonl", "*.txt", "*.csv", "*.tsv", "*.md", "LICENSE*", "LICENCE*")


def dataset_folder(name: str) -> Path:
    """Where a dataset is kept by default: $ESCKIT_CACHE (or ~/.cache/esckit) / datasets / name."""
    return cache_root() / "datasets" / name


def what_to_bring(source: Source) -> str:
    """Which files to bring by hand, from where, and what to do with them; half a sentence."""
    agreed = f"({source.agreement}) " if source.agreement else ""
    return (
        f"bring {', '.join(source.files)} from {source.origin}, {agreed}"
        f"then: esckit data convert {source.name} PATH --out FILE"
    )


def fetch_dataset(source: Source, out: Path | None = None, progress: Progress = silent) -> Path:
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
        snapshot = hub_snapshot(source.hub_id, "dataset", KEEP)
    except Exception as error:  # the client raises its own errors, the HTTP library's and OSError alike
        raise UserError(
            f"cannot fetch {source.name} from hub dataset {source.hub_id} ({_reason(error)}); {what_to_bring(source)}"
        ) from None
    _put(snapshot, folder, source)
    progress(f"{source.name}: ready in {folder}")
    return folder


def is_fetched(folder: Path, hub_id: str) -> bool:
    """Whether the folder's source.json is of this dataset and every file it lists still has its size."""
    record = finished_record(folder)
    return record is not None and record.get("hub_id") == hub_id


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError

    if isinstance(error, GatedRepoError):
        return offline_reason() or "access must be asked for on its hub page, and the token set in HF_TOKEN"
    return offline_reason() or one_line(error, 200)


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
