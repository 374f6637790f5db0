import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import get_source
from tests.data_prep.chaos import SECRET, anything, balanced, convert_anything, nearly, some_of, texts, write


def post(**changes):
    return {
        "id": "abc1",
        "title": "Cannot sleep",
        "selftext": f"{SECRET}\n",
        "subreddit": "sleep",
        "author": "u/me",
    } | changes


def read(tmp_path, records):
    return get_source("mhp").read(write(tmp_path / "posts.txt", records))


@pytest.mark.parametrize("name", ["selftext", "body", "post", "text"])
def test_a_post_is_one_turn_of_the_seeker(tmp_path, name):
    record = post()
    record[name] = record.pop("selftext")
    (dialogue,) = read(tmp_path, [record]).dialogues
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [("seeker", f"Cannot sleep\n\n{SECRET}\n")]
    assert (dialogue.id, dialogue.source) == ("abc1", "mhp")
    assert dialogue.meta == {"title": "Cannot sleep", "subreddit": "sleep"}
    assert "u/me" not in dialogue.model_dump_json()


def test_comments_are_kept_beside_and_deleted_ones_dropped(tmp_path):
    record = post(comments=["Hold on.", {"body": "[deleted]"}, {"text": "Me too."}, " "])
    conversion = read(tmp_path, [record, post(id="b", comments=12)])
    assert conversion.dialogues[0].meta["comments"] == ["Hold on.", "Me too."]
    assert len(conversion.dialogues[0].turns) == 1
    assert conversion.repairs == {"deleted, removed or empty comment dropped": 2}


@pytest.mark.parametrize(
    "gone", ["[deleted]", "[removed]", " [Removed] ", "[deleted by user]", "[ Removed by Reddit ]"]
)
def test_deleted_and_removed_posts_are_refused_and_counted(tmp_path, gone):
    conversion = read(tmp_path, [post(selftext=gone), post(id="b"), post(id="c", title=gone)])
    assert [dialogue.id for dialogue in conversion.dialogues] == ["b"]
    assert [(r.where[-2:], r.reason) for r in conversion.refused] == [
        (":1", "the post was deleted or removed"),
        (":3", "the post was deleted or removed"),
    ]
    assert balanced(conversion)


def test_a_title_alone_is_a_post_and_counted(tmp_path):
    conversion = read(tmp_path, [post(selftext=""), post(id="b", title=None)])
    assert [dialogue.turns[0].text for dialogue in conversion.dialogues] == ["Cannot sleep", f"{SECRET}\n"]
    assert conversion.missing == {"text, the title stands alone": 1, "title": 1}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (post(title=" ", selftext=""), "the post is empty"),
        (post(body="x"), "has its text in 2 fields (selftext, body)"),
        ({"id": "x"}, "has neither a title nor one of"),
        (post(title=[SECRET]), "`title` is not a text"),
        (post(comments=SECRET), "`comments` is not a list"),
        (post(comments=[3]), "comment 1: has no text"),
        (post(id="first"), "id 'first' is already used"),
    ],
)
def test_other_posts_are_refused(tmp_path, bad, says):
    conversion = read(tmp_path, [post(id="first"), bad])
    (refusal,) = conversion.refused
    assert says in refusal.reason
    assert SECRET not in str(refusal)


def test_csv_dumps_are_told_by_content(tmp_path):
    path = tmp_path / "posts.json"
    with open(path, "w", newline="", encoding="utf-8-sig") as stream:
        rows = csv.writer(stream)
        rows.writerow(["author", "body", "id", "num_comments", "title", "comments"])
        rows.writerow(["u/me", f'{SECRET},\n"yes"', "a1", "3", "Help", "many"])
        rows.writerow(["u/me", "[removed]", "a2", "0", "Help", ""])
        rows.writerow(["short"])
    conversion = get_source("mhp").read(path)
    assert [(d.id, d.turns[0].text) for d in conversion.dialogues] == [("a1", f'Help\n\n{SECRET},\n"yes"')]
    assert [refusal.where for refusal in conversion.refused] == [f"{path}:4", f"{path}:5"]
    assert balanced(conversion)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UserError, match="has no column title, selftext"):
        get_source("mhp").read(path)


raw_records = some_of(
    {
        "id": texts,
        "title": texts,
        "selftext": texts | st.just("[removed]"),
        "subreddit": texts,
        "comments": st.lists(texts | some_of({"body": texts}) | anything, max_size=3),
    }
)


@settings(max_examples=150, deadline=None)
@given(records=st.lists(nearly(raw_records), max_size=4), as_lines=st.booleans())
def test_whatever_comes_is_converted_or_refused(records, as_lines):
    conversion = convert_anything("mhp", [post(), *records], as_lines)
    if conversion is not None:
        assert conversion.dialogues[0].turns[0].text == f"Cannot sleep\n\n{SECRET}\n"
