"""`esckit data clean`: cleans a file of dialogues step by step and says what each step did."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from data_prep.errors import UserError
from data_prep.plain import PlainDialogue, plain_dialogue
from data_prep.records import Dialogue, Replacing, StrictDecoder, describe_invalid, dump_line, parse_json

if TYPE_CHECKING:
    from data_prep.cleaning import CleaningReport, Step

Names = Annotated[list[str] | None, typer.Option(metavar="STEP", help="May be given several times; see --list.")]


def cleaned_lines(path: Path, steps: "Sequence[Step] | None", report: "CleaningReport") -> Iterator[str]:
    """Yields the lines of the cleaned dialogues of a file.

    One line is in memory at a time, and those that are read ahead. Raises UserError like `read_records`, but only
    when it comes to the line.
    """
    from data_prep.cleaning import clean_read

    waiting: deque[tuple[Dialogue | PlainDialogue, str | None]] = deque()

    def read() -> Iterator[Dialogue | PlainDialogue]:
        for record, line in _stream(path):
            waiting.append((record, line))
            yield record

    for record in clean_read(read(), steps, report):
        while True:
            # Dialogues keep their order, so those before this one were dropped.
            before, line = waiting.popleft()
            if before.id == record.id:
                break
        if line is not None and before is record:
            yield line
        else:
            yield dump_line(record if isinstance(record, Dialogue) else record.dialogue())


def _as_written(raw: bytes) -> tuple[Dialogue | PlainDialogue, str] | None:
    """The dialogue of a line and its text, if the line is to the byte what we write for it; None for any other line.

    Such a line has none of the faults that `parse_json` looks for (a key twice, say, would not have been written), so
    looking for them, the slowest part of reading, can be left out. Only NaN and infinities would be written as read.
    """
    try:
        line = raw.decode()
        plain = plain_dialogue(line)
        if plain is not None:
            return plain, line
        if "NaN" in line or "Infinity" in line:
            return None
        dialogue = Dialogue.model_validate(json.loads(line))
        return (dialogue, line) if dump_line(dialogue) == line else None
    except (
        ValueError,
        RecursionError,
    ):  # not a dialogue, or nothing that can be written: the other way of reading says what is wrong
        return None


def _stream(path: Path) -> Iterator[tuple[Dialogue | PlainDialogue, str | None]]:
    """The dialogues of a file, each with its line if that is what we would write."""
    from data_prep.sources.detect import not_ours

    seen: dict[str, int] = {}
    decoder = StrictDecoder()
    try:
        with open(path, "rb") as lines:
            for number, raw in enumerate(lines, start=1):
                found = _as_written(raw)
                if found is not None and seen.setdefault(found[0].id, number) == number:
                    yield found
                    continue
                where = f"{path}:{number}"
                if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise UserError(
                        f"{path}: is UTF-16, expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8 {path.name}"
                    )
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError:
                    told = None if seen else not_ours(path, "Dialogue")
                    raise UserError(
                        told or f"{where}: is not valid UTF-8; save the file as UTF-8 and try again"
                    ) from None
                if not line.strip():
                    continue
                try:
                    dialogue = Dialogue.model_validate(parse_json(line, where, decoder))
                except (ValidationError, UserError) as error:
                    fault = error if isinstance(error, UserError) else f"{where}: {describe_invalid(error)}"
                    told = None if seen else not_ours(path, "Dialogue")
                    raise UserError(told or str(fault)) from None
                if dialogue.id in seen:
                    raise UserError(
                        f"{where}: id {dialogue.id!r} is already used at {path}:{seen[dialogue.id]}; ids must differ"
                    )
                seen[dialogue.id] = number
                yield dialogue, None
    except FileNotFoundError:
        raise UserError(f"{path}: file not found; check the path (relative to {Path.cwd()})") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not seen:
        raise UserError(f"{path}: holds no Dialogue record; expected one JSON object a line")


def clean(
    file: Annotated[Path | None, typer.Argument(help="JSON Lines file of dialogues.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON Lines file of the cleaned dialogues.")] = None,
    without: Names = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="STEP", help="A step that is off by default.")
    ] = None,
    list_steps: Annotated[bool, typer.Option("--list", help="List the steps in the order they run, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Clean dialogues in named, counted steps; text that no step speaks of is left as it is."""
    from data_prep.cleaning import STEPS, CleaningReport, choose_steps
    from data_prep.cli import print_json, print_table, refuse_overwriting

    if list_steps:
        steps = list(STEPS.values())
        if as_json:
            print_json([{"step": step.name, "default": step.default, "about": step.about} for step in steps])
        else:
            rows = [(step.name, "on" if step.default else "off", step.about) for step in steps]
            print_table("cleaning steps, in their order", ("step", "default", "what it does"), rows)
        return
    if file is None or out is None:
        raise UserError(
            "give the file to clean and --out; for example: esckit data clean esconv.jsonl --out clean.jsonl"
        )
    refuse_overwriting(file, (out,))
    chosen = choose_steps(without or (), with_ or ())
    report = CleaningReport()
    lines = cleaned_lines(file, chosen, report)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{file}: cleaning leaves no dialogue, {out} was not written; leave a step out with --without")
    with Replacing(out) as written:
        for line in chain([first], lines):
            written.write(line)
    if as_json:
        print_json({"file": str(file), "out": str(out), **report.as_dict()})
        return
    counted: list[tuple[str, str, int]] = [("", "read", report.read), ("", "written", report.written)]
    counted.append(("", "dropped", report.read - report.written))
    for name, counts in report.as_dict()["steps"].items():
        counted += [(name, what, count) for what, count in counts.items()] or [(name, "nothing to do", 0)]
    print_table(f"{file} → {out}", ("step", "what", "count"), counted)
