"""Scoring a run folder: values, missing ones, resuming, and scorers that must not mix."""

import json

import pytest
from made_run import MadeScorer, make_run, make_transcript

from data_prep.errors import UserError
from eval.judge import ScorerJudge, from_probabilities, median_level, score_run, scorer_label
from eval.runs import EndReason, append_to_run, load_run


def score(folder, scorer, **settings):
    with append_to_run(folder) as run:
        return score_run(run, ScorerJudge(scorer), **settings)


@pytest.mark.parametrize(
    ("probabilities", "levels", "level"),
    [
        ((0.4, 0.0, 0.0, 0.3, 0.3), range(5), 3),
        ((0.5, 0.0, 0.0, 0.0, 0.5), range(5), 0),
        ((0.1, 0.2, 0.3, 0.4), range(1, 5), 3),
        ((0.0, 0.0, 1.0), range(3), 2),
        ((0.1,) * 5 + (0.5,), range(6), 4),
    ],
)
def test_level_is_the_median_of_the_distribution(probabilities, levels, level):
    assert median_level(probabilities, levels) == level


def test_expected_is_the_mean_level_on_the_dimensions_own_scale():
    scorer = MadeScorer(rubric="esconv_survey")
    found = dict.fromkeys(scorer.rubric.names(), (0.0, 0.0, 0.5, 0.25, 0.25))
    judgments = from_probabilities(make_transcript("a"), "s", scorer.rubric, found)
    assert [judgment.dimension for judgment in judgments] == scorer.rubric.names()
    assert judgments[0].expected == pytest.approx(3 * 0.5 + 4 * 0.25 + 5 * 0.25)
    assert judgments[0].level == 3


def test_every_dialogue_gets_every_dimension_once(tmp_path):
    folder, scorer, seen = make_run(tmp_path / "run", cards=5, samples=2), MadeScorer(), []
    summary = score(folder, scorer, batch_size=4, progress=seen.append)
    judgments = load_run(folder).judgments()
    assert len(judgments) == 10 * 7
    assert len({judgment.key for judgment in judgments}) == 70
    assert (summary.scored, summary.already, sum(summary.missing.values())) == (10, 0, 0)
    assert seen == [4, 4, 2]
    assert max(map(len, scorer.batches)) == 4


def test_a_second_call_does_nothing_twice(tmp_path):
    folder = make_run(tmp_path / "run")
    score(folder, MadeScorer())
    before = (folder / "judgments.jsonl").read_bytes()
    again = MadeScorer()
    summary = score(folder, again)
    assert again.batches == []
    assert summary.already == 8
    assert (folder / "judgments.jsonl").read_bytes() == before


def test_a_stopped_scoring_goes_on_where_it_was(tmp_path):
    folder = make_run(tmp_path / "run")

    class Stops(MadeScorer):
        def score(self, dialogues, batch_size=16, progress=None):
            if self.batches:
                raise KeyboardInterrupt
            return super().score(dialogues, batch_size)

    with pytest.raises(KeyboardInterrupt):
        score(folder, Stops(), batch_size=3)
    # A crash may also tear the last line; that dialogue's dimension is then judged anew.
    file = folder / "judgments.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    rest = MadeScorer()
    summary = score(folder, rest, batch_size=3)
    assert summary.already == 2
    assert sum(map(len, rest.batches)) == 6
    other = make_run(tmp_path / "other")
    score(other, MadeScorer(), batch_size=8)
    stopped = {j.key: j for j in load_run(folder).judgments()}
    assert stopped == {j.key: j for j in load_run(other).judgments()}
    assert len(stopped) == 56


@pytest.mark.parametrize("reason", [one for one in EndReason if one.is_fault])
def test_unfinished_dialogues_are_missing_with_their_reason(tmp_path, reason):
    transcripts = [make_transcript("a"), make_transcript("b", end_reason=reason)]
    folder, scorer = make_run(tmp_path / "run", transcripts=transcripts), MadeScorer()
    summary = score(folder, scorer)
    assert scorer.batches == [["a#0"]]
    assert list(summary.missing.values()) == [1]
    missing = [j for j in load_run(folder).judgments() if j.dialogue_key == "b#0"]
    assert len(missing) == 7
    assert all(j.expected is None and j.level is None and reason.value in j.reason for j in missing)
    assert score(folder, scorer).missing == summary.missing


def test_other_weights_and_other_rubrics_add_their_own(tmp_path):
    folder = make_run(tmp_path / "run", cards=2)
    scorers = [MadeScorer(), MadeScorer(weights="w2"), MadeScorer(rubric="esconv_survey")]
    labels = [score(folder, scorer).scorer for scorer in scorers]
    assert len(set(labels)) == 3
    run = load_run(folder)
    assert {j.scorer for j in run.judgments()} == set(labels) == set(run.scorers())
    assert run.scorers()[labels[1]]["identity"]["sha256"] == "w2"
    assert run.scorers()[labels[2]]["rubric"]["name"] == "esconv_survey"


def test_label_names_and_hashes_the_identity():
    one, same, other = MadeScorer(), MadeScorer(), MadeScorer(weights="w2")
    assert scorer_label(ScorerJudge(one)) == scorer_label(ScorerJudge(same)) != scorer_label(ScorerJudge(other))
    assert scorer_label(ScorerJudge(one)).startswith("made-rank@")


def test_scorer_sees_the_greeting_and_both_sides(tmp_path):
    folder, seen = make_run(tmp_path / "run", cards=1), []

    class Looks(MadeScorer):
        def score(self, dialogues, batch_size=16, progress=None):
            seen.extend(dialogues)
            return super().score(dialogues, batch_size)

    score(folder, Looks())
    assert [turn.speaker for turn in seen[0].turns] == ["supporter", "seeker", "supporter", "seeker", "supporter"]
    assert seen[0].turns[0].text == "Hello."


def test_run_without_dialogues_is_a_users_mistake(tmp_path):
    folder = make_run(tmp_path / "run", transcripts=[])
    with pytest.raises(UserError, match="no dialogue"):
        score(folder, MadeScorer())


def test_judgments_on_disk_are_plain_json_lines(tmp_path):
    folder = make_run(tmp_path / "run", cards=1)
    score(folder, MadeScorer())
    first = json.loads((folder / "judgments.jsonl").read_text().splitlines()[0])
    assert set(first) == {"dialogue_key", "scorer", "rubric", "dimension", "probabilities", "expected", "level"}
