"""The folder of a run: whose it is, what it began with, and which of its checkpoints is continued."""

from pathlib import Path

import pytest

from data_prep.errors import UserError
from tests.train.made import chat_content, dialogue, made_checkpoint, recipe_of, write_lines
from train.output import make_arguments, open_output


@pytest.fixture
def recipe(tmp_path):
    data = write_lines(tmp_path / "train.jsonl", [dialogue("a", "hello", "hi")])
    return recipe_of(tmp_path, chat_content(tmp_path / "model", tmp_path / "out", data))


def with_checkpoint(recipe, step: int, complete: bool = True) -> str:
    folder = made_checkpoint(Path(recipe.out) / "checkpoints", step)
    if not complete:
        (folder / "trainer_state.json").unlink()
    return str(folder)


def test_a_new_folder_holds_the_recipe_first(recipe):
    assert open_output(recipe, resume=False) is None
    assert {path.name for path in Path(recipe.out).iterdir()} == {"recipe.yaml", "start.json"}


def test_resuming_where_nothing_was_saved_starts_anew(recipe):
    assert open_output(recipe, resume=True) is None
    assert open_output(recipe, resume=True) is None


def test_the_newest_complete_checkpoint_is_resumed(recipe):
    open_output(recipe, resume=False)
    with_checkpoint(recipe, 9)
    newest = with_checkpoint(recipe, 10)
    with_checkpoint(recipe, 11, complete=False)
    assert open_output(recipe, resume=True) == newest


def test_a_run_is_never_overwritten_unasked(recipe):
    open_output(recipe, resume=False)
    with_checkpoint(recipe, 5)
    with pytest.raises(UserError, match=r"already holds a run of this recipe; add --resume"):
        open_output(recipe, resume=False)


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_of_another_recipe_is_refused_with_the_difference(recipe, resume):
    open_output(recipe, resume=False)
    with_checkpoint(recipe, 5)
    other = recipe.model_copy(update={"seed": 5, "training": {**recipe.training, "learning_rate": 0.5}})
    with pytest.raises(UserError) as caught:
        open_output(other, resume)
    assert "seed: 0 in the folder, 5 now" in str(caught.value)
    assert "training.learning_rate: 0.0001 in the folder, 0.5 now" in str(caught.value)
    assert "lora" not in str(caught.value)


def test_a_run_is_not_continued_on_other_data(recipe):
    open_output(recipe, resume=False)
    (file,) = recipe.data.train
    before = Path(file).read_bytes()
    write_lines(Path(file), [dialogue("b", "hello", "hi")])
    assert open_output(recipe, resume=True) is None  # nothing was trained on the old content
    checkpoint = with_checkpoint(recipe, 5)
    assert open_output(recipe, resume=True) == checkpoint
    Path(file).write_bytes(before)
    with pytest.raises(UserError, match=r"^[^\n]*the run began with another content of [^\n]*train\.jsonl; [^\n]*$"):
        open_output(recipe, resume=True)


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 4)])
def test_a_run_is_not_continued_by_another_number_of_processes(recipe, monkeypatch, before, now):
    monkeypatch.setenv("WORLD_SIZE", str(before))
    open_output(recipe, resume=False)
    made_checkpoint(Path(recipe.out) / "checkpoints", 5, before)
    assert open_output(recipe, resume=True)
    monkeypatch.setenv("WORLD_SIZE", str(now))
    says = rf"comes from a run of {before} process\(es\), this one has {now} .*--num-processes {before}"
    with pytest.raises(UserError, match=says):
        open_output(recipe, resume=True)


def test_a_folder_of_somebody_elses_is_refused(recipe):
    Path(recipe.out).mkdir()
    (Path(recipe.out) / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="is not empty and holds no run of ours"):
        open_output(recipe, resume=True)
    assert [path.name for path in Path(recipe.out).iterdir()] == ["thesis.tex"]


def test_a_run_that_saved_nothing_may_be_started_again(recipe):
    open_output(recipe, resume=False)
    (Path(recipe.out) / "checkpoints").mkdir()
    corrected = recipe.model_copy(update={"seed": 5})
    assert open_output(corrected, resume=False) is None
    assert "seed: 5" in (Path(recipe.out) / "recipe.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("report_to", ["none", None, []])
def test_no_tracker_unless_asked(recipe, report_to):
    from transformers import TrainingArguments

    silent = recipe.model_copy(update={"training": {**recipe.training, "report_to": report_to}})
    assert make_arguments(TrainingArguments, silent).report_to == []
