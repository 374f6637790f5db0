import json
from collections import Counter

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


def turn(role="client", content="我睡不着。", **more):
    return {"role": role, "content": content, "annotation": [{"sentence": content, "label": ""}], **more}


def read(path):
    return get_source("smile").read(path)


def test_a_file_is_a_dialogue(tmp_path):
    put(tmp_path / "7.json", [turn(), turn("counselor", "多久了？")])
    conversion = read(tmp_path / "7.json")
    (dialogue,) = conversion.dialogues
    assert (dialogue.id, dialogue.language, dialogue.source) == ("smile-7", "zh", "smile")
    assert said(conversion) == [[("seeker", "我睡不着。"), ("supporter", "多久了？")]]
    assert conversion.missing == {"dialogue without labels": 1}
    assert not conversion.repairs
    assert not conversion.noted


def test_a_folder_is_read_in_the_order_of_its_numbers_and_only_its_data(tmp_path):
    for name in ("10.json", "2.json", "raw/1.json"):
        put(tmp_path / name, [turn()])
    put(tmp_path / "LICENSE", "all rights")
    put(tmp_path / ".hidden.json", [turn()])
    put(tmp_path / "notes.json", "not a list")
    conversion = read(tmp_path)
    assert [dialogue.id for dialogue in conversion.dialogues] == ["smile-2", "smile-10", "smile-1"]
    assert conversion.skipped == [str(tmp_path / "notes.json")]
    assert not conversion.refused


def test_files_of_one_name_in_two_folders_get_two_ids(tmp_path):
    for name in ("train/0.json", "test/0.json", "test/1.json"):
        put(tmp_path / name, [turn()])
    assert [d.id for d in read(tmp_path).dialogues] == ["smile-test-0", "smile-1", "smile-train-0"]


def test_files_whose_ids_are_one_are_refused_not_lost(tmp_path):
    put(tmp_path / "a b.json", [turn(), turn("counselor")])
    put(tmp_path / "x" / "a-b.json", [turn()])
    put(tmp_path / "a" / "b.json", [turn()])
    put(tmp_path / "c" / "b.json", [turn()])
    conversion = read(tmp_path)
    ids = [d.id for d in conversion.dialogues]
    assert len(ids) + len(conversion.refused) == 4
    assert all("is already used; ids must differ" in refusal.reason for refusal in conversion.refused)
    assert balanced(conversion)


def test_empty_turns_are_dropped_and_runs_and_single_turns_noted(tmp_path):
    put(tmp_path / "0.json", [turn(content=" \n"), turn(), turn("counselor"), turn("counselor"), turn("counselor")])
    put(tmp_path / "1.json", [turn()])
    conversion = read(tmp_path)
    assert [len(dialogue.turns) for dialogue in conversion.dialogues] == [4, 1]
    assert conversion.repairs == {"empty turn dropped": 1}
    assert conversion.noted == {"supporter turn after a supporter turn": 2, "dialogue of one turn": 1}
    assert balanced(conversion)


def test_odd_characters_inside_texts_stay(tmp_path):
    odd = "a\ufeff\u200bb<br>&amp;\ufffd{{x}}<|im_end|>c"
    put(tmp_path / "0.json", [turn(content=f" {odd}\n")])
    conversion = read(tmp_path)
    assert said(conversion) == [[("seeker", odd)]]
    assert conversion.repairs == {"whitespace at the edge of a turn": 1}


def test_role_spellings_and_labels(tmp_path):
    labelled = turn("Counselor ", "好。")
    labelled["annotation"] = [{"sentence": "好。", "label": "提问"}, {"sentence": "", "label": ""}]
    put(tmp_path / "0.json", [turn(extra=1), labelled])
    conversion = read(tmp_path)
    assert conversion.dialogues[0].turns[1].meta == {"labels": ["提问", ""]}
    assert conversion.repairs == {"spelling of a role": 1, "unknown field ignored": 1}
    assert not conversion.missing


@pytest.mark.parametrize(
    ("content", "says", "turns"),
    [
        ([], "is not a list of turns", 0),
        ([turn(), 3], "turn 2: is not an object", 2),
        ([turn(SECRET)], "turn 1: role is none of client, counselor", 1),
        ([turn(["client"])], "turn 1: role is none of", 1),
        ([turn(content=None)], "turn 1: content is not a text", 1),
        ([turn(content=" ")], "no turn has text", 1),
        ([{**turn(), "annotation": "x"}], "turn 1: annotation is not a list", 1),
        ([{**turn(), "annotation": ["x"]}], "turn 1: annotation holds something else", 1),
        ([{**turn(), "annotation": [{"label": 3}]}], "turn 1: annotation has a label that is not a text", 1),
        ('[{"role": "client", "role": "client"}]', "key 'role' occurs twice", 0),
        ('[{"role": "cl', "not valid JSON at column", 0),
    ],
)
def test_other_files_are_refused_by_name_and_the_rest_is_kept(tmp_path, content, says, turns):
    put(tmp_path / "0.json", [turn()])
    put(tmp_path / "1.json", content)
    put(tmp_path / "2.json", [turn()])
    conversion = read(tmp_path)
    (refusal,) = conversion.refused
    assert refusal.where == str(tmp_path / "1.json")
    assert says in refusal.reason
    assert refusal.turns == turns
    assert SECRET not in str(refusal)
    assert [dialogue.id for dialogue in conversion.dialogues] == ["smile-0", "smile-2"]
    assert balanced(conversion)


def test_encodings(tmp_path):
    files = unreadable(tmp_path, json.dumps([turn()]), "0.json")
    assert len(read(files["bom"]).dialogues) == 1
    with pytest.raises(UserError, match="is UTF-16, expected UTF-8"):
        read(files["utf16"])
    (refusal,) = read(tmp_path).refused
    assert refusal.where == str(files["utf16"])
    put(tmp_path / "bytes" / "0.json", [turn()])
    (tmp_path / "bytes" / "1.json").write_bytes(json.dumps([turn()], ensure_ascii=False).encode("gbk"))
    assert "not valid UTF-8" in read(tmp_path / "bytes").refused[0].reason


def test_paths_that_hold_nothing(tmp_path):
    with pytest.raises(UserError, match="file not found"):
        read(tmp_path / "absent")
    with pytest.raises(UserError, match="holds no file to convert"):
        read(tmp_path)
    put(tmp_path / "a.txt", "text")
    with pytest.raises(UserError, match="holds no record of source smile"):
        read(tmp_path)


def test_counts_of_the_real_files(real_data):
    expected = {"client": 921, "counselor": 896}
    for folder in (real_data / "smile", real_data / "smile" / "raw"):
        conversion = read(folder)
        sides = Counter(turn.speaker for dialogue in conversion.dialogues for turn in dialogue.turns)
        assert len(conversion.dialogues) == 156
        assert sides == {"seeker": expected["client"], "supporter": expected["counselor"]}
        assert conversion.turns_read == 921 + 896
        assert conversion.noted == {"dialogue of one turn": 2, "supporter turn after a supporter turn": 5}
        assert len({dialogue.turns[0].text for dialogue in conversion.dialogues}) == 105
        assert conversion.missing == {"dialogue without labels": 156}
        assert not conversion.refused
        assert not conversion.skipped
        assert not conversion.repairs
        numbers = [int(dialogue.id.removeprefix("smile-")) for dialogue in conversion.dialogues]
        assert numbers == sorted(numbers)


raw_turns = st.fixed_dictionaries(
    {"role": nearly(st.sampled_from(["client", "counselor"])), "content": nearly(texts)},
    optional={"annotation": nearly(st.lists(st.fixed_dictionaries({"sentence": texts, "label": nearly(texts)})))},
)


@settings(max_examples=150, deadline=None)
@given(st.lists(nearly(st.lists(nearly(raw_turns), max_size=5)), min_size=1, max_size=3))
def test_whatever_comes_is_converted_or_refused(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("any")
    for number, content in enumerate(files):
        put(folder / f"{number}.json", content)
    converted_or_refused("smile", folder)
    converted_or_refused("smile", folder / "0.json")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["client", "counselor"]), texts.filter(str.strip)), min_size=1, max_size=5))
def test_no_character_of_a_clean_text_changes(tmp_path_factory, pairs):
    path = put(tmp_path_factory.mktemp("clean") / "0.json", [turn(role, text.strip()) for role, text in pairs])
    conversion = read(path)
    assert [text for _, text in said(conversion)[0]] == [text.strip() for _, text in pairs]
    assert not conversion.repairs


@settings(max_examples=50, deadline=None)
@given(anything)
def test_any_json_at_all(tmp_path_factory, content):
    converted_or_refused("smile", put(tmp_path_factory.mktemp("any") / "0.json", content))
