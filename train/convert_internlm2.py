"""InternLM2 and LoRA adapters on it to the Llama layout, so that they load without running code from the hub.

InternLM2 (arXiv 2403.17297) is a Llama with its queries, keys and values in one matrix, laid out by group: for every
key/value head its query heads, then the key, then the value. So

    attention.wqkv   [(kv heads) x (queries a group + 2) x head size, hidden]   ->  q_proj, k_proj, v_proj
    attention.wo -> o_proj    feed_forward.w1, w3, w2 -> gate_proj, up_proj, down_proj    output -> lm_head

and nothing is computed: every number is copied. A LoRA adapter on `wqkv` adds B·A to it: each of the three gets all of
A and its own rows of B, which is the same sum.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from data_prep.errors import UserError
from data_prep.records import parse_json, read_text, write_text
from train.internlm2_chat import CODE, keep_chat_system

SHARD_BYTES = 4 * 2**30
ATTENTION = "attention.wqkv"
NAMES = {
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "model.tok_embeddings": "model.embed_tokens",
    "output": "lm_head",
}
PARTS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Shape:
    """What of the configuration decides where a number goes."""

    heads: int
    kv_heads: int
    head_size: int

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows [(kv heads) x (queries a group + 2) x head size, …] of `wqkv` as those of q, k and v."""
        group = self.heads // self.kv_heads
        grouped = rows.reshape(self.kv_heads, group + 2, self.head_size, *rows.shape[1:])
        return (
            grouped[:, :group].reshape(-1, *rows.shape[1:]),
            grouped[:, group].reshape(-1, *rows.shape[1:]),
            grouped[:, group + 1].reshape(-1, *rows.shape[1:]),
        )

    def rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size


def convert_base(base: str | Path, out: str | Path, tell: Callable[[str], None] = print) -> None:
    """Writes a Llama folder with the weights, tokenizer and chat template of an InternLM2 folder.

    Raises UserError for what is no InternLM2, for settings that a Llama cannot have, and for missing weights.
    """
    source, target = Path(base), Path(out)
    config = read_config(source)
    shape = shape_of(config, source)
    check_target(target)
    settings = llama_settings(config, source)
    target.mkdir(parents=True, exist_ok=True)
    seen = _write_weights(source, target, shape, bool(config.get("tie_word_embeddings")))
    _check_complete(seen, config, source)
    write_text(target / "config.json", json.dumps(settings, indent=2) + "\n")
    convert_tokenizer(source).save_pretrained(target)
    if (source / "generation_config.json").is_file():
        write_text(target / "generation_config.json", read_text(source / "generation_config.json"))
    if not keep_chat_system(source, target):
        tell(
            f"note: {source} has no {CODE}; the system text that its chat method adds is not known, see docs/scorer.md"
        )
    tell(f"{source}: {len(seen)} tensors in the Llama layout saved in {target}")


def check_target(target: Path) -> None:
    """Raises UserError unless the folder is new or empty."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"{target}: exists already; --out names a new folder")


def read_config(folder: Path) -> dict[str, Any]:
    """Raises UserError when the folder holds no InternLM2 model."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder}: holds no config.json; name the folder of an InternLM2 model")
    config = parse_json(read_text(path), str(path))
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "internlm2":
        raise UserError(f"{path}: model_type is {kind!r}, expected 'internlm2'")
    return config


def shape_of(config: Mapping[str, Any], where: Path) -> Shape:
    """Raises UserError for numbers that do not fit each other."""
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where}/config.json: {error} is missing or no number") from None
    if hidden % heads or heads % kv_heads:
        raise UserError(
            f"{where}/config.json: {heads} heads do not divide {hidden}, or {kv_heads} key/value heads the heads"
        )
    return Shape(heads, kv_heads, hidden // heads)


def llama_settings(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The Llama configuration that computes the same. Raises UserError where there is none."""
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"{where}/config.json: hidden_act {config['hidden_act']!r} is not that of InternLM2 (silu)")
    rope = dict(config.get("rope_scaling") or {})
    kind = rope.pop("type", rope.pop("rope_type", "default"))
    if kind not in ("default", "linear", "dynamic"):
        raise UserError(f"{where}/config.json: rope_scaling of type {kind!r} is not known of InternLM2")
    copied = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "initializer_range",
        "rms_norm_eps",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "tie_word_embeddings",
    )
    dtype = config.get("dtype") or config.get("torch_dtype")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": bool(config.get("bias", False)),
        "mlp_bias": False,
        "rope_parameters": {"rope_type": kind, "rope_theta": float(config.get("rope_theta", 10_000)), **rope},
        **{name: config[name] for name in copied if name in config},
        **({"dtype": dtype} if dtype else {}),
    }


# ---- weights


def weight_files(folder: Path) -> list[Path]:
    """The files of weights, in order. Raises UserError when there are none or one of them is missing."""
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        index = folder / name
        if index.is_file():
            files = sorted(set(parse_json(read_text(index), str(index))["weight_map"].values()))
            missing = [file for file in files if not (folder / file).is_file()]
            if missing:
                raise UserError(f"{folder}: {missing[0]} is missing ({len(missing)} of {len(files)} weight files)")
            return [folder / file for file in files]
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
    raise UserError(f"{folder}: holds no weights (model.safetensors or pytorch_model.bin)")


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one file, one at a time where the format allows it; no pickled code is run."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise UserError(f"{path}: cannot be read ({error}); fetch it again") from None
        return
    import pickle

    import torch

    try:
        yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())[:120]}); fetch it again") from None


def llama_tensors(name: str, tensor: Tensor, shape: Shape, where: str) -> Iterator[tuple[str, Tensor]]:
    """One tensor of InternLM2 under its Llama names; three for `wqkv`. Raises UserError for an unknown one."""
    stem, _, kind = name.rpartition(".")
    if stem.endswith(ATTENTION):
        if tensor.shape[0] != shape.rows():
            raise UserError(f"{where}: {name} has {tensor.shape[0]} rows, the configuration says {shape.rows()}")
        for part, rows in zip(PARTS, shape.split(tensor), strict=True):
            yield f"{stem.removesuffix(ATTENTION)}self_attn.{part}.{kind}", rows.contiguous()
        return
    for old, new in NAMES.items():
        if stem == old or (re.match(r"model\.layers\.\d+\.", stem) and stem.endswith(f".{old}")):
            yield f"{stem.removesuffix(old)}{new}.{kind}", tensor
            return
    if stem != "model.norm":
        raise UserError(f"{where}: tensor {name!r} is none of InternLM2's")
    yield name, tensor


def _write_weights(source: Path, target: Path, shape: Shape, tied: bool) -> set[str]:
    """Shard by shard, so that memory holds a shard and not a model; returns the names written."""
    from safetensors.torch import save_file

    seen: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    files: list[list[str]] = []

    def flush() -> None:
        if shard:
            save_file(shard, target / f"part-{len(files)}.safetensors", metadata={"format": "pt"})
            files.append(list(shard))
            shard.clear()

    for file in weight_files(source):
        for name, tensor in read_tensors(file):
            if name.endswith("rotary_emb.inv_freq") or (tied and name == "output.weight"):
                continue  # made by the model itself; the tied head is the embedding
            for new, converted in llama_tensors(name, tensor, shape, str(file)):
                if new in seen:
                    raise UserError(f"{file}: tensor {name!r} stands in {seen[new]} too")
                seen[new] = file.name
                shard[new] = converted.contiguous()
        if sum(tensor.numel() * tensor.element_size() for tensor in shard.values()) > SHARD_BYTES:
            flush()
    flush()
    _name_shards(target, files)
    return set(seen)


def _name_shards(target: Path, files: list[list[str]]) -> None:
    total = len(files)
    if total == 1:
        (target / "part-0.safetensors").rename(target / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files):
        name = f"model-{number + 1:05d}-of-{total:05d}.safetensors"
        (target / f"part-{number}.safetensors").rename(target / name)
        weight_map |= dict.fromkeys(names, name)
    write_text(
        target / "model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1) + "\n"
    )


def _check_complete(seen: set[str], config: Mapping[str, Any], source: Path) -> None:
    """Raises UserError when a layer's weight is missing: what is not there would be drawn at random on loading."""
    wanted = {"model.embed_tokens.weight", "model.norm.weight"}
    if not config.get("tie_word_embeddings"):
        wanted.add("lm_head.weight")
    parts = [f"self_attn.{name}.weight" for name in (*PARTS, "o_proj")]
    parts += [f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")]
    parts += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    if config.get("bias"):
        parts += [f"self_attn.{name}.bias" for name in (*PARTS, "o_proj")]
    wanted |= {f"model.layers.{layer}.{part}" for layer in range(int(config["num_hidden_layers"])) for part in parts}
    missing = sorted(wanted - seen)
    if missing:
        raise UserError(f"{source}: {len(missing)} weights are missing, {missing[0]} for one; fetch the model again")


# ---- adapters


def convert_adapter(
    adapter: str | Path,
    base: str | Path,
    out: str | Path,
    tell: Callable[[str], None] = print,
    converted_base: str | None = None,
) -> None:
    """Writes a LoRA adapter of an InternLM2 base for the base's Llama layout, which `converted_base` names.

    Raises UserError for what is no LoRA adapter, or does not fit the base.
    """
    source, target = Path(adapter), Path(out)
    shape = shape_of(read_config(Path(base)), Path(base))
    path = source / "adapter_config.json"
    if not path.is_file():
        raise UserError(f"{source}: holds no adapter_config.json; name the folder of a LoRA adapter")
    config = parse_json(read_text(path), str(path))
    if config.get("peft_type") != "LORA" or config.get("use_dora"):
        raise UserError(f"{path}: only LoRA adapters can be converted, this is {config.get('peft_type')}")
    check_target(target)
    found = next(
        (source / n for n in ("adapter_model.safetensors", "adapter_model.bin") if (source / n).is_file()), None
    )
    if found is None:
        raise UserError(f"{source}: holds no adapter weights (adapter_model.safetensors or adapter_model.bin)")
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_tensors(found):
        tensors.update(_adapter_tensors(name, tensor, shape, str(found)))
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    modules = [new for old in config["target_modules"] for new in _module_names(old, path)]
    # The map of its own code is of no use: Llama is a class of the library.
    kept = {key: value for key, value in config.items() if key != "auto_mapping"}
    content = {**kept, "target_modules": modules, "base_model_name_or_path": converted_base}
    write_text(target / "adapter_config.json", json.dumps(content, indent=2) + "\n")
    tell(f"{source}: {len(tensors)} tensors on {', '.join(modules)} saved in {target}")


def _module_names(old: str, where: Path) -> list[str]:
    """`target_modules` may name the last part of a module or more of it."""
    last = old.rpartition(".")[2]
    if last == "wqkv":
        return list(PARTS)
    names = {key.rpartition(".")[2]: value.rpartition(".")[2] for key, value in NAMES.items()}
    if last not in ("wo", "w1", "w2", "w3"):
        raise UserError(f"{where}: target module {old!r} is none that can be converted (wqkv, wo, w1, w2, w3)")
    return [names[last]]


def _adapter_tensors(name: str, tensor: Tensor, shape: Shape, where: str) -> Iterator[tuple[str, Tensor]]:
    """One tensor of an adapter under its Llama names."""
    match = re.fullmatch(r"(.*model\.layers\.\d+\.)([\w.]+)\.(lora_[AB](?:\.\w+)?\.weight)", name)
    if not match:
        raise UserError(f"{where}: tensor {name!r} is none of a LoRA adapter on InternLM2's layers")
    before, module, kind = match.groups()
    if module == ATTENTION:
        if kind.startswith("lora_A"):
            rows: tuple[Tensor, ...] = (tensor,) * 3
        elif tensor.shape[0] == shape.rows():
            rows = shape.split(tensor)
        else:
            raise UserError(
                f"{where}: {name} has {tensor.shape[0]} rows, the base's wqkv {shape.rows()}: it is of another base"
            )
        for part, found in zip(PARTS, rows, strict=True):
            yield f"{before}self_attn.{part}.{kind}", found.clone().contiguous()
    elif module in NAMES:
        yield f"{before}{NAMES[module]}.{kind}", tensor.contiguous()
    else:
        raise UserError(f"{where}: tensor {name!r} is none of a LoRA adapter on InternLM2's layers")


# ---- tokenizer


def convert_tokenizer(folder: Path) -> Any:
    """The tokenizer as a fast one: from tokenizer.json, else from the SentencePiece model, special tokens kept.

    Raises UserError when neither is there.
    """
    from transformers import PreTrainedTokenizerFast

    settings_file = folder / "tokenizer_config.json"
    settings = parse_json(read_text(settings_file), str(settings_file)) if settings_file.is_file() else {}
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "chat_template", "model_max_length")
    kept = {name: _token_text(settings[name]) for name in names if settings.get(name) is not None}
    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **kept)
    model = folder / "tokenizer.model"
    if not model.is_file():
        raise UserError(f"{folder}: holds neither tokenizer.json nor tokenizer.model")
    specials = [(int(index), entry) for index, entry in (settings.get("added_tokens_decoder") or {}).items()]
    return PreTrainedTokenizerFast(tokenizer_object=_from_sentencepiece(model, specials), **kept)


def _token_text(value: Any) -> Any:
    return value["content"] if isinstance(value, dict) and "content" in value else value


def _from_sentencepiece(model: Path, specials: list[tuple[int, dict[str, Any]]]) -> Any:
    """A BPE tokenizer that cuts as the SentencePiece model does: spaces as ▁, unknown characters as bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    extractor = SentencePieceExtractor(str(model))
    proto = extractor.proto
    if proto.trainer_spec.model_type != 2:
        raise UserError(f"{model}: is no BPE model, as InternLM2's is")
    extracted: Any = extractor.extract(models.BPE)  # a dict, whatever its annotation says
    vocabulary, merges = extracted["vocab"], extracted["merges"]
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            merges,
            unk_token=proto.pieces[proto.trainer_spec.unk_id].piece,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = [normalizers.Prepend("▁")] if proto.normalizer_spec.add_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    control = [piece.piece for piece in proto.pieces if piece.type in (2, 3)]
    listed = {entry["content"] for _, entry in specials}
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in control if text not in listed]
    )
    for index, entry in sorted(specials, key=lambda pair: pair[0]):
        token = AddedToken(entry["content"], special=bool(entry.get("special", True)), normalized=False)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(entry["content"]) != index:
            raise UserError(
                f"{model}: token {entry['content']!r} is {index} by tokenizer_config.json, but has another place"
            )
    return tokenizer
