"""The whole chain as a user runs it, each command in its own process, on made models; and mistakes in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "data_prep" / "samples"


def esckit(*arguments, cwd=None, code=0):
    """Runs the command line; asserts its exit code and that no traceback escaped."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "esckit", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def quickstart(tiny_model, tiny_encoder, tmp_path_factory):
    """A finished quickstart on made models."""
    out = tmp_path_factory.mktemp("chain") / "quick"
    done = esckit("quickstart", "--out", out, "--cards", 4, "--model", tiny_model, "--encoder", tiny_encoder)
    return out, done


def test_quickstart_ends_with_a_report(quickstart):
    out, done = quickstart
    page = (out / "report" / "report.html").read_text(encoding="utf-8")
    assert str(out / "report" / "report.html") in done.stdout
    for prompt in ("supporter_plain", "supporter"):
        lines = (out / prompt / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 4
        assert json.loads((out / prompt / "manifest.json").read_text(encoding="utf-8"))["settings"]
    assert "plain prompt" in page
    assert "supportive prompt" in page
    assert "not clinical judgments" in page
    assert "illustrative" in page


def test_quickstart_again_makes_nothing_twice(quickstart, tiny_model, tiny_encoder):
    out, _ = quickstart
    kept = [out / "esc_role/adapter_model.safetensors", out / "esc_rank/heads.safetensors"]
    kept += [
        out / prompt / name
        for prompt in ("supporter_plain", "supporter")
        for name in ("dialogues.jsonl", "judgments.jsonl")
    ]
    before = [(file.stat().st_mtime_ns, file.read_bytes()) for file in kept]
    esckit("quickstart", "--out", out, "--cards", 4, "--model", tiny_model, "--encoder", tiny_encoder)
    assert [(file.stat().st_mtime_ns, file.read_bytes()) for file in kept] == before


COMMANDS = [
    "quickstart",
    "doctor",
    "train",
    "ablate",
    "evaluate",
    "simulate",
    "audit",
    "score",
    "report",
    "compare",
    "run",
    "study-sample",
    "study-attach",
    "recipe-check",
    "recipe-schema",
    "model-export",
    "model-convert-internlm2",
    "chat",
    "model-fetch",
    "data-sources",
    "data-fetch",
    "data-convert",
    "data-clean",
    "data-split",
    "data-leaks",
    "data-doctor",
    "data-export",
    "data-build-role",
    "data-build-supporter",
    "data-build-rank",
    "cards-extract",
    "cards-filter",
    "cards-review-export",
    "cards-review-import",
    "cards-categorize",
    "cards-dedupe",
    "cards-stats",
    "ratings-import",
    "ratings-export",
    "ratings-assign",
    "ratings-aggregate",
    "ratings-agree",
    "runs-merge",
    "runs-export",
    "runs-import",
]


def commands_of(command, path=()):
    """(words, click command) of every command below one."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, sub in (below or {}).items():
        yield from commands_of(sub, (*path, name))


def test_help_names_every_command():
    listing = esckit("--help").stdout  # that it is quick follows from the next test but one
    for name in COMMANDS:
        assert re.search(rf"\b{name.split('-')[0]}\b", listing), name


def test_every_command_has_an_example_in_its_help():
    from typer.main import get_command
    from typer.testing import CliRunner

    import esckit as command_line

    found = {"-".join(words): words for words, _ in commands_of(get_command(command_line.app))}
    assert sorted(found) == sorted(COMMANDS)
    for words in found.values():
        shown = CliRunner().invoke(command_line.app, [*words, "--help"], env={"COLUMNS": "300"}).output
        assert f"Example: esckit {' '.join(words)}" in shown, words


def test_help_imports_nothing_heavy():
    heavy = ("torch", "transformers", "trl", "peft", "scipy", "sklearn")
    code = f"import sys, esckit; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- mistakes: one clear line, exit code 2


def one_line(done):
    lines = [line for line in done.stderr.splitlines() if line.strip() and "Loading weights" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: "), lines
    return lines[0]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


RECIPE = """kind: seeker
model:
  base: {base}
lora:
  r: 4
data:
  train: {train}
  max_length: {max_length}
training:
  {training}
out: {out}
"""


@pytest.fixture
def make_recipe(tmp_path, tiny_model):
    def make(train=SAMPLES / "dialogues.jsonl", training="max_steps: 1", max_length=1024, base=tiny_model):
        text = RECIPE.format(base=base, train=train, training=training, max_length=max_length, out=tmp_path / "out")
        return write(tmp_path / "recipe.yaml", text)

    return make


def dialogue_line(**changes):
    record = {
        "id": "d1",
        "language": "en",
        "source": "made",
        "turns": [{"speaker": "supporter", "text": "hello"}, {"speaker": "seeker", "text": "secret trouble"}],
        "card": {"id": "c1", "language": "en", "source": "made", "problem": "secret trouble"},
    }
    return json.dumps({**record, **changes}) + "\n"


def test_misspelt_recipe_key(make_recipe):
    line = one_line(esckit("train", make_recipe(training="learning_rte: 1e-4"), code=2))
    assert "recipe.yaml:10: unknown key 'learning_rte' in training; did you mean 'learning_rate'?" in line


def test_wrong_value_type(make_recipe):
    line = one_line(esckit("train", make_recipe(max_length="long"), code=2))
    assert "recipe.yaml:8: data.max_length: found 'long'" in line


def test_missing_file(make_recipe, tmp_path):
    line = one_line(esckit("train", make_recipe(train=tmp_path / "none.jsonl"), code=2))
    assert "recipe.yaml:7: data.train: file" in line
    assert "none.jsonl not found" in line


def test_broken_json_line(make_recipe, tmp_path):
    data = write(tmp_path / "d.jsonl", dialogue_line() + '{"id": "d2", \n')
    line = one_line(esckit("train", make_recipe(train=data), code=2))
    assert "d.jsonl:2: not valid JSON" in line


def test_dialogue_without_a_seeker_turn(make_recipe, tmp_path):
    data = write(tmp_path / "d.jsonl", dialogue_line(turns=[{"speaker": "supporter", "text": "hello"}]))
    line = one_line(esckit("train", make_recipe(train=data), code=2))
    assert "d.jsonl:1: dialogue 'd1' has no seeker turn" in line


def test_row_with_nothing_left_to_learn(make_recipe, tmp_path):
    data = write(tmp_path / "d.jsonl", dialogue_line())
    line = one_line(esckit("train", make_recipe(train=data, max_length=9), code=2))
    assert "d.jsonl:1: needs" in line
    assert "max_length is 9" in line
    assert "secret" not in line


def test_model_folder_that_is_none(make_recipe, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "without config.json" in one_line(esckit("train", make_recipe(base=folder), code=2))
    arguments = ("--cards", SAMPLES / "cards.jsonl", "--supporter", folder, "--out", tmp_path / "run")
    assert "without config.json" in one_line(esckit("simulate", "--seeker", folder, *arguments, code=2))


def test_unknown_rubric_and_rating_off_its_scale(tmp_path, tiny_encoder):
    data = write(tmp_path / "d.jsonl", dialogue_line())
    rating = {"dialogue_id": "d1", "rater": "a", "rubric": "esc_eval", "dimension": "fluency", "value": 7}
    ratings = write(tmp_path / "r.jsonl", json.dumps(rating) + "\n")
    overrides = (f"data.train={data}", f"data.ratings={ratings}", f"model.base={tiny_encoder}", f"out={tmp_path / 'o'}")
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart" / "esc_rank.yaml"
    line = one_line(esckit("train", recipe, *overrides, code=2))
    assert "r.jsonl:1: value 7 of fluency is off the scale 0..4" in line
    line = one_line(esckit("train", recipe, *overrides, "rubric=esc_evil", code=2))
    assert "unknown rubric 'esc_evil'; did you mean 'esc_eval'?" in line


def test_run_folder_made_with_other_settings(quickstart, tiny_model):
    out, _ = quickstart
    line = one_line(
        esckit(
            *("simulate", "--cards", SAMPLES / "cards.jsonl", "--language", "en", "--limit", 4),
            *("--seeker", f"hf:{tiny_model}+{out / 'esc_role'}", "--supporter", f"hf:{tiny_model}"),
            *("--supporter-name", f"{tiny_model.name}, supportive prompt"),
            *("--rounds", 2, "--max-new-tokens", 64, "--out", out / "supporter"),
            code=2,
        )
    )
    assert "rounds: 3 in the folder, 2 now" in line


def test_evaluate_both_kinds(quickstart, tiny_model, tmp_path):
    out, _ = quickstart
    found = json.loads(
        esckit(
            *("evaluate", f"hf:{tiny_model}+{out / 'esc_role'}", "--against", f"hf:{tiny_model}"),
            *("--on", SAMPLES / "dialogues.jsonl", "--limit", 3, "--json"),
        ).stdout
    )
    assert found["ratio"]["mean"] < 1  # it was trained on these
    found = json.loads(
        esckit(
            *("evaluate", out / "esc_rank", "--on", SAMPLES / "rated_dialogues.jsonl"),
            *("--ratings", SAMPLES / "ratings.jsonl", "--json"),
        ).stdout
    )
    lines = (SAMPLES / "ratings.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    halves = write(tmp_path / "a.jsonl", "".join(lines[::2])), write(tmp_path / "b.jsonl", "".join(lines[1::2]))
    both = json.loads(
        esckit(
            *("evaluate", out / "esc_rank", "--on", SAMPLES / "rated_dialogues.jsonl", "--json"),
            *("--ratings", halves[0], "--ratings", halves[1]),
        ).stdout
    )
    assert both == found  # several files of ratings are one set
    assert found["without_rating"] == 0
    assert list(dict.fromkeys(row["dimension"] for row in found["dimensions"]))[:2] == ["fluency", "expression"]
    assert all(row["predictors"]["constant"]["figures"]["kappa"]["mean"] in (0.0, None) for row in found["dimensions"])


def test_preview_shows_rows_and_trains_nothing(make_recipe, tmp_path):
    shown = esckit("train", make_recipe(), "--preview", 2).stdout
    assert "row 2" in shown
    assert "carries loss" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("data", "claen"), "No such command 'claen'. Did you mean 'clean'?"),
        (("train", "--outt", "x"), "No such option: --outt"),
        (("simulate", "--cards", "x"), "Missing option '--seeker'"),
        (("train", "r.yaml", "--preview", "0"), "--preview"),
    ],
)
def test_a_misspelt_command_line_is_one_line(arguments, says):
    line = one_line(esckit(*arguments, code=2))
    assert says in line
    assert " --help" in line


def test_evaluate_tells_a_missing_scorer_from_a_chat_model(tmp_path):
    ratings = ("--on", SAMPLES / "rated_dialogues.jsonl", "--ratings", SAMPLES / "ratings.jsonl")
    assert "none' is no folder" in one_line(esckit("evaluate", tmp_path / "none", *ratings, code=2))
    (tmp_path / "empty").mkdir()
    assert "config.json" in one_line(esckit("evaluate", tmp_path / "empty", *ratings, code=2))


def test_a_model_folder_that_is_missing_is_not_asked_of_the_hub(tmp_path):
    (tmp_path / "runs").mkdir()
    line = one_line(esckit("evaluate", "runs/none", "--on", SAMPLES / "dialogues.jsonl", cwd=tmp_path, code=2))
    assert "'runs/none' is no folder" in line


def test_a_full_accelerator_is_one_line_and_other_faults_stay_loud(monkeypatch, capsys):
    import torch

    import esckit

    def fail_with(error):
        def app(**_):
            raise error

        monkeypatch.setattr(esckit, "app", app)

    fail_with(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    with pytest.raises(SystemExit) as exit_:
        esckit.main()
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert error.count("\n") == 1
    assert "memory is full" in error
    fail_with(RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        esckit.main()
