"""Folds and seeds: who learns from what, what is averaged, and how it goes on after a stop."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from data_prep.errors import UserError
from data_prep.records import Dialogue, read_records
from data_prep.splits import groups
from tests.train.made import read_lines, write_lines
from tests.train.made_scorer import scorer_content, scorer_recipe
from train.output import finished_metrics
from train.rank import train_scorer
from train.scorer import Scorer
from train.scorer_members import train_members


@pytest.fixture(scope="module")
def folded(tiny_encoder, tmp_path_factory):
    """Three folds of two seeds each, with a test part."""
    folder = tmp_path_factory.mktemp("folds")
    content = scorer_content(tiny_encoder, folder / "out", max_steps=2)
    content["data"] |= {"limit": 36, "split": {"validation": 0, "test": 0.2}}
    content["scorer"] = {"folds": 3, "members": 2, "calibration": "temperature"}
    recipe = scorer_recipe(folder, content)
    return recipe, train_scorer(recipe)


def ids(file: Path) -> set[str]:
    return {one["id"] for one in read_lines(file)}


def test_every_dialogue_is_tested_by_members_that_never_saw_its_group(folded):
    recipe, metrics = folded
    data = Path(recipe.out) / "data"
    held = ids(data / "test.jsonl")
    everybody = set()
    for number in (1, 2, 3):
        train, validation = (ids(data / f"fold-{number}" / f"{name}.jsonl") for name in ("train", "validation"))
        assert not train & validation
        assert not held & (train | validation)
        everybody |= train | validation
        seen = [read_records(data / f"fold-{number}" / f"{name}.jsonl", Dialogue) for name in ("train", "validation")]
        together = groups([*seen[0], *seen[1]], near=0.8)
        assert all(len({one.id in train for one in group}) == 1 for group in together)
    assert len(everybody) + len(held) == 36
    lines = read_lines(Path(recipe.out) / "out_of_fold.jsonl")
    assert {line["dialogue_id"] for line in lines} == everybody
    assert metrics["members"] == [f"fold-{f}-seed-{s}" for f in (1, 2, 3) for s in (0, 1)]
    figures = metrics["agreement"]["cross_validation"]["empathy"]
    assert figures["dialogues"] == len(everybody)
    assert set(metrics["agreement"]) == {"cross_validation", "test"}
    assert metrics["agreement"]["test"]["empathy"]["dialogues"] == len(held)


def test_an_out_of_fold_distribution_is_the_mean_of_the_members_of_its_fold(folded):
    recipe, _ = folded
    line = read_lines(Path(recipe.out) / "out_of_fold.jsonl")[0]
    data = Path(recipe.out) / "data"
    (fold,) = [
        number
        for number in (1, 2, 3)
        if all(line["dialogue_id"] not in ids(data / f"fold-{number}/{name}.jsonl") for name in ("train", "validation"))
    ]
    (dialogue,) = [d for d in read_records(recipe.data.train[0], Dialogue) if d.id == line["dialogue_id"]]
    members = [Scorer.load(Path(recipe.out) / f"members/fold-{fold}-seed-{seed}") for seed in (0, 1)]
    one, other = (member.score([dialogue])[0]["empathy"] for member in members)
    assert one != other
    assert line["probabilities"]["empathy"] == pytest.approx([(a + b) / 2 for a, b in zip(one, other, strict=True)])


def test_the_whole_is_the_mean_of_all_members(folded):
    recipe, metrics = folded
    whole = Scorer.load(recipe.out)
    dialogues = read_records(recipe.data.train[0], Dialogue)[:5]
    found = [Scorer.load(Path(recipe.out) / "members" / name).probabilities(dialogues) for name in metrics["members"]]
    torch.testing.assert_close(whole.probabilities(dialogues), torch.stack(found).mean(0))
    assert whole.identity()["members"] == 6
    levels = metrics["data"]["train"]["per_level"]
    assert whole.config.training_levels == levels
    assert sum(map(sum, levels.values())) == metrics["data"]["train"]["ratings"]


def test_it_goes_on_where_it_was_stopped(folded, tmp_path):
    """A finished member is not trained again; a missing one is, to the same weights."""
    recipe, metrics = folded
    shutil.copytree(recipe.out, tmp_path / "out")
    moved = recipe.model_copy(update={"out": str(tmp_path / "out")})
    for file in (tmp_path / "out").rglob("recipe.yaml"):
        file.write_text(file.read_text(encoding="utf-8").replace(recipe.out, moved.out), encoding="utf-8")
    heads = tmp_path / "out/members/fold-2-seed-1/heads.safetensors"
    before = heads.read_bytes()
    shutil.rmtree(heads.parent)
    (tmp_path / "out" / "metrics.json").unlink()
    trained = []

    def run_one(member):
        trained.append(Path(member.out).name)
        train_scorer(member, resume=True)

    with pytest.raises(UserError, match="already holds a run of this recipe; add --resume"):
        train_members(moved, False, run_one)
    again = train_members(moved, True, run_one)
    assert trained == ["fold-2-seed-1"]
    assert heads.read_bytes() == before
    assert again["agreement"] == metrics["agreement"]
    assert finished_metrics(moved) == again


def test_a_member_that_is_gone_or_foreign_is_one_line(folded, tmp_path):
    recipe, _ = folded
    shutil.copytree(recipe.out, tmp_path / "out")
    member = tmp_path / "out/members/fold-1-seed-0"
    config = member / "scorer_config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**content, "members": ["x"]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"^[^\n]*fold-1-seed-0: is no member of this scorer[^\n]*$"):
        Scorer.load(tmp_path / "out")
    shutil.rmtree(member)
    with pytest.raises(UserError, match=r"^[^\n]*fold-1-seed-0: is no scorer folder[^\n]*$"):
        Scorer.load(tmp_path / "out")


def test_too_few_groups_for_the_folds_are_one_line(tiny_encoder, tmp_path):
    content = scorer_content(tiny_encoder, tmp_path / "out", max_steps=1)
    same = [{**one, "situation": "one and the same"} for one in read_lines(Path(content["data"]["train"]))[:8]]
    content["data"] |= {"train": str(write_lines(tmp_path / "same.jsonl", same)), "limit": None}
    content["scorer"] = {"folds": 3}
    with pytest.raises(UserError, match=r"would be empty: 8 dialogues make only 1 separate groups"):
        train_scorer(scorer_recipe(tmp_path, content))


def test_a_launcher_starts_every_member_by_itself(tiny_encoder, tmp_path, monkeypatch):
    """The launch itself is tested elsewhere; here each member is trained in this process, from the file it is given."""
    from typer.testing import CliRunner

    from esckit import app
    from train.recipe import load_recipe

    content = scorer_content(tiny_encoder, tmp_path / "out", max_steps=1)
    content["scorer"] = {"members": 2}
    (tmp_path / "recipe.yaml").write_text(json.dumps(content), encoding="utf-8")
    started = []

    def launch(recipe, wanted, arguments):
        started.append((Path(recipe.out).name, wanted.config, arguments[1:]))
        again = load_recipe(arguments[0])
        assert again == recipe
        train_scorer(again, resume=True)
        return 0

    monkeypatch.setattr("train.launch.launch", launch)
    line = ["train", str(tmp_path / "recipe.yaml"), "--accelerate", "cpu", "--num-processes", "2"]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert done.exit_code == 0
    assert started == [("seed-0", "cpu", ["--resume"]), ("seed-1", "cpu", ["--resume"])]
    assert len(Scorer.load(tmp_path / "out").models) == 2
    assert "2 of 2: training" in done.stdout
