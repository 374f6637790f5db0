"""The command line: assembles the commands of the three floors; no logic of its own."""

import logging
import os
import sys
import warnings
from typing import Any

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
from eval.after_training import evaluate_new_scorer
from eval.cli_audit import audit
from eval.cli_chat import chat
from eval.cli_compare import compare
from eval.cli_evaluate import evaluate
from eval.cli_quickstart import quickstart
from eval.cli_report import report, score
from eval.cli_run import run
from eval.cli_runs import app as runs_app
from eval.cli_simulate import simulate
from eval.cli_study import app as study_app
from train.cli import after_training, model_app, recipe_app, train
from train.cli_ablate import ablate
from train.cli_doctor import data_doctor, doctor
from train.cli_model import convert_internlm2, export

app = typer.Typer(
    name="esckit",
    help="Train and evaluate emotional-support-conversation models: ESC-Role, ESC-RANK, supporters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(quickstart)
app.command()(doctor)
data_app.command("doctor")(data_doctor)
app.add_typer(data_app, name="data")
app.add_typer(cards_app, name="cards")
app.add_typer(ratings_app, name="ratings")
app.add_typer(recipe_app, name="recipe")
app.command()(train)
after_training.append(evaluate_new_scorer)
app.command()(ablate)
app.command()(evaluate)
model_app.command()(export)
model_app.command()(convert_internlm2)
app.add_typer(model_app, name="model")
app.command()(chat)
app.command()(simulate)
app.command()(audit)
app.command()(score)
app.command()(report)
app.command()(compare)
app.command()(run)
app.add_typer(runs_app, name="runs")
app.add_typer(study_app, name="study")


def quiet_libraries() -> None:
    """Drops the libraries' advice that a user of ours can do nothing with; their errors stay."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # Adapters keep the base model's name, not this machine's path of it; PEFT remarks on that at every load.
    warnings.filterwarnings("ignore", message=r".*base_model_name_or_path.* was renamed")
    # On a machine without a GPU this one comes with every command; `esckit` says itself what it runs on.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in str(record.msg))


# Typer's own name for it is private; its public kind of it is BadParameter.
USAGE_ERROR: Any = typer.BadParameter.__base__


def usage_line(error: Any) -> str:
    """One line for a misspelt option or command; the help where nothing was given."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    command = context.command_path if context else "esckit"
    return f"error: {' '.join(error.format_message().split())} See: {command} --help"


def memory_line(error: RuntimeError) -> str | None:
    """One line when an accelerator's memory was full, else None; asks torch only where it is already there."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    return (
        "error: the accelerator's memory is full, perhaps with another program's data (nvidia-smi lists them); "
        "free it, or take a smaller batch size or model. What was finished is kept"
    )


def main() -> None:
    """Runs the command line. A user's mistake is one line and exit code 2."""
    quiet_libraries()
    try:
        # Not the library's own mode: it answers a misspelt option with a box of several lines.
        sys.exit(app(prog_name="esckit", standalone_mode=False) or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except USAGE_ERROR as error:
        print(usage_line(error), file=sys.stderr)
    except RuntimeError as error:
        if (line := memory_line(error)) is None:
            raise
        print(line, file=sys.stderr)
    except (KeyboardInterrupt, typer.Abort):
        print("stopped; what was finished is kept", file=sys.stderr)
        sys.exit(130)
    sys.exit(2)


if __name__ == "__main__":
    main()
