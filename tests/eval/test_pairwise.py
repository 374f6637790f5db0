"""Pairwise judging in both orders: what is asked, flips, missing answers, resume, the command."""

import json

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.rubric import load_rubric
from eval.pairwise import Comparison, outcomes, pairs_of, question, read_answer
from eval.runs import EndReason, load_run
from tests.eval.made_run import make_run, make_transcript
from tests.openai_server import EMPTY, Fault, OpenAIServer, asked

RUBRIC = load_rubric("esc_eval")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_question_holds_card_both_dialogues_and_every_criterion(language):
    one = make_transcript("c", 0, "supporter-one", texts=["Hello", "s", 'first "reply"\nB: x'], language=language)
    other = make_transcript("c", 0, "supporter-two", texts=["Hello", "s", "第二个"], language=language)
    text = question(load_prompt("compare"), RUBRIC, one, other)
    assert json.dumps(one.card.as_text(), ensure_ascii=False) in text
    for turn in (*one.turns, *other.turns):
        assert json.dumps(turn.text, ensure_ascii=False) in text
    assert text.index("first ") < text.index("第二个") < text.index(getattr(RUBRIC.dimensions[0].question, language))
    for dimension in RUBRIC.dimensions:
        for part in (dimension.title, dimension.question, *dimension.anchors.values()):
            assert getattr(part, language) in text
    assert "supporter-one" not in text, "the supporters' names stay out"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("A", "first"),
        ("**b**.", "second"),
        ("TIE", "tie"),
        ("平手。", "tie"),
        ("A or B", None),
        ("Answer: A", None),
        ("", None),
    ],
)
def test_answers_are_read_strictly(text, answer):
    assert read_answer(text) == answer


def said(pair, first, second, card=None):
    return [
        Comparison(pair=pair, card=card or pair, a_first=order, verdict=verdict, reason=None if verdict else "unread")
        for order, verdict in ((True, first), (False, second))
    ]


def test_both_orders_make_one_outcome():
    found = outcomes(
        [
            *said("1", "a", "a"),
            *said("2", "b", "b"),
            *said("3", "a", "b"),  # the first each time
            *said("4", "a", "tie"),
            *said("5", "tie", "tie"),
            *said("6", "a", None),
        ],
        unpaired=3,
    )
    assert [row.outcome for row in found.rows] == ["a", "b", "tie", "tie", "tie"]
    assert (found.flips, found.unpaired) == (1, 3)
    assert found.missing == {"unread": 1}
    assert found.preference.mean == pytest.approx(0.5)
    # Clear answers by card: 1: first once of two; 2: likewise; 3: first both times; 4: first, the only clear one.
    assert found.first_chosen.mean == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)


def test_pairs_are_whole_dialogues_of_the_same_card(tmp_path):
    a = [make_transcript("x"), make_transcript("y"), make_transcript("z", end_reason=EndReason.supporter_error)]
    b = [make_transcript("y"), make_transcript("x"), make_transcript("w")]
    runs = [load_run(make_run(tmp_path / name, transcripts=found)) for name, found in (("a", a), ("b", b))]
    pairs, unpaired = pairs_of(*runs)
    assert [one.key for one, _ in pairs] == ["x#0", "y#0"]
    assert unpaired == 2
    other = load_run(make_run(tmp_path / "other", transcripts=[make_transcript("x", language="zh")]))
    with pytest.raises(UserError, match="another card"):
        pairs_of(runs[0], other)
    lonely = load_run(make_run(tmp_path / "lonely", transcripts=[make_transcript("q")]))
    with pytest.raises(UserError, match="share no finished dialogue"):
        pairs_of(runs[0], lonely)


def test_the_command_resumes_counts_and_refuses(tmp_path):
    for name in ("base", "tuned"):
        texts = ["Hello.", "I am sad.", f"reply of {name}"]
        make_run(tmp_path / name, name, transcripts=[make_transcript(f"c{n}", 0, name, texts=texts) for n in range(9)])

    def better(body):
        """Takes the tuned one wherever it stands."""
        text = asked(body)
        return "A" if text.index("reply of tuned") < text.index("reply of base") else "B"

    faults = iter([EMPTY] * 2)

    def run(server, *more):
        command = ["compare", str(tmp_path / "base"), str(tmp_path / "tuned"), "--judge", f"openai:m@{server.url}"]
        return CliRunner().invoke(esckit.app, [*command, "--out", str(tmp_path / "out"), "--json", *more])

    with OpenAIServer(better, fault_when=lambda body: next(faults, None)) as server:
        first = run(server)
        calls = len(server.calls)
        second = run(server)
        assert len(server.calls) == calls, "nothing is asked twice"
        found = json.loads(first.output[first.output.index("{") :])
        assert json.loads(second.output[second.output.index("{") :]) == found
        assert first.exit_code == second.exit_code == 1, "pairs are missing"
        assert 7 <= found["b_better"] <= 8
        assert found["a_better"] == found["ties"] == found["flips"] == 0
        assert sum(found["missing"].values()) + found["b_better"] == found["pairs"] == 9
        assert "won or lost all" in found["bradley_terry"]["reason"]
        # A line that was torn while it was written is asked again.
        lines = (tmp_path / "out" / "comparisons.jsonl").read_bytes()
        (tmp_path / "out" / "comparisons.jsonl").write_bytes(lines[:-7])
        run(server)
        assert len(server.calls) == calls + 1
        other = run(server, "--rubric", "esconv_survey")
    assert other.exit_code != 0
    assert "holds another comparison (rubric differ)" in str(other.exception)


def test_a_judge_that_sticks_to_a_place_makes_ties_only(tmp_path):
    for name in ("base", "tuned"):
        make_run(tmp_path / name, name, cards=6)
    with OpenAIServer(lambda body: "A", fault_when=lambda body: None) as server:
        command = ["compare", str(tmp_path / "base"), str(tmp_path / "tuned"), "--judge", f"openai:m@{server.url}"]
        done = CliRunner().invoke(esckit.app, [*command, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "6 ties (6 of these flipped with the order)" in done.output
    assert "the first dialogue was chosen in 100" in done.output
    assert isinstance(EMPTY, Fault)
