"""Files of a build: what it reads, and the folder it writes with a datasheet beside the data."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from data_prep.build import Mix, Split, Tally, leaks_between
from data_prep.datasheet import (
    Datasheet,
    FileEntry,
    LeakEntry,
    PartEntry,
    dump_datasheet,
    file_entry,
    plain_name,
    render_datasheet,
    source_entries,
    toolkit_versions,
)
from data_prep.errors import UserError
from data_prep.official import read_cards
from data_prep.records import (
    Dialogue,
    Rating,
    Record,
    RoleCard,
    dump_line,
    first_json_line,
    parse_json,
    read_located,
    read_records,
    read_text,
    write_text,
)
from data_prep.sample import read_conversations
from data_prep.sources.base import Options, Refusal
from data_prep.sources.detect import our_kind
from data_prep.sources.nlpcc import NLPCC, holds_task8

SHEET, SHEET_JSON = "datasheet.md", "datasheet.json"


@dataclass
class Inputs:
    """What was read. `located` keeps file and line; `entries` name and hash every file."""

    dialogues: list[tuple[str, Dialogue]] = field(default_factory=list)
    ratings: list[tuple[str, Rating]] = field(default_factory=list)
    entries: list[FileEntry] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    conversions: list[dict[str, Any]] = field(default_factory=list)

    def took(self, path: Path, records: int) -> None:
        self.entries.append(file_entry(path, records))
        self.paths.append(path)


def read_dialogue_files(files: Sequence[Path], inputs: Inputs) -> None:
    """Dialogue records, or the files of NLPCC 2025 task 8 as they are published. Ids must differ over all files."""
    seen = {dialogue.id: where for where, dialogue in inputs.dialogues}
    for file in files:
        if holds_task8(file):
            conversion = NLPCC.read(file, Options())
            located = [(f"{file}: {dialogue.id}", dialogue) for dialogue in conversion.dialogues]
            inputs.repairs += conversion.repairs
            inputs.missing += conversion.missing
            inputs.refused += conversion.refused
        else:
            located = read_located(file, Dialogue)
        for where, dialogue in located:
            if dialogue.id in seen:
                raise UserError(f"{where}: id {dialogue.id!r} is already used at {seen[dialogue.id]}; ids must differ")
            seen[dialogue.id] = where
        inputs.dialogues += located
        inputs.took(file, len(located))


def read_dialogues_and_ratings(files: Sequence[Path], inputs: Inputs) -> None:
    """Files of dialogues and of ratings in any order; the first record of a file tells which it is."""
    for file in files:
        first = first_json_line(file) if not holds_task8(file) else None
        if isinstance(first, dict) and "dimension" in first:
            ratings = read_located(file, Rating)
            inputs.ratings += ratings
            inputs.took(file, len(ratings))
        else:
            read_dialogue_files([file], inputs)
    if not inputs.dialogues or not inputs.ratings:
        kind = "dialogues" if not inputs.dialogues else "ratings"
        raise UserError(f"none of the files holds {kind}; give dialogues and ratings, each as JSON Lines")


def read_card_file(path: Path, inputs: Inputs) -> list[RoleCard]:
    """Role cards as JSON Lines of our records, or an official card file (a JSON list)."""
    cards = read_cards(path) if read_text(path).lstrip()[:1] == "[" else read_records(path, RoleCard)
    inputs.took(path, len(cards))
    return cards


def read_mixes(ratios: Mapping[str, str], inputs: Inputs) -> list[Mix]:
    """General chat by file and ratio: RATIO conversations of FILE for every dialogue of the training part."""
    mixes = []
    for name, text in sorted(ratios.items()):
        try:
            ratio = Decimal(text)
        except InvalidOperation:
            ratio = Decimal(0)
        if not ratio.is_finite() or not 0 < ratio <= 1000:
            raise UserError(f"--mix {name}: the ratio is {text!r}; expected a number above 0, such as 3 or 0.5")
        path = Path(name)
        if our_kind(path) == "Dialogue":
            raise UserError(
                f"--mix {name}: holds esckit dialogues, not general chat; name them among the dialogues instead, or "
                f"write them as chat: esckit data export messages {name} --out FILE"
            )
        samples, repairs, refused = read_conversations(path)
        if not samples:
            raise UserError(
                f"--mix {name}: none of its {len(refused)} records is a conversation; expected a list under `messages` "
                "(role, content) or `conversations` (from, value)"
            )
        inputs.repairs += repairs
        inputs.refused += refused
        inputs.took(path, len(samples))
        mixes.append(Mix(plain_name(path), ratio, samples))
    if len({mix.name for mix in mixes}) < len(mixes):
        raise UserError("--mix: two files have the same name; rename one, the datasheet tells them apart by it")
    return mixes


def read_conversion_report(path: Path) -> dict[str, Any]:
    """The counts of one `esckit data convert --json` report; its paths are cut to names.

    Raises UserError when it is no such report.
    """
    content = parse_json(read_text(path), str(path))
    counts = [content.get(key) for key in ("repairs", "missing")] if isinstance(content, dict) else []
    plain = all(isinstance(count, dict) and all(type(n) is int for n in count.values()) for count in counts)
    if not counts or not plain or not isinstance(content.get("source"), str):
        raise UserError(f"{path}: is no conversion report; make it with: esckit data convert … --json > {path.name}")
    refused = content.get("refused")
    return {
        "source": content["source"],
        "file": Path(str(content.get("path", "?")).replace("\\", "/")).name,
        "repairs": content["repairs"],
        "missing": content["missing"],
        "refused": len(refused) if isinstance(refused, list) else 0,
    }


@dataclass(frozen=True)
class Made:
    """What a build hands over for writing: records by file name, parts with their dialogues, and the texts of it."""

    what: str
    command: str
    settings: Mapping[str, Any]
    files: Mapping[str, Sequence[Record]]
    dialogues: Mapping[str, Sequence[Dialogue]]
    parts: Sequence[PartEntry]
    sources: Sequence[str]
    """The source of every dialogue and general conversation, for counting."""
    notes: Sequence[str]


def check_folder(out: Path, made: Mapping[str, Any], inputs: Sequence[Path]) -> None:
    """Raises UserError before anything is written: an input would be lost, or old parts would stay beside new ones."""
    targets = {(out / name).resolve() for name in (*made, SHEET, SHEET_JSON)}
    for path in inputs:
        if path.resolve() in targets:
            raise UserError(f"{path}: would be overwritten by the build; choose another --out")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; --out names a folder")
    left = sorted(found.name for found in out.glob("*.jsonl") if found.name not in made) if out.is_dir() else []
    if left:
        raise UserError(f"{out}: holds {left[0]}, which this build does not make; choose a new --out or remove it")


def _names_only(where: str, paths: Sequence[Path]) -> str:
    """`file:line` without the folder."""
    for path in paths:
        if where.startswith(f"{path}:"):
            return plain_name(path) + where.removeprefix(str(path))
    return where


def write_set(
    out: Path, made: Made, inputs: Inputs, tally: Tally, split: Split, licences: Mapping[str, str]
) -> Datasheet:
    """Writes every file of a build and its datasheet last, so that a folder with a datasheet is a whole set."""
    check_folder(out, made.files, inputs.paths)
    sources = source_entries(made.sources, licences)
    leaks = [
        LeakEntry(a=a, b=b, kind=leak.kind, shared=leak.shared, records_a=len(leak.ids_a), records_b=len(leak.ids_b))
        for (a, b), report in leaks_between(made.dialogues).items()
        for leak in report
    ]
    for old in (out / SHEET, out / SHEET_JSON):
        old.unlink(missing_ok=True)
    outputs = []
    for name, records in made.files.items():
        write_text(out / name, "".join(map(dump_line, records)))
        outputs.append(file_entry(out / name, len(records)))
    languages = Counter(dialogue.language for part in made.dialogues.values() for dialogue in part)
    refused = [*inputs.refused, *tally.refused]
    sheet = Datasheet(
        what=made.what,
        command=made.command,
        settings=dict(made.settings),
        versions=dict(toolkit_versions()),
        inputs=tuple(sorted(inputs.entries, key=lambda entry: (entry.file, entry.sha256))),
        outputs=tuple(outputs),
        sources=sources,
        languages=dict(sorted(languages.items())),
        parts=tuple(made.parts),
        figures=_positive(tally.figures),
        repairs=_positive(inputs.repairs + tally.repairs),
        missing=_positive(inputs.missing + tally.missing),
        refused=_positive(Counter(kind_of(refusal) for refusal in refused)),
        refused_records=tuple(sorted(_names_only(refusal.where, inputs.paths) for refusal in refused)),
        conversions=tuple(sorted(inputs.conversions, key=lambda report: (report["file"], report["source"]))),
        leaks=tuple(leaks),
        notes=tuple(made.notes),
    )
    write_text(out / SHEET, render_datasheet(sheet))
    write_text(out / SHEET_JSON, dump_datasheet(sheet))
    return sheet


def kind_of(refusal: Refusal) -> str:
    """The reason without what differs from record to record, so that equal faults are counted together."""
    reason = re.sub(r"^(message|turn) \d+: ", "", refusal.reason)
    if reason.startswith("not valid JSON"):
        return "not valid JSON"
    if reason.startswith("value ") and "off the scale" in reason:
        return "rating off the scale"
    if reason.startswith("the same rater gives another value"):
        return "the same rater gives two values"
    return reason


def _positive(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}
