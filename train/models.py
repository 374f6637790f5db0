"""Base models, tokenizers and adapters, in and out of memory."""

import json
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from train.memory import keep_freed_memory
from train.recipe import LoraSection, ModelSection
from train.templates import stabilise


def resolve_base(base: str) -> str:
    """What `from_pretrained` is given for a base model's name: a folder for known and local models, else a hub id.

    Raises UserError for a known model that was not fetched yet and for a folder that holds no model.
    """
    from train.fetch import known_models, model_path

    if base in known_models():
        found = model_path(base)
        if found is None:
            raise UserError(f"model {base!r} is not on this machine yet; run: esckit model fetch {base}")
        return str(found)
    folder = Path(base)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"{base}: is a folder without config.json, not a model; name a model folder or a hub id")
        return base
    if base.startswith((".", "/", "~")) or base.count("/") != 1 or folder.parent.is_dir():
        raise UserError(
            f"model {base!r} is no folder and no hub id; known names: {', '.join(known_models())}, "
            "or a folder with config.json, or organisation/name"
        )
    return base


def _from_pretrained(loader: Any, source: str, **options: Any) -> Any:
    """`from_pretrained` with the library's failures told as one line."""
    keep_freed_memory()
    from data_prep.hub import hub_answers

    # What the hub client has kept serves without a line; what it has not can only be asked for where one is.
    alone = not Path(source).is_dir() and not hub_answers()
    try:
        return loader.from_pretrained(source, **options, **({"local_files_only": True} if alone else {}))
    except (OSError, ValueError) as error:
        if alone:
            raise UserError(
                f"model {source!r} is not on this machine, and the hub is not reached; check the name and the network, "
                "or bring the folder yourself"
            ) from None
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"model {source!r} cannot be loaded: {reason}; check the name, the network, or bring the folder yourself"
        ) from None


def device_name() -> str:
    """The device that models go to: "cuda" when there is one, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def pick_dtype(name: str) -> Any:
    """The torch dtype of a name; "auto" is bfloat16 on a GPU that has it, float32 elsewhere (bf16 crawls on CPU)."""
    import torch

    if name == "auto":
        return torch.bfloat16 if has_bfloat16() else torch.float32
    return getattr(torch, name)


def has_bfloat16() -> bool:
    """Whether there is a GPU that computes in bfloat16; torch also counts older ones, which imitate it slowly."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def open_tokenizer(source: str, **options: Any) -> Any:
    """The tokenizer of a folder or hub id; one without a padding token pads with its end of text (labels are masked
    by length, not by id).

    Raises UserError when it cannot be loaded, or is not a fast tokenizer (those cannot spell out special tokens).
    """
    from transformers import AutoTokenizer

    tokenizer = _from_pretrained(AutoTokenizer, source, **options)
    if not tokenizer.is_fast:
        raise UserError(f"{source}: has only a slow tokenizer; one with tokenizer.json is needed")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def open_chat_tokenizer(name: str) -> Any:
    """The tokenizer of a chat model named as `hf:PATH` or `hf:BASE+ADAPTER` (the `hf:` may be left out): the one saved
    with an adapter, else the base's. No weights are read; a folder with nothing but a tokenizer will do."""
    path = name.removeprefix("hf:")
    for folder in (path, path.rpartition("+")[2]):
        if (Path(folder) / "tokenizer_config.json").is_file():
            return open_tokenizer(folder)
    base, plus, adapter = path.rpartition("+")
    if plus:
        adapter_base(adapter)  # refuses a folder that is no adapter
        return open_tokenizer(resolve_base(base))
    is_adapter = (Path(path) / "adapter_config.json").is_file()
    return open_tokenizer(resolve_base(adapter_base(path) if is_adapter else path))


def load_tokenizer(spec: ModelSection) -> Any:
    """The tokenizer of a recipe's base model, with the chat template that it is trained with (see `stabilise`)."""
    found = open_tokenizer(resolve_base(spec.base), revision=spec.revision, trust_remote_code=spec.trust_remote_code)
    return stabilise(found)


def pick_attention(spec: ModelSection) -> str | None:
    """The attention implementation of a model section; "auto" is flash attention where package, GPU and dtype allow
    it, elsewhere None: the library takes SDPA for every architecture that has it."""
    import torch
    from transformers.utils import is_flash_attn_2_available

    if spec.attention != "auto":
        return spec.attention
    half = pick_dtype(spec.dtype) in (torch.bfloat16, torch.float16)
    fits = half and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    return "flash_attention_2" if fits and is_flash_attn_2_available() else None


def load_options(spec: ModelSection) -> dict[str, Any]:
    """The `from_pretrained` options a recipe's model section stands for."""
    options: dict[str, Any] = {
        "revision": spec.revision,
        "dtype": pick_dtype(spec.dtype),
        "attn_implementation": pick_attention(spec),
        "trust_remote_code": spec.trust_remote_code,
    }
    if spec.quantization == "4bit":
        options["quantization_config"] = _four_bit(options["dtype"])
    return options


def _four_bit(dtype: Any) -> Any:
    """QLoRA's settings (arXiv 2305.14314). Matrices are unpacked to the model's dtype when that is a half one."""
    import torch
    from transformers import BitsAndBytesConfig

    if not torch.cuda.is_available():
        raise UserError("model.quantization: 4bit needs a GPU and none is visible; leave it out")
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise UserError("model.quantization: 4bit needs bitsandbytes; run: pip install bitsandbytes") from None
    if dtype is torch.float32:
        dtype = torch.bfloat16 if has_bfloat16() else torch.float16
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def load_causal(spec: ModelSection) -> Any:
    """The chat model a recipe starts from, on the CPU (the trainer places it)."""
    from transformers import AutoModelForCausalLM

    return _from_pretrained(AutoModelForCausalLM, resolve_base(spec.base), **load_options(spec))


def load_backbone(spec: ModelSection) -> Any:
    """The same without a language-model head, or an encoder: what the scorer reads dialogues with."""
    from transformers import AutoModel

    model = _from_pretrained(AutoModel, resolve_base(spec.base), **load_options(spec))
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # BERT's layer over [CLS] is read by nobody here; an adapter on it would never be trained
    return model


def add_lora(model: Any, lora: LoraSection, task: str) -> Any:
    """Wraps a model with a fresh adapter. `task` is PEFT's: "CAUSAL_LM" or "FEATURE_EXTRACTION".

    Raises UserError when `lora.targets` names no module of the model.
    """
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        use_dora=lora.dora,
        task_type=task,
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"lora.targets {targets!r} do not fit this model: {str(error).splitlines()[0]}") from None


def adapter_base(adapter: str | Path) -> str:
    """The base model an adapter folder was trained on. Raises UserError when the folder is no adapter."""
    path = Path(adapter) / "adapter_config.json"
    if not path.is_file():
        raise UserError(f"{adapter}: is no adapter folder (adapter_config.json is missing)")
    return str(json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path"))


def read_weights(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file. Raises UserError when it is missing, damaged, or holds NaN or infinity."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"{path}: file not found; the folder is not complete")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: is damaged ({error}); copy or train it again") from None
    broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(f"{path}: {broken[0]} holds NaN or infinite values; the training run has diverged")
    return weights


def check_adapter(model: Any, adapter: str, base: str, name: str = "default") -> None:
    """Whether every layer of a saved adapter went into the model, and the model has no other. PEFT only warns of layers
    that the file lacks and leaves them as drawn, so that a damaged adapter would talk like the base model, and drops
    layers that the base has not, so that one of a deeper base would talk half of its own: here both are errors."""
    from peft import get_peft_model_state_dict

    saved = read_weights(Path(adapter) / "adapter_model.safetensors").keys()
    held = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False).keys()
    if absent := held - saved:
        raise UserError(f"{adapter}: is not complete: {len(absent)} layers are missing, such as {min(absent)}")
    if over := {key for key in saved - held if "lora_" in key}:
        raise UserError(
            f"{adapter}: this adapter does not fit the base model {base!r}, "
            f"which has none of {len(over)} layers, such as {min(over)}"
        )


def _with_adapter(model: Any, adapter: str, base: str) -> Any:
    """The model with a saved adapter, which must fit it whole."""
    from peft import PeftModel

    adapter_base(adapter)
    read_weights(Path(adapter) / "adapter_model.safetensors")
    try:
        model = PeftModel.from_pretrained(model, adapter)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{adapter}: this adapter does not fit the base model {base!r}: {reason}") from None
    check_adapter(model, adapter, base)
    return model


def load_chat_model(base: str, adapter: str | None = None, dtype: str = "auto") -> tuple[Any, Any]:
    """A chat model ready to be talked to, and its tokenizer: evaluation mode, on `device_name()`.

    With an adapter, the tokenizer and template saved beside it are used: those it was trained with. Raises
    UserError when base or adapter cannot be loaded or do not fit each other.
    """
    from transformers import AutoModelForCausalLM

    model = _from_pretrained(AutoModelForCausalLM, resolve_base(base), dtype=pick_dtype(dtype))
    source = resolve_base(base)
    if adapter is not None:
        model = _with_adapter(model, adapter, base)
        if (Path(adapter) / "tokenizer_config.json").is_file():
            source = adapter
    return model.eval().to(device_name()), open_tokenizer(source)
