"""The folder of a run: whose it is, when it is finished, and what the trackers are told."""

from pathlib import Path

import pytest

from data_prep.errors import UserError
from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from train.output import make_arguments, open_output, trainer_arguments


@pytest.fixture
def recipe(tmp_path):
    data = write_lines(tmp_path / "train.jsonl", [dialogue("a", "hello", "hi")])
    return recipe_of(tmp_path, chat_content(tmp_path / "model", tmp_path / "out", data))


def with_checkpoint(recipe, step: int, complete: bool = True) -> str:
    folder = Path(recipe.out) / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / ("trainer_state.json" if complete else "optimizer.pt")).write_text("{}", encoding="utf-8")
    return str(folder)


def test_a_new_folder_holds_the_recipe_first(recipe):
    assert open_output(recipe, resume=False) is None
    assert [path.name for path in Path(recipe.out).iterdir()] == ["recipe.yaml"]


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


@pytest.mark.parametrize("report_to", ["wandb", ["tensorboard", "wandb"]])
def test_wandb_without_a_key_goes_offline_with_one_warning(recipe, report_to, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")  # so that monkeypatch restores it afterwards
    monkeypatch.delenv("WANDB_MODE")
    asked = recipe.model_copy(update={"training": {**recipe.training, "report_to": report_to}})
    for _ in range(2):
        assert trainer_arguments(asked)["report_to"] == report_to
    import os

    assert os.environ["WANDB_MODE"] == "offline"
    assert capsys.readouterr().err.count("warning: no wandb key is set") == 1


def test_wandb_with_a_key_is_left_alone(recipe, monkeypatch, capsys):
    import os

    monkeypatch.setenv("WANDB_API_KEY", "made")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_MODE")
    trainer_arguments(recipe.model_copy(update={"training": {**recipe.training, "report_to": "wandb"}}))
    assert "WANDB_MODE" not in os.environ
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("report_to", ["none", None, []])
def test_no_tracker_unless_asked(recipe, report_to):
    from transformers import TrainingArguments

    silent = recipe.model_copy(update={"training": {**recipe.training, "report_to": report_to}})
    assert make_arguments(TrainingArguments, silent).report_to == []
