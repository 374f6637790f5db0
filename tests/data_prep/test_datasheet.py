"""The datasheet: figures that can be checked, licences that are not guessed, and a page nothing can break out of."""

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.datasheet import (
    UNKNOWN_LICENCE,
    Datasheet,
    FileEntry,
    LeakEntry,
    PartEntry,
    SourceEntry,
    dialogue_lengths,
    dump_datasheet,
    licence_of,
    render_datasheet,
    source_entries,
    spread,
)
from data_prep.errors import UserError
from data_prep.sources import SOURCES
from tests.data_prep.made_dialogues import dialogue


def sheet(**changes):
    given = {
        "what": "role training set",
        "command": "esckit data build role d.jsonl --out DIR",
        "settings": {"seed": 0, "split": None},
        "versions": {"esckit": "1"},
        "inputs": (FileEntry(file="d.jsonl", sha256="a" * 64, records=3),),
        "outputs": (FileEntry(file="train.jsonl", sha256="b" * 64, records=2),),
        "sources": (SourceEntry(source="esconv", licence="CC BY-NC 4.0", records=2),),
        "languages": {"en": 2},
        "parts": (PartEntry(part="train", counts={"dialogues": 2}, lengths={"turns a dialogue": spread([1, 2])}),),
        "figures": {},
        "repairs": {"turn merged": 12345},
        "missing": {},
        "refused": {"no role card": 1},
        **changes,
    }
    return Datasheet(**given)


def test_percentiles_are_nearest_rank():
    found = spread(range(1, 101))
    assert (found.minimum, found.median, found.p95, found.maximum, found.total) == (1, 50, 95, 100, 5050)
    assert spread([7]).model_dump() == {"count": 1, "minimum": 7, "median": 7, "p95": 7, "maximum": 7, "total": 7}
    with pytest.raises(UserError, match="nothing to measure"):
        spread([])


@given(st.lists(st.integers(0, 100), min_size=1))
def test_spreads_agree_with_an_independent_library(values):
    found = spread(values)
    assert found.median == statistics.median_low(values)
    assert sum(value <= found.p95 for value in values) >= 0.95 * len(values)
    assert sum(value < found.p95 for value in values) < 0.95 * len(values)


def test_lengths_are_of_the_records_as_they_are():
    made = dialogue_lengths([dialogue("d1", "s:abc", "s:d", "p:效果好"), dialogue("d2", "s:ab")])
    assert {name: (found.count, found.minimum, found.maximum) for name, found in made.items()} == {
        "turns a dialogue": (2, 1, 3),
        "characters a dialogue": (2, 2, 7),
        "characters a seeker turn": (3, 1, 3),
        "characters a supporter turn": (1, 3, 3),
    }


def test_licences_come_from_the_registry_or_the_user_and_are_never_guessed():
    assert licence_of("esconv", {}) == SOURCES["esconv"].licence
    assert licence_of("esconv-failed", {}) == SOURCES["esconv"].licence
    assert licence_of("esconvenient", {}) == UNKNOWN_LICENCE
    assert licence_of("my-own-data", {}) == UNKNOWN_LICENCE
    assert licence_of("my-own-data", {"my-own-data": "mine"}) == "mine"
    entries = source_entries(["b", "a", "b"], {"a": "CC0"})
    assert [(entry.source, entry.licence, entry.records) for entry in entries] == [
        ("a", "CC0", 1),
        ("b", UNKNOWN_LICENCE, 2),
    ]
    with pytest.raises(UserError, match="no record comes from it; the sources are: a, b"):
        source_entries(["b", "a"], {"c": "CC0"})


def test_the_page_says_what_the_record_says():
    leak = LeakEntry(a="train", b="test", kind="card", shared=3, records_a=4, records_b=5)
    page = render_datasheet(sheet(leaks=(leak,), notes=("a note",)))
    for line in (
        "    esckit data build role d.jsonl --out DIR",
        "| esconv | CC BY-NC 4.0 | 2 |",
        "| turn merged | 12,345 |",
        "| no role card | 1 |",
        "| turns a dialogue | 2 | 1 | 1 | 2 | 2 |",
        "| train | test | card | 3 | 4 | 5 |",
        f"| train.jsonl | 2 | {'b' * 64} |",
        "- a note",
    ):
        assert line in page.splitlines()
    assert "**Missing**: none" in page
    content = json.loads(dump_datasheet(sheet(leaks=(leak,))))
    assert content["leaks"][0]["shared"] == 3
    assert Datasheet.model_validate(content) == sheet(leaks=(leak,))


@given(st.text(min_size=1))
def test_no_name_breaks_out_of_its_cell(name):
    plain = render_datasheet(sheet())
    entry = SourceEntry(source=name, licence=name, records=2)
    page = render_datasheet(sheet(sources=(entry,)))
    lines, expected = page.split("\n"), plain.split("\n")
    assert len(lines) == len(expected)
    changed = [line for line, other in zip(lines, expected, strict=True) if line != other]
    assert len(changed) <= 1
    for line in changed:
        assert len(line.replace("\\\\", "").replace("\\|", "").split("|")) == 5
        assert "<" not in line
