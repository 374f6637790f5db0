"""`esckit data …`: convert the datasets of the field, split them by group, and see what two sets share."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from data_prep.cli_build import app as build_app
from data_prep.cli_clean import clean
from data_prep.cli_export import export, fetch
from data_prep.errors import UserError
from data_prep.records import (
    Dialogue,
    Language,
    Rating,
    Replacing,
    RoleCard,
    dump_line,
    first_json_line,
    read_records,
    read_text,
    write_records,
)

if TYPE_CHECKING:
    from data_prep.sources.base import Conversion, Made, Makes

app = typer.Typer(
    name="data",
    help="Datasets in and out: what can be read, converting, splitting by group, leaks between two sets.",
    no_args_is_help=True,
)
app.add_typer(build_app, name="build")
app.command(epilog="Example: esckit data export sharegpt esconv.jsonl --out esconv-sharegpt.jsonl")(export)
app.command(epilog="Example: esckit data fetch esconv --out data/esconv")(fetch)
app.command(epilog="Example: esckit data clean esconv.jsonl --out clean.jsonl --with mask")(clean)
SHOWN = 20

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=2))


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table of plain values: nothing in them is read as markup."""
    console = Console(markup=False, emoji=False, highlight=False)
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console.print(table)


def refuse_overwriting(source: Path, targets: Iterable[Path | None]) -> None:
    """Raises UserError when an output is the file that is read: nobody means to lose their input."""
    for target in targets:
        if target is not None and target.resolve() == source.resolve():
            raise UserError(f"{target}: would overwrite the file that is read; choose another --out")
        if target is not None and source.is_dir() and target.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"{target}: lies in the folder that is read and would be read the next time; choose an --out elsewhere"
            )


def refuse_other_parts(folder: Path, parts: Iterable[str], read: Iterable[Path]) -> None:
    """Raises UserError when a folder holds parts that this split does not make: they would be taken for its own.

    The files that are `read` may lie there too.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; --out names a folder")
    known = {(folder / f"{name}.jsonl").resolve() for name in parts} | {path.resolve() for path in read}
    others = sorted(path.name for path in folder.glob("*.jsonl") if path.resolve() not in known)
    if others:
        raise UserError(f"{folder}: holds {', '.join(others)}, which this split does not make; choose another --out")


@app.command(epilog="Example: esckit data sources")
def sources(as_json: JsonFlag = False) -> None:
    """List the datasets that can be converted: language, licence, where to get them, what the files are called."""
    from data_prep.sources import SOURCES
    from data_prep.sources.csv_table import COLUMN_FIELDS

    if as_json:
        names = ("name", "title", "makes", "languages", "licence", "agreement", "origin", "hub_id", "files")
        print_json([{name: getattr(source, name) for name in names} for source in SOURCES.values()])
        return
    for source in SOURCES.values():
        typer.echo(f"{source.name}: {source.title}")
        typer.echo(f"  makes {source.makes} in {', '.join(source.languages)}; licence: {source.licence}")
        typer.echo(f"  from {source.origin}" + (f"; hub dataset {source.hub_id}" if source.hub_id else ""))
        if source.agreement:
            typer.echo(f"  {source.agreement}")
        typer.echo(f"  files: {', '.join(source.files)}")
        wanted = [f"--{name}" for name in source.asks]
        wanted += [f"[{'--column' if name == 'columns' else '--seeker'}]" for name in source.takes]
        if wanted:
            typer.echo(f"  options: {' '.join(wanted)}")
        if "columns" in source.takes:
            typer.echo(f"  --column FIELD=NAME: {COLUMN_FIELDS}")


def write_converted(
    made: "Iterator[Made]", makes: "Makes", out: Path, ratings_out: Path | None, by_source: Counter[str] | None = None
) -> bool:
    """Writes records as they come; both files appear together at the end, or neither does.

    Counts dialogues and cards by their source. Returns whether there was anything to write: without a record no file
    is made or replaced.
    """
    first = next(made, None)
    if first is None:
        return False
    with ExitStack() as files:
        main = files.enter_context(Replacing(out))
        beside = files.enter_context(Replacing(ratings_out)) if ratings_out is not None else None
        for _, records in chain([first], made):
            for record in records:
                if by_source is not None and isinstance(record, Dialogue | RoleCard):
                    by_source[record.source] += 1
                if makes == "ratings" or not isinstance(record, Rating):
                    main.write(dump_line(record))
                elif beside is not None:
                    beside.write(dump_line(record))
    return True


def print_conversion(
    title: str, conversion: "Conversion", makes: "Makes", with_ratings: bool, by_source: Counter[str]
) -> None:
    """The report as a table: one row a count."""
    report = conversion.report()
    rows: list[tuple[str, str, int]] = [("read", "records", report["records_read"])]
    if makes == "dialogues":
        rows.append(("read", "turns", report["turns_read"]))
    rows.append(("written", makes, report[makes]))
    if len(by_source) > 1 and makes == "dialogues":
        # A folder may hold more than one thing: ESConv's failed dialogues lie beside the good ones.
        rows += [("of these", f"of source {name}", count) for name, count in sorted(by_source.items())]
    if makes == "dialogues":
        rows += [("written", f"{side} turns", count) for side, count in report["turns_written"].items()]
    if with_ratings:
        rows.append(("written", "ratings", report["ratings"]))
    elif makes != "ratings" and report["ratings"]:
        rows.append(("left out", "ratings (--ratings-out FILE writes them)", report["ratings"]))
    for kind in ("repairs", "noted", "missing"):
        rows += [(kind, cause, count) for cause, count in report[kind].items()]
    rows += [("refused", cause, count) for cause, count in report["refused_by_kind"].items()]
    rows.append(("refused", "records", len(conversion.refused)))
    if conversion.skipped:
        rows.append(("skipped", "files of another kind", len(conversion.skipped)))
    print_table(title, ("", "what", "count"), rows)


@app.command(epilog="Example: esckit data convert esconv train.txt --out esconv.jsonl --ratings-out survey.jsonl")
def convert(
    source: Annotated[str, typer.Argument(help="Name of the source, see: esckit data sources")],
    path: Annotated[Path, typer.Argument(help="File (or folder) of that source.")],
    out: Annotated[Path, typer.Option(help="JSON Lines file of the records to write.")],
    ratings_out: Annotated[Path | None, typer.Option(help="JSON Lines file for the source's ratings.")] = None,
    language: Annotated[Language | None, typer.Option(help="Language of files that do not say it.")] = None,
    rater: Annotated[str | None, typer.Option(help="Name of the rater, for score files that do not say it.")] = None,
    seeker: Annotated[
        str | None, typer.Option(help="Name or role of the seeker, in layouts where speakers have any name.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="Which column of a table holds what; repeat for each FIELD: id, speaker, text, strategy (one row a "
            "turn) or id, seeker, supporter, strategy (one row a pair). E.g. text=utterance.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Convert a dataset's files to the toolkit's records, with a report of every repair.

    Records that cannot be converted are listed with file and record, the others are written; the exit code is then 1.
    """
    from data_prep.sources import Conversion, Options, get_source
    from data_prep.sources.detect import hint

    chosen = get_source(source)
    if ratings_out is not None and (chosen.rubric is None or chosen.makes == "ratings"):
        raise UserError(f"source {source} has no ratings beside its {chosen.makes}; leave --ratings-out out")
    refuse_overwriting(path, (out, ratings_out))
    if ratings_out is not None and ratings_out.resolve() == out.resolve():
        raise UserError(f"{out}: is both --out and --ratings-out; they must differ")
    conversion, by_source = Conversion(), Counter[str]()
    options = Options(language, rater, seeker, parse_columns(column or []))
    try:
        made = chosen.records(path, conversion, options)
        wrote = write_converted(made, chosen.makes, out, ratings_out, by_source)
    except UserError as error:
        raise UserError(f"{error}{hint(path, source)}") from None
    if as_json:
        place = str(out) if wrote else None
        left_out = conversion.written["ratings"] if chosen.makes != "ratings" and ratings_out is None else 0
        counts = {**conversion.report(), "by_source": dict(sorted(by_source.items())), "ratings_left_out": left_out}
        print_json({"source": source, "path": str(path), "out": place, **counts})
    else:
        print_conversion(f"{source}: {path}", conversion, chosen.makes, ratings_out is not None, by_source)
    for refusal in conversion.refused[:SHOWN]:
        typer.echo(f"refused {refusal}", err=True)
    if len(conversion.refused) > SHOWN:
        typer.echo(f"… and {len(conversion.refused) - SHOWN} more refused records; --json lists all", err=True)
    if not wrote:
        told = hint(path, source).removeprefix("; ")
        told = told or f"its files are {', '.join(chosen.files)}; the others are listed by: esckit data sources"
        typer.echo(f"nothing could be converted, {out} was not written; is {source} the right source? {told}", err=True)
    if conversion.refused:
        raise typer.Exit(1)


def parse_columns(items: Iterable[str]) -> dict[str, str]:
    """`text=utterance` and the like as a mapping. Raises UserError for anything else."""
    columns: dict[str, str] = {}
    for item in items:
        field, equals, name = (part.strip() for part in item.partition("="))
        if not equals or not field or not name:
            raise UserError(f"--column: {item!r} is not FIELD=COLUMN; for example --column text=utterance")
        if field in columns:
            raise UserError(f"--column: {field!r} is given twice")
        columns[field] = name
    return columns


def parse_fractions(text: str, option: str = "--fractions") -> dict[str, float]:
    """`train=0.8,test=0.2` as a mapping. Raises UserError for anything else."""
    fractions: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = (part.strip() for part in item.partition("="))
        try:
            fraction = float(number)
        except ValueError:
            fraction = -1.0
        # The names become file names.
        if not equals or not name.replace("-", "").replace("_", "").isalnum() or fraction < 0:
            raise UserError(f"{option}: {item.strip()!r} is not name=number; for example train=0.8,valid=0.1,test=0.1")
        if name in fractions:
            raise UserError(f"{option}: {name!r} occurs twice")
        fractions[name] = fraction
    return fractions


NearOption = Annotated[
    float, typer.Option(help="Similarity, 0.5 to 1, from which texts count as the same; 0 for equal texts only.")
]


def parse_names(text: str, required_by: str | None = None) -> tuple[str, ...]:
    """Names separated by commas. Raises UserError when there is none and an option requires one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if required_by and not names:
        raise UserError(f"{required_by} names nothing; for example card,situation")
    return names


def parse_near(similarity: float) -> float | None:
    return similarity if similarity else None


@app.command(epilog="Example: esckit data split esconv.jsonl --out splits --fractions train=0.8,valid=0.1,test=0.1")
def split(
    files: Annotated[list[Path], typer.Argument(help="JSON Lines files of dialogues, split as one set.")],
    out: Annotated[Path, typer.Option(help="Folder for one JSON Lines file a part.")],
    fractions: Annotated[str, typer.Option(help="Parts and their shares, summing to 1.")] = (
        "train=0.8,valid=0.1,test=0.1"
    ),
    seed: Annotated[int, typer.Option(help="Another seed gives another split.")] = 0,
    group_by: Annotated[
        str,
        typer.Option(
            help="What keeps dialogues together: card, situation, opening, text, language, source, meta.NAME, "
            "card.NAME; several with commas."
        ),
    ] = "card,situation,opening,text",
    stratify: Annotated[
        str, typer.Option(help="Values every part gets its share of, for example language,meta.problem_type.")
    ] = "",
    near: NearOption = 0.8,
    as_json: JsonFlag = False,
) -> None:
    """Split dialogues so that no two parts share a card, a situation, an opening or a whole dialogue."""
    from data_prep.splits import split_by_group

    wanted = parse_fractions(fractions)
    for file in files:
        refuse_overwriting(file, (out / f"{name}.jsonl" for name in wanted))
    refuse_other_parts(out, wanted, files)
    dialogues = [dialogue for file in files for dialogue in read_records(file, Dialogue)]
    parts = split_by_group(
        dialogues, wanted, seed, parse_names(group_by, "--group-by"), parse_names(stratify), parse_near(near)
    )
    rows = []
    for name, part in parts.items():
        target = out / f"{name}.jsonl"
        write_records(target, part)
        rows.append({"part": name, "dialogues": len(part), "share": len(part) / len(dialogues), "file": str(target)})
    if as_json:
        choices = {"group_by": parse_names(group_by), "stratify": parse_names(stratify), "near": parse_near(near)}
        print_json({"seed": seed, **choices, "parts": rows})
    else:
        shown = [(row["part"], row["dialogues"], f"{row['share']:.3f}", row["file"]) for row in rows]
        print_table(f"{', '.join(map(str, files))}, seed {seed}", ("part", "dialogues", "share", "file"), shown)


def read_dialogues_or_cards(path: Path) -> list[Dialogue] | list[RoleCard]:
    """A JSONL file of either kind, the first record tells which; or an official card file, which is a JSON list."""
    if read_text(path).lstrip()[:1] == "[":
        from data_prep.official import read_cards
        from data_prep.sources.detect import layout_of, not_ours

        if layout_of(path) not in (None, "esceval-cards") and (told := not_ours(path, "Dialogue")):
            raise UserError(told)
        return read_cards(path)
    first = first_json_line(path)
    if isinstance(first, dict) and "turns" not in first and {"problem", "text"} & set(first):
        return read_records(path, RoleCard)
    return read_records(path, Dialogue)


@app.command(epilog="Example: esckit data leaks splits/train.jsonl splits/test.jsonl")
def leaks(
    a: Annotated[Path, typer.Argument(help="JSON Lines file of dialogues or role cards.")],
    b: Annotated[Path, typer.Argument(help="The other one.")],
    near: NearOption = 0.8,
    as_json: JsonFlag = False,
) -> None:
    """Count what two sets share: cards, situations, openings, dialogues, also nearly; --json lists the ids.

    Either file may hold dialogues or role cards, the official card files too.
    """
    from data_prep.leaks import ABOUT, explain_cards, leak_report

    first, second = read_dialogues_or_cards(a), read_dialogues_or_cards(b)
    report = leak_report(first, second, parse_near(near))
    sentences = explain_cards(report, first, second)
    if as_json:
        content = {"a": str(a), "b": str(b), "records_a": len(first), "records_b": len(second)}
        content |= {"near": parse_near(near), "cards": sentences}
        print_json({**content, "leaks": [leak.model_dump(mode="json") for leak in report]})
        return
    typer.echo(f"A: {a} ({len(first):,} records)\nB: {b} ({len(second):,} records)")
    columns = ("kind", "shared", "records of A", "records of B", "what it is")
    rows = [(leak.kind, leak.shared, len(leak.ids_a), len(leak.ids_b), ABOUT[leak.kind]) for leak in report]
    print_table("shared", columns, rows)
    for sentence in sentences:
        typer.echo(sentence)
