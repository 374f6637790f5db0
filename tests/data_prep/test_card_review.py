import csv
import datetime
import io
import random
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook

from data_prep.card_review import FILLED, HEADER, export_review, import_review
from data_prep.card_sheet import read_sheet, shown, write_sheet
from data_prep.card_taxonomy import load_taxonomy
from data_prep.errors import UserError
from data_prep.records import RoleCard

TAXONOMY = load_taxonomy()
SECRET = "nobody may read this sentence"
FORMULAS = ['=HYPERLINK("http://x","y")', "+1+1", "-2", "@SUM(A1)", "\t=1", "'=1", "''=1", "=1", "＝1"]
BOTH = pytest.mark.parametrize("ending", [".xlsx", ".csv"])


def card(number, **changes):
    return RoleCard(
        **{"id": f"c{number}", "language": "en", "problem": f"{SECRET} {number}", "source": "made", **changes}
    )


def exported(tmp_path, cards, ending=".xlsx", name="sheet"):
    path = tmp_path / f"{name}{ending}"
    export_review(path, cards, TAXONOMY)
    return path


def table(path):
    """All cells of a sheet as texts, read without our code."""
    if path.suffix == ".csv":
        return list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    return [[cell.value or "" for cell in row] for row in load_workbook(path)["cards"].iter_rows()]


def fill(path, rows):
    """Does what a person does: writes into the cells {row number: {column: value}}."""
    if path.suffix == ".csv":
        cells = table(path)
        for number, values in rows.items():
            for name, value in values.items():
                cells[number - 1][HEADER.index(name)] = value
        with open(path, "w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream).writerows(cells)
        return path
    book = load_workbook(path)
    for number, values in rows.items():
        for name, value in values.items():
            book["cards"].cell(number, HEADER.index(name) + 1).value = value
    book.save(path)
    return path


def one_fault(tmp_path, values, ending=".xlsx", row=2):
    """The only fault that filling one row of two like this gives; the other row still counts."""
    cards = [card(1), card(2)]
    path = fill(exported(tmp_path, cards, ending), {3: {"keep": "yes"}})
    review = import_review(cards, [fill(path, {row: values})], TAXONOMY)
    assert [kept.id for kept in review.kept] == ["c2"]
    assert "c1" not in review.dropped + review.unreviewed
    (fault,) = review.faults
    assert fault.startswith(f"{path}: row 2: ")
    assert SECRET not in fault
    assert "\n" not in fault
    return fault


# ---- the round trip


@BOTH
def test_a_script_fills_a_sheet_and_it_comes_back(tmp_path, ending):
    cards = [card(number, age="29", category=("家庭生活",)) for number in range(1, 7)]
    path = exported(tmp_path, cards, ending)
    fill(
        path,
        {
            2: {"keep": "yes", "quality": "high"},
            3: {"keep": "No"},
            4: {"keep": "YES", "quality": "Middle", "fix_age": "31", "fix_problem": "told\nanew ", "note": "mended"},
            5: {"keep": "是", "quality": "低", "category": "work_study/work/load"},
            6: {"keep": "y", "fix_age": "-", "category": "家庭生活 / 父母与原生家庭 / childhood"},
        },
    )
    review = import_review(cards, [path], TAXONOMY)
    assert review.faults == []
    assert [kept.id for kept in review.kept] == ["c1", "c3", "c4", "c5"]
    assert (review.dropped, review.unreviewed, review.fixed) == (["c2"], ["c6"], 2)
    first, third, fourth, fifth = review.kept
    assert first == cards[0].model_copy(
        update={"quality": "high", "meta": {"review": {"rows": [f"sheet{ending}: row 2"], "fixed": []}}}
    )
    assert (third.age, third.problem, third.quality) == ("31", "told anew", "middle")
    assert third.meta["review"]["notes"] == ["mended"]
    assert third.meta["review"]["fixed"] == ["age", "problem"]
    assert (fourth.quality, fourth.category) == ("low", ("work_study", "work", "load"))
    assert (fifth.age, fifth.quality, fifth.category) == (None, None, ("family", "parents", "childhood"))


@BOTH
def test_an_untouched_sheet_reviews_nothing(tmp_path, ending):
    cards = [card(1, quality="high", category=("own words", "x")), card(2)]
    review = import_review(cards, [exported(tmp_path, cards, ending)], TAXONOMY)
    assert (review.kept, review.faults, review.unreviewed) == ([], [], ["c1", "c2"])


def test_a_workbook_under_another_name_is_read(tmp_path):
    cards = [card(1), card(2)]
    sheet = exported(tmp_path, cards)
    renamed = sheet.rename(tmp_path / "sheet.xls")
    assert import_review(cards, [renamed], TAXONOMY).faults == []


@BOTH
def test_rows_in_another_order_and_columns_moved(tmp_path, ending):
    cards = [card(1), card(2)]
    path = fill(exported(tmp_path, cards, ending), {2: {"keep": "yes"}, 3: {"keep": "no"}})
    header, *rows = [row[::-1] for row in table(path)]
    write_sheet(path, header, rows[::-1], {}, ())
    review = import_review(cards, [path], TAXONOMY)
    assert ([kept.id for kept in review.kept], review.dropped, review.faults) == (["c1"], ["c2"], [])


def test_a_csv_as_a_spreadsheet_of_another_country_saves_it(tmp_path):
    cards = [card(1), card(2)]
    path = fill(exported(tmp_path, cards, ".csv"), {2: {"keep": "yes"}})
    rows = table(path)
    for separator in ";\t":
        with open(path, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, delimiter=separator, lineterminator="\n").writerows([*rows, [""] * len(HEADER)])
        assert [kept.id for kept in import_review(cards, [path], TAXONOMY).kept] == ["c1"]


def test_the_sheet_offers_the_words(tmp_path):
    book = load_workbook(exported(tmp_path, [card(1), card(2)]))
    assert book.sheetnames == ["cards", "choices", "how to"]
    offers = {str(offer.sqref): offer.formula1 for offer in book["cards"].data_validations.dataValidation}
    assert len(offers) == 3
    assert [cell.value for cell in book["choices"]["B"]][:3] == ["high", "middle", "low"]
    assert [cell.value for cell in book["choices"]["C"]] == ["/".join(path) for path in TAXONOMY.paths()]


def test_published_text_gives_way_to_a_fix(tmp_path):
    cards = [card(1, text="Age: 1\nProblem: as published")]
    review = import_review(cards, [fill(exported(tmp_path, cards), {2: {"keep": "yes", "fix_age": "2"}})], TAXONOMY)
    assert review.kept[0].text is None
    assert review.kept[0].meta["published_text"] == "Age: 1\nProblem: as published"


# ---- hostile cells


@BOTH
@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(tmp_path, ending, text):
    cards = [card(1, problem=text, age=text)]
    path = exported(tmp_path, cards, ending)
    if ending == ".csv":
        for cell in table(path)[1]:
            assert cell[:1] not in ("=", "+", "-", "@", "\t", "＝")
    else:
        xml = zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml").decode()
        assert "<f>" not in xml
        assert all(cell.data_type != "f" for row in load_workbook(path)["cards"].iter_rows() for cell in row)
    review = import_review(cards, [fill(path, {2: {"keep": "yes"}})], TAXONOMY)
    assert review.faults == []
    assert review.kept[0].problem == text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), min_size=1, max_size=4),
    st.sampled_from([".csv", ".xlsx"]),
)
def test_any_text_goes_out_and_is_recognised(tmp_path, texts, ending):
    cards = [card(number, problem=problem, age=age) for number, (problem, age) in enumerate(texts)]
    path = exported(tmp_path, cards, ending)
    review = import_review(cards, [path], TAXONOMY)
    assert review.faults == []
    assert len(review.unreviewed) == len(cards)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text(max_size=20), min_size=3, max_size=3), max_size=4))
def test_csv_gives_back_what_was_written(tmp_path, rows):
    path = tmp_path / "any.csv"
    rows = [[shown(cell) for cell in row] for row in rows]
    write_sheet(path, ("a", "b", "c"), rows, {}, ())
    expected = [row for row in rows if any(cell.strip() for cell in row)]
    assert [[row.cells[name] for name in "abc"] for row in read_sheet(path, ("a", "b", "c"))] == expected


# ---- faults, by row


@BOTH
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"keep": "maybe"}, "keep: is none of yes, no"),
        ({"keep": "yes", "quality": "hihg"}, "quality: is none of high, middle, low; did you mean 'high'?"),
        ({"keep": "yes", "quality": "4"}, "quality: is none of high, middle, low"),
        ({"keep": "yes", "category": "family/cats"}, "category: is no class of taxonomy 'esckit'"),
        ({"keep": "yes", "fix_problem": "-"}, "fix_problem: a card without a problem"),
        ({"keep": "yes", "fix_age": "x" * 100}, "fix_age: is longer than 80"),
        ({"keep": "yes", "problem": "edited"}, "problem: differs from the card; write the change into fix_problem"),
        ({"keep": "yes", "language": "zh"}, "language: differs from the card; restore it"),
        ({"quality": "high"}, "keep: is empty"),
        ({"fix_age": "3"}, "keep: is empty"),
        ({"keep": "yes", "fix_problem": "=1+1"}, "fix_problem: holds a formula"),
    ],
)
def test_a_bad_cell_is_told_by_row_and_the_others_count(tmp_path, ending, values, told):
    assert told in one_fault(tmp_path, values, ending)


def test_dates_and_errors_are_told(tmp_path):
    assert "fix_age: holds a date" in one_fault(tmp_path, {"keep": "yes", "fix_age": datetime.date(2026, 1, 2)})
    assert "quality: holds an error value" in one_fault(tmp_path, {"keep": "yes", "quality": "#REF!"})


def test_numbers_and_ticks_of_a_spreadsheet_are_understood(tmp_path):
    cards = [card(1, id="12"), card(2)]
    path = fill(exported(tmp_path, cards), {2: {"card": 12, "keep": True, "fix_age": 31.0}, 3: {"keep": False}})
    review = import_review(cards, [path], TAXONOMY)
    assert review.faults == []
    assert (review.kept[0].age, review.dropped) == ("31", ["c2"])


@BOTH
def test_unknown_ids_are_told(tmp_path, ending):
    cards = [card(1), card(2), card(3)]
    path = fill(exported(tmp_path, cards, ending), {number: {"keep": "yes"} for number in (2, 3, 4)})
    fill(path, {3: {"card": SECRET}, 4: {"card": ""}})
    review = import_review(cards, [path], TAXONOMY)
    assert [kept.id for kept in review.kept] == ["c1"]
    assert review.unreviewed == ["c2", "c3"]
    assert [fault.partition(": row ")[2][:8] for fault in review.faults] == ["3: card:", "4: card:"]
    assert SECRET not in " ".join(review.faults)


@BOTH
def test_changed_headers_are_told(tmp_path, ending):
    for changes, told in (
        ({"quality": "grade"}, "column 'quality' is missing; unknown name in column 10"),
        ({"note": "keep"}, "column 'note' is missing; column 'keep' occurs twice"),
        ({"card": SECRET}, "column 'card' is missing; unknown name in column 1"),
    ):
        path = fill(exported(tmp_path, [card(1)], ending), {1: changes})
        with pytest.raises(UserError) as error:
            import_review([card(1)], [path], TAXONOMY)
        assert str(error.value).startswith(f"{path}:1: {told}; restore the first row")
        assert SECRET not in str(error.value)


@BOTH
def test_something_beside_the_table_is_told(tmp_path, ending):
    path = exported(tmp_path, [card(1)], ending)
    if ending == ".csv":
        path.write_text(path.read_text("utf-8").rstrip() + ",more\r\n", "utf-8")
    else:
        book = load_workbook(path)
        book["cards"].cell(2, len(HEADER) + 1).value = "more"
        book.save(path)
    (fault,) = import_review([card(1)], [path], TAXONOMY).faults
    assert f"row 2: column {len(HEADER) + 1} has no name" in fault


# ---- several people


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"keep": "yes"}, {"keep": "no"}, "keep"),
        ({"keep": "yes", "quality": "high"}, {"keep": "yes", "quality": "low"}, "quality"),
        ({"keep": "yes", "fix_age": "3"}, {"keep": "yes", "fix_age": "4"}, "the fixes"),
        (
            {"keep": "yes", "category": "work_study/work/load"},
            {"keep": "yes", "category": "work_study/work/loss"},
            "category",
        ),
    ],
)
def test_two_sheets_that_contradict_each_other(tmp_path, one, other, told):
    cards = [card(1), card(2), card(3)]
    sheets = [exported(tmp_path, cards, ".xlsx", "ann"), exported(tmp_path, cards, ".csv", "ben")]
    fill(sheets[0], {3: one, 2: {"keep": "yes"}})
    fill(sheets[1], {3: other, 4: {"keep": "no"}})
    review = import_review(cards, sheets, TAXONOMY)
    assert review.faults == [
        f"{sheets[0]}: row 3 and {sheets[1]}: row 3: contradict each other in {told}; make them agree"
    ]
    assert ([kept.id for kept in review.kept], review.dropped, review.unreviewed) == (["c1"], ["c3"], [])


def test_sheets_that_agree_are_put_together(tmp_path):
    cards = [card(1)]
    sheets = [exported(tmp_path, cards, ".xlsx", name) for name in ("ann", "ben", "cem")]
    fill(sheets[0], {2: {"keep": "yes", "quality": "high"}})
    fill(sheets[1], {2: {"keep": "yes", "fix_age": "30", "note": "age is in the text"}})
    review = import_review(cards, sheets, TAXONOMY)
    assert review.faults == []
    (kept,) = review.kept
    assert (kept.quality, kept.age) == ("high", "30")
    assert kept.meta["review"]["rows"] == ["ann.xlsx: row 2", "ben.xlsx: row 2"]


def test_a_card_twice_in_one_sheet(tmp_path):
    cards = [card(1), card(2)]
    path = fill(exported(tmp_path, cards), {2: {"keep": "yes"}, 3: {"keep": "no"}})
    first = dict(zip(HEADER, table(path)[1], strict=True))
    fill(path, {3: {name: first[name] for name in HEADER if name not in FILLED}})
    review = import_review(cards, [path], TAXONOMY)
    assert "row 2 and" in review.faults[0]
    assert review.unreviewed == ["c2"]


# ---- files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04broken",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1old",
        b"\xff\xfea\0b\0",
        b"\xff\xff",
        b'card,"keep\n',
        b"card\0keep",
    ],
)
def test_files_that_are_no_sheet(tmp_path, content):
    path = tmp_path / "sheet.xlsx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"sheet\.xlsx") as told:
        import_review([card(1)], [path], TAXONOMY)
    assert "\n" not in str(told.value)


def test_damaged_workbooks_are_user_errors(tmp_path):
    whole = exported(tmp_path, [card(1)]).read_bytes()
    path = tmp_path / "damaged.xlsx"
    generator = random.Random(0)
    told = []
    for _ in range(60):
        broken = bytearray(whole)
        for _ in range(generator.choice([1, 5, 50])):
            broken[generator.randrange(len(broken))] = generator.randrange(256)
        path.write_bytes(broken[: generator.choice([len(broken), generator.randrange(4, len(broken))])])
        try:
            import_review([card(1)], [path], TAXONOMY)
        except UserError as error:
            told.append(str(error))
    assert len(told) > 20
    assert not any("\n" in message for message in told)


def test_other_endings_and_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"ends neither in \.xlsx nor in \.csv"):
        export_review(tmp_path / "sheet.ods", [card(1)], TAXONOMY)
    with pytest.raises(UserError, match="not found"):
        import_review([card(1)], [tmp_path / "none.xlsx"], TAXONOMY)
    with pytest.raises(UserError, match="look the same"):
        export_review(tmp_path / "s.csv", [card(1, id="a\x00"), card(2, id="a\x01")], TAXONOMY)
