"""`esckit audit`: did the simulated seekers do their job, and how like real ones are they?"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from data_prep.errors import UserError
from data_prep.records import write_text

if TYPE_CHECKING:
    from eval.audit import Audit, Rate
    from eval.likeness import Likeness
    from eval.llm_audit import LlmSummary
    from eval.runs import Transcript

THRESHOLD = 0.2


def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of `esckit simulate`.")],
    reference: Annotated[
        list[Path] | None, typer.Option(help="Dialogues of real seekers (JSON Lines), to compare with.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="A run is marked where a fault's share is above this.")
    ] = THRESHOLD,
    marks: Annotated[bool, typer.Option("--marks", help="List every mark: dialogue, turn, fault.")] = False,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Have a chat model audit the dialogues, too: hf:PATH or openai:MODEL@URL."),
    ] = None,
    prompt: Annotated[str, typer.Option(help="With --judge: in what words; a name or a .yaml file.")] = "audit",
    batch_size: Annotated[int, typer.Option(min=1, help="With --judge: dialogues at once.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check mechanically what simulated seekers and supporters did, with rates and intervals over cards.

    Phrases and counts: a high rate says look at these dialogues, a low one is no proof. What was found is kept in
    RUN/audit.json.

    Example: esckit audit runs/a runs/b --reference valid.jsonl
    """
    from eval.audit import audit as audit_transcripts
    from eval.audit import rates

    results: list[dict[str, Any]] = []
    console = Console()
    for folder in runs:
        transcripts, rounds = _read(folder)
        found = audit_transcripts(transcripts, rounds)
        cards = {transcript.key: transcript.card.id for transcript in transcripts}
        shares = rates(found, list(cards), cards.__getitem__)
        likeness = _likeness(transcripts, reference, rounds) if reference else None
        asked = _by_model(folder, transcripts, found, judge, prompt, batch_size) if judge else None
        results.append(
            {**_as_json(folder, found, shares, likeness, threshold), "llm": asdict(asked) if asked else None}
        )
        write_text(folder / "audit.json", json.dumps(results[-1], indent=1, ensure_ascii=False) + "\n")
        if not as_json:
            _show(console, folder, found, shares, threshold)
            if likeness:
                _show_likeness(console, likeness)
            if asked:
                _show_model(console, asked)
            for mark in found.marks if marks else ():
                turn = "" if mark.turn is None else f" turn {mark.turn}"
                typer.echo(f"{mark.key}{turn}: {mark.side} {mark.fault}: {mark.reason}")
    if as_json:
        typer.echo(json.dumps(results, indent=1, ensure_ascii=False))


def _read(folder: Path) -> tuple[list["Transcript"], int]:
    from eval.runs import load_run

    run = load_run(folder)
    transcripts = run.transcripts()
    if not transcripts:
        raise UserError(f"{folder}: holds no finished dialogue yet; let `esckit simulate` go on")
    return transcripts, int(run.settings["simulation"]["rounds"])


def _likeness(transcripts: "Sequence[Transcript]", reference: list[Path], rounds: int) -> "Likeness":
    from data_prep.records import Dialogue, read_records
    from eval.likeness import compare_seekers

    real = [dialogue for path in reference for dialogue in read_records(path, Dialogue)]
    spoken = {transcript.card.language for transcript in transcripts}
    real = [dialogue for dialogue in real if dialogue.language in spoken]
    if not real:
        raise UserError(f"--reference: holds no dialogue in {' or '.join(sorted(spoken))}, the language of the run")
    return compare_seekers([transcript.to_dialogue() for transcript in transcripts], real, rounds)


def _by_model(
    folder: Path, transcripts: list["Transcript"], found: "Audit", judge: str, prompt: str, batch_size: int
) -> "LlmSummary":
    from data_prep.prompt import load_prompt
    from eval.chat_models import load_chat_models
    from eval.llm_audit import audit_by, summarise
    from eval.progress import progress_bar
    from eval.runs import append_to_run

    words = load_prompt(prompt)
    console = Console(stderr=True, markup=False, highlight=False)
    with append_to_run(folder) as _:
        [model] = load_chat_models([judge], say=console.print)
        with progress_bar("dialogues", len(transcripts), console) as advance:
            audits = audit_by(folder, transcripts, model, words, batch_size, advance)
    return summarise(audits, transcripts, found)


def _show_model(console: Console, found: "LlmSummary") -> None:
    table = Table(title=f"audit by {found.auditor}: {found.read} dialogues read")
    for name in (
        "side",
        "fault",
        "dialogues",
        "share",
        "95 % interval",
        "severity 3",
        "as the mechanical audit",
        "kappa",
    ):
        table.add_column(name, justify="left" if name in ("side", "fault") else "right")
    for rate in found.rates:
        both = found.agreement.get(rate.fault, {})
        same, kappa = both.get("same"), both.get("kappa")
        table.add_row(
            rate.side,
            rate.fault,
            f"{rate.dialogues} of {rate.of}",
            "" if rate.share is None else f"{rate.share:.1%}",
            "" if rate.low is None else f"{rate.low:.1%} to {rate.high:.1%}",
            str(found.severe[rate.fault]),
            "" if same is None else f"{same:.0%}",
            "" if kappa is None else f"{kappa:.2f}",
        )
    console.print(table)
    for reason, count in sorted(found.missing.items()):
        typer.echo(f"{count} dialogues could not be audited by the model: {reason}")


def above(shares: "Sequence[Rate]", threshold: float) -> list["Rate"]:
    """The faults whose share of dialogues is above the threshold."""
    return [rate for rate in shares if rate.share is not None and rate.share > threshold]


def _as_json(
    folder: Path, found: "Audit", shares: "Sequence[Rate]", likeness: "Likeness | None", threshold: float
) -> dict[str, Any]:
    return {
        "run": str(folder),
        "dialogues": found.dialogues,
        "crisis_dialogues": len(found.crisis),
        "rates": [asdict(rate) for rate in shares],
        "above_threshold": [f"{rate.side} {rate.fault}" for rate in above(shares, threshold)],
        "disclosure_by_round": list(found.disclosure),
        "marks": [asdict(mark) for mark in found.marks],
        "likeness": asdict(likeness) if likeness else None,
    }


def _show(console: Console, folder: Path, found: "Audit", shares: "Sequence[Rate]", threshold: float) -> None:
    table = Table(title=f"{folder}: {found.dialogues} dialogues, {len(found.crisis)} on a crisis card")
    for name in ("side", "fault", "dialogues", "share", "95 % interval over cards"):
        table.add_column(name, justify="left" if name in ("side", "fault") else "right")
    for rate in shares:
        if rate.share is None:
            table.add_row(rate.side, rate.fault, "0 of 0", "", "")
        else:
            limits = f"{rate.low:.1%} to {rate.high:.1%}"
            table.add_row(rate.side, rate.fault, f"{rate.dialogues} of {rate.of}", f"{rate.share:.1%}", limits)
    console.print(table)
    if found.disclosure:
        curve = ", ".join(f"{share:.0%}" for share in found.disclosure)
        typer.echo(f"the seeker has used this share of the card's words by round 1, 2, …: {curve}")
    for rate in above(shares, threshold):
        typer.echo(f"marked: {rate.side} {rate.fault} in {rate.share:.0%} of the dialogues (above {threshold:.0%})")


def _show_likeness(console: Console, likeness: "Likeness") -> None:
    table = Table(title=f"{likeness.simulated} simulated and {likeness.real} real seekers")
    for name in ("per dialogue", "simulated", "real", "difference"):
        table.add_column(name, justify="left" if name == "per dialogue" else "right")
    for feature in likeness.features:
        table.add_row(feature.name, *map(_interval, (feature.simulated, feature.real, feature.difference)))
    console.print(table)
    for name, (simulated, real) in {
        "has thanked or agreed by round 1, 2, …": likeness.thanks_by_round,
        "card's words used by round 1, 2, …": likeness.disclosure,
    }.items():
        shown = [", ".join(f"{share:.0%}" for share in curve) or "unknown" for curve in (simulated, real)]
        typer.echo(f"{name}: simulated {shown[0]}; real {shown[1]}")
    if likeness.auc is None:
        typer.echo(f"classifier: {likeness.reason}")
    else:
        typer.echo(
            f"a classifier tells them apart with AUC {likeness.auc:.2f} [{likeness.auc_low:.2f}, "
            f"{likeness.auc_high:.2f}] (0.5: cannot, 1: always)"
        )


def _interval(value: tuple[float, float | None, float | None]) -> str:
    mean, low, high = value
    return f"{mean:.2f}" if low is None or high is None else f"{mean:.2f} [{low:.2f}, {high:.2f}]"
