"""`esckit ratings`: the whole way on the bundled samples, exit codes, JSON, help."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_prep.cli_ratings import app
from data_prep.errors import UserError
from data_prep.records import Rating, read_records
from tests.data_prep.made_ratings import FILL, SAMPLES

DIALOGUES = str(SAMPLES / "rated_dialogues.jsonl")
RATINGS = str(SAMPLES / "ratings.jsonl")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def run_json(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("format", ["xlsx", "csv", "label-studio"])
def test_assign_export_import_aggregate_agree(tmp_path: Path, format: str) -> None:
    plan, out, ratings = tmp_path / "plan.json", tmp_path / "out", tmp_path / "ratings.jsonl"
    assigned = run_json(
        "assign", DIALOGUES, "--raters", "ann,bob,cy", "--per-item", "2", "--overlap", "0.5", "--out", str(plan)
    )
    assert assigned["ratings"] == 66
    assert set(assigned["loads"].values()) == {22}
    written = run_json("export", DIALOGUES, "--plan", str(plan), "--format", format, "--out", str(out))
    assert written["loads"] == assigned["loads"]
    sheets = [path for path in written["files"] if Path(path).stem in ("ann", "bob", "cy")]
    for path in sheets:
        FILL[format](Path(path))
    report = run_json("import", *sheets, "--key", str(out / "key.json"), "--out", str(ratings))
    assert report["faults"] == []
    assert report["dialogues"] == 44
    assert report["raters"] == ["ann", "bob", "cy"]
    assert report["cells"] == 66 * 7 == report["ratings"] + sum(report["missing"].values())
    assert len(read_records(ratings, Rating)) == 66 * 7
    for method in ("mean", "median", "majority", "distribution"):
        made = run_json("aggregate", str(ratings), "--method", method, "--out", str(tmp_path / method))
        assert made["records"] == 44 * 7
    run("aggregate", str(ratings), "--method", "adjudicated", "--adjudicator", "cy", "--out", str(tmp_path / "a"))
    agreed = run_json("agree", str(ratings), "--resamples", "99")
    assert [one["dimension"] for one in agreed["dimensions"]] == [
        "fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall",
    ]  # fmt: skip
    assert agreed["dimensions"][0]["figures"]["icc_2_1"]["value"] is None
    assert agreed["dimensions"][0]["figures"]["icc_all"]["value"] is not None


def test_same_command_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run("export", DIALOGUES, "--raters", "3", "--format", "csv", "--out", str(tmp_path / name))
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_faults_are_listed_and_the_exit_code_is_1(tmp_path: Path) -> None:
    sheet, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    sheet.write_text("dialogue_id,rater,empathy\nrated-en-01,ann,3\nrated-en-02,ann,9\nrated-xx,ann,1\n")
    text = run("import", str(sheet), "--dialogues", DIALOGUES, "--out", str(out), code=1)
    assert f"fault: {sheet}, row 3, column empathy: 9 is off the scale" in text
    assert f"fault: {sheet}, row 4: unknown dialogue id 'rated-xx'" in text
    assert [r.value for r in read_records(out, Rating)] == [3]
    report = run_json("import", str(sheet), "--dialogues", DIALOGUES, "--out", str(out), code=1)
    assert [(fault["row"], fault["column"]) for fault in report["faults"]] == [(3, "empathy"), (4, None)]


def test_a_sheet_whose_columns_were_sorted_apart_is_told_row_by_row(tmp_path: Path) -> None:
    """Scores beside another dialogue's text would be given to the wrong one in silence."""
    from openpyxl import load_workbook

    run("export", DIALOGUES, "--raters", "ann,bob", "--out", str(tmp_path / "out"))
    sheet = tmp_path / "out" / "sheets" / "ann.xlsx"
    FILL["xlsx"](sheet)
    workbook = load_workbook(sheet)
    cells = [workbook.worksheets[0].cell(row, 3) for row in range(2, 6)]
    texts = [cell.value for cell in cells]
    for cell, text in zip(cells, [texts[1], texts[0], *texts[2:]], strict=True):
        cell.value = f" {text}\n"  # white space is no other text
    workbook.worksheets[0].delete_cols(4)  # the first dimension
    workbook.save(sheet)
    key, ratings = str(tmp_path / "out" / "key.json"), tmp_path / "ratings.jsonl"
    report = run_json("import", str(sheet), "--key", key, "--out", str(ratings), code=1)
    told = [(fault["row"], fault["message"]) for fault in report["faults"]]
    assert [row for row, _ in told] == [2, 3, None]
    assert all("the text is not that of item" in message for _, message in told[:2])
    assert told[2][1] == "has no column for fluency, which the export had; bring it back"
    assert report["dialogues"] == 42  # of the 44 that each rater had


def test_unfilled_sheets_write_nothing(tmp_path: Path) -> None:
    run("export", DIALOGUES, "--raters", "1", "--per-item", "1", "--format", "csv", "--out", str(tmp_path / "out"))
    sheet, key, out = tmp_path / "out" / "sheets" / "rater-1.csv", tmp_path / "out" / "key.json", tmp_path / "r.jsonl"
    text = run("import", str(sheet), "--key", str(key), "--out", str(out), code=1)
    assert "no rating was found" in text
    assert "44 of 44 assigned dialogues have no rating yet" in text
    assert not out.exists()


def test_inputs_are_never_overwritten(tmp_path: Path) -> None:
    copy = tmp_path / "ratings.jsonl"
    copy.write_text(Path(RATINGS).read_text(encoding="utf-8"), encoding="utf-8")
    for command in (["import"], ["aggregate", "--method", "mean"]):
        with pytest.raises(UserError, match="would overwrite"):
            run(command[0], str(copy), "--out", str(copy), *command[1:])
    assert copy.read_text(encoding="utf-8") == Path(RATINGS).read_text(encoding="utf-8")


def test_only_one_language(tmp_path: Path) -> None:
    made = run_json("export", DIALOGUES, "--only", "zh", "--language", "zh", "--out", str(tmp_path / "out"))
    assert made["dialogues"] == 16


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["agree", RATINGS, "--dimension", "emphaty"], "has no dimension 'emphaty'"),
        (["agree", RATINGS, "--rubric", "esconv_survey"], "is for rubric 'esc_eval'"),
        (["agree", RATINGS, "--rubric", "esc_evil"], "did you mean 'esc_eval'"),
        (["export", DIALOGUES, DIALOGUES, "--out", "x"], "is already used in"),
        (["export", DIALOGUES, "--raters", "2", "--per-item", "3", "--out", "x"], "--per-item is 3"),
        (["export", DIALOGUES, "--plan", RATINGS, "--out", "x"], "not valid JSON"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        run(*arguments)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_agree_in_words() -> None:
    text = run("agree", RATINGS, "--dimension", "empathy", "--resamples", "199")
    assert "- alpha 0.9" in text
    assert "the ratings can be relied on" in text
    assert "sample-a" in text
    assert "fluency" not in text


def test_every_command_shows_an_example() -> None:
    for command in ("assign", "export", "import", "aggregate", "agree"):
        assert f"esckit ratings {command}" in " ".join(run(command, "--help").split())
