"""`esckit evaluate JUDGE`: a trained scorer, a model that is asked for the number; with --probe; and mistakes."""

import json

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.records import Dialogue, read_records
from data_prep.rubric import load_rubric
from eval.judge_input import LINES
from eval.judge_variants import VARIANTS
from eval.run_records import EndReason
from tests.data_prep.test_official_prompt import script
from tests.eval.made_run import make_run, make_transcript
from tests.train.made import SAMPLES, read_lines, write_lines
from tests.train.made_scorer import scorer_content, scorer_recipe
from train.rank import train_scorer
from train.scorer import Scorer

RATED, RATINGS = SAMPLES / "rated_dialogues.jsonl", SAMPLES / "ratings.jsonl"
COMMON = ("--on", RATED, "--ratings", RATINGS, "--limit", 8, "--group-by", "text")
CHECKS = ["retest", "order_flips", "length", *VARIANTS, "rubric_order", "wording", "language", "comparison"]


def evaluate(*arguments, code=0):
    done = CliRunner().invoke(esckit.app, ["evaluate", *map(str, arguments)], env={"COLUMNS": "220"})
    if isinstance(done.exception, UserError):
        assert code == 2, done.exception
        return str(done.exception)
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture(scope="module")
def scorer(tmp_path_factory, tiny_encoder):
    folder = tmp_path_factory.mktemp("scorer")
    content = scorer_content(tiny_encoder, folder / "rank", max_steps=2)
    train_scorer(scorer_recipe(folder, content))
    return folder / "rank"


def test_a_trained_scorer_is_measured_as_it_scores_and_probed(scorer, tmp_path):
    found = evaluate(scorer, *COMMON, "--probe", "--out", tmp_path / "out", "--json")
    scores = Scorer.load(str(scorer)).score(read_records(RATED, Dialogue)[:8])
    kept = {
        (one["dialogue_key"].partition("@")[0], one["dimension"]): one for one in read_lines(tmp_path / "out" / LINES)
    }
    for dialogue, given in zip(read_records(RATED, Dialogue)[:8], scores, strict=True):
        for name, probabilities in given.items():
            assert kept[dialogue.id, name]["probabilities"] == pytest.approx(probabilities, abs=1e-5)
    checks = {check["name"]: check for check in found["checks"]}
    assert list(checks) == CHECKS
    for row in checks["retest"]["rows"]:
        assert row["figures"]["absolute"]["mean"] < 1e-5
    assert "reads the dialogue alone" in checks["wording"]["reason"]
    assert [row["dialogues"] for row in checks["padded"]["rows"]] == [8] * 7
    page = (tmp_path / "out" / "agreement.md").read_text(encoding="utf-8")
    assert "### Padded" in page
    assert "Wording: not made" in page
    before = (tmp_path / "out" / LINES).read_bytes()
    assert evaluate(scorer, *COMMON, "--probe", "--out", tmp_path / "out", "--json")["checks"] == found["checks"]
    assert (tmp_path / "out" / LINES).read_bytes() == before
    shown = evaluate(scorer, *COMMON, "--probe")
    assert "Supporters compared" in shown
    assert "beat the constant" in shown


def test_a_model_that_is_asked_is_measured_and_probed_in_other_words(tiny_model):
    found = evaluate(tiny_model, *COMMON, "--limit", 3, "--min-mass", 0, "--probe", "--json")
    assert found["scorer"]["kind"] == "generative"
    assert found["missing"] == {}
    assert {part["dimension"] for part in found["dimensions"]} == set(load_rubric("esc_eval").names())
    assert all(part["predictors"]["scorer"]["figures"]["ece"]["mean"] is not None for part in found["dimensions"])
    checks = {check["name"]: check for check in found["checks"]}
    for name in ("rubric_order", "wording", "language"):
        assert checks[name]["reason"] is None
        # Other words change the logits of random weights, if only a little.
        assert any(row["figures"]["absolute"]["mean"] > 0 for row in checks[name]["rows"])
    assert all(row["figures"]["absolute"]["mean"] < 1e-4 for row in checks["retest"]["rows"])


def test_judgments_that_cannot_be_read_are_missing_not_numbers(tiny_model):
    found = evaluate(tiny_model, *COMMON, "--limit", 2, "--reading", "generate", "--json")
    assert found["missing"] == {"no level could be read from the reply": 14}
    assert found["unscored"] == 2
    for part in found["dimensions"]:
        scorer = part["predictors"]["scorer"]
        assert scorer["ratings"] == 0
        assert scorer["figures"]["kappa"]["mean"] is None
    shown = evaluate(tiny_model, *COMMON, "--limit", 2, "--reading", "generate")
    assert "14 judgments are missing: no level could be read from the reply" in shown


def test_dialogues_of_a_run_are_judged_and_unfinished_ones_are_not(scorer, tmp_path):
    made = [
        make_transcript(f"c{n}", texts=["Hello.", "I cannot sleep.", "That sounds hard. " * n]) for n in range(1, 7)
    ]
    made.append(make_transcript("c9", end_reason=EndReason.supporter_error))
    run = make_run(tmp_path / "run", transcripts=made)
    rated = [
        {"dialogue_id": f"c{n}#0", "rater": "a", "rubric": "esc_eval", "dimension": name, "value": n % 5}
        for n in range(1, 10)
        for name in load_rubric("esc_eval").names()
    ]
    ratings = write_lines(tmp_path / "r.jsonl", rated)
    found = evaluate(scorer, "--on", run, "--ratings", ratings, "--group-by", "card", "--json")
    assert (found["dialogues"], found["ratings_elsewhere"]) == (6, 3)
    assert "is no run folder" in evaluate(scorer, "--on", tmp_path, "--ratings", ratings, code=2)


def test_the_official_words_are_fixed(tiny_model, tmp_path):
    (tmp_path / "score.py").write_text(script(tmp_path / "ran"), encoding="utf-8")
    found = evaluate(tiny_model, *COMMON, "--limit", 1, "--min-mass", 0, "--official", tmp_path, "--probe", "--json")
    assert found["scorer"]["prompt"]["name"] == "official"
    checks = {check["name"]: check for check in found["checks"]}
    assert "fixed words" in checks["language"]["reason"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--side", "seeker"], "--side is for a chat model"),
        (["--official", "x"], "--official is for a chat model"),
        (["--level", "mean"], "expected median or mode"),
        (["--rubric", "esconv_survey"], "esconv_survey"),
    ],
)
def test_mistakes_with_a_scorer_are_one_line(scorer, more, says):
    assert says in evaluate(scorer, *COMMON, *more, code=2)


def test_mistakes_with_a_model_that_is_asked_are_one_line(tiny_model, tmp_path):
    assert "--ratings is missing" in evaluate(tiny_model, "--on", RATED, "--probe", code=2)
    assert "--vectors is for a seeker or supporter" in evaluate(tiny_model, *COMMON, "--vectors", "v.txt", code=2)
    assert "holds no adapter folder" in evaluate(tiny_model, *COMMON, "--adapters", tmp_path, code=2)
    assert "expected labels or generate" in evaluate(tiny_model, *COMMON, "--reading", "guess", code=2)
