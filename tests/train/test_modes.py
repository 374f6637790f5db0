"""Whole dialogues and a row for every turn teach the same; which turns are learned is the recipe's choice."""

import pytest
import torch

from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import Dialogue
from data_prep.sample import Sample
from tests.train.made import SAMPLES, chat_content, dialogue, recipe_of, write_lines
from tests.train.test_loss import assert_close_gradients, gradients
from train.loss import supervised_loss
from train.masking import IGNORED, ChatRenderer
from train.models import load_chat_model
from train.rows import ChatFormat, chat_rows, preview_rows, read_rows
from train.sft import build_trainer, train_chat


def form(side="seeker", max_length=2048, **more):
    return ChatFormat(
        side, load_prompt(side), load_prompt("greeting") if side == "seeker" else None, max_length, **more
    )


def learned_texts(tokenizer, rows):
    """What carries loss in each row, as text."""
    return [tokenizer.decode([label for label in row.labels if label != IGNORED]) for row in rows]


def marked(turns, *which):
    """A dialogue's turns with `learn: true` on those named."""
    return [{**turn, "meta": {"learn": True}} if index in which else turn for index, turn in enumerate(turns)]


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return load_chat_model(str(tiny_model))


def summed(model, rows):
    """Loss summed over supervised tokens of all rows, one row at a time, its gradients, and the tokens."""
    total, tokens, found = 0.0, 0, {}
    for row in rows:
        inputs = {"input_ids": torch.tensor([row.input_ids]), "labels": torch.tensor([row.labels])}
        loss = supervised_loss(model, inputs)
        for name, gradient in gradients(model, loss.total).items():
            found[name] = found.get(name, 0) + gradient
        total, tokens = total + float(loss.total.detach()), tokens + int(loss.tokens)
    return total, tokens, found


@pytest.mark.parametrize("side", ["seeker", "supporter"])
def test_a_row_for_every_turn_has_the_loss_and_gradients_of_the_whole_dialogue(side, tiny):
    model, tokenizer = tiny
    located = read_rows([str(SAMPLES / "dialogues.jsonl")], 3, 0)
    results = []
    for expand in ("dialogues", "turns"):
        rows, report = chat_rows(form(side, 4096, expand=expand), ChatRenderer(tokenizer), located)
        assert report.shortened == 0
        results.append((rows, report, summed(model, rows)))
    (whole, report, (loss, tokens, slopes)), (turns, expanded, (turn_loss, turn_tokens, turn_slopes)) = results
    assert len(whole) == report.rows == report.dialogues == expanded.dialogues == 3
    assert len(turns) == expanded.rows > 6
    assert turn_tokens == tokens == report.supervised_tokens == expanded.supervised_tokens
    assert turn_loss == pytest.approx(loss, rel=1e-6)
    assert_close_gradients(turn_slopes, slopes)


def test_too_long_a_dialogue_loses_turns_whole_but_none_by_turns(tiny):
    _, tokenizer = tiny
    found = Dialogue(**dialogue("d", *["how are you?", "so tired of it"] * 6))
    renderer = ChatRenderer(tokenizer)
    full, _ = chat_rows(form(), renderer, [("f:1", found)])
    limit = len(full[0].input_ids) - 20
    whole, report = chat_rows(form(max_length=limit), renderer, [("f:1", found)])
    turns, expanded = chat_rows(form(max_length=limit, expand="turns"), renderer, [("f:1", found)])
    assert (report.shortened, expanded.shortened) == (1, 1)
    assert learned_texts(tokenizer, whole)[0].count("tired") < 6
    assert learned_texts(tokenizer, turns) == ["so tired of it<|im_end|>"] * 6


@pytest.mark.parametrize("expand", ["dialogues", "turns"])
@pytest.mark.parametrize(
    ("loss", "expected"),
    [("all", ["one", "two", "three"]), ("last", ["three"]), ("marked", ["two"])],
)
def test_the_chosen_turns_carry_loss_and_no_other(loss, expected, expand, tiny):
    _, tokenizer = tiny
    content = dialogue("d", "a", "one", "b", "two", "c", "three", "d")
    found = Dialogue(**{**content, "turns": marked(content["turns"], 2, 3)})  # a mark on the other side is not ours
    rows, report = chat_rows(form(loss=loss, expand=expand), ChatRenderer(tokenizer), [("f:1", found)])
    texts = [text + "<|im_end|>" for text in expected]
    assert learned_texts(tokenizer, rows) == (texts if expand == "turns" else ["".join(texts)])
    assert report.left_out == 0


@pytest.mark.parametrize(("loss", "expected"), [("all", "onethree"), ("marked", "onethree"), ("last", "three")])
def test_the_flags_of_messages_are_their_marks(loss, expected, tiny):
    _, tokenizer = tiny
    texts = [("user", "a", False), ("assistant", "one", True), ("user", "b", False), ("assistant", "two", False)]
    texts += [("user", "c", False), ("assistant", "three", True)]
    sample = Sample(id="s", messages=[{"role": role, "content": text, "train": train} for role, text, train in texts])
    rows, report = chat_rows(form(loss=loss), ChatRenderer(tokenizer), [("f:1", sample)])
    assert learned_texts(tokenizer, rows)[0].replace("<|im_end|>", "") == expected
    turns, _ = chat_rows(form(loss=loss, expand="turns"), ChatRenderer(tokenizer), [("f:1", sample)])
    assert len(turns) == (1 if loss == "last" else 2)
    assert report.rendered == 1


def test_dialogues_without_a_mark_are_left_out_and_counted(tiny):
    _, tokenizer = tiny
    plain = dialogue("a", "hello", "sad")
    chosen = {**plain, "id": "b", "turns": marked(plain["turns"], 1)}
    located = [(f"f:{n}", Dialogue(**one)) for n, one in enumerate([plain, chosen, plain], start=1)]
    rows, report = chat_rows(form(loss="marked"), ChatRenderer(tokenizer), located)
    assert (len(rows), report.dialogues, report.rows, report.left_out) == (1, 1, 1, 2)


def test_marks_that_cannot_be_followed_are_named_by_line(tiny_model, tmp_path):
    good = dialogue("a", "hello", "sad", "why?", "work")
    run = [*good["turns"], {"speaker": "seeker", "text": "and home", "meta": {"learn": True}}]
    for turns, says in [
        (good["turns"], r"train\.jsonl: data\.loss is marked, but no seeker turn has learn: true"),
        (run, r"train\.jsonl:1: turns 4-5 follow each other .* only some have learn: true"),
        (
            [*good["turns"][:3], {**good["turns"][3], "meta": {"learn": "yes"}}],
            r"train\.jsonl:1: turns 4-4: meta\.learn",
        ),
    ]:
        data = write_lines(tmp_path / "train.jsonl", [{**good, "turns": turns}])
        recipe = recipe_of(tmp_path, chat_content(tiny_model, tmp_path / "out", data), "data.loss=marked")
        with pytest.raises(UserError, match=rf"^[^\n]*{says}[^\n]*$"):
            build_trainer(recipe)


def test_a_turn_that_does_not_fit_is_named_by_line_and_message(tiny):
    _, tokenizer = tiny
    found = Dialogue(**dialogue("d", "hello", "long " * 90, "why?", "work"))
    with pytest.raises(UserError, match=r"^f:1: message 3: needs \d+ tokens"):
        chat_rows(form(max_length=150, expand="turns"), ChatRenderer(tokenizer), [("f:1", found)])


def test_one_step_by_turns_is_one_step_on_dialogues(tiny_model, tmp_path):
    """Through the trainer: all rows in one step, the same weights after it; held-out data stay whole."""
    from tests.train.test_sft import adapter_of

    made = [dialogue(f"d{n}", *["how are you?", "sad and tired", "why?", "work"] * (n + 1)) for n in range(2)]
    data = write_lines(tmp_path / "two.jsonl", made)
    found = []
    for expand, size in (("dialogues", 2), ("turns", 6)):
        content = chat_content(tiny_model, tmp_path / expand, data, max_steps=1, optim="sgd", learning_rate=1.0)
        content["lora"]["dropout"] = 0
        content["data"] |= {"expand": expand, "validation": str(data)}
        content["training"] |= {"per_device_train_batch_size": size, "warmup_steps": 0}
        metrics = train_chat(recipe_of(tmp_path, content))
        assert metrics["data"]["train"]["rows"] == size
        assert metrics["data"]["validation"]["rows"] == 2
        found.append((metrics, adapter_of(tmp_path / expand)))
    (whole, weights), (turns, turn_weights) = found
    assert turns["train_loss"][0] == pytest.approx(whole["train_loss"][0], abs=1e-4)
    assert max(float(one.abs().max()) for name, one in weights.items() if "lora_B" in name) > 1e-3
    for name in weights:
        torch.testing.assert_close(turn_weights[name], weights[name], atol=1e-5, rtol=1e-4)


def test_preview_shows_the_expanded_rows(tiny_model, tmp_path):
    content = chat_content(tiny_model, tmp_path / "out", SAMPLES / "dialogues.jsonl")
    recipe = recipe_of(tmp_path, content, "data.expand=turns")
    texts = preview_rows(recipe, 3)
    assert len(texts) == 3
    assert texts[1].plain.startswith(texts[0].plain.rstrip("\n"))  # the next turn's row goes on where this one ends


def test_the_attention_in_force_is_written_down(tiny_model, tmp_path):
    data = write_lines(tmp_path / "one.jsonl", [dialogue("d", "how are you?", "sad")])
    for attention, used in (("auto", "sdpa"), ("eager", "eager")):
        if attention == "auto" and torch.cuda.is_available():
            continue  # which one it is depends on the machine
        content = chat_content(tiny_model, tmp_path / attention, data, max_steps=1)
        metrics = train_chat(recipe_of(tmp_path, content, f"model.attention={attention}"))
        assert metrics["attention"] == used
