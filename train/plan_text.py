"""A plan as text for the terminal."""

from collections.abc import Iterator

from train.plan import Plan
from train.plan_memory import GIB, Memory

PARTS = ("weights", "adapter", "gradients", "optimiser", "activations", "logits and loss", "reserve")


def size(value: float | None) -> str:
    """Bytes as GB of 2**30 bytes, or MB below a tenth of one."""
    if value is None:
        return "-"
    return f"{value / GIB:.1f} GB" if value >= 0.1 * GIB else f"{value / 2**20:.0f} MB"


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan, line by line; the verdict last."""
    yield f"plan of a {plan.kind} on {plan.base}"
    yield f"  architecture from {plan.config_from}; nothing was loaded"
    share = plan.trainable / plan.parameters
    yield f"  parameters {plan.parameters:,}, trained {plan.trainable:,} ({share:.2%})"
    yield from data_lines(plan)
    yield from step_lines(plan)
    yield "memory of one device at the peak of a step"
    for part in PARTS:
        yield f"  {part:<16}{size(plan.single.parts[part]):>9}"
    yield f"  {'all':<16}{size(plan.single.total):>9}"
    yield f"on {plan.devices} devices, each"
    yield from strategy_lines(plan)
    if plan.cpu is not None:
        free = f" ({size(plan.cpu_free)} are free)" if plan.cpu_free is not None else ""
        yield f"on this machine's CPU: {size(plan.cpu.total)}{free}"
    for note in plan.notes:
        yield f"note: {note}"
    yield from verdict_lines(plan)


def data_lines(plan: Plan) -> Iterator[str]:
    """Tokens and steps, or why they are not known."""
    data = plan.data
    if data.reason is not None:
        yield f"  data: tokens and steps are unknown: {data.reason}"
        return
    about = "about " if data.estimated else ""
    line = f"  data: {data.rows:,} rows, {about}{data.tokens:,} tokens"
    if data.supervised_tokens is not None:
        line += f", {about}{data.supervised_tokens:,} with loss"
    yield f"{line}; longest row {about}{data.longest:,}"
    shortened = f"{data.shortened:,} dialogues shortened to max_length {plan.max_length:,}"
    yield f"  {about}{shortened}; {data.steps_per_epoch:,} steps an epoch, {data.steps:,} in all"
    if data.estimated:
        yield "  no tokenizer at hand: tokens are estimated from characters (docs/plan.md)"


def step_lines(plan: Plan) -> Iterator[str]:
    """The step that the memory is planned for."""
    step = plan.step
    line = f"  largest step: {step.batch} x {step.length:,} tokens"
    if step.supervised:
        line += f", {step.supervised:,} with loss" + (" (assumed: half)" if plan.assumed_supervised else "")
    used = [f"{step.dtype_bytes * 8} bits", step.attention, f"{step.accumulation} accumulated"]
    used += ["gradient checkpointing"] * step.checkpointing + ["activation offloading"] * step.offloading
    yield f"{line}; {', '.join(used)}"


def strategy_lines(plan: Plan) -> Iterator[str]:
    """One line a strategy: what a device needs, and whether it has that."""
    for name, memory in plan.spread.items():
        if memory.total is None:
            yield f"  {name:<7} not possible: {memory.needs}"
        else:
            parts = ", ".join(f"{part} {size(memory.parts[part])}" for part in PARTS[:4] if memory.parts[part])
            fits = "fits" if memory.total <= plan.device.memory else "does not fit"
            yield f"  {name:<7} {size(memory.total):>8}  {fits:<13} ({parts})"


def verdict_lines(plan: Plan) -> Iterator[str]:
    """Fits or does not fit, and what to change, the cheapest first."""
    needed = f"needs {size(plan.single.total)} of {size(plan.device.memory)} ({plan.device.name})"
    if plan.fits:
        yield f"verdict: fits one device: {needed}"
        return
    yield f"verdict: does not fit one device: {needed}"
    if plan.advice is not None:
        for override, cost in plan.advice.changes:
            yield f"  {override}   ({cost})"
        after = size(plan.advice.memory)
        yield f"  with all of these it fits: {after}" if plan.advice.fits else f"  even so it needs {after}"
    spread = [name for name, memory in plan.spread.items() if _fits(memory, plan.device.memory)]
    if spread:
        accelerate = {"ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3", "FSDP": "fsdp2", "DDP": "multi_gpu"}
        option = f"--accelerate {accelerate[spread[0]]} --num-processes {plan.devices}"
        yield f"  or {plan.devices} such devices: {', '.join(spread)} ({option})"


def _fits(memory: Memory, available: float) -> bool:
    return memory.total is not None and memory.total <= available
