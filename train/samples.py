"""Replies to held-out turns while a model trains: what its loss does not show.

The same turns at every evaluation, chosen by the seed and answered greedily, so that the lines of one turn in
samples.jsonl show nothing but the training.
"""

import inspect
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.records import write_text
from train.masking import IGNORED, ChatRenderer, Encoded
from train.trackers import log_table

FILE = "samples.jsonl"


@dataclass(frozen=True)
class SamplePrompt:
    """A held-out conversation up to a learned turn. The turn itself stands in the data and is not repeated."""

    where: str
    dialogue: str
    turn: int
    """Number of the turn, from 1, among the row's learned ones."""
    input_ids: list[int]


@dataclass(frozen=True)
class SampleReply:
    """A line of samples.jsonl."""

    step: int
    where: str
    dialogue: str
    turn: int
    reply: str
    ended: bool
    """Whether the model ended its turn within max_new_tokens."""


def turn_starts(labels: Sequence[int]) -> list[int]:
    """Where each run of tokens that carry loss begins: one run is one learned turn."""
    return [at for at, label in enumerate(labels) if label != IGNORED and (at == 0 or labels[at - 1] == IGNORED)]


def sample_prompts(rows: Sequence[tuple[str, str, Encoded]], count: int, seed: int) -> list[SamplePrompt]:
    """`count` learned turns of (where, dialogue id, row) at random by `seed`, in the order of the rows.

    One a dialogue as long as there are dialogues; all turns when there are fewer than `count`.
    """
    draws = random.Random(seed)
    turns = [(index, turn) for index, (_, _, row) in enumerate(rows) for turn in range(len(turn_starts(row.labels)))]
    draws.shuffle(turns)
    seen: set[int] = set()
    first = [pair for pair in turns if not (pair[0] in seen or seen.add(pair[0]))]  # type: ignore[func-returns-value]
    rest = [pair for pair in turns if pair not in set(first)]
    prompts = []
    for index, turn in sorted((first + rest)[:count]):
        where, dialogue, row = rows[index]
        prompts.append(SamplePrompt(where, dialogue, turn + 1, row.input_ids[: turn_starts(row.labels)[turn]]))
    return prompts


def greedy_reply(model: Any, prompt: Sequence[int], stop_ids: Sequence[int], limit: int) -> tuple[list[int], bool]:
    """The likeliest token again and again, without the stop: (ids, whether it stopped by itself).

    Not the library's `generate`, which would take a repetition penalty or a length from the model's own defaults.
    """
    import torch
    from transformers import DynamicCache

    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    # transformers 5.24 renamed the argument; the older name goes when pyproject asks for 5.24.
    argument = "cache" if "cache" in inspect.signature(type(inner).forward).parameters else "past_key_values"
    cache = DynamicCache(config=inner.config)
    device = next(model.parameters()).device
    reply: list[int] = []
    new = list(prompt)
    with torch.no_grad():
        for _ in range(limit):
            ids = torch.tensor([new], device=device)
            logits = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{argument: cache}).logits
            token = int(logits[0, -1].argmax())
            if token in stop_ids:
                return reply, True
            reply.append(token)
            new = [token]
    return reply, False


def make_sample_callback(
    trainer: Any, renderer: ChatRenderer, prompts: Sequence[SamplePrompt], max_new_tokens: int, out: str
) -> Any:
    """Answers the prompts at every evaluation, into `out`/samples.jsonl and wandb. Training is the same without it."""
    from transformers import TrainerCallback

    file = Path(out) / FILE

    class Samples(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not state.is_world_process_zero:
                return
            if weights_are_spread(trainer):
                print(
                    "warning: evaluation.samples is skipped: under ZeRO-3 and FSDP no process holds the whole model",
                    file=sys.stderr,
                )
            elif file.is_file():  # a resumed run makes what came after its checkpoint again
                lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                write_text(file, "".join(line for line in lines if _step_of(line) <= state.global_step))

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not state.is_world_process_zero or weights_are_spread(trainer):
                return
            replies = answer(trainer.accelerator.unwrap_model(trainer.model), renderer, prompts, max_new_tokens, state)
            with file.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(asdict(reply), ensure_ascii=False) + "\n" for reply in replies)
            table = [list(asdict(reply).values()) for reply in replies]
            log_table("samples", list(SampleReply.__dataclass_fields__), table, state.global_step)

    return Samples()


def answer(
    model: Any, renderer: ChatRenderer, prompts: Sequence[SamplePrompt], max_new_tokens: int, state: Any
) -> list[SampleReply]:
    """The model's replies; it is left in the mode it was in. No reply is drawn, so no random state moves."""
    limit = getattr(model.config, "max_position_embeddings", None)
    was_training = model.training
    model.eval()
    replies = []
    for prompt in prompts:
        room = max_new_tokens if limit is None else min(max_new_tokens, limit - len(prompt.input_ids))
        ids, ended = greedy_reply(model, prompt.input_ids, renderer.stop_ids, room)
        text = renderer.tokenizer.decode(ids)
        replies.append(SampleReply(state.global_step, prompt.where, prompt.dialogue, prompt.turn, text, ended))
    model.train(was_training)
    return replies


def weights_are_spread(trainer: Any) -> bool:
    """Whether no process holds the whole model, so that one of them cannot answer alone."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return bool(trainer.is_fsdp_enabled) or (plugin is not None and plugin.zero_stage == 3)


def _step_of(line: str) -> float:
    """The step of a line; a line that was cut by a kill belongs to none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
