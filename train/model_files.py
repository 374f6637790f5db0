"""The small files of a base model (configuration, tokenizer settings), found on this machine without loading it."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import read_text


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's files are."""

    where: str
    """In words, for a report."""
    path: Callable[[str], Path | None]
    """The path of one file by its name, None when it is not here."""
    whole: bool
    """False for a cache that may hold only some of the files."""

    def json(self, name: str) -> dict[str, Any]:
        """One file as JSON; empty when it is not here. Raises UserError when it is no JSON object."""
        path = self.path(name)
        if path is None:
            return {}
        try:
            content = json.loads(read_text(path))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: is not valid JSON ({error.msg}); fetch the model again") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}: is no JSON object; fetch the model again")
        return content


def find_model(base: str, revision: str | None = None) -> ModelFiles | None:
    """A known model, a folder, or what the hub client's cache holds; None for a model that only the hub may have.

    Raises UserError for what can be no model: see `models.resolve_base`; and for one that is not here while the hub
    is switched off (HF_HUB_OFFLINE).
    """
    from huggingface_hub import constants, try_to_load_from_cache

    from train.models import resolve_base

    source = resolve_base(base)
    folder = Path(source)
    if folder.is_dir():

        def in_folder(name: str) -> Path | None:
            return folder / name if (folder / name).is_file() else None

        return ModelFiles(f"folder {base}" if source == base else "fetched", in_folder, True)

    def in_cache(name: str) -> Path | None:
        found = try_to_load_from_cache(source, name, revision=revision)
        return Path(found) if isinstance(found, str) else None

    if in_cache("config.json"):
        return ModelFiles("in the hub client's cache", in_cache, False)
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"model {base!r} is not on this machine and HF_HUB_OFFLINE is set; unset it or bring a folder")
    return None
