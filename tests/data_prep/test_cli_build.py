"""`esckit data build`: whole folders, the same bytes every time, and one line for every mistake."""

import json
import random
import shutil

import pytest

from data_prep.records import Dialogue, Rating, read_records, sha256_of, write_records
from data_prep.sample import Sample
from tests.data_prep.made_dialogues import card, dialogue
from tests.data_prep.test_data_cli import call, fails

SECRET = "nobody may read this sentence"
# The made dialogues differ in a number only, so nearness would keep them all on one side.
SPLIT = ("--split", "train=0.8,valid=0.2", "--near", "0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two files of dialogues, ratings of them, cards and general chat data; the current folder."""
    monkeypatch.chdir(tmp_path)
    made = [
        dialogue(f"d{number:02d}", f"s:{number} years ago it all began for me", "p[Question]:how so?", "s:so")
        for number in range(20)
    ]
    write_records("one.jsonl", made[:12])
    write_records("two.jsonl", made[12:])
    ratings = [
        Rating(dialogue_id=d.id, rater=rater, rubric="esconv_survey", dimension=name, value=1 + len(rater + name) % 5)
        for d in made
        for rater in ("ann", "bo")
        for name in ("empathy", "relevance")
    ]
    write_records("ratings.jsonl", ratings)
    write_records("cards.jsonl", [card(d.id, problem="another") for d in made[:15]])
    rows = [{"conversations": [{"from": "human", "value": f"say {n}"}, {"from": "gpt", "value": f"{n}"}]}
            for n in range(40)]  # fmt: skip
    (tmp_path / "general.json").write_text(json.dumps(rows), encoding="utf-8")
    return tmp_path


def shuffled(name, target):
    """The same records in another order."""
    lines = (name.read_text(encoding="utf-8")).splitlines(keepends=True)
    random.Random(5).shuffle(lines)
    target.write_text("".join(lines), encoding="utf-8")


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


COMMANDS = {
    "role": ("role", "one.jsonl", "two.jsonl", "--mix", "general.json=1.5", *SPLIT),
    "turns": ("role", "one.jsonl", "two.jsonl", "--mix", "general.json=1.5", "--per-turn", *SPLIT),
    "supporter": ("supporter", "one.jsonl", "two.jsonl", "--strategy", "prefix", "--situation", "--persona", *SPLIT),
    "rank": ("rank", "one.jsonl", "two.jsonl", "ratings.jsonl", "--rubric", "esconv_survey", *SPLIT),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_build_is_the_same_bytes_again_in_any_order_and_anywhere(kind, folder, monkeypatch):
    arguments = list(COMMANDS[kind])
    result = call("build", *arguments, "--out", "first")
    assert result.exit_code == 0, result.output
    first = bytes_of(folder / "first")
    assert call("build", *arguments, "--out", "first").exit_code == 0
    assert bytes_of(folder / "first") == first
    files = [name for name in arguments if name.endswith(".jsonl")]
    assert call("build", arguments[0], *files[::-1], *arguments[1 + len(files) :], "--out", "second").exit_code == 0
    assert bytes_of(folder / "second") == first
    # Another folder, the lines of every file in another order: the data are the same, only the hashes of what was
    # read differ.
    elsewhere = folder / "else where"
    elsewhere.mkdir()
    for name in (*files, "general.json"):
        shuffled(folder / name, elsewhere / name)
    monkeypatch.chdir(elsewhere)
    assert call("build", *arguments, "--out", "out").exit_code == 0
    third = bytes_of(elsewhere / "out")
    sheets = {"datasheet.md", "datasheet.json"}
    assert {name: third[name] for name in third if name not in sheets} == {
        name: first[name] for name in first if name not in sheets
    }
    for content in (first, third):
        assert not [name for name, data in content.items() if str(folder).encode() in data]


def test_the_datasheet_counts_and_hashes_what_is_there(folder):
    result = call("build", *COMMANDS["role"], "--out", "role", "--json")
    assert result.exit_code == 0, result.output
    sheet = json.loads((folder / "role/datasheet.json").read_text(encoding="utf-8"))
    assert json.loads(result.stdout) == sheet
    for entry in sheet["outputs"]:
        path = folder / "role" / entry["file"]
        assert entry["sha256"] == sha256_of(path)
        assert entry["records"] == len(path.read_text(encoding="utf-8").splitlines())
    for entry in sheet["inputs"]:
        assert entry["sha256"] == sha256_of(folder / entry["file"])
    assert {entry["file"] for entry in sheet["inputs"]} == {"one.jsonl", "two.jsonl", "general.json"}
    assert [(source["source"], source["records"]) for source in sheet["sources"]] == [
        ("general.json", 24),
        ("made", 20),
    ]
    assert sheet["parts"][0]["counts"] == {
        "dialogues": 16,
        "samples": 40,
        "learned messages": 56,
        "general samples among them": 24,
    }
    assert sheet["figures"] == {"general conversations mixed in from general.json": 24}
    assert sheet["settings"]["seed"] == 0
    assert {(leak["a"], leak["b"]) for leak in sheet["leaks"]} == {("train", "valid")}
    exact = ("id", "card", "situation", "opening", "text")
    assert sum(leak["shared"] for leak in sheet["leaks"] if leak["kind"] in exact) == 0
    assert sum(leak["shared"] for leak in sheet["leaks"] if leak["kind"] == "near_text") > 0  # --near 0, and told so
    train = read_records(folder / "role/train.messages.jsonl", Sample)
    assert sum(sample.side is None for sample in train) == 24
    valid = read_records(folder / "role/valid.messages.jsonl", Sample)
    assert [sample.id for sample in valid] == [d.id for d in read_records(folder / "role/valid.jsonl", Dialogue)]
    again = sheet["command"].replace("DIR", "again").split()
    assert again[:3] == ["esckit", "data", "build"]
    assert call(*again[2:]).exit_code == 0
    assert bytes_of(folder / "again") == bytes_of(folder / "role")


def test_refused_dialogues_are_named_by_line_without_their_text(folder):
    bad = dialogue("x", f"s:{SECRET}", f"p:{SECRET}", with_card=False)
    write_records("three.jsonl", [dialogue("y"), bad])
    result = call("build", "role", "three.jsonl", "one.jsonl", "--out", "role")
    assert result.exit_code == 1
    assert "refused three.jsonl:2: no role card" in result.stderr
    assert SECRET not in result.output
    sheet = json.loads((folder / "role/datasheet.json").read_text(encoding="utf-8"))
    assert sheet["refused"] == {"no role card": 1}
    assert sheet["refused_records"] == ["three.jsonl:2"]
    assert sheet["parts"][0]["counts"]["dialogues"] == 13
    result = call("build", "role", "one.jsonl", "two.jsonl", "--cards", "cards.jsonl", "--out", "joined")
    assert result.exit_code == 1
    assert len(read_records("joined/train.jsonl", Dialogue)) == 15
    assert {d.card.problem for d in read_records("joined/train.jsonl", Dialogue)} == {"another"}


def test_faulty_ratings_are_refused_by_line_and_the_rest_is_built(folder):
    with open("ratings.jsonl", "a", encoding="utf-8") as handle:
        for value in (9, 2.5):
            bad = {"dialogue_id": "d00", "rater": "cy", "rubric": "esconv_survey", "dimension": "empathy"}
            handle.write(json.dumps({**bad, "value": value}) + "\n")
    result = call("build", *COMMANDS["rank"], "--out", "rank")
    assert result.exit_code == 1
    assert "refused ratings.jsonl:81: value 9 of empathy is off the scale 1..5" in result.stderr
    sheet = json.loads((folder / "rank/datasheet.json").read_text(encoding="utf-8"))
    assert sheet["refused"] == {"rating off the scale": 2}
    assert len(read_records("rank/train.ratings.jsonl", Rating)) == 64
    result = call("build", *COMMANDS["rank"], "--rubric", "esc_eval", "--out", "other")
    assert "the ratings are for rubric esconv_survey, not esc_eval" in str(result.exception)


def test_nlpcc_files_are_taken_as_published(folder):
    lines = ["seeker:It closes.", "supporter: I am sorry."]
    profile = {"Name": "Ann", "Hobby": "Chess", "situation": "The bakery closes."}
    content = {"1": {"whole_dialog": lines, "character": profile}, "2": {"whole_dialog": [SECRET], "character": {}}}
    (folder / "val.json").write_text(json.dumps(content), encoding="utf-8")
    result = call("build", "supporter", "val.json", "--persona", "--situation", "--out", "set", "--json")
    assert result.exit_code == 1
    sheet = json.loads(result.stdout)
    assert sheet["refused"] == {"does not begin with seeker: or supporter:": 1}
    assert sheet["repairs"]["whitespace at the edge of a turn"] == 1
    assert sheet["refused_records"] == ["val.json: record '2'"]
    system = read_records("set/train.messages.jsonl", Sample)[0].messages[0].content
    assert "Name: Ann\nHobby: Chess" in system
    assert "The bakery closes." in system
    assert SECRET not in result.output


def test_conversion_reports_and_licences_go_into_the_datasheet(folder):
    report = {"source": "esconv", "path": "/home/someone/train.txt", "repairs": {"x": 2}, "missing": {}, "refused": [1]}
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    options = ("--report", "report.json", "--licence", "made=written | for tests", "--out", "set")
    assert call("build", "role", "one.jsonl", *options).exit_code == 0
    page = (folder / "set/datasheet.md").read_text(encoding="utf-8")
    assert "### Before: conversion of train.txt as esconv" in page
    assert "someone" not in page + (folder / "set/datasheet.json").read_text(encoding="utf-8")
    assert "| made | written \\| for tests | 12 |" in page
    (folder / "report.json").write_text("[1]", encoding="utf-8")
    assert "is no conversion report" in fails("build", "role", "one.jsonl", "--report", "report.json", "--out", "s")


def test_nothing_is_overwritten_or_left_beside_the_new_parts(folder):
    assert call("build", *COMMANDS["role"], "--out", "set").exit_code == 0
    before = bytes_of(folder / "set")
    message = fails("build", "role", "one.jsonl", "two.jsonl", "--out", "set")
    assert "holds valid.jsonl, which this build does not make" in message
    assert bytes_of(folder / "set") == before
    shutil.copy("one.jsonl", "train.jsonl")
    assert "would be overwritten" in fails("build", "role", "train.jsonl", "--out", ".")
    assert "is a file; --out names a folder" in fails("build", "role", "one.jsonl", "--out", "two.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("role", "one.jsonl", "one.jsonl"), r"id 'd00' is already used at one.jsonl:1"),
        (("role", "absent.jsonl"), "file not found"),
        (("role", "ratings.jsonl"), "ratings.jsonl: holds ratings, expected dialogues"),
        (("role", "one.jsonl", "--split", "train=0.9"), "two or more parts"),
        (("role", "one.jsonl", "--split", "train:0.9"), "--split: 'train:0.9' is not name=number"),
        (("role", "one.jsonl", "--mix", "general.json"), "--mix: 'general.json' is not NAME=VALUE"),
        (("role", "one.jsonl", "--mix", "general.json=many"), "the ratio is 'many'"),
        (("role", "one.jsonl", "--mix", "general.json=NaN"), "the ratio is 'NaN'"),
        (("role", "one.jsonl", "--mix", "general.json=-1"), "the ratio is '-1'"),
        (("role", "one.jsonl", "--mix", "general.json=9"), "asks for 108 conversations, there are 40"),
        (
            ("role", "one.jsonl", "--mix", "cards.jsonl=1"),
            "none of its 15 records is a conversation; expected a list under `messages`",
        ),
        (("role", "one.jsonl", "--mix", "two.jsonl=1"), "--mix two.jsonl: holds esckit dialogues, not general chat"),
        (("rank", "general.json", "ratings.jsonl"), "is not a file of esckit dialogues, it looks like source sharegpt"),
        (("role", "one.jsonl", "--licence", "x=CC0"), "the sources are: made"),
        (("role", "one.jsonl", "--prompt", "no-such"), "unknown prompt 'no-such'"),
        (("rank", "one.jsonl", "two.jsonl"), "none of the files holds ratings"),
        (("rank", "ratings.jsonl"), "none of the files holds dialogues"),
        (("rank", "one.jsonl", "ratings.jsonl", "--rubric", "esconv"), "unknown rubric"),
    ],
)
def test_mistakes_are_one_line(arguments, message, folder):
    told = fails("build", *arguments, "--out", "set")
    assert message in told
    assert "\n" not in told
    assert not (folder / "set").exists()


def test_real_esconv_makes_sets_of_the_counted_size(folder, real_data):
    path = real_data / "esconv" / "train.txt"
    assert call("convert", "esconv", path, "--out", "e.jsonl", "--ratings-out", "r.jsonl").exit_code == 0
    learned = {}
    for kind, opened in (("role", 422), ("supporter", 0)):
        assert call("build", kind, "e.jsonl", "--out", kind).exit_code == 0
        sheet = json.loads((folder / kind / "datasheet.json").read_text(encoding="utf-8"))
        assert sheet["repairs"]["turn merged into the turn of the same speaker before it"] == 5475
        assert sheet["repairs"].get("greeting put before a dialogue that the trained side opens", 0) == opened
        assert sheet["sources"] == [{"source": "esconv", "licence": "CC BY-NC 4.0", "records": 910}]
        learned[kind] = sheet["parts"][0]["counts"]["learned messages"]
    assert learned["role"] + learned["supporter"] == 13889 + 12759 - 5475
    assert call("build", "rank", "e.jsonl", "r.jsonl", "--rubric", "esconv_survey", "--out", "rank").exit_code == 0
    sheet = json.loads((folder / "rank/datasheet.json").read_text(encoding="utf-8"))
    assert sheet["parts"][0]["counts"] == {"dialogues": 800, "ratings": 1600}
    assert sheet["missing"] == {"dialogue whose ratings have no value: left out": 110}
