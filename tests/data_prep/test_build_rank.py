"""Scorer sets: one row a dialogue, every rater kept, and nothing decided that the raters did not."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build import Split
from data_prep.build_rank import build_rank
from data_prep.errors import UserError
from data_prep.records import Rating
from data_prep.rubric import load_rubric
from tests.data_prep.made_dialogues import DIALOGUES, dialogue, located

RUBRIC = load_rubric("esconv_survey")


def rating(dialogue_id, value, rater="a", dimension="empathy", **changes):
    given = {"rubric": RUBRIC.name, "reason": None, **changes}
    return Rating(dialogue_id=dialogue_id, rater=rater, dimension=dimension, value=value, **given)


def rank(dialogues, ratings, split=Split()):
    places = [(f"r.jsonl:{number}", made) for number, made in enumerate(ratings, start=1)]
    return build_rank(located(*dialogues), places, RUBRIC, split)


def test_one_row_has_all_dimensions_and_every_rater():
    ratings = [rating("d1", 3, "b"), rating("d1", 5), rating("d1", 2, dimension="relevance"), rating("d1", None, "c")]
    (part,), tally = rank([dialogue("d1")], ratings)
    assert part.rows[0].ratings == {"empathy": {"a": 5, "b": 3, "c": None}, "relevance": {"a": 2}}
    assert [(r.dimension, r.rater) for r in part.ratings] == [
        ("empathy", "a"),
        ("empathy", "b"),
        ("empathy", "c"),
        ("relevance", "a"),
    ]
    assert tally.figures == {
        "dialogues with 2 raters": 1,
        "raters": 3,
        "values of empathy": 2,
        "values of relevance": 1,
    }
    assert tally.missing["rating without a value: kept as null"] == 1


def test_a_dimension_that_nobody_rated_is_there_and_empty():
    (part,), tally = rank([dialogue("d1")], [rating("d1", 3)])
    assert part.rows[0].ratings == {"empathy": {"a": 3}, "relevance": {}}
    assert tally.missing["dimension relevance that nobody rated"] == 1


def test_dialogues_and_ratings_without_the_other_are_counted():
    dialogues = [dialogue(name) for name in ("d1", "d2", "d3")]
    ratings = [rating("d1", 3), rating("d3", None), rating("x", 1), rating("x", 2, "b"), rating("y", 2)]
    (part,), tally = rank(dialogues, ratings)
    assert [row.id for row in part.rows] == ["d1"]
    assert not tally.refused
    assert +tally.missing == {
        "dialogue without a rating: left out": 1,
        "dialogue whose ratings have no value: left out": 1,
        "rated dialogue that is in no dialogue file": 2,
        "rating of a dialogue that is in no dialogue file": 3,
        "dimension relevance that nobody rated": 1,
    }
    with pytest.raises(UserError, match="none in common"):
        rank(dialogues, [rating("x", 1)])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (rating("d1", 6), "value 6 of empathy is off the scale 1..5 (whole levels)"),
        (rating("d1", 2.5), "value 2.5 of empathy is off the scale 1..5 (whole levels)"),
        (rating("d1", 2, dimension="x"), "dimension 'x' is not in rubric esconv_survey; it has: empathy, relevance"),
        (rating("d1", 2, rubric="esc_eval"), "rating is for rubric 'esc_eval', expected 'esconv_survey'"),
    ],
)
def test_a_rating_off_the_scale_is_refused_by_line_and_the_rest_kept(bad, reason):
    (part,), tally = rank([dialogue("d1")], [rating("d1", 4, "b"), bad])
    assert part.rows[0].ratings["empathy"] == {"b": 4}
    assert [str(refusal) for refusal in tally.refused] == [f"r.jsonl:2: {reason}"]


def test_two_values_of_one_rater_refuse_both_and_a_repetition_is_taken_once():
    ratings = [rating("d1", 4), rating("d1", 2, "b"), rating("d1", 3), rating("d1", 2, "b")]
    (part,), tally = rank([dialogue("d1")], ratings)
    assert part.rows[0].ratings["empathy"] == {"b": 2}
    assert [str(refusal) for refusal in tally.refused] == [
        "r.jsonl:1: the same rater gives another value at r.jsonl:3",
        "r.jsonl:3: the same rater gives another value at r.jsonl:1",
    ]
    assert tally.repairs["rating that occurs twice taken once"] == 1


def test_a_file_given_twice_changes_nothing():
    located = [("r.jsonl:1", rating("d1", None, reason="b")), ("r.jsonl:2", rating("d1", None, reason="a"))]
    located += [("r.jsonl:3", rating("d1", 3, "b"))]
    for order in (located * 2, located[::-1]):
        (part,), tally = build_rank([("d.jsonl:1", dialogue("d1"))], order, RUBRIC, Split())
        assert [(r.value, r.reason) for r in part.ratings] == [(None, "a"), (3, None)]
        assert not tally.refused


def test_ratings_go_with_their_dialogue():
    dialogues = [dialogue(f"d{number}") for number in range(10)]
    ratings = [rating(made.id, 1 + number % 5, rater) for number, made in enumerate(dialogues) for rater in "ab"]
    parts, _ = rank(dialogues, ratings, Split({"train": 0.7, "test": 0.3}, 2, near=None))
    assert [len(part.rows) for part in parts] == [7, 3]
    for part in parts:
        assert {r.dialogue_id for r in part.ratings} == {made.id for made in part.dialogues}
        assert len(part.ratings) == 2 * len(part.rows)
    assert rank(dialogues[::-1], ratings[::-1], Split({"train": 0.7, "test": 0.3}, 2, near=None))[0] == parts


RATING = st.builds(
    rating,
    st.sampled_from(("d1", "d2", "x")),
    st.none() | st.integers(0, 6) | st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(("a", "b")),
    st.sampled_from(("empathy", "relevance", "x")),
)


@settings(max_examples=200, deadline=None)
@given(DIALOGUES, st.lists(RATING, max_size=12))
def test_every_value_is_kept_refused_or_counted(dialogues, ratings):
    dialogues = [d.model_copy(update={"id": f"d{n}"}) for n, d in enumerate(dialogues, start=1)]
    try:
        (part,), tally = rank(dialogues, ratings)
    except UserError:
        return
    kept = Counter((r.dialogue_id, r.rater, r.dimension, r.value) for r in part.ratings)
    assert set(kept.values()) == {1}
    assert not kept - Counter((r.dialogue_id, r.rater, r.dimension, r.value) for r in ratings)
    left = {row.id for row in part.rows}
    lost = tally.repairs["rating that occurs twice taken once"] + len(tally.refused)
    assert len(ratings) >= len(part.ratings) + lost
    inside = [row.ratings[dimension] for row in part.rows for dimension in RUBRIC.names()]
    assert sum(map(len, inside)) == len(part.ratings)
    assert all(any(v is not None for values in row.ratings.values() for v in values.values()) for row in part.rows)
    assert len(left) + sum(count for name, count in tally.missing.items() if name.endswith(": left out")) == len(
        dialogues
    )


def test_ratings_for_another_rubric_are_one_error_not_one_a_line():
    other = RUBRIC.model_copy(update={"name": "other"})
    ratings = [("r.jsonl:1", rating("d1", 3))]
    with pytest.raises(UserError, match=r"are for rubric esconv_survey, not other; give it with --rubric"):
        build_rank([("d.jsonl:1", dialogue("d1"))], ratings, other, Split())
