import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_prep.cli import app
from data_prep.errors import UserError
from data_prep.records import Dialogue, Rating, RoleCard, read_records
from data_prep.sources import SOURCES

SECRET = "nobody may read this sentence"


def record(number, **changes):
    return {
        "emotion_type": "fear",
        "problem_type": "job crisis",
        "experience_type": "Current Experience",
        "situation": f"situation {number}",
        "survey_score": {"seeker": {"empathy": "4", "relevance": "3"}},
        "dialog": [
            {"text": f"{number} was the day on which it all began for me", "speaker": "usr"},
            {"text": "I see.", "speaker": "sys", "strategy": "Others"},
        ],
        **changes,
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path, records):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in records), encoding="utf-8")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fails(*arguments) -> str:
    """The message of the user error that a call ends in."""
    result = call(*arguments)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_sources_are_listed():
    shown = call("sources")
    assert shown.exit_code == 0
    assert all(f"{name}: " in shown.output for name in SOURCES)
    rows = json.loads(call("sources", "--json").output)
    assert [row["name"] for row in rows] == list(SOURCES)
    assert rows[0]["hub_id"] == "thu-coai/esconv"


def test_convert_writes_dialogues_and_ratings_and_reports(folder):
    put(folder / "train.txt", [record(1), record(2)])
    result = call("convert", "esconv", "train.txt", "--out", "deep/d.jsonl", "--ratings-out", "r.jsonl")
    assert result.exit_code == 0, result.output
    assert [d.id for d in read_records("deep/d.jsonl", Dialogue)] == ["esconv-train-0001", "esconv-train-0002"]
    assert [r.value for r in read_records("r.jsonl", Rating)] == [4, 3, 4, 3]
    assert "experience_type lower-cased" in result.output
    assert "supporter's relevance" in result.output


def test_refused_records_are_named_and_the_exit_code_is_one(folder):
    bad = record(2, dialog=[{"text": SECRET, "speaker": SECRET}])
    put(folder / "train.txt", [record(1), bad, record(3)])
    result = call("convert", "esconv", "train.txt", "--out", "d.jsonl", "--json")
    assert result.exit_code == 1
    assert "refused train.txt:2: turn 1: speaker is none of" in result.stderr
    assert SECRET not in result.output
    report = json.loads(result.stdout)
    assert report["dialogues"] == 2
    assert report["turns_read"] == 5
    assert report["turns_written"] == {"seeker": 2, "supporter": 2}
    assert [(entry["where"], entry["turns"]) for entry in report["refused"]] == [("train.txt:2", 1)]
    assert len(read_records("d.jsonl", Dialogue)) == 2


def test_many_refusals_are_cut_on_the_screen_only(folder):
    put(folder / "train.txt", [record(0), *({"dialog": []} for _ in range(30))])
    result = call("convert", "esconv", "train.txt", "--out", "d.jsonl", "--json")
    assert result.stderr.count("refused train.txt:") == 20
    assert "and 10 more refused records" in result.stderr
    assert len(json.loads(result.stdout)["refused"]) == 30


def test_when_nothing_converts_nothing_is_written(folder):
    put(folder / "train.txt", [{"dialog": []}])
    result = call("convert", "esconv", "train.txt", "--out", "d.jsonl")
    assert result.exit_code == 1
    assert "d.jsonl was not written" in result.stderr
    assert not (folder / "d.jsonl").exists()


def test_when_nothing_converts_the_source_is_asked_about(folder):
    put(folder / "train.txt", [{"dialog": []}])
    told = call("convert", "esconv", "train.txt", "--out", "d.jsonl").stderr
    assert "is esconv the right source? its files are train.txt / valid.txt" in told
    put(folder / "chat.txt", [{"messages": [{"role": "user", "content": "a"}]}])
    told = call("convert", "esconv", "chat.txt", "--out", "d.jsonl").stderr
    assert "is esconv the right source? chat.txt looks like source messages" in told


def test_a_folder_with_two_kinds_says_so_and_that_ratings_are_left_out(folder):
    failed = record(2, dialog=[{"content": "x", "speaker": "speaker"}, {"content": "y", "speaker": "listener"}])
    (folder / "in").mkdir()
    put(folder / "in" / "train.txt", [record(1), record(3)])
    put(folder / "in" / "failed.json", [failed])
    rows = " ".join(call("convert", "esconv", "in", "--out", "d.jsonl").output.split())
    assert "of source esconv │ 2" in rows
    assert "of source esconv-failed │ 1" in rows
    assert "ratings (--ratings-out FILE writes them) │ 6" in rows
    report = json.loads(call("convert", "esconv", "in", "--out", "d.jsonl", "--json").stdout)
    assert report["by_source"] == {"esconv": 2, "esconv-failed": 1}
    assert report["ratings_left_out"] == 6
    with_ratings = call("convert", "esconv", "in/train.txt", "--out", "d.jsonl", "--ratings-out", "r.jsonl")
    assert "left out" not in with_ratings.output
    assert "of these" not in with_ratings.output


def test_the_fields_of_a_table_are_listed():
    fields = "id, speaker, text, [strategy] (one row a turn) or [id], seeker, supporter, [strategy] (one row a pair)"
    assert fields in call("sources").output
    for word in ("speaker", "supporter", "strategy"):
        assert word in call("convert", "--help").output


def test_markup_in_file_names_is_not_read_as_markup(folder):
    put(folder / "[red]a[bold].txt", [record(1)])
    result = call("convert", "esconv", "[red]a[bold].txt", "--out", "d.jsonl")
    assert result.exit_code == 0
    assert "[red]a[bold].txt" in result.output


def test_official_files_convert_too(folder):
    base = "Age: 31\nGender: Not mentioned\nOccupation: cook\nProblem: cannot sleep"
    cards = [{"base": base, "res": "家庭生活", "source": "made", "language": "english", "id": 3}]
    (folder / "cards.json").write_text(json.dumps(cards), encoding="utf-8")
    (folder / "m.json").write_text('{"0": ["ESC-Role：你好"]}', encoding="utf-8")
    (folder / "s.json").write_text('{"0": {"fluency": 3}}', encoding="utf-8")
    result = call("convert", "esceval-cards", "cards.json", "--out", "cards.jsonl")
    assert result.exit_code == 0
    assert "gender not mentioned" in result.output
    assert [(card.id, card.occupation) for card in read_records("cards.jsonl", RoleCard)] == [("3", "cook")]
    assert call("convert", "esceval-transcripts", "m.json", "--out", "d.jsonl", "--language", "zh").exit_code == 0
    assert read_records("d.jsonl", Dialogue)[0].language == "zh"
    assert call("convert", "esceval-scores", "s.json", "--out", "r.jsonl", "--rater", "us").exit_code == 0
    assert read_records("r.jsonl", Rating)[0].rater == "us"


def test_mistakes_in_convert(folder):
    put(folder / "train.txt", [record(1)])
    assert "did you mean 'esconv'" in fails("convert", "escon", "train.txt", "--out", "d.jsonl")
    assert "absent.txt: file not found" in fails("convert", "esconv", "absent.txt", "--out", "d.jsonl")
    assert "needs --language" in fails("convert", "esceval-transcripts", "train.txt", "--out", "d.jsonl")
    assert "needs --rater" in fails("convert", "esceval-scores", "train.txt", "--out", "d.jsonl")
    assert "has no ratings beside its cards" in fails(
        "convert", "esceval-cards", "train.txt", "--out", "d.jsonl", "--ratings-out", "r.jsonl"
    )
    assert "would overwrite the file that is read" in fails("convert", "esconv", "train.txt", "--out", "./train.txt")
    assert "cannot be written" in fails("convert", "esconv", "train.txt", "--out", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["train.txt"]
    assert call("convert", "esconv", "train.txt", "--out", "d.jsonl", "--language", "fr").exit_code == 2


def test_split_then_leaks(folder):
    put(folder / "train.txt", [record(n) for n in range(20)])
    call("convert", "esconv", "train.txt", "--out", "all.jsonl")
    options = ("--fractions", "train=0.8,test=0.2", "--seed", "3", "--near", "0", "--json")
    result = call("split", "all.jsonl", "--out", "parts", *options)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert shown["seed"] == 3
    assert [(part["part"], part["dialogues"]) for part in shown["parts"]] == [("train", 16), ("test", 4)]
    ids = [d.id for name in ("train", "test") for d in read_records(f"parts/{name}.jsonl", Dialogue)]
    assert len(ids) == len(set(ids)) == 20
    assert "0.800" in call("split", "all.jsonl", "--out", "again", "--near", "0").output
    # The records differ in a number only: near duplicates, all of them.
    assert "make only 1 separate groups" in fails("split", "all.jsonl", "--out", "again")
    assert "expected a number from 0.5 to 1" in fails("split", "all.jsonl", "--out", "again", "--near", "0.3")
    assert "--group-by: no dialogue has" in fails("split", "all.jsonl", "--out", "again", "--group-by", "meta.topic")
    assert "--group-by names nothing" in fails("split", "all.jsonl", "--out", "again", "--group-by", ",")
    by_kind = call("split", "all.jsonl", "--out", "again", "--near", "0", "--stratify", "meta.problem_type", "--json")
    assert json.loads(by_kind.output)["stratify"] == ["meta.problem_type"]

    clean = json.loads(call("leaks", "parts/train.jsonl", "parts/test.jsonl", "--near", "0", "--json").output)
    assert [leak["shared"] for leak in clean["leaks"]] == [0] * 7
    full = call("leaks", "parts/test.jsonl", "all.jsonl")
    assert full.exit_code == 0
    assert "opening" in full.output
    leaks = json.loads(call("leaks", "parts/test.jsonl", "all.jsonl", "--json").output)
    assert [leak["shared"] for leak in leaks["leaks"] if leak["kind"] == "text"] == [4]
    assert (leaks["records_a"], leaks["records_b"]) == (4, 20)


def test_leaks_between_cards_and_dialogues(folder):
    put(folder / "train.txt", [record(1)])
    call("convert", "esconv", "train.txt", "--out", "d.jsonl")
    card = {"id": "c", "language": "en", "problem": "Situation 1.", "source": "made"}
    put(folder / "cards.jsonl", [card])
    leaks = json.loads(call("leaks", "d.jsonl", "cards.jsonl", "--json").output)["leaks"]
    assert {leak["kind"]: leak["ids_b"] for leak in leaks}["situation"] == ["c"]
    base = "Age: 31\nProblem: Situation 1."
    official = [{"base": base, "res": "家庭生活", "source": "ESconv", "language": "english", "id": 3}]
    (folder / "official.json").write_text(json.dumps(official, indent=4), encoding="utf-8")
    shown = call("leaks", "d.jsonl", "official.json")
    assert "1 of the 1 cards of B name the dataset of A as their source" in " ".join(shown.output.split())
    report = json.loads(call("leaks", "d.jsonl", "official.json", "--json").output)
    assert {leak["kind"]: leak["ids_b"] for leak in report["leaks"]}["card_source"] == ["3"]
    assert len(report["cards"]) == 1
    put(folder / "cards.jsonl", [{**card, "age": 3}])
    assert "cards.jsonl:1: age: found int" in fails("leaks", "d.jsonl", "cards.jsonl")


@pytest.mark.parametrize(
    ("fractions", "says"),
    [
        ("train", "'train' is not name=number"),
        ("train=a,test=0.5", "'train=a' is not name=number"),
        ("=0.5,test=0.5", "is not name=number"),
        ("../x=0.5,test=0.5", "is not name=number"),
        ("a=0.5,a=0.5", "'a' occurs twice"),
        ("a=0.5,b=0.6", "sum to 1.1"),
        ("all=0.5,test=0.5", "would overwrite the file that is read"),
        ("a=0.4,b=0.3,c=0.3", "would be empty"),
    ],
)
def test_mistakes_in_split(folder, fractions, says):
    put(folder / "train.txt", [record(1), record(2)])
    call("convert", "esconv", "train.txt", "--out", "all.jsonl")
    assert says in fails("split", "all.jsonl", "--out", ".", "--fractions", fractions)
    assert sorted(path.name for path in folder.iterdir()) == ["all.jsonl", "train.txt"]


@pytest.mark.parametrize("command", ["sources", "convert", "clean", "split", "leaks"])
def test_every_command_has_an_example_in_its_help(command):
    shown = call(command, "--help")
    assert shown.exit_code == 0
    assert f"Example: esckit data {command}" in shown.output


def test_the_module_imports_nothing_heavy():
    heavy = "torch transformers trl peft datasets matplotlib scipy sklearn pandas numpy"
    code = f"import sys, data_prep.cli; print([name for name in {heavy.split()!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_real_cards_and_dialogues(real_data, folder):
    source = real_data / "esconv" / "FailedESConv.json"
    result = call("convert", "esconv", source, "--out", "d.jsonl", "--ratings-out", "r.jsonl", "--json")
    assert result.exit_code == 0
    report = json.loads(result.output)
    assert (report["dialogues"], report["turns_read"], report["ratings"]) == (98, 2901, 196)
    assert report["ratings_missing"] == 50
    assert len(read_records("d.jsonl", Dialogue)) == 98
    result = call("convert", "esceval-cards", real_data / "esceval" / "card_high_zh.json", "--out", "c.jsonl")
    assert result.exit_code == 0
    assert len(read_records("c.jsonl", RoleCard)) == 324


def test_a_split_beside_parts_of_another_is_refused(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "dev.jsonl").write_text("{}\n", encoding="utf-8")
    samples = Path(__file__).parents[2] / "data_prep" / "samples" / "dialogues.jsonl"
    said = fails("split", samples, "--out", tmp_path / "parts", "--fractions", "train=0.8,test=0.2")
    assert "holds dev.jsonl, which this split does not make" in said
