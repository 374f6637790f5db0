"""Suites: shipped files are right, mistakes are one line, a real small suite runs, records a failure, and resumes."""

import json
from pathlib import Path

import pytest
import yaml
from test_report import saved_scorer  # noqa: F401
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from eval.reference import load_leaderboard
from eval.runs import load_run
from eval.suite import Suite, load_suite, plan_lines, run_suite, simulate_arguments

SHIPPED = Path("recipes/leaderboard")


def content(**changes):
    return {
        "name": "made",
        "out": "runs/made",
        "cards": "data_prep/samples/cards.jsonl",
        "seeker": "hf:seeker",
        "score": {"scorer": "rank"},
        "supporters": [{"name": "one", "model": "hf:one"}],
        **changes,
    }


def written(tmp_path, **changes):
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(content(**changes), allow_unicode=True), encoding="utf-8")
    return path


def test_the_shipped_suite_names_every_system_of_the_paper():
    suite = load_suite(SHIPPED / "esc_eval.yaml")
    names = [one.name for one in suite.supporters]
    assert set(load_leaderboard("en")) <= set(names)
    assert all(one.model or one.note for one in suite.supporters)
    budgets = {
        simulate_arguments(suite, one)[simulate_arguments(suite, one).index("--max-new-tokens") + 1]
        for one in suite.supporters
        if one.model
    }
    assert budgets == {"256"}, "equal for all"


def test_the_plan_of_the_small_suite_counts():
    lines = plan_lines(load_suite(SHIPPED / "small.yaml", ["limit=3", "samples=2"]))
    assert "3 cards × 2 samples × 2 supporters = 12 dialogues of 2 exchanges, 48 utterances" in lines[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampels": 2}, "unknown key 'sampels'; did you mean 'samples'?"),
        ({"supporters": [{"name": "x", "model": "hf:x", "promt": "p"}]}, "supporters.0.promt'; did you mean 'prompt'?"),
        ({"supporters": [{"name": "x"}]}, "needs a note that says why"),
        ({"supporters": []}, "supporters"),
        (
            {"supporters": [{"name": "a b", "model": "hf:x"}, {"name": "a/b", "model": "hf:y"}]},
            "two supporters have the name",
        ),
        ({"score": {}}, "either scorer or judge"),
        ({"score": {"scorer": "a", "judge": "b"}}, "either scorer or judge"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_mistakes_are_one_line_with_the_file(tmp_path, changes, says):
    with pytest.raises(UserError) as error:
        load_suite(written(tmp_path, **changes))
    assert says in str(error.value)
    assert str(error.value).count("\n") == 0
    assert "suite.yaml" in str(error.value)


def test_what_is_no_suite(tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text("- a\n", encoding="utf-8")
    with pytest.raises(UserError, match="is no suite"):
        load_suite(path)
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(UserError, match="not valid YAML"):
        load_suite(path)
    with pytest.raises(UserError, match="write KEY=VALUE"):
        load_suite(written(tmp_path), ["limit"])


def in_process(arguments):
    """A command in this process, with the exit code its own would have."""
    done = CliRunner().invoke(esckit.app, list(arguments))
    return 2 if isinstance(done.exception, UserError) else done.exit_code


def test_a_suite_runs_records_a_failure_and_goes_on(tmp_path, tiny_model, saved_scorer):  # noqa: F811
    suite = Suite.model_validate(
        content(
            out=str(tmp_path / "out"),
            seeker=f"hf:{tiny_model}",
            limit=2,
            language="en",
            rounds=1,
            max_new_tokens=6,
            score={"scorer": str(saved_scorer)},
            reference="en",
            supporters=[
                {"name": "EmoLLM", "model": f"hf:{tiny_model}"},
                {"name": "absent", "model": f"hf:{tmp_path / 'nowhere'}"},
                {"name": "二号", "model": f"hf:{tiny_model}", "prompt": "supporter_plain"},
                {"name": "withdrawn", "note": "no public weights"},
            ],
        )
    )
    commands, said = [], []

    def run(arguments):
        commands.append(arguments[0])
        return in_process(arguments)

    state = run_suite(suite, run, said.append)
    found = {name: one["state"] for name, one in state["supporters"].items()}
    assert found == {"EmoLLM": "scored", "absent": "failed", "二号": "scored", "withdrawn": "left out"}
    assert "esckit simulate ended with exit code 2" in state["supporters"]["absent"]["why"]
    assert commands == ["simulate", "audit", "score", "simulate", "simulate", "audit", "score", "report"]
    page = Path(state["report"]).read_text(encoding="utf-8")
    for part in ("EmoLLM", "二号", "Beside the published leaderboard"):
        assert part in page
    assert json.loads((tmp_path / "out" / "suite.json").read_text(encoding="utf-8"))["report"] == state["report"]
    before = [one.model_dump() for one in load_run(tmp_path / "out" / "EmoLLM").transcripts()]
    run_suite(suite, run, said.append)
    assert [one.model_dump() for one in load_run(tmp_path / "out" / "EmoLLM").transcripts()] == before


def test_the_command_plans(tmp_path):
    done = CliRunner().invoke(esckit.app, ["run", str(written(tmp_path)), "limit=2", "--plan"])
    assert done.exit_code == 0, done.output
    assert "2 cards × 1 samples × 1 supporters" in done.output
