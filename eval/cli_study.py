"""`esckit study`: dialogues of runs rated by people, blinded, and their ratings brought back into the runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Have people rate dialogues of runs: sheets out, ratings back in.", no_args_is_help=True)


@app.command()
def sample(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, on the same cards.")],
    out: Annotated[Path, typer.Option(help="New folder: annotation/sheets goes to the raters, the rest stays here.")],
    cards: Annotated[int, typer.Option(min=1, help="Cards, the same for every run; one dialogue each.")] = 10,
    raters: Annotated[str, typer.Option(help="How many raters, or their names: 3 or ann,bob,cy.")] = "2",
    per_item: Annotated[int, typer.Option(min=1, help="Raters of each dialogue.")] = 2,
    rubric: Annotated[str, typer.Option(help="A name or a .yaml file.")] = "esc_eval",
    language: Annotated[str, typer.Option(help="Language of instructions and anchors: en or zh.")] = "en",
    format: Annotated[str, typer.Option(help="xlsx, csv or label-studio.")] = "xlsx",
    seed: Annotated[int, typer.Option(help="Another seed, other cards and another order.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write blinded rating sheets of the same cards for every run, and the key that brings the ratings back.

    Example: esckit study sample runs/base runs/tuned --cards 20 --raters ann,bob --out runs/study
    """
    from data_prep.errors import UserError
    from data_prep.rating_keys import make_key
    from data_prep.rating_plans import assign, rater_names
    from data_prep.rating_sheets import names_in_text, with_texts, write_export
    from data_prep.records import write_records
    from data_prep.rubric import load_rubric
    from eval.runs import load_run
    from eval.study import sample_dialogues, study_files

    if language not in ("en", "zh"):
        raise UserError(f"--language is {language!r}; known: en, zh")
    if format not in ("xlsx", "csv", "label-studio"):
        raise UserError(f"--format is {format!r}; known: xlsx, csv, label-studio")
    chosen = load_rubric(rubric)
    loaded = [load_run(run) for run in runs]
    names = sorted({one.supporter for run in loaded for one in run.transcripts()})
    dialogues = sample_dialogues(loaded, cards, seed)
    file, folder = study_files(out)
    plan = assign([one.id for one in dialogues], rater_names(raters), per_item, 1.0, seed)
    key = with_texts(make_key(dialogues, plan, chosen, seed), dialogues)
    written = write_export(folder, dialogues, key, chosen, language, format)  # type: ignore[arg-type]
    write_records(file, dialogues)
    with_names = [one.model_copy(update={"meta": {"supporter": name}}) for one in dialogues for name in names]
    told = names_in_text(with_names)
    sheets = [str(path) for path in written if path.parent.name == "sheets"]
    if as_json:
        content = {"out": str(out), "dialogues": len(dialogues), "sheets": sheets, "names_in_text": told}
        typer.echo(json.dumps(content, ensure_ascii=False, indent=2))
        return
    typer.echo(f"{out}: {len(dialogues)} dialogues, {cards} cards × {len(loaded)} runs, rubric {chosen.name}")
    for path in sheets:
        typer.echo(path)
    typer.echo(f"send {folder / 'sheets'}; keep {folder / 'key.json'}. When the sheets are back:")
    typer.echo(f"  esckit ratings import SHEETS… --key {folder / 'key.json'} --out ratings.jsonl")
    typer.echo("  esckit study attach RUNS… --ratings ratings.jsonl")
    if told:
        typer.echo(f"note: {told} times a supporter's name stands in a dialogue; blinding cannot hide that")


@app.command()
def attach(
    runs: Annotated[list[Path], typer.Argument(help="The run folders of the study.")],
    ratings: Annotated[list[Path], typer.Option(help="Ratings (JSONL) of `esckit ratings import`; may be repeated.")],
    name: Annotated[str, typer.Option(help="What reports call these raters.")] = "people",
    rubric: Annotated[str, typer.Option(help="The study's rubric.")] = "esc_eval",
) -> None:
    """Attach people's ratings to the runs: reports then show how far the judge agrees with them.

    Example: esckit study attach runs/base runs/tuned --ratings ratings.jsonl
    """
    from data_prep.errors import UserError
    from data_prep.ratings import read_rating_files
    from data_prep.rubric import load_rubric
    from eval.judge import score_run
    from eval.rated import RatingsJudge
    from eval.runs import append_to_run
    from eval.study import ratings_of

    chosen = load_rubric(rubric)
    found = read_rating_files(ratings, chosen)
    placed = 0
    for folder in runs:
        with append_to_run(folder) as run:
            own = ratings_of(run, found)
            judge = RatingsJudge(name, chosen, own, study=found)
            rated = judge.rated(run.transcripts())
            if not own or not rated:
                typer.echo(f"{folder}: none of the ratings is of this run")
                continue
            placed += len(own)
            score_run(run, judge)
            typer.echo(f"{folder}: ratings of {rated} dialogues attached as {name}")
    if placed < len(found):
        typer.echo(f"{len(found) - placed} of {len(found)} ratings are of none of these runs")
    if not placed:
        raise UserError("no rating is of any of these runs; give the runs of `study sample`, by their folder names")
    if placed < len(found):
        raise typer.Exit(1)
