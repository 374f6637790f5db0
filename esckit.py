"""The command line: assembles the commands of the three floors; no logic of its own."""

import logging
import os
import sys
import warnings

# No library may report home, and none may ask the terminal for anything; set before any of them is imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that wait should not spin: on a busy machine spinning makes torch several times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from data_prep.cli import app as data_app
from data_prep.cli_cards import app as cards_app
from data_prep.cli_ratings import app as ratings_app
from data_prep.errors import UserError
from eval.cli_evaluate import evaluate
from eval.cli_quickstart import quickstart
from eval.cli_report import report, score
from eval.cli_simulate import simulate
from train.cli import model_app, recipe_app, train

app = typer.Typer(
    name="esckit",
    help="Train and evaluate emotional-support-conversation models: ESC-Role, ESC-RANK, supporters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(quickstart)
app.add_typer(data_app, name="data")
app.add_typer(cards_app, name="cards")
app.add_typer(ratings_app, name="ratings")
app.add_typer(recipe_app, name="recipe")
app.command()(train)
app.command()(evaluate)
app.add_typer(model_app, name="model")
app.command()(simulate)
app.command()(score)
app.command()(report)


def quiet_libraries() -> None:
    """Drops the libraries' advice that a user of ours can do nothing with; their errors stay."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # On a machine without a GPU this one comes with every command; `esckit` says itself what it runs on.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in str(record.msg))


def main() -> None:
    """Runs the command line. A user's mistake is its message alone and exit code 2."""
    quiet_libraries()
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; what was finished is kept", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
