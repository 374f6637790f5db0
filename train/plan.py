"""The plan of a recipe: what would be trained, on how much, whether it fits, and what to change when it does not.

Nothing heavy is loaded: the model is built on the meta device (plan_model.py), the data are only read (plan_data.py),
the rest is arithmetic (plan_memory.py).
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from data_prep.errors import UserError
from train.plan_data import DataPlan, plan_data
from train.plan_memory import GIB, STRATEGIES, Memory, Model, Step, one_device
from train.plan_model import FoundConfig, count, find_config
from train.recipe import LoraSection, Recipe, ScorerRecipe

ASSUMED_GIB = 24.0
"""The common machine of this field's users has one card of 24 GB."""
TABLE_DEVICES = 8


@dataclass(frozen=True)
class Device:
    """What the plan is held against."""

    name: str
    memory: float
    """Bytes."""
    found: bool
    on_gpu: bool = True


@dataclass(frozen=True)
class Advice:
    """Changes that make a run fit, cheapest first, each with what it costs; `memory` is the total after all."""

    changes: tuple[tuple[str, str], ...]
    memory: float
    fits: bool


@dataclass(frozen=True)
class Plan:
    """Everything that `--plan` tells. Memory is in bytes."""

    kind: str
    base: str
    config_from: str
    parameters: int
    trainable: int
    max_length: int
    data: DataPlan
    step: Step
    assumed_supervised: bool
    device: Device
    single: Memory
    devices: int
    spread: dict[str, Memory]
    cpu: Memory | None
    """The same run on this machine's CPU, where there is no GPU."""
    cpu_free: float | None
    advice: Advice | None
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.single.total is not None and self.single.total <= self.device.memory

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: the fields, and the verdict."""
        return {**asdict(self), "fits": self.fits}


def found_device(memory_gib: float | None) -> Device:
    """The device that is named by its memory, else this machine's first GPU, else an assumed one of 24 GB."""
    if memory_gib is not None:
        return Device(f"a GPU of {memory_gib:g} GB, as asked", memory_gib * GIB, found=False)
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return Device(properties.name, float(properties.total_memory), found=True)
    return Device(f"no GPU here, so one of {ASSUMED_GIB:g} GB is assumed", ASSUMED_GIB * GIB, found=False)


def cpu_memory() -> float | None:
    """Memory that a new process can have on this machine, in bytes; None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return float(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def make_step(recipe: Recipe, data: DataPlan, on_gpu: bool, dtype_bytes: int) -> tuple[Step, bool]:
    """The largest step of a recipe on one device, and whether its supervised positions are an assumption.

    With rows at hand it is their largest batch (a length estimated from characters gets a tenth on top), else a batch
    of rows of `max_length`, half of it supervised.
    """
    training = recipe.training
    batch = int(training["per_device_train_batch_size"])
    limit = recipe.data.max_length
    length, supervised = data.widest or (limit, batch * limit // 2)
    if data.estimated and data.widest:
        length, supervised = min(limit, round(1.1 * length)), min(batch * limit, round(1.1 * supervised))
    if isinstance(recipe, ScorerRecipe):
        supervised = 0
    step = Step(
        batch=batch,
        length=length,
        supervised=supervised,
        padded=batch > 1 or bool(getattr(recipe.data, "packing", False)),
        dtype_bytes=dtype_bytes,
        attention="eager" if recipe.model.attention == "eager" else "sdpa",
        checkpointing=bool(training.get("gradient_checkpointing")),
        offloading=bool(training.get("activation_offloading")),
        accumulation=int(training["gradient_accumulation_steps"]),
        moment_bytes=moment_bytes(str(training.get("optim", "adamw_torch"))),
        dropout=recipe.lora.dropout if recipe.lora else 0.0,
        on_gpu=on_gpu,
    )
    return step, data.widest is None and supervised > 0


def moment_bytes(optim: str) -> float | None:
    """Optimiser bytes a trained parameter by the optimiser's name; None: AdamW in the parameter's dtype."""
    name = optim.lower().rpartition(".")[2]
    if "paged" in name:
        return 0.0  # in the host's memory when the device's is short
    if "8bit" in name:
        return 2.0
    if "adafactor" in name or name.endswith("sgd"):
        return 0.0
    return 4.0 if "lion" in name or "rmsprop" in name else None


class Planner:
    """Counts models and sums memory for variants of one recipe; a count is made once a kind of weights."""

    def __init__(self, config: FoundConfig, data: DataPlan):
        self.config, self.data = config, data
        self.models: dict[str, Model] = {}

    def model(self, recipe: Recipe, on_gpu: bool = True) -> Model:
        key = f"{recipe.model!r} {recipe.lora!r} {on_gpu}"
        if key not in self.models:
            self.models[key] = count(recipe, self.config.config, on_gpu)
        return self.models[key]

    def step(self, recipe: Recipe, on_gpu: bool = True) -> tuple[Step, bool]:
        from train.plan_model import plan_dtype

        halved = recipe.training.get("bf16") or recipe.training.get("fp16")
        size = 2 if halved else plan_dtype(recipe, on_gpu).itemsize
        length = recipe.data.max_length
        data = self.data
        if data.widest and data.widest[0] > length:  # a variant with a lower max_length
            data = replace(data, widest=(length, round(data.widest[1] * length / data.widest[0])))
        batch = int(recipe.training["per_device_train_batch_size"])
        step, assumed = make_step(recipe, data, on_gpu, size)
        return replace(step, supervised=min(step.supervised, batch * step.length)), assumed

    def memory(self, recipe: Recipe, on_gpu: bool = True) -> Memory:
        return one_device(self.model(recipe, on_gpu), self.step(recipe, on_gpu)[0])


def make_plan(
    recipe: Recipe,
    config: str | None = None,
    devices: int | None = None,
    memory_gib: float | None = None,
) -> Plan:
    """Plans a checked recipe. `config` is a model's config.json or its folder, `devices` the number for the table of
    strategies (8) and for the steps (1), `memory_gib` the memory of one device.

    Raises UserError when the base model's architecture is not to be had, and for faulty data.
    """
    found = find_config(recipe.model, config)
    text = found.config.get_text_config()
    data = plan_data(recipe, found.tokenizer, text.vocab_size, devices or 1)
    planner = Planner(found, data)
    device = found_device(memory_gib)
    model, (step, assumed) = planner.model(recipe), planner.step(recipe)
    single = one_device(model, step)
    spread: dict[str, Memory] = {name: one_device(model, step, name, devices or TABLE_DEVICES) for name in STRATEGIES}
    cpu = None
    if not device.found and memory_gib is None and not recipe.model.quantization:
        cpu = planner.memory(recipe, on_gpu=False)
    plan = Plan(
        kind=recipe.kind,
        base=recipe.model.base,
        config_from=found.source,
        parameters=model.parameters,
        trainable=model.trainable,
        max_length=recipe.data.max_length,
        data=data,
        step=step,
        assumed_supervised=assumed,
        device=device,
        single=single,
        devices=devices or TABLE_DEVICES,
        spread=spread,
        cpu=cpu,
        cpu_free=cpu_memory() if cpu else None,
        advice=None,
        notes=tuple(_notes(recipe, model, text)),
    )
    return plan if plan.fits else replace(plan, advice=advise(recipe, planner, device.memory))


def _notes(recipe: Recipe, model: Model, config: Any) -> Iterator[str]:
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and recipe.data.max_length > limit:
        yield f"data.max_length is {recipe.data.max_length}, but the model reads at most {limit}: training refuses it"
    if isinstance(recipe, ScorerRecipe) and recipe.is_many:
        count = recipe.scorer.members * (recipe.scorer.folds or 1)
        yield f"{count} scorers are trained one after the other, each on no more rows than these"
    if isinstance(recipe, ScorerRecipe) and recipe.data.long_dialogues == "windows":
        yield "memory is planned for one window a dialogue; longer ones are several rows at once"
    if any(layer.softcap for layer in model.layers) and recipe.model.attention != "eager":
        yield "this architecture soft-caps its attention scores, which sdpa cannot do: set model.attention: eager"


_Change = tuple[str, str, Callable[[Recipe], Recipe]]
"""What to write, what it costs, and what it does to a recipe."""


def _variants(recipe: Recipe, on_gpu: bool) -> Iterator[_Change]:
    """Changes in order of cost, for a recipe they would change."""

    def training(recipe: Recipe, values: dict[str, Any]) -> Recipe:
        return recipe.model_copy(update={"training": {**recipe.training, **values}})

    def section(recipe: Recipe, name: str, **values: Any) -> Recipe:
        return recipe.model_copy(update={name: getattr(recipe, name).model_copy(update=values)})

    if recipe.model.attention == "eager":
        yield "model.attention=sdpa", "costs nothing", partial(section, name="model", attention="sdpa")
    batch = int(recipe.training["per_device_train_batch_size"])
    accumulated = int(recipe.training["gradient_accumulation_steps"])
    smaller = batch
    while smaller > 1 and smaller % 2 == 0:
        smaller //= 2
        values = {
            "per_device_train_batch_size": smaller,
            "gradient_accumulation_steps": accumulated * batch // smaller,
        }
        text = " ".join(f"training.{key}={value}" for key, value in values.items())
        yield text, "same result, somewhat slower", partial(training, values=values)
    if not recipe.training.get("gradient_checkpointing"):
        change = partial(training, values={"gradient_checkpointing": True})
        yield "training.gradient_checkpointing=true", "same result, about a third more time", change
    if on_gpu and recipe.model.dtype == "float32":
        yield "model.dtype=bfloat16", "rounder weights", partial(section, name="model", dtype="bfloat16")
    if on_gpu and not recipe.lora and "8bit" not in str(recipe.training.get("optim")):
        change = partial(training, values={"optim": "adamw_bnb_8bit"})
        yield "training.optim=adamw_bnb_8bit", "rounder optimiser state; needs bitsandbytes", change
    if not recipe.lora:
        yield "lora.r=16", "trains an adapter, not all weights", partial(_with_lora, r=16)
    if on_gpu and not recipe.model.quantization:
        change = partial(section, name="model", quantization="4bit")
        yield "model.quantization=4bit", "rounder base weights, slower steps; needs bitsandbytes", change
    for length in (4096, 3072, 2048, 1536, 1024):
        if length < recipe.data.max_length:
            change = partial(section, name="data", max_length=length)
            yield f"data.max_length={length}", "longer dialogues lose their oldest turns", change


def _with_lora(recipe: Recipe, r: int) -> Recipe:
    return recipe.model_copy(update={"lora": LoraSection.model_validate({"r": r})})


def advise(recipe: Recipe, planner: Planner, memory: float, on_gpu: bool = True) -> Advice:
    """Takes changes one after the other, the cheapest first, until the run fits; those that save nothing are left
    out, a later one of a kind replaces the earlier (a batch of 1 that of 2), and what is not needed in the end is
    taken back, the dearest first."""

    def after(taken: Iterable[_Change]) -> float:
        changed = recipe
        for _, _, change in taken:
            changed = change(changed)
        return planner.memory(changed, on_gpu).total or 0.0

    taken: dict[str, _Change] = {}
    total = after(())
    for proposed in _variants(recipe, on_gpu):
        tried = {**taken, proposed[0].partition("=")[0]: proposed}
        if after(tried.values()) > 0.99 * total:
            continue
        taken, total = tried, after(tried.values())
        if total <= memory:
            break
    if total <= memory:
        for kind in list(taken)[-2::-1]:
            rest = {name: change for name, change in taken.items() if name != kind}
            if after(rest.values()) <= memory:
                taken, total = rest, after(rest.values())
    return Advice(tuple((text, cost) for text, cost, _ in taken.values()), total, total <= memory)


def needs_gpu(recipe: Recipe) -> str | None:
    """What of a recipe only a GPU can do, as a sentence with what to do; None: nothing, or there is one."""
    import torch

    if torch.cuda.is_available():
        return None
    if recipe.model.quantization:
        return "model.quantization: 4bit needs a GPU and none is visible; leave it out"
    if recipe.model.attention == "flash_attention_2":
        return "model.attention: flash_attention_2 needs a GPU and none is visible; set model.attention: sdpa"
    optim = str(recipe.training.get("optim", ""))
    wanted = [name for name in ("bf16", "fp16", "tf32") if recipe.training.get(name)]
    if "8bit" in optim or "paged" in optim:
        return f"training.optim: {optim} needs a GPU and none is visible; leave it out"
    return f"training.{wanted[0]}: true needs a GPU and none is visible; leave it out" if wanted else None


def check_memory(recipe: Recipe, force: bool = False) -> str | None:
    """Before a run loads anything: does it fit this machine? Returns a warning line, or None.

    On a GPU a run that cannot fit is an error unless `force`d; on a CPU, where memory can be swapped and shared, it is
    a warning. A rough look first: rows are only read when rows of `max_length` would not fit. A launched run of many
    processes is not judged, since its strategy is the launcher's, nor a model whose architecture is not at hand.
    """
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return None
    on_gpu = torch.cuda.is_available()
    memory = found_device(None).memory if on_gpu else cpu_memory()
    try:
        found = find_config(recipe.model)
    except UserError:
        return None  # loading the model says it better
    if memory is None:
        return None
    planner = Planner(found, DataPlan())
    if (planner.memory(recipe, on_gpu).total or 0) <= memory:
        return None
    data = plan_data(recipe, found.tokenizer, found.config.get_text_config().vocab_size, 1)
    planner = Planner(found, data)
    needed = planner.memory(recipe, on_gpu).total or 0
    if needed <= memory:
        return None
    advice = advise(recipe, planner, memory, on_gpu)
    what = "GPU memory" if on_gpu else "free memory"
    line = f"this run needs about {needed / GIB:.1f} GB, and this machine has {memory / GIB:.1f} GB of {what}; "
    overrides = " ".join(override for override, _ in advice.changes)
    line += f"it fits with {overrides}" if advice.fits else "no setting of this recipe makes it fit"
    if on_gpu and not force:
        raise UserError(f"{line}; see --plan, or add --force to try all the same")
    return line
