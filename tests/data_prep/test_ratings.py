"""Ratings in: every kind of cell, faults with their place, plans, aggregation."""

import datetime
import json
from collections import Counter
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.aggregate import RatingDistribution, aggregate
from data_prep.errors import UserError
from data_prep.rating_cells import like_id, read_level
from data_prep.rating_keys import make_key, read_key, write_json_record
from data_prep.rating_plans import assign, rater_names
from data_prep.ratings import RatingsImport, import_ratings, read_rating_files
from data_prep.records import Dialogue, Rating, Turn, write_records
from data_prep.rubric import Rubric, load_rubric
from tests.data_prep.made_ratings import SAMPLES

RUBRIC = load_rubric("esc_eval")
SURVEY = load_rubric("esconv_survey")
EMPATHY = RUBRIC.dimension("empathy")


def imported(folder: Path, text: str, rubric: Rubric = RUBRIC, name: str = "in.csv", **options: Any) -> RatingsImport:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return import_ratings([path], rubric, **options)


def faults(found: RatingsImport, folder: Path) -> list[str]:
    return [str(fault).replace(f"{folder}/", "") for fault in found.faults]


@pytest.mark.parametrize(
    ("typed", "level"), [(3, 3), (3.0, 3), ("3", 3), ("3.0", 3), (" 3 ", 3), ("３", 3), ("+3", 3), (0, 0), ("4.", 4)]
)
def test_levels(typed: Any, level: float) -> None:
    assert read_level(typed, EMPATHY) == (level, None)


@pytest.mark.parametrize("typed", [None, "", "   ", "\u3000"])
def test_empty_is_missing(typed: Any) -> None:
    assert read_level(typed, EMPATHY) == (None, "left empty")


@pytest.mark.parametrize("typed", ["N/A", "n/a", "None", "NaN", "null", "-", "无", "不适用", " NA "])
def test_words_for_missing_are_the_reason(typed: str) -> None:
    value, reason = read_level(typed, EMPATHY)
    assert value is None
    assert reason == f"given as {typed.strip()!r}"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (5, "5 is off the scale"),
        (-1, "off the scale"),
        ("-1", "off the scale"),
        (3.5, "3.5 lies between two levels"),
        ("3.5", "between two levels"),
        ("3,5", "decimal comma"),
        ("three", "'three'"),
        ("很好", "'很好'"),
        ("3 or 4", "'3 or 4'"),
        ("the seeker said something private here", "a text of 38 characters"),
        (datetime.datetime(2024, 3, 4), "into a date"),
        (datetime.time(3, 0), "into a date"),
        ("2024-03-04", "looks like a date"),
        ("4-Mar", "looks like a date"),
        ("=2+1", "formula"),
        ("#N/A", "error value"),
        ("#REF!", "error value"),
        (True, "true/false"),
        (float("nan"), "expected a whole level"),
        (10**400, "expected a whole level"),
        ("1e0", "'1e0'"),
        (["3"], "found list"),
        ("9" * 5000, "a text of 5000"),
    ],
)
def test_everything_else_is_refused(typed: Any, told: str) -> None:
    with pytest.raises(ValueError, match="expected a whole level 0 to 4") as caught:
        read_level(typed, EMPATHY)
    assert told in str(caught.value)
    assert "private" not in str(caught.value)


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.booleans(), st.dates(), st.binary()))
def test_any_value_is_a_level_a_reason_or_a_refusal(typed: Any) -> None:
    with suppress(ValueError):
        value, reason = read_level(typed, EMPATHY)
        assert (value in range(5)) != bool(reason)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("rated-en-1", "'rated-en-01'"), ("ratd-en-01", "'rated-en-01'"), ("rated-en-99", ""), ("x", "")],
)
def test_ids_are_suggested_for_slips_and_not_for_other_numbers(typed: str, hint: str) -> None:
    assert like_id(typed, {"rated-en-01", "rated-en-19"}) == (f"; did you mean {hint}?" if hint else "")


def test_wide_table(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "dialogue_id,rater,Empathy (0-4),流畅性,human,note\nd2,ann,3,4,0,\nd1,ann,,N/A,1,too short to say\n",
        dialogue_ids={"d1", "d2"},
    )
    assert found.faults == []
    assert found.notes == []
    by_key = {(r.dialogue_id, r.dimension): (r.value, r.reason) for r in found.ratings}
    assert by_key == {
        ("d1", "fluency"): (None, "given as 'N/A'; note: too short to say"),
        ("d1", "empathy"): (None, "left empty; note: too short to say"),
        ("d1", "humanoid"): (1, None),
        ("d2", "fluency"): (4, None),
        ("d2", "empathy"): (3, None),
        ("d2", "humanoid"): (0, None),
    }
    assert [r.dialogue_id for r in found.ratings] == ["d1"] * 3 + ["d2"] * 3
    assert found.missing() == Counter({"given as 'N/A'": 1, "left empty": 1})


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_long_table(tmp_path: Path, delimiter: str) -> None:
    rows = ["dialogue_id|rater|dimension|value|reason", "d1|ann|empathy|3|", "d1|ann|fluency||could not tell"]
    found = imported(tmp_path, "\r\n".join(rows).replace("|", delimiter))
    assert found.faults == []
    assert found.missing() == {"reason in the rater's words": 1}
    assert [(r.dimension, r.value, r.reason) for r in found.ratings] == [
        ("fluency", None, "could not tell"),
        ("empathy", 3, None),
    ]
    assert "not checked" in found.notes[0]


def test_excel_separator_line_and_byte_order_mark(tmp_path: Path) -> None:
    found = imported(tmp_path, "\ufeffsep=;\r\ndialogue_id;rater;empathy\r\nd1;ann;2\r\n")
    assert [r.value for r in found.ratings] == [2]


def test_all_faults_are_told_at_once_and_the_rest_is_kept(tmp_path: Path) -> None:
    text = (
        "dialogue_id,rater,empathy,fluency,emphaty,mood,overall\n"
        "d1,ann,7,3,,,2\n"
        "d9,ann,3,3,,,\n"
        "d2,,1,1,,,\n"
        ",ann,1,1,,,\n"
        "d2,ann,3.5,good,,,4-Mar\n"
        "d1,ann,,4,,,2\n"
    )
    found = imported(tmp_path, text, dialogue_ids={"d1", "d2"})
    assert faults(found, tmp_path) == [
        "in.csv, row 1, column emphaty: unknown column 'emphaty'; did you mean 'empathy'? "
        "(not read; --ignore leaves a column out on purpose)",
        "in.csv, row 1, column mood: unknown column 'mood'; dimensions of esc_eval: fluency, expression, empathy, "
        "information, skillful, humanoid, overall (not read; --ignore leaves a column out on purpose)",
        "in.csv, row 2, column empathy: 7 is off the scale, expected a whole level 0 to 4",
        "in.csv, row 3: unknown dialogue id 'd9'",
        "in.csv, row 4: no rater; fill the rater column or name the rater with --rater",
        "in.csv, row 5: no dialogue id (or item) in this row",
        "in.csv, row 6, column empathy: 3.5 lies between two levels, expected a whole level 0 to 4",
        "in.csv, row 6, column fluency: found 'good', expected a whole level 0 to 4 (or N/A, or nothing)",
        "in.csv, row 6, column overall: found what looks like a date, expected a whole level 0 to 4 "
        "(or N/A, or nothing)",
        "in.csv, row 7, column fluency: contradicts in.csv, row 2, column fluency: two different ratings by one rater; "
        "neither is kept",
        "in.csv, row 7, column overall: given twice: the same rating stands at in.csv, row 2, column overall; "
        "counted once",
    ]
    assert [(r.dialogue_id, r.dimension, r.value) for r in found.ratings] == [
        ("d1", "empathy", None),
        ("d1", "overall", 2),
    ]


def test_two_sheets_that_contradict_each_other(tmp_path: Path) -> None:
    """An unfilled copy is no contradiction; N/A against a level is; a third copy cannot decide."""
    texts = ["d1,ann,1,2,3", "d1,ann,1,N/A,", "d1,ann,,2,4"]
    paths = []
    for number, row in enumerate(texts):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_text(f"dialogue_id,rater,fluency,empathy,overall\n{row}\n")
    found = import_ratings(paths, RUBRIC)
    told = faults(found, tmp_path)
    assert [line.split(": ")[0] for line in told] == [
        "1.csv, row 2, column fluency",
        "1.csv, row 2, column empathy",
        "2.csv, row 2, column empathy",
        "2.csv, row 2, column overall",
    ]
    assert "given twice" in told[0]
    assert "contradicts 0.csv, row 2, column empathy" in told[1]
    assert "see above" in told[2]
    assert "contradicts 0.csv" in told[3]
    assert [(r.dimension, r.value) for r in found.ratings] == [("fluency", 1)]


def test_an_empty_copy_first_does_not_hide_the_filled_one(tmp_path: Path) -> None:
    found = imported(tmp_path, "dialogue_id,rater,empathy\nd1,ann,\nd1,ann,3\nd1,ann,\n")
    assert found.faults == []
    assert [r.value for r in found.ratings] == [3]


def test_rows_and_lines_differ_where_cells_hold_line_breaks(tmp_path: Path) -> None:
    found = imported(tmp_path, 'dialogue_id,rater,dialogue,empathy\nd1,ann,"a\nb\nc",9\n')
    assert faults(found, tmp_path)[0].startswith("in.csv, row 2 (line 4), column empathy: 9 is off")


def test_a_row_with_too_many_cells_is_not_guessed_at(tmp_path: Path) -> None:
    found = imported(tmp_path, "dialogue_id,rater,empathy\nd1,ann,hello, there,3\nd2,ann,3,\n")
    assert "5 cells under 3 columns" in faults(found, tmp_path)[0]
    assert [r.dialogue_id for r in found.ratings] == ["d2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rater,empathy\nann,3\n", "has no column dialogue_id (or item)"),
        ("dialogue_id,rater,dimension\nd1,ann,empathy\n", "has no column value"),
        ("dialogue_id,rater,empathy,Empathy\nd1,ann,3,4\n", "a second column for empathy"),
        ("dialogue_id,rater,rubric,empathy\nd1,ann,other,3\nd2,ann,,3\n", "row 2: is for rubric 'other'"),
        ("dialogue_id,rater,dimension,value\nd1,ann,emphaty,3\nd1,ann,empathy,3\n", "did you mean 'empathy'?"),
        ("dialogue_id,rater,dimension,value\nd1,ann,,3\n", "no dimension in this row"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str, told: str) -> None:
    found = imported(tmp_path, text)
    assert told in faults(found, tmp_path)[0]
    assert all(rating.value == 3 for rating in found.ratings)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("item,rater,empathy\n" + "item-001,ann,3\n" * 5, "in.csv: holds blinded items; .* --key"),
        ("dialogue_id,rater\nd1,ann\nd2,ann\n", "has no column for any dimension of rubric esc_eval"),
        (
            "dialogue_id,rater,relevance,mood\nd1,ann,4,1\nd2,ann,4,1\n",
            "row 1: has no column for any dimension .*; its columns are those of --rubric esconv_survey",
        ),
        (
            "dialogue_id,rater,rubric,empathy\n" + "d1,ann,other,3\n" * 5,
            r"in.csv: is for rubric 'other', expected 'esc_eval'; see --rubric \(the same at all 5 places of",
        ),
        (
            "dialogue_id,rater,dimension,value\n" + "d1,ann,relevance,3\n" * 5,
            "unknown dimension 'relevance' for rubric esc_eval; rubric esconv_survey has it: --rubric esconv_survey",
        ),
        ("dialogue_id,empathy,fluency\nd1,3,3\nd2,3,3\n", "in.csv: no rater; .* name the rater with --rater"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        imported(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_one_file_under_a_wrong_rubric_is_one_fault_beside_good_ones(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("dialogue_id,rater,empathy\nd1,ann,3\n")
    (tmp_path / "other.csv").write_text("dialogue_id,rater,rubric,empathy\n" + "d2,ann,other,3\n" * 9)
    found = import_ratings([tmp_path / "good.csv", tmp_path / "other.csv"], RUBRIC)
    assert len(found.ratings) == 1
    assert len(found.faults) == 1
    assert "the same at all 9 places of this file" in str(found.faults[0])


def test_a_sheet_given_twice_is_one_line(tmp_path: Path) -> None:
    text = "dialogue_id,rater,empathy,fluency\n" + "".join(f"d{n},ann,3,2\n" for n in range(20))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(UserError, match=r"b\.csv: is the same sheet as .*a\.csv; give each sheet once"):
        import_ratings([tmp_path / "a.csv", tmp_path / "b.csv"], RUBRIC)
    with pytest.raises(UserError, match=r"a\.csv: is given twice"):
        import_ratings([tmp_path / "a.csv", tmp_path / "a.csv"], RUBRIC)
    # Saved again it has other bytes and says the same.
    (tmp_path / "b.csv").write_text("\ufeff" + text)
    found = import_ratings([tmp_path / "a.csv", tmp_path / "b.csv"], RUBRIC)
    assert len(found.ratings) == 40
    assert [fault.message for fault in found.faults] == [
        "every rating in it was read before; was a sheet given twice? each is counted once"
    ]


def test_a_workbook_under_any_name(tmp_path: Path) -> None:
    from openpyxl import Workbook

    book = Workbook()
    for row in (("dialogue_id", "rater", "empathy"), ("d1", "ann", 3)):
        book.active.append(row)
    book.save(tmp_path / "sheet.xlsx")
    for name in ("sheet.xls", "sheet.csv", "sheet"):
        (tmp_path / name).write_bytes((tmp_path / "sheet.xlsx").read_bytes())
        assert [r.value for r in import_ratings([tmp_path / name], RUBRIC).ratings] == [3]


def test_rater_and_ignored_columns_are_named_on_the_command_line(tmp_path: Path) -> None:
    found = imported(tmp_path, "dialogue_id,Timestamp,empathy\nd1,12:00,3\n", rater="ann", ignore=["timestamp"])
    assert found.faults == []
    assert found.ratings[0].rater == "ann"


def test_scale_of_the_rubric_counts(tmp_path: Path) -> None:
    found = imported(tmp_path, "dialogue_id,rater,empathy,relevance\nd1,ann,0,5\n", SURVEY)
    assert "expected a whole level 1 to 5" in faults(found, tmp_path)[0]
    assert [(r.rubric, r.value) for r in found.ratings] == [("esconv_survey", 5)]


def test_json_lines(tmp_path: Path) -> None:
    good = {"dialogue_id": "d1", "rater": "ann", "rubric": "esc_eval", "dimension": "empathy", "value": 3.0}
    lines = [
        json.dumps(good),
        json.dumps({**good, "dimension": "fluency", "value": None, "reason": "could not tell"}),
        '{"dialogue_id": "d1", "rater"',
        json.dumps({**good, "dimension": "overall", "value": 9}),
        json.dumps({**good, "dimnsion": "overall"}),
        json.dumps({"dialogue_id": "d1", "rater": "ann", "dimension": "overall"}),
        '{"dialogue_id": "d1", "rater": "ann", "dimension": "overall", "value": NaN}',
        "[1]",
        json.dumps({**good, "dialogue_id": 7, "dimension": "humanoid", "value": 2}),
    ]
    found = imported(tmp_path, "\n".join(lines) + "\n", name="in.jsonl")
    told = faults(found, tmp_path)
    assert [line.split(":")[0] for line in told] == [
        "in.jsonl, line 3",
        "in.jsonl, line 4, column overall",
        "in.jsonl, line 5",
        "in.jsonl, line 6",
        "in.jsonl, line 7",
        "in.jsonl, line 8",
    ]
    assert "did you mean 'dimension'?" in told[2]
    assert [(r.dialogue_id, r.dimension, r.value, r.reason) for r in found.ratings] == [
        ("7", "humanoid", 2, None),
        ("d1", "fluency", None, "could not tell"),
        ("d1", "empathy", 3, None),
    ]


def test_bundled_ratings_come_through_unchanged(tmp_path: Path) -> None:
    found = import_ratings([SAMPLES / "ratings.jsonl"], RUBRIC)
    assert found.faults == []
    assert found.ratings == sorted(
        read_rating_files([SAMPLES / "ratings.jsonl"], RUBRIC),
        key=lambda r: (r.dialogue_id, r.rater, RUBRIC.names().index(r.dimension)),
    )
    assert len(found.ratings) == 616


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 not a zip", "no XLSX workbook"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old or encrypted Excel"),
        ("dialogue_id\n求助".encode("gbk"), "not valid UTF-8"),
        ("dialogue_id".encode("utf-16"), "UTF-16"),
        (b"dialogue_id\x00", "not a text file"),
        (b"[1, 2]", "no list of Label Studio tasks"),
        (b'[{"data": {}}]', "not JSON-MIN"),
        (b'[{"data": {}', "not valid JSON"),
    ],
)
def test_files_that_are_none_of_the_formats(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "in.dat"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"in\.dat") as caught:
        import_ratings([path], RUBRIC)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="file not found"):
        import_ratings([tmp_path / "no.csv"], RUBRIC)
    with pytest.raises(UserError, match="is a folder"):
        import_ratings([tmp_path], RUBRIC)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.text(), st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=5), max_size=4))
def test_arbitrary_tables_give_ratings_or_faults(tmp_path: Path, text: str, rows: list[list[str]]) -> None:
    import csv

    path = tmp_path / "any.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(UserError):
        import_ratings([path], RUBRIC)
    with open(path, "w", encoding="utf-8", errors="replace", newline="") as handle:
        csv.writer(handle).writerows([["dialogue_id", "rater", "empathy"], *rows])
    with suppress(UserError):
        found = import_ratings([path], RUBRIC)
        assert all(rating.value in (None, 0, 1, 2, 3, 4) for rating in found.ratings)


def dialogue(identifier: str) -> Dialogue:
    return Dialogue(id=identifier, language="en", source="x", turns=(Turn(speaker="seeker", text="hi"),))


def test_key_round_trip_and_its_checks(tmp_path: Path) -> None:
    dialogues = [dialogue(f"model-a/{n}") for n in range(20)]
    plan = assign([one.id for one in dialogues], ["ann", "bob"], 1, seed=1)
    key = make_key(dialogues, plan, RUBRIC, 1)
    write_json_record(tmp_path / "key.json", key)
    assert read_key(tmp_path / "key.json", RUBRIC) == key
    assert sorted(key.items.values()) == sorted(one.id for one in dialogues)
    assert list(key.items.values()) != sorted(key.items.values())
    with pytest.raises(UserError, match="is the key of rubric 'esc_eval'"):
        read_key(tmp_path / "key.json", SURVEY)
    changed = RUBRIC.model_copy(update={"version": 2})
    with pytest.raises(UserError, match="has changed since the export"):
        read_key(tmp_path / "key.json", changed)
    with pytest.raises(UserError, match="'nobody', which is not among"):
        make_key(dialogues, {"ann": ["nobody"]}, RUBRIC, 0)
    (tmp_path / "key.json").write_text("{}")
    with pytest.raises(UserError, match="is no rating key"):
        read_key(tmp_path / "key.json", RUBRIC)


def test_key_maps_items_and_counts_what_is_open(tmp_path: Path) -> None:
    key = make_key([dialogue("d1"), dialogue("d2")], {"ann": ["d1", "d2"]}, RUBRIC, 0)
    item = next(name for name, identifier in key.items.items() if identifier == "d1")
    found = imported(tmp_path, f"item,rater,empathy\n{item},ann,3\nitem-009,ann,3\n", key=key)
    assert [(r.dialogue_id, r.value) for r in found.ratings] == [("d1", 3)]
    assert "item 'item-009' is not in the key" in faults(found, tmp_path)[0]
    assert found.notes == ["1 of 2 assigned dialogues have no rating yet"]
    found = imported(tmp_path, f"item,rater,empathy\n{item},anna,3\n", key=key)
    assert "raters that the key does not know: anna" in found.notes[0]


@pytest.mark.parametrize(
    ("raters", "per_item", "overlap"), [(5, 2, 1.0), (4, 3, 0.5), (7, 2, 0.3), (3, 3, 1.0), (6, 1, 1.0)]
)
def test_plan_is_balanced(raters: int, per_item: int, overlap: float) -> None:
    ids = [f"d{n}" for n in range(101)]
    names = rater_names(str(raters))
    plan = assign(ids, names, per_item, overlap, seed=4)
    assert plan == assign(list(reversed(ids)), names, per_item, overlap, seed=4)
    assert plan != assign(ids, names, per_item, overlap, seed=5)
    loads = [len(own) for own in plan.values()]
    assert max(loads) - min(loads) <= 1
    times = Counter(identifier for own in plan.values() for identifier in own)
    shared = round(overlap * len(ids))
    assert sorted(times) == sorted(ids)
    assert Counter(times.values()) == Counter({per_item: shared}) + Counter({1: len(ids) - shared})
    assert all(len(set(own)) == len(own) for own in plan.values())
    orders = [[identifier for identifier in own if times[identifier] == raters] for own in plan.values()]
    if per_item == raters > 1:
        assert orders[0] != orders[1]


def test_every_pair_of_raters_meets_about_equally_often() -> None:
    plan = assign([f"d{n}" for n in range(100)], rater_names("5"), 2, seed=0)
    met = [len(set(a) & set(b)) for a, b in combinations(plan.values(), 2)]
    assert sum(met) == 100
    assert max(met) - min(met) <= 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([], ["a"], 1), "no dialogue"),
        ((["d", "d"], ["a"], 1), "'d' occurs twice"),
        ((["d"], ["a"], 2), "there are 1 raters"),
        ((["d"], ["a"], 0), "--per-item is 0"),
        ((["d"], ["a"], 1, 1.5), "--overlap is 1.5"),
        ((["d"], ["a"], 1, float("nan")), "--overlap is nan"),
    ],
)
def test_plans_that_cannot_be_made(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        assign(*arguments)


def test_names_of_raters() -> None:
    assert rater_names("2") == ["rater-1", "rater-2"]
    assert rater_names("ann, 小王") == ["ann", "小王"]
    for wrong in ("0", "../x", "a,,b", "=cmd", "Ann,ann", ""):
        with pytest.raises(UserError, match="--raters"):
            rater_names(wrong)


def rated(*levels: float | None, dimension: str = "empathy") -> list[Rating]:
    return [
        Rating(dialogue_id="d", rater=f"r{n}", rubric="esc_eval", dimension=dimension, value=level)
        for n, level in enumerate(levels)
    ]


@pytest.mark.parametrize(
    ("method", "levels", "value", "reason"),
    [
        ("mean", (1, 2, None), 1.5, None),
        ("median", (1, 2, 4), 2, None),
        ("median", (1, 3), 2, None),
        ("median", (2, 2, None), 2, None),
        ("median", (1, 2), None, "the median of 2 raters lies between two levels"),
        ("majority", (3, 3, 1), 3, None),
        ("majority", (3, 1), None, "no level was given by more than half of 2 raters"),
        ("majority", (2, 2, 3, 4, 1), None, "no level was given by more than half of 5 raters"),
        ("majority", (None, None), None, "no rater gave a value"),
    ],
)
def test_aggregation(method: str, levels: tuple[Any, ...], value: float | None, reason: str | None) -> None:
    found = aggregate(rated(*levels), RUBRIC, method)
    assert [(r.rater, r.value, r.reason) for r in found if isinstance(r, Rating)] == [(method, value, reason)]


def test_the_adjudicator_decides() -> None:
    ratings = [*rated(1, 4, 2), *rated(3, 3, dimension="fluency"), *rated(0, 1, dimension="overall")]
    found = aggregate(ratings, RUBRIC, "adjudicated", "r2")
    assert [(r.dimension, r.value) for r in found if isinstance(r, Rating)] == [
        ("fluency", 3),
        ("empathy", 2),
        ("overall", None),
    ]
    assert found[2].reason == "2 raters differ and the adjudicator gave no value"  # type: ignore[union-attr]
    for method, name, told in (
        ("adjudicated", None, "--adjudicator"),
        ("mean", "r2", "only with"),
        ("adjudicated", "x", "gave no"),
    ):
        with pytest.raises(UserError, match=told):
            aggregate(ratings, RUBRIC, method, name)


def test_distributions_keep_everything() -> None:
    found = aggregate(rated(1, 4, 1, None), RUBRIC, "distribution")
    assert found == [
        RatingDistribution(
            dialogue_id="d",
            rubric="esc_eval",
            dimension="empathy",
            counts={0: 0, 1: 2, 2: 0, 3: 0, 4: 1},
            raters=3,
            missing=1,
        )
    ]


def test_ratings_given_twice_are_no_input_for_statistics(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", rated(1))
    with pytest.raises(UserError, match=r"a.jsonl:1: 'r0' rated this dialogue's empathy at .*a.jsonl:1 too"):
        read_rating_files([tmp_path / "a.jsonl", tmp_path / "a.jsonl"], RUBRIC)
