"""Rating sheets out: blinded and shuffled, as XLSX or CSV, with instructions and anchors made from the rubric.

A rater sees items, never dialogue ids, sources or models; `key.json` maps them back and stays with whoever exports.
Text in a sheet is text: nothing in it is ever a formula.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.rating_cells import Place
from data_prep.rating_keys import RatingKey, text_mark, write_json_record
from data_prep.rating_tables import FORMULA_STARTS, INSTRUCTION_SHEETS, read_header
from data_prep.records import Dialogue, Language, write_text
from data_prep.rubric import Dimension, Rubric

WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "item": "item",
        "rater": "rater",
        "dialogue": "dialogue",
        "note": "note",
        "ratings": "Ratings",
        "seeker": "Seeker",
        "supporter": "Supporter",
        "off": "Choose one of the listed levels, or N/A when this cannot be judged.",
    },
    "zh": {
        "item": "条目",
        "rater": "评分人",
        "dialogue": "对话",
        "note": "备注",
        "ratings": "评分",
        "seeker": "求助者",
        "supporter": "支持者",
        "off": "请选择列表中的一个等级；无法判断时选 N/A。",
    },
}
HOW_TO: dict[Language, tuple[str, ...]] = {
    "en": (
        "Read the whole dialogue, then rate what the supporter does. Rate every dialogue by itself.",
        "To every question choose one whole level; what each level means is written with the question.",
        "When something cannot be judged, choose N/A and say why in the note. Write nothing else.",
        "Do not talk about single dialogues with other raters before everybody is done.",
        "Some dialogues speak of suicide, violence or loss. Stop whenever you need to, and tell whoever sent this.",
    ),
    "zh": (
        "请先读完整段对话，再给支持者的表现评分。每段对话单独评。",
        "每个问题选择一个整数等级；各等级的含义写在问题之后。",
        "无法判断时请选 N/A，并在备注中说明原因。不要填写其他内容。",
        "所有人评完之前，请不要与其他评分人讨论具体的对话。",
        "有些对话涉及自杀、暴力或丧失。需要时请随时停下，并告诉发给你评分表的人。",
    ),
}
NOT_AVAILABLE = "N/A"
CELL_LIMIT = 32_000
"""Characters of one cell; Excel takes 32,767 and drops the rest without a word."""
# Characters that XML 1.0 has no way to write, and the escapes that Excel would turn into characters.
NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
EXCEL_ESCAPE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")


def printable(text: str) -> str:
    """The text with characters that XML cannot hold replaced by U+FFFD."""
    return NOT_XML.sub("\ufffd", text)


def dialogue_text(dialogue: Dialogue) -> str:
    """One turn a line, named in the dialogue's language; a turn's further lines are indented, so none can pose as
    another turn."""
    words = WORDS[dialogue.language]
    colon = "：" if dialogue.language == "zh" else ": "
    lines = []
    for turn in dialogue.turns:
        text = "\n    ".join(re.split(r"\r\n|[\r\n\x0b\x0c\x85\u2028\u2029]", turn.text))
        lines.append(f"{words[turn.speaker]}{colon}{text}")
    return "\n".join(lines)


def heading(dimension: Dimension, language: Language) -> str:
    """The column's title with its scale, as raters see it and the import reads it."""
    low, high = dimension.scale
    title = dimension.title.zh if language == "zh" else dimension.title.en
    return f"{title} ({low}-{high})"


def instructions(rubric: Rubric, language: Language) -> list[tuple[str, str]]:
    """(level or empty, text) lines: how to rate, then every dimension with its question and anchors."""
    lines = [("", text) for text in HOW_TO[language]]
    for dimension in rubric.dimensions:
        lines += [("", ""), ("", heading(dimension, language)), ("", getattr(dimension.question, language))]
        lines += [(str(level), getattr(dimension.anchors[level], language)) for level in dimension.levels()]
    return lines


def header(rubric: Rubric, language: Language, dialogue_columns: int) -> list[str]:
    """Column heads of a sheet."""
    words = WORDS[language]
    dialogue = [words["dialogue"], *(f"{words['dialogue']} {n}" for n in range(2, dialogue_columns + 1))]
    return [
        words["item"],
        words["rater"],
        *dialogue,
        *(heading(dimension, language) for dimension in rubric.dimensions),
        words["note"],
    ]


def check_headings(rubric: Rubric, language: Language) -> None:
    """Raises UserError when a filled sheet could not be read back, because two titles of the rubric look the same."""
    columns, faults = read_header(header(rubric, language, 1), rubric, (), lambda index: Place("sheet"))
    if faults or list(columns.dimensions) != rubric.names():
        raise UserError(
            f"rubric {rubric.name}: its titles in {language} do not tell the columns of a sheet apart; give every "
            "dimension a title that is not another's title, name or official key, nor a column's name"
        )


def sheet_rows(rater: str, key: RatingKey, dialogues: Mapping[str, Dialogue]) -> list[tuple[str, list[str]]]:
    """(item, the dialogue's text in pieces that fit a cell) in the rater's order."""
    rows = []
    for item in key.raters[rater]:
        text = printable(dialogue_text(dialogues[key.items[item]]))
        rows.append((item, [text[i : i + CELL_LIMIT] for i in range(0, len(text), CELL_LIMIT)]))
    return rows


def with_texts(key: RatingKey, dialogues: Iterable[Dialogue]) -> RatingKey:
    """The key with a mark of every dialogue's text, so that a row whose text is another's is found on import."""
    known = {dialogue.id: dialogue for dialogue in dialogues}
    marks = {item: text_mark(printable(dialogue_text(known[name]))) for item, name in key.items.items()}
    return key.model_copy(update={"texts": marks})


def as_csv_text(text: str) -> str:
    """The text with an apostrophe before it when a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def csv_sheet(rater: str, key: RatingKey, dialogues: Mapping[str, Dialogue], rubric: Rubric, language: Language) -> str:
    """A sheet as CSV, with a byte order mark so that spreadsheets read it as UTF-8."""
    rows = sheet_rows(rater, key, dialogues)
    wide = max((len(pieces) for _, pieces in rows), default=1)
    empty = [""] * (len(rubric.dimensions) + 1)
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow([as_csv_text(text) for text in header(rubric, language, wide)])
    for item, pieces in rows:
        cells = [item, rater, *pieces, *[""] * (wide - len(pieces)), *empty]
        writer.writerow([as_csv_text(text) for text in cells])
    return "\ufeff" + stream.getvalue()


def write_xlsx(
    path: Path, rater: str, key: RatingKey, dialogues: Mapping[str, Dialogue], rubric: Rubric, language: Language
) -> None:
    """A sheet as XLSX: levels to choose from a list, instructions on a second sheet."""
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font
    from openpyxl.utils import get_column_letter

    rows = sheet_rows(rater, key, dialogues)
    wide = max((len(pieces) for _, pieces in rows), default=1)
    workbook = Workbook()
    sheet: Any = workbook.active
    sheet.title = WORDS[language]["ratings"]
    top = Alignment(wrap_text=True, vertical="top")
    for row, cells in enumerate(
        [header(rubric, language, wide), *([item, rater, *pieces] for item, pieces in rows)], 1
    ):
        for column, text in enumerate(cells, 1):
            write_cell(sheet, row, column, text).alignment = top
            if row == 1:
                sheet.cell(row, column).font = Font(bold=True)
    first = 3 + wide
    for offset, dimension in enumerate(rubric.dimensions):
        letter = get_column_letter(first + offset)
        sheet.add_data_validation(level_list(dimension, language, f"{letter}2:{letter}{max(2, len(rows) + 1)}"))
        sheet.column_dimensions[letter].width = 16
    for column in range(3, first):
        sheet.column_dimensions[get_column_letter(column)].width = 90
    sheet.column_dimensions[get_column_letter(first + len(rubric.dimensions))].width = 40
    sheet.freeze_panes = "C2"
    write_instructions(workbook.create_sheet(INSTRUCTION_SHEETS[language]), rubric, language)
    save_workbook(workbook, path)


def write_cell(sheet: Any, row: int, column: int, text: str) -> Any:
    """Writes a text that stays text, whatever it begins with, also after somebody has edited the cell."""
    cell = sheet.cell(row, column)
    if not text:
        return cell
    cell.value = EXCEL_ESCAPE.sub("_x005F_", text)
    cell.data_type = "s"
    if text.startswith(FORMULA_STARTS):
        cell.quotePrefix = True
    return cell


def level_list(dimension: Dimension, language: Language, cells: str) -> Any:
    """A list of the levels and N/A to choose from; anything else is refused by the spreadsheet itself."""
    from openpyxl.worksheet.datavalidation import DataValidation

    choices = ",".join([*map(str, dimension.levels()), NOT_AVAILABLE])
    # A list in the cell takes 255 characters; a scale that long is better typed than chosen.
    listed = len(choices) <= 250
    low, high = dimension.scale
    found = DataValidation(
        type="list" if listed else "whole",
        operator=None if listed else "between",
        formula1=f'"{choices}"' if listed else str(low),
        formula2=None if listed else str(high),
        allow_blank=True,
        showErrorMessage=True,
        error=WORDS[language]["off"],
        errorTitle=heading(dimension, language)[:30],
    )
    anchors = "\n".join(f"{level}: {getattr(dimension.anchors[level], language)}" for level in dimension.levels())
    if len(anchors) <= 250:
        found.showInputMessage = True
        found.promptTitle, found.prompt = printable(heading(dimension, language))[:30], printable(anchors)
    found.add(cells)
    return found


def write_instructions(sheet: Any, rubric: Rubric, language: Language) -> None:
    """The instructions as two columns: level, text."""
    from openpyxl.styles import Alignment, Font

    titles = {heading(dimension, language) for dimension in rubric.dimensions}
    for row, (level, text) in enumerate(instructions(rubric, language), 1):
        write_cell(sheet, row, 1, level)
        cell = write_cell(sheet, row, 2, printable(text))
        cell.alignment = Alignment(wrap_text=True, vertical="top")
        if text in titles:
            cell.font = Font(bold=True)
    sheet.column_dimensions["A"].width = 6
    sheet.column_dimensions["B"].width = 110


def save_workbook(workbook: Any, path: Path) -> None:
    """Saves a workbook by way of a temporary file. Raises UserError when the place cannot be written to."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        workbook.save(temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def names_in_text(dialogues: Sequence[Dialogue]) -> int:
    """Dialogues whose text holds the name of their source or of a model of their `meta`: blinding cannot hide those."""
    found = 0
    for dialogue in dialogues:
        names = [dialogue.source, *(dialogue.meta.get(field) for field in ("supporter", "seeker", "model"))]
        text = "\n".join(turn.text for turn in dialogue.turns).casefold()
        found += any(isinstance(name, str) and len(name) > 3 and name.casefold() in text for name in names)
    return found


def write_export(
    out: Path, dialogues: Sequence[Dialogue], key: RatingKey, rubric: Rubric, language: Language, format: str
) -> list[Path]:
    """Writes one sheet (or task file) a rater into `out/sheets`, what goes with them, and `out/key.json`.

    `format` is xlsx, csv or label-studio. Returns the files written, the key last. Raises UserError when the folder
    holds an export already: its sheets may be filled, and another key would make them worthless.
    """
    from data_prep.label_studio import labelling_config, tasks_json

    if (out / "key.json").exists() or (out / "sheets").exists():
        raise UserError(f"{out}: holds an export already, perhaps a filled one; choose another --out")
    check_headings(rubric, language)
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    files: list[Path] = []

    def write(name: str, text: str) -> None:
        files.append(out / "sheets" / name)
        write_text(files[-1], text)

    # The key first: sheets without their key are worthless, a key without sheets does no harm.
    write_json_record(out / "key.json", key)
    for rater in key.raters:
        if format == "xlsx":
            files.append(out / "sheets" / f"{rater}.xlsx")
            write_xlsx(files[-1], rater, key, by_id, rubric, language)
        elif format == "csv":
            write(f"{rater}.csv", csv_sheet(rater, key, by_id, rubric, language))
        else:
            write(f"{rater}.json", tasks_json(rater, key, by_id))
    if format == "csv":
        lines = (f"{level}: {text}" if level else text for level, text in instructions(rubric, language))
        write("instructions.txt", "\n".join(lines) + "\n")
    elif format == "label-studio":
        write("labelling-config.xml", labelling_config(rubric, language))
    return [*files, out / "key.json"]
