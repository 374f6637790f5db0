"""Scoring seven dimensions: the trained scorer beside seven generate calls, on one backbone and the same dialogues.

    python -m benchmarks.score_vs_official [MODEL] [--dialogues N] [--batch-size N] [--new-tokens N] [--rounds N]

MODEL is a causal model: a name of `esckit model fetch`, or a folder; SmolLM2-135M unless given. The scorer reads a
dialogue once for all dimensions. The official way asks once a dimension, with rubric, dialogue and a request for the
number, and generates; here batched and with at most --new-tokens greedy tokens, so that it is no slower than it must
be. The third way asks the same and reads the probabilities of the levels in one forward, as `esckit score --judge` does
with an adapter a dimension; the fourth shares what was read of a dialogue, which weights without adapters allow. What
is timed are processor seconds of one thread, the ways in turn, round by round; weights are loaded before.
Heads are untrained, which costs what trained ones cost. Then the scores of other batch sizes and of another order are
held against each other. Another way of scoring is one more entry of `ways`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from data_prep.judge_prompt import OwnPrompt
from data_prep.records import Dialogue, read_records
from data_prep.rubric import Dimension, load_rubric
from eval.generative_labels import label_forms, level_probabilities
from eval.generative_reading import read_prompts
from train.masking import ChatRenderer
from train.models import load_backbone, load_chat_model, load_tokenizer
from train.recipe_sections import ModelSection
from train.scorer import Scorer, ScorerConfig, TrainedRubric, new_heads
from train.scorer_model import ScorerModel

SAMPLES = Path(__file__).resolve().parents[1] / "data_prep" / "samples" / "rated_dialogues.jsonl"
MAX_LENGTH = 1024
RUBRIC = load_rubric("esc_eval")


def make_scorer(base: str, backbone: Any) -> Scorer:
    """A scorer with untrained heads on loaded weights."""
    tokenizer = load_tokenizer(ModelSection(base=base))
    heads = new_heads(backbone, [RUBRIC])
    with torch.no_grad():  # zero weights would give every dialogue the same scores
        heads.score.weight.normal_(std=0.05)
    levels = {one.name: [1] * len(one.levels()) for one in RUBRIC.dimensions}
    config = ScorerConfig(
        base=base,
        pooling="last",
        max_length=MAX_LENGTH,
        weights="frozen",
        rubrics=(TrainedRubric(rubric=RUBRIC, sha=RUBRIC.sha, training_levels=levels),),
        illustrative=True,
    )
    return Scorer([ScorerModel(backbone, heads, "last", frozen=True).eval()], tokenizer, config, "untrained", "")


def prompt_of(dialogue: Dialogue, dimension: Dimension) -> str:
    """Rubric, dialogue, request: the shape of the official scoring prompt, in our words."""
    anchors = "\n".join(f"{level}: {text.en}" for level, text in dimension.anchors.items())
    said = "\n".join(f"{turn.speaker}: {turn.text}" for turn in dialogue.turns)
    low, high = dimension.scale
    return f"{dimension.question.en}\n{anchors}\n\n{said}\n\nAnswer with one number from {low} to {high}."


@torch.no_grad()
def generate(model: Any, tokenizer: Any, dialogues: Sequence[Dialogue], batch_size: int, new_tokens: int) -> list[str]:
    """The replies of seven calls a dialogue, dimensions outside, batches of like lengths."""
    replies = []
    for dimension in RUBRIC.dimensions:
        asked = [[{"role": "user", "content": prompt_of(one, dimension)}] for one in dialogues]
        rows = [tokenizer.apply_chat_template(one, add_generation_prompt=True)["input_ids"] for one in asked]
        rows.sort(key=len, reverse=True)
        for start in range(0, len(rows), batch_size):
            batch = tokenizer.pad(
                {"input_ids": rows[start : start + batch_size]}, padding_side="left", return_tensors="pt"
            )
            out = model.generate(
                **batch, max_new_tokens=new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
            )
            replies += tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return replies


def label_probabilities(
    model: Any, tokenizer: Any, dialogues: Sequence[Dialogue], batch_size: int, share: bool
) -> dict[str, list[Any]]:
    """Probabilities of the levels by dimension. With `share` the dialogue stands first and is read once for all seven;
    else dimensions are outside, each prompt is read whole, and the prompts are those of `generate`."""
    renderer = ChatRenderer(tokenizer)
    own = OwnPrompt.load()
    dimensions = RUBRIC.dimensions
    labels = [label_forms(renderer, one.levels()) for one in dimensions]
    ordered = sorted(dialogues, key=lambda one: -sum(len(turn.text) for turn in one.turns))
    found: dict[str, list[Any]] = {one.name: [] for one in dimensions}
    groups = [range(len(dimensions))] if share else [[at] for at in range(len(dimensions))]
    for group in groups:
        for start in range(0, len(ordered), batch_size):
            batch = ordered[start : start + batch_size]
            asked = [[(own.text if share else prompt_of)(one, dimensions[at]) for one in batch] for at in group]
            prompts = [[renderer.prompt([{"role": "user", "content": text}]) for text in texts] for texts in asked]
            read = read_prompts(model, prompts, [labels[at].chains for at in group], share)
            for at, logits in zip(group, read, strict=True):
                found[dimensions[at].name].append(level_probabilities(labels[at], logits))
    return found


def farthest(scorer: Scorer, dialogues: Sequence[Dialogue], batch_size: int) -> float:
    """Largest change of any probability by another batch size or order."""
    wanted = scorer.probabilities(dialogues, batch_size)
    others = [scorer.probabilities(dialogues, size) for size in (1, 3)]
    others.append(scorer.probabilities(list(reversed(dialogues)), batch_size).flip(0))
    return max(float((wanted - other).abs().max()) for other in others)


def timed(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    for name, default in (("--dialogues", 8), ("--batch-size", 8), ("--new-tokens", 8), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dialogues = [one for one in read_records(SAMPLES, Dialogue) if one.language == "en"][: given.dialogues]
    section = ModelSection(base=given.model, dtype="float32")
    scorer = make_scorer(given.model, load_backbone(section))
    chat, tokenizer = load_chat_model(given.model, None)
    ways: dict[str, Callable[[], Any]] = {
        "trained scorer, one reading": lambda: scorer.score(dialogues, given.batch_size),
        "seven generate calls": lambda: generate(chat, tokenizer, dialogues, given.batch_size, given.new_tokens),
        "labels, one forward a dimension": lambda: label_probabilities(
            chat, tokenizer, dialogues, given.batch_size, False
        ),
        "labels, dialogue read once": lambda: label_probabilities(chat, tokenizer, dialogues, given.batch_size, True),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, work in ways.items():
            spent[name].append(timed(work))
    print(
        f"{given.model}: {len(dialogues)} dialogues, {len(RUBRIC.dimensions)} dimensions, batches of {given.batch_size}"
    )
    first = next(iter(ways))
    for name, seconds in spent.items():
        ratios = [other / one for one, other in zip(spent[first], seconds, strict=True)]
        print(
            f"{name:<31} {len(dialogues) / statistics.median(seconds):7.2f} dialogues a processor second; time of the "
            f"scorer's: {statistics.median(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f})"
        )
    print(
        f"largest change of a probability by batch size or order: {farthest(scorer, dialogues, given.batch_size):.1e}"
    )


if __name__ == "__main__":
    main()
