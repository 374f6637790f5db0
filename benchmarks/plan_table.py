"""The table of docs/plan.md: what the bundled architectures need by the plan, on one 24 GB GPU and on eight.

python -m benchmarks.plan_table
"""

from typing import Any

from train.plan import Plan, make_plan
from train.plan_memory import GIB
from train.plan_model import known_shapes
from train.recipe import ChatRecipe, training_defaults

DEVICES = 8


def plan_of(base: str, quantization: str | None, lora: dict[str, Any] | None) -> Plan:
    """The centre of practice: one row of 2,048 tokens, half of them with loss, gradient checkpointing."""
    content = {
        "kind": "seeker",
        "model": {"base": base, "quantization": quantization, "attention": "eager" if "gemma" in base else "sdpa"},
        "lora": lora,
        "data": {"train": ["absent.jsonl"], "max_length": 2048},
        "out": "unused",
    }
    recipe = ChatRecipe.model_validate(content)
    settings = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "gradient_checkpointing": True}
    return make_plan(
        recipe.model_copy(update={"training": {**training_defaults(recipe), **settings}}),
        devices=DEVICES,
        memory_gib=24,
    )


def gigabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / GIB:.1f}"


def main() -> None:
    print("| base | parameters | LoRA trains | LoRA | QLoRA | all weights | all weights, ZeRO-3 on 8 |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for base, entry in known_shapes().items():
        if entry["config"]["model_type"] == "bert":
            continue
        lora, four_bit = (plan_of(base, quantization, {"r": 16}) for quantization in (None, "4bit"))
        full = plan_of(base, None, None)
        totals = [plan.single.total for plan in (lora, four_bit, full)] + [full.spread["ZeRO-3"].total]
        figures = " | ".join(gigabytes(total) for total in totals)
        print(f"| {base} | {lora.parameters / 1e9:.2f} B | {lora.trainable / 1e6:.1f} M | {figures} |")


if __name__ == "__main__":
    main()
