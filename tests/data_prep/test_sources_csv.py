import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_prep.cli import app
from data_prep.errors import UserError
from data_prep.records import Dialogue, dump_line, read_records
from data_prep.sources import Options, get_source
from tests.data_prep.chaos import SECRET, balanced

TURNS = "talk,who,said,plan\n1,Client,Hello,\n1,Coach,Hi there,Question\n2,Client,No sleep,\n"
NAMED = {"id": "talk", "speaker": "who", "text": "said", "strategy": "plan"}


def read(tmp_path, content, columns=None, seeker=None):
    path = tmp_path / "table.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return get_source("csv").read(path, Options(language="en", seeker=seeker, columns=columns or {}))


def fails(tmp_path, content, columns=None, seeker=None) -> str:
    with pytest.raises(UserError) as caught:
        read(tmp_path, content, columns, seeker)
    return str(caught.value)


def said(conversion):
    return {d.id: [(turn.speaker, turn.text, turn.strategy) for turn in d.turns] for d in conversion.dialogues}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_one_row_a_turn(tmp_path, delimiter, bom):
    conversion = read(tmp_path, bom + TURNS.replace(",", delimiter).encode(), NAMED)
    assert said(conversion) == {
        "1": [("seeker", "Hello", None), ("supporter", "Hi there", "Question")],
        "2": [("seeker", "No sleep", None)],
    }
    assert balanced(conversion)


def test_the_seeker_may_be_named(tmp_path):
    table = "id,speaker,text\n1,Ann,Hello\n1,Bob,Hi\n"
    assert "give --seeker NAME" in read(tmp_path, table).refused[0].reason
    assert said(read(tmp_path, table, seeker="Bob"))["1"][0] == ("supporter", "Hello", None)
    assert "no speaker has the name" in read(tmp_path, table, seeker="Cid").refused[0].reason


def test_one_row_a_pair_with_and_without_id(tmp_path):
    table = "q,a,s,n\nI am low,Tell me,Question,x\nYes,Go on,,x\n,Still here,,y\n"
    columns = {"seeker": "q", "supporter": "a", "strategy": "s"}
    apart = said(read(tmp_path, table, columns))
    assert apart["csv-table-0001"] == [("seeker", "I am low", None), ("supporter", "Tell me", "Question")]
    together = read(tmp_path, table, {**columns, "id": "n"})
    assert [len(turns) for turns in said(together).values()] == [4]
    assert together.refused[0].reason == "the seeker says nothing: no turn of theirs has text"
    assert balanced(together)
    assert "leave it out" in fails(tmp_path, table, columns, seeker="q")


def test_text_is_verbatim_and_empty_turns_are_counted(tmp_path):
    table = 'id,speaker,text\n1,seeker,"  a ""b""\n,\u2028 c "\n1,supporter," "\n'
    conversion = read(tmp_path, table)
    assert said(conversion) == {"1": [("seeker", '  a "b"\n,\u2028 c ', None)]}
    assert conversion.repairs == {"empty turn dropped": 1}


def test_rows_are_brought_together_and_a_seekers_strategy_dropped(tmp_path):
    conversion = read(tmp_path, TURNS + "1,Client,Bye,Question\n", NAMED)
    assert [len(turns) for turns in said(conversion).values()] == [3, 1]
    assert conversion.repairs == {"rows of a dialogue brought together": 1, "strategy on a seeker turn dropped": 1}


def test_bad_rows_refuse_their_dialogue(tmp_path):
    table = (
        "id,speaker,text\n1,seeker,a\n2,seeker,b\n2,,c\n3,seeker,d\n3,supporter,e\n3,third,f\n,seeker,g\n"
        "4,seeker,h\n5,seeker\n6,seeker,i\n7,seeker,j\n"
    )
    conversion = read(tmp_path, table)
    assert list(said(conversion)) == ["1", "7"]
    reasons = {refusal.where.rpartition(":")[2]: refusal.reason for refusal in conversion.refused}
    assert reasons["9"] == reasons["11"] == "a row beside this dialogue's could not be read and may belong to it"
    assert reasons["8"] == "has no dialogue id"
    assert reasons["10"] == "has 2 cells, the header has 3"
    assert "3 speakers" in reasons["5"]
    assert "4: has no speaker" in reasons["3"]
    assert balanced(conversion)


def test_an_open_quote_is_told_with_its_line(tmp_path):
    conversion = read(tmp_path, 'id,speaker,text\n1,seeker,a\n2,seeker,"b\n3,seeker,c\n')
    assert "3: not valid CSV" in str(conversion.refused[0]) or "3: not valid CSV" in str(conversion.refused[1])
    assert not conversion.dialogues


def test_columns_that_are_not_read_are_counted_and_none_is_read_twice(tmp_path):
    conversion = read(tmp_path, TURNS, {name: NAMED[name] for name in ("id", "speaker", "text")})
    assert conversion.noted == {"column 'plan' not read": 1}
    assert read(tmp_path, TURNS, NAMED).noted == {}
    assert "speaker and text are both read from column 'who'" in fails(tmp_path, TURNS, {**NAMED, "text": "who"})


def test_wrong_names(tmp_path):
    assert "has no column 'sayd' among its 4; did you mean 'said'?" in fails(tmp_path, TURNS, {**NAMED, "text": "sayd"})
    assert "unknown field 'txt'; did you mean 'text'?" in fails(tmp_path, TURNS, {"txt": "said"})
    assert "which column holds the id? give --column id=NAME" in fails(tmp_path, TURNS)
    assert "name speaker and text (one row a turn) or" in fails(tmp_path, TURNS, {"text": "said", "seeker": "who"})
    assert "has the column 'id' twice" in fails(tmp_path, "id,id,speaker,text\n1,1,a,b\n", {"id": "id"})
    # A file without a header has somebody's words in its first line.
    message = fails(tmp_path, f"1,seeker,{SECRET}\n", {"id": "talk"})
    assert "its first line must name the columns" in message
    assert SECRET not in message
    assert "has no header" in fails(tmp_path, "")
    assert "UTF-16" in fails(tmp_path, TURNS.encode("utf-16"))
    assert "not valid UTF-8" in fails(tmp_path, TURNS.encode() + b"\xff")
    with pytest.raises(UserError, match="needs --language"):
        get_source("csv").read(tmp_path / "table.txt")


def test_the_command_takes_the_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TURNS, encoding="utf-8")

    def call(*columns):
        arguments = ["convert", "csv", "t.csv", "--out", "o.jsonl", "--language", "en"]
        return CliRunner().invoke(app, arguments + [part for column in columns for part in ("--column", column)])

    assert call(*(f"{field}={name}" for field, name in NAMED.items())).exit_code == 0
    assert [dialogue.id for dialogue in read_records("o.jsonl", Dialogue)] == ["1", "2"]
    assert "'text' is not FIELD=COLUMN; for example --column text=utterance" in str(call("text").exception)
    assert "'id' is given twice" in str(call("id=a", "id=b").exception)
    assert "options: --language [--seeker] [--column]" in CliRunner().invoke(app, ["sources"]).output
    assert "Needs access: its authors grant it on request" in CliRunner().invoke(app, ["sources"]).output


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["1", "2", ""]), st.sampled_from(["seeker", "supporter", "x"]), st.text(max_size=9)),
        max_size=6,
    ),
    tail=st.text(max_size=9),
)
def test_whatever_comes_is_converted_or_refused(rows, tail):
    stream = io.StringIO()
    table = csv.writer(stream)
    table.writerows([("id", "speaker", "text"), ("0", "seeker", SECRET), ("0", "supporter", "yes"), *rows])
    clean = all("\r" not in text and "\0" not in text for _, _, text in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text(stream.getvalue() + tail, encoding="utf-8", newline="")
        made = [get_source("csv").read(path, Options(language="en")) for _ in range(2)]
    assert [dump_line(d) for d in made[0].dialogues] == [dump_line(d) for d in made[1].dialogues]
    assert balanced(made[0])
    if clean and not tail:
        kept = [turn.text for dialogue in made[0].dialogues for turn in dialogue.turns]
        assert SECRET in kept
        assert set(kept) <= {SECRET, "yes"} | {text for _, _, text in rows}
