"""An adapter merged into its base model: 16-bit (or float32) weights, and proof that nothing changed on the way.

Merging into a quantised base would change what the model says, so the base is always loaded unquantised, an adapter
trained with 4-bit weights included: its 16-bit merge is what PEFT advises, and the page says that training saw others.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from train.models import load_chat_model

PROBE: tuple[str, ...] = (
    "I have not slept well for weeks and I do not know who to talk to.",
    "我最近工作压力很大，晚上总是睡不着。",
)
# Change of the logits that rounding explains, in standard deviations of the logits: the merge rounds each weight once
# to 16 bits (8 bits of mantissa for bfloat16, 11 for float16), and a deep model adds such errors up.
TOLERANCE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}


@dataclass(frozen=True)
class MergeReport:
    """How far the merged model is from base + adapter on the probe texts."""

    dtype: str
    change: float
    """Root mean square difference of the logits, in standard deviations of the logits."""
    same_top: float
    """Share of positions (0..1) whose most probable token is the same."""
    adapter_effect: float
    """The same difference between the base alone and base + adapter: an adapter that does nothing has 0."""


def merged_model(base: str, adapter: str, dtype: str = "auto") -> tuple[Any, Any, MergeReport]:
    """The merged model, its tokenizer and the proof. `dtype` auto keeps what the base was saved in.

    Raises UserError for a quantised base, an adapter that does not fit, and a merge that changes the probe's logits by
    more than rounding does.
    """
    import torch

    model, tokenizer = load_chat_model(base, adapter, _stored_dtype(base) if dtype == "auto" else dtype)
    name = str(model.dtype).removeprefix("torch.")
    with torch.inference_mode():
        ids = _probe(tokenizer, model.device)
        wanted = _logits(model, ids)
        with model.disable_adapter():
            before = _logits(model, ids)
    merged = model.merge_and_unload(safe_merge=True)
    with torch.inference_mode():
        found = _logits(merged, ids)
    spread = float(wanted.std())
    report = MergeReport(
        dtype=name,
        change=float((found - wanted).square().mean().sqrt()) / spread,
        same_top=float((found.argmax(-1) == wanted.argmax(-1)).float().mean()),
        adapter_effect=float((wanted - before).square().mean().sqrt()) / spread,
    )
    check_merge(report, adapter)
    return merged, tokenizer, report


def check_merge(report: MergeReport, adapter: str) -> None:
    """Raises UserError when the merged model says something else than base + adapter."""
    allowed = TOLERANCE.get(report.dtype, 1e-3)
    if not report.change <= allowed:  # NaN is refused too
        raise UserError(
            f"{adapter}: the merged model is not base + adapter: its logits moved by {report.change:.3g} standard "
            f"deviations, rounding to {report.dtype} explains {allowed:g}; nothing was written. Try --dtype float32"
        )


def _stored_dtype(base: str) -> str:
    """What the base model's weights are saved in. Raises UserError for a quantised base."""
    from transformers import AutoConfig

    from train.models import resolve_base

    source = resolve_base(base)
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UserError(f"model {base!r} cannot be read: {str(error).splitlines()[0]}") from None
    if getattr(config, "quantization_config", None):
        raise UserError(
            f"{base}: is a quantised model, and merging into it would change what it says; "
            "name the 16-bit model it was made from: --base NAME"
        )
    stored = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return stored if stored in TOLERANCE else "float32"


def _probe(tokenizer: Any, device: Any) -> list[Any]:
    import torch

    return [torch.tensor([tokenizer(text)["input_ids"]], device=device) for text in PROBE]


def _logits(model: Any, probe: list[Any]) -> Any:
    """[positions of all probe texts, vocabulary] in float32."""
    import torch

    return torch.cat([model(input_ids=ids, use_cache=False).logits[0].float() for ids in probe])


def save_merged(model: Any, tokenizer: Any, out: Path) -> None:
    """Safetensors, the tokenizer and its chat template."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
