import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.records import (
    Dialogue,
    Rating,
    RoleCard,
    Turn,
    describe_invalid,
    dump_line,
    parse_json,
    read_records,
    read_text,
    write_records,
    write_text,
)

SECRET = "nobody may read this sentence"
LINE = {
    "id": "d1",
    "language": "en",
    "source": "made",
    "turns": [{"speaker": "seeker", "text": SECRET}, {"speaker": "supporter", "text": "I am here."}],
}


def put(tmp_path, content: str | bytes, name="d.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def line(**changes) -> str:
    return json.dumps({**LINE, **changes}, ensure_ascii=False)


def test_bom_and_crlf_are_accepted(tmp_path):
    content = b"\xef\xbb\xbf" + f"{line()}\r\n\r\n{line(id='d2')}\r\n".encode()
    assert [dialogue.id for dialogue in read_records(put(tmp_path, content), Dialogue)] == ["d1", "d2"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_refused_by_name_or_as_not_utf8(tmp_path, encoding):
    path = put(tmp_path, line().encode(encoding))
    with pytest.raises(UserError, match=r"d\.jsonl"):
        read_records(path, Dialogue)
    if encoding == "utf-16":
        with pytest.raises(UserError, match="UTF-16, expected UTF-8"):
            read_text(path)


def test_invalid_utf8_names_the_line(tmp_path):
    path = put(tmp_path, line().encode() + b"\n" + b"\xff\xfa\n")
    with pytest.raises(UserError, match=r"d\.jsonl:2: is not valid UTF-8"):
        read_text(path)


@pytest.mark.parametrize("make", ["missing", "folder"])
def test_unreadable_paths(tmp_path, make):
    path = tmp_path if make == "folder" else tmp_path / "absent.jsonl"
    with pytest.raises(UserError, match="is a folder" if make == "folder" else "file not found"):
        read_text(path)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (line()[:-5], "not valid JSON"),
        ("[]", "record: found list"),
        (line(turns=[]), "turns: found list, expected"),
        (line(turns=None), "turns: found NoneType"),
        (line(language="fr"), "language: found 'fr'"),
        (line(situatoin="x"), "situatoin: found str"),
        (line(turns=[{"speaker": "I am sad", "text": SECRET}]), r"turns\.0\.speaker: found another text, expected: .*"),
        (line(turns=[{"speaker": "client", "text": SECRET}]), r"turns\.0\.speaker: found 'client'"),
        (line(turns=[{"speaker": "seeker", "text": [SECRET]}]), r"turns\.0\.text: found list"),
        (line(turns=[{"speaker": "seeker"}]), r"turns\.0\.text: found nothing"),
        (line(id=3), "id: found int"),
        (line(id=""), "id: found str"),
        ('{"id": "a", "id": "b"}', "key 'id' occurs twice"),
        (line(meta={"x": "<NaN>"}).replace('"<NaN>"', "NaN"), "NaN is not JSON"),
        (line(meta={"x": 1}).replace(": 1}", ": -Infinity}"), "-Infinity is not JSON"),
        (line(meta={"x": 1}).replace(": 1}", ": 1e999}"), "too large"),
        (line(meta={"x": 1}).replace(": 1}", f": {'9' * 5000}}}"), "too many digits"),
        (line(meta={"x": 1}).replace(": 1}", ': "\\ud83d"}'), "half a character"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_line_is_named_and_its_text_is_not_quoted(tmp_path, broken, says):
    path = put(tmp_path, f"{line(id='d0')}\n\n{broken}\n")
    with pytest.raises(UserError, match=rf"d\.jsonl:3.*{says}") as caught:
        read_records(path, Dialogue)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_repeated_id_names_both_lines(tmp_path):
    path = put(tmp_path, f"{line()}\n{line(id='d2')}\n{line()}\n")
    with pytest.raises(UserError, match=r":3: id 'd1' is already used at .*:1"):
        read_records(path, Dialogue)


def test_a_file_without_records_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no Dialogue record"):
        read_records(put(tmp_path, "\n \n"), Dialogue)


@pytest.mark.parametrize(
    "odd", ["a\u2028b", "a\u0085b", "a\u2029b", "\ufeff", "<|im_end|>", "{{ x }}", "a\r\nb", "\x00"]
)
def test_odd_characters_inside_texts_survive(tmp_path, odd):
    dialogue = Dialogue(id="d", language="zh", source="made", turns=(Turn(speaker="seeker", text=odd),))
    path = tmp_path / "d.jsonl"
    write_records(path, [dialogue, dialogue.model_copy(update={"id": "e"})])
    assert [found.turns[0].text for found in read_records(path, Dialogue)] == [odd, odd]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_rating_is_nan_or_infinite(value):
    with pytest.raises(ValueError, match="finite"):
        Rating(dialogue_id="d", rater="r", rubric="esc_eval", dimension="empathy", value=value)


def test_records_cannot_be_changed():
    turn = Turn(speaker="seeker", text="a")
    with pytest.raises(ValueError, match="frozen"):
        turn.text = "b"


def test_invalid_description_counts_the_other_faults():
    with pytest.raises(ValueError, match="validation errors") as caught:
        Dialogue.model_validate({"id": "", "language": "xx"})
    assert "(and 3 more)" in describe_invalid(caught.value)


def test_writing_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "d.jsonl"
    write_text(path, "old")

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match=r"d\.jsonl: cannot be written \(No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["d.jsonl"]


def test_writing_onto_a_folder_is_a_user_error(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write_text(tmp_path / "d", "x")
    assert os.listdir(tmp_path) == ["d"]


def test_unencodable_text_leaves_no_temporary_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "d", "\ud800")
    assert os.listdir(tmp_path) == []


def test_surrogate_pairs_are_read_as_one_character():
    assert parse_json('"\\ud83d\\ude00"', "f") == "😀"
    assert parse_json('"\\\\ud83d"', "f") == "\\ud83d"


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", "Age: 31\nGender: Not mentioned\nOccupation: Not mentioned\nProblem: lost a job"),
        ("zh", "年龄：31\n性别：未提及\n职业：未提及\n问题：lost a job"),
    ],
)
def test_a_card_made_of_fields_reads_as_four_lines(language, expected):
    card = RoleCard(id="c", language=language, age="31", problem="lost a job", source="made")
    assert card.as_text() == expected
    assert card.model_copy(update={"text": "as published"}).as_text() == "as published"


# ---- property: what is written is read back


texts = st.text(st.characters(codec="utf-8"), max_size=40)
names = texts.filter(bool)
optional = st.none() | texts
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
metas = st.dictionaries(texts, json_values, max_size=3)
languages = st.sampled_from(["en", "zh"])
cards = st.builds(
    RoleCard,
    id=names,
    language=languages,
    age=optional,
    gender=optional,
    occupation=optional,
    problem=optional,
    category=st.lists(texts, max_size=3).map(tuple),
    source=names,
    quality=st.sampled_from([None, "high", "middle", "low"]),
    text=optional,
    meta=metas,
)
turns = st.builds(Turn, speaker=st.sampled_from(["seeker", "supporter"]), text=texts, strategy=optional, meta=metas)
dialogues = st.builds(
    Dialogue,
    id=names,
    language=languages,
    source=names,
    turns=st.lists(turns, min_size=1, max_size=4).map(tuple),
    card=st.none() | cards,
    situation=optional,
    meta=metas,
)
ratings = st.builds(
    Rating,
    dialogue_id=names,
    rater=names,
    rubric=names,
    dimension=names,
    value=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    reason=optional,
)


@pytest.mark.parametrize(("kind", "made"), [(RoleCard, cards), (Dialogue, dialogues), (Rating, ratings)])
def test_records_survive_jsonl(kind, made, tmp_path):
    path = tmp_path / "records.jsonl"

    @settings(max_examples=60, deadline=None)
    @given(st.lists(made, min_size=1, max_size=4, unique_by=lambda record: getattr(record, "id", id(record))))
    def round_trip(records):
        write_records(path, records)
        assert read_records(path, kind) == records
        assert path.read_bytes().count(b"\n") == len(records)
        assert "".join(dump_line(record) for record in records).encode() == path.read_bytes()

    round_trip()


def test_a_device_or_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="is a device or a pipe"):
        write_text(pipe, "x")
    assert pipe.is_fifo()


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path):
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
