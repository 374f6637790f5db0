"""The model of a recipe on the meta device: every shape and dtype of the real one, and no memory for it."""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import UserError
from train.models import add_lora, pick_dtype, resolve_base
from train.plan_memory import FOUR_BIT_BYTES, Layer, Linear, Model
from train.recipe import ModelSection, Recipe, ScorerRecipe

SHAPES = Path(__file__).with_name("shapes.yaml")
# Which matrices of a layer read the same input, by the library's names for them.
GROUPS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "query", "key", "value"), "attention input"),
    **dict.fromkeys(("o_proj",), "attention output"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj"), "mlp input"),
}


@dataclass(frozen=True)
class FoundConfig:
    """An architecture and where its numbers come from; `tokenizer` is a folder or hub id when one is at hand."""

    config: Any
    source: str
    tokenizer: str | None = None


@cache
def known_shapes() -> dict[str, dict[str, Any]]:
    """The bundled table of published architectures: hub id -> config values."""
    return yaml.safe_load(SHAPES.read_text(encoding="utf-8"))


def find_config(spec: ModelSection, given: str | None = None) -> FoundConfig:
    """The architecture of a recipe's base model: from `given`, the model's folder, the hub client's cache, the hub,
    or the bundled table, in this order.

    Raises UserError when nobody knows it, with what to do.
    """
    if given is not None:
        return _from_path(Path(given), spec)
    from train.fetch import known_models, model_path

    if spec.base in known_models() and model_path(spec.base) is None:
        return _from_table(spec)
    source = resolve_base(spec.base)
    if Path(source).is_dir():
        return _from_path(Path(source), spec)
    return _from_hub(source, spec) or _from_table(spec)


def _from_path(path: Path, spec: ModelSection) -> FoundConfig:
    from transformers import AutoConfig

    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no config.json there; name a model's config.json or a folder that holds it")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or "model_type" not in content:
            raise UserError(f"{file}: is no model configuration (model_type is missing)")
        config = AutoConfig.from_pretrained(str(file.parent if path.is_dir() else file), **_remote(spec))
    except UserError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file}: cannot be read as a model configuration: {str(error).splitlines()[0]}") from None
    holds_tokenizer = (file.parent / "tokenizer.json").is_file()
    return FoundConfig(config, str(file), str(file.parent) if holds_tokenizer else None)


def _remote(spec: ModelSection) -> dict[str, Any]:
    return {"trust_remote_code": spec.trust_remote_code}


def _from_hub(hub_id: str, spec: ModelSection) -> FoundConfig | None:
    """From the hub client's cache, else from the hub itself when it answers within seconds; None when neither."""
    from huggingface_hub import hf_hub_download

    from data_prep.hub import HUB_DEADLINE, HUB_TIMEOUT, within

    def bring(local: bool) -> str:
        return hf_hub_download(
            hub_id, "config.json", revision=spec.revision, local_files_only=local, etag_timeout=HUB_TIMEOUT
        )

    try:
        file, where = bring(True), "the hub client's cache"
    except Exception:
        if not hub_answers():
            return None
        try:
            file, where = within(HUB_DEADLINE, lambda: bring(False)), "the hub"
        except Exception:  # no network, no such model, gated: the table may still know it
            return None
    found = _from_path(Path(file), spec)
    return FoundConfig(found.config, f"{where}: {hub_id}", hub_id)


def hub_answers() -> bool:
    """Whether the hub can be reached: asked once and briefly, since its client would try for half a minute."""
    import httpx
    from huggingface_hub import constants

    from data_prep.hub import HUB_TIMEOUT, within

    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    try:  # a name look-up can hang beyond the client's own time limit
        within(HUB_TIMEOUT, lambda: httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT))
    except Exception:
        return False
    return True


def _from_table(spec: ModelSection) -> FoundConfig:
    from transformers import AutoConfig

    from train.fetch import MODELS

    name = MODELS[spec.base].hub_id if spec.base in MODELS else spec.base
    by_family = {_family(known): entry for known, entry in known_shapes().items()}
    entry = known_shapes().get(name) or by_family.get(_family(name))
    if entry is None:
        raise UserError(
            f"model {spec.base!r}: its configuration is neither on this machine nor reachable, and the bundled table "
            "does not know it; add --config with the model's config.json"
        )
    values = dict(entry["config"])
    return FoundConfig(AutoConfig.for_model(values.pop("model_type"), **values), f"bundled table ({spec.base})")


def _family(hub_id: str) -> str:
    """A base model and its chat version have one architecture: `Qwen/Qwen2.5-7B` is found by its Instruct's numbers."""
    owner, _, name = hub_id.lower().rpartition("/")
    for word in ("meta-", "-instruct", "-chat", "-it"):
        name = name.replace(word, "")
    return f"{owner}/{name}"


def build_on_meta(recipe: Recipe, config: Any, on_gpu: bool) -> Any:
    """The model that the recipe would train, adapter and heads included, on the meta device. Reads no weight."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    scorer = isinstance(recipe, ScorerRecipe)
    factory: Any = AutoModel if scorer else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = factory.from_config(config, dtype=plan_dtype(recipe, on_gpu), **_remote(recipe.model))
    except (ValueError, ImportError) as error:
        raise UserError(f"model {recipe.model.base!r}: cannot be built: {str(error).splitlines()[0]}") from None
    if scorer and getattr(model, "pooler", None) is not None:
        model.pooler = None  # as in training
    if isinstance(recipe, ScorerRecipe) and recipe.scorer.frozen:
        model.requires_grad_(False)
    if recipe.lora:
        model = add_lora(model, recipe.lora, "FEATURE_EXTRACTION" if scorer else "CAUSAL_LM")
    return model


def plan_dtype(recipe: Recipe, on_gpu: bool) -> Any:
    """The dtype of the base weights; "auto" is bfloat16 on a GPU (one without it is older than 2020)."""
    import torch

    if recipe.model.dtype == "auto":
        return torch.bfloat16 if on_gpu else torch.float32
    return pick_dtype(recipe.model.dtype)


def count(recipe: Recipe, config: Any, on_gpu: bool = True) -> Model:
    """Counts and shapes of the recipe's model for the memory formulas, with the dtypes it has on such a device.

    The trainable parameters are those of the very adapter that PEFT puts on the model. Raises UserError for LoRA
    targets that fit no module.
    """
    from torch import nn

    model = build_on_meta(recipe, config, on_gpu)
    blocks = _blocks(model)
    head = None if isinstance(recipe, ScorerRecipe) else model.get_output_embeddings()
    four_bit = recipe.model.quantization == "4bit"
    sizes = {"weights": 0.0, "adapter": 0.0, "trainable": 0.0}
    parameters = trainable = adapters = 0
    packed = {
        id(module.weight)
        for name, module in model.named_modules()
        if four_bit and isinstance(module, nn.Linear) and "lora_" not in name and module is not head
    }
    for name, parameter in model.named_parameters():  # tied ones come once
        number, size = parameter.numel(), float(parameter.numel() * parameter.element_size())
        if "lora_" in name:
            adapters += number
            # The trainer turns the adapters of a 4-bit model to bfloat16, but not DoRA's magnitudes.
            size = 2.0 * number if four_bit and "magnitude" not in name else size
            sizes["adapter"] += size
        else:
            parameters += number
            size = FOUR_BIT_BYTES * number if id(parameter) in packed else size
            sizes["weights"] += size
        if parameter.requires_grad:
            trainable += number
            sizes["trainable"] += size
    if isinstance(recipe, ScorerRecipe):
        heads = _scorer_heads(recipe, model.config)
        trainable, sizes["weights"], sizes["trainable"] = (
            trainable + heads,
            sizes["weights"] + 4.0 * heads,
            sizes["trainable"] + 4.0 * heads,
        )
    text = model.config.get_text_config()
    gathered = max((_bytes(block) for block in blocks), default=0.0)
    embeddings = model.get_input_embeddings().weight
    return Model(
        layers=tuple(_layer(block, text) for block in blocks),
        hidden=text.hidden_size,
        vocab=text.vocab_size,
        parameters=parameters,
        trainable=trainable,
        weight_bytes=sizes["weights"],
        adapter_bytes=sizes["adapter"],
        trainable_bytes=sizes["trainable"],
        largest_layer_bytes=max(gathered, float(embeddings.numel() * embeddings.element_size())),
        head_trained=head is not None and head.weight.requires_grad,
        four_bit=four_bit,
        dora=bool(recipe.lora and recipe.lora.dora),
        adapters=adapters,
        softcap=bool(getattr(text, "final_logit_softcapping", None)),
    )


def _scorer_heads(recipe: ScorerRecipe, config: Any) -> int:
    import torch

    from data_prep.rubric import load_rubric
    from train.ordinal import make_heads
    from train.scorer import level_counts

    with torch.device("meta"):
        counts = level_counts([load_rubric(name) for name in recipe.rubric])
        heads = make_heads(recipe.scorer.head, config.get_text_config().hidden_size, counts)
    return sum(parameter.numel() for parameter in heads.parameters())


def _bytes(module: Any) -> float:
    return float(sum(p.numel() * p.element_size() for n, p in module.named_parameters() if "lora_" not in n))


def _blocks(model: Any) -> list[Any]:
    """The layers: the longest list of modules of one class."""
    from torch import nn

    lists: list[Any] = [
        m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(each) for each in m}) == 1
    ]
    if not lists:
        raise UserError("this architecture has no list of layers; its memory cannot be planned")
    longest: Any = max(lists, key=len)
    return list(longest)


def _layer(block: Any, config: Any) -> Layer:
    """One layer's shape, read off its modules."""
    from torch import nn

    linears, norms = [], []
    norms_trained = False
    rms = True
    for name, module in block.named_modules():
        last = name.rpartition(".")[2]
        weight = getattr(module, "weight", None)
        if "lora_" in name or weight is None:
            continue
        if hasattr(module, "lora_A"):  # the wrapped matrix itself follows as base_layer
            continue
        if isinstance(module, nn.Linear):
            owner = name.rpartition(".")[0] if last == "base_layer" else name
            wrapped = block.get_submodule(owner)
            rank = next(iter(wrapped.r.values()), 0) if hasattr(wrapped, "lora_A") else 0
            short = owner.rpartition(".")[2]
            linears.append(
                Linear(module.in_features, module.out_features, GROUPS.get(short, owner), weight.requires_grad, rank)
            )
        elif weight.dim() == 1:
            norms.append(weight.numel())
            norms_trained |= weight.requires_grad
            rms &= not isinstance(module, nn.LayerNorm)
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_value = size * (getattr(config, "num_key_value_heads", None) or heads)
    # A norm of one head is applied to every head: of the queries, then of the keys.
    small = iter((size * heads, key_value))
    widths = tuple(next(small, width) if width == size != config.hidden_size else width for width in norms)
    dropout = getattr(config, "attention_dropout", None) or getattr(config, "attention_probs_dropout_prob", 0)
    gated = any(name.rpartition(".")[2] in ("gate_proj", "gate_up_proj") for name, _ in block.named_modules())
    return Layer(
        hidden=config.hidden_size,
        query=size * heads,
        key_value=key_value,
        heads=heads,
        intermediate=config.intermediate_size,
        linears=tuple(linears),
        norms=widths,
        gated=gated,
        norms_trained=norms_trained,
        rms_norm=rms,
        hidden_dropout=getattr(config, "hidden_dropout_prob", 0.0) or 0.0,
        attention_dropout=dropout or 0.0,
        softcap=bool(getattr(config, "attn_logit_softcapping", None)),
    )
