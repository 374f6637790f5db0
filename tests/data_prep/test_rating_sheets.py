"""Rating sheets: blinded, shuffled, safe to open; filled by a script and imported they give every level back."""

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import UserError
from data_prep.rating_keys import read_key
from data_prep.rating_sheets import CELL_LIMIT, as_csv_text, dialogue_text, names_in_text
from data_prep.ratings import import_ratings
from data_prep.records import Dialogue, Language, Turn, read_records, write_records
from data_prep.rubric import load_rubric
from tests.data_prep.made_ratings import (
    FILL,
    HOSTILE,
    RUBRIC,
    SAMPLES,
    expected_values,
    exported,
    fill_xlsx,
    hostile_dialogues,
    values_of,
)


def sheets_in(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "sheets").iterdir() if path.suffix in (".xlsx", ".csv", ".json"))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("format", ["xlsx", "csv", "label-studio"])
def test_export_fill_import(tmp_path: Path, format: str, language: Language) -> None:
    """Every level comes back to its dialogue, whatever the dialogues hold."""
    key, files = exported(tmp_path / "out", format, language)
    assert files[-1] == tmp_path / "out" / "key.json"
    assert all(path.exists() for path in files)
    for path in sheets_in(tmp_path / "out"):
        FILL[format](path)
    found = import_ratings(sheets_in(tmp_path / "out"), RUBRIC, key=read_key(files[-1], RUBRIC))
    assert [str(fault) for fault in found.faults] == []
    assert values_of(found.ratings) == expected_values(key)
    assert found.missing().keys() == {"left empty", "given as 'N/A'"}


def test_sheets_of_an_own_rubric(tmp_path: Path) -> None:
    """Titles with brackets, scales below zero and hostile anchors are a rubric's right."""
    content = {
        "name": "own",
        "version": 1,
        "description": "hostile",
        "dimensions": [
            {
                "name": name,
                "scale": [-1, 1],
                "title": {"en": f"=cmd|{name} (how much?)", "zh": f"+{name}（多少）"},
                "question": {"en": "$dialogue <b>&\"'", "zh": "=1+1"},
                "anchors": {level: {"en": f"=A{level} <x>", "zh": "@x"} for level in (-1, 0, 1)},
            }
            for name in ("warm", "calm")
        ],
    }
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    rubric = load_rubric(str(path))

    def fill(item: str, rater: str, name: str) -> int:
        return -1 if name == "warm" else 1

    for format in ("xlsx", "csv", "label-studio"):
        _, files = exported(tmp_path / format, format, "en", rubric=rubric)
        for sheet in sheets_in(tmp_path / format):
            FILL[format](sheet, fill, rubric)
        found = import_ratings(sheets_in(tmp_path / format), rubric, key=read_key(files[-1], rubric))
        assert found.faults == []
        assert {(r.dimension, r.value) for r in found.ratings} == {("warm", -1), ("calm", 1)}
        assert len(found.ratings) == 2 * 2 * len(HOSTILE)


@pytest.mark.parametrize("format", ["xlsx", "csv", "label-studio"])
def test_sheets_are_blind(tmp_path: Path, format: str) -> None:
    """Neither names nor ids of models anywhere in what goes to the raters; file properties included."""
    _, files = exported(tmp_path / "out", format)
    for path in files[:-1]:
        parts = [path.read_bytes()]
        if format == "xlsx":
            with zipfile.ZipFile(path) as archive:
                parts = [archive.read(name) for name in archive.namelist()]
        for part in parts:
            assert b"secret" not in part
            assert b"simulation" not in part
    assert b"gpt-secret" in files[-1].read_bytes()


def test_each_rater_has_an_own_order(tmp_path: Path) -> None:
    key, _ = exported(tmp_path / "a", "csv", dialogues=read_records(SAMPLES / "rated_dialogues.jsonl", Dialogue))
    again, _ = exported(tmp_path / "b", "csv", dialogues=read_records(SAMPLES / "rated_dialogues.jsonl", Dialogue))
    assert key == again
    assert all(list(items) != sorted(items) for items in key.raters.values())
    assert [path.read_bytes() for path in sheets_in(tmp_path / "a")] == [
        path.read_bytes() for path in sheets_in(tmp_path / "b")
    ]


def test_nothing_in_a_workbook_is_a_formula(tmp_path: Path) -> None:
    from openpyxl import load_workbook

    exported(tmp_path / "out", "xlsx", "zh")
    for path in sheets_in(tmp_path / "out"):
        workbook = load_workbook(path)
        for sheet in workbook.worksheets:
            assert all(cell.data_type in ("s", "n") for row in sheet.iter_rows() for cell in row)
        with zipfile.ZipFile(path) as archive:
            assert not any(b"<f>" in archive.read(name) for name in archive.namelist() if "worksheets/" in name)


def test_text_that_begins_like_a_formula_stays_text(tmp_path: Path) -> None:
    from openpyxl import Workbook, load_workbook

    from data_prep.rating_sheets import write_cell

    workbook = Workbook()
    for row, text in enumerate(("=1+1", "+1", "-1", "@x", "plain"), 1):
        write_cell(workbook.active, row, 1, text)
    workbook.save(tmp_path / "x.xlsx")
    cells = [row[0] for row in load_workbook(tmp_path / "x.xlsx").active.iter_rows()]
    assert [cell.value for cell in cells] == ["=1+1", "+1", "-1", "@x", "plain"]
    assert [cell.data_type for cell in cells] == ["s"] * 5
    assert [bool(cell.quotePrefix) for cell in cells] == [True] * 4 + [False]


def test_csv_cells_begin_with_no_formula_sign(tmp_path: Path) -> None:
    assert as_csv_text("=1+1") == "'=1+1"
    exported(tmp_path / "out", "csv")
    for path in sheets_in(tmp_path / "out"):
        with open(path, encoding="utf-8-sig", newline="") as handle:
            cells = [cell for row in csv.reader(handle) for cell in row]
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)


def test_no_turn_can_pose_as_another() -> None:
    dialogue = hostile_dialogues()[HOSTILE.index("line one\nSupporter: a forged turn")]
    lines = dialogue_text(dialogue).split("\n")
    assert lines[1] == "    Supporter: a forged turn"
    assert len([line for line in lines if not line.startswith("    ")]) == 2


def test_workbook_offers_the_levels_and_the_anchors(tmp_path: Path) -> None:
    from openpyxl import load_workbook

    exported(tmp_path / "out", "xlsx", "zh")
    workbook = load_workbook(sheets_in(tmp_path / "out")[0])
    assert workbook.sheetnames == ["评分", "说明"]
    sheet = workbook["评分"]
    assert [cell.value for cell in sheet[1]][:4] == ["条目", "评分人", "对话", "流畅性 (0-4)"]
    lists = sheet.data_validations.dataValidation
    assert [found.formula1 for found in lists] == ['"0,1,2,3,4,N/A"'] * 7
    assert str(lists[0].sqref) == f"D2:D{sheet.max_row}"
    assert "0: 无法理解" in lists[0].prompt
    text = "\n".join(str(cell.value) for row in workbook["说明"].iter_rows() for cell in row)
    for dimension in RUBRIC.dimensions:
        assert dimension.question.zh in text
        assert all(anchor.zh in text for anchor in dimension.anchors.values())


def test_dialogue_longer_than_a_cell_loses_nothing(tmp_path: Path) -> None:
    from openpyxl import load_workbook

    text = "".join(chr(97 + n % 26) for n in range(2 * CELL_LIMIT))
    long = Dialogue(id="long", language="en", source="x", turns=(Turn(speaker="seeker", text=text),))
    for format in ("xlsx", "csv"):
        key, _ = exported(tmp_path / format, format, dialogues=[long, *hostile_dialogues()])
        for path in sheets_in(tmp_path / format):
            if key.items and "long" in {key.items[item] for item in key.raters[path.stem]}:
                FILL[format](path)
        found = import_ratings(sheets_in(tmp_path / format), RUBRIC, key=key)
        assert found.faults == []
        assert sum(r.dialogue_id == "long" for r in found.ratings) == 14
    rater = next(name for name, items in key.raters.items() if "long" in {key.items[item] for item in items})
    sheet = load_workbook(tmp_path / "xlsx" / "sheets" / f"{rater}.xlsx").worksheets[0]
    row = next(r for r in sheet.iter_rows(min_row=2, values_only=True) if r[0] and key.items[r[0]] == "long")
    assert "".join(row[2:5]) == f"Seeker: {text}"


def test_faults_of_a_workbook_name_sheet_row_and_column(tmp_path: Path) -> None:
    import datetime

    from openpyxl import load_workbook

    key, files = exported(tmp_path / "out", "xlsx")
    path = files[0]
    fill_xlsx(path, lambda *_: 3)
    workbook = load_workbook(path)
    sheet = workbook.worksheets[0]
    for column, typed in zip("DEFGHIJ", (7, 3.5, datetime.date(2024, 3, 4), "=1+1", "gut", True, "#N/A"), strict=True):
        sheet[f"{column}3"] = typed
    sheet["A5"] = "item-999"
    sheet["B6"] = None
    other = workbook.create_sheet("Later")
    other.append(["item", "rater", "Empathy", "Mood"])
    other.append([sheet["A2"].value, "ann", 1, 3])
    workbook.create_sheet("Empty")
    workbook.save(path)
    found = import_ratings([path], RUBRIC, key=key)
    told = [str(fault).replace(f"{path}, ", "") for fault in found.faults]
    starts = [line.split(": ")[0] for line in told]
    assert starts == [
        *(f"sheet Ratings, row 3, column {c}" for c in (
            "D (Fluency (0-4))", "E (Expression (0-4))", "F (Empathy (0-4))", "G (Information (0-4))",
            "H (Skillful (0-4))", "I (Humanoid (0-4))", "J (Overall (0-4))",
        )),
        "sheet Ratings, row 5",
        "sheet Ratings, row 6",
        "sheet Later, row 1, column D (Mood)",
        "sheet Later, row 2, column C (Empathy)",
    ]  # fmt: skip
    for line, part in zip(
        told,
        ("off the scale", "between two levels", "into a date", "formula", "'gut'", "true/false", "error value",
         "not in the key", "no rater", "unknown column", "contradicts"),
        strict=True,
    ):  # fmt: skip
        assert part in line
    rows = len(key.raters["ann"])
    assert len(found.ratings) == 7 * (rows - 3) - 1
    assert {r.value for r in found.ratings} == {3}


def test_numbers_stored_as_dates_are_told_not_read(tmp_path: Path) -> None:
    from openpyxl import load_workbook

    key, files = exported(tmp_path / "out", "xlsx")
    fill_xlsx(files[0], lambda *_: 3)
    workbook = load_workbook(files[0])
    workbook.worksheets[0]["D2"].number_format = "yyyy-mm-dd"
    workbook.save(files[0])
    found = import_ratings([files[0]], RUBRIC, key=key)
    assert len(found.faults) == 1
    assert "set the cell's format to number" in found.faults[0].message


def test_an_export_is_never_overwritten(tmp_path: Path) -> None:
    exported(tmp_path / "out", "csv")
    with pytest.raises(UserError, match="holds an export already"):
        exported(tmp_path / "out", "xlsx")


@pytest.mark.parametrize("title", ["Fluency", "note", "rater", "information"])
def test_titles_that_could_not_be_read_back_are_refused(tmp_path: Path, title: str) -> None:
    empathy = RUBRIC.dimension("empathy")
    renamed = empathy.model_copy(update={"title": empathy.title.model_copy(update={"en": title})})
    dimensions = tuple(renamed if one.name == "empathy" else one for one in RUBRIC.dimensions)
    with pytest.raises(UserError, match="do not tell the columns of a sheet apart"):
        exported(tmp_path / "out", "csv", rubric=RUBRIC.model_copy(update={"dimensions": dimensions}))
    assert not (tmp_path / "out").exists()


def test_broken_workbooks_are_one_line(tmp_path: Path) -> None:
    _, files = exported(tmp_path / "out", "xlsx")
    whole = files[0].read_bytes()
    cut = tmp_path / "cut.xlsx"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="no XLSX workbook"):
        import_ratings([cut], RUBRIC)
    word = tmp_path / "word.xlsx"
    with zipfile.ZipFile(word, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    with pytest.raises(UserError, match="no XLSX workbook"):
        import_ratings([word], RUBRIC)
    torn = tmp_path / "torn.xlsx"
    with zipfile.ZipFile(files[0]) as source, zipfile.ZipFile(torn, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content[: len(content) // 2] if name.endswith("sheet1.xml") else content)
    found = import_ratings([torn], RUBRIC)
    assert any("damaged" in fault.message for fault in found.faults)


def test_names_that_blinding_cannot_hide_are_counted() -> None:
    told = Dialogue(
        id="x",
        language="en",
        source="simulation",
        turns=(Turn(speaker="supporter", text="I am GPT-Secret, a model"),),
        meta={"supporter": "gpt-secret"},
    )
    assert names_in_text([told, *hostile_dialogues()]) == 1


def test_filled_sheets_train_a_scorer(tmp_path: Path, tiny_encoder: Path) -> None:
    """Sheet out, filled by a script, sheet in: files that the trainer reads, and a row a dialogue with all raters."""
    from tests.train.made_scorer import scorer_content, scorer_recipe
    from train.rank import build_trainer, read_ratings

    dialogues = read_records(SAMPLES / "rated_dialogues.jsonl", Dialogue)[:12]
    write_records(tmp_path / "dialogues.jsonl", dialogues)
    key, _ = exported(tmp_path / "out", "xlsx", dialogues=dialogues)
    for path in sheets_in(tmp_path / "out"):
        fill_xlsx(path)
    found = import_ratings(sheets_in(tmp_path / "out"), RUBRIC, key=key)
    write_records(tmp_path / "ratings.jsonl", found.ratings)

    read = read_ratings([str(tmp_path / "ratings.jsonl")], RUBRIC)
    expected = expected_values(key)
    assert {
        (d, r, n): v for d, raters in read.items() for r, given in raters.items() for n, v in given.items()
    } == expected

    content: dict[str, Any] = scorer_content(tiny_encoder, tmp_path / "run")
    content["data"] |= {"train": str(tmp_path / "dialogues.jsonl"), "ratings": str(tmp_path / "ratings.jsonl")}
    trainer, report = build_trainer(scorer_recipe(tmp_path, content))
    assert len(trainer.train_dataset) == 12
    assert report["train"]["ratings"] == sum(value is not None for value in expected.values())
    assert report["train"]["missing_ratings"] == sum(value is None for value in expected.values())
    assert all(len(row["labels"]) == 2 and len(row["labels"][0]) == 7 for row in trainer.train_dataset)
