"""Label Studio: the configuration is well-formed whatever the rubric says, every export is read or refused."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.label_studio import chosen, labelling_config
from data_prep.ratings import RatingsImport, import_ratings
from data_prep.records import Language
from data_prep.rubric import Rubric, load_rubric
from tests.data_prep.made_ratings import HOSTILE, RUBRIC, exported, hostile_dialogues


def result(name: str, value: Any) -> dict[str, Any]:
    return {"from_name": name, "to_name": "dialogue", "type": "choices", "value": value}


def imported(folder: Path, tasks: Any, **options: Any) -> RatingsImport:
    path = folder / "export.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return import_ratings([path], RUBRIC, **options)


def task(*results: Any, data: dict[str, Any] | None = None, **annotation: Any) -> dict[str, Any]:
    made = {"id": 5, "completed_by": 3, "was_cancelled": False, "result": list(results), **annotation}
    return {"id": 17, "data": data or {"dialogue_id": "d1"}, "annotations": [made]}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_configuration_has_every_dimension_level_and_anchor(language: Language) -> None:
    root = ET.fromstring(labelling_config(RUBRIC, language))
    paragraphs = root.find("Paragraphs")
    assert paragraphs is not None
    assert paragraphs.attrib["value"] == "$dialogue"
    groups = root.findall("Choices")
    assert [group.attrib["name"] for group in groups] == RUBRIC.names()
    for group, dimension in zip(groups, RUBRIC.dimensions, strict=True):
        assert group.attrib["toName"] == paragraphs.attrib["name"]
        aliases = [choice.attrib["alias"] for choice in group]
        assert aliases == [*map(str, dimension.levels()), "N/A"]
        for level, choice in zip(dimension.levels(), group, strict=False):
            assert choice.attrib["value"] == f"{level}: {getattr(dimension.anchors[level], language)}"
    text = "\n".join(header.attrib["value"] for header in root.findall("Header"))
    assert all(getattr(dimension.question, language) in text for dimension in RUBRIC.dimensions)


def test_texts_of_a_rubric_are_escaped_and_never_looked_up_in_the_task() -> None:
    nasty = "$dialogue\"/><Script>&'\n]]>"
    content = {
        "name": "own",
        "version": 1,
        "description": "x",
        "dimensions": [
            {
                "name": "warm",
                "scale": [0, 1],
                "title": {"en": nasty, "zh": nasty},
                "question": {"en": nasty, "zh": nasty},
                "anchors": {level: {"en": nasty, "zh": nasty} for level in (0, 1)},
            }
        ],
    }
    root = ET.fromstring(labelling_config(Rubric.model_validate(content), "en"))
    shown = [element.attrib["value"] for element in root.iter() if "value" in element.attrib]
    assert [value for value in shown if value.startswith("$")] == ["$dialogue"]
    assert f"0: {nasty}" in shown
    assert {element.tag for element in root.iter()} == {"View", "Header", "Paragraphs", "Choices", "Choice", "TextArea"}


def test_tasks_hold_the_dialogue_and_nothing_of_its_origin(tmp_path: Path) -> None:
    key, files = exported(tmp_path / "out", "label-studio")
    by_id = {dialogue.id: dialogue for dialogue in hostile_dialogues()}
    for rater in key.raters:
        tasks = json.loads((tmp_path / "out" / "sheets" / f"{rater}.json").read_text(encoding="utf-8"))
        assert [task["data"]["item"] for task in tasks] == list(key.raters[rater])
        for one in tasks:
            assert one.keys() == {"data"}
            assert one["data"].keys() == {"item", "rater", "dialogue"}
            dialogue = by_id[key.items[one["data"]["item"]]]
            author = "Seeker" if dialogue.language == "en" else "求助者"
            assert one["data"]["dialogue"][0]["author"] == author
            text = one["data"]["dialogue"][0]["text"]
            original = dialogue.turns[0].text
            assert text == original or "\x00" in original
    assert {path.name for path in files} == {"ann.json", "bob.json", "cy.json", "labelling-config.xml", "key.json"}
    assert len(HOSTILE) == len(key.items)


@pytest.mark.parametrize(
    "value",
    [{"choices": ["3"]}, {"choices": ["3: does both fairly well"]}, {"rating": 3}, {"number": 3}, {"number": 3.0}],
)
def test_ways_in_which_a_level_is_exported(tmp_path: Path, value: Any) -> None:
    found = imported(tmp_path, [task(result("empathy", value))])
    assert found.faults == []
    assert {(r.rater, r.dimension): r.value for r in found.ratings if r.value is not None} == {
        ("annotator-3", "empathy"): 3
    }
    assert found.missing() == {"left empty": 6}


@pytest.mark.parametrize(
    ("who", "rater"),
    [(3, "annotator-3"), ({"id": 3, "email": "a@b.example"}, "a@b.example"), ({"id": 3}, "annotator-3")],
)
def test_raters(tmp_path: Path, who: Any, rater: str) -> None:
    found = imported(tmp_path, [task(result("empathy", {"choices": ["3"]}), completed_by=who)])
    assert {r.rater for r in found.ratings} == {rater}


def test_several_annotators_of_one_task(tmp_path: Path) -> None:
    made = task(result("empathy", {"choices": ["3"]}))
    made["annotations"].append({"completed_by": 4, "result": [result("empathy", {"choices": ["1"]})]})
    found = imported(tmp_path, [made])
    assert {r.rater: r.value for r in found.ratings if r.dimension == "empathy"} == {"annotator-3": 3, "annotator-4": 1}


def test_skipped_tasks_and_notes_are_reasons(tmp_path: Path) -> None:
    note = {"from_name": "note", "to_name": "dialogue", "type": "textarea", "value": {"text": ["too", "short"]}}
    found = imported(
        tmp_path,
        [
            task(was_cancelled=True),
            task(result("empathy", {"choices": ["N/A"]}), note, data={"dialogue_id": "d2"}),
        ],
    )
    assert found.faults == []
    reasons = {(r.dialogue_id, r.dimension): r.reason for r in found.ratings}
    assert reasons["d1", "empathy"] == "given as 'skipped'"
    assert reasons["d2", "empathy"] == "given as 'N/A'; note: too short"
    assert all(r.value is None for r in found.ratings)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (task(result("empathy", {"choices": ["9"]})), "9 is off the scale"),
        (task(result("empathy", {"choices": ["3", "4"]})), "expected exactly one choice"),
        (task(result("empathy", {"choices": "3"})), "expected exactly one choice"),
        (task(result("empathy", {"text": ["3"]})), "holds neither choices"),
        (task(result("empathy", None)), "holds no value"),
        (task(result("emphaty", {"choices": ["3"]})), "did you mean 'empathy'?"),
        (task(result("empathy", {"rating": 3}), result("empathy", {"rating": 4})), "chosen twice"),
        (task("text"), "unknown dimension ''"),
        (task(result("empathy", {"rating": 3}), data={"x": 1}), "no dialogue id"),
        (task(result("empathy", {"rating": 3}), data={"item": "item-001"}), "--key"),
        (task(result("empathy", {"rating": 3}), completed_by=None), "no rater"),
        ({"id": 1, "data": [], "annotations": []}, "has no data or no annotations"),
        ({"id": 1, "data": {}, "annotations": [None]}, "no object"),
    ],
)
def test_faults_name_the_task_and_the_rest_is_kept(tmp_path: Path, made: Any, told: str) -> None:
    good = task(result("empathy", {"choices": ["2"]}), data={"dialogue_id": "good"})
    found = imported(tmp_path, [made, good])
    assert len(found.faults) == 1
    assert told in found.faults[0].message
    assert str(found.faults[0]).startswith(f"{tmp_path}/export.json, task {made['id']}")
    assert any(r.dialogue_id == "good" and r.value == 2 for r in found.ratings)


def test_refused_levels_are_left_out_and_not_called_empty(tmp_path: Path) -> None:
    found = imported(tmp_path, [task(result("empathy", {"choices": []}), result("fluency", {"rating": 9}))])
    assert len(found.faults) == 2
    assert {r.dimension for r in found.ratings} == set(RUBRIC.names()) - {"empathy", "fluency"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["data", "annotations", "result", "from_name", "value", "choices", "completed_by", "dialogue_id"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON)
def test_any_value_is_chosen_or_refused(value: Any) -> None:
    try:
        chosen(value)
    except ValueError:
        return


@given(st.lists(st.dictionaries(st.sampled_from(["id", "data", "annotations"]), JSON, max_size=3), max_size=3))
def test_arbitrary_exports_give_ratings_or_faults(tasks: list[Any]) -> None:
    from data_prep.label_studio import export_cells
    from data_prep.rating_cells import Fault
    from data_prep.ratings import CellChecker

    checker = CellChecker(load_rubric("esc_eval"))
    try:
        for cell in export_cells(Path("any.json"), tasks, RUBRIC):
            if not isinstance(cell, Fault):
                checker.check(cell)
    except UserError:
        return
    assert all(rating.value in (None, *range(5)) for rating in checker.result().ratings)
