"""Records one at a time: reading in pieces, writing as they come, the same bytes again."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_prep.cli import app, write_converted
from data_prep.errors import UserError
from data_prep.records import Dialogue, Replacing, Turn, read_records
from data_prep.sources import SOURCES, Conversion, Options, Source, get_source, reading
from data_prep.sources.base import json_records
from tests.data_prep.source_checks import anything, put

FOLDERS = {
    "esconv": "esconv",
    "extes": "extes",
    "epitome": "epitome",
    "psyqa": "psyqa",
    "smile": "smile",
    "cpsycound": "cpsycoun",
    "cpsycoune": "cpsycoun",
}


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def dialogue(name):
    return Dialogue(id=name, language="en", source="made", turns=(Turn(speaker="seeker", text="hi"),))


def source(**more) -> Source:
    return Source(
        name="made", title="t", languages=("en",), licence="l", files=("f",), origin="o", makes="dialogues", **more
    )


def turns(count):
    return [
        {"role": "counselor" if n % 2 else "client", "content": f"第{n}句话。", "annotation": []} for n in range(count)
    ]


# ---- reading


@settings(max_examples=200, deadline=None)
@given(st.lists(anything, max_size=6), st.sampled_from([None, 1]), st.integers(1, 9))
def test_an_array_read_in_pieces_is_the_array(tmp_path_factory, values, indent, block):
    path = put(
        tmp_path_factory.mktemp("array") / "a.json", json.dumps(values, indent=indent, ensure_ascii=False) + "\n "
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", block)
        assert list(reading.array_values(path)) == list(enumerate(values, start=1))


@pytest.mark.parametrize(
    ("text", "before", "says"),
    [
        ('[1, 2, {"a": ', 2, "a.json:1: not valid JSON at column"),
        ("[1 2]", 1, "Expecting ',' delimiter"),
        ("[1,]", 1, "Expecting value"),
        ("[1]\n[2]", 1, "a.json:2: not valid JSON at column 1 (Extra data)"),
        ("[1", 1, "Expecting ',' delimiter"),
        ("[", 0, "Expecting value"),
    ],
)
@pytest.mark.parametrize("block", [1, 1 << 18])
def test_an_array_that_breaks_off_gives_what_came_before(tmp_path, monkeypatch, text, before, says, block):
    monkeypatch.setattr(reading, "BLOCK", block)
    got = []

    def go():
        for _, value in reading.array_values(put(tmp_path / "a.json", text)):
            got.append(value)

    with pytest.raises(UserError) as raised:
        go()
    assert says in str(raised.value)
    assert len(got) == before


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"a": 1, "a": 2}', "key 'a' occurs twice"),
        ("NaN", "NaN is not JSON"),
        ("1e999", "a number is too large"),
        ("9" * 5000, "a number has too many digits"),
        ('"\\ud800"', "holds half a character"),
    ],
)
def test_a_faulty_entry_is_refused_and_its_neighbours_are_read(tmp_path, bad, says):
    for text, where in ((f'[{{"n": 1}}, {bad}, {{"n": 3}}]', ": record 2"), (f'{{"n": 1}}\n{bad}\n{{"n": 3}}', ":2")):
        path = put(tmp_path / "a", text)
        conversion = Conversion()
        assert [(n, value) for _, n, value in json_records(path, conversion)] == [(1, {"n": 1}), (3, {"n": 3})]
        (refusal,) = conversion.refused
        assert refusal.where == f"{path}{where}"
        assert says in refusal.reason


def test_a_line_in_another_encoding_is_refused_and_the_others_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": "a"}\n' + '{"n": "不着"}\n'.encode("gbk") + '{"n": "睡\u2028"}\r\n'.encode())
    conversion = Conversion()
    assert [value["n"] for _, _, value in json_records(path, conversion)] == ["a", "睡\u2028"]
    assert str(conversion.refused[0]) == f"{path}:2: is not valid UTF-8; save the file as UTF-8 and try again"


def test_bad_bytes_in_an_array_are_told_by_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"n": 1},\n{"n": "\xff"}]')
    with pytest.raises(UserError, match=r"a\.json:2: is not valid UTF-8"):
        list(reading.array_values(path))


def test_numbers_in_names_are_sorted_as_numbers(tmp_path):
    names = ["b2", "b10", "a/10", "a/9", "a/009", "1", "x²", "b"]
    for name in names:
        put(tmp_path / name, "x")
    found = [str(path.relative_to(tmp_path)) for path in reading.data_files(tmp_path)]
    assert found == ["1", "a/009", "a/9", "a/10", "b", "b2", "b10", "x²"]


# ---- one at a time


def test_records_are_handed_out_before_the_next_is_read(tmp_path):
    for number in range(3):
        put(tmp_path / f"{number}.json", turns(2))
    conversion = Conversion()
    records = get_source("smile").records(tmp_path, conversion)
    next(records)
    assert conversion.records_written == 1
    (tmp_path / "2.json").unlink()
    list(records)
    assert conversion.records_written == 2
    assert "file not found" in conversion.refused[0].reason
    assert not conversion.dialogues


@pytest.mark.parametrize("name", ["all.json", "all.jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    record = json.dumps({"content": [{"User": "long " * 400}] * 10, "description": "d"})
    text = "\n".join([record] * 1500) if name == "all.jsonl" else f"[{','.join([record] * 1500)}]"
    path = put(tmp_path / name, text)
    size, out = path.stat().st_size, tmp_path / "out.jsonl"
    del text
    tracemalloc.start()
    write_converted(get_source("extes").records(path, Conversion()), "dialogues", out, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read_records(out, Dialogue)) == 1500
    assert peak < size / 8


def test_an_id_that_occurs_again_is_refused(tmp_path):
    def stream(path, options, conversion):
        conversion.turns_read += 3
        for name in ("a", "b", "a"):
            yield f"{path}: {name}", [dialogue(name)]

    conversion = source(stream=stream).read(tmp_path)
    assert [made.id for made in conversion.dialogues] == ["a", "b"]
    assert conversion.refused[0].reason == "id 'a' is already used; ids must differ"
    assert conversion.refused[0].turns == 1
    report = conversion.report()
    assert (report["records_read"], report["dialogues"], report["turns_written"]["seeker"]) == (3, 2, 2)
    assert report["refused_by_kind"] == {"id 'a' is already used; ids must differ": 1}


def test_a_converter_that_hands_back_a_whole_conversion_works_too(tmp_path):
    def convert(path, options):
        made = Conversion(dialogues=[dialogue("a"), dialogue("b")], turns_read=3)
        made.repairs["mended"] += 2
        made.refuse("there", UserError("there: no"), 1)
        return made

    conversion = source(convert=convert).read(tmp_path, Options())
    assert [made.id for made in conversion.dialogues] == ["a", "b"]
    assert (conversion.turns_read, conversion.repairs, str(conversion.refused[0])) == (3, {"mended": 2}, "there: no")
    assert conversion.report()["dialogues"] == 2


# ---- writing


def test_a_file_is_replaced_only_when_all_of_it_is_written(tmp_path):
    out = put(tmp_path / "out.jsonl", "old")

    def breaks():
        yield "a", [dialogue("a")]
        raise UserError("the input ended badly")

    with pytest.raises(UserError, match="ended badly"):
        write_converted(breaks(), "dialogues", out, tmp_path / "ratings.jsonl")
    assert out.read_text() == "old"

    def interrupted():
        with Replacing(out) as file:
            file.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert not write_converted(iter(()), "dialogues", out, None)
    assert out.read_text() == "old"


def test_outputs_that_would_be_read_or_overwritten_are_refused(tmp_path):
    put(tmp_path / "in" / "0.json", turns(2))
    inside = call("convert", "smile", tmp_path / "in", "--out", tmp_path / "in" / "out.jsonl")
    assert "lies in the folder that is read" in str(inside.exception)
    put(tmp_path / "train.txt", "{}")
    same = call("convert", "esconv", tmp_path / "train.txt", "--out", "a.jsonl", "--ratings-out", "./a.jsonl")
    assert "is both --out and --ratings-out" in str(same.exception)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_real_folder_converts_and_twice_to_the_same_bytes(real_data, tmp_path, name):
    for number in "12":
        arguments = ["--out", tmp_path / f"{number}.jsonl", "--json"]
        if SOURCES[name].rubric:
            arguments += ["--ratings-out", tmp_path / f"{number}.ratings.jsonl"]
        result = call("convert", name, real_data / FOLDERS[name], *arguments)
        assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["records_read"] == report["dialogues"] > 0
    assert report["turns_read"] == sum(report["turns_written"].values())
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    assert len(read_records(tmp_path / "1.jsonl", Dialogue)) == report["dialogues"]
    if SOURCES[name].rubric:
        assert (tmp_path / "1.ratings.jsonl").read_bytes() == (tmp_path / "2.ratings.jsonl").read_bytes()


def test_made_files_convert_twice_to_the_same_bytes_and_the_report_says_all(tmp_path):
    for number in range(12):
        put(tmp_path / "in" / f"{number}.json", turns(number + 1))
    put(tmp_path / "in" / "13.json", [{"role": "nobody"}])
    for name in "ab":
        result = call("convert", "smile", tmp_path / "in", "--out", tmp_path / name)
        assert result.exit_code == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for cause in ("dialogue of one turn", "dialogue without labels", "turn N: role is none of client, counselor"):
        assert cause in " ".join(result.stdout.split()), result.stdout
    assert "refused " in result.stderr


def test_sources_say_what_must_be_signed():
    assert "signed user agreement" in call("sources").output
    rows = json.loads(call("sources", "--json").output)
    assert {row["name"]: bool(row["agreement"]) for row in rows}["psyqa"]
