"""`esckit doctor`: what this machine can do; `esckit data doctor`: what a training file does with a model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from data_prep.records import Speaker
    from train.rows import ChatFormat


def doctor(
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Also ask this chat server, such as http://localhost:8000/v1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine can do: Python, devices, memory, disk, packages, hub, keys (never shown), models.

    ✓ fine, ! narrows what can be done, ✗ has to be corrected (exit code 1).

    Example: esckit doctor --endpoint http://localhost:8000/v1
    """
    from dataclasses import asdict

    from train.doctor import MARKS, examine

    findings = examine(endpoint)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False))
    else:
        for finding in findings:
            typer.echo(f"{MARKS[finding.verdict]} {finding.topic}: {finding.text}")
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


def data_doctor(
    file: Annotated[Path, typer.Argument(help="Dialogues, or messages as `esckit data build` writes them.")],
    model: Annotated[str, typer.Option(help="Whose tokenizer and template: a name, a folder, BASE+ADAPTER.")],
    side: Annotated[str | None, typer.Option(help="Who is trained on dialogues: seeker or supporter.")] = None,
    max_length: Annotated[int, typer.Option(min=1, help="As data.max_length of the recipe.")] = 2048,
    prompt: Annotated[str | None, typer.Option(help="System prompt, as data.prompt of the recipe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Look a training file over with a model's tokenizer: roles, order, template, loss, ends, length, typed tokens.

    ✓ fine, ! look at it, ✗ training would stop there or learn the wrong thing (exit code 1).

    Example: esckit data doctor data_prep/samples/dialogues.jsonl --model smollm2-135m-instruct --side seeker
    """
    from dataclasses import asdict

    from train.data_doctor import examine
    from train.models import open_chat_tokenizer

    how = format_of(file, side, prompt, max_length)
    found = examine(file, open_chat_tokenizer(model), how)
    if as_json:
        figures = {**asdict(found), "ok": found.ok}
        content = {"file": str(file), "model": model, "side": how.side, "max_length": max_length, **figures}
        typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        typer.echo(
            f"{file}: {found.records:,} records, {found.rendered:,} rendered: {found.tokens:,} tokens, "
            f"{found.supervised_tokens:,} of them learned"
        )
        for check in found.checks:
            typer.echo(check.line())
    if not found.ok:
        raise typer.Exit(1)


def format_of(file: Path, side: str | None, prompt: str | None, max_length: int) -> "ChatFormat":
    """How a recipe of this side would read the file. Raises UserError for options that do not fit it."""
    from data_prep.errors import UserError
    from data_prep.prompt import load_prompt
    from data_prep.records import first_json_line
    from train.rows import ChatFormat

    if side not in (None, "seeker", "supporter"):
        raise UserError(f"--side is {side!r}; known: seeker, supporter")
    first = first_json_line(file)
    rendered = isinstance(first, dict) and "messages" in first
    if rendered and (side or prompt):
        raise UserError(f"{file}: holds messages, which say side and prompt themselves; leave --side and --prompt out")
    if not rendered and side is None:
        raise UserError("--side is missing: who is trained on these dialogues, seeker or supporter")
    trained: Speaker = "supporter" if side == "supporter" else "seeker"
    greeting = load_prompt("greeting") if trained == "seeker" else None
    return ChatFormat(trained, load_prompt(prompt or trained), greeting, max_length)
