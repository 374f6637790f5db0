import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import get_source
from tests.data_prep.source_checks import (
    SECRET,
    anything,
    balanced,
    converted_or_refused,
    nearly,
    put,
    said,
    texts,
    unreadable,
)


def answer(text="先深呼吸。", labels=None):
    return {"answer_text": text, "has_label": labels is not None, "labels_sequence": labels}


def question(*answers, **more):
    found = list(answers) or [answer()]
    return {
        "questionID": 7,
        "question": "睡不着",
        "description": "每晚都醒。",
        "keywords": "睡眠,焦虑",
        "answers": found,
        **more,
    }


def read(tmp_path, *records):
    return get_source("psyqa").read(put(tmp_path / "PsyQA.json", list(records)))


def test_every_answer_is_a_dialogue(tmp_path):
    labels = [{"type": "Information", "start": 0, "end": 3}]
    conversion = read(tmp_path, question(answer(labels=labels), answer("慢慢来。")))
    assert said(conversion) == [
        [("seeker", "睡不着\n每晚都醒。"), ("supporter", "先深呼吸。")],
        [("seeker", "睡不着\n每晚都醒。"), ("supporter", "慢慢来。")],
    ]
    first, second = conversion.dialogues
    assert (first.id, second.id) == ("psyqa-psyqa-00001-1", "psyqa-psyqa-00001-2")
    assert first.meta == {"question_id": "7", "keywords": ["睡眠", "焦虑"], "group": "psyqa-psyqa-00001", "answer": 1}
    assert first.turns[1].meta == {"labels": labels}
    assert second.turns[1].meta == {}
    assert conversion.missing == {"answer without strategy labels": 1}
    assert conversion.turns_read == 4
    assert not conversion.repairs


def test_labels_move_with_the_text(tmp_path):
    labels = [{"type": "a", "start": 0, "end": 3}, {"type": "b", "start": 3, "end": 8}]
    conversion = read(tmp_path, question(answer("\n 先呼吸吧。\n", labels)))
    turn = conversion.dialogues[0].turns[1]
    assert turn.meta["labels"] == [{"type": "a", "start": 0, "end": 1}, {"type": "b", "start": 1, "end": 5}]
    assert conversion.repairs == {"whitespace at the edge of a reply": 1}


def test_what_is_not_there_is_counted(tmp_path):
    conversion = read(tmp_path, question(description="", keywords=None, extra=1), question(question=None))
    assert [turns[0][1] for turns in said(conversion)] == ["睡不着", "每晚都醒。"]
    assert conversion.missing == {"description": 1, "keywords": 1, "answer without strategy labels": 2}
    assert conversion.repairs == {"unknown field ignored": 1}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (7, "is not an object"),
        (question(question=" ", description=""), "has neither question nor description"),
        (question(question=3), "question is not a text"),
        (question(answers=[]), "has no list of answers"),
        (question(answers=SECRET), "has no list of answers"),
        (question(questionID=[1]), "questionID is neither a number nor a text"),
    ],
)
def test_questions_that_cannot_be_read_are_refused(tmp_path, bad, says):
    conversion = read(tmp_path, question(), bad, question())
    (refusal,) = conversion.refused
    assert refusal.where == f"{tmp_path / 'PsyQA.json'}: record 2"
    assert says in refusal.reason
    assert SECRET not in str(refusal)
    assert len(conversion.dialogues) == 2
    assert balanced(conversion)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("text", "is not an object"),
        (answer(" "), "answer_text is empty"),
        (answer(None), "answer_text is not a text"),
        (answer(labels="x"), "labels_sequence is not a list"),
        (answer(labels=[{"start": 0, "end": 1}]), "label 1: is not an object with a type"),
        (answer(labels=[{"type": SECRET, "start": 0, "end": 99}]), "label 1: start and end are not places"),
        (answer(labels=[{"type": "a", "start": True, "end": 1}]), "label 1: start and end are not places"),
        (answer(labels=[{"type": "a", "start": 2, "end": 1}]), "label 1: start and end are not places"),
    ],
)
def test_answers_that_cannot_be_read_are_refused_and_the_others_kept(tmp_path, bad, says):
    conversion = read(tmp_path, question(answer(), bad, answer("好。")))
    (refusal,) = conversion.refused
    assert refusal.where == f"{tmp_path / 'PsyQA.json'}: record 1: answer 2"
    assert says in refusal.reason
    assert SECRET not in str(refusal)
    assert [dialogue.id[-1] for dialogue in conversion.dialogues] == ["1", "3"]
    assert balanced(conversion)


def test_the_format_is_known_by_content(tmp_path):
    array = read(tmp_path, question(), question()).dialogues
    lines = put(tmp_path / "psyqa.txt", "\n".join(json.dumps(question()) for _ in "ab"))
    assert [d.turns for d in get_source("psyqa").read(lines).dialogues] == [d.turns for d in array]
    files = unreadable(tmp_path, json.dumps([question()]), "psyqa.json")
    assert len(get_source("psyqa").read(files["bom"]).dialogues) == 1
    with pytest.raises(UserError, match="is UTF-16"):
        get_source("psyqa").read(files["utf16"])


def test_the_agreement_is_said():
    assert "agreement" in get_source("psyqa").agreement


def test_counts_of_the_real_file(real_data):
    conversion = get_source("psyqa").read(real_data / "psyqa")
    assert len(conversion.dialogues) == 132
    assert len({dialogue.meta["group"] for dialogue in conversion.dialogues}) == 60
    assert conversion.turns_read == 2 * 132
    assert conversion.missing == {"answer without strategy labels": 72}
    assert max(len(turns[1][1]) for turns in said(conversion)) == 1936
    labels = [span for d in conversion.dialogues for span in d.turns[1].meta.get("labels", [])]
    assert len(labels) == 559
    assert not conversion.repairs
    assert not conversion.refused


spans = st.fixed_dictionaries({"type": nearly(texts), "start": nearly(st.just(0)), "end": nearly(st.integers(0, 3))})
raw_answers = st.fixed_dictionaries(
    {"answer_text": nearly(texts), "labels_sequence": nearly(st.none() | st.lists(nearly(spans), max_size=3))}
)
raw_questions = st.fixed_dictionaries(
    {"question": nearly(texts), "description": nearly(texts), "answers": nearly(st.lists(nearly(raw_answers)))},
    optional={"questionID": nearly(st.integers()), "keywords": nearly(texts), "more": anything},
)


@settings(max_examples=150, deadline=None)
@given(nearly(st.lists(nearly(raw_questions), max_size=3)))
def test_whatever_comes_is_converted_or_refused(tmp_path_factory, content):
    conversion = converted_or_refused("psyqa", put(tmp_path_factory.mktemp("any") / "any.json", content))
    for dialogue in conversion.dialogues if conversion is not None else ():
        for span in dialogue.turns[1].meta.get("labels", []):
            assert 0 <= span["start"] <= span["end"] <= len(dialogue.turns[1].text)


@settings(max_examples=100, deadline=None)
@given(texts.map(str.strip).filter(bool), texts.map(str.strip).filter(bool))
def test_no_character_of_a_clean_text_changes(tmp_path_factory, asked, answered):
    record = question(answer(answered), question=asked, description="")
    conversion = get_source("psyqa").read(put(tmp_path_factory.mktemp("clean") / "a.json", [record]))
    assert said(conversion) == [[("seeker", asked), ("supporter", answered)]]
    assert not conversion.repairs
