"""What a scorer's recipe can ask for: frozen backbones, weights, several rubrics, windows, calibration, severities."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from data_prep.errors import UserError
from data_prep.records import Dialogue, read_records
from data_prep.rubric import load_rubric
from tests.train.made import SAMPLES, read_lines, write_lines
from tests.train.made_scorer import live_scores, scorer_content, scorer_recipe
from train.rank import build_trainer, train_scorer
from train.scorer import CONFIG, Scorer, read_config
from train.scorer_agreement import mean_kappa
from train.scorer_data import level_weights, read_rating_set
from train.scorer_model import mean_of_windows

DIALOGUES = read_records(SAMPLES / "rated_dialogues.jsonl", Dialogue)[:9]


@pytest.fixture
def content(tiny_encoder, tmp_path):
    """The bundled ratings, a validation part, three steps."""
    found = scorer_content(tiny_encoder, tmp_path / "out", max_steps=3)
    found["data"]["validation"] = str(
        write_lines(tmp_path / "held.jsonl", read_lines(SAMPLES / "rated_dialogues.jsonl")[-8:])
    )
    return found


# ---- reload equals live, whatever is asked for

WAYS = {
    "coral": ["scorer.head=coral"],
    "corn-soft": ["scorer.head=corn", "scorer.labels=soft"],
    "squared-thresholds": ["scorer.head=squared", "scorer.calibration=thresholds"],
    "cross-entropy-temperature": ["scorer.head=cross_entropy", "scorer.calibration=temperature"],
    "frozen": ["scorer.frozen=true", "lora=null"],
    "windows": ["data.max_length=48", "data.long_dialogues=windows", "scorer.class_weights=root"],
    "severity": ["scorer.rater_effects=true"],
}


@pytest.mark.parametrize("way", WAYS)
def test_reload_equals_live_and_batches_change_nothing(way, content, tmp_path, monkeypatch):
    recipe = scorer_recipe(tmp_path, content, *WAYS[way])
    kept = []
    monkeypatch.setattr("train.rank.build_trainer", lambda recipe: kept.append(build_trainer(recipe)) or kept[0])
    metrics = train_scorer(recipe)
    live = live_scores(kept[0][0].model, recipe, DIALOGUES)
    scorer = Scorer.load(recipe.out)
    assert torch.equal(live_scores(scorer.model, recipe, DIALOGUES), live)
    together = scorer.probabilities(DIALOGUES, batch_size=9)
    torch.testing.assert_close(scorer.probabilities(DIALOGUES, batch_size=1), together, atol=1e-5, rtol=0)
    torch.testing.assert_close(together, live.double().exp(), atol=1e-5, rtol=0)
    assert (scorer.model.heads.sharpness != 1).all() == ("calibration" in " ".join(WAYS[way]))
    assert set(metrics["agreement"]["validation"]) == set(scorer.rubric.names())
    assert not (Path(recipe.out) / "raters.safetensors").exists()


def test_a_frozen_backbone_is_not_touched_and_not_saved(content, tmp_path):
    recipe = scorer_recipe(tmp_path, content, "scorer.frozen=true", "lora=null")
    trainer, _ = build_trainer(recipe)
    assert [name for name, p in trainer.model.named_parameters() if p.requires_grad and "backbone" in name] == []
    trainer.model.train()
    assert not trainer.model.backbone.training  # no dropout: features do not change
    metrics = train_scorer(recipe)
    assert metrics["train_loss"][-1] != metrics["train_loss"][0]
    assert not (Path(recipe.out) / "backbone").exists()
    assert not (Path(recipe.out) / "adapter").exists()
    assert read_config(Path(recipe.out)).weights == "frozen"


def test_vectors_of_windows_are_averaged():
    """The heads normalise, so a sum would go unseen there."""
    pooled = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0], [7.0, 1.0]])
    found = mean_of_windows(pooled, torch.tensor([0, 0, 1, 2]))
    assert found.tolist() == [[2.0, 4.0], [5.0, 5.0], [7.0, 1.0]]
    assert mean_of_windows(pooled, torch.arange(4)).equal(pooled)


def test_windows_are_read_in_full_and_averaged(content, tmp_path, tiny_encoder):
    """The vector of a dialogue in two windows is the mean of theirs; the report says how many were read so."""
    recipe = scorer_recipe(tmp_path, content, "data.max_length=48", "data.long_dialogues=windows")
    trainer, report = build_trainer(recipe)
    assert report["train"]["windowed"] > 0
    assert report["train"]["shortened"] == 0
    model = trainer.model.eval()
    row = next(row for row in trainer.train_dataset if len(row["windows"]) > 1)
    batch = trainer.data_collator([row])
    with torch.no_grad():
        alone = [model.read(torch.tensor([w]), torch.ones(1, len(w), dtype=torch.long)) for w in row["windows"]]
        torch.nn.init.normal_(model.heads.score.weight)
        expected = model.heads(torch.cat(alone).mean(0, keepdim=True))
        found = model(**{k: v for k, v in batch.items() if k not in ("labels", "weights", "raters")})
    torch.testing.assert_close(found["log_probabilities"], torch.stack(expected, 1), atol=1e-5, rtol=1e-4)


# ---- weights


def test_level_weights_balance_and_keep_their_mean():
    counts = [40, 10, 0, 50]
    for power in (0.0, 0.5, 1.0):
        weights = level_weights(counts, power)
        assert sum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(100)
    balanced = level_weights(counts, 1.0)
    assert balanced[2] == 0
    assert balanced[0] * 40 == pytest.approx(balanced[1] * 10) == pytest.approx(balanced[3] * 50)
    assert level_weights(counts, 0.5)[1] / level_weights(counts, 0.5)[0] == pytest.approx(2)


@pytest.mark.parametrize("how", ["scorer.class_weights=balanced", "scorer.labels=soft"])
def test_a_step_divides_by_the_weight_of_its_ratings(how, content, tmp_path):
    """What is logged is the weighted mean, and held-out ratings are weighed by no level."""
    content["training"] |= {"max_steps": 1, "per_device_train_batch_size": 12}
    trainer, _ = build_trainer(scorer_recipe(tmp_path, content, how))
    batch = trainer.data_collator(trainer.train_dataset)
    with torch.no_grad():
        expected = float(trainer.model(**batch)["loss"])  # heads are at 0: dropout changes nothing
    counted = float(batch["weights"].sum()) / float((batch["labels"] >= 0).sum())
    assert (counted == pytest.approx(1)) == ("balanced" in how)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-4)
    held = {weight for row in trainer.eval_dataset for weights in row["weights"] for weight in weights}
    assert held <= {0.0, 0.5, 1.0}


def test_soft_labels_count_dialogues_alike(content, tmp_path):
    trainer, _ = build_trainer(scorer_recipe(tmp_path, content, "scorer.labels=soft"))
    for row in trainer.train_dataset:
        for labels, weights in zip(zip(*row["labels"], strict=True), zip(*row["weights"], strict=True), strict=True):
            assert sum(weights) == pytest.approx(1 if any(level >= 0 for level in labels) else 0)


@pytest.mark.parametrize("how", ["scorer.class_weights=balanced", "scorer.labels=soft", "scorer.rater_effects=true"])
def test_weighted_rows_at_once_equal_accumulated_ones(how, content, tmp_path):
    """Also the pull of a rater's severity to 0 is shared out over the parts of a step."""
    results = []
    for size, accumulation in ((4, 1), (1, 4)):
        found = {**content, "scorer": {"head_learning_rate": 0.5}, "out": str(tmp_path / f"out{size}")}
        found["lora"] = {**content["lora"], "dropout": 0}
        found["training"] = {
            "max_steps": 2,
            "optim": "sgd",
            "learning_rate": 0.1,
            "warmup_steps": 0,
            "max_grad_norm": 1e9,
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": accumulation,
        }
        trainer, _ = build_trainer(scorer_recipe(tmp_path, found, how))
        torch.manual_seed(1)
        torch.nn.init.normal_(trainer.model.heads.score.weight)
        if trainer.model.raters is not None:
            torch.nn.init.normal_(trainer.model.raters.severity)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        results.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad})
    for name, left in results[0].items():
        torch.testing.assert_close(results[1][name], left, atol=2e-6, rtol=1e-4)


def test_resume_with_severities_changes_no_bit(content, tmp_path):
    content["training"] |= {"max_steps": 6, "save_steps": 3}
    del content["data"]["validation"]
    whole = scorer_recipe(tmp_path, content, "scorer.rater_effects=true")
    train_scorer(whole)
    severities = (Path(whole.out) / "raters.json").read_text(encoding="utf-8")
    assert set(json.loads(severities)) == {"sample-a", "sample-b"}
    assert any(value != 0 for given in json.loads(severities).values() for value in given.values())
    half = whole.model_copy(update={"out": str(tmp_path / "again")})
    shutil.copytree(Path(whole.out) / "checkpoints/checkpoint-3", Path(half.out) / "checkpoints/checkpoint-3")
    text = (Path(whole.out) / "recipe.yaml").read_text(encoding="utf-8").replace(whole.out, half.out)
    (Path(half.out) / "recipe.yaml").write_text(text, encoding="utf-8")
    train_scorer(half, resume=True)
    assert (Path(half.out) / "raters.json").read_text(encoding="utf-8") == severities
    assert torch.equal(Scorer.load(half.out).probabilities(DIALOGUES), Scorer.load(whole.out).probabilities(DIALOGUES))


def test_the_card_states_data_agreement_and_limits_and_names_no_rater(content, tmp_path):
    recipe = scorer_recipe(tmp_path, content, "scorer.rater_effects=true", "data.limit=30")
    metrics = train_scorer(recipe)
    card = (Path(recipe.out) / "README.md").read_text(encoding="utf-8")
    found = metrics["agreement"]["validation"]["empathy"]
    assert f"| empathy | {found['kappa']:.2f}" in card
    assert f"{found['ratings']} | {found['dialogues']} |" in card
    assert "Rubric: esc_eval" in card
    assert "train: dialogues 30" in card
    assert "They make no clinical judgment" in card
    assert "no figure here says anything of people" in card
    files = [path for path in Path(recipe.out).iterdir() if path.is_file() and path.name != "raters.json"]
    assert len(files) > 5
    assert [path.name for path in files if b"sample-a" in path.read_bytes()] == []
    assert str(tmp_path) not in card
    unmeasured = scorer_recipe(tmp_path, content, "data.validation=null", f"out={tmp_path / 'bare'}")
    train_scorer(unmeasured)
    assert "Not measured: the recipe holds no ratings out" in (tmp_path / "bare/README.md").read_text(encoding="utf-8")


# ---- several rubrics


@pytest.fixture
def two_rubrics(content, tmp_path):
    """The bundled ratings, and a survey of other dialogues in the same file."""
    rated = read_lines(SAMPLES / "rated_dialogues.jsonl")
    survey = [
        {"dialogue_id": one["id"], "rater": "seeker", "rubric": "esconv_survey", "dimension": name, "value": n % 5 + 1}
        for n, one in enumerate(rated[10:30])
        for name in ("empathy", "relevance")
    ]
    content["rubric"] = ["esc_eval", "esconv_survey"]
    content["data"]["ratings"] = str(
        write_lines(tmp_path / "all.jsonl", read_lines(SAMPLES / "ratings.jsonl") + survey)
    )
    content["data"] |= {"limit": 40, "validation": None}
    return content


def test_two_rubrics_share_a_model_and_keep_their_heads(two_rubrics, tmp_path):
    """Both have a dimension called empathy, of different scales."""
    recipe = scorer_recipe(tmp_path, two_rubrics)
    metrics = train_scorer(recipe)
    levels = metrics["data"]["train"]["per_level"]
    assert {"esc_eval.empathy", "esconv_survey.empathy"} <= set(levels)
    first, survey = Scorer.load(recipe.out), Scorer.load(recipe.out, rubric="esconv_survey")
    assert first.rubric.name == "esc_eval"
    assert survey.rubric == load_rubric("esconv_survey")
    assert survey.config.training_levels["empathy"] == levels["esconv_survey.empathy"]
    one, other = first.score(DIALOGUES[:2])[0], survey.score(DIALOGUES[:2])[0]
    assert (list(one), list(other)) == (first.rubric.names(), ["empathy", "relevance"])
    every = first.probabilities(DIALOGUES[:2])[0]
    assert every.shape == (9, 5)
    assert other["empathy"] == pytest.approx(every[7].tolist())
    assert one["empathy"] == pytest.approx(every[2].tolist())
    assert first.identity() != survey.identity()


def test_a_rating_of_one_rubric_moves_no_head_of_another(two_rubrics, tmp_path):
    trainer, _ = build_trainer(scorer_recipe(tmp_path, two_rubrics))
    labels = torch.full((1, 1, 9), -100)
    labels[0, 0, 8] = 3
    batch = trainer.data_collator(trainer.train_dataset[:1])
    batch |= {"labels": labels, "weights": (labels >= 0).float(), "raters": torch.tensor([[-1]])}
    trainer.model(**batch)["loss"].backward()
    moved = trainer.model.heads.score.weight.grad.abs().sum(1)
    assert moved[8] > 0
    assert not moved[:8].any()


def test_a_rubric_that_is_unknown_or_has_changed_is_refused_with_the_difference(two_rubrics, tmp_path):
    recipe = scorer_recipe(tmp_path, two_rubrics)
    train_scorer(recipe)
    with pytest.raises(UserError, match=r"was not trained on rubric 'epitome'; it knows: esc_eval, esconv_survey"):
        Scorer.load(recipe.out, rubric="epitome")
    changed = load_rubric("esc_eval").model_dump(mode="json")
    changed["version"] = 9
    changed["dimensions"][2]["anchors"]["3"]["en"] = "otherwise"
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(changed), encoding="utf-8")
    says = r"has changed since .* was trained: version \d -> 9; empathy has another anchor at 3; train again$"
    with pytest.raises(UserError, match=says):
        Scorer.load(recipe.out, rubric=str(file))
    config = Path(recipe.out) / CONFIG
    told = json.loads(config.read_text(encoding="utf-8"))
    told["rubrics"][0]["rubric"]["dimensions"][0]["question"]["en"] = "tampered with"
    config.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(UserError, match=r"^[^\n]*rubric esc_eval was changed since training[^\n]*$"):
        Scorer.load(recipe.out)


def test_a_folder_of_an_earlier_format_is_one_line(content, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / CONFIG).write_text('{"format": 1, "base": "x"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"is of format 1, this version reads 2; train it again"):
        Scorer.load(tmp_path / "old")


# ---- held-out figures


def test_the_best_checkpoint_is_told_by_kappa(content, tmp_path):
    """Exact figures of the saved model are those of its best evaluation, over all held-out ratings at once."""
    content["training"] |= {"max_steps": 9, "learning_rate": 3e-2, "per_device_eval_batch_size": 3}
    recipe = scorer_recipe(tmp_path, content, "training.load_best_model_at_end=true")
    assert recipe.training["metric_for_best_model"] == "eval_kappa"
    metrics = train_scorer(recipe)
    state = json.loads((Path(recipe.out) / "checkpoints/checkpoint-9/trainer_state.json").read_text(encoding="utf-8"))
    seen = {entry["step"]: entry for entry in state["log_history"] if "eval_kappa" in entry}
    assert metrics["best_step"] == max(seen, key=lambda step: (seen[step]["eval_kappa"], -step))
    held = read_records(recipe.data.validation[0], Dialogue)
    ratings, scorer = read_rating_set(recipe), Scorer.load(recipe.out)
    labels = np.array([ratings.labels(one.id)[1] for one in held], dtype=float)
    labels[labels < 0] = np.nan
    levels = (scorer.probabilities(held).cumsum(-1) < 0.5 - 1e-9).sum(-1).numpy().astype(float)
    best = seen[metrics["best_step"]]
    assert mean_kappa(levels, labels) == pytest.approx(best["eval_kappa"], abs=1e-6)
    found = scorer.probabilities(held)
    logs = [found[i, d, int(v)].log() for (i, _, d), v in np.ndenumerate(labels) if not np.isnan(v)]
    assert -float(torch.stack(logs).mean()) == pytest.approx(best["eval_loss"], abs=1e-4)


def test_patience_ends_a_run_that_gets_no_better(content, tmp_path):
    content["training"] |= {"max_steps": 60, "learning_rate": 1e-9}  # nothing changes
    metrics = train_scorer(scorer_recipe(tmp_path, content, "evaluation.patience=2"))
    assert metrics["stopped_early"]
    assert metrics["steps"] == 9  # three epochs of three steps: the first is the best


# ---- faults


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["scorer.frozen=true"], "scorer.frozen trains no adapter; leave the lora section out"),
        (["scorer.calibration=temperature", "data.validation=null"], "is fitted on held-out ratings"),
        (["evaluation.patience=2", "data.validation=null"], "evaluation.patience looks at held-out data"),
        (["data.split.test=0.2"], "data.split holds out a validation part, and data.validation names one"),
        (["data.split.test=0.9", "data.validation=null"], "validation and test together to be below 1"),
        (["scorer.rater_effects=true", "scorer.labels=soft"], "needs to know who rated"),
        (["scorer.folds=2", "data.validation=null"], "take 3 or more"),
        (["rubric=[esc_eval,esc_eval]"], "the same one is named twice"),
        (["data.dialogues=x.jsonl"], "train or dialogues, not both"),
        (["lora=null", "model.quantization=4bit"], "4-bit weights cannot be trained; add a lora section"),
        (["scorer.head=ordinal"], "scorer.head: found 'ordinal'"),
    ],
)
def test_contradictions_are_told_before_anything_is_loaded(content, tmp_path, overrides, says):
    with pytest.raises(UserError, match=says):
        scorer_recipe(tmp_path, content, *overrides)


def test_a_dimension_whose_ratings_are_all_equal_is_refused(content, tmp_path):
    alike = [
        {**one, "value": 3 if one["dimension"] == "empathy" else one["value"]}
        for one in read_lines(SAMPLES / "ratings.jsonl")
    ]
    content["data"]["ratings"] = str(write_lines(tmp_path / "alike.jsonl", alike))
    with pytest.raises(
        UserError, match=r"^[^\n]*all ratings of empathy are the same level, so there is nothing to learn"
    ):
        build_trainer(scorer_recipe(tmp_path, content))


def test_a_dimension_without_rating_in_the_validation_part_is_named(content, tmp_path):
    kept = {one["id"] for one in read_lines(tmp_path / "held.jsonl")}
    some = [
        r
        for r in read_lines(SAMPLES / "ratings.jsonl")
        if r["dimension"] != "tech" and not (r["dialogue_id"] in kept and r["dimension"] == "empathy")
    ]
    content["data"]["ratings"] = str(write_lines(tmp_path / "some.jsonl", some))
    with pytest.raises(UserError, match=r"no rating of empathy for the dialogues given of the validation part"):
        build_trainer(scorer_recipe(tmp_path, content))


def test_a_changed_rubric_stops_a_resume(content, tmp_path, monkeypatch):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(load_rubric("esc_eval").model_dump(mode="json")), encoding="utf-8")
    content["training"] |= {"max_steps": 2, "save_steps": 1, "save_strategy": "steps"}
    del content["data"]["validation"]
    recipe = scorer_recipe(tmp_path, {**content, "rubric": str(file)})
    train_scorer(recipe)
    (Path(recipe.out) / "metrics.json").unlink()
    file.write_text(file.read_text(encoding="utf-8").replace("version: 1", "version: 2"), encoding="utf-8")
    with pytest.raises(UserError, match=r"the run began with another content of .*mine\.yaml"):
        train_scorer(recipe, resume=True)
    # One that ships with the toolkit has no file of the user's.
    shipped = scorer_recipe(tmp_path, {**content, "out": str(tmp_path / "shipped")})
    train_scorer(shipped)
    (Path(shipped.out) / "metrics.json").unlink()
    newer = load_rubric("esc_eval").model_copy(update={"version": 99})
    monkeypatch.setattr("train.output.load_rubric", lambda name: newer)
    with pytest.raises(UserError, match=r"rubric esc_eval has changed since the run began; choose another `out`"):
        train_scorer(shipped, resume=True)


def test_a_misspelt_group_is_told_in_the_words_of_a_recipe(content, tmp_path):
    content["data"] |= {"validation": None, "split": {}, "group_by": ["meta.card_id"]}
    with pytest.raises(UserError, match=r"^data\.group_by: no dialogue has a value for 'meta\.card_id'"):
        build_trainer(scorer_recipe(tmp_path, content))
