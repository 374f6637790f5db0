"""Tokenised rows on disk: the same rows, made once, for nobody else's eyes, and never a damaged file."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

import train.row_cache as row_cache
from data_prep.errors import UserError
from tests.conftest import CHATML, make_tokenizer
from tests.train.made import SAMPLES, chat_content, dialogue, recipe_of, write_lines
from train.masking import ChatRenderer
from train.row_cache import RowSet, cache_folder, prepare, read_row_set, tokenizer_hash, write_row_set
from train.rows import ChatFormat, chat_rows, read_rows


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def recipe(tiny_model, tmp_path):
    content = chat_content(tiny_model, tmp_path / "out", SAMPLES / "dialogues.jsonl")
    content["data"]["validation"] = str(SAMPLES / "dialogues.jsonl")
    return recipe_of(tmp_path, content, "data.limit=5", "data.expand=turns")


def files():
    return sorted(cache_folder().glob("*.safetensors"))


def forbid(monkeypatch):
    """From here on nothing may be tokenised."""

    def refused(*_):
        raise AssertionError("tokenised again")

    monkeypatch.setattr(row_cache, "chat_rows", refused)


def test_the_second_time_nothing_is_tokenised_and_the_rows_are_the_same(recipe, tiny_tokenizer, monkeypatch):
    first = prepare(recipe)
    assert len(files()) == 2
    forbid(monkeypatch)
    again = prepare(recipe)
    located = read_rows(recipe.data.train, 5, recipe.seed)
    rows, report = chat_rows(ChatFormat.of(recipe), ChatRenderer(tiny_tokenizer), located)
    assert again.train.encoded() == first.train.encoded() == rows
    assert again.train.report == first.train.report == report
    assert report.rows > report.dialogues == 5
    assert again.validation.report.rows == again.validation.report.dialogues > 5
    assert again.report() == first.report()
    assert json.loads(json.dumps(again.report())) == again.report()


def test_training_reads_what_was_prepared(recipe, monkeypatch):
    from train.sft import build_trainer

    wanted = prepare(recipe).train.encoded()
    forbid(monkeypatch)
    trainer, _ = build_trainer(recipe)
    assert [row["input_ids"] for row in trainer.train_dataset] == [row.input_ids for row in wanted]
    assert [row["labels"] for row in trainer.train_dataset] == [row.labels for row in wanted]


@pytest.mark.parametrize(
    "change",
    ["data.expand=dialogues", "data.loss=last", "data.max_length=1500", "data.limit=4", "seed=1", "data.greeting=null"],
)
def test_whatever_changes_the_rows_changes_the_file(recipe, tiny_model, tmp_path, change):
    before = prepare(recipe).train.encoded()
    content = {**recipe.model_dump(mode="json"), "training": {}}
    changed = recipe_of(tmp_path, content, change)
    rows = prepare(changed).train.encoded()
    located = read_rows(changed.data.train, changed.data.limit, changed.seed)
    assert rows == chat_rows(ChatFormat.of(changed), ChatRenderer(make_tokenizer()), located)[0]
    assert (rows != before) or change == "data.max_length=1500"
    assert len(files()) > 2


def test_edited_data_are_read_anew(tiny_model, tmp_path):
    data = write_lines(tmp_path / "train.jsonl", [dialogue("a", "hello", "sad")])
    recipe = recipe_of(tmp_path, chat_content(tiny_model, tmp_path / "out", data))
    first = prepare(recipe)
    write_lines(data, [dialogue("a", "hello", "glad")])
    assert prepare(recipe).train.encoded() != first.train.encoded()
    write_lines(data, [dialogue("a", "hello")])
    with pytest.raises(UserError, match=r"train\.jsonl:1: dialogue 'a' has no seeker turn"):
        prepare(recipe)
    assert len(files()) == 2


def test_packing_and_training_settings_share_the_rows(recipe, tmp_path, monkeypatch):
    prepare(recipe)
    forbid(monkeypatch)
    content = {**recipe.model_dump(mode="json"), "training": {}}
    prepare(recipe_of(tmp_path, content, "data.packing=true", "training.learning_rate=1e-3", "lora.r=8"))


def test_another_template_or_vocabulary_is_another_tokenizer():
    hashes = {
        tokenizer_hash(make_tokenizer()),
        tokenizer_hash(make_tokenizer()),
        tokenizer_hash(make_tokenizer(CHATML.replace("<|im_end|>' + '\n'", "<|im_end|>' + ' '"))),
    }
    added = make_tokenizer()
    added.add_tokens(["zebra"])
    assert len(hashes) == 2
    assert tokenizer_hash(added) not in hashes


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "other", "gone"])
def test_a_damaged_file_is_made_again(recipe, damage):
    wanted = prepare(recipe)
    for path in files():
        content = bytearray(path.read_bytes())
        if damage == "cut":
            del content[-7:]
        elif damage == "bit":
            content[-20] ^= 1
        elif damage == "empty":
            content.clear()
        elif damage == "other":
            content[:] = b"not what it was"
        path.unlink() if damage == "gone" else path.write_bytes(content)
        assert read_row_set(path) is None
    assert prepare(recipe).train.encoded() == wanted.train.encoded()
    assert all(read_row_set(path) is not None for path in files())


def test_every_bit_of_the_arrays_is_watched(recipe, tmp_path):
    found = prepare(recipe).train
    path = tmp_path / "cache" / "rows" / "x.safetensors"
    write_row_set(path, found)
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in range(start, len(whole), max(1, (len(whole) - start) // 60)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert read_row_set(path) is None


def test_the_folder_is_for_its_owner_alone(recipe):
    prepare(recipe)
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files()} == {0o600}
    assert [path for path in cache_folder().iterdir() if path.suffix != ".safetensors"] == []


def test_what_nobody_read_for_a_month_is_removed(recipe, tmp_path):
    cache_folder().mkdir(parents=True)
    old, used = cache_folder() / "old.safetensors", cache_folder() / "used.safetensors"
    for path, days in ((old, 31), (used, 29)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - days * 86400,) * 2)
    prepare(recipe)
    assert not old.exists()
    assert used.exists()


def test_no_place_for_a_cache_stops_no_training(recipe, tmp_path, capsys):
    (tmp_path / "cache").write_text("a file where the folder would be")
    prepared = prepare(recipe)
    assert prepared.train.report.dialogues == 5
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2  # training and held-out rows
    assert all(line.startswith("warning: ") and "ESCKIT_CACHE" in line for line in lines)


def test_processes_that_write_at_once_leave_one_whole_file(recipe, tmp_path):
    code = (
        "import sys; from train.recipe import load_recipe; from train.row_cache import prepare; "
        "print(prepare(load_recipe(sys.argv[1])).train.report.rows)"
    )
    (tmp_path / "again.json").write_text(json.dumps({**recipe.model_dump(mode="json"), "training": {}}))
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "again.json")], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert {one.communicate()[0].strip() for one in running} == {str(prepare(recipe).train.report.rows)}
    assert len(files()) == 2
    assert len(list(cache_folder().iterdir())) == 2


def test_rows_that_are_empty_of_nothing_round_trip(tmp_path, recipe):
    from train.masking import Encoded
    from train.rows import RowReport

    rows = [Encoded([5, 6, 70000], [-100, 6, 70000]), Encoded([1], [-100])]
    path = tmp_path / "one.safetensors"
    write_row_set(path, RowSet.of(rows, RowReport(dialogues=2, left_out=3)))
    again = read_row_set(path)
    assert again.encoded() == rows
    assert again.report == RowReport(dialogues=2, left_out=3)
