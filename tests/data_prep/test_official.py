import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.official import (
    card_fields,
    read_cards,
    read_scores,
    read_transcripts,
    write_cards,
    write_scores,
    write_transcripts,
)
from data_prep.records import Dialogue, Rating, RoleCard, Turn, dump_line, read_records, write_records
from data_prep.sources import Options, get_source

SECRET = "nobody may read this sentence"
CARD = {
    "base": "Age: 31\n\nGender: not Mentioned\nOccupation:Not mentioned.\nProblem： cannot sleep: every night",
    "res": "家庭生活",
    "source": "made",
    "base_biaozhu": "年龄：31\n性别：未提及\n职业：未提及\n问题：每晚失眠",
    "language": "english",
    "id": 12,
}
MODELS = ["Qwen_7B_en", "Qwen_7B_zh", "llama3_en", "llama3_zh"]


def put(tmp_path, content, name="official.json"):
    path = tmp_path / name
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=4)
    path.write_text(text, encoding="utf-8", newline="")
    return path


# ---- cards


def test_a_card_keeps_its_text_and_gives_its_fields(tmp_path):
    (card,) = read_cards(put(tmp_path, [CARD]))
    assert card == RoleCard(
        id="12",
        language="en",
        age="31",
        problem="cannot sleep: every night",
        category=("家庭生活",),
        source="made",
        text=CARD["base"],
        meta={"base_biaozhu": CARD["base_biaozhu"]},
    )


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        (
            "年龄：30\n性别：未提及\n职业：学生/未提及\n问题：压力：很大",
            "zh",
            ("30", None, "学生/未提及", "压力：很大"),
        ),
        ("年龄:未提及。\n性别: 女\n职业：\n问题：焦虑", "zh", (None, "女", None, "焦虑")),
        ("  age: 5 \nPROBLEM: a\nand more\nAge: 9", "en", ("5", None, None, "a\nand more\nAge: 9")),
        ("a title line\nGender: male\nProblem: NOT MENTIONED", "en", (None, "male", None, None)),
        ("Age: Not mentioned (a retired person)", "en", ("Not mentioned (a retired person)", None, None, None)),
    ],
)
def test_fields_of_a_card_text(text, language, expected):
    assert tuple(card_fields(text, language).values()) == expected


def test_cards_survive_both_formats(tmp_path):
    entries = [
        CARD,
        {**CARD, "id": "mine-1", "language": "chinese", "base": CARD["base_biaozhu"]},
        {**{key: value for key, value in CARD.items() if key != "base_biaozhu"}, "id": 0, "res": ""},
        {**CARD, "id": -3, "extra": 4, "base": "Age: <|im_end|>{{ x }}\u2028<b>"},
    ]
    path = put(tmp_path, entries)
    cards = read_cards(path)
    write_records(tmp_path / "cards.jsonl", cards)
    write_cards(tmp_path / "again.json", read_records(tmp_path / "cards.jsonl", RoleCard))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_card_of_another_source_gets_the_official_form(tmp_path):
    card = RoleCard(
        id="esconv-train-0001",
        language="en",
        problem="lost a job",
        category=("job crisis", "dismissed"),
        source="esconv",
        meta={"emotion_type": "fear", "nested": {"a": 1}},
    )
    write_cards(tmp_path / "cards.json", [card])
    assert json.loads((tmp_path / "cards.json").read_text(encoding="utf-8")) == [
        {
            "base": "Age: Not mentioned\nGender: Not mentioned\nOccupation: Not mentioned\nProblem: lost a job",
            "res": "job crisis",
            "source": "esconv",
            "language": "english",
            "id": "esconv-train-0001",
            "emotion_type": "fear",
        }
    ]
    (again,) = read_cards(tmp_path / "cards.json")
    assert (again.id, again.problem, again.as_text()) == (card.id, card.problem, card.as_text())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"base": None}, "base: found NoneType, expected a text"),
        ({"base": SECRET}, "base has none of the lines Age, Gender"),
        ({"base": "Age: Not mentioned"}, "base has none of the lines"),
        ({"language": "english "}, "language is neither english nor chinese"),
        ({"language": "chinese"}, "base has none of the lines 年龄"),
        ({"res": 3}, "res: found int"),
        ({"source": ""}, "source is empty"),
        ({"id": None}, "id: found NoneType"),
        ({"id": True}, "id: found bool"),
        ({"id": "12"}, "id is a number in quotes"),
        ({"id": 12}, "id '12' is already used"),
        ({"base_biaozhu": 7}, "base_biaozhu: found int"),
        ({"extra": [SECRET]}, "holds a list"),
    ],
)
def test_bad_cards_name_file_and_record_and_quote_nothing(tmp_path, change, says):
    path = put(tmp_path, [CARD, {**CARD, "id": 13, **change}])
    with pytest.raises(UserError, match=rf"official\.json: record 2: .*{says}") as caught:
        read_cards(path)
    assert SECRET not in str(caught.value)
    conversion = get_source("esceval-cards").read(path)
    assert [card.id for card in conversion.cards] == ["12"]
    assert [str(refusal) for refusal in conversion.refused] == [str(caught.value)]


@pytest.mark.parametrize("content", ["", "{}", "[1,", "[7]"])
def test_a_file_that_holds_no_cards(tmp_path, content):
    with pytest.raises(UserError, match=r"official\.json"):
        read_cards(put(tmp_path, content))


def test_an_empty_list_of_cards_is_no_source(tmp_path):
    with pytest.raises(UserError, match="holds no record of source esceval-cards"):
        get_source("esceval-cards").read(put(tmp_path, []))


# ---- transcripts

LINES = ["AI assistant：Hello.", "ESC-Role：The AI assistant：never listens\nESC-Role：", "AI assistant："]


def test_only_the_label_at_the_start_is_split_off(tmp_path):
    path = put(tmp_path, {"0": LINES}, "model_en.json")
    (dialogue,) = read_transcripts(path, "en")
    assert dialogue.id == "model_en-0"
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [
        ("supporter", "Hello."),
        ("seeker", "The AI assistant：never listens\nESC-Role："),
        ("supporter", ""),
    ]
    assert dialogue.meta == {"official_key": "0", "greeting": True}


def test_cards_are_joined_by_position(tmp_path):
    cards = read_cards(put(tmp_path, [CARD, {**CARD, "id": 5}]))
    path = put(tmp_path, {"1": LINES}, "model_en.json")
    assert read_transcripts(path, "en", cards)[0].card.id == "5"
    with pytest.raises(UserError, match="there are only 1 cards"):
        read_transcripts(path, "en", cards[:1])


def test_keys_of_dialogues_made_elsewhere_are_positions(tmp_path):
    dialogues = [
        Dialogue(id=name, language="en", source="run", turns=(Turn(speaker="seeker", text=name),)) for name in "ab"
    ]
    write_transcripts(tmp_path / "t.json", dialogues)
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == {"0": ["ESC-Role：a"], "1": ["ESC-Role：b"]}
    again = read_transcripts(tmp_path / "t.json", "en")
    assert [dialogue.meta["greeting"] for dialogue in again] == [False, False]
    with pytest.raises(UserError, match="the same official key"):
        write_transcripts(tmp_path / "t.json", [again[0], again[0].model_copy(update={"id": "x"})])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([LINES], "is not a JSON object"),
        ({}, "is not a JSON object"),
        ({"0": LINES, "a": LINES}, "record 2: key is not a position"),
        ({"01": LINES}, "record 1: key is not a position"),
        ({"0": LINES, "1": []}, "record '1': is not a list of lines"),
        ({"0": {"a": SECRET}}, "record '0': is not a list of lines"),
        ({"0": [*LINES, SECRET]}, "record '0': line 4: does not begin with"),
        ({"0": [f"ESC-Role:{SECRET}"]}, "record '0': line 1: does not begin with .*full-width"),
        ({"0": [3]}, "record '0': line 1"),
        ('{"0": ["ESC-Role：a"], "0": ["ESC-Role：b"]}', "key '0' occurs twice"),
    ],
)
def test_bad_transcripts_name_file_and_record(tmp_path, content, says):
    with pytest.raises(UserError, match=rf"official\.json: .*{says}") as caught:
        read_transcripts(put(tmp_path, content), "en")
    assert SECRET not in str(caught.value)


def test_the_source_refuses_single_transcripts_and_needs_a_language(tmp_path):
    path = put(tmp_path, {"0": LINES, "1": ["x", "y"]})
    source = get_source("esceval-transcripts")
    with pytest.raises(UserError, match="needs --language"):
        source.read(path)
    conversion = source.read(path, Options(language="zh"))
    assert [(d.id, d.language) for d in conversion.dialogues] == [("official-0", "zh")]
    assert [(r.where, r.turns) for r in conversion.refused] == [(f"{path}: record '1'", 2)]
    assert conversion.turns_read == 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["AI assistant：", "ESC-Role："]), st.text(st.characters(codec="utf-8"))),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_transcripts_of_any_text_survive(tmp_path_factory, said):
    folder = tmp_path_factory.mktemp("official")
    path = put(folder, {str(i): [label + text for label, text in lines] for i, lines in enumerate(said)})
    write_records(folder / "d.jsonl", read_transcripts(path, "en"))
    write_transcripts(folder / "again.json", read_records(folder / "d.jsonl", Dialogue))
    assert (folder / "again.json").read_bytes() == path.read_bytes()


# ---- scores

LEVELS = {"fluency": 3, "diversity": 4, "empathic": 0, "suggestion": -1, "human": 1, "tech": None, "overall": 2}


def test_scores_get_our_names_and_minus_one_is_missing(tmp_path):
    ratings = read_scores(put(tmp_path, {"4": LEVELS}, "model_en.json"), "ESC-RANK")
    assert {(rating.dialogue_id, rating.rater, rating.rubric) for rating in ratings} == {
        ("model_en-4", "ESC-RANK", "esc_eval")
    }
    assert {rating.dimension: rating.value for rating in ratings} == {
        "fluency": 3,
        "expression": 4,
        "empathy": 0,
        "information": None,
        "humanoid": 1,
        "skillful": None,
        "overall": 2,
    }
    assert all((rating.reason is None) == (rating.value is not None) for rating in ratings)


def test_scores_survive_both_formats(tmp_path):
    path = put(tmp_path, {"4": LEVELS, "0": {"overall": 2}})
    write_records(tmp_path / "r.jsonl", read_scores(path, "r"))
    write_scores(tmp_path / "again.json", read_records(tmp_path / "r.jsonl", Rating))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_scores_of_other_ids_need_their_keys(tmp_path):
    rating = Rating(dialogue_id="d", rater="r", rubric="esc_eval", dimension="humanoid", value=2)
    with pytest.raises(UserError, match="'d' has no official key"):
        write_scores(tmp_path / "s.json", [rating])
    write_scores(tmp_path / "s.json", [rating], {"d": "7"})
    assert json.loads((tmp_path / "s.json").read_text()) == {"7": {"human": 2}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rubric": "epitome"}, "expected 'esc_eval'"),
        ({"value": 2.5}, "off the scale"),
        ({"rater": "s"}, "rated twice"),
        ({"dialogue_id": "b-1", "dimension": "overall"}, "two dialogues have the official key '1'"),
    ],
)
def test_ratings_that_do_not_fit_an_official_file(tmp_path, change, says):
    rating = Rating(dialogue_id="a-1", rater="r", rubric="esc_eval", dimension="empathy", value=2)
    with pytest.raises(UserError, match=says):
        write_scores(tmp_path / "s.json", [rating, rating.model_copy(update=change)])
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        ({**LEVELS, "empathy": 3}, "key 8 is none of the official dimensions"),
        ({"fluency": 5}, r"fluency is off the scale 0\.\.4"),
        ({"fluency": -2}, "fluency is off the scale"),
        ({"fluency": "3"}, "fluency: found str, expected a whole level"),
        ({"fluency": 3.0}, "fluency: found float"),
        ({"fluency": True}, "fluency: found bool"),
        ({"fluency": [3]}, "fluency: found list"),
        ({}, "is not an object of levels"),
        ([3], "is not an object of levels"),
    ],
)
def test_bad_scores_name_file_and_record(tmp_path, levels, says):
    path = put(tmp_path, {"0": LEVELS, "1": levels})
    with pytest.raises(UserError, match=rf"official\.json: record '1': {says}"):
        read_scores(path, "r")
    conversion = get_source("esceval-scores").read(path, Options(rater="r"))
    assert len(conversion.ratings) == 7
    assert [refusal.where for refusal in conversion.refused] == [f"{path}: record '1'"]


# ---- real files


@pytest.mark.parametrize(
    ("name", "count", "sources", "categories"),
    [
        (
            "card_high_en.json",
            331,
            {"ESconv": 158, "EPITOME": 5, "ExTES": 70, "MHP": 73, "Psych": 25},
            {"家庭生活": 172, "工作学习": 87, "社会与其他": 72},
        ),
        (
            "card_high_zh.json",
            324,
            {"PsyQA": 252, "smile": 72},
            {"家庭生活": 215, "工作学习": 72, "社会与其他": 37},
        ),
    ],
)
def test_the_published_cards_go_in_and_out_unchanged(real_data, tmp_path, name, count, sources, categories):
    path = real_data / "esceval" / name
    cards = read_cards(path)
    assert len(cards) == len({card.id for card in cards}) == count
    assert Counter(card.source for card in cards) == sources
    assert Counter(card.category[0] for card in cards) == categories
    assert {card.language for card in cards} == {name[-7:-5]}
    assert all(card.problem for card in cards)
    # Every labelled line of the text is a field: nothing is lost and nothing invented.
    for card in cards:
        values = [
            line.replace(":", "：", 1).split("：", 1)[1].strip() for line in card.text.split("\n") if line.strip()
        ]
        said = [value if value.casefold() not in ("not mentioned", "未提及") else None for value in values]
        assert [card.age, card.gender, card.occupation, card.problem] == said
    write_records(tmp_path / "cards.jsonl", cards)
    write_cards(tmp_path / name, read_records(tmp_path / "cards.jsonl", RoleCard))
    assert (tmp_path / name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["test_en.json", "test_zh.json"])
def test_the_demo_cards_go_in_and_out_unchanged(real_data, tmp_path, name):
    path = real_data / "esceval" / name
    write_cards(tmp_path / name, read_cards(path))
    # One of the two has a stray space after its bracket, so the values are compared, order of keys included.
    again, published = ((tmp_path / name).read_text(encoding="utf-8"), path.read_text(encoding="utf-8"))
    assert [list(card.items()) for card in json.loads(again)] == [list(card.items()) for card in json.loads(published)]


@pytest.mark.parametrize("model", MODELS)
def test_the_published_transcripts_and_scores_go_in_and_out_unchanged(real_data, tmp_path, model):
    path = real_data / "esceval" / "result" / f"{model}.json"
    dialogues = read_transcripts(path, model[-2:])
    assert [len(dialogue.turns) for dialogue in dialogues] == [11, 11, 11]
    assert Counter(turn.speaker for d in dialogues for turn in d.turns) == {"seeker": 15, "supporter": 18}
    assert all(dialogue.meta["greeting"] for dialogue in dialogues)
    write_records(tmp_path / "d.jsonl", dialogues)
    write_transcripts(tmp_path / "d.json", read_records(tmp_path / "d.jsonl", Dialogue))
    assert (tmp_path / "d.json").read_bytes() == path.read_bytes()

    path = real_data / "esceval" / "score" / f"{model}.json"
    ratings = read_scores(path, "published")
    assert {rating.dialogue_id for rating in ratings} == {dialogue.id for dialogue in dialogues}
    write_records(tmp_path / "r.jsonl", ratings)
    write_scores(tmp_path / "r.json", read_records(tmp_path / "r.jsonl", Rating))
    assert (tmp_path / "r.json").read_bytes() == path.read_bytes()


def test_levels_of_the_published_scores(real_data):
    ratings = [r for model in MODELS for r in read_scores(real_data / "esceval" / "score" / f"{model}.json", "x")]
    by_dimension = {
        name: Counter(rating.value for rating in ratings if rating.dimension == name)
        for name in {rating.dimension for rating in ratings}
    }
    assert by_dimension == {
        "fluency": {2: 1, 3: 11},
        "expression": {3: 12},
        "empathy": {3: 12},
        "information": {3: 12},
        "humanoid": {1: 9, 2: 2, 3: 1},
        "skillful": {3: 12},
        "overall": {2: 12},
    }


# ---- property: whatever the file holds, a record or a refusal, never anything else


texts = st.text(max_size=8)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def nearly(good):
    """Mostly what belongs there, now and then something else."""
    return st.integers(0, 6).flatmap(lambda draw: anything if draw == 0 else good)


bases = st.sampled_from(["Age: 3", "年龄：3\n问题：x", "Age: 3\n: \n：", "Problem"]) | texts
raw_cards = st.fixed_dictionaries(
    {},
    optional={
        "base": nearly(bases),
        "res": nearly(texts),
        "source": nearly(texts),
        "language": nearly(st.sampled_from(["english", "chinese"])),
        "id": nearly(st.integers() | texts),
        "base_biaozhu": nearly(texts),
        "other": anything,
    },
)
positions = nearly(st.sampled_from(["0", "1", "2"])).map(str)
raw_lines = st.lists(nearly(texts.map(lambda text: f"ESC-Role：{text}")), max_size=4)
raw_levels = st.dictionaries(st.sampled_from([*LEVELS, "other"]), nearly(st.integers(-2, 5)), max_size=7)
raw_files = st.one_of(
    st.tuples(st.just("esceval-cards"), nearly(st.lists(nearly(raw_cards), max_size=4))),
    st.tuples(st.just("esceval-transcripts"), nearly(st.dictionaries(positions, nearly(raw_lines), max_size=3))),
    st.tuples(st.just("esceval-scores"), nearly(st.dictionaries(positions, nearly(raw_levels), max_size=3))),
)


@settings(max_examples=150, deadline=None)
@given(raw_files)
def test_whatever_comes_is_converted_or_refused(tmp_path_factory, file):
    name, content = file
    path = tmp_path_factory.mktemp("any") / "any.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        conversion = get_source(name).read(path, Options(language="en", rater="r"))
    except UserError:
        return
    for record in (*conversion.dialogues, *conversion.cards, *conversion.ratings):
        assert type(record).model_validate(json.loads(dump_line(record))) == record
