"""Tokenised rows on disk, so that neither a second run nor any rank of a launched one tokenises again.

One file holds the rows of one set of data files. Its name is the hash of all that the rows depend on: the files'
contents, the tokenizer, the prompts, the recipe's settings, and the code that makes rows. The launcher calls `prepare`
before it starts its processes; each of them then finds the file. What is in it can be read back into people's words,
so the folder is for its owner alone.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import chat_format, records, sample
from data_prep.records import sha256_of
from train import masking, rows, templates
from train.masking import IGNORED, ChatRenderer, Encoded
from train.models import load_tokenizer
from train.recipe import ChatRecipe
from train.rows import ChatFormat, RowReport, chat_rows, read_rows

UNUSED_DAYS = 30
"""Files that nobody read for so long are removed when another is written."""


@dataclass(frozen=True)
class RowSet:
    """Rows end to end: row i is `ids[offsets[i]:offsets[i + 1]]`; `learned` says which of its tokens carry loss."""

    ids: np.ndarray
    learned: np.ndarray
    offsets: np.ndarray
    report: RowReport

    @classmethod
    def of(cls, encoded: Sequence[Encoded], report: RowReport) -> "RowSet":
        offsets = np.cumsum([0, *(len(row.input_ids) for row in encoded)], dtype=np.int64)
        ids = np.fromiter((token for row in encoded for token in row.input_ids), np.int32, int(offsets[-1]))
        learned = np.fromiter((label != IGNORED for row in encoded for label in row.labels), np.bool_, len(ids))
        return cls(ids, learned, offsets, report)

    def encoded(self) -> list[Encoded]:
        """The rows as `chat_rows` gave them."""
        labels = np.where(self.learned, self.ids, IGNORED)
        bounds = list(zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True))
        return [Encoded(self.ids[start:end].tolist(), labels[start:end].tolist()) for start, end in bounds]


@dataclass(frozen=True)
class Prepared:
    """The rows a recipe is trained on and, when it names held-out data, those."""

    train: RowSet
    validation: RowSet | None

    def report(self) -> dict[str, Any]:
        """What metrics.json says of the data."""
        sets = {"train": self.train, "validation": self.validation}
        return {name: asdict(found.report) for name, found in sets.items() if found is not None}


def prepare(recipe: ChatRecipe, tokenizer: Any = None) -> Prepared:
    """A recipe's rows, from the cache or made and put there. Loads the tokenizer (unless given), never the model.

    Raises UserError like `read_rows` and `chat_rows`.
    """
    tokenizer = tokenizer or load_tokenizer(recipe.model)
    data, how = recipe.data, ChatFormat.of(recipe)
    train = _rows(how, tokenizer, data.train, data.limit, recipe)
    held_out = _rows(how.held_out(), tokenizer, data.validation, None, recipe) if data.validation else None
    return Prepared(train, held_out)


def _rows(how: ChatFormat, tokenizer: Any, files: Sequence[str], limit: int | None, recipe: ChatRecipe) -> RowSet:
    path = cache_folder() / f"{_key(how, tokenizer, files, limit, recipe)}.safetensors"
    found = read_row_set(path)
    if found is None:
        located = read_rows(files, limit, recipe.seed, recipe.data.prompt)
        found = RowSet.of(*chat_rows(how, ChatRenderer(tokenizer), located))
        _keep(path, found)
    return found


def cache_folder() -> Path:
    """Where tokenised rows are kept: `rows` in $ESCKIT_CACHE or ~/.cache/esckit."""
    from train.fetch import cache_root

    return cache_root() / "rows"


def _key(how: ChatFormat, tokenizer: Any, files: Sequence[str], limit: int | None, recipe: ChatRecipe) -> str:
    """Hex hash of everything that decides what the rows are; where the files lie does not."""
    parts = {
        "files": [sha256_of(Path(file)) for file in files],
        "limit": [limit, recipe.seed if limit is not None else None],
        "tokenizer": tokenizer_hash(tokenizer),
        "format": [how.side, how.max_length, how.loss, how.expand, recipe.data.prompt is None],
        "prompts": [how.prompt.sha, how.greeting.sha if how.greeting else None],
        "code": _code_hash(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def tokenizer_hash(tokenizer: Any) -> str:
    """Hex sha256 of what a tokenizer does to text: its tokenizer.json, chat template and special tokens."""
    parts = [
        tokenizer.backend_tokenizer.to_str(),
        json.dumps(tokenizer.chat_template, sort_keys=True),
        sorted(tokenizer.all_special_ids),
        [version(name) for name in ("tokenizers", "transformers", "Jinja2")],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _code_hash() -> str:
    """Of the source of what makes rows: an edited rule is a new key, with no number to forget raising."""
    sources = [Path(str(module.__file__)) for module in (chat_format, records, sample, masking, rows, templates)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, Path(__file__)])).hexdigest()


# ---- the file


def _digest(ids: np.ndarray, learned: np.ndarray, offsets: np.ndarray, report: str) -> str:
    found = hashlib.sha256(report.encode())
    for part in (ids, learned, offsets):
        found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def write_row_set(path: Path, found: RowSet) -> None:
    """Writes one row set atomically, readable by its owner alone. Raises OSError."""
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    report = json.dumps(asdict(found.report))
    content = save(
        {"ids": found.ids, "learned": found.learned, "offsets": found.offsets},
        {"report": report, "sha256": _digest(found.ids, found.learned, found.offsets, report)},
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_row_set(path: Path) -> RowSet | None:
    """A row set as it was written, or None: not there, cut, altered in a bit, or of another layout."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata()
            ids, learned, offsets = (file.get_tensor(name) for name in ("ids", "learned", "offsets"))
        if meta["sha256"] != _digest(ids, learned, offsets, meta["report"]):
            return None
        os.utime(path)  # read today: not to be tidied away
        return RowSet(ids, learned, offsets, RowReport(**json.loads(meta["report"])))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def _keep(path: Path, found: RowSet) -> None:
    """Writes to the cache and removes what nobody read lately. A full or read-only disk must not stop a training."""
    try:
        write_row_set(path, found)
        for old in path.parent.glob("*.safetensors"):
            with suppress(FileNotFoundError):  # another process tidies too
                if old.stat().st_mtime < time.time() - UNUSED_DAYS * 86400:
                    old.unlink()
    except OSError as error:
        print(
            f"warning: {path.parent}: tokenised rows are not kept ({error.strerror}); every run and every process "
            "tokenises for itself; set ESCKIT_CACHE to a folder with room",
            file=sys.stderr,
        )
