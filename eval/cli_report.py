"""`esckit score` and `esckit report`: judgments of a run's dialogues, and what they say of the supporters."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from data_prep.errors import UserError
from eval.progress import progress_bar

if TYPE_CHECKING:
    from data_prep.leaks import Leak
    from eval.judge import Judge, ScoringSummary
    from eval.report_records import Report
    from eval.runs import Transcript


def score(
    run: Annotated[Path, typer.Argument(help="Run folder of `esckit simulate`.")],
    scorer: Annotated[str | None, typer.Option(help="Folder of a trained scorer.")] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="In place of it a chat model that is asked for the number: hf:PATH or openai:MODEL@URL. Several make "
            "a panel: `esckit report --scorer panel` takes their mean.",
        ),
    ] = None,
    adapters: Annotated[
        str | None,
        typer.Option(help="With --judge: folder of one LoRA adapter a dimension and language, as empathy_en."),
    ] = None,
    official: Annotated[
        str | None, typer.Option(help="With --judge: a clone of the official repository, to ask in its words.")
    ] = None,
    reading: Annotated[
        str, typer.Option(help="With --judge: labels (their probabilities), or generate (and read the reply strictly).")
    ] = "labels",
    prompt: Annotated[
        str | None, typer.Option(help="With --judge: in what words; a name or a .yaml file of a prompt.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="With a server that tells no probabilities: replies a dimension.")
    ] = 5,
    repeats: Annotated[
        int, typer.Option(min=1, help="With a server: judge so many times, each a judge of its own (test and retest).")
    ] = 1,
    min_mass: Annotated[
        float, typer.Option(min=0, max=1, help="With --judge: no score where all labels have less probability.")
    ] = 0.5,
    rubric: Annotated[
        str | None,
        typer.Option(help="Rubric to judge by, for a scorer of several: a name, or a .yaml file as trained."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Dialogues read at once; changes the speed only.")] = 16,
    retry_missing: Annotated[
        bool, typer.Option("--retry-missing", help="Judge again what has no score yet; the old tries are kept aside.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Judge every dialogue of a run on every dimension. Stop it at any time; the same command goes on.

    Example: esckit score runs/first --scorer runs/quickstart/esc_rank

    Example: esckit score runs/first --judge hf:esc-rank/base --adapters esc-rank --official ESC-Eval

    Example: esckit score runs/first --judge openai:qwen3@http://localhost:8000/v1 --samples 5
    """
    from eval.judge import score_run
    from eval.runs import append_to_run

    if bool(scorer) == bool(judge):
        raise UserError("give --scorer FOLDER (a trained scorer), or --judge MODEL (a chat model that is asked)")
    asked: dict[str, Any] = {"adapters": adapters, "official": official, "reading": reading, "min_mass": min_mass}
    asked |= {"prompt": prompt, "samples": samples, "repeats": repeats}
    if scorer is not None and asked != JUDGE_DEFAULTS:
        changed = [name for name, value in asked.items() if value != JUDGE_DEFAULTS[name]]
        raise UserError(f"--{changed[0].replace('_', '-')} says how a --judge is asked; leave it out with --scorer")
    console = Console(stderr=True, markup=False, highlight=False)
    missing = 0
    results = []
    with append_to_run(run) as opened:
        for loaded in _load(opened.transcripts(), scorer, judge or [], rubric, asked, console):
            for note in opened.notes:
                console.print(note)
            with progress_bar("dialogues", len(opened.transcripts()), console) as advance:
                summary = score_run(opened, loaded, batch_size, advance, retry_missing)
            results.append((summary, loaded.shortened(opened.transcripts())))
            missing += sum(summary.missing.values())
    if as_json:
        found = [
            {
                "run": str(run),
                "scorer": summary.scorer,
                "dialogues": summary.dialogues,
                "scored": summary.scored,
                "already": summary.already,
                "missing": dict(summary.missing),
                "shortened": shortened,
            }
            for summary, shortened in results
        ]
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False, indent=2))
    else:
        for summary, shortened in results:
            _tell(run, summary, shortened)
    if missing:
        raise typer.Exit(1)


JUDGE_DEFAULTS: dict[str, Any] = {
    "adapters": None,
    "official": None,
    "reading": "labels",
    "min_mass": 0.5,
    "prompt": None,
    "samples": 5,
    "repeats": 1,
}


def _tell(run: Path, summary: "ScoringSummary", shortened: int) -> None:
    missing = sum(summary.missing.values())
    typer.echo(
        f"{run}: {summary.scored} dialogues scored by {summary.scorer}, {summary.already} were done before, "
        f"{missing} of {summary.dialogues} without a score"
    )
    if shortened:
        typer.echo(f"  {shortened} were longer than the scorer reads; not all of their turns counted")
    for reason, count in sorted(summary.missing.items()):
        typer.echo(f"  {count}: {reason}")


def _load(
    transcripts: Sequence["Transcript"],
    scorer: str | None,
    judges: Sequence[str],
    rubric: str | None,
    asked: dict[str, Any],
    console: Console,
) -> Iterator["Judge"]:
    """The judges one after the other, so that one model at a time is in memory."""
    if scorer is not None:
        from eval.judge import load_judge

        yield load_judge(scorer, rubric)
    for model in judges:
        how = dict(asked)
        samples, repeats = how.pop("samples"), how.pop("repeats")
        if model.startswith("openai:"):
            from eval.llm_judge import load_endpoint_judge

            for name in ("adapters", "official"):
                if how.pop(name) is not None:
                    raise UserError(f"--{name} is for weights on this machine (hf:PATH), not for a server's model")
            how["prompt"] = how["prompt"] or "llm_judge"
            for repeat in range(repeats):
                yield load_endpoint_judge(
                    model, rubric or "esc_eval", samples=samples, repeat=repeat, say=console.print, **how
                )
            continue
        if repeats > 1:
            raise UserError(f"--repeats: {model} is read without drawing, so that every repeat would be the same")
        from eval.generative_scorer import load_generative_judge

        languages = {transcript.card.language for transcript in transcripts}
        yield load_generative_judge(model, languages, rubric or "esc_eval", **how)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Scored run folders: one, two to compare, or many to rank.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default: RUN/report of the first.")] = None,
    scorer: Annotated[
        str | None,
        typer.Option(help="Whose judgments count, where there are several: a name, or panel for the mean of all."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs that differ otherwise too.")] = False,
    reference: Annotated[
        str | None, typer.Option(help="A leaderboard beside it: en or zh (published with ESC-Eval), or a CSV file.")
    ] = None,
    trained_on: Annotated[
        list[Path] | None, typer.Option(help="Training data of a supporter, seeker or scorer, for a leak report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Which supporter is better, by how much and how surely: report.html, report.md and scores.csv.

    Example: esckit report runs/base runs/tuned --out reports/base-and-tuned
    """
    from eval.reference import compare_with
    from eval.report import build_report
    from eval.report_pages import write_report
    from eval.report_text import answer
    from eval.runs import load_run

    built = build_report([load_run(run) for run in runs], scorer, force)
    if reference is not None:
        built.reference = compare_with(built, reference)
    if trained_on:
        built.leaks = _leaks(built, trained_on)
    files = write_report(built, out or runs[0] / "report")
    if as_json:
        typer.echo(json.dumps(figures(built, files), ensure_ascii=False, indent=2))
    else:
        for line in (*answer(built), *(f"Note: {warning}" for warning in built.warnings), *map(str, files)):
            typer.echo(line)
    if any(entry.missing for entry in built.entries):
        raise typer.Exit(1)


def _leaks(report: "Report", files: Sequence[Path]) -> list[tuple[str, Sequence["Leak"]]]:
    from data_prep.cli import read_dialogues_or_cards
    from data_prep.leaks import leak_report

    cards = list({t.card.id: t.card for entry in report.entries for t in entry.transcripts}.values())
    return [(path.name, leak_report(cards, read_dialogues_or_cards(path))) for path in files]


def figures(report: "Report", files: list[Path]) -> dict[str, Any]:
    """The figures of a report for a script, unrounded; missing ones are null."""
    from dataclasses import asdict

    from eval.report_text import answer

    return {
        "answer": " ".join(answer(report)),
        "rubric": {"name": report.rubric.name, "version": report.rubric.version, "sha": report.rubric.sha},
        "scorers": list(report.scorers),
        "supporters": [
            {
                "label": entry.label,
                "run": entry.run,
                "dialogues": len(entry.transcripts),
                "missing": dict(entry.missing),
                "end_reasons": dict(entry.end_reasons),
                "scores": {name: asdict(figure) for name, figure in entry.figures.items()},
                "rank": asdict(entry.rank) if entry.rank else None,
                "bounds": entry.bounds,
                "variance": asdict(entry.variance) if entry.variance else None,
            }
            for entry in report.entries
        ],
        "differences": [
            {
                "a": comparison.a.label,
                "b": comparison.b.label,
                "column": name,
                "points": asdict(found.interval),
                "p": found.p_value,
                "p_holm": comparison.holm_p[name],
                "detectable": found.detectable,
                "superiority": asdict(found.superiority),
                "only_a": found.only_a,
                "only_b": found.only_b,
            }
            for comparison in report.comparisons
            for name, found in comparison.by_column.items()
        ],
        "slices": [
            {
                "kind": part.kind,
                "value": part.value,
                "cards": part.cards,
                "means": [asdict(mean) for mean in part.means],
                "behind": [asdict(one.interval) if one else None for one in part.behind],
            }
            for part in report.slices
        ],
        "audit": {
            entry.label: {
                "rates": [asdict(rate) for rate in entry.audit.rates],
                "above_threshold": [f"{rate.side} {rate.fault}" for rate in entry.audit.above],
            }
            for entry in report.entries
        },
        "agreement": [asdict(one) for one in report.agreement],
        "leaks": None
        if report.leaks is None
        else {name: {leak.kind: leak.shared for leak in leaks} for name, leaks in report.leaks},
        "reference": asdict(report.reference) if report.reference else None,
        "warnings": report.warnings,
        "files": [str(path) for path in files],
    }
