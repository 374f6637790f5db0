"""Lines that are cleaned without being parsed: whatever is taken for one must be what the long way makes of it."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.cleaning import STEPS, CleaningReport, clean
from data_prep.cli_clean import cleaned_lines
from data_prep.plain import plain_dialogue
from data_prep.records import Dialogue, Turn, dump_line, parse_json, read_records

WORDS = [
    "我很累",
    "你好，",
    "最近总是睡不好，不知道怎么办",
    "I lost my job",
    "我想死",
    "press quit",
    "138 1234 5678",
    "a@b.org",
]
ODD = [
    "\\",
    '"',
    "\n",
    "\t",
    "\x00",
    "\x1f",
    "\x7f",
    "\x85",
    "\u2028",
    "\u200b",
    " ",
    "  ",
    "&amp;",
    "<br>",
    "",
    "\ud83d\ude00",
]
said = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)
texts = st.one_of(said, said, st.lists(st.sampled_from(WORDS + ODD), max_size=6).map("".join), st.text(max_size=20))
names = st.one_of(st.just("made"), st.text(st.characters(codec="utf-8"), min_size=1, max_size=4))


@st.composite
def dialogues(draw):
    """Mostly plain ones of alternating speakers, some of which open alike."""
    given_texts = draw(st.lists(texts, min_size=1, max_size=5))
    speakers = [("seeker", "supporter")[number % 2] for number in range(len(given_texts))]
    if draw(st.integers(0, 4)) == 0:
        speakers = [draw(st.sampled_from(("seeker", "supporter"))) for _ in given_texts]
    turns = tuple(
        Turn(speaker=speaker, text=text, strategy=draw(st.sampled_from([None] * 9 + ["Question"])))
        for speaker, text in zip(speakers, given_texts, strict=True)
    )
    return Dialogue(
        id=draw(st.uuids().map(str)),
        language=draw(st.sampled_from(["en", "zh"])),
        source=draw(names),
        turns=turns,
        situation=draw(st.sampled_from([None] * 9 + ["  a"])),
        meta=draw(st.sampled_from([{}] * 9 + [{"near_duplicate_opening": "x"}])),
    )


def encodable(record):
    try:
        dump_line(record).encode()
    except UnicodeEncodeError:
        return False
    return True


writable = dialogues().filter(encodable)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.lists(writable, min_size=1, max_size=5), st.sets(st.sampled_from(sorted(STEPS))), st.booleans())
def test_cleaning_lines_writes_and_counts_what_cleaning_records_does(records, names, default):
    steps = None if default else [step for step in STEPS.values() if step.name in names]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.jsonl"
        path.write_text("".join(map(dump_line, records)), encoding="utf-8", newline="\n")
        quick, long = CleaningReport(), CleaningReport()
        lines = list(cleaned_lines(path, steps, quick))
        assert lines == [dump_line(record) for record in clean(read_records(path, Dialogue), steps, long)]
        assert quick == long


@settings(max_examples=400, deadline=None)
@given(writable)
def test_a_plain_line_is_the_dialogue_it_holds(record):
    line = dump_line(record)
    plain = plain_dialogue(line)
    if plain is not None:
        assert plain.dialogue() == record
        assert plain.line == line


PIECES = [
    '"',
    "{",
    "}",
    "}, {",
    ": ",
    ", ",
    ",",
    "[",
    "]",
    "\\",
    "\n",
    " ",
    "x",
    '"text": "',
    '"id": ',
    '""',
    "null",
    "1",
]


@settings(max_examples=1000, deadline=None)
@given(writable, st.data())
def test_no_damaged_line_is_taken_for_a_plain_one(record, data):
    line = dump_line(record)
    for _ in range(data.draw(st.integers(1, 2))):
        start = data.draw(st.integers(0, len(line)))
        end = min(len(line), start + data.draw(st.integers(0, 3)))
        line = line[:start] + data.draw(st.sampled_from(["", *PIECES])) + line[end:]
    if plain_dialogue(line) is not None:
        found = Dialogue.model_validate(parse_json(line, "f:1"))
        assert dump_line(found) == line
        assert plain_dialogue(line).dialogue() == found


def a_line(**changes):
    record = {"id": "a", "language": "zh", "source": "s", "turns": [{"speaker": "seeker", "text": "好"}], **changes}
    return json.dumps(record, ensure_ascii=False) + "\n"


def test_ordinary_lines_are_plain():
    plain = plain_dialogue(a_line())
    assert (plain.id, plain.language, plain.source, plain.speakers, plain.texts) == ("a", "zh", "s", ["seeker"], ["好"])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        a_line()[:-1],
        a_line() + " ",
        a_line().replace(": ", ":"),
        a_line(id=""),
        a_line(source=""),
        a_line(language="fr"),
        a_line(turns=[]),
        a_line(turns=[{"speaker": "client", "text": "好"}]),
        a_line(turns=[{"text": "好", "speaker": "seeker"}]),
        a_line(turns=[{"speaker": "seeker", "text": "好", "strategy": "s"}]),
        a_line(turns=[{"speaker": "seeker", "text": None}]),
        a_line(turns=[{"speaker": "seeker", "text": 'a "b"'}]),
        a_line(turns=[{"speaker": "seeker", "text": "a\nb"}]),
        a_line(turns=[{"speaker": "seeker", "text": "a\u200bb"}]),
        a_line(situation="s"),
        a_line(id=1),
        a_line().replace("好", "\t"),
        a_line().replace("好", "\x00"),
        a_line().replace("好", "\x01"),
        a_line().replace("好", "\x1b"),
        a_line().replace("好", "\n"),
    ],
)
def test_all_others_are_not(line):
    assert plain_dialogue(line) is None
