from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.sources import get_source
from tests.data_prep.source_checks import SECRET, anything, balanced, converted_or_refused, nearly, put, said, texts

JOINED = "line without a speaker joined to the turn above"
FAMILY = "member of the family taken for the seeker's side"
BY_NAME = "speaker by name taken for the seeker's side"
REMARK = "speaker with a remark in brackets"
DUPLICATE = "exact duplicate of an earlier session: kept, marked in meta"
SESSION = "来访者：我睡不着。\n\n心理咨询师：多久了？"


def read(tmp_path, text, name="case_1.txt"):
    return get_source("cpsycound").read(put(tmp_path / name, text))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n\r\n"])
@pytest.mark.parametrize("colon", "：:")
def test_a_text_is_a_session_whatever_ends_its_lines(tmp_path, end, colon):
    conversion = read(tmp_path, f"\ufeff来访者{colon}我睡不着。{end}心理咨询师{colon} 多久了？{end}")
    (dialogue,) = conversion.dialogues
    assert (dialogue.id, dialogue.language, dialogue.source) == ("cpsycound-case_1", "zh", "cpsycound")
    assert said(conversion) == [[("seeker", "我睡不着。"), ("supporter", "多久了？")]]
    assert conversion.repairs == {"whitespace at the edge of a turn": 1}


def test_lines_without_a_speaker_belong_to_the_turn_above(tmp_path):
    lines = ("心理咨询师：可以试试：", "1. 早睡：十点。", "（沉默）", "来访者：好。", "（后续反馈：有好转）")
    conversion = read(tmp_path, "\n".join(lines))
    assert said(conversion) == [
        [("supporter", "可以试试：\n1. 早睡：十点。\n（沉默）"), ("seeker", "好。\n（后续反馈：有好转）")]
    ]
    assert conversion.repairs == {JOINED: 3}
    assert balanced(conversion)


def test_extra_speakers_are_decided_counted_and_kept_in_meta(tmp_path):
    lines = (
        "来访者（姚先生）：一。",
        "来访者(小文)：二。",
        "心理咨询师（扮演丈夫）：三。",
        "妈妈：四。",
        "姚先生和小文：五。",
        "小文：六。",
        "路人：七。",
    )
    conversion = read(tmp_path, "\n".join(lines))
    turns = conversion.dialogues[0].turns
    assert [(turn.speaker, turn.text, turn.meta.get("label")) for turn in turns] == [
        ("seeker", "一。", "来访者（姚先生）"),
        ("seeker", "二。", "来访者（小文）"),
        ("supporter", "三。", "心理咨询师（扮演丈夫）"),
        ("seeker", "四。", "妈妈"),
        ("seeker", "五。", "姚先生和小文"),
        ("seeker", "六。\n路人：七。", "小文"),
    ]
    assert conversion.repairs == {REMARK: 3, FAMILY: 1, BY_NAME: 2, JOINED: 1}
    assert conversion.noted == {"turn after a turn of the same speaker": 3}
    assert balanced(conversion)


def test_exact_duplicates_are_kept_and_pointed_out(tmp_path):
    put(tmp_path / "case_2.txt", SESSION)
    put(tmp_path / "case_10.txt", SESSION.replace("\n\n", "\r\n"))
    conversion = get_source("cpsycound").read(tmp_path)
    assert [(d.id, d.meta) for d in conversion.dialogues] == [
        ("cpsycound-case_2", {}),
        ("cpsycound-case_10", {"duplicate_of": "cpsycound-case_2"}),
    ]
    assert conversion.noted == {DUPLICATE: 1}


def test_texts_that_are_no_session_are_refused_with_their_file(tmp_path):
    put(tmp_path / "1.txt", SESSION)
    put(tmp_path / "2.txt", f"{SECRET}\n{SESSION}")
    put(tmp_path / "3.txt", "来访者：\n心理咨询师： ")
    put(tmp_path / "4.txt", " ")
    put(tmp_path / "5.txt", SESSION + "\n来访者：好。\n来访者：")
    (tmp_path / "6.txt").write_text(SESSION, encoding="utf-16")
    (tmp_path / "7.txt").write_text(SESSION, encoding="gbk")
    conversion = get_source("cpsycound").read(tmp_path)
    assert {refusal.where[-5:]: refusal.reason for refusal in conversion.refused} == {
        "2.txt": "line 1 has no speaker and no turn above it",
        "3.txt": "no turn has text",
        "4.txt": "no turn has text",
        "6.txt": "is UTF-16, expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8 6.txt",
        "7.txt": f"{tmp_path / '7.txt'}:1: is not valid UTF-8; save the file as UTF-8 and try again",
    }
    assert [dialogue.id[-1] for dialogue in conversion.dialogues] == ["1", "5"]
    assert conversion.repairs == {"empty turn dropped": 1}
    assert balanced(conversion)
    with pytest.raises(UserError, match=r"2\.txt: line 1 has no speaker"):
        get_source("cpsycound").read(tmp_path / "2.txt")


# ---- CPsyCounE


def test_strings_with_prefixes_in_folders_with_odd_names(tmp_path):
    for topic in ("Love&Marriage", "Family Relationship"):
        put(tmp_path / topic / "1.json", ["求助者：我睡不着。", "支持者： 多久了？"])
    conversion = get_source("cpsycoune").read(tmp_path)
    assert [(d.id, d.meta["topic"]) for d in conversion.dialogues] == [
        ("cpsycoune-family-relationship-1", "Family Relationship"),
        ("cpsycoune-love-marriage-1", "Love&Marriage"),
    ]
    assert said(conversion)[0] == [("seeker", "我睡不着。"), ("supporter", "多久了？")]
    assert conversion.repairs == {"whitespace at the edge of a turn": 2}
    alone = get_source("cpsycoune").read(tmp_path / "Love&Marriage" / "1.json")
    assert alone.dialogues[0].id == "cpsycoune-love-marriage-1"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"a": 1}, "is not a list of utterances"),
        (["求助者：好", SECRET], "turn 2: does not begin with one of"),
        ([3], "turn 1: does not begin with one of"),
        (["求助者：", "支持者：  "], "no turn has text"),
        ("[1,", "not valid JSON"),
    ],
)
def test_other_lists_are_refused(tmp_path, content, says):
    put(tmp_path / "t" / "1.json", ["求助者：好"])
    put(tmp_path / "t" / "2.json", content)
    conversion = get_source("cpsycoune").read(tmp_path)
    (refusal,) = conversion.refused
    assert refusal.where == str(tmp_path / "t" / "2.json")
    assert says in refusal.reason
    assert SECRET not in str(refusal)
    assert balanced(conversion)


def test_training_and_evaluation_do_not_mix(tmp_path):
    put(tmp_path / "d" / "a.json", SESSION)
    put(tmp_path / "e" / "a.txt", ["求助者：好"])
    for name, kept, skipped in (("cpsycound", "d/a.json", "e/a.txt"), ("cpsycoune", "e/a.txt", "d/a.json")):
        conversion = get_source(name).read(tmp_path)
        assert len(conversion.dialogues) == 1, kept
        assert conversion.skipped == [str(tmp_path / skipped)]


# ---- real files


def test_counts_of_the_real_sessions(real_data):
    for folder, skipped in ((real_data / "cpsycoun", 45), (real_data / "cpsycoun" / "CPsyCounD_raw", 0)):
        conversion = get_source("cpsycound").read(folder)
        assert len(conversion.dialogues) == 134
        assert len(conversion.skipped) == skipped
        # 1,089 + 1,098 plain labels; the others are repairs.
        assert conversion.turns_read == 1089 + 1098 + 21 + 2 + 9
        assert conversion.repairs == {JOINED: 105, FAMILY: 21, BY_NAME: 2, REMARK: 9}
        assert conversion.noted == {DUPLICATE: 1, "turn after a turn of the same speaker": 35}
        assert sum("duplicate_of" in dialogue.meta for dialogue in conversion.dialogues) == 1
        assert not conversion.refused
        assert balanced(conversion)
        assert not any("\r" in turn.text for dialogue in conversion.dialogues for turn in dialogue.turns)
    files = list((real_data / "cpsycoun" / "CPsyCounD_raw").iterdir())
    assert sum(b"\r\n" in file.read_bytes() for file in files) == 131


def test_counts_of_the_real_evaluation_set(real_data):
    conversion = get_source("cpsycoune").read(real_data / "cpsycoun")
    assert len(conversion.dialogues) == 45
    assert len(conversion.skipped) == 134
    assert conversion.turns_written == {"seeker": 296, "supporter": 296}
    assert set(Counter(dialogue.meta["topic"] for dialogue in conversion.dialogues).values()) == {5}
    assert not conversion.refused
    assert not conversion.repairs


# ---- arbitrary input


labels = st.sampled_from(
    ["来访者：", "心理咨询师：", "来访者（小文）：", "妈妈：", "小文：", "（沉默）", "", "来访者:"]
)
raw_lines = st.lists(st.tuples(labels, texts, st.sampled_from(["\n", "\r\n", "\n\n"])).map("".join), max_size=6)


@settings(max_examples=150, deadline=None)
@given(raw_lines.map("".join))
def test_whatever_text_comes_is_converted_or_refused(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("any")
    converted_or_refused("cpsycound", put(folder / "a.txt", text))
    converted_or_refused("cpsycound", folder)


prefixed = st.tuples(st.sampled_from(["求助者：", "支持者：", ""]), texts).map("".join)


@settings(max_examples=150, deadline=None)
@given(nearly(st.lists(nearly(prefixed), max_size=5)) | anything)
def test_whatever_list_comes_is_converted_or_refused(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    converted_or_refused("cpsycoune", put(folder / "a.json", content))
    converted_or_refused("cpsycoune", folder)


clean = texts.map(lambda text: text.replace("\n", "").strip()).filter(bool)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), clean), min_size=1, max_size=5))
def test_no_character_of_a_clean_text_changes(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("clean")
    text = "\n".join(f"{'来访者' if seeker else '心理咨询师'}：{line}" for seeker, line in pairs)
    strings = [f"{'求助者' if seeker else '支持者'}：{line}" for seeker, line in pairs]
    for name, content in (("cpsycound", text), ("cpsycoune", strings)):
        conversion = get_source(name).read(put(folder / name, content))
        assert [kept for _, kept in said(conversion)[0]] == [line for _, line in pairs]
        assert not +conversion.repairs
