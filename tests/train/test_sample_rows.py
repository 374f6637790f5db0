"""Rendered samples and dialogues supervise the same tokens, whole or a sample a turn."""

from collections import Counter

import pytest

from data_prep.build import Split, SupporterFormat, build_role, build_supporter
from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import Dialogue, read_located, write_records
from tests.train.made import SAMPLES, assert_same_result, chat_content, recipe_of
from train.masking import IGNORED, ChatRenderer
from train.rows import ChatFormat, chat_rows, preview_rows, read_rows
from train.sft import train_chat

GREETING = load_prompt("greeting")
DIALOGUES = SAMPLES / "dialogues.jsonl"


def built(side, expansion, folder):
    """The bundled dialogues as a file of messages."""
    located = read_located(DIALOGUES, Dialogue)
    if side == "seeker":
        (part,), _ = build_role(located, load_prompt("seeker"), GREETING, expansion, Split())
    else:
        how = SupporterFormat(load_prompt("supporter"), load_prompt("supporter_context"))
        (part,), _ = build_supporter(located, how, expansion, Split())
    path = folder / f"{side}.{expansion}.jsonl"
    write_records(path, part.samples)
    return path


def rows_of(path, side, tokenizer, max_length=100_000):
    how = ChatFormat(side, load_prompt(side), GREETING, max_length)
    return chat_rows(how, ChatRenderer(tokenizer), read_rows([str(path)], None, 0))


def supervised(rows):
    """Multiset of (everything before, target) over the runs of supervised tokens."""
    found: Counter = Counter()
    for row in rows:
        start = None
        for position, label in enumerate([*row.labels, IGNORED]):
            if label != IGNORED and start is None:
                start = position
            elif label == IGNORED and start is not None:
                found[tuple(row.input_ids[:start]), tuple(row.labels[start:position])] += 1
                start = None
    return found


@pytest.mark.parametrize("side", ["seeker", "supporter"])
def test_whole_and_per_turn_supervise_exactly_the_same_tokens(side, tmp_path, tiny_tokenizer):
    dialogues, report = rows_of(DIALOGUES, side, tiny_tokenizer)
    assert report.rendered == 0
    whole, whole_report = rows_of(built(side, "whole", tmp_path), side, tiny_tokenizer)
    turns, turn_report = rows_of(built(side, "turns", tmp_path), side, tiny_tokenizer)
    assert sorted(row.input_ids for row in whole) == sorted(row.input_ids for row in dialogues)
    assert supervised(whole) == supervised(dialogues)
    assert supervised(turns) == supervised(whole)
    assert len(turns) == sum(supervised(whole).values()) > len(whole)
    assert turn_report.supervised_tokens == whole_report.supervised_tokens == report.supervised_tokens
    assert turn_report.rendered == len(turns)
    assert turn_report.tokens > 2 * whole_report.tokens


def test_a_history_that_is_too_long_is_shortened_and_only_the_flagged_turn_is_learned(tmp_path, tiny_tokenizer):
    path = built("seeker", "turns", tmp_path)
    full, _ = rows_of(path, "seeker", tiny_tokenizer)
    limit = sorted(len(row.input_ids) for row in full)[len(full) // 2]
    short, report = rows_of(path, "seeker", tiny_tokenizer, limit)
    assert report.shortened > 0
    assert max(len(row.input_ids) for row in short) <= limit
    targets = [[token for token in row.labels if token != IGNORED] for row in full]
    assert [[token for token in row.labels if token != IGNORED] for row in short] == targets


def test_training_on_messages_is_training_on_dialogues(tiny_model, tmp_path):
    write_records(tmp_path / "d.jsonl", sorted((d for _, d in read_located(DIALOGUES, Dialogue)), key=lambda d: d.id))
    results = []
    for name in (tmp_path / "d.jsonl", built("seeker", "whole", tmp_path)):
        content = chat_content(tiny_model, tmp_path / f"out-{name.stem}", name, max_steps=2)
        content["data"]["limit"] = 6
        recipe = recipe_of(tmp_path, content)
        results.append((recipe.out, train_chat(recipe)))
    assert_same_result(*(out for out, _ in results))
    assert [metrics["data"]["train"]["rendered"] for _, metrics in results] == [0, 6]


def test_samples_of_the_other_side_and_a_prompt_beside_them_are_refused(tiny_model, tmp_path, tiny_tokenizer):
    path = built("supporter", "whole", tmp_path)
    with pytest.raises(UserError, match=r"supporter.whole.jsonl:1: the sample was made for a supporter"):
        rows_of(path, "seeker", tiny_tokenizer)
    content = chat_content(tiny_model, tmp_path / "out", path)
    content["kind"] = "supporter"
    content["data"]["prompt"] = "supporter_plain"
    with pytest.raises(UserError, match=r"leave data\.prompt out"):
        preview_rows(recipe_of(tmp_path, content), 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "a", "messages": [{"role": "assistant", "content": "x", "train": false}]}', "nothing to learn"),
        ('{"id": "a", "messages": [{"role": "user", "content": "x", "train": true}]}', "only assistant messages"),
        ('{"id": "a", "messages": [{"role": "assistant", "content": "x"}]}', r"messages\.0\.train: found nothing"),
        ('{"id": "a", "messages": []}', "messages"),
    ],
)
def test_faulty_samples_are_named_by_line(line, reason, tmp_path):
    good = '{"id": "b", "messages": [{"role": "assistant", "content": "x", "train": true}]}\n'
    (tmp_path / "m.jsonl").write_text(good + line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"m\.jsonl:2: .*{reason}"):
        read_rows([str(tmp_path / "m.jsonl")], None, 0)
