"""`esckit runs`: run folders joined, written in other tools' layouts, and made of other tools' dialogues."""

import json
from pathlib import Path
from typing import Annotated

import typer

from data_prep.errors import UserError

app = typer.Typer(help="Join, export and import run folders.", no_args_is_help=True)
SHOWN = 5


@app.command()
def merge(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders of equal settings, as `simulate --shard` makes them.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; must not be there yet.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Join run folders of equal settings into one. Says what is missing; exit code 1 while something is.

    Example: esckit runs merge runs/part1 runs/part2 --out runs/whole
    """
    from eval.runs_merge import merge_runs

    merged = merge_runs(runs, out)
    missing = merged.missing()
    count = len(merged.transcripts())
    if as_json:
        found = {"run": str(out), "dialogues": count, "judgments": len(merged.judgments()), "missing": missing}
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        typer.echo(f"{out}: {count} dialogues, {len(merged.judgments())} judgments of {len(runs)} folders")
        if missing:
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            typer.echo(f"  {len(missing)} of {count + len(missing)} are missing: {', '.join(missing[:SHOWN])}{more}")
    if missing:
        raise typer.Exit(1)


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    to: Annotated[str, typer.Option(help="official, messages, sharegpt, csv or lm-eval.")],
    out: Annotated[Path, typer.Option(help="File to write; a folder for lm-eval.")],
) -> None:
    """Write a run's dialogues in the layout of another tool; lm-eval: its scores and samples.

    Example: esckit runs export runs/first --to sharegpt --out first.jsonl
    """
    from eval.runs import load_run
    from eval.runs_layouts import EXPORTS, export_run

    _check("--to", to, EXPORTS)
    if out.resolve().is_relative_to(run.resolve()) and out.exists():
        raise UserError(f"{out}: is a part of the run; name another --out")
    for file in export_run(load_run(run), to, out):
        typer.echo(f"written: {file}")


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="File of dialogues.")],
    layout: Annotated[str, typer.Option("--from", help="official, messages, sharegpt or csv.")],
    out: Annotated[Path, typer.Option(help="Run folder to make.")],
    language: Annotated[str | None, typer.Option(help="en or zh, where the file does not say it.")] = None,
    supporter: Annotated[
        str | None, typer.Option(help="Who the supporter was, where the file does not say it.")
    ] = None,
    seeker: Annotated[str | None, typer.Option(help="Who the seeker was, likewise.")] = None,
    cards: Annotated[
        Path | None, typer.Option(help="The role cards: by position for official, else by id. Ours or official.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="With official: the score file of these transcripts, kept as judgments.")
    ] = None,
    rater: Annotated[str, typer.Option(help="With --scores: who gave them, as reports shall call it.")] = "published",
) -> None:
    """Make a run folder of dialogues from elsewhere, to be scored, audited and reported like one of ours.

    Example: esckit runs import result/llama3_en.json --from official --language en --supporter llama3 --out runs/llama3
    """
    from eval.cli_simulate import read_cards
    from eval.runs_layouts import IMPORTS, as_transcripts, import_dialogues, write_import

    _check("--from", layout, IMPORTS)
    if scores is not None and layout != "official":
        raise UserError("--scores are of official transcripts; bring others in with: esckit study attach")
    if language not in (None, "en", "zh"):
        raise UserError(f"--language is {language!r}; known: en, zh")
    known = read_cards(cards, None, None) if cards else None
    dialogues = import_dialogues(file, layout, language, known)  # type: ignore[arg-type]
    transcripts = as_transcripts(dialogues, supporter, seeker, known or ())
    new = write_import(out, file, layout, transcripts)
    if scores is not None:
        _attach(out, scores, [one.key for one in transcripts], rater)
    without = sum(not one.card.problem for one in transcripts)
    typer.echo(f"{out}: {len(transcripts)} dialogues, {new} of them new")
    if without:
        typer.echo(f"  {without} have no role card; an audit cannot hold them against one (give --cards)")


def _attach(out: Path, scores: Path, keys: list[str], rater: str) -> None:
    from data_prep.rubric import load_rubric
    from eval.judge import score_run
    from eval.rated import RatingsJudge, official_ratings
    from eval.runs import append_to_run

    with append_to_run(out) as run:
        by_key = {one.key: one for one in run.transcripts()}
        ratings = official_ratings(scores, [by_key[key] for key in keys], rater)
        score_run(run, RatingsJudge(rater, load_rubric("esc_eval"), ratings))
    typer.echo(f"{out}: {len(ratings)} scores of {len(keys)} dialogues kept as {rater}")


def _check(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{option} is {value!r}; known: {', '.join(known)}")
