"""What a built data set is made of, as a record and as a page: sources, licences, counts, splits, leaks, hashes.

No time, host or folder is in it: the same inputs and settings give the same bytes.
"""

import html
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import Field

from data_prep.errors import UserError
from data_prep.records import Dialogue, Record, sha256_of

UNKNOWN_LICENCE = "unknown: not a registered source; say it with --licence NAME=TEXT"
# Names that records carry which are not those of a registered source.
OTHER_LICENCES = {
    "sample": "Apache-2.0 (bundled samples, written for illustration)",
    "esc-eval": "none stated",
}


class FileEntry(Record):
    """One file by its name without the folder, and what is in it."""

    file: str
    sha256: str
    records: int


class SourceEntry(Record):
    """One source of the built records and what its licence says."""

    source: str
    licence: str
    records: int


class Spread(Record):
    """A distribution of lengths. Percentiles are the value at that rank (nearest rank)."""

    count: int
    minimum: int
    median: int
    p95: int
    maximum: int
    total: int


class PartEntry(Record):
    """One part of the set: records and their lengths, in turns, messages and characters, never in tokens."""

    part: str
    counts: dict[str, int]
    lengths: dict[str, Spread]


class LeakEntry(Record):
    """What two parts share of one kind, as in `esckit data leaks`."""

    a: str
    b: str
    kind: str
    shared: int
    records_a: int
    records_b: int


class Datasheet(Record):
    """Everything a reader needs to know where a built set comes from, and to build it again."""

    what: str
    command: str
    settings: dict[str, Any]
    versions: dict[str, str]
    inputs: tuple[FileEntry, ...]
    outputs: tuple[FileEntry, ...]
    sources: tuple[SourceEntry, ...]
    languages: dict[str, int]
    parts: tuple[PartEntry, ...]
    figures: dict[str, int]
    repairs: dict[str, int]
    missing: dict[str, int]
    refused: dict[str, int]
    refused_records: tuple[str, ...] = Field(default=(), description="file:line of each, without the folder")
    conversions: tuple[dict[str, Any], ...] = ()
    """Reports of `esckit data convert --json` that were handed in: what was repaired before."""
    leaks: tuple[LeakEntry, ...] = ()
    notes: tuple[str, ...] = ()


def spread(values: Iterable[int]) -> Spread:
    """The distribution of whole numbers. Raises UserError when there are none."""
    ordered = sorted(values)
    if not ordered:
        raise UserError("nothing to measure: the part has no record")

    def rank(percent: int) -> int:
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

    return Spread(
        count=len(ordered),
        minimum=ordered[0],
        median=rank(50),
        p95=rank(95),
        maximum=ordered[-1],
        total=sum(ordered),
    )


@cache
def toolkit_versions() -> tuple[tuple[str, str], ...]:
    """Versions that decide the bytes of a build. Unicode tables come with Python and decide what is a near copy."""
    try:
        toolkit = version("esckit")
    except PackageNotFoundError:
        toolkit = "not installed"
    return ("esckit", toolkit), ("python", platform.python_version())


def licence_of(source: str, given: Mapping[str, str]) -> str:
    """Licence of a record's source: what the user says, else what the registry says of it or of what it begins with.

    "esconv-failed" is a part of "esconv".
    """
    from data_prep.sources import SOURCES

    if source in given:
        return given[source]
    known = {name: entry.licence for name, entry in SOURCES.items()} | OTHER_LICENCES
    while source not in known and "-" in source:
        source = source.rpartition("-")[0]
    return known.get(source, UNKNOWN_LICENCE)


def source_entries(sources: Iterable[str], given: Mapping[str, str]) -> tuple[SourceEntry, ...]:
    """Counts and licences by source. Raises UserError for a given licence of a source that does not occur."""
    counts = Counter(sources)
    for name in given:
        if name not in counts:
            raise UserError(
                f"--licence {name!r}: no record comes from it; the sources are: {', '.join(sorted(counts))}"
            )
    return tuple(
        SourceEntry(source=name, licence=licence_of(name, given), records=count)
        for name, count in sorted(counts.items())
    )


def plain_name(path: str | Path) -> str:
    """A file's name without its folder; bytes of it that are no UTF-8 become question marks."""
    return Path(path).name.encode(errors="replace").decode()


def file_entry(path: Path, records: int) -> FileEntry:
    return FileEntry(file=plain_name(path), sha256=sha256_of(path), records=records)


def dialogue_lengths(dialogues: Sequence[Dialogue]) -> dict[str, Spread]:
    """Turns and characters of dialogues, as they are in the records (runs not merged)."""
    lengths = {
        "turns a dialogue": spread(len(dialogue.turns) for dialogue in dialogues),
        "characters a dialogue": spread(sum(len(turn.text) for turn in dialogue.turns) for dialogue in dialogues),
    }
    for side in ("seeker", "supporter"):
        said = [len(turn.text) for dialogue in dialogues for turn in dialogue.turns if turn.speaker == side]
        if said:
            lengths[f"characters a {side} turn"] = spread(said)
    return lengths


def dump_datasheet(sheet: Datasheet) -> str:
    """The record as JSON, fields in their order."""
    return json.dumps(sheet.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n"


# ---- the page


def _cell(value: Any) -> str:
    """A value as text of a table cell: nothing in it is read as markup, and it stays on its line."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = html.escape(" ".join(str(value).split()), quote=False)
    return "".join(f"\\{char}" if char in "\\|`*_[]#<>" else char for char in text)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows), ""]


def _counts(title: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return [f"**{title}**: none", ""]
    return [f"**{title}**", "", *_table(("what", "count"), counts.items())]


def _parts(sheet: Datasheet) -> list[str]:
    lines = ["## Parts", ""]
    for part in sheet.parts:
        rows = [
            (name, found.count, found.minimum, found.median, found.p95, found.maximum)
            for name, found in part.lengths.items()
        ]
        lines += [f"### {_cell(part.part)}", "", *_table(("what", "count"), part.counts.items())]
        lines += _table(("lengths", "of", "min", "median", "95 %", "max"), rows)
    return lines


def _leaks(sheet: Datasheet) -> list[str]:
    if not sheet.leaks:
        return ["There is one part only: nothing to compare.", ""]
    rows = [(leak.a, leak.b, leak.kind, leak.shared, leak.records_a, leak.records_b) for leak in sheet.leaks]
    return _table(("A", "B", "kind", "shared", "records of A", "records of B"), rows)


def render_datasheet(sheet: Datasheet) -> str:
    """The record as a Markdown page. Names that come from data are escaped."""
    lines = [f"# Datasheet: {_cell(sheet.what)}", "", "Made by:", "", f"    {' '.join(sheet.command.split())}", ""]
    lines += [
        "## Sources",
        "",
        *_table(
            ("source", "licence", "records"), [(entry.source, entry.licence, entry.records) for entry in sheet.sources]
        ),
    ]
    lines += ["**Languages**", "", *_table(("language", "records"), sheet.languages.items())]
    lines += _parts(sheet)
    lines += ["## What was done to the records", "", *_counts("Repaired or formatted", sheet.repairs)]
    lines += _counts("Missing", sheet.missing) + _counts("Refused", sheet.refused)
    if sheet.figures:
        lines += _counts("Figures", sheet.figures)
    for report in sheet.conversions:
        refused = report.get("refused")
        lines += [
            f"### Before: conversion of {_cell(report.get('file', '?'))} as {_cell(report.get('source', '?'))}",
            "",
        ]
        lines += _counts("Repaired", report.get("repairs") or {}) + _counts("Missing", report.get("missing") or {})
        lines += [f"**Refused**: {_cell(refused if isinstance(refused, int) else 0)} records", ""]
    lines += ["## Leaks between the parts", "", *_leaks(sheet)]
    lines += [
        "## Settings",
        "",
        *_table(
            ("setting", "value"),
            [(name, json.dumps(value, ensure_ascii=False, sort_keys=True)) for name, value in sheet.settings.items()],
        ),
    ]
    lines += ["## Files", ""]
    for title, entries in (("Read", sheet.inputs), ("Written", sheet.outputs)):
        rows = [(entry.file, entry.records, entry.sha256) for entry in entries]
        lines += [f"**{title}**", "", *_table(("file", "records", "sha256"), rows)]
    lines += ["## Versions", "", *_table(("what", "version"), sheet.versions.items())]
    if sheet.notes:
        lines += ["## Notes", "", *(f"- {_cell(note)}" for note in sheet.notes), ""]
    return "\n".join(lines)
