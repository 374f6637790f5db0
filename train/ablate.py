"""Ablations: one recipe, what is varied, and seeds; every combination is a run of its own. Starts no run itself.

    recipe: recipes/esc_role/esconv-smollm2-lora.yaml
    out: runs/ablations/lora
    overrides: [data.limit=40]            # for all runs
    seeds: [0, 1, 2]
    compare:                              # named variants: lists of overrides
      per_turn: [data.expand=turns]
    grid:                                 # every combination of these values
      lora.r: [4, 16]

The base is the recipe with the overrides for all; each variant is compared with it, seed by seed.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_prep.errors import UserError
from train.recipe import Recipe, load_recipe
from train.recipe_faults import RecipeFaults, explain
from train.yaml_lines import Location, load_yaml

BASE = "base"
SET_HERE = {"seed": "list the seeds under `seeds`", "out": "set `out` at the top of the ablation"}
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Ablation(BaseModel):
    """What the file says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    out: str
    overrides: list[str] = []
    seeds: list[Seed] = Field(default=[0], min_length=1)
    compare: dict[str, list[str]] = {}
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    metric: str = "validation.perplexity"
    """A figure of metrics.json by its path; of a list the last one."""


@dataclass(frozen=True)
class Variant:
    """One way to train; the base has no overrides of its own."""

    name: str
    overrides: tuple[str, ...]
    line: int
    """Where the file says it."""
    lines: tuple[int, ...] = ()
    """Where it says each override."""


@dataclass(frozen=True)
class AblationRun:
    """One training: a variant and a seed."""

    variant: str
    seed: int
    overrides: tuple[str, ...]
    """Everything that `esckit train RECIPE` is told besides."""
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.variant} seed {self.seed}"


def load_ablation(path: str | Path) -> tuple[Ablation, dict[Location, int]]:
    """The file's content and its lines. Raises UserError with a line for each fault."""
    content, lines = load_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: an ablation is a YAML mapping with at least `recipe`, `out`, and `compare` or `grid`")
    faults = RecipeFaults(str(path), lines)
    try:
        ablation = Ablation.model_validate(content)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            explain(fault, Ablation, faults)
        told = [line.replace("in the recipe;", "in the ablation;") for line in faults.of("keys")]
        raise UserError("\n".join(told)) from None
    if not ablation.compare and not ablation.grid:
        raise UserError(f"{path}: varies nothing; name variants under `compare`, or values under `grid`")
    if len(set(ablation.seeds)) < len(ablation.seeds):
        raise UserError(f"{faults.where(('seeds',))}: seeds: a seed stands there twice")
    return ablation, lines


def variants(ablation: Ablation, lines: Mapping[Location, int]) -> list[Variant]:
    """The base, the named variants, and the combinations of the grid, in the order of the file."""
    found = [Variant(BASE, (), lines.get(("recipe",), 1))]
    for name, overrides in ablation.compare.items():
        line = lines[("compare", name)]
        places = tuple(lines.get(("compare", name, at), line) for at in range(len(overrides)))
        found.append(Variant(name, tuple(overrides), line, places))
    if ablation.grid:
        columns = [
            [(f"{key}={_yaml(value)}", lines[("grid", key)]) for value in values]
            for key, values in ablation.grid.items()
        ]
        for cells in product(*columns):
            pairs, places = zip(*cells, strict=True)
            found.append(Variant(" ".join(pairs), pairs, places[0], places))
    return found


def _yaml(value: Any) -> str:
    # JSON is YAML on one line; plain text stays as it is where it reads back as the same text.
    from train.yaml_lines import parse_yaml

    if isinstance(value, str) and parse_yaml(value) == value:
        return value
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def plan_runs(path: str | Path) -> tuple[Ablation, list[AblationRun]]:
    """Every run of an ablation, seed by seed, all recipes checked. Nothing is loaded or started.

    A variant that comes to the base's own recipe takes the base's place and is marked so in its name. Raises one
    UserError with a line for each fault: what the file gets wrong, what a recipe would refuse, and two variants that
    are the same training.
    """
    ablation, lines = load_ablation(path)
    faults: list[str] = []
    known: dict[str, str] = {}
    kept: list[tuple[Variant, list[AblationRun]]] = []
    for variant in variants(ablation, lines):
        where = f"{path}:{variant.line}"
        faults += [f"{where}: {told}" for told in _set_here((*ablation.overrides, *variant.overrides))]
        try:
            runs = [_run(ablation, variant, seed) for seed in ablation.seeds]
        except UserError as error:
            if variant.name == BASE:  # every variant would repeat it
                line = lines.get(("overrides",), variant.line)
                raise UserError("\n".join(f"{path}:{line}: {told}" for told in str(error).split("\n"))) from None
            faults += [f"{path}:{told}" for told in _located(ablation, variant, str(error).split("\n"))]
            continue
        settings = _settings(runs[0].recipe)
        same = known.get(settings)
        if variant.name in known.values() and same is None:
            faults.append(f"{where}: {variant.name}: another variant has this name; choose another")
        elif same == BASE and kept[0][0].name == BASE:
            kept[0] = (variant, [_run(ablation, variant, seed, f"{variant.name} ({BASE})") for seed in ablation.seeds])
        elif same is not None:
            faults.append(f"{where}: {variant.name}: is the same training as {same}; leave one of them out")
        else:
            kept.append((variant, runs))
            known[settings] = variant.name
    faults += [f"{path}: {told}" for told in _metric_faults(ablation.metric, [runs[0].recipe for _, runs in kept])]
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    if len(kept) < 2:
        raise UserError(f"{path}: every variant is the recipe as it stands; there is nothing to compare")
    by_variant = [runs for _, runs in kept]
    # Seed by seed: an ablation that is stopped half-way can already be read.
    return ablation, [run for runs in zip(*by_variant, strict=True) for run in runs]


def _located(ablation: Ablation, variant: Variant, told: Sequence[str]) -> Iterator[str]:
    """`line: fault`: the line of the override that is at fault by itself, else the variant's with its name."""
    alone: dict[str, int] = {}
    for override, line in zip(variant.overrides, variant.lines, strict=True):
        try:
            load_recipe(ablation.recipe, (*ablation.overrides, override))
        except UserError as error:
            alone.update(dict.fromkeys(str(error).split("\n"), line))
    for fault in told:
        yield f"{alone[fault]}: {fault}" if fault in alone else f"{variant.line}: {variant.name}: {fault}"


def _metric_faults(metric: str, recipes: Sequence[Recipe]) -> Iterator[str]:
    held_out = metric.startswith(("validation.", "eval_"))
    if held_out and any(recipe.data.validation is None for recipe in recipes):
        yield f"metric {metric} needs held-out data in every variant; add data.validation=FILE to `overrides`"
    if metric.startswith("validation.") and any(recipe.kind == "scorer" for recipe in recipes):
        yield f"metric {metric} is a chat model's; a scorer has `metric: eval_loss`"


def _set_here(overrides: Sequence[str]) -> Iterator[str]:
    for text in overrides:
        key = text.partition("=")[0]
        if key in SET_HERE:
            yield f"{text!r}: {SET_HERE[key]}"


def _run(ablation: Ablation, variant: Variant, seed: int, name: str | None = None) -> AblationRun:
    name = name or variant.name
    folder = Path(ablation.out) / "runs" / _folder_name(name) / f"seed-{seed}"
    overrides = (*ablation.overrides, *variant.overrides, f"seed={seed}", f"out={json.dumps(str(folder))}")
    return AblationRun(name, seed, overrides, load_recipe(ablation.recipe, overrides))


def _settings(recipe: Recipe) -> str:
    return json.dumps(recipe.model_dump(mode="json", exclude={"out"}), sort_keys=True)


def _folder_name(name: str) -> str:
    """A name that is a folder on every system and still tells what it is; a hash keeps different names apart."""
    import hashlib
    import re

    plain = re.sub(r"[^\w.=-]+", "_", name)[:60].strip("_.") or "variant"
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def figure(metrics: Mapping[str, Any], name: str) -> float | None:
    """A figure of metrics.json by its path, of a list the last one; None where the run came to no finite number.

    Raises UserError, naming the figures that are there, when the run has none of that name.
    """
    value: Any = metrics
    for part in name.split("."):
        value = value.get(part, {}) if isinstance(value, Mapping) else {}
    if isinstance(value, list) and value:
        value = value[-1]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        there = ", ".join(sorted(_numbers(metrics)))
        raise UserError(f"metric {name!r}: the finished run has no such figure; it has: {there}")
    return float(value) if math.isfinite(value) else None


def _numbers(metrics: Any, at: str = "") -> Iterator[str]:
    if isinstance(metrics, Mapping):
        for key, value in metrics.items():
            yield from _numbers(value, f"{at}.{key}" if at else str(key))
    elif isinstance(metrics, list):
        yield from _numbers(metrics[-1], at) if metrics and not isinstance(metrics[-1], Mapping | list) else ()
    elif isinstance(metrics, int | float) and not isinstance(metrics, bool):
        yield at
