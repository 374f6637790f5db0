"""Losses a dialogue: equal to a plain loop over rows, whatever the batch."""

import json
import math
from itertools import groupby

import pytest
import torch
from typer.testing import CliRunner

from esckit import app
from tests.train.made import dialogue, write_lines
from train.masking import IGNORED, ChatRenderer, Encoded
from train.models import load_chat_model
from train.perplexity import by_turn, dialogue_losses, perplexity, total, turn_losses


@pytest.fixture(scope="module")
def chat(tiny_model):
    model, tokenizer = load_chat_model(str(tiny_model))
    renderer = ChatRenderer(tokenizer)
    rows = []
    for number in range(7):
        turns = dialogue("d", "hello", "i am sad 最近压力很大", *["why?", "work"] * (number % 5))["turns"]
        messages = [
            {"role": "assistant" if turn["speaker"] == "seeker" else "user", "content": turn["text"]} for turn in turns
        ]
        rows.append(renderer.encode(messages))
    assert len({len(row.input_ids) for row in rows}) > 3
    return model, rows


def plain_loop(model, rows: list[Encoded]) -> list[tuple[float, int]]:
    found = []
    for row in rows:
        with torch.no_grad():
            logs = model(torch.tensor([row.input_ids])).logits[0].double().log_softmax(-1)
        chosen = [(at, label) for at, label in enumerate(row.labels) if label != IGNORED]
        found.append((-sum(float(logs[at - 1, label]) for at, label in chosen), len(chosen)))
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_losses_equal_a_plain_loop_for_any_batch_size(chat, batch_size):
    model, rows = chat
    done: list[int] = []
    found = dialogue_losses(model, rows, batch_size, done.append)
    expected = plain_loop(model, rows)
    assert [count for _, count in found] == [count for _, count in expected] == [row.supervised() for row in rows]
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    assert sum(done) == len(rows)


def test_the_order_of_rows_is_kept(chat):
    model, rows = chat
    forward, backward = dialogue_losses(model, rows, 2), dialogue_losses(model, rows[::-1], 2)
    assert [loss for loss, _ in forward] == pytest.approx([loss for loss, _ in backward[::-1]], rel=1e-5)


def test_perplexity_is_exp_of_the_mean_loss_and_of_the_models_own_loss(chat):
    from eval.evaluate import perplexity_interval

    model, rows = chat
    losses = dialogue_losses(model, rows)
    total, count = sum(loss for loss, _ in losses), sum(tokens for _, tokens in losses)
    found = perplexity_interval(losses)
    assert found.mean == pytest.approx(torch.tensor(total / count).exp().item(), rel=1e-6)
    assert found.low < found.mean < found.high
    with torch.no_grad():
        own = model(torch.tensor([rows[0].input_ids]), labels=torch.tensor([rows[0].labels])).loss
    assert losses[0][0] / losses[0][1] == pytest.approx(float(own), rel=1e-5)


def test_no_rows_give_no_losses(chat):
    assert dialogue_losses(chat[0], []) == []


@pytest.mark.parametrize("batch_size", [1, 3])
def test_losses_of_turns_equal_a_plain_loop(chat, batch_size):
    model, rows = chat
    # Turns that are not learned, at the beginning and in between, are no turns here.
    first = next(at for at, label in enumerate(rows[4].labels) if label != IGNORED)
    end = next(at for at in range(first, 999) if rows[4].labels[at] == IGNORED)
    rows = [*rows, Encoded(rows[4].input_ids, [IGNORED] * end + rows[4].labels[end:])]
    found = turn_losses(model, rows, batch_size)
    for row, turns, (loss, tokens) in zip(rows, found, plain_loop(model, rows), strict=True):
        assert total(turns) == (pytest.approx(loss, rel=1e-5), tokens)
        runs = [list(run) for learned, run in groupby(row.labels, key=lambda label: label != IGNORED) if learned]
        assert [tokens for _, tokens in turns] == [len(run) for run in runs]
    assert [len(turns) for turns in found] == [1, 2, 3, 4, 5, 1, 2, 4]
    assert found[7] == [(pytest.approx(loss, rel=1e-5), tokens) for loss, tokens in found[4][1:]]
    positions = by_turn(found)
    assert [position["turn"] for position in positions] == [1, 2, 3, 4, 5]
    at_five = found[4][4]
    assert positions[4] == {"turn": 5, "tokens": at_five[1], "perplexity": perplexity([at_five])}
    assert sum(position["tokens"] for position in positions) == sum(row.supervised() for row in rows)


def test_a_perplexity_that_is_no_number_is_none():
    assert perplexity([]) is None
    assert perplexity([(float("nan"), 3)]) is None
    assert perplexity([(1e9, 1)]) is None
    assert perplexity([(2.0, 1), (4.0, 2)]) == pytest.approx(math.exp(2))
    assert by_turn([]) == []


def test_the_command_shows_turns_of_the_same_forward(tiny_model, tmp_path, capsys):
    data = write_lines(tmp_path / "valid.jsonl", [dialogue(f"d{n}", *["hello", "sad"] * (n + 1)) for n in range(3)])
    command = ["evaluate", f"hf:{tiny_model}", "--on", str(data), "--by-turn"]
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    (turns,) = found["by_turn"].values()
    (overall,) = found["models"].values()
    assert [turn["turn"] for turn in turns] == [1, 2, 3]
    tokens = [turn["tokens"] for turn in turns]
    assert sum(tokens) == found["tokens"]
    logs = sum(turn["tokens"] * math.log(turn["perplexity"]) for turn in turns)
    assert math.exp(logs / sum(tokens)) == pytest.approx(overall["mean"], rel=1e-6)
    shown = CliRunner().invoke(app, command).stdout
    assert "Perplexity at each seeker turn" in shown
    assert f"{turns[2]['perplexity']:.2f}" in shown
    assert "by_turn" not in json.loads(CliRunner().invoke(app, [*command[:-1], "--json"]).stdout)
