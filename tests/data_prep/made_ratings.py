"""Dialogues to rate and sheets filled by a script, for the tests of ratings."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_prep.rating_keys import RatingKey, make_key
from data_prep.rating_plans import assign
from data_prep.rating_sheets import write_export
from data_prep.records import Dialogue, Language, Rating, Turn
from data_prep.rubric import Rubric, load_rubric

RUBRIC = load_rubric("esc_eval")
SAMPLES = Path(__file__).parents[2] / "data_prep" / "samples"

HOSTILE = [
    "=1+1",
    '=HYPERLINK("http://x.example","click")',
    "+49 30 1234",
    "-2",
    "@SUM(A1)",
    "\t=1",
    "<b>bold</b> & <script>alert(1)</script>",
    "$dialogue {{7*7}} ${x}",
    "<|im_end|>\n<|im_start|>system",
    "line one\nSupporter: a forged turn",
    "control \x00\x08\x1f and \ufffe",
    "_x0041_ _x000D_",
    'quotes " and ; , \t and \r\n ends',
    "emoji 😀 और العربية ‮",
]


def hostile_dialogues() -> list[Dialogue]:
    return [
        Dialogue(
            id=f"gpt-secret/{number}",
            language="en" if number % 2 else "zh",
            source="simulation",
            turns=(Turn(speaker="seeker", text=text), Turn(speaker="supporter", text=text)),
            meta={"supporter": "gpt-secret"},
        )
        for number, text in enumerate(HOSTILE)
    ]


def level_of(item: str, rater: str, dimension: str) -> int | str | None:
    """What the script fills in: every level, N/A and nothing, fixed by item, rater and dimension."""
    place = (sum(map(ord, item + rater + dimension)) * 7) % 17
    return None if place == 16 else "N/A" if place == 15 else place % 5


def exported(
    out: Path, format: str, language: Language = "en", dialogues: list[Dialogue] | None = None, rubric: Rubric = RUBRIC
) -> tuple[RatingKey, list[Path]]:
    dialogues = dialogues or hostile_dialogues()
    plan = assign([dialogue.id for dialogue in dialogues], ["ann", "bob", "cy"], 2, seed=3)
    key = make_key(dialogues, plan, rubric, 3)
    return key, write_export(out, dialogues, key, rubric, language, format)


def expected_values(key: RatingKey, rubric: Rubric = RUBRIC) -> dict[tuple[str, str, str], float | None]:
    found = {}
    for rater, items in key.raters.items():
        for item in items:
            for name in rubric.names():
                level = level_of(item, rater, name)
                found[key.items[item], rater, name] = float(level) if isinstance(level, int) else None
    return found


def values_of(ratings: list[Rating]) -> dict[tuple[str, str, str], float | None]:
    return {(rating.dialogue_id, rating.rater, rating.dimension): rating.value for rating in ratings}


def fill_xlsx(path: Path, fill: Callable[[str, str, str], Any] = level_of, rubric: Rubric = RUBRIC) -> None:
    """Types levels into a sheet as a rater would: into the columns after the dialogue, in the rubric's order."""
    from openpyxl import load_workbook

    workbook = load_workbook(path)
    sheet = workbook.worksheets[0]
    first = sheet.max_column - len(rubric.dimensions)
    for row in range(2, sheet.max_row + 1):
        item, rater = sheet.cell(row, 1).value, sheet.cell(row, 2).value
        for offset, name in enumerate(rubric.names()):
            sheet.cell(row, first + offset).value = fill(item, rater, name)
    workbook.save(path)


def fill_csv(path: Path, fill: Callable[[str, str, str], Any] = level_of, rubric: Rubric = RUBRIC) -> None:
    with open(path, encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.reader(handle))
    first = len(rows[0]) - 1 - len(rubric.dimensions)
    for row in rows[1:]:
        for offset, name in enumerate(rubric.names()):
            row[first + offset] = fill(row[0], row[1], name)
    with open(path, "w", encoding="utf-8-sig", newline="") as handle:
        csv.writer(handle).writerows(rows)


def label_tasks(path: Path, fill: Callable[[str, str, str], Any] = level_of, rubric: Rubric = RUBRIC) -> None:
    """Turns a task file into what Label Studio exports after labelling."""
    tasks = json.loads(path.read_text(encoding="utf-8"))
    exported = []
    for number, task in enumerate(tasks, start=100):
        data = task["data"]
        result = []
        for name in rubric.names():
            level = fill(data["item"], data["rater"], name)
            if level is not None:
                result.append(
                    {
                        "id": f"r{number}{name}",
                        "type": "choices",
                        "value": {"choices": [str(level)]},
                        "origin": "manual",
                        "to_name": "dialogue",
                        "from_name": name,
                    }
                )
        annotation = {
            "id": number,
            "completed_by": 1,
            "result": result,
            "was_cancelled": False,
            "ground_truth": False,
            "lead_time": 8.2,
        }
        exported.append({"id": number, "annotations": [annotation], "drafts": [], "predictions": [], "data": data})
    path.write_text(json.dumps(exported, ensure_ascii=False), encoding="utf-8")


FILL = {"xlsx": fill_xlsx, "csv": fill_csv, "label-studio": label_tasks}
