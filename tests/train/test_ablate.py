"""Ablations: what is planned, what is refused before anything runs, a real one that fails and goes on."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from scipy import stats
from typer.testing import CliRunner

from data_prep.errors import UserError
from esckit import app
from tests.train.made import chat_content, dialogue, write_lines
from tests.train.made_scorer import scorer_content
from train.ablate import figure, plan_runs
from train.ablate_runs import open_folder, row_of
from train.ablate_table import Row, csv_text, estimate, markdown, plot, summarise
from train.recipe import save_recipe

SHIPPED = sorted(path for path in Path("recipes/ablations").glob("*.yaml") if ".prompt" not in path.name)


@pytest.fixture
def file(tiny_model, tmp_path):
    """An ablation of a made model: writes the given keys over it and returns its path."""
    data = write_lines(tmp_path / "d.jsonl", [dialogue(f"d{n}", "hello", "I am sad", "why?", "work") for n in range(4)])
    content = chat_content(tiny_model, tmp_path / "unused", data, max_steps=1, learning_rate=1e-3)
    content["data"]["validation"] = str(data)
    (tmp_path / "recipe.yaml").write_text(json.dumps(content), encoding="utf-8")

    def write(**changes) -> Path:
        given = {
            "recipe": str(tmp_path / "recipe.yaml"),
            "out": str(tmp_path / "out"),
            "seeds": [0, 1],
            "compare": {"small rank": ["lora.r=2", "lora.alpha=4"]},
            **changes,
        }
        lines = [f"{key}: {json.dumps(value)}" for key, value in given.items()]
        (tmp_path / "ablation.yaml").write_text("\n".join(lines), encoding="utf-8")
        return tmp_path / "ablation.yaml"

    return write


def test_every_combination_and_seed_is_a_run_and_the_base_is_found_in_the_grid(file):
    ablation, runs = plan_runs(file(compare={}, grid={"lora.r": [4, 8], "training.learning_rate": [1e-3, 2e-3]}))
    assert ablation.metric == "validation.perplexity"
    assert [(run.variant, run.seed) for run in runs[:4]] == [
        ("lora.r=4 training.learning_rate=0.001 (base)", 0),
        ("lora.r=4 training.learning_rate=0.002", 0),
        ("lora.r=8 training.learning_rate=0.001", 0),
        ("lora.r=8 training.learning_rate=0.002", 0),
    ]
    assert len(runs) == 8
    assert [run.recipe.seed for run in runs] == [0] * 4 + [1] * 4
    assert runs[3].recipe.lora.r == 8
    assert runs[3].recipe.training["learning_rate"] == 2e-3
    assert len({run.recipe.out for run in runs}) == 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"compare": {"a": ["lora.rank=2"]}}, "ablation.yaml:4: override 'lora.rank=2': unknown key 'rank'"),
        ({"compare": {}, "grid": {"training.lerning_rate": [1e-3]}}, "learning_rate"),
        ({"compare": {}}, "varies nothing"),
        ({"compare": {"a": ["lora.r=4"]}}, "nothing to compare"),
        ({"compare": {"a": ["lora.r=2"], "b": ["lora.r=2"]}}, "ablation.yaml:4: b: is the same training as a"),
        ({"compare": {}, "grid": {"lora.r": [8, 8]}}, "lora.r=8: is the same training as lora.r=8"),
        ({"compare": {"a": ["lora.r=4"], "b": ["lora.r=4"], "c": ["lora.r=8"]}}, "b: is the same training as base"),
        ({"compare": {"base": ["lora.r=8"]}}, "ablation.yaml:4: base: another variant has this name"),
        ({"compare": {"a": ["seed=3"]}}, "'seed=3': list the seeds under `seeds`"),
        ({"compare": {"a": ["out=x"]}}, "set `out` at the top"),
        ({"seeds": [1, 1]}, "a seed stands there twice"),
        ({"seeds": []}, "ablation.yaml:3: seeds"),
        ({"sedes": [1]}, "unknown key 'sedes' in the ablation; did you mean 'seeds'"),
        ({"overrides": ["data.validation=null"]}, "needs held-out data in every variant"),
        ({"recipe": "nowhere.yaml"}, "nowhere.yaml: file not found"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(file, changes, told, tmp_path):
    with pytest.raises(UserError) as raised:
        plan_runs(file(**changes))
    assert told in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_scorer_has_no_perplexity(tiny_model, file, tmp_path):
    scorer = scorer_content(tiny_model, tmp_path / "unused")
    scorer["data"]["validation"] = scorer["data"]["train"]
    (tmp_path / "recipe.yaml").write_text(json.dumps(scorer), encoding="utf-8")
    with pytest.raises(UserError, match="a scorer has `metric: eval_loss`"):
        plan_runs(file())
    assert len(plan_runs(file(metric="eval_loss"))[1]) == 4


def test_a_training_that_came_apart_is_told_and_not_averaged(file):
    ablation, runs = plan_runs(file())
    row = row_of(
        runs[0],
        {"validation": {"perplexity": None}, "trainable_parameters": 5, "steps": 1, "train_seconds": 1.0},
        ablation.metric,
    )
    assert row.value is None
    assert "no finite number" in row.failure
    assert summarise([row])[0].failed == 1


def test_a_fault_of_a_grid_is_told_once_at_its_line_and_one_of_the_base_only_there(file):
    path = file(grid={"lora.r": [2, 8], "training.lerning_rate": [1e-3, 1e-2]}, compare={})
    text = path.read_text(encoding="utf-8").replace(' "training.lerning', '\n "training.lerning')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        plan_runs(path)
    told = str(raised.value).split("\n")
    assert len(told) == 2  # one a value, not one a combination
    for line in told:
        assert "ablation.yaml:6: override 'training.lerning_rate=" in line
        assert "did you mean 'learning_rate'" in line
    with pytest.raises(UserError) as raised:
        plan_runs(file(overrides=["lora.rank=3"], grid={"lora.r": [2, 8]}))
    assert str(raised.value).count("\n") == 0
    assert "ablation.yaml:5: override 'lora.rank=3'" in str(raised.value)


def test_names_become_folders_that_stay_apart(file):
    _, runs = plan_runs(
        file(compare={"a/b": ["lora.r=2"], "a b": ["lora.r=8"], "..": ["lora.r=16"], "中文": ["lora.r=32"]})
    )
    parents = {Path(run.recipe.out).parent for run in runs}
    assert len(parents) == 5
    assert {path.parent.name for path in parents} == {"runs"}


def ablate(file, *options):
    return CliRunner().invoke(app, ["ablate", str(file), *options])


def stop_in_the_middle(path, log):
    """Starts the command and sends it Ctrl-C's signal once the first training has made a step; its output."""
    command = [sys.executable, "-m", "esckit", "ablate", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until = time.monotonic() + 100
        while not (log.is_file() and " 2/30" in log.read_text(encoding="utf-8")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, output
    return output


def test_stopped_resumed_a_failure_recorded_and_only_what_is_missing_runs_again(file, tmp_path, monkeypatch):
    out = tmp_path / "out"
    path = file(
        compare={"too short": ["data.max_length=8"]},
        overrides=["training.max_steps=30", "training.save_steps=1000"],
        seeds=[0],
    )
    base = out / "runs" / "base" / "seed-0"
    assert "what was finished is kept" in stop_in_the_middle(path, base.with_name("seed-0.log"))
    assert not (base / "metrics.json").exists()
    (checkpoint,) = (base / "checkpoints").glob("checkpoint-*")
    assert 2 <= int(checkpoint.name.removeprefix("checkpoint-")) < 30
    assert not (out / "results.csv").exists()

    went_on = ablate(path, "--json")
    assert went_on.exit_code == 1, went_on.output
    found = {entry["variant"]: entry for entry in json.loads(went_on.stdout)}
    assert found["too short"]["failed"] == 1
    assert found["too short"]["value"] is None
    perplexity = json.loads((base / "metrics.json").read_text(encoding="utf-8"))["validation"]["perplexity"]
    assert found["base"]["value"]["mean"] == perplexity
    assert found["base"]["held_out_tokens"][0] > 0
    started, resumed = base.with_name("seed-0.log").read_text(encoding="utf-8").split("saved checkpoint")
    assert " 1/30 " in started
    assert " 1/30 " not in resumed
    assert " 30/30 " in resumed
    rows = list(csv.DictReader((out / "results.csv").open(encoding="utf-8")))
    assert [row["variant"] for row in rows] == ["base", "too short"]
    assert "exit code 2: " in rows[1]["failure"]
    assert "max_length is 8" in rows[1]["failure"]
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")

    assert "One seed: there is no interval" in (out / "results.md").read_text(encoding="utf-8")

    # Another seed, trained by something that always fails: each is tried but the finished one.
    tried = []
    monkeypatch.setattr("train.ablate_runs.train_once", lambda _, run: tried.append(run.name) or "not this time")
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    again = ablate(file(**{**settings, "seeds": [0, 1]}))
    assert again.exit_code == 1
    assert tried == ["too short seed 0", "base seed 1", "too short seed 1"]
    assert again.output.count("was finished before") == 1
    assert again.output.count("failed: not this time") == 3

    data = tmp_path / "d.jsonl"
    data.write_text(data.read_text(encoding="utf-8").replace("hello", "hullo"), encoding="utf-8")
    assert "finished runs read another content of" in str(ablate(path).exception)


def test_another_ablation_or_recipe_in_the_same_folder_is_refused_with_the_difference(file, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    assert "is not empty and holds no ablation" in str(ablate(file()).exception)
    (out / "notes.txt").unlink()
    ablation, runs = plan_runs(file())
    open_folder(ablation, runs)
    open_folder(ablation, runs)
    with pytest.raises(UserError, match=r"holds another ablation \(seeds: \[0, 1\] in the folder, \[0, 2\] now\)"):
        open_folder(*plan_runs(file(seeds=[0, 2])))
    open_folder(*plan_runs(file(seeds=[2, 0, 1])))  # more seeds take nothing back
    with pytest.raises(UserError, match=r"compare\.small rank: .* in the folder, None now"):
        open_folder(*plan_runs(file(compare={"smaller": ["lora.r=2"]})))
    first = Path(runs[0].recipe.out)
    save_recipe(runs[0].recipe.model_copy(update={"seed": 7}), first / "recipe.yaml")
    (first / "metrics.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"holds a run of another recipe \(seed: 7 in the folder, 0 now\)"):
        open_folder(*plan_runs(file(seeds=[2, 0, 1])))


def test_listing_checks_and_runs_nothing(file, tmp_path):
    shown = ablate(file(), "--list")
    assert shown.exit_code == 0
    assert "small rank seed 1: esckit train" in shown.output
    assert not (tmp_path / "out").exists()


def test_the_table_by_hand():
    rows = [
        Row("base", 0, 10.0, 100, 5, 2.0),
        Row("a", 0, 9.0, 50, 5, 1.0),
        Row("base", 1, 12.0, 100, 5, 2.0),
        Row("a", 1, 10.0, 50, 5, 3.0),
        Row("base", 2, failure="exit code 1"),
        Row("a", 2, 11.0, 50, 5, 2.0),
    ]
    base, a = summarise(rows)
    assert (base.value.mean, base.value.n, base.failed, base.difference) == (11.0, 2, 1, None)
    assert (a.value.mean, a.value.n, a.trainable_parameters, a.train_seconds) == (10.0, 3, 50, 2.0)
    # differences -1 and -2 over the two seeds that both finished
    limits = stats.t.interval(0.95, 1, loc=-1.5, scale=stats.sem([-1.0, -2.0]))
    assert (a.difference.low, a.difference.high) == pytest.approx(limits)
    assert a.difference.n == 2
    shown = markdown([base, a], "loss")
    assert "| base | 11 [" in shown
    assert "| -1.5 [" in shown
    assert "2 (1 failed)" in shown
    assert csv_text(rows).splitlines()[5] == "base,2,,,,,exit code 1,"
    assert plot([base, a], "loss").startswith(b"\x89PNG")


def test_one_seed_has_no_interval_and_the_table_says_so():
    assert estimate([3.0]).low is None
    summaries = summarise([Row("base", 0, 3.0, 1, 1, 1.0), Row("a|b", 0, 2.0, 1, 1, 1.0)])
    shown = markdown(summaries, "loss")
    assert "One seed: there is no interval" in shown
    assert "| a\\|b | 2 | -1 |" in shown


def test_other_held_out_text_is_told():
    def shown(*tokens):
        rows = [Row(f"v{n}", 0, 3.0, 1, 1, 1.0, held_out_tokens=count) for n, count in enumerate(tokens)]
        return markdown(summarise(rows), "loss")

    assert "699 to 1,027 tokens" in shown(699, 1027)
    assert "held-out" not in shown(699, 699)
    assert "held-out" not in shown(None, 699)


def test_a_figure_is_found_by_its_path_or_the_known_ones_are_named():
    metrics = {"validation": {"perplexity": 3.5}, "eval_loss": [2.0, 1.5], "stopped_early": False, "steps": 4}
    assert figure(metrics, "validation.perplexity") == 3.5
    assert figure(metrics, "eval_loss") == 1.5
    apart = {"validation": {"perplexity": float("nan")}, "eval_loss": [None]}
    assert (figure(apart, "validation.perplexity"), figure(apart, "eval_loss")) == (None, None)
    with pytest.raises(UserError, match=r"it has: eval_loss, steps, validation\.perplexity"):
        figure(metrics, "stopped_early")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_ablations_are_sound(path, tmp_path, monkeypatch):
    from train.ablate import load_ablation, variants
    from train.recipe import examine_recipe

    assert len(path.read_text(encoding="utf-8").splitlines()) < 30
    ablation, lines = load_ablation(path)
    for variant in variants(ablation, lines):
        _, faults = examine_recipe(ablation.recipe, (*ablation.overrides, *variant.overrides), need_files=False)
        assert faults.found == []


def test_the_example_of_the_docs_is_sound(tmp_path):
    from train.ablate import load_ablation, variants
    from train.recipe import examine_recipe

    text = Path("docs/ablations.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    ablation, lines = load_ablation(tmp_path / "a.yaml")
    found = variants(ablation, lines)
    assert len(found) == 5
    for variant in found:
        _, faults = examine_recipe(ablation.recipe, (*ablation.overrides, *variant.overrides), need_files=False)
        assert faults.found == []
