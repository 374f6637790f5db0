import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.records import dump_line, read_records, write_records
from data_prep.rubric import check_ratings, load_rubric
from data_prep.sources import SOURCES, Options, get_source
from data_prep.sources.esconv import SPEAKERS, STRATEGIES

SECRET = "nobody may read this sentence"


def hub(**changes):
    """A made record in the shape of the hub split."""
    return {
        "experience_type": "Current Experience",
        "emotion_type": "anxiety",
        "problem_type": "Sleep Problems",
        "situation": "I lie awake every night.\n",
        "survey_score": {
            "seeker": {
                "initial_emotion_intensity": "4",
                "empathy": "5",
                "relevance": "4",
                "final_emotion_intensity": "2",
            },
            "supporter": {"relevance": "0"},
        },
        "dialog": [
            {"text": "Hello there.", "speaker": "sys", "strategy": "Question"},
            {"text": f"{SECRET} ", "speaker": "usr"},
            {"text": "and it goes on", "speaker": "usr"},
        ],
        "seeker_question1": "all good",
        "seeker_question2": "",
        "supporter_question1": "",
        "supporter_question2": "",
        **changes,
    }


def release(seeker="seeker", supporter="supporter"):
    """The same in the shape of the release, or of FailedESConv."""
    record = {key: value for key, value in hub().items() if "question" not in key}
    record["dialog"] = [
        {"speaker": supporter, "annotation": {"strategy": "Question"}, "content": "Hello there."},
        {"speaker": seeker, "annotation": {"feedback": "3"}, "content": f"{SECRET} "},
        {"speaker": seeker, "annotation": {}, "content": "and it goes on"},
    ]
    return record


def read(tmp_path, records, name="train.txt"):
    path = tmp_path / name
    if isinstance(records, list):
        records = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(records, encoding="utf-8")
    return get_source("esconv").read(path)


def balanced(conversion) -> bool:
    written = sum(len(dialogue.turns) for dialogue in conversion.dialogues)
    refused = sum(refusal.turns for refusal in conversion.refused)
    return conversion.turns_read == written + conversion.repairs["empty turn dropped"] + refused


def test_a_hub_record_becomes_a_dialogue_with_card_and_ratings(tmp_path):
    conversion = read(tmp_path, [hub()])
    (dialogue,) = conversion.dialogues
    assert (dialogue.id, dialogue.language, dialogue.source) == ("esconv-train-0001", "en", "esconv")
    assert [(turn.speaker, turn.text, turn.strategy) for turn in dialogue.turns] == [
        ("supporter", "Hello there.", "Question"),
        ("seeker", SECRET, None),
        ("seeker", "and it goes on", None),
    ]
    assert dialogue.situation == "I lie awake every night."
    assert dialogue.card.problem == dialogue.situation
    assert dialogue.card.category == ("sleep problems",)
    assert dialogue.card.meta == {"emotion_type": "anxiety"}
    assert dialogue.meta == {
        "experience_type": "current experience",
        "emotion_type": "anxiety",
        "problem_type": "sleep problems",
        "initial_emotion_intensity": 4,
        "final_emotion_intensity": 2,
        "supporter_relevance": None,
        "seeker_question1": "all good",
    }
    assert [(r.dialogue_id, r.rater, r.rubric, r.dimension, r.value) for r in conversion.ratings] == [
        ("esconv-train-0001", "seeker", "esconv_survey", "empathy", 5),
        ("esconv-train-0001", "seeker", "esconv_survey", "relevance", 4),
    ]
    assert conversion.repairs == {
        "experience_type lower-cased": 1,
        "problem_type lower-cased": 1,
        "supporter's relevance off the scale 1..5: no value": 1,
        "whitespace at the edge of a situation": 1,
        "whitespace at the edge of a turn": 1,
    }
    assert not conversion.missing
    assert not conversion.refused


@pytest.mark.parametrize("name", ["ESConv.json", "esconv.txt", "a.jsonl"])
def test_shape_is_known_by_content_not_by_name(tmp_path, name):
    as_lines = read(tmp_path, [hub()], name)
    as_array = read(tmp_path, json.dumps([hub()], indent=1), name)
    with_bom = read(tmp_path, "\ufeff\r\n" + json.dumps(hub()) + "\r\n", name)
    assert as_lines.dialogues == as_array.dialogues == with_bom.dialogues
    raw = read(tmp_path, json.dumps([release()]), name)
    assert [turn.model_copy(update={"meta": {}}) for turn in raw.dialogues[0].turns] == list(
        as_lines.dialogues[0].turns
    )


def test_failed_dialogues_are_marked_and_keep_the_running_feedback(tmp_path):
    conversion = read(tmp_path, json.dumps([release("speaker", "listener")]), "FailedESConv.json")
    (dialogue,) = conversion.dialogues
    assert dialogue.source == dialogue.card.source == "esconv-failed"
    assert [turn.speaker for turn in dialogue.turns] == ["supporter", "seeker", "seeker"]
    assert [turn.meta for turn in dialogue.turns] == [{}, {"feedback": 3}, {}]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *((name, name) for name in STRATEGIES),
        ("Questions", "Question"),
        ("Restatement", "Restatement or Paraphrasing"),
        ("Approval and Reassurance", "Affirmation and Reassurance"),
        ("Direct Guidance", "Providing Suggestions"),
        ("Other", "Others"),
        ("[Reflection of Feelings]", "Reflection of feelings"),
        ("self_disclosure", "Self-disclosure"),
    ],
)
def test_strategies_get_their_eight_names(tmp_path, spelling, name):
    conversion = read(tmp_path, [hub(dialog=[{"text": "a", "speaker": "sys", "strategy": spelling}])])
    assert conversion.dialogues[0].turns[0].strategy == name
    assert conversion.repairs["strategy spelling"] == (spelling != name)


def test_a_missing_final_survey_gives_ratings_without_value(tmp_path):
    conversion = read(tmp_path, [hub(survey_score={"seeker": {"initial_emotion_intensity": "5"}, "supporter": {}})])
    assert [(rating.value, rating.reason) for rating in conversion.ratings] == [
        (None, "not answered in the source"),
        (None, "not answered in the source"),
    ]
    assert conversion.dialogues[0].meta["final_emotion_intensity"] is None
    assert conversion.missing["seeker's empathy"] == 1


@pytest.mark.parametrize("bad", ["0", "6", "five", "4.5", 0, 7, True, 4.5, [4], {"a": 1}, "-1", "99999999"])
def test_a_score_off_the_scale_is_no_value(tmp_path, bad):
    conversion = read(tmp_path, [hub(survey_score={"seeker": {"empathy": bad, "relevance": 3}})])
    assert [rating.value for rating in conversion.ratings] == [None, 3]
    assert conversion.ratings[0].reason == "off the scale 1..5 in the source"
    assert conversion.repairs["seeker's empathy off the scale 1..5: no value"] == 1


def test_empty_turns_are_dropped_and_counted(tmp_path):
    turns = [{"text": " \n", "speaker": "usr"}, {"text": "hi", "speaker": "usr"}]
    conversion = read(tmp_path, [hub(dialog=turns)])
    assert [turn.text for turn in conversion.dialogues[0].turns] == ["hi"]
    assert conversion.repairs["empty turn dropped"] == 1
    assert balanced(conversion)


def test_a_strategy_of_the_seekers_is_dropped_and_a_missing_one_counted(tmp_path):
    turns = [{"text": "a", "speaker": "usr", "strategy": "Question"}, {"text": "b", "speaker": "sys"}]
    conversion = read(tmp_path, [hub(dialog=turns)])
    assert [turn.strategy for turn in conversion.dialogues[0].turns] == [None, None]
    assert conversion.repairs["strategy on a seeker turn dropped"] == 1
    assert conversion.missing["supporter turn without strategy"] == 1


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (7, "is not an object"),
        ({}, "has no list of turns"),
        (hub(dialog=[]), "has no list of turns"),
        (hub(dialog={"a": 1}), "has no list of turns"),
        (hub(dialog=["hi"]), "turn 1: is not an object"),
        (hub(dialog=[{"text": SECRET, "speaker": SECRET}]), "turn 1: speaker is none of usr"),
        (hub(dialog=[{"text": SECRET, "speaker": ["usr"]}]), "turn 1: speaker is none of"),
        (hub(dialog=[{"text": "a", "speaker": "usr"}, {"speaker": "sys"}]), "turn 2: expected one text"),
        (hub(dialog=[{"text": SECRET, "content": "b", "speaker": "usr"}]), "turn 1: expected one text"),
        (hub(dialog=[{"text": None, "speaker": "usr"}]), "turn 1: expected one text"),
        (hub(dialog=[{"text": "a", "speaker": "sys", "strategy": SECRET}]), "turn 1: strategy is none of the eight"),
        (hub(dialog=[{"text": "a", "speaker": "sys", "strategy": 3}]), "turn 1: strategy is none of the eight"),
        (hub(dialog=[{"text": "a", "speaker": "sys", "annotation": "x"}]), "turn 1: annotation is not an object"),
        (hub(dialog=[{"text": " ", "speaker": "usr"}]), "no turn has text"),
        (hub(situation=[SECRET]), "situation is not a text"),
        (hub(emotion_type=3), "emotion_type is not a text"),
        (hub(survey_score="5"), "survey_score is not an object"),
        (hub(survey_score={"seeker": "5"}), "survey_score.seeker is not an object"),
    ],
)
def test_other_faults_are_refused_with_line_and_reason(tmp_path, record, says):
    conversion = read(tmp_path, [hub(), record, hub()])
    (refusal,) = conversion.refused
    assert refusal.where == f"{tmp_path / 'train.txt'}:2"
    assert says in refusal.reason
    assert SECRET not in str(refusal)
    # The others keep the ids that their places give them, and nothing of the refused one is counted.
    assert [dialogue.id for dialogue in conversion.dialogues] == ["esconv-train-0001", "esconv-train-0003"]
    assert conversion.repairs["problem_type lower-cased"] == 2
    assert balanced(conversion)


def test_a_line_that_is_no_json_is_refused_and_the_others_are_read(tmp_path):
    lines = f"{json.dumps(hub())}\n\n{json.dumps(hub())[:-9]}\n{json.dumps(hub())}\n"
    conversion = read(tmp_path, lines)
    assert [refusal.where for refusal in conversion.refused] == [f"{tmp_path / 'train.txt'}:3"]
    assert [dialogue.id[-4:] for dialogue in conversion.dialogues] == ["0001", "0003"]


def test_a_refused_record_of_an_array_is_named_by_position(tmp_path):
    conversion = read(tmp_path, json.dumps([hub(), 3]), "ESConv.json")
    assert str(conversion.refused[0]) == f"{tmp_path / 'ESConv.json'}: record 2: is not an object"


@pytest.mark.parametrize("content", ["", "id,text\n1,a\n", "[]", '[{"dialog": ', '"text"'])
def test_a_file_of_another_kind_is_a_user_error(tmp_path, content):
    with pytest.raises(UserError, match=r"train\.txt"):
        read(tmp_path, content)


# ---- the registry


def test_sources_say_where_they_come_from():
    for name, source in SOURCES.items():
        assert name == source.name
        assert all((source.title, source.licence, source.files, source.origin, source.languages))


def test_an_unknown_source_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown source 'ESConf'; did you mean 'esconv'"):
        get_source("ESConf")
    with pytest.raises(UserError, match="unknown source 'q'; known: esconv"):
        get_source("q")


def test_a_language_the_source_does_not_have_is_refused(tmp_path):
    with pytest.raises(UserError, match="esconv is in en, not in 'zh'"):
        get_source("esconv").read(tmp_path / "x", Options(language="zh"))


# ---- real files


EXPECTED = {
    "train.txt": {
        "turns": {"seeker": 13889, "supporter": 12759},
        "first": {"seeker": 422, "supporter": 488},
        "longest": 14,
        "pairs": 5475,
        "situations": 908,
        "initial_emotion_intensity": {1: 2, 2: 31, 3: 173, 4: 401, 5: 303},
        "final_emotion_intensity": {1: 233, 2: 314, 3: 210, 4: 43, None: 110},
        "empathy": {1: 3, 2: 3, 3: 82, 4: 204, 5: 508, None: 110},
        "relevance": {2: 6, 3: 57, 4: 186, 5: 551, None: 110},
    },
    "valid.txt": {
        "turns": {"seeker": 2956, "supporter": 2722},
        "first": {"seeker": 94, "supporter": 101},
        "longest": 8,
        "pairs": 1211,
        "situations": 195,
        "initial_emotion_intensity": {2: 4, 3: 50, 4: 85, 5: 56},
        "final_emotion_intensity": {1: 51, 2: 78, 3: 36, 4: 9, None: 21},
        "empathy": {2: 3, 3: 18, 4: 45, 5: 108, None: 21},
        "relevance": {2: 3, 3: 11, 4: 41, 5: 119, None: 21},
    },
    "FailedESConv.json": {
        "turns": {"seeker": 1592, "supporter": 1309},
        "first": {"seeker": 59, "supporter": 39},
        "longest": 28,
        "pairs": 763,
        "situations": 93,
        "initial_emotion_intensity": {1: 1, 2: 5, 3: 16, 4: 38, 5: 38},
        "final_emotion_intensity": {1: 5, 2: 8, 3: 14, 4: 19, 5: 27, None: 25},
        "empathy": {1: 15, 2: 27, 3: 11, 4: 12, 5: 8, None: 25},
        "relevance": {1: 12, 2: 16, 3: 20, 4: 15, 5: 10, None: 25},
    },
}


def runs(speakers):
    longest = current = pairs = 0
    for index, speaker in enumerate(speakers):
        same = index > 0 and speakers[index - 1] == speaker
        pairs += same
        current = current + 1 if same else 1
        longest = max(longest, current)
    return longest, pairs


@pytest.mark.parametrize("name", EXPECTED)
def test_counts_of_the_real_files(real_data, tmp_path, name):
    conversion = get_source("esconv").read(real_data / "esconv" / name)
    dialogues = conversion.dialogues
    counted = {
        "turns": Counter(turn.speaker for dialogue in dialogues for turn in dialogue.turns),
        "first": Counter(dialogue.turns[0].speaker for dialogue in dialogues),
        "longest": max(runs([turn.speaker for turn in dialogue.turns])[0] for dialogue in dialogues),
        "pairs": sum(runs([turn.speaker for turn in dialogue.turns])[1] for dialogue in dialogues),
        "situations": len({dialogue.situation for dialogue in dialogues}),
    }
    for key in ("initial_emotion_intensity", "final_emotion_intensity"):
        counted[key] = Counter(dialogue.meta[key] for dialogue in dialogues)
    for key in ("empathy", "relevance"):
        counted[key] = Counter(rating.value for rating in conversion.ratings if rating.dimension == key)
    assert counted == EXPECTED[name]
    assert not conversion.refused
    assert balanced(conversion)
    assert not conversion.missing["supporter turn without strategy"]
    assert {turn.strategy for dialogue in dialogues for turn in dialogue.turns} == {None, *STRATEGIES}
    write_records(tmp_path / "out.jsonl", dialogues)
    assert read_records(tmp_path / "out.jsonl", type(dialogues[0])) == dialogues


def test_repairs_of_the_real_failed_dialogues(real_data):
    path = real_data / "esconv" / "FailedESConv.json"
    turns = [turn for record in json.loads(path.read_text(encoding="utf-8")) for turn in record["dialog"]]
    conversion = get_source("esconv").read(path)
    assert conversion.repairs == {
        "experience_type lower-cased": 98,
        "strategy spelling": sum(turn["annotation"].get("strategy") in ("Questions", "Other") for turn in turns),
        "whitespace at the edge of a turn": sum(turn["content"] != turn["content"].strip() for turn in turns),
    }
    feedback = Counter(turn.meta.get("feedback") for dialogue in conversion.dialogues for turn in dialogue.turns)
    assert feedback == Counter(int(f) if (f := turn["annotation"].get("feedback")) else None for turn in turns)


# ---- property: a record or a refusal, never anything else


texts = st.text(max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def nearly(good):
    """Mostly what belongs there, now and then something else."""
    return st.integers(0, 7).flatmap(lambda draw: anything if draw == 0 else good)


def some_of(fields):
    return st.fixed_dictionaries({}, optional={name: nearly(value) for name, value in fields.items()})


levels = st.integers(-1, 7) | st.integers(-1, 7).map(str)
strategies = st.sampled_from([*STRATEGIES, "Questions", "Other", None])
raw_turns = some_of(
    {
        "speaker": st.sampled_from(sorted(SPEAKERS)),
        "text": texts,
        "strategy": strategies,
        "annotation": some_of({"strategy": strategies, "feedback": levels}),
    }
) | st.fixed_dictionaries({"speaker": st.sampled_from(sorted(SPEAKERS)), "content": texts})
survey = some_of(
    dict.fromkeys(("initial_emotion_intensity", "final_emotion_intensity", "empathy", "relevance"), levels)
)
raw_records = some_of(
    {
        "experience_type": texts,
        "emotion_type": texts,
        "problem_type": texts,
        "situation": texts,
        "survey_score": some_of({"seeker": survey, "supporter": survey}),
        "dialog": st.lists(nearly(raw_turns), max_size=5),
        "seeker_question1": texts,
        "other": anything,
    }
)


@settings(max_examples=250, deadline=None)
@given(records=st.lists(nearly(raw_records), min_size=1, max_size=4), as_lines=st.booleans())
def test_whatever_comes_is_converted_or_refused(records, as_lines):
    # The first record is a good one: the file is then known as ours, and the rest has to be accounted for.
    rows = [json.dumps(record) for record in (hub(), *records)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.json"
        path.write_text("\n".join(rows) if as_lines else f"[{','.join(rows)}]", encoding="utf-8")
        try:
            conversion = get_source("esconv").read(path)
        except UserError:
            # Half characters and infinities make an array unreadable as a whole; lines are refused one by one.
            assert not as_lines
            return
    assert len(conversion.dialogues) + len(conversion.refused) == len(rows)
    assert conversion.dialogues[0].turns[1].text == SECRET
    assert len(conversion.ratings) == 2 * len(conversion.dialogues)
    assert balanced(conversion)
    check_ratings((("x", rating) for rating in conversion.ratings), load_rubric("esconv_survey"))
    for record in (*conversion.dialogues, *conversion.ratings):
        assert type(record).model_validate(json.loads(dump_line(record))) == record
