import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_prep.chatter import SENTENCE, without_chatter
from data_prep.cleaning import STEPS, CleaningReport, choose_steps, clean, flag_card
from data_prep.cli import app
from data_prep.cli_clean import cleaned_lines
from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, Turn, dump_line, read_records, write_records
from data_prep.sources import get_source


def dialogue(*texts, identifier="d1", first="seeker", **changes):
    """Alternating turns, the seeker's first."""
    sides = ("seeker", "supporter") if first == "seeker" else ("supporter", "seeker")
    turns = tuple(Turn(speaker=sides[number % 2], text=text) for number, text in enumerate(texts))
    return Dialogue(**{"id": identifier, "language": "en", "source": "made", "turns": turns, **changes})


def only(*names):
    return [STEPS[name] for name in names]


def cleaned(record, *names):
    report = CleaningReport()
    found = list(clean([record], only(*names) if names else None, report))
    return (found[0] if found else None), report.as_dict()["steps"]


def text_of(text, *names):
    found, _ = cleaned(dialogue(text), *names)
    return None if found is None else found.turns[0].text


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        ("whitespace", "  a \t b\r\nc\rd  ", "a b\nc\nd"),
        ("whitespace", "a\n\n\n\nb \n c", "a\n\nb\nc"),
        ("whitespace", "a\u00a0b\u3000c\u2028d\u0085e\x0bf", "a b c\nd\ne\nf"),
        ("whitespace", "我 很　累", "我 很 累"),
        ("zero-width", "\ufeffa\u200bb\u2060c\u00add\u200d", "abcd"),
        ("zero-width", "我\u200d很\u200c累", "我很累"),
        ("zero-width", "👨‍👩‍👧 fine", "👨‍👩‍👧 fine"),
        ("zero-width", "می‌خواهم", "می‌خواهم"),
        ("html", "a &amp; b &lt;3 &#39;x&#39; &quot;y&quot; &#x4f60;", "a & b <3 'x' \"y\" 你"),
        ("html", "one<br>two<BR/>three<br />four", "one\ntwo\nthree\nfour"),
        ("html", "&amp;amp;lt;br&amp;amp;gt;", "\n"),
        ("html", "AT&T, R&D; a & b; &unknown; &#0; &#xd800; &semi", "AT&T, R&D; a & b; &unknown; &#0; &#xd800; &semi"),
        ("html", "a < b and <b>bold</b>", "a < b and <b>bold</b>"),
        ("mask", "mail a@b.org or 555-867-5309", "mail [EMAIL] or [PHONE]"),
        ("mask", "hotline 555-867-5309", "hotline 555-867-5309"),
    ],
)
def test_what_a_step_does_to_a_text(step, text, expected):
    found, counts = cleaned(dialogue(text), step)
    assert found.turns[0].text == expected
    assert (sum(counts[step].values()) > 0) == (text != expected)


def test_steps_work_on_situation_and_card_too_but_a_published_card_stays():
    card = RoleCard(id="c", language="en", problem="a  b", text="Problem: a  b 555-867-5309", source="made")
    record = dialogue("x", situation=" c  d a@b.org ", card=card)
    found, counts = cleaned(record, "whitespace")
    assert (found.situation, found.card.problem, found.card.text) == ("c d a@b.org", "a b", card.text)
    assert counts["whitespace"] == {"texts": 2}
    found, counts = cleaned(record, "whitespace", "mask")
    assert found.situation == "c d [EMAIL]"
    assert found.card.text == "Problem: a  b [PHONE]"
    assert counts["mask"] == {"email": 1, "phone": 1}


def test_steps_feed_one_another_until_nothing_changes():
    assert text_of("&#8203;a&\u200bamp;nbsp;\u200b b", "html", "zero-width", "whitespace") == "a b"
    assert text_of("&lt;br&gt;  ", "html", "whitespace", "empty-turns") is None


def test_runs_are_merged_and_the_originals_kept():
    turns = (
        Turn(speaker="supporter", text="hi", strategy="Others"),
        Turn(speaker="supporter", text="how are you", strategy="Question", meta={"feedback": 3}),
        Turn(speaker="seeker", text="bad"),
    )
    found, counts = cleaned(dialogue("x", turns=turns), "merge-runs")
    assert [(turn.speaker, turn.text, turn.strategy) for turn in found.turns] == [
        ("supporter", "hi\nhow are you", "Others"),
        ("seeker", "bad", None),
    ]
    assert found.turns[0].meta["originals"] == [
        {"text": "hi", "strategy": "Others"},
        {"text": "how are you", "strategy": "Question", "meta": {"feedback": 3}},
    ]
    assert counts["merge-runs"] == {"runs merged": 1, "turns joined": 1}
    more = found.model_copy(update={"turns": (*found.turns[:1], Turn(speaker="supporter", text="hm"), found.turns[1])})
    again, _ = cleaned(more, "merge-runs")
    assert [part["text"] for part in again.turns[0].meta["originals"]] == ["hi", "how are you", "hm"]


def test_masking_reaches_the_originals_of_merged_turns_and_cut_chatter():
    turns = tuple(
        Turn(speaker="supporter", text=text) for text in ("I am a@b.org", "Please press quit, c@d.org", "bye")
    )
    record, _ = cleaned(dialogue("x", turns=turns))
    assert "a@b.org" in record.model_dump_json()
    found, counts = cleaned(record, "mask")
    assert "@" not in found.model_dump_json()
    assert found.turns[0].text == "I am [EMAIL]\nbye"
    assert counts["mask"] == {"email": 2}


CHATTER = [
    ("Please press quit and take the survey :)", ""),
    ("You can click the quit button now", ""),
    ("Thank you! You need to press quit first, I can't do it from my end.", "Thank you!"),
    ("Take care :) (can you press quit first?)", "Take care :)"),
    ("please end the chat", ""),
    ("Neither of us will be paid if you don't.", ""),
    ("Remember to take the survey", ""),
    ("I am glad I could help. Feel free to end the conversation.", "I am glad I could help."),
]
TALK = [
    "I want to quit my job",
    "I quit smoking and it was hard, I hit it pretty hard for years",
    "I make some money with surveys on the internet",
    "have you tried taking surveys? it pays a little",
    "I had to end the conversation with my sister",
    "He pushed my buttons all evening",
    "the news hit me hard",
    "focus on the task at hand",
    "I can not finish the task my boss gave me",
    "my boss says I will be paid next week",
    "how did she react when you asked to end the conversation?",
    "The button of my coat came off",
    "I work on mturk to pay the bills",
    "are you on my side?",
    "I can't see it from my side of the family",
    "we did not get paid this month",
    "it is time to leave this chat group of my ex",
    "I submitted the form",
]


def test_task_chatter_misses_and_false_alarms():
    misses = [text for text, rest in CHATTER if without_chatter(text)[0] != rest]
    alarms = [text for text in TALK if without_chatter(text)[1]]
    print(f"{len(misses)} misses of {len(CHATTER)}, {len(alarms)} false alarms of {len(TALK)}")
    assert (misses, alarms) == ([], [])


def test_chatter_is_cut_counted_and_kept_but_never_a_crisis():
    record = dialogue("I feel better", "Good! Press quit now.", "ok", "please press quit")
    found, counts = cleaned(record, "task-chatter", "empty-turns")
    assert [turn.text for turn in found.turns] == ["I feel better", "Good!", "ok"]
    assert found.meta["removed_chatter"] == ["Good! Press quit now.", "please press quit"]
    assert counts["task-chatter"] == {"turns cut": 1, "turns emptied": 1}
    assert counts["empty-turns"] == {"turns dropped": 1}
    kept = dialogue("please press quit, I want to die")
    assert cleaned(kept, "task-chatter")[0] is kept


def test_empty_turns_and_dialogues_are_dropped():
    found, counts = cleaned(dialogue("", "hello", " \n", "x"), "empty-turns")
    assert [turn.text for turn in found.turns] == ["hello", "x"]
    assert counts["empty-turns"] == {"turns dropped": 2}
    found, counts = cleaned(dialogue("", " "))
    assert found is None
    assert counts["empty-turns"] == {"turns dropped": 2, "dialogues without text dropped": 1}


def test_the_crisis_flag_marks_dialogue_and_card_and_changes_no_text():
    card = RoleCard(id="c", language="en", problem="my husband beats me", source="made")
    record = dialogue("hello", "hi", "I want to die", card=card, meta={"mine": 1})
    found, counts = cleaned(record, "crisis-flag")
    assert found.meta == {"mine": 1, "crisis": {"kinds": ["suicide", "abuse"], "turns": [2]}}
    assert found.card.meta == {"crisis": {"kinds": ["abuse"]}}
    assert found.turns == record.turns
    assert counts["crisis-flag"] == {"dialogues marked": 1, "with suicide": 1, "with abuse": 1}
    assert flag_card(card) == found.card
    harmless = dialogue("I am killing time")
    assert cleaned(harmless, "crisis-flag")[0] is harmless


LONG = "since my brother moved out in May I have not slept a single night and I feel lost"


def test_near_openings_are_marked_or_dropped():
    records = [
        dialogue(LONG, identifier="a"),
        dialogue(LONG.replace("single", "whole"), identifier="b"),
        dialogue("My cat died and I can not tell anybody how much it hurts", identifier="c"),
        dialogue("hi", identifier="d"),
        dialogue("hi", identifier="e", meta={"near_duplicate_opening": "long gone"}),
    ]
    report = CleaningReport()
    found = list(clean(records, only("mark-openings"), report))
    assert [record.meta for record in found] == [{}, {"near_duplicate_opening": "a"}, {}, {}, {}]
    assert report.steps["mark-openings"] == {"dialogues marked": 1, "marks removed": 1}
    dropped = list(clean(records, only("drop-openings")))
    assert [record.id for record in dropped] == ["a", "c", "d", "e"]
    assert list(clean(dropped, only("drop-openings"))) == dropped


def test_choosing_steps():
    names = [step.name for step in choose_steps(without=["html"], also=["mask"])]
    assert names == [name for name in STEPS if name not in ("html", "drop-openings")]
    with pytest.raises(UserError, match="unknown cleaning step 'masks'; did you mean 'mask'"):
        choose_steps(also=["masks"])
    with pytest.raises(UserError, match="both with and without"):
        choose_steps(without=["mask"], also=["mask"])
    report = CleaningReport()
    list(clean([dialogue("a  b")], [], report))
    assert report.as_dict() == {"read": 1, "written": 1, "dropped": 0, "steps": {}}


# Bits that steps look for, so that random texts meet them and one another.
BITS = [
    *(
        "&amp;",
        "&lt;",
        "br",
        "&gt;",
        "<br>",
        "&",
        "amp;",
        "#38;",
        "&#8203;",
        "&#13;",
        "\u200b",
        "\u200d",
        "\ufeff",
        " ",
    ),
    *(
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u3000",
        "press quit",
        "take the survey",
        ". ",
        ":)",
        "(",
        ")",
        "555-867-5309",
        "@ab_c",
    ),
    *(
        "a@b.org",
        "hotline ",
        "I want to die",
        "我想死",
        "你好",
        "👨\u200d👩",
        "x",
        "\0",
        "you have to end the chat",
        "paid",
    ),
]
texts = st.one_of(st.lists(st.sampled_from(BITS), max_size=12).map("".join), st.text(max_size=30))
turns = st.builds(
    Turn,
    speaker=st.sampled_from(["seeker", "supporter"]),
    text=texts,
    strategy=st.sampled_from([None, "Question"]),
    meta=st.one_of(
        st.just({}),
        st.fixed_dictionaries({"originals": st.one_of(st.none(), st.lists(st.fixed_dictionaries({"text": texts})))}),
    ),
)
cards = st.builds(
    RoleCard,
    id=st.just("c"),
    language=st.just("en"),
    source=st.just("made"),
    problem=st.one_of(st.none(), texts),
    text=st.one_of(st.none(), texts),
)
dialogues = st.builds(
    Dialogue,
    id=st.uuids().map(str),
    language=st.sampled_from(["en", "zh"]),
    source=st.just("made"),
    turns=st.lists(turns, min_size=1, max_size=6).map(tuple),
    situation=st.one_of(st.none(), texts),
    card=st.one_of(st.none(), cards),
    meta=st.fixed_dictionaries({}, optional={"removed_chatter": st.one_of(st.none(), st.lists(texts, max_size=2))}),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(dialogues, max_size=4), st.sets(st.sampled_from(sorted(STEPS))))
def test_any_dialogues_are_cleaned_and_cleaning_again_changes_nothing(records, names):
    steps = [step for step in STEPS.values() if step.name in names]
    once = list(clean(records, steps))
    report = CleaningReport()
    assert list(clean(once, steps, report)) == once
    assert report.read == report.written
    assert not any(report.steps.values())
    assert once == list(clean(records, list(reversed(steps))))


CLEAN_CHARACTERS = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp", "Cf"], exclude_characters="&<@")
clean_texts = st.lists(st.text(CLEAN_CHARACTERS, min_size=1, max_size=8), min_size=1, max_size=8).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(clean_texts, min_size=1, max_size=5))
def test_no_character_of_clean_text_is_changed(said):
    record = dialogue(*said)
    found = next(clean([record]))
    assert [turn.text for turn in found.turns] == said
    assert found.turns == record.turns


@settings(max_examples=200, deadline=None)
@given(texts)
def test_sentences_make_up_the_text_they_were_cut_from(text):
    assert "".join(sentence[0] for sentence in SENTENCE.finditer(text)) == text
    rest, cut = without_chatter(text)
    assert (rest == text) == (cut == 0)


def call(*arguments):
    return CliRunner().invoke(app, ["clean", *map(str, arguments)])


def test_the_command_writes_reports_and_lists(tmp_path):
    source, out = tmp_path / "d.jsonl", tmp_path / "deep" / "c.jsonl"
    write_records(source, [dialogue("a  b@c.org"), dialogue(" ", identifier="d2")])
    result = call(source, "--out", out, "--without", "html", "--without", "merge-runs", "--with", "mask", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["read"], report["written"], report["dropped"]) == (2, 1, 1)
    assert report["steps"]["mask"] == {"email": 1}
    assert not {"html", "merge-runs", "drop-openings"} & set(report["steps"])
    assert [record.turns[0].text for record in read_records(out, Dialogue)] == ["a [EMAIL]"]
    first = out.read_bytes()
    assert call(source, "--out", out, "--without", "html", "--without", "merge-runs", "--with", "mask").exit_code == 0
    assert out.read_bytes() == first
    listed = json.loads(call("--list", "--json").output)
    assert [(row["step"], row["default"]) for row in listed] == [(step.name, step.default) for step in STEPS.values()]
    assert "mask" in call("--list").output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no Dialogue record"),
        (b"\n{", r"d.jsonl:2: not valid JSON"),
        (b'{"id": "a", "turns": []}', "d.jsonl:1: language: found nothing"),
        (b"\n\xff", "d.jsonl:2: is not valid UTF-8"),
        ("{}".encode("utf-16"), "is UTF-16"),
    ],
)
def test_bad_files_are_one_line_and_write_nothing(tmp_path, content, says):
    source, out = tmp_path / "d.jsonl", tmp_path / "c.jsonl"
    source.write_bytes(content)
    result = call(source, "--out", out)
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)
    assert not out.exists()


def test_mistakes_on_the_command_line(tmp_path):
    source = tmp_path / "d.jsonl"
    write_records(source, [dialogue("a")])
    line = source.read_text(encoding="utf-8")
    source.write_text("\ufeff" + line + line, encoding="utf-8")
    for arguments, says in (
        ((source, "--out", tmp_path / "c.jsonl"), "d.jsonl:2: id 'd1' is already used at"),
        ((source, "--out", source), "would overwrite the file that is read"),
        ((source, "--out", tmp_path / "c.jsonl", "--with", "msk"), "did you mean 'mask'"),
        ((source,), "give the file to clean and --out"),
        ((tmp_path / "no.jsonl", "--out", tmp_path / "c.jsonl"), "file not found"),
        ((tmp_path, "--out", tmp_path.parent / "c.jsonl"), "is a folder"),
    ):
        result = call(*arguments)
        assert isinstance(result.exception, UserError), result.output
        assert says in str(result.exception)
    source.write_text(line.replace('"text": "a"', '"text": " "'), encoding="utf-8")
    assert "cleaning leaves no dialogue" in str(call(source, "--out", tmp_path / "c.jsonl").exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl"]


def test_real_esconv_is_cleaned_and_every_turn_accounted_for(real_data):
    records = [
        record
        for name in ("train", "valid")
        for record in get_source("esconv").read(real_data / "esconv" / f"{name}.txt").dialogues
    ]
    report = CleaningReport()
    found = list(clean(records, report=report))
    counts = report.as_dict()["steps"]
    assert (report.read, report.written) == (1105, 1105)
    # The whole release has about 125; its test part is not among these files.
    chatter = counts["task-chatter"]
    assert chatter["turns cut"] + chatter["turns emptied"] == 126
    turns_before = sum(len(record.turns) for record in records)
    turns_after = sum(len(record.turns) for record in found)
    dropped = counts["empty-turns"]["turns dropped"]
    assert dropped == chatter["turns emptied"]
    assert turns_before == turns_after + dropped + counts["merge-runs"]["turns joined"]
    kept = [
        part["text"]
        for record in found
        for turn in record.turns
        for part in turn.meta.get("originals", [{"text": turn.text}])
    ]
    assert len(kept) == turns_before - dropped
    assert counts["crisis-flag"]["dialogues marked"] == sum("crisis" in record.meta for record in found)
    assert list(clean(found)) == found


def test_real_smile_is_cleaned_and_only_what_steps_name_changes(real_data):
    records = []
    for path in sorted((real_data / "smile" / "raw").glob("*.json")):
        turns = tuple(
            Turn(speaker="seeker" if turn["role"] == "client" else "supporter", text=turn["content"])
            for turn in json.loads(path.read_text(encoding="utf-8"))
        )
        records.append(Dialogue(id=path.stem, language="zh", source="smile", turns=turns))
    assert len(records) == 156
    report = CleaningReport()
    found = list(clean(records, report=report))
    assert (report.read, report.written) == (156, 156)
    # 156 dialogues have 105 distinct openings: at least 51 open as an earlier one does.
    assert report.steps["mark-openings"]["dialogues marked"] >= 51
    letters = Counter(
        char for record in records for turn in record.turns for char in turn.text if "\u4e00" <= char <= "\u9fff"
    )
    assert letters == Counter(
        char for record in found for turn in record.turns for char in turn.text if "\u4e00" <= char <= "\u9fff"
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dialogues)
def test_dialogues_are_written_as_any_record_is(record):
    general = json.dumps(record.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False) + "\n"
    assert dump_line(record) == general
    assert list(Dialogue.model_fields) == ["id", "language", "source", "turns", "card", "situation", "meta"]
    assert list(Turn.model_fields) == ["speaker", "text", "strategy", "meta"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(dialogues, min_size=1, max_size=4), st.sets(st.sampled_from(sorted(STEPS))))
def test_the_quick_way_through_a_file_writes_what_the_long_way_does(records, names):
    steps = [step for step in STEPS.values() if step.name in names]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.jsonl"
        write_records(path, records)
        quick, long = CleaningReport(), CleaningReport()
        lines = list(cleaned_lines(path, steps, quick))
        assert lines == [dump_line(record) for record in clean(read_records(path, Dialogue), steps, long)]
        assert quick == long


@pytest.mark.parametrize(
    "meta", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', r'{"a": "\ud800"}']
)
def test_the_quick_way_refuses_what_the_long_way_refuses(tmp_path, meta):
    path = tmp_path / "d.jsonl"
    line = dump_line(dialogue("a", meta={"a": 0}))
    path.write_text(line.replace("d1", "d0") + line.replace('{"a": 0}', meta), encoding="utf-8")
    with pytest.raises(UserError, match=r"d\.jsonl:2: "):
        list(cleaned_lines(path, None, CleaningReport()))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            '{"id": "c1", "language": "en", "problem": "no sleep", "source": "made"}\n',
            "holds role cards, expected dial",
        ),
        ('[\n{"conv": 1}\n]', "is not a file of esckit dialogues; convert it first: esckit data convert SOURCE"),
        ("name = 1\n", "in.jsonl:1: not valid JSON"),
        (
            '{"dialogue_id": "d", "rater": "r", "rubric": "esc_eval", "dimension": "fluency", "value": 3}\n',
            "holds ratings, expected dialogues",
        ),
        ('{\n  "model": {"base": "m"}\n}\n', "is not a file of esckit dialogues; convert it first"),
        ("[1, 2]\n", "its first record is no JSON object, expected dialogues"),
        ('"text"\n', "its first record is no JSON object, expected dialogues"),
        (b"PK\x03\x04\x14\x00\xff\xfe", "is a ZIP file, such as a spreadsheet (XLSX; save it as CSV)"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not a text file, expected dialogues"),
        (b"caf\xe9\n", "in.jsonl:1: is not valid UTF-8"),
        ("[]\n".encode("utf-16"), "is UTF-16, expected UTF-8"),
    ],
)
def test_a_file_of_something_else_is_told_in_one_line(tmp_path, content, told):
    source = tmp_path / "in.jsonl"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as raised:
        list(cleaned_lines(source, None, CleaningReport()))
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
