"""The loss over supervised positions is the plain one: value, gradients and figures, for every shape of model."""

import pytest
import torch

from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from train.loss import SummedCrossEntropy, is_right_padded, keeps_positions, supervised_loss
from train.models import add_lora
from train.recipe import LoraSection
from train.sft import build_trainer, train_chat

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHAPES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 6},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 5.0, "sliding_window": 6},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 4.0},
}


def made_model(kind: str, attention: str | None = None):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL, **SHAPES[kind])
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def batch_of(lengths=(19, 11, 14), vocabulary=101, seed=0):
    """Right-padded rows; about a third of the tokens carry loss, at other places in each row."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    ids = torch.randint(3, vocabulary, shape, generator=generator)
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    learned = (torch.rand(shape, generator=generator) < 0.35) & mask.bool()
    learned[:, 0] = False
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~learned, -100)}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_close_gradients(left, right):
    assert left.keys() == right.keys()
    assert len(left) > 0
    for name in left:
        scale = max(float(right[name].abs().max()), 1e-6)
        assert float((left[name] - right[name]).abs().max()) <= 2e-5 * scale, name


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_loss_and_gradients_are_those_of_the_full_logits(kind, keep):
    model, batch = made_model(kind), batch_of()
    assert keeps_positions(model)
    count = int((batch["labels"][:, 1:] != -100).sum())
    plain = model(**batch).loss
    wanted = gradients(model, plain)
    found = supervised_loss(model, batch, keep)
    assert int(found.tokens) == count > 10
    assert float(found.total.detach()) / count == pytest.approx(float(plain.detach()), rel=1e-5)
    assert_close_gradients(gradients(model, found.total / count), wanted)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_get_the_same_gradients(dora):
    model = add_lora(made_model("llama"), LoraSection(r=4, dropout=0, dora=dora), "CAUSAL_LM")
    for name, one in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(one, std=0.1)
    batch = batch_of()
    wanted = gradients(model, model(**batch).loss)
    found = supervised_loss(model, batch)
    assert_close_gradients(gradients(model, found.total / found.tokens), wanted)


@pytest.mark.parametrize(("side", "dropped"), [("right", True), ("left", False)])
def test_a_mask_is_left_out_only_when_all_padding_stands_at_the_end(side, dropped):
    model, batch = made_model("llama"), batch_of()
    if side == "left":
        lengths = batch["attention_mask"].sum(1).tolist()
        for name, one in batch.items():
            batch[name] = torch.stack([row.roll(19 - length) for row, length in zip(one, lengths, strict=True)])
        batch["labels"] = torch.where(batch["attention_mask"].cumsum(1) > 1, batch["labels"], -100)
    assert is_right_padded(batch["attention_mask"]) is dropped
    seen = []
    model.model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(inputs.get("attention_mask")), with_kwargs=True
    )
    found = supervised_loss(model, batch)
    assert (seen[0] is None) is dropped
    assert float((found.total / found.tokens).detach()) == pytest.approx(float(model(**batch).loss.detach()), rel=1e-5)


def test_the_head_sees_supervised_positions_only():
    model, batch = made_model("llama"), batch_of()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    found = supervised_loss(model, batch)
    assert seen == [(int(found.tokens), 101)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_and_accuracy_are_those_of_the_distribution(dtype):
    torch.manual_seed(1)
    logits = (torch.randn(70, 301) * 4).to(dtype).requires_grad_()
    targets = torch.where(torch.rand(70) < 0.5, logits.argmax(-1), torch.randint(301, (70,)))
    loss, entropy, correct = (one.detach() for one in SummedCrossEntropy.apply(logits, targets))
    logs = logits.detach().double().log_softmax(-1)
    assert float(loss) == pytest.approx(float(-logs[torch.arange(70), targets].sum()), rel=1e-6)
    assert float(entropy) == pytest.approx(float(-(logs.exp() * logs).sum()), rel=1e-5)
    assert int(correct) == int((logs.argmax(-1) == targets).sum())
    assert 20 < int(correct) < 70


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, 3e38, 0.0]], requires_grad=True)
    loss, entropy, _ = SummedCrossEntropy.apply(logits, torch.tensor([0, 1]))
    loss.backward()
    assert (float(loss.detach()), float(entropy)) == (0, 0)
    assert torch.equal(logits.grad, torch.zeros(2, 3))


def test_a_batch_without_supervised_tokens_is_a_zero_with_gradients():
    model, batch = made_model("llama"), batch_of()
    batch["labels"][:] = -100
    found = supervised_loss(model, batch)
    found.total.backward()
    assert float(found.total.detach()) == 0
    assert float(model.lm_head.weight.grad.abs().max()) == 0


def test_the_trainer_logs_what_the_library_logs(tiny_model, tmp_path, monkeypatch):
    """Same rows, same order: loss, gradient norm, entropy, accuracy and tokens of both losses, accumulated."""
    import train.sft

    made = [dialogue(f"d{n}", "how are you?", "sad", "why?", "work " * (3 * n + 1)) for n in range(5)]
    data = write_lines(tmp_path / "five.jsonl", made)
    logs = []
    for ours in (True, False):
        content = chat_content(tiny_model, tmp_path / f"out{ours}", data, max_steps=4, gradient_accumulation_steps=2)
        content["data"]["validation"] = str(data)
        content["lora"]["dropout"] = 0
        if not ours:
            monkeypatch.setattr(train.sft, "needs_library_loss", lambda trainer: True)
        trainer, _ = build_trainer(recipe_of(tmp_path, content))
        assert trainer._library_loss is not ours
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "loss" in entry or "eval_loss" in entry])
    mine, theirs = logs
    assert len(mine) == len(theirs) > 4
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}:
            assert one[name] == pytest.approx(other[name], rel=2e-3, abs=2e-4), name
    assert {"entropy", "mean_token_accuracy", "num_tokens", "grad_norm"} <= mine[0].keys()


def test_smoothed_labels_are_left_to_the_library(tiny_model, tmp_path):
    data = write_lines(tmp_path / "one.jsonl", [dialogue("d", "how are you?", "sad")])
    losses = []
    for smoothing in (0.0, 0.3):
        content = chat_content(tiny_model, tmp_path / f"out{smoothing}", data, max_steps=1)
        content["training"]["label_smoothing_factor"] = smoothing
        losses.append(train_chat(recipe_of(tmp_path, content))["train_loss"][0])
    assert abs(losses[0] - losses[1]) > 0.1
