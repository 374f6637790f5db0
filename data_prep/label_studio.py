"""Label Studio, both ways: tasks and a labelling configuration out, its JSON export in.

The layouts are those of labelstud.io's guide: a task is `{"data": {...}}`; the export ("JSON", not "JSON-MIN") is a
list of tasks with `annotations`, each with `completed_by`, `was_cancelled` and `result`, whose entries name the control
(`from_name`) and hold `value.choices`, `value.rating`, `value.number` or `value.text`.
"""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.rating_cells import Cell, Fault, Place, did_you_mean, identifier
from data_prep.rating_keys import RatingKey
from data_prep.records import Dialogue, Language
from data_prep.rubric import Rubric

NOTE = "note"
OBJECT = "dialogue"
LABELS: dict[Language, dict[str, str]] = {
    "en": {"na": "cannot be judged", "note": "Note: why something cannot be judged", "must": "Please choose a level."},
    "zh": {"na": "无法判断", "note": "备注：为什么无法判断", "must": "请选择一个等级。"},
}
CHOICE_LEVEL = re.compile(r"([+-]?\d+|N/A)\s*[:：]")


def labelling_config(rubric: Rubric, language: Language) -> str:
    """The XML to paste under Settings, Labeling Interface, Code. Everything from the rubric is escaped.

    A visible text never begins with "$", which Label Studio would look up in the task: headers are numbered and
    choices begin with their level. `alias` is what the export holds instead of the visible text.
    """
    from data_prep.rating_sheets import HOW_TO, NOT_AVAILABLE, printable

    view = ET.Element("View")
    for text in HOW_TO[language]:
        ET.SubElement(view, "Header", value=text, size="5")
    ET.SubElement(
        view, "Paragraphs", name=OBJECT, value=f"${OBJECT}", layout="dialogue", nameKey="author", textKey="text"
    )
    for number, dimension in enumerate(rubric.dimensions, start=1):
        title, question = getattr(dimension.title, language), getattr(dimension.question, language)
        ET.SubElement(view, "Header", value=printable(f"{number}. {title}: {question}"), size="4")
        choices = ET.SubElement(
            view,
            "Choices",
            name=dimension.name,
            toName=OBJECT,
            choice="single-radio",
            required="true",
            requiredMessage=LABELS[language]["must"],
        )
        for level in dimension.levels():
            anchor = getattr(dimension.anchors[level], language)
            ET.SubElement(choices, "Choice", value=printable(f"{level}: {anchor}"), alias=str(level))
        ET.SubElement(choices, "Choice", value=f"{NOT_AVAILABLE}: {LABELS[language]['na']}", alias=NOT_AVAILABLE)
    ET.SubElement(view, "TextArea", name=NOTE, toName=OBJECT, placeholder=LABELS[language]["note"], maxSubmissions="1")
    ET.indent(view)
    return ET.tostring(view, encoding="unicode") + "\n"


def tasks_json(rater: str, key: RatingKey, dialogues: Mapping[str, Dialogue]) -> str:
    """One rater's tasks in this rater's order, as the JSON file that Label Studio imports.

    A task names its item and its rater, nothing of the dialogue's origin.
    """
    from data_prep.rating_sheets import WORDS, printable

    tasks = []
    for item in key.raters[rater]:
        dialogue = dialogues[key.items[item]]
        words = WORDS[dialogue.language]
        turns = [{"author": words[turn.speaker], "text": printable(turn.text)} for turn in dialogue.turns]
        tasks.append({"data": {"item": item, "rater": rater, OBJECT: turns}})
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def export_cells(path: Path, tasks: Any, rubric: Rubric) -> Iterator[Cell | Fault]:
    """Cells of a Label Studio JSON export. Raises UserError when the JSON is something else."""
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise UserError(f"{path}: is JSON but no list of Label Studio tasks; export the project as JSON")
    if tasks and not any("annotations" in task for task in tasks):
        raise UserError(f"{path}: no task has annotations; export as JSON (not JSON-MIN), after labelling")
    for row, task in enumerate(tasks, start=1):
        place = Place(str(path), task=(identifier(task.get("id")) or f"number {row}")[:40])
        data, annotations = task.get("data"), task.get("annotations")
        if not isinstance(data, dict) or not isinstance(annotations, list):
            yield Fault(place, "has no data or no annotations; export the project as JSON")
            continue
        for annotation in annotations:
            if not isinstance(annotation, dict):
                yield Fault(place, "holds an annotation that is no object")
                continue
            yield from annotation_cells(place, data, annotation, rubric)


def rater_of(data: Mapping[str, Any], annotation: Mapping[str, Any]) -> str:
    """The rater of our own tasks; else the annotator's e-mail address or number in Label Studio."""
    if data.get("rater"):
        return identifier(data["rater"])
    who = annotation.get("completed_by")
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    return f"annotator-{who}" if isinstance(who, int) and not isinstance(who, bool) else identifier(who)


def annotation_cells(
    task: Place, data: Mapping[str, Any], annotation: Mapping[str, Any], rubric: Rubric
) -> Iterator[Cell | Fault]:
    """One cell a dimension of one annotation; what it does not hold was left empty, or skipped with the task."""
    typed: dict[str, Any] = {}
    refused: set[str] = set()
    note: Any = None
    result = annotation.get("result")
    for entry in result if isinstance(result, list) else ():
        name = identifier(entry.get("from_name")) if isinstance(entry, dict) else ""
        value = entry.get("value") if isinstance(entry, dict) else None
        place = replace(task, column=name[:20] or None)
        if name == NOTE:
            texts = value.get("text") if isinstance(value, dict) else None
            note = " ".join(map(str, texts)) if isinstance(texts, list) else texts
        elif name not in rubric.names():
            known = did_you_mean(name, rubric.names())
            yield Fault(place, f"unknown dimension {name[:20]!r} for rubric {rubric.name}{known}")
        elif name in typed:
            yield Fault(place, "chosen twice in one annotation; only the first is read")
        else:
            try:
                typed[name] = chosen(value)
            except ValueError as error:
                refused.add(name)
                yield Fault(place, str(error))
    skipped = annotation.get("was_cancelled") is True
    for dimension in rubric.names():
        if dimension in refused:
            continue
        yield Cell(
            place=replace(task, column=dimension),
            rater=rater_of(data, annotation),
            dimension=dimension,
            value="skipped" if skipped and dimension not in typed else typed.get(dimension),
            dialogue_id=data.get("dialogue_id"),
            item=data.get("item"),
            note=note,
        )


def chosen(value: Any) -> Any:
    """What was chosen, of Choices, Rating or Number. Raises ValueError for anything else.

    Without `alias` in the configuration the export holds the visible text, which begins with the level.
    """
    if not isinstance(value, dict):
        raise ValueError("holds no value")
    if "choices" in value:
        choices = value["choices"]
        if not isinstance(choices, list) or len(choices) != 1:
            raise ValueError("expected exactly one choice")
        text = choices[0]
        if isinstance(text, str) and (level := CHOICE_LEVEL.match(text)):
            return level.group(1)
        return text
    for field in ("rating", "number"):
        if field in value:
            return value[field]
    raise ValueError("holds neither choices nor a rating nor a number")
