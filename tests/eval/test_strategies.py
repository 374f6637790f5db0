"""Strategies: branch points in rendered rows, the model's own distribution, figures against scikit-learn."""

import random

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import Dialogue
from data_prep.sources.esconv import STRATEGIES
from eval.strategies import (
    Choice,
    branch_points,
    macro_f1,
    strategy_choices,
    strategy_figures,
    strategy_tokens,
)
from tests.train.made import dialogue
from train.masking import ChatRenderer
from train.models import load_chat_model
from train.rows import ChatFormat, chat_rows


def rows_of(tokenizer, *prefixed):
    how = ChatFormat("supporter", load_prompt("supporter"), None, 2048)
    found = [
        Dialogue.model_validate(dialogue(f"d{number}", *texts, opening="seeker", card=False))
        for number, texts in enumerate(prefixed)
    ]
    rows, _ = chat_rows(how, ChatRenderer(tokenizer), [("here:1", one) for one in found])
    return rows


TALKS = (
    ("I feel bad", "[Question] Why?", "my job", "[Information] There is help."),
    (
        "hello [Question] there",
        "Hi, no prefix",
        "and?",
        "[Others] Well [Question] so",
        "ok",
        "[Self-disclosure] Me too",
    ),
)


def test_branch_points_are_the_strategies_of_supporter_turns_and_of_nothing_else(tiny_tokenizer):
    tokens = strategy_tokens(ChatRenderer(tiny_tokenizer))
    assert set(tokens.spelled) == set(STRATEGIES)
    rows = rows_of(tiny_tokenizer, *TALKS)
    found = [branch_points(row, tokens) for row in rows]
    assert [[name for _, name in points] for points in found] == [
        ["Question", "Information"],
        ["Others", "Self-disclosure"],
    ]
    for row, points in zip(rows, found, strict=True):
        for at, name in points:
            assert tiny_tokenizer.decode(row.input_ids[at - len(tokens.lead) :]).startswith(f"[{name}]")
            assert tuple(row.input_ids[at - len(tokens.lead) : at]) == tokens.lead


def test_choices_are_the_models_own_distribution_whatever_the_batch(tiny_model):
    model, tokenizer = load_chat_model(str(tiny_model))
    tokens = strategy_tokens(ChatRenderer(tokenizer))
    rows = rows_of(tokenizer, *TALKS, *TALKS)
    choices = strategy_choices(model, rows, tokens, batch_size=3)
    alone = [choice for row in rows for choice in strategy_choices(model, [row], tokens, batch_size=1)]
    assert [(one.gold, one.predicted) for one in choices] == [(one.gold, one.predicted) for one in alone]
    assert [one.mass for one in choices] == pytest.approx([one.mass for one in alone], rel=1e-4)
    assert [one.row for one in choices] == sorted(one.row for one in choices)
    at, _ = branch_points(rows[0], tokens)[0]
    assert choices[0].mass == pytest.approx(greedy(model, rows[0].input_ids[:at], tokens)[1], rel=1e-4)
    for row, row_choices in zip(rows, (choices[0:2], choices[2:4]), strict=False):
        picked = [greedy(model, row.input_ids[:at], tokens)[0] for at, _ in branch_points(row, tokens)]
        assert [one.predicted for one in row_choices] == picked


def greedy(model, ids, tokens):
    """Decoding token by token with everything but the spellings of the eight forbidden; and the first step's mass."""
    said, mass = (), None
    while said not in tokens.spelled.values():
        allowed = sorted({full[len(said)] for full in tokens.spelled.values() if full[: len(said)] == said})
        with torch.inference_mode():
            chances = model(input_ids=torch.tensor([[*ids, *said]])).logits[0, -1].softmax(-1)
        mass = float(chances[allowed].sum()) if mass is None else mass
        said += (max(allowed, key=lambda token: float(chances[token])),)
    return next(name for name, full in tokens.spelled.items() if full == said), mass


def test_figures_are_those_of_scikit_learn():
    draw = random.Random(0)
    choices = [
        Choice(
            row=number // 5,
            gold=draw.choice(STRATEGIES[:6]),
            predicted=draw.choice(STRATEGIES),
            mass=0.5,
        )
        for number in range(200)
    ]
    figures = strategy_figures(choices)
    gold, said = [one.gold for one in choices], [one.predicted for one in choices]
    assert figures.accuracy.mean == pytest.approx(accuracy_score(gold, said))
    expected = f1_score(gold, said, labels=sorted(set(gold)), average="macro", zero_division=0)
    assert figures.macro_f1.mean == pytest.approx(expected)
    always = [figures.constant] * len(gold)
    assert figures.constant_macro_f1 == pytest.approx(
        f1_score(gold, always, labels=sorted(set(gold)), average="macro", zero_division=0)
    )
    assert figures.accuracy.low < figures.accuracy.mean < figures.accuracy.high
    assert figures.macro_f1.low < figures.macro_f1.mean < figures.macro_f1.high
    assert figures.mass.mean == pytest.approx(0.5)


def test_a_strategy_never_said_and_never_meant_counts_for_nothing():
    table = np.zeros((8, 8))
    table[0, 0], table[1, 0] = 3, 1
    assert macro_f1(table, table.sum(axis=1) > 0) == pytest.approx((6 / 7 + 0) / 2)


def test_without_a_prefix_there_is_nothing_to_measure(tiny_tokenizer):
    rows = rows_of(tiny_tokenizer, ("hello", "no prefix here"))
    assert branch_points(rows[0], strategy_tokens(ChatRenderer(tiny_tokenizer))) == []
    with pytest.raises(UserError, match="--strategy prefix"):
        strategy_figures([])
