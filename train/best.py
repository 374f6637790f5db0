"""Early stopping and the best checkpoint: what they set in a recipe, and what contradicts them."""

from collections.abc import Iterator
from typing import Any

Fault = tuple[tuple[str, ...], str]


def keeps_best(recipe: Any) -> bool:
    """Whether the best checkpoint by the held-out data becomes the result."""
    return _patience(recipe) is not None or bool(recipe.training.get("load_best_model_at_end"))


def _patience(recipe: Any) -> int | None:
    patience: int | None = recipe.evaluation.patience
    return patience


def best_metric(recipe: Any) -> tuple[str, bool]:
    """What tells the best checkpoint, and whether more of it is better."""
    by_kappa = getattr(recipe.evaluation, "metric", "loss") == "kappa"
    return ("eval_kappa", True) if by_kappa else ("eval_loss", False)


def has_validation(recipe: Any) -> bool:
    """Whether a recipe has held-out data; a scorer's may be a part of its training files."""
    return bool(getattr(recipe, "has_validation", recipe.data.validation))


def best_defaults(recipe: Any) -> dict[str, Any]:
    """Trainer arguments that go with keeping the best checkpoint: one is saved after every evaluation.

    `recipe.training` holds only what the recipe says itself. Empty when the last checkpoint is the result.
    """
    if not keeps_best(recipe):
        return {}
    given = recipe.training
    steps = given.get("eval_steps", given.get("save_steps"))
    strategy = "epoch" if steps is None else "steps"
    metric, greater = best_metric(recipe)
    return {
        "save_strategy": strategy,
        "eval_strategy": strategy,
        **({} if steps is None else {"eval_steps": steps, "save_steps": steps}),
        "load_best_model_at_end": True,
        "metric_for_best_model": metric,
        "greater_is_better": greater,
    }


def evaluation_faults(recipe: Any) -> Iterator[Fault]:
    """What in a recipe contradicts its `evaluation` section, each with its place; None (a faulty recipe) has none."""
    if recipe is None:
        return
    samples = getattr(recipe.evaluation, "samples", 0)  # a scorer has none
    for name, value in (("samples", samples), ("patience", recipe.evaluation.patience)):
        if value and not has_validation(recipe):
            yield ("evaluation", name), f"evaluation.{name} looks at held-out data; set data.validation"
    if samples and _text(recipe.training.get("eval_strategy")) == "no":
        yield ("training", "eval_strategy"), "training.eval_strategy: no contradicts evaluation.samples; drop one"
    if keeps_best(recipe):
        yield from _best_faults(recipe)


def _best_faults(recipe: Any) -> Iterator[Fault]:
    given = recipe.training
    why = "training.load_best_model_at_end" if _patience(recipe) is None else "evaluation.patience"
    if not has_validation(recipe) and _patience(recipe) is None:
        yield ("training", "load_best_model_at_end"), f"{why}: the best is told by held-out data; set data.validation"
    metric, greater = best_metric(recipe)
    wanted = {"load_best_model_at_end": (True,), "metric_for_best_model": (metric, metric.removeprefix("eval_"))}
    for name, allowed in {**wanted, "greater_is_better": (greater,)}.items():
        if given.get(name) is not None and given[name] not in allowed:
            yield ("training", name), f"training.{name}: {given[name]} contradicts {why}, which needs {allowed[0]}"
    # A checkpoint for every evaluation: when the best one was never saved, the library keeps another in silence.
    save, evaluate = given.get("save_steps"), given.get("eval_steps")
    if save is not None and evaluate is not None and save != evaluate:
        yield ("training", "save_steps"), f"training.save_steps and eval_steps must be equal with {why}; leave one out"
    implied = "epoch" if save is None and evaluate is None else "steps"
    for name in ("save_strategy", "eval_strategy"):
        found = _text(given.get(name))
        if found is not None and found != implied:
            say = "set training.eval_steps" if found == "steps" else "leave it out"
            yield ("training", name), f"training.{name}: {found} contradicts {why} (here by {implied}); {say}"


def _text(value: Any) -> str | None:
    """YAML reads a bare `no` as false."""
    return None if value is None else "no" if value is False else str(value)
