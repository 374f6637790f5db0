"""Losses a dialogue: equal to a plain loop over rows, whatever the batch."""

import pytest
import torch

from tests.train.made import dialogue
from train.masking import IGNORED, ChatRenderer, Encoded
from train.models import load_chat_model
from train.perplexity import dialogue_losses


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
