"""`esckit data clean`: cleans a file of dialogues step by step and says what each step did."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from data_prep.errors import UserError
from data_prep.records import Dialogue, describe_invalid, parse_json, write_records

Names = Annotated[list[str] | None, typer.Option(metavar="STEP", help="May be given several times; see --list.")]


def stream_dialogues(path: Path) -> Iterator[Dialogue]:
    """Yields the dialogues of a JSON Lines file, one line in memory at a time.

    Raises UserError like `read_records`, but only when it comes to the line.
    """
    seen: dict[str, int] = {}
    try:
        with open(path, "rb") as lines:
            for number, raw in enumerate(lines, start=1):
                where = f"{path}:{number}"
                if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise UserError(
                        f"{path}: is UTF-16, expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8 {path.name}"
                    )
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError:
                    raise UserError(f"{where}: is not valid UTF-8; save the file as UTF-8 and try again") from None
                if not line.strip():
                    continue
                try:
                    dialogue = Dialogue.model_validate(parse_json(line, where))
                except ValidationError as error:
                    raise UserError(f"{where}: {describe_invalid(error)}") from None
                if dialogue.id in seen:
                    raise UserError(
                        f"{where}: id {dialogue.id!r} is already used at {path}:{seen[dialogue.id]}; ids must differ"
                    )
                seen[dialogue.id] = number
                yield dialogue
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
    from data_prep.cleaning import clean as cleaned
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
    dialogues = cleaned(stream_dialogues(file), chosen, report)
    first = next(dialogues, None)
    if first is None:
        raise UserError(f"{file}: cleaning leaves no dialogue, {out} was not written; leave a step out with --without")
    write_records(out, chain([first], dialogues))
    if as_json:
        print_json({"file": str(file), "out": str(out), **report.as_dict()})
        return
    counted: list[tuple[str, str, int]] = [("", "read", report.read), ("", "written", report.written)]
    counted.append(("", "dropped", report.read - report.written))
    for name, counts in report.as_dict()["steps"].items():
        counted += [(name, what, count) for what, count in counts.items()] or [(name, "nothing to do", 0)]
    print_table(f"{file} → {out}", ("step", "what", "count"), counted)
