"""Chat models by name: `hf:PATH`, `hf:BASE+ADAPTER`, `openai:MODEL@URL`, `replay:FILE`, `human`.

PATH and BASE are a model folder, the name of a known model, or a hub id; PATH may also be an adapter folder, whose
base is then read from it. The `hf:` may be left out.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import sha256_of
from eval.chat_models.base import ChatModel
from eval.chat_models.options import ModelOptions

KINDS = ("hf:PATH", "hf:BASE+ADAPTER", "openai:MODEL@URL", "replay:FILE", "human")


@dataclass(frozen=True)
class LocalSpec:
    """What an `hf:` name stands for. `base` is a folder or a hub id."""

    base: str
    adapter: str | None


def load_chat_model(
    spec: str,
    dtype: str = "auto",
    options: ModelOptions | None = None,
    say: Callable[[str], None] = lambda remark: None,
) -> ChatModel:
    """The chat model a name stands for, ready to reply.

    Raises UserError for an unknown kind, a folder that holds no model, or a model that cannot be loaded.
    """
    return load_chat_models([spec], dtype, [options or ModelOptions()], say)[0]


def load_chat_models(
    specs: Sequence[str],
    dtype: str = "auto",
    options: Sequence[ModelOptions] | None = None,
    say: Callable[[str], None] = lambda remark: None,
) -> list[ChatModel]:
    """One chat model per name; local ones on the same base share its weights where their adapters allow it.

    `say` is given the remarks of models on servers as they come.
    """
    chosen = options or [ModelOptions()] * len(specs)
    models: dict[int, ChatModel] = {}
    parsed: dict[int, LocalSpec] = {}
    # What is wrong with a name is told before any weights are read.
    for index, spec in enumerate(specs):
        if kind_of(spec) == "hf":
            parsed[index] = parse_spec(spec)
    for index, (spec, option) in enumerate(zip(specs, chosen, strict=True)):
        if index not in parsed:
            models[index] = _load_elsewhere(spec, option, say)
    for base in dict.fromkeys(local.base for local in parsed.values()):
        group = [index for index, local in parsed.items() if local.base == base]
        if all(_switchable(parsed[index].adapter) for index in group):
            shares = [group]
        else:
            shares = [[index] for index in group]
        for share in shares:
            loaded = _load_sharing([parsed[index] for index in share], [specs[index] for index in share], dtype)
            models.update(zip(share, loaded, strict=True))
    return [models[index] for index in range(len(specs))]


def kind_of(spec: str) -> str:
    """hf, openai, replay or human. Raises UserError for a name of an unknown kind; a path that exists is hf."""
    if spec == "human":
        return "human"
    found = re.match(r"([a-z]+):", spec)
    if found is None or found[1] == "hf" or Path(spec).exists():
        return "hf"
    if found[1] not in ("openai", "replay"):
        raise UserError(f"model {spec!r}: unknown kind {found[1]!r}; known: {', '.join(KINDS)}")
    return found[1]


def _load_elsewhere(spec: str, options: ModelOptions, say: Callable[[str], None]) -> ChatModel:
    kind = kind_of(spec)
    if kind == "openai":
        from eval.chat_models.endpoint import EndpointChatModel

        return EndpointChatModel(spec, options, say)
    if kind == "replay":
        from eval.chat_models.replay import ReplayChatModel

        return ReplayChatModel(spec)
    from eval.chat_models.human import HumanChatModel

    return HumanChatModel()


def parse_spec(spec: str) -> LocalSpec:
    """Raises UserError with one line for a name that is not of a local model, or of nothing that exists."""
    if kind_of(spec) != "hf":
        raise UserError(f"model {_without_url(spec)}: weights on this machine are needed; write hf:PATH")
    path = spec.removeprefix("hf:")
    if not path:
        raise UserError(f"model {spec!r}: names no model; write hf:PATH or hf:BASE+ADAPTER")
    from train.models import adapter_base, resolve_base

    # A folder may have a plus sign in its name.
    base, plus, adapter = (path, "", "") if Path(path).is_dir() else path.rpartition("+")
    if not plus:
        base = path
        folder = Path(path)
        if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
            return LocalSpec(resolve_base(adapter_base(folder)), path)
        return LocalSpec(resolve_base(base), None)
    adapter_base(adapter)  # refuses a folder that is no adapter
    return LocalSpec(resolve_base(base), adapter)


def _without_url(spec: str) -> str:
    """The name without its address, which may hold a secret."""
    return spec.partition("@")[0]


def _switchable(adapter: str | None) -> bool:
    """Whether turning this adapter off gives back the base exactly: true of LoRA that replaces no module."""
    if adapter is None:
        return True
    config = json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))
    replaces = config.get("modules_to_save") or config.get("trainable_token_indices")
    return config.get("peft_type") == "LORA" and config.get("bias", "none") == "none" and not replaces


def _load_sharing(local: Sequence[LocalSpec], names: Sequence[str], dtype: str) -> list[ChatModel]:
    """Loads one base and every adapter asked for; each chat model switches to its own when it speaks."""
    from eval.chat_models.local import LocalChatModel, Weights
    from train.models import check_adapter
    from train.models import load_chat_model as load

    adapters = list(dict.fromkeys(found.adapter for found in local if found.adapter is not None))
    model, _ = load(local[0].base, adapters[0] if adapters else None, dtype)
    switches = {adapter: "default" if index == 0 else f"other{index}" for index, adapter in enumerate(adapters)}
    for adapter in adapters[1:]:
        try:
            model.load_adapter(adapter, adapter_name=switches[adapter])
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise UserError(f"{adapter}: this adapter does not fit the base model: {reason}") from None
        check_adapter(model, adapter, local[0].base, switches[adapter])
    weights = Weights(model)
    base_details = _base_details(local[0].base, model)
    chat_models: list[ChatModel] = []
    for found, name in zip(local, names, strict=True):
        tokenizer = _tokenizer(found)
        details = {
            **base_details,
            "adapter": _files_sha(found.adapter, "adapter_*") if found.adapter else None,
            "tokenizer": _sha(tokenizer.backend_tokenizer.to_str()),
            "template": _sha(str(tokenizer.chat_template)),
        }
        switch = switches[found.adapter] if found.adapter else None
        chat_models.append(LocalChatModel(name, weights, tokenizer, details, switch))
    return chat_models


def _tokenizer(spec: LocalSpec) -> Any:
    """The one saved with the adapter, which is the one it was trained with, else the base model's."""
    from train.models import open_tokenizer

    own = spec.adapter is not None and (Path(spec.adapter) / "tokenizer_config.json").is_file()
    return open_tokenizer(spec.adapter if own and spec.adapter else spec.base)


def _base_details(base: str, model: Any) -> dict[str, Any]:
    """What identifies the weights: hashes of a folder's files, or a hub id and its commit. No paths: they move."""
    if not Path(base).is_dir():
        return {"base": base, "revision": getattr(model.config, "_commit_hash", None)}
    return {
        "base": Path(base).name,
        "weights": _files_sha(base, "*.safetensors"),
        "config": _files_sha(base, "config.json"),
    }


def _files_sha(folder: str, pattern: str) -> str:
    """One hash over the names and contents of the files of a folder."""
    files = sorted(path for path in Path(folder).glob(pattern) if path.is_file())
    return _sha(json.dumps([[path.name, sha256_of(path)] for path in files]))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
