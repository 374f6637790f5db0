"""ESC-Eval as a folder: a clone of the official repository, where cards, transcripts and scores lie side by side."""

import json

import pytest

from data_prep.errors import UserError
from data_prep.sources import Options, get_source

BASE = "Age: 31\nGender: Not mentioned\nOccupation: cook\nProblem: cannot sleep"
ZH = "年龄：31\n性别：女\n职业：厨师\n问题：睡不着"


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")


def card(number, base=BASE, language="english", **more):
    return {"base": base, "res": "家庭生活", "source": "made", "language": language, "id": number, **more}


@pytest.fixture
def clone(tmp_path):
    put(tmp_path / "data" / "high_en.json", [card(1), card(2)])
    put(tmp_path / "data" / "high_zh.json", [card(3, ZH, "chinese")])
    put(tmp_path / "data" / "demo_en.json", [card(2, base_biaozhu="a")])
    put(
        tmp_path / "result" / "m_en.json", {"0": ["AI assistant：Hello", "ESC-Role：I am low 😔"], "1": ["ESC-Role：x"]}
    )
    put(tmp_path / "result" / "m_zh.json", {"0": ["AI assistant：你好", "ESC-Role：我睡不着"]})
    put(tmp_path / "score" / "m_en.json", {"0": {"fluency": 3}, "1": {"fluency": -1}})
    put(tmp_path / "score" / "m_zh.json", {"0": {"fluency": 2}})
    put(tmp_path / "score.py", "print('{}')\n")
    put(tmp_path / "other.json", '{"dialog": []}\n{"dialog": []}\n')
    put(tmp_path / ".git" / "x.json", [card(9)])
    return tmp_path


def test_the_cards_of_a_clone_with_copies_taken_once(clone):
    found = get_source("esceval-cards").read(clone)
    assert sorted((c.id, c.language) for c in found.cards) == [("1", "en"), ("2", "en"), ("3", "zh")]
    assert found.noted == {"card that stands in another file too, taken once": 1}
    assert found.refused == []
    assert len(found.skipped) == 6


def test_the_cards_of_one_language(clone):
    found = get_source("esceval-cards").read(clone, Options(language="zh"))
    assert [c.id for c in found.cards] == ["3"]
    assert found.refused == []
    assert found.noted["card in en, left out by --language"] == 3


def test_another_card_under_a_used_id_is_refused(clone):
    put(clone / "data" / "z.json", [card(2, BASE.replace("cook", "baker"))])
    found = get_source("esceval-cards").read(clone)
    assert [refusal.reason for refusal in found.refused] == ["id '2' is already used; ids must differ"]


def test_the_same_id_twice_in_one_given_file_is_a_fault_as_before(clone):
    put(clone / "twice.json", [card(5), card(5)])
    assert len(get_source("esceval-cards").read(clone / "twice.json").refused) == 1


@pytest.mark.parametrize(("language", "ids"), [("en", ["m_en-0", "m_en-1"]), ("zh", ["m_zh-0"])])
def test_the_transcripts_in_the_language_that_was_named(clone, language, ids):
    found = get_source("esceval-transcripts").read(clone, Options(language=language))
    assert [d.id for d in found.dialogues] == ids
    assert {d.language for d in found.dialogues} == {language}
    assert any(file.endswith(f"m_{'zh' if language == 'en' else 'en'}.json") for file in found.skipped)


def test_the_scores_fit_the_transcripts(clone):
    scores = get_source("esceval-scores").read(clone, Options(rater="us"))
    assert [(r.dialogue_id, r.value) for r in scores.ratings] == [("m_en-0", 3), ("m_en-1", None), ("m_zh-0", 2)]


def test_two_files_of_one_name_are_ambiguous(clone):
    put(clone / "score" / "again" / "m_en.json", {"0": {"fluency": 1}})
    with pytest.raises(UserError, match=r"holds 2 files named m_en.*; give one folder of them, for example .*score"):
        get_source("esceval-scores").read(clone, Options(rater="us"))


def test_a_folder_without_such_files_says_what_is_expected(clone):
    with pytest.raises(UserError, match=r"score: holds no record of source esceval-cards; expected card_high_en"):
        get_source("esceval-cards").read(clone / "score")


def test_a_file_that_cannot_be_read_is_refused_and_the_others_are_read(clone):
    put(clone / "data" / "torn.json", '[{"base": ')
    found = get_source("esceval-cards").read(clone)
    assert len(found.cards) == 3
    assert "torn.json" in found.refused[0].where


def test_the_published_folder(real_data):
    folder = real_data / "esceval"
    cards = get_source("esceval-cards").read(folder)
    assert (len(cards.cards), len(cards.refused)) == (655, 0)
    assert cards.noted == {"card that stands in another file too, taken once": 6}
    made = {lang: get_source("esceval-transcripts").read(folder, Options(language=lang)) for lang in ("en", "zh")}
    ids = {d.id for one in made.values() for d in one.dialogues}
    assert len(ids) == 12
    assert not any(one.refused for one in made.values())
    assert {r.dialogue_id for r in get_source("esceval-scores").read(folder, Options(rater="x")).ratings} == ids
