"""Human studies over runs, published scores, and the warning that scores hardly vary."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.records import Rating
from data_prep.rubric import load_rubric
from eval.judge import ScorerJudge, score_run
from eval.rated import RatingsJudge
from eval.report import build_report
from eval.report_pages import write_report
from eval.runs import append_to_run, load_run
from eval.score_spread import spread_warning
from eval.study import sample_dialogues
from tests.eval.made_run import MadeScorer, make_run, make_transcript

RUBRIC = load_rubric("esc_eval")
KEYS = [dimension.official_key for dimension in RUBRIC.dimensions]


def invoke(*arguments, code=0):
    done = CliRunner().invoke(esckit.app, [str(one) for one in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


# --- published scores


def official_files(tmp_path, levels):
    """Transcripts and scores in the official shape, written for this test."""
    lines = ["AI assistant：Hello.", "ESC-Role：I am tired.", "AI assistant：Tell me more."]
    transcripts, scores = tmp_path / "model_en.json", tmp_path / "scores.json"
    transcripts.write_text(json.dumps({str(n): lines for n in range(len(levels))}), encoding="utf-8")
    scores.write_text(
        json.dumps({str(n): dict.fromkeys(KEYS, level) for n, level in enumerate(levels)}), encoding="utf-8"
    )
    return transcripts, scores


def test_published_transcripts_and_scores_make_a_report_that_says_they_hardly_vary(tmp_path):
    transcripts, scores = official_files(tmp_path, [3, 3, 3, 3, 3, 2, 3, 3])
    run = tmp_path / "run"
    command = [
        "runs",
        "import",
        transcripts,
        "--from",
        "official",
        "--language",
        "en",
        "--supporter",
        "m",
        "--out",
        run,
    ]
    assert "56 scores of 8 dialogues kept as published" in invoke(*command, "--scores", scores)
    invoke(*command, "--scores", scores)
    assert len(load_run(run).judgments()) == 56, "the same import again adds nothing"
    text = invoke("report", run, "--out", tmp_path / "report")
    assert "hardly vary" in text
    assert "ACC 87.5% and ACC_soft 100.0%" in text
    assert "beat no constant predictor" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_scores_of_other_dialogues_are_refused(tmp_path):
    transcripts, _ = official_files(tmp_path, [3, 3])
    (tmp_path / "other").mkdir()
    _, scores = official_files(tmp_path / "other", [3, 3, 3])
    command = ["runs", "import", str(transcripts), "--from", "official", "--language", "en", "--supporter", "m"]
    done = CliRunner().invoke(esckit.app, [*command, "--out", str(tmp_path / "run"), "--scores", str(scores)])
    assert isinstance(done.exception, UserError)
    assert "has scores of 3 dialogues, the transcripts are 2" in str(done.exception)


def test_the_twelve_published_examples(tmp_path, real_data):
    runs = []
    for model in ("llama3", "Qwen_7B"):
        for language in ("en", "zh"):
            folder = real_data / "esceval"
            name, out = f"{model}_{language}.json", tmp_path / f"{model}_{language}"
            command = ["runs", "import", folder / "result" / name, "--from", "official", "--language", language]
            command += ["--supporter", model, "--cards", folder / f"test_{language}.json", "--out", out]
            invoke(*command, "--scores", folder / "score" / name)
            runs.append(out)
    text = invoke("report", *runs, "--force", "--out", tmp_path / "report")
    judgments = [one for run in runs for one in load_run(run).judgments()]
    counts = json.loads(Path("tests/eval/expected_examples.json").read_text(encoding="utf-8"))
    found = {}
    for one in judgments:
        found.setdefault(one.dimension, {}).setdefault(str(one.level), 0)
        found[one.dimension][str(one.level)] += 1
    assert found == counts
    # 11 + 12 × 4 + 9 + 12 of 84 are the commonest level.
    assert "5 of 7 dimensions have one level only" in text
    assert f"ACC {80 / 84:.1%}" in text
    assert "beat no constant predictor" in text


def test_scores_that_vary_are_not_warned_of():
    def judged(levels):
        ratings = [
            Rating(dialogue_id=f"{n}#0", rater="r", rubric="esc_eval", dimension=name, value=float(level))
            for n, level in enumerate(levels)
            for name in RUBRIC.names()
        ]
        judge = RatingsJudge("r", RUBRIC, ratings)
        found = judge.judge([make_transcript(str(n)) for n in range(len(levels))], 8)
        return [one for batch in found for one in batch]

    assert spread_warning("x", judged([0, 1, 2, 3, 4, 3]), RUBRIC.names()) is None
    assert "7 of 7 dimensions have one level only" in spread_warning("x", judged([2] * 6), RUBRIC.names())
    assert spread_warning("x", judged([2] * 3), RUBRIC.names()) is None, "three may be alike by chance"
    assert spread_warning("x", [], RUBRIC.names()) is None


# --- people


def rated_runs(tmp_path):
    folders = []
    for name in ("base", "tuned"):
        transcripts = [make_transcript(f"c{n}", 0, name, texts=["Hi.", "Sad.", f"I hear you, {n}."]) for n in range(12)]
        folders.append(make_run(tmp_path / name, name, transcripts=transcripts))
        with append_to_run(folders[-1]) as run:
            score_run(run, ScorerJudge(MadeScorer(better=("tuned",))))
    return folders


def fill(sheet, level_of):
    """Fills a CSV sheet as a rater would."""
    with open(sheet, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    columns = [
        place for place, name in enumerate(rows[0]) if any(name.startswith(d.title.en) for d in RUBRIC.dimensions)
    ]
    assert len(columns) == 7
    for row in rows[1:]:
        for place in columns:
            row[place] = str(level_of(row))
    with open(sheet, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def test_a_study_from_sheets_to_agreement_in_the_report(tmp_path):
    folders = rated_runs(tmp_path)
    out = tmp_path / "study"
    told = invoke("study", "sample", *folders, "--cards", 5, "--raters", "ann,bob", "--format", "csv", "--out", out)
    assert "10 dialogues, 5 cards × 2 runs" in told
    sheets = sorted((out / "annotation" / "sheets").glob("*.csv"))
    assert len(sheets) == 2
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8-sig")
        assert "tuned" not in text
        assert "base" not in text
        fill(sheet, lambda row: 1 + int("".join(row).count("3")) % 3)
    ratings = tmp_path / "ratings.jsonl"
    invoke("ratings", "import", *sheets, "--key", out / "annotation" / "key.json", "--out", ratings)
    told = invoke("study", "attach", *folders, "--ratings", ratings)
    assert told.count("ratings of 5 dialogues attached as people") == 2
    report = build_report([load_run(folder) for folder in folders])
    assert next(iter(report.scorers)).startswith("made-rank@"), "the judge, not the people"
    assert [one.dimension for one in report.agreement] == RUBRIC.names()
    assert {one.dialogues for one in report.agreement} == {10}
    assert all(one.constant["kappa"].mean in (0, None) for one in report.agreement)
    files = {path.name: path.read_text(encoding="utf-8") for path in write_report(report, tmp_path / "out")}
    for name in ("report.html", "report.md"):
        assert "Judge and people" in files[name]
    # People can be reported themselves; what nobody rated is missing, not a number.
    people = build_report([load_run(folder) for folder in folders], scorer="people")
    assert people.entries[0].missing["nobody rated it"] == 7
    assert people.agreement == []


def test_ratings_of_other_runs_are_not_lost_silently(tmp_path):
    folders = rated_runs(tmp_path)
    ratings = tmp_path / "ratings.jsonl"
    line = {"dialogue_id": "elsewhere::c1#0", "rater": "a", "rubric": "esc_eval", "dimension": "empathy", "value": 3}
    ratings.write_text(json.dumps(line) + "\n", encoding="utf-8")
    done = CliRunner().invoke(esckit.app, ["study", "attach", str(folders[0]), "--ratings", str(ratings)])
    assert "no rating is of any of these runs" in str(done.exception)
    known = {**line, "dialogue_id": "base::c1#0"}
    ratings.write_text(json.dumps(line) + "\n" + json.dumps(known) + "\n", encoding="utf-8")
    assert "1 of 2 ratings are of none of these runs" in invoke(
        "study", "attach", folders[0], "--ratings", ratings, code=1
    )


def test_sampling_pairs_cards_and_says_when_too_few(tmp_path):
    runs = [load_run(folder) for folder in rated_runs(tmp_path)]
    found = sample_dialogues(runs, 4, seed=1)
    cards = [{one.card.id for one in found if one.id.startswith(name)} for name in ("base::", "tuned::")]
    assert cards[0] == cards[1]
    assert len(cards[0]) == 4
    assert [one.id for one in found] == [one.id for one in sample_dialogues(runs, 4, seed=1)]
    assert [one.id for one in found] != [one.id for one in sample_dialogues(runs, 4, seed=2)]
    with pytest.raises(UserError, match="only 12 cards"):
        sample_dialogues(runs, 13)
    with pytest.raises(UserError, match="two runs are called"):
        sample_dialogues([runs[0], runs[0]], 2)
