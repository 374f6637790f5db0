"""What is looked at on held-out data: replies while training, the best checkpoint, perplexity by turn at the end."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from data_prep.errors import UserError
from tests.train.made import chat_content, dialogue, read_lines, recipe_of, write_lines
from train.masking import IGNORED, ChatRenderer
from train.models import load_chat_model
from train.perplexity import dialogue_losses, total
from train.recipe import load_recipe
from train.rows import ChatFormat, chat_rows, read_rows
from train.samples import greedy_reply, sample_prompts, turn_starts
from train.sft import train_chat

TEXTS = ("how are you?", "I am sad", "why is that?", "I can not sleep, 最近压力很大", "really", "yes, so tired")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    made = [dialogue(f"d{n}", *TEXTS[: 2 + 2 * (n % 3)]) for n in range(9)]
    return write_lines(folder / "train.jsonl", made[:4]), write_lines(folder / "valid.jsonl", made[4:])


def content_of(model: Path, folder: Path, files: tuple[Path, Path], **training: object) -> dict:
    content = chat_content(model, folder / "out", files[0], **training)
    content["data"]["validation"] = str(files[1])
    return content


@pytest.fixture(scope="module")
def looked_at(tiny_model, files, tmp_path_factory):
    """A run that learns nothing any more after its second step, watched at every step."""
    folder = tmp_path_factory.mktemp("run")
    content = content_of(tiny_model, folder, files, num_train_epochs=9, eval_steps=1, save_total_limit=9)
    content["training"] |= {"learning_rate": 0.3, "lr_scheduler_type": "constant", "warmup_steps": 0}
    content["evaluation"] = {"samples": 3, "max_new_tokens": 6, "patience": 3}
    recipe = recipe_of(folder, content)
    return recipe, train_chat(recipe)


def rows_of(recipe, model: str, adapter: str | None = None):
    loaded, tokenizer = load_chat_model(model, adapter)
    renderer = ChatRenderer(tokenizer)
    located = read_rows(recipe.data.validation, None, recipe.seed)
    rows, _ = chat_rows(ChatFormat.of(recipe), renderer, located)
    return loaded, renderer, [(where, record.id, row) for (where, record), row in zip(located, rows, strict=True)]


def test_the_run_ends_when_the_patience_is_spent_and_keeps_the_best(looked_at):
    recipe, metrics = looked_at
    losses = metrics["eval_loss"]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == metrics["steps"] == best + 1 + 3 < 18
    assert metrics["best_step"] == best + 1
    assert metrics["stopped_early"] is True
    assert metrics["trainable_parameters"] > 0
    saved = load_file(Path(recipe.out) / "adapter_model.safetensors")
    kept = load_file(Path(recipe.out) / f"checkpoints/checkpoint-{best + 1}/adapter_model.safetensors")
    last = load_file(Path(recipe.out) / f"checkpoints/checkpoint-{len(losses)}/adapter_model.safetensors")
    assert [name for name in kept if not torch.equal(saved[name], kept[name])] == []
    assert any(not torch.equal(last[name], kept[name]) for name in kept)


def test_validation_perplexity_is_that_of_the_saved_model(looked_at, tiny_model):
    recipe, metrics = looked_at
    model, _, named = rows_of(recipe, str(tiny_model), recipe.out)
    losses = dialogue_losses(model, [row for *_, row in named])
    loss, tokens = total(losses)
    found = metrics["validation"]
    assert found["perplexity"] == pytest.approx(float(torch.tensor(loss / tokens).exp()), rel=1e-4)
    assert min(metrics["eval_loss"]) == pytest.approx(loss / tokens, rel=0.02)  # the library's is a mean over batches
    assert [turn["turn"] for turn in found["by_turn"]] == [1, 2, 3]
    assert (
        sum(turn["tokens"] for turn in found["by_turn"]) == tokens == metrics["data"]["validation"]["supervised_tokens"]
    )


def test_the_same_held_out_turns_are_answered_at_every_evaluation(looked_at, files):
    recipe, metrics = looked_at
    lines = read_lines(Path(recipe.out) / "samples.jsonl")
    assert [line["step"] for line in lines] == [step for step in range(1, metrics["steps"] + 1) for _ in range(3)]
    asked = [(line["where"], line["dialogue"], line["turn"]) for line in lines]
    assert len(set(asked)) == 3
    assert asked == asked[:3] * metrics["steps"]
    assert {where.rpartition(":")[0] for where, *_ in asked} == {str(files[1])}
    assert set(lines[0]) == {"step", "where", "dialogue", "turn", "reply", "ended"}
    assert any(line["reply"] for line in lines)


def test_the_last_replies_are_those_of_the_last_checkpoint(looked_at, tiny_model):
    recipe, metrics = looked_at
    last = Path(recipe.out) / "checkpoints" / f"checkpoint-{metrics['steps']}"
    model, renderer, named = rows_of(recipe, str(tiny_model), str(last))
    lines = read_lines(Path(recipe.out) / "samples.jsonl")[-3:]
    for prompt, line in zip(sample_prompts(named, 3, recipe.seed), lines, strict=True):
        ids, ended = greedy_reply(model, prompt.input_ids, renderer.stop_ids, 6)
        assert (renderer.tokenizer.decode(ids), ended) == (line["reply"], line["ended"])
        generated = model.generate(
            torch.tensor([prompt.input_ids]), max_new_tokens=6, do_sample=False, eos_token_id=renderer.stop_ids
        )[0, len(prompt.input_ids) :].tolist()
        assert generated[: len(ids)] == ids
        assert (generated[-1] in renderer.stop_ids) is ended


def test_a_prompt_is_the_conversation_up_to_a_learned_turn(tiny_model, looked_at):
    recipe, _ = looked_at
    _, renderer, named = rows_of(recipe, str(tiny_model))
    turns = sum(len(turn_starts(row.labels)) for *_, row in named)
    prompts = sample_prompts(named, 99, 0)
    assert len(prompts) == turns == len({(prompt.where, prompt.turn) for prompt in prompts})
    rows = {where: row for where, _, row in named}
    opening = renderer.prompt([{"role": "user", "content": "x"}])[-3:]
    for prompt in prompts:
        row = rows[prompt.where]
        size = len(prompt.input_ids)
        assert prompt.input_ids == row.input_ids[:size]
        assert row.labels[size] != IGNORED
        assert prompt.input_ids[-3:] == opening  # the assistant is to speak
        before = row.labels[:size]
        assert len(turn_starts(before)) == prompt.turn - 1
    for count in (1, 3, 5):
        assert len({prompt.dialogue for prompt in sample_prompts(named, count, 0)}) == count  # one a dialogue first
    assert len({tuple(p.where for p in sample_prompts(named, 2, seed)) for seed in range(9)}) > 2


def test_a_resumed_run_repeats_no_samples_and_remembers_its_patience(looked_at, tmp_path):
    recipe, metrics = looked_at
    whole = (Path(recipe.out) / "samples.jsonl").read_text(encoding="utf-8")
    # Killed after the last checkpoint, and earlier while a line was being written: the best is found where it is now.
    for step in (metrics["steps"], metrics["steps"] - 1):
        out = shutil.copytree(recipe.out, tmp_path / str(step))
        for name in ("metrics.json", "adapter_model.safetensors"):
            (out / name).unlink()
        for later in range(step + 1, metrics["steps"] + 1):
            shutil.rmtree(out / "checkpoints" / f"checkpoint-{later}")
        for state in out.glob("checkpoints/*/trainer_state.json"):  # the run was moved from a folder that is no more
            state.write_text(state.read_text(encoding="utf-8").replace(recipe.out, "/nowhere"), encoding="utf-8")
        (out / "samples.jsonl").write_text(whole + '{"step": 2, "wh', encoding="utf-8")
        again = recipe.model_copy(update={"out": str(out)})
        saved = (out / "recipe.yaml").read_text(encoding="utf-8").replace(recipe.out, str(out))
        (out / "recipe.yaml").write_text(saved, encoding="utf-8")
        found = train_chat(again, resume=True)
        assert (found["steps"], found["best_step"], found["eval_loss"]) == (
            metrics["steps"],
            metrics["best_step"],
            metrics["eval_loss"],
        )
        assert (out / "samples.jsonl").read_text(encoding="utf-8") == whole
        left, right = (load_file(Path(folder) / "adapter_model.safetensors") for folder in (recipe.out, out))
        assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_the_best_checkpoint_that_is_gone_is_an_error(looked_at, tmp_path):
    recipe, metrics = looked_at
    out = shutil.copytree(recipe.out, tmp_path / "out")
    shutil.rmtree(out / "checkpoints" / f"checkpoint-{metrics['best_step']}")
    saved = (out / "recipe.yaml").read_text(encoding="utf-8").replace(recipe.out, str(out))
    (out / "recipe.yaml").write_text(saved, encoding="utf-8")
    with pytest.raises(UserError, match=rf"checkpoint-{metrics['best_step']}: the best checkpoint so far is gone"):
        train_chat(recipe.model_copy(update={"out": str(out)}), resume=True)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.validation=null", "evaluation.samples=2"], r"evaluation\.samples looks at held-out data"),
        (["data.validation=null", "evaluation.patience=2"], r"evaluation\.patience looks at held-out data"),
        (
            ["evaluation.patience=2", "training.save_strategy=steps"],
            "save_strategy: steps contradicts .*set training.eval",
        ),
        (["evaluation.patience=2", "training.eval_strategy='no'"], r"training\.eval_strategy: no contradicts"),
        (["evaluation.samples=2", "training.eval_strategy='no'"], r"contradicts evaluation\.samples"),
        (
            ["evaluation.patience=2", "training.load_best_model_at_end=false"],
            "load_best_model_at_end: False contradicts",
        ),
        (["evaluation.patience=2", "training.metric_for_best_model=eval_bleu"], "which needs eval_loss"),
        (["evaluation.patience=2", "training.greater_is_better=true"], "which needs False"),
        (["evaluation.patience=2", "training.save_steps=4", "training.eval_steps=2"], "must be equal with evaluation"),
        (
            ["training.load_best_model_at_end=true", "training.save_steps=4", "training.eval_steps=2"],
            r"must be equal with training\.load_best_model_at_end",
        ),
        (["training.load_best_model_at_end=true", "data.validation=null"], "the best is told by held-out data"),
    ],
)
def test_contradictions_are_told_before_anything_is_loaded(tiny_model, files, tmp_path, overrides, says):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(content_of(tiny_model, tmp_path, files)), encoding="utf-8")
    with pytest.raises(UserError, match=rf"^[^\n]*{says}[^\n]*$"):
        load_recipe(path, overrides)


@pytest.mark.parametrize(
    ("training", "found"),
    [
        ({}, ("epoch", "epoch", None, None)),
        ({"eval_steps": 7}, ("steps", "steps", 7, 7)),
        ({"save_steps": 7}, ("steps", "steps", 7, 7)),
        ({"save_steps": 7, "save_strategy": "steps"}, ("steps", "steps", 7, 7)),
    ],
)
def test_patience_saves_whenever_it_evaluates(tiny_model, files, tmp_path, training, found):
    content = {**content_of(tiny_model, tmp_path, files, **training), "evaluation": {"patience": 1}}
    recipe = recipe_of(tmp_path, content)
    names = ("save_strategy", "eval_strategy", "save_steps", "eval_steps")
    assert tuple(recipe.training.get(name) for name in names) == found
    assert recipe.training["load_best_model_at_end"] is True
