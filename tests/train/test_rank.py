"""Training of the scorer: exact resume, accumulation with missing ratings, unknown scales, faulty ratings."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from data_prep.errors import UserError
from data_prep.records import Dialogue, read_located
from data_prep.rubric import load_rubric
from tests.train.made import dialogue, read_lines, write_lines
from tests.train.made_scorer import scorer_content, scorer_recipe
from train.output import finished_metrics
from train.rank import build_trainer, train_scorer
from train.recipe import ScorerRecipe
from train.scorer import Scorer
from train.scorer_data import RatingSet, rank_rows, read_rating_set, read_ratings, row_length


def weights_of(out: str | Path) -> dict[str, torch.Tensor]:
    """Heads and adapter, or heads and backbone, of a scorer folder."""
    files = [Path(out) / name for name in ("heads.safetensors", "adapter/adapter_model.safetensors")]
    if not files[1].is_file():
        files[1] = Path(out) / "backbone" / "model.safetensors"
    return {f"{file.name} {name}": tensor for file in files for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def ten_steps(tiny_encoder, tmp_path_factory) -> tuple[ScorerRecipe, dict]:
    """Ten steps over three and a third epochs of twelve rows, with dropout, a checkpoint after step five."""
    folder = tmp_path_factory.mktemp("ten")
    recipe = scorer_recipe(folder, scorer_content(tiny_encoder, folder / "out", max_steps=10, save_steps=5))
    return recipe, train_scorer(recipe)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_stopping_and_resuming_changes_no_bit(kind, tiny_encoder, ten_steps, tmp_path):
    if kind == "lora":
        recipe, _ = ten_steps
    else:
        content = scorer_content(tiny_encoder, tmp_path / "whole", max_steps=10, save_steps=5)
        del content["lora"]
        recipe = scorer_recipe(tmp_path, content)
        train_scorer(recipe)
    killed = recipe.model_copy(update={"out": str(tmp_path / "out")})
    checkpoint = Path("checkpoints") / "checkpoint-5"
    shutil.copytree(recipe.out / checkpoint, killed.out / checkpoint)
    saved = (Path(recipe.out) / "recipe.yaml").read_text(encoding="utf-8").replace(recipe.out, killed.out)
    (tmp_path / "out" / "recipe.yaml").write_text(saved, encoding="utf-8")
    train_scorer(killed, resume=True)
    left, right = weights_of(recipe.out), weights_of(killed.out)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_training_learns_and_reports_what_it_did(ten_steps):
    recipe, metrics = ten_steps
    assert sum(metrics["train_loss"][-3:]) < sum(metrics["train_loss"][:3])
    weights = weights_of(recipe.out)
    assert min(float(t.norm()) for name, t in weights.items() if "lora_B" in name) > 0
    assert float(weights["heads.safetensors score.weight"].norm(dim=1).min()) > 0
    train = metrics["data"]["train"]
    assert (train["dialogues"], train["without_rating"]) == (12, 0)
    assert train["ratings"] + train["missing_ratings"] == 12 * 2 * 7
    assert sum(map(sum, train["per_level"].values())) == train["ratings"]
    assert metrics["data"]["rated_dialogues_in_no_file"] == 32  # 44 are rated, 12 are used
    assert metrics["data"]["illustrative"] is True
    assert Scorer.load(recipe.out).config.training_levels == train["per_level"]
    assert finished_metrics(recipe) == metrics


def write_rubric(path: Path, scales: dict[str, tuple[int, int]]) -> Path:
    words = {"en": "word", "zh": "词"}
    dimensions = [
        {
            "name": name,
            "scale": list(scale),
            "title": words,
            "question": words,
            "anchors": dict.fromkeys(range(scale[0], scale[1] + 1), words),
        }
        for name, scale in scales.items()
    ]
    rubric = {"name": "unseen", "version": 1, "description": "made", "dimensions": dimensions}
    path.write_text(yaml.safe_dump(rubric, allow_unicode=True), encoding="utf-8")
    return path


def rating(identifier: str, rater: str, dimension: str, value: float | None) -> dict[str, Any]:
    found = {"dialogue_id": identifier, "rater": rater, "rubric": "unseen", "dimension": dimension, "value": value}
    return {**found, "reason": "not given"} if value is None else found


# Ratings of four dialogues by up to two raters on scales the code has never seen; None and absence both mean missing.
GIVEN = [
    ("d0", "a", "warm", 2),
    ("d0", "a", "deep", 7),
    ("d0", "b", "warm", 1),
    ("d1", "a", "warm", 0),
    ("d1", "a", "deep", None),
    ("d2", "b", "deep", 1),
    ("d3", "a", "warm", 1),
    ("d3", "a", "deep", 4),
    ("d3", "b", "warm", 2),
    ("d3", "b", "deep", 4),
]


@pytest.fixture
def unseen(tiny_encoder, tmp_path):
    """Builds the recipe content of a rubric of one's own, from the ratings given."""

    def content(given=GIVEN, **training: Any) -> dict[str, Any]:
        found = scorer_content(tiny_encoder, tmp_path / "out", **training)
        made = [dialogue(f"d{n}", "hello", "i am sad " * (n + 1), "how are you?") for n in range(4)]
        found["rubric"] = str(write_rubric(tmp_path / "unseen.yaml", {"warm": (0, 2), "deep": (1, 7)}))
        found["data"] = {
            "train": str(write_lines(tmp_path / "train.jsonl", made)),
            "ratings": str(write_lines(tmp_path / "ratings.jsonl", [rating(*one) for one in given])),
            "max_length": 128,
        }
        return found

    return content


def test_a_rubric_never_seen_before_is_trained_and_scored(unseen, tmp_path):
    metrics = train_scorer(scorer_recipe(tmp_path, unseen(max_steps=3)))
    train = metrics["data"]["train"]
    assert train["per_level"] == {"warm": [1, 2, 2], "deep": [1, 0, 0, 2, 0, 0, 1]}
    assert (train["ratings"], train["missing_ratings"], train["dialogues"]) == (9, 3, 4)
    scorer = Scorer.load(tmp_path / "out")
    assert scorer.rubric == load_rubric(str(tmp_path / "unseen.yaml"))
    (found,) = scorer.score([Dialogue.model_validate(dialogue("new", "hello", "sad"))])
    assert [len(found["warm"]), len(found["deep"])] == [3, 7]


def test_labels_are_level_indices_and_missing_is_missing(unseen, tmp_path):
    recipe = scorer_recipe(tmp_path, unseen())
    rubric = load_rubric(recipe.rubric[0])
    ratings = RatingSet((rubric,), (read_ratings(recipe.data.ratings, rubric),))
    assert ratings.labels("d0") == (["a", "b"], [[2, 6], [1, -100]])
    assert ratings.labels("d1") == (["a"], [[0, -100]])
    assert ratings.labels("d2") == (["b"], [[-100, 0]])
    assert ratings.labels("unknown") == ([], [])


def test_four_rows_at_once_equal_four_times_one(unseen, tmp_path):
    """Rows hold 3, 1, 1 and 4 ratings: a mean of means would weigh them differently."""
    results = []
    for size, accumulation in ((4, 1), (1, 4), (2, 2)):
        content = unseen(
            max_steps=1,
            optim="sgd",
            learning_rate=0.5,
            warmup_steps=0,
            max_grad_norm=1e9,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
        )
        content["out"] = str(tmp_path / f"out{size}")
        content["lora"]["dropout"] = 0
        content["scorer"] = {"head_learning_rate": 0.5}
        trainer, _ = build_trainer(scorer_recipe(tmp_path, content))
        # Heads start at zero, and zero heads send no gradient to the backbone.
        torch.manual_seed(1)
        torch.nn.init.normal_(trainer.model.heads.score.weight)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
        # The made encoder has dropout of its own.
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        after = dict(trainer.model.named_parameters())
        results.append((trainer.state.log_history[0]["loss"], {name: after[name] - before[name] for name in before}))
    (loss, steps), *others = results
    assert max(float(step.detach().abs().max()) for name, step in steps.items() if "lora_B" in name) > 1e-4
    for other_loss, other_steps in others:
        assert other_loss == pytest.approx(loss, abs=1e-5)
        for name in steps:
            torch.testing.assert_close(other_steps[name], steps[name], atol=1e-6, rtol=1e-4)


def test_the_first_loss_is_that_of_the_rating_frequencies(unseen, tmp_path):
    """Untrained heads predict how often each level was given, half a rating added to each."""
    metrics = train_scorer(scorer_recipe(tmp_path, unseen(max_steps=1)))
    expected = 0.0
    for counts in metrics["data"]["train"]["per_level"].values():
        smoothed = torch.tensor(counts) + 0.5
        expected -= float((torch.tensor(counts) * (smoothed / smoothed.sum()).log()).sum())
    assert metrics["train_loss"][0] == pytest.approx(expected / 9, abs=1e-4)


@pytest.mark.parametrize(("asked", "expected"), [(None, 1e-3), (0.03, 0.03)])
def test_heads_have_a_learning_rate_of_their_own(unseen, tmp_path, asked, expected):
    content = unseen(max_steps=1, learning_rate=1e-4)
    if asked:
        content["scorer"] = {"head_learning_rate": asked}
    trainer, _ = build_trainer(scorer_recipe(tmp_path, content))
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert len(rates) == len(trained)
    for name, parameter in trained.items():
        assert rates[id(parameter)] == pytest.approx(expected if name.startswith("heads.") else 1e-4), name
    assert any(name.startswith("heads.") for name in trained)
    assert any("lora_A" in name for name in trained)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([*GIVEN, ("d2", "a", "warm", 3)], r"ratings\.jsonl:11: value 3 of warm is off the scale 0\.\.2"),
        ([*GIVEN, ("d2", "a", "deep", 0)], r"ratings\.jsonl:11: value 0 of deep is off the scale 1\.\.7"),
        ([*GIVEN, ("d2", "a", "deep", 2.5)], r"ratings\.jsonl:11: value 2\.5 of deep is off the scale"),
        ([*GIVEN, ("d0", "a", "warm", 2)], r"ratings\.jsonl:11: rater 'a' already rated warm of 'd0'; keep one"),
        ([*GIVEN, ("d0", "a", "cold", 2)], r"ratings\.jsonl:11: dimension 'cold' is not in rubric unseen"),
        ([one for one in GIVEN if one[2] == "warm"], r"ratings\.jsonl: no rating of deep for the dialogues given"),
        ([("x", "a", "warm", 1), ("x", "a", "deep", 1)], r"no rating of warm, deep for the dialogues given; check ids"),
    ],
)
def test_faulty_ratings_are_named(unseen, tmp_path, given, says):
    with pytest.raises(UserError, match=rf"^[^\n]*{says}[^\n]*$"):
        train_scorer(scorer_recipe(tmp_path, unseen(given)))


def test_ratings_of_another_rubric_are_named(unseen, tmp_path):
    content = unseen()
    write_lines(tmp_path / "ratings.jsonl", [{**rating(*GIVEN[0]), "rubric": "esc_eval"}])
    with pytest.raises(UserError, match=r"ratings\.jsonl:1: rating is for rubric 'esc_eval', expected 'unseen'"):
        train_scorer(scorer_recipe(tmp_path, content))


def test_an_unknown_rubric_is_named_with_a_suggestion(unseen, tmp_path):
    with pytest.raises(UserError, match="unknown rubric 'esc_evl'; did you mean 'esc_eval'"):
        train_scorer(scorer_recipe(tmp_path, {**unseen(), "rubric": "esc_evl"}))


def test_ratings_and_dialogues_without_each_other_are_counted(unseen, tmp_path):
    given = [*(one for one in GIVEN if one[0] != "d2"), ("x", "a", "warm", 1), ("y", "a", "deep", 1)]
    report = build_trainer(scorer_recipe(tmp_path, unseen(given)))[1]
    assert report["rated_dialogues_in_no_file"] == 2
    assert (report["train"]["dialogues"], report["train"]["without_rating"]) == (3, 1)


def test_shortened_dialogues_are_counted(unseen, tmp_path, tiny_encoder):
    from train.models import open_tokenizer

    recipe = scorer_recipe(tmp_path, unseen())
    located = read_located(recipe.data.train[0], Dialogue)
    ratings = read_rating_set(recipe)
    tokenizer = open_tokenizer(str(tiny_encoder))
    rows, report = rank_rows(recipe, tokenizer, located, ratings)
    assert report.shortened == 0
    longest = max(map(row_length, rows))
    shorter = scorer_recipe(tmp_path, unseen(), f"data.max_length={longest - 1}")
    rows, report = rank_rows(shorter, tokenizer, located, ratings)
    assert report.shortened == 1
    assert max(map(row_length, rows)) < longest


def test_max_length_beyond_the_model_is_refused(unseen, tmp_path):
    with pytest.raises(UserError, match=r"data\.max_length is 513, but .* reads at most 512"):
        build_trainer(scorer_recipe(tmp_path, unseen(), "data.max_length=513"))


def test_held_out_loss_is_the_mean_over_its_ratings(unseen, tmp_path):
    content = unseen(num_train_epochs=2, per_device_eval_batch_size=4, load_best_model_at_end=True)
    content["data"]["validation"] = content["data"]["train"]
    content["evaluation"] = {"metric": "loss"}
    recipe = scorer_recipe(tmp_path, content)
    metrics = train_scorer(recipe)
    assert len(metrics["eval_loss"]) == 2
    assert metrics["data"]["validation"]["ratings"] == 9
    scorer = Scorer.load(recipe.out)
    ratings = read_rating_set(recipe)
    dialogues = [one for _, one in read_located(recipe.data.train[0], Dialogue)]
    logs = []
    for one, found in zip(dialogues, scorer.score(dialogues), strict=True):
        for row in ratings.labels(one.id)[1]:
            for name, level in zip(scorer.rubric.names(), row, strict=True):
                if level >= 0:
                    logs.append(torch.tensor(found[name][level]).log())
    # The saved model is the best of the two epochs.
    assert -float(torch.stack(logs).mean()) == pytest.approx(min(metrics["eval_loss"]), abs=1e-4)


def test_samples_are_marked_as_illustrative_and_other_data_are_not(unseen, tmp_path):
    assert build_trainer(scorer_recipe(tmp_path, unseen()))[1]["illustrative"] is False
    assert all(one["meta"]["illustrative"] for one in read_lines_of_samples())


def read_lines_of_samples() -> list[Any]:
    from tests.train.made import SAMPLES

    return read_lines(SAMPLES / "rated_dialogues.jsonl")
