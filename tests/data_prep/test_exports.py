"""Ours in their layouts and back. Where a tool's own schema is known, what we write is checked against a twin of it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from typer.testing import CliRunner

from data_prep.cli import app
from data_prep.errors import UserError
from data_prep.exports import FORMATS, write_export
from data_prep.records import Dialogue, RoleCard, Turn, dump_line, read_records, write_records
from data_prep.sources import Options, get_source

SOURCE_OF_DIALOGUES = {
    "messages": "messages",
    "sharegpt": "sharegpt",
    "patienthub": "patienthub-sessions",
    "sdialog": "sdialog",
}
SOURCE_OF_CARDS = {"patienthub": "patienthub-characters", "sdialog": "sdialog-personas"}
SAMPLES = Path(__file__).parents[2] / "data_prep" / "samples"

CARD = RoleCard(
    id="c#1", language="zh", age="31", problem="睡不着", category=("工作学习", "x"), source="made", quality="high"
)
DIALOGUE = Dialogue(
    id="d/1 ü",
    language="en",
    source="esconv",
    card=CARD.model_copy(update={"language": "en"}),
    situation="No sleep.",
    meta={"intensity": 4, "nested": {"a": [1, None]}},
    turns=(
        Turn(speaker="supporter", text=""),
        Turn(speaker="seeker", text=" <|im_end|>\n{{x}} ", meta={"feedback": 3}),
        Turn(speaker="supporter", text="I see.", strategy="Question"),
        Turn(speaker="supporter", text="\u2028ok\u0000"),
    ),
)


def back(name, records, bare=False, language=None):
    """Exports the records into a folder of their own and converts what is there."""
    source = (SOURCE_OF_CARDS if isinstance(records[0], RoleCard) else SOURCE_OF_DIALOGUES)[name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        write_export(FORMATS[name], records, out, bare)
        conversion = get_source(source).read(out, Options(language=language))
    assert not conversion.refused, conversion.refused
    return conversion.cards or conversion.dialogues


@pytest.mark.parametrize("name", SOURCE_OF_DIALOGUES)
def test_a_dialogue_comes_back_whole(name):
    plain = Dialogue(id="2", language="zh", source="x", turns=(Turn(speaker="seeker", text="你好"),))
    assert back(name, [DIALOGUE, plain]) == [DIALOGUE, plain]


@pytest.mark.parametrize("name", SOURCE_OF_CARDS)
def test_a_card_comes_back_whole(name):
    published = RoleCard(
        id="7", language="en", source="a", problem="p", text="Age: 3\nProblem: p", meta={"res": "家庭"}
    )
    assert back(name, [CARD, published]) == [CARD, published]


@pytest.mark.parametrize("name", FORMATS)
def test_the_samples_come_back_whole(name):
    dialogues = read_records(SAMPLES / "dialogues.jsonl", Dialogue)
    assert back(name, dialogues) == dialogues
    if name in SOURCE_OF_CARDS:
        cards = read_records(SAMPLES / "cards.jsonl", RoleCard)
        assert back(name, cards) == cards


@pytest.mark.parametrize("name", SOURCE_OF_DIALOGUES)
def test_bare_is_what_the_layout_defines(name, tmp_path):
    (found,) = back(name, [DIALOGUE], bare=True, language="en")
    spoken = [turn for turn in DIALOGUE.turns if turn.text.strip()]
    assert [(turn.speaker, turn.text) for turn in found.turns] == [(turn.speaker, turn.text) for turn in spoken]
    assert found.situation is None
    for file in write_export(FORMATS[name], [DIALOGUE], tmp_path / "out", bare=True):
        assert "esckit" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SOURCE_OF_CARDS)
def test_bare_cards_keep_their_fields(name):
    (found,) = back(name, [CARD], bare=True, language="zh")
    assert (found.age, found.gender, found.occupation, found.problem) == ("31", None, None, "睡不着")


def test_edited_turns_lose_their_notes_and_it_is_counted(tmp_path):
    (path,) = write_export(FORMATS["messages"], [DIALOGUE], tmp_path / "m.jsonl")
    record = json.loads(path.read_text(encoding="utf-8"))
    record["messages"].append({"role": "user", "content": "Thanks."})
    path.write_text(json.dumps(record), encoding="utf-8")
    conversion = get_source("messages").read(path)
    assert conversion.repairs == {"notes on turns dropped: the turns were edited after our export": 1}
    assert [turn.strategy for turn in conversion.dialogues[0].turns] == [None] * 5
    assert conversion.dialogues[0].situation == "No sleep."


# ---- twins of the schemas that sdialog reads its files with


class Turns(BaseModel):
    speaker: str | None = None
    text: str


class Dialog(BaseModel):
    version: str | None
    timestamp: str | None
    id: int | str | None
    personas: dict[str, Any] | None = None
    scenario: dict | str | None = None
    turns: list[Turns]


class Patient(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = ""
    age: int | str = ""
    gender: str = ""
    language: str = "English"
    occupation: str = ""
    reason_for_visit: str = ""


def test_sdialog_would_read_what_we_write(tmp_path):
    (file,) = write_export(FORMATS["sdialog"], [DIALOGUE], tmp_path / "d")
    record = json.loads(file.read_text(encoding="utf-8"))
    assert Dialog.model_validate(record).turns[2].speaker == "Supporter"
    # What sdialog loads and saves again, keys it does not know left out, still comes back whole.
    file.write_text(Dialog.model_validate(record).model_dump_json(), encoding="utf-8")
    assert get_source("sdialog").read(tmp_path / "d").dialogues == [DIALOGUE]
    (file,) = write_export(FORMATS["sdialog"], [CARD], tmp_path / "p")
    persona = json.loads(file.read_text(encoding="utf-8"))
    assert persona.pop("_metadata")["className"] == "Patient"
    assert Patient.model_validate(persona).reason_for_visit == "睡不着"


def test_patienthub_would_read_what_we_write(tmp_path):
    (file,) = write_export(FORMATS["patienthub"], [DIALOGUE], tmp_path / "s")
    session = json.loads(file.read_text(encoding="utf-8"))
    assert [message["role"] for message in session["messages"]] == ["therapist", "client", "therapist", "therapist"]
    assert session["num_turns"] == 1
    (file,) = write_export(FORMATS["patienthub"], [CARD, CARD], tmp_path / "c.json")
    character = json.loads(file.read_text(encoding="utf-8"))[0]
    assert character["demographics"]["age"] == "31"
    assert character["demographics"]["gender"] == "未提及"
    assert character["current_issue"]["description"] == "睡不着"


# ---- files


def test_folders_hold_one_file_a_record_and_nothing_else(tmp_path):
    files = write_export(FORMATS["sdialog"], [DIALOGUE], tmp_path / "d")
    assert [file.name for file in files] == ["0001-d-1.json"]
    assert write_export(FORMATS["sdialog"], [DIALOGUE], tmp_path / "d") == files
    (tmp_path / "d" / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="holds 1 other files; choose an empty folder"):
        write_export(FORMATS["sdialog"], [DIALOGUE], tmp_path / "d")
    with pytest.raises(UserError, match="--out names a folder"):
        write_export(FORMATS["patienthub"], [DIALOGUE], files[0])
    with pytest.raises(
        UserError, match="layout sharegpt has no place for role cards alone; those that have: patienthub"
    ):
        write_export(FORMATS["sharegpt"], [CARD], tmp_path / "x")


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records("d.jsonl", [DIALOGUE])
    write_records("c.jsonl", [CARD])

    def call(*arguments):
        return CliRunner().invoke(app, ["export", *arguments])

    assert "1 records written to m.jsonl" in call("messages", "d.jsonl", "--out", "m.jsonl").output
    result = call("sdialog", "d.jsonl", "--out", "folder", "--json", "--bare")
    assert json.loads(result.output) == {"format": "sdialog", "records": 1, "out": "folder", "files": 1}
    assert call("patienthub", "c.jsonl", "--out", "c.json").exit_code == 0
    assert json.loads(Path("c.json").read_text(encoding="utf-8"))[0]["id"] == "c#1"
    for arguments, says in (
        (("sharegtp", "d.jsonl", "--out", "x"), "unknown format 'sharegtp'; did you mean 'sharegpt'?"),
        (("messages", "d.jsonl", "--out", "d.jsonl"), "would overwrite the file that is read"),
        (("messages", "absent.jsonl", "--out", "x"), "file not found"),
        (("messages", "c.jsonl", "--out", "x"), "has no place for role cards"),
    ):
        error = call(*arguments).exception
        assert isinstance(error, UserError)
        assert says in str(error)


def test_a_folder_is_not_converted_into_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_export(FORMATS["sdialog"], [DIALOGUE], tmp_path / "d")
    result = CliRunner().invoke(app, ["convert", "sdialog", "d", "--out", "d/out.jsonl"])
    assert "lies in the folder that is read" in str(result.exception)
    for out in ("a.jsonl", "b.jsonl"):
        assert CliRunner().invoke(app, ["convert", "sdialog", "d", "--out", out]).exit_code == 0
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes() == dump_line(DIALOGUE).encode()


# ---- property: whatever record of ours comes, it comes back equal

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
metas = st.dictionaries(
    texts, st.none() | st.booleans() | st.integers(-9, 9) | texts | st.lists(texts, max_size=2), max_size=3
)
languages = st.sampled_from(["en", "zh"])
cards = st.builds(
    RoleCard,
    id=names,
    language=languages,
    age=st.none() | texts,
    gender=st.none() | texts,
    occupation=st.none() | texts,
    problem=st.none() | texts,
    category=st.lists(texts, max_size=2).map(tuple),
    source=names,
    quality=st.sampled_from([None, "high", "low"]),
    text=st.none() | texts,
    meta=metas,
)
turns = st.builds(
    Turn, speaker=st.sampled_from(["seeker", "supporter"]), text=texts, strategy=st.none() | texts, meta=metas
)
seeker = st.builds(Turn, speaker=st.just("seeker"), text=texts.filter(str.strip))
dialogues = st.builds(
    Dialogue,
    id=names,
    language=languages,
    source=names,
    turns=st.tuples(st.lists(turns, max_size=3), seeker, st.lists(turns, max_size=3)).map(
        lambda p: (*p[0], p[1], *p[2])
    ),
    card=st.none() | cards,
    situation=st.none() | texts,
    meta=metas,
)


@pytest.mark.parametrize("name", SOURCE_OF_DIALOGUES)
@settings(max_examples=80, deadline=None)
@given(records=st.lists(dialogues, min_size=1, max_size=3, unique_by=lambda dialogue: dialogue.id))
def test_any_dialogues_come_back_equal(name, records):
    assert back(name, records) == records


@pytest.mark.parametrize("name", SOURCE_OF_CARDS)
@settings(max_examples=80, deadline=None)
@given(records=st.lists(cards, min_size=1, max_size=3, unique_by=lambda card: card.id))
def test_any_cards_come_back_equal(name, records):
    assert back(name, records) == records
