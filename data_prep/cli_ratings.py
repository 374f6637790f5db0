"""`esckit ratings …`: rating sheets out, ratings in, several raters as one, and whether they agree."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.cli import JsonFlag, print_json, print_table, refuse_overwriting
from data_prep.errors import UserError
from data_prep.records import Dialogue, Language, Rating, read_records, write_records

app = typer.Typer(
    name="ratings",
    help="People's ratings: sheets out, ratings in, several raters as one, agreement.",
    no_args_is_help=True,
)
SHOWN = 40

RubricName = Annotated[str, typer.Option("--rubric", help="Rubric by name, or the path of your own .yaml file.")]
RatingFiles = Annotated[list[Path], typer.Argument(help="JSON Lines files of ratings, as `import` writes them.")]
Dialogues = Annotated[list[Path], typer.Argument(help="JSON Lines files of dialogues.")]
Raters = Annotated[str, typer.Option(help="How many raters, or their names: 3 or ann,bob,cy.")]
PerItem = Annotated[int, typer.Option(min=1, help="Raters for a dialogue that is rated by several.")]
Overlap = Annotated[float, typer.Option(min=0, max=1, help="Share of dialogues rated by several; the rest by one.")]
Seed = Annotated[int, typer.Option(help="Another seed, another plan and order.")]


class SheetFormat(StrEnum):
    xlsx = "xlsx"
    csv = "csv"
    label_studio = "label-studio"


class Method(StrEnum):
    mean = "mean"
    median = "median"
    majority = "majority"
    adjudicated = "adjudicated"
    distribution = "distribution"


def read_all_dialogues(files: Sequence[Path]) -> list[Dialogue]:
    """The dialogues of all files. Raises UserError when an id occurs in two of them."""
    seen: dict[str, Path] = {}
    dialogues = []
    for file in files:
        for dialogue in read_records(file, Dialogue):
            if dialogue.id in seen:
                raise UserError(f"{file}: dialogue id {dialogue.id!r} is already used in {seen[dialogue.id]}")
            seen[dialogue.id] = file
            dialogues.append(dialogue)
    return dialogues


@app.command(
    "assign",
    epilog="Example: esckit ratings assign dialogues.jsonl --raters 4 --per-item 2 --overlap 0.5 --out plan.json",
)
def assign_command(
    files: Dialogues,
    out: Annotated[Path, typer.Option(help="File for the plan, to be given to: esckit ratings export --plan.")],
    raters: Raters = "2",
    per_item: PerItem = 2,
    overlap: Overlap = 1.0,
    seed: Seed = 0,
    as_json: JsonFlag = False,
) -> None:
    """Plan who rates which dialogue: equal loads, every pair of raters meets, each rater's own order."""
    from data_prep.rating_keys import RatingPlan, write_json_record
    from data_prep.rating_plans import assign, rater_names

    for file in files:
        refuse_overwriting(file, (out,))
    ids = [dialogue.id for dialogue in read_all_dialogues(files)]
    found = assign(ids, rater_names(raters), per_item, overlap, seed)
    plan = RatingPlan(
        seed=seed, per_item=per_item, overlap=overlap, raters={rater: tuple(own) for rater, own in found.items()}
    )
    write_json_record(out, plan)
    loads = {rater: len(own) for rater, own in plan.raters.items()}
    if as_json:
        print_json({"out": str(out), "dialogues": len(ids), "ratings": sum(loads.values()), "loads": loads})
    else:
        print_table(f"{out}: {len(ids)} dialogues, seed {seed}", ("rater", "dialogues"), loads.items())


@app.command(
    "export", epilog="Example: esckit ratings export dialogues.jsonl --raters ann,bob,cy --per-item 2 --out annotation"
)
def export_command(
    files: Dialogues,
    out: Annotated[Path, typer.Option(help="New folder: sheets/ goes to the raters, key.json stays with you.")],
    rubric: RubricName = "esc_eval",
    raters: Raters = "2",
    per_item: PerItem = 2,
    overlap: Overlap = 1.0,
    seed: Seed = 0,
    plan: Annotated[Path | None, typer.Option(help="Plan of `assign`, instead of --raters and its kin.")] = None,
    format: Annotated[SheetFormat, typer.Option(help="One sheet (or task file) a rater.")] = SheetFormat.xlsx,
    language: Annotated[Language, typer.Option(help="Language of instructions, columns and anchors.")] = "en",
    only: Annotated[Language | None, typer.Option(help="Only the dialogues in this language.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write blinded, shuffled rating sheets or Label Studio tasks, with instructions made from the rubric."""
    from data_prep.rating_keys import make_key, read_plan
    from data_prep.rating_plans import assign, rater_names
    from data_prep.rating_sheets import names_in_text, with_texts, write_export
    from data_prep.rubric import load_rubric

    chosen = load_rubric(rubric)
    dialogues = [dialogue for dialogue in read_all_dialogues(files) if only in (None, dialogue.language)]
    if plan is not None:
        read = read_plan(plan)
        assigned: Any = read.raters
        seed = read.seed
    else:
        assigned = assign([dialogue.id for dialogue in dialogues], rater_names(raters), per_item, overlap, seed)
    key = with_texts(make_key(dialogues, assigned, chosen, seed), dialogues)
    written = write_export(out, dialogues, key, chosen, language, format.value)
    given = set(key.items.values())
    named = names_in_text([dialogue for dialogue in dialogues if dialogue.id in given])
    if as_json:
        loads = {rater: len(items) for rater, items in key.raters.items()}
        content = {
            "dialogues": len(key.items),
            "loads": loads,
            "names_in_text": named,
            "files": list(map(str, written)),
        }
        print_json({"out": str(out), **content})
        return
    rows = [(rater, len(items)) for rater, items in key.raters.items()]
    print_table(f"{out}: {len(key.items)} dialogues, rubric {chosen.name}, seed {seed}", ("rater", "dialogues"), rows)
    for file in written:
        typer.echo(str(file))
    typer.echo(f"send the files of {out / 'sheets'}; keep {out / 'key.json'}: without it nothing can be imported")
    if named:
        typer.echo(f"note: {named} dialogues name their source or model in their own text; blinding cannot hide that")


@app.command(
    "import",
    epilog="Example: esckit ratings import annotation/sheets/*.xlsx --key annotation/key.json --out ratings.jsonl",
)
def import_command(
    files: Annotated[list[Path], typer.Argument(help="CSV, XLSX, JSON Lines or Label Studio JSON; told by content.")],
    out: Annotated[Path, typer.Option(help="JSON Lines file of the ratings to write.")],
    rubric: RubricName = "esc_eval",
    key: Annotated[Path | None, typer.Option(help="key.json of the export, for blinded sheets and tasks.")] = None,
    dialogues: Annotated[list[Path] | None, typer.Option(help="Dialogues that may be rated, to check ids.")] = None,
    rater: Annotated[str | None, typer.Option(help="Whose ratings these are, where a file does not say.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Read ratings and check every cell. Faulty cells are all listed at once, the others are written; exit code 1."""
    from data_prep.rating_keys import read_key
    from data_prep.ratings import import_ratings
    from data_prep.rubric import load_rubric

    chosen = load_rubric(rubric)
    for file in (*files, *([key] if key else ())):
        refuse_overwriting(file, (out,))
    ids = {dialogue.id for dialogue in read_all_dialogues(dialogues)} if dialogues else None
    found = import_ratings(
        files,
        chosen,
        key=read_key(key, chosen) if key else None,
        dialogue_ids=ids,
        rater=rater,
        ignore=ignore or (),
    )
    values = sum(rating.value is not None for rating in found.ratings)
    if values:
        write_records(out, found.ratings)
    report: dict[str, Any] = {
        "out": str(out) if values else None,
        "cells": found.cells,
        "ratings": values,
        "missing": dict(sorted(found.missing().items())),
        "dialogues": len({rating.dialogue_id for rating in found.ratings}),
        "raters": sorted({rating.rater for rating in found.ratings}),
        "notes": found.notes,
        "faults": [{**asdict(fault.place), "message": fault.message} for fault in found.faults],
    }
    if as_json:
        print_json(report)
    else:
        rows = [(name, report[name]) for name in ("cells", "ratings", "dialogues")]
        rows.append(("raters", len(report["raters"])))
        rows += [(f"missing: {reason}", count) for reason, count in report["missing"].items()]
        rows.append(("faults", len(found.faults)))
        print_table(f"{out}: rubric {chosen.name}", ("what", "count"), rows)
        for note in found.notes:
            typer.echo(f"note: {note}")
        for fault in found.faults[:SHOWN]:
            typer.echo(f"fault: {fault}", err=True)
        if len(found.faults) > SHOWN:
            typer.echo(f"… and {len(found.faults) - SHOWN} more faults; --json lists all", err=True)
    if not values:
        typer.echo(f"no rating was found, {out} was not written", err=True)
    if found.faults or not values:
        raise typer.Exit(1)


@app.command(
    "aggregate", epilog="Example: esckit ratings aggregate ratings.jsonl --method median --out consensus.jsonl"
)
def aggregate_command(
    files: RatingFiles,
    out: Annotated[Path, typer.Option(help="JSON Lines file to write.")],
    method: Annotated[Method, typer.Option(help="How several raters become one; see the docs on ties.")],
    rubric: RubricName = "esc_eval",
    adjudicator: Annotated[str | None, typer.Option(help="The rater who decides, for --method adjudicated.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make one rating a dialogue and dimension of several raters' ratings; ties are missing, with the reason."""
    from collections import Counter

    from data_prep.aggregate import aggregate
    from data_prep.ratings import read_rating_files
    from data_prep.rubric import load_rubric

    for file in files:
        refuse_overwriting(file, (out,))
    chosen = load_rubric(rubric)
    found = aggregate(read_rating_files(files, chosen), chosen, method.value, adjudicator)
    write_records(out, found)
    missing: Counter[str] = Counter()
    for record in found:
        if isinstance(record, Rating) and record.value is None:
            missing[record.reason or ""] += 1
        elif not isinstance(record, Rating) and not record.raters:
            missing["no rater gave a value"] += 1
    content = {"out": str(out), "method": method.value, "records": len(found), "missing": dict(sorted(missing.items()))}
    if as_json:
        print_json(content)
    else:
        rows = [("records", len(found)), *((f"missing: {reason}", n) for reason, n in sorted(missing.items()))]
        print_table(f"{out}: {method.value}", ("what", "count"), rows)


@app.command("agree", epilog="Example: esckit ratings agree ratings.jsonl --dimension empathy")
def agree_command(
    files: RatingFiles,
    rubric: RubricName = "esc_eval",
    dimension: Annotated[list[str] | None, typer.Option(help="Only this dimension; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap over dialogues.")] = 0,
    resamples: Annotated[int, typer.Option(min=99, help="Bootstrap resamples.")] = 1999,
    as_json: JsonFlag = False,
) -> None:
    """How well the raters agree, per dimension: figures with 95 % intervals over dialogues, and what they mean."""
    from data_prep.agreement import FIGURES, agreement
    from data_prep.agreement_text import limits, meaning, sentences
    from data_prep.ratings import read_rating_files
    from data_prep.rubric import load_rubric

    chosen = load_rubric(rubric)
    wanted = {chosen.dimension(name).name for name in dimension or chosen.names()}
    ratings = [rating for rating in read_rating_files(files, chosen) if rating.dimension in wanted]
    if not ratings:
        raise UserError(f"{', '.join(map(str, files))}: no rating of {', '.join(sorted(wanted))}")
    found = agreement(ratings, chosen, seed=seed, resamples=resamples)
    if as_json:
        content = [asdict(one) for one in found]
        for plain, whole in zip(content, found, strict=True):
            for name, figure in whole.figures.items():
                plain["figures"][name]["meaning"] = meaning(figure)
        settings = {"rubric": chosen.name, "rubric_sha": chosen.sha, "seed": seed, "resamples": resamples}
        print_json({**settings, "confidence": 0.95, "dimensions": content})
        return
    if len(found) > 1:
        short = ("alpha", "kappa", "ac2", "icc_all", "within_one")
        overview = [(one.dimension, one.shared, *(shown(one.figures[name].value) for name in short)) for one in found]
        print_table("all dimensions", ("dimension", "shared dialogues", *short), overview)
    for one in found:
        title = (
            f"{one.dimension}: {one.shared} of {one.dialogues} dialogues rated by two or more, {one.missing} missing"
        )
        rows = [(name, limits(figure), FIGURES[name]) for name, figure in one.figures.items()]
        print_table(title, ("figure", "value (95 % interval)", "what"), rows)
        columns = ("rater", "ratings", "mean", "bias", "kappa with others")
        figures = [(r.rater, r.ratings, *(shown(v) for v in (r.mean, r.bias, r.kappa))) for r in one.raters]
        print_table("raters", columns, figures)
        for line in sentences(one):
            typer.echo(f"- {line}")
        typer.echo("")


def shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"
