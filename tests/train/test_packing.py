"""Packed rows: who sits with whom, that they do not see each other, and that a stopped run goes on exactly."""

import random

import pytest
import torch

from data_prep.errors import UserError
from tests.train.made import (
    as_if_killed_after,
    assert_same_result,
    chat_content,
    dialogue,
    recipe_of,
    weights_of,
    write_lines,
)
from tests.train.test_loss import SHAPES, made_model
from train.loss import supervised_loss
from train.masking import Encoded
from train.packing import best_fit, check_isolation, make_packed_collator, pack_rows
from train.sft import build_trainer, train_chat


def made_rows(*lengths, seed=0):
    draw = random.Random(seed)
    rows = []
    for length in lengths:
        ids = [draw.randrange(3, 101) for _ in range(length)]
        rows.append(Encoded(ids, [-100, *(token if draw.random() < 0.4 else -100 for token in ids[1:])]))
    return rows


def as_examples(rows):
    return [{"input_ids": row.input_ids, "labels": row.labels, "seq_lengths": row.seq_lengths} for row in rows]


@pytest.mark.parametrize("seed", range(8))
def test_best_fit_keeps_every_row_once_and_wastes_little(seed):
    draw = random.Random(seed)
    lengths = [draw.randint(1, 100) for _ in range(draw.randint(1, 300))]
    packs = best_fit(lengths, 100, seed)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in pack) for pack in packs]
    assert max(filled) <= 100
    assert len(packs) <= 11 / 9 * -(-sum(lengths) // 100) + 1  # the bound of best fit decreasing
    assert packs == best_fit(lengths, 100, seed)
    assert sorted(filled) == sorted(sum(lengths[i] for i in pack) for pack in best_fit(lengths, 100, seed + 99))


def test_another_seed_seats_rows_of_equal_length_differently():
    assert len({str(best_fit([40] * 10 + [60] * 10, 100, seed)) for seed in range(5)}) == 5


def test_a_row_longer_than_the_pack_is_refused():
    with pytest.raises(ValueError, match="11 tokens does not fit into 10"):
        best_fit([3, 11], 10, 0)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("attention", [None, "eager"])
@pytest.mark.parametrize("kind", SHAPES)
def test_packed_equals_separate(kind, attention, flatten):
    """Logits to 1e-5, loss and gradients; two packed rows a batch, of different length."""
    model = made_model(kind, attention)
    rows = made_rows(17, 9, 4, 21, 6)
    packed = pack_rows(rows, 30, 0)
    assert len(packed) == 2 < len(rows)
    batch = make_packed_collator(0, flatten)(as_examples(packed))
    assert "attention_mask" not in batch
    alone = {}
    total = 0.0
    for row in rows:
        ids = torch.tensor([row.input_ids])
        with torch.no_grad():
            alone[tuple(row.input_ids)] = model(input_ids=ids, use_cache=False).logits[0]
        total += float(supervised_loss(model, {"input_ids": ids, "labels": torch.tensor([row.labels])}).total.detach())
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits
    seen = 0
    starts = (batch["position_ids"] == 0).nonzero().tolist()
    for row, start in starts:
        for ids, wanted in alone.items():
            if batch["input_ids"][row, start : start + len(ids)].tolist() == list(ids):
                assert float((logits[row, start : start + len(ids)] - wanted).abs().max()) <= 1e-5 * max(
                    1.0, float(wanted.abs().max())
                )
                seen += 1
    assert seen == len(rows)
    assert float(supervised_loss(model, batch).total.detach()) == pytest.approx(total, rel=1e-5)


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    made = [dialogue(f"d{n}", "how are you?", "sad", *["really", "yes, so tired"] * (n % 5)) for n in range(9)]
    return write_lines(tmp_path_factory.mktemp("data") / "nine.jsonl", made)


def packed_content(model, out, data, **training):
    content = chat_content(model, out, data, **training)
    content["data"] |= {"packing": True, "max_length": 1200}
    return content


def test_one_packed_step_is_one_step_on_the_rows(tiny_model, nine, tmp_path):
    found = []
    for packing in (True, False):
        content = packed_content(tiny_model, tmp_path / f"{packing}", nine, max_steps=1, optim="sgd", learning_rate=1.0)
        content["lora"]["dropout"] = 0
        content["data"]["packing"] = packing
        content["training"] |= {"per_device_train_batch_size": 9, "warmup_steps": 0}
        recipe = recipe_of(tmp_path, content)
        trainer, report = build_trainer(recipe)
        assert (len(trainer.train_dataset) < 9) == packing
        assert report["train"]["rows"] == 9
        trainer.train()
        trainer.save_model(recipe.out)
        found.append((trainer.state.log_history[0], weights_of(recipe.out)))
    (packed, weights), (plain, plain_weights) = found
    assert packed["loss"] == pytest.approx(plain["loss"], abs=1e-4)
    assert packed["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-3)
    for name in weights:
        torch.testing.assert_close(weights[name], plain_weights[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("stop", [3, 5])  # inside an epoch, and at the border of two
def test_a_stopped_packed_run_goes_on_bit_by_bit(tiny_model, nine, tmp_path, stop):
    content = packed_content(
        tiny_model, tmp_path / "whole", nine, max_steps=8, save_steps=1, save_total_limit=9, learning_rate=3e-3
    )
    content["training"]["per_device_train_batch_size"] = 1
    recipe = recipe_of(tmp_path, content)
    trainer, _ = build_trainer(recipe)
    assert len(trainer.train_dataset) == 5, sorted(map(len, trainer.train_dataset["input_ids"]))
    train_chat(recipe)
    resumed = as_if_killed_after(recipe, stop, tmp_path / "again")
    train_chat(resumed, resume=True)
    assert_same_result(recipe.out, resumed.out)


def test_a_model_that_mixes_packed_rows_is_refused(monkeypatch):
    model = made_model("llama")
    check_isolation(model, 101)
    forward = model.forward

    def without_positions(*args, position_ids=None, **kwargs):
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", without_positions)
    with pytest.raises(UserError, match=r"^data\.packing: LlamaForCausalLM lets packed dialogues see each other"):
        check_isolation(model, 101)
    assert model.training
