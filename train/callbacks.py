"""What happens at the borders of training steps: stopping on a signal, early stopping, exact evaluation and resume.

The library's own just-in-time checkpoint is not used: it saves after a timer in the middle of a step, so that the
step's gradients are lost, and its processes do not agree on the step.
"""

import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from data_prep.errors import UserError
from train.best import best_metric
from train.checkpoints import TrainingStopped
from train.recipe import Recipe
from train.trackers import tracker_errors
from train.world import settle_deepspeed

# Launchers pass a Ctrl-C of the terminal on to processes that the terminal has told already.
SAME_SIGNAL_SECONDS = 1.0


def make_exact_class(base: Any) -> Any:
    """A trainer class whose evaluation moves no random state and whose resumed run trains no step too many.

    Evaluation draws a seed for its loader, so that a run resumed after a checkpoint, but before the evaluation that
    came next, would go on with other dropout. And the library trains one more step when the last checkpoint is
    resumed, or the one after which early stopping had ended the run.
    """

    class ExactTrainer(base):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            with random_state_kept():
                return super().evaluate(*args, **kwargs)

        def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
            if self.state.global_step >= self.state.max_steps or patience_is_spent(self):
                self.control.should_training_stop = True
                return
            super()._run_epoch(*args, **kwargs)

    return ExactTrainer


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Puts the random generators of Python, NumPy and torch back to where they stood."""
    import numpy
    import torch

    python, array, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(array)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)


class StopRequest:
    """Which signal has asked the run to stop: 0 while none has. A second Ctrl-C is immediate."""

    def __init__(self) -> None:
        self.number, self.since = 0, 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number, self.since = number, time.monotonic()
            print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)
        elif number == signal.SIGINT and time.monotonic() - self.since > SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catches SIGTERM and Ctrl-C inside; outside, and in other threads than the main one, they act as ever."""
    request = StopRequest()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agreed(number: int, device: Any) -> int:
    """The largest number that any process holds: what one was told, all of them know."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return number
    shared = torch.tensor(number, device=device)
    distributed.all_reduce(shared, distributed.ReduceOp.MAX)
    return int(shared)


def make_stop_callback(request: StopRequest) -> Any:
    """Saves after the step in which a signal came and ends the training; `stopped_by` is then the signal's number.

    A signal in the very last step changes nothing: the run is about to end by itself.
    """
    from transformers import TrainerCallback

    class StopOnSignal(TrainerCallback):
        stopped_by = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            asked = agreed(request.number, args.device)
            if not asked or state.global_step >= state.max_steps:
                return
            self.stopped_by = asked
            control.should_training_stop = True
            # At the end of an epoch the checkpoint is the one after the epoch's evaluation.
            control.should_save = control.should_save or not _is_epoch_end(state)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.stopped_by and _is_epoch_end(state):
                control.should_save = True
            elif self.stopped_by:  # the library ends the epoch when training stops; this one goes on after a resume
                control.should_save = control.should_evaluate = control.should_log = False

    return StopOnSignal()


def _is_epoch_end(state: Any) -> bool:
    return float(state.epoch).is_integer()


def patience_is_spent(trainer: Any) -> bool:
    """Whether as many evaluations as `evaluation.patience` have passed without a better one: a lower held-out loss,
    or a higher kappa of a scorer.

    Counted from the history that every checkpoint holds, so that a resumed run knows it too. The first of equals is
    the best; NaN is never better.
    """
    patience = getattr(trainer, "patience", None)
    name, greater = getattr(trainer, "best_metric", ("eval_loss", False))
    figures = [entry[name] * (-1 if greater else 1) for entry in trainer.state.log_history if name in entry]
    best, since = float("inf"), 0
    for figure in figures:
        best, since = (figure, 0) if figure < best else (best, since + 1)
    return patience is not None and since >= patience


def make_patience_callback(trainer: Any) -> Any:
    """Ends training when the patience is spent, and finds the best checkpoint again after a resume."""
    from transformers import TrainerCallback

    class Patience(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not (args.load_best_model_at_end and state.best_global_step):
                return
            # The path is that of the folder in which the run began; it may have been moved since.
            best = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
            if not best.is_dir():
                raise UserError(f"{best}: the best checkpoint so far is gone; bring it back, or choose another `out`")
            state.best_model_checkpoint = str(best)

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if patience_is_spent(trainer):
                control.should_training_stop = True

    return Patience()


def run_training(trainer: Any, recipe: Recipe, checkpoint: str | None) -> None:
    """Trains to the end, or to the step in which SIGTERM or Ctrl-C comes.

    Raises TrainingStopped after the checkpoint of that step was saved; nothing else of the result is written then.
    Raises UserError when wandb cannot be reached, and when a step does not fit into the accelerator's memory.
    """
    import torch

    trainer.patience, trainer.best_metric = recipe.evaluation.patience, best_metric(recipe)
    settle_deepspeed(trainer)
    with stop_request() as request:
        stop = make_stop_callback(request)
        trainer.add_callback(make_patience_callback(trainer))
        trainer.add_callback(stop)
        try:
            with tracker_errors():
                trainer.train(resume_from_checkpoint=checkpoint)
        except torch.OutOfMemoryError:
            raise UserError(
                f"step {trainer.state.global_step + 1} does not fit into the accelerator's memory; "
                "esckit train RECIPE --plan says what each part needs and what to change"
            ) from None
    if stop.stopped_by:
        trainer.accelerator.wait_for_everyone()  # whoever ends first has the launcher end the others
        raise TrainingStopped(trainer.state.global_step, stop.stopped_by)
