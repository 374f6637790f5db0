"""`esckit cards …`: from dialogues and posts to reviewed role cards."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from data_prep.cli import SHOWN, JsonFlag, print_json, print_table, refuse_overwriting
from data_prep.errors import UserError
from data_prep.records import Dialogue, Record, read_records, write_records

if TYPE_CHECKING:
    from data_prep.card_llm import Answers, Asking

app = typer.Typer(
    name="cards",
    help="Role cards: extract from dialogues, filter, review by people, categorize, dedupe, count.",
    no_args_is_help=True,
)
review_app = typer.Typer(name="review", help="Role cards to a spreadsheet and back.", no_args_is_help=True)
app.add_typer(review_app, name="review")

CardFiles = Annotated[list[Path], typer.Argument(help="Role cards: our JSON Lines or the official JSON.")]
Out = Annotated[Path, typer.Option(help="JSON Lines file to write.")]
Url = Annotated[str | None, typer.Option("--endpoint", help="OpenAI-compatible server, e.g. http://localhost:8000/v1.")]
Model = Annotated[str | None, typer.Option("--model", help="Model as the server names it.")]
KeyVariable = Annotated[str, typer.Option(help="Environment variable that holds the key, if one is needed.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests at a time.")]
Timeout = Annotated[float, typer.Option(help="Seconds for one request, from its start.")]
Attempts = Annotated[int, typer.Option(min=1, help="Calls for one question when the server fails.")]
Temperature = Annotated[float, typer.Option(min=0, help="Sampling temperature.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest reply, thinking included.")]
Seed = Annotated[int | None, typer.Option(help="Seed sent with every request.")]
Cache = Annotated[Path | None, typer.Option(help="File of all replies so far. [default: OUT.cache.jsonl]")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N records.")]
PromptFile = Annotated[str | None, typer.Option("--prompt", help="A prompt file of your own (.yaml).")]
TaxonomyFile = Annotated[Path | None, typer.Option(help="Your own taxonomy, a YAML file like the shipped one.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a sheet that exists.")]


def tell(remark: str) -> None:
    typer.echo(remark, err=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left on a terminal; elsewhere a line for every tenth of the work."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False)
    start = time.monotonic()
    if not console.is_terminal:

        def line(done: int, total: int) -> None:
            if done * 10 // total > (done - 1) * 10 // total:
                left = (time.monotonic() - start) / done * (total - done)
                tell(f"{what}: {done} of {total}, about {left:.0f} s left")

        yield line
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def asking(
    url: str | None,
    model: str | None,
    out: Path,
    cache: Path | None,
    show: Callable[[int, int], None],
    endpoint: dict[str, Any],
    sampling: dict[str, Any],
) -> "Asking":
    """How this run asks. Raises UserError when the server or the model is not named."""
    from data_prep.card_llm import Asking
    from data_prep.endpoint_terms import Endpoint, Sampling

    if url is None or model is None:
        missing = "--endpoint" if url is None else "--model"
        raise UserError(f"{missing} is missing; for example --endpoint http://localhost:8000/v1 --model qwen3-14b")
    return Asking(
        endpoint=Endpoint(url=url, model=model, **endpoint),
        cache=cache or out.with_name(f"{out.name}.cache.jsonl"),
        sampling=Sampling(**sampling),
        say=tell,
        progress=show,
    )


def tell_missing(answers: "Answers[Any]") -> None:
    """The items that have no answer, each with the reason, on stderr; of a run that was stopped one line."""
    if answers.stopped is not None:
        tell(
            f"stopped: {answers.stopped} ({len(answers.missing)} without an answer, {len(answers.found)} kept); "
            "run the same command again to go on"
        )
        return
    for item, reason in list(answers.missing.items())[:SHOWN]:
        tell(f"no answer for {item!r}: {reason}")
    if len(answers.missing) > SHOWN:
        tell(f"… and {len(answers.missing) - SHOWN} more without an answer; --json lists all")
    if answers.missing:
        tell("run the same command again to ask for these only")


def show_report(title: str, report: dict[str, Any], as_json: bool, **more: Any) -> None:
    """The figures as a table, or all of it as JSON."""
    if as_json:
        print_json({**report, **more})
        return
    rows: list[tuple[str, Any]] = []
    for name, value in report.items():
        if isinstance(value, dict):
            rows += [(f"{name.replace('_', ' ')}: {key}", count) for key, count in value.items()]
        elif not isinstance(value, list):
            rows.append((name.replace("_", " "), value))
    print_table(title, ("what", "count"), rows)


def write_or_tell(out: Path, records: list[Any]) -> None:
    if records:
        write_records(out, records)
    else:
        tell(f"no card is left, {out} was not written")


def outputs_differ(inputs: list[Path], *outputs: Path | None) -> None:
    given = [path.resolve() for path in outputs if path is not None]
    if len(set(given)) < len(given):
        raise UserError(f"{given[0]}: is named for two outputs; they must differ")
    for path in inputs:
        refuse_overwriting(path, outputs)


@app.command(
    epilog="Example: esckit cards extract esconv.jsonl --out cards.jsonl "
    "--endpoint http://localhost:8000/v1 --model qwen3-14b"
)
def extract(
    files: Annotated[list[Path], typer.Argument(help="JSON Lines files of dialogues or posts.")],
    out: Out,
    url: Url = None,
    model: Model = None,
    key_variable: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 8,
    timeout: Timeout = 120,
    attempts: Attempts = 5,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 2048,
    seed: Seed = None,
    cache: Cache = None,
    limit: Limit = None,
    prompt: PromptFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Turn every dialogue or post into a role card, with a model. Can be stopped and run again at any time."""
    from data_prep.card_extract import extract as extract_cards

    outputs_differ(files, out)
    dialogues = [dialogue for file in files for dialogue in read_records(file, Dialogue)][:limit]
    server = {"key_variable": key_variable, "concurrency": concurrency, "timeout": timeout, "attempts": attempts}
    drawn = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    with progress("extract") as show:
        how = asking(url, model, out, cache, show, server, drawn)
        found = extract_cards(dialogues, how, prompt or "card_extract")
    write_or_tell(out, found.cards)
    tell_missing(found.answers)
    report = {"dialogues": len(dialogues), **found.report()}
    show_report(f"extracted to {out}", report, as_json, missing_items=found.answers.missing, out=str(out))
    if found.answers.missing or not found.cards:
        raise typer.Exit(1)


class Dropped(Record):
    """One card that was filtered out, for people to check."""

    id: str
    by: str
    reason: str


@app.command(
    name="filter",
    epilog="Example: esckit cards filter cards.jsonl --out kept.jsonl --dropped dropped.jsonl "
    "--endpoint http://localhost:8000/v1 --model qwen3-14b",
)
def filter_cards(
    files: CardFiles,
    out: Out,
    dropped: Annotated[Path | None, typer.Option(help="JSON Lines file of what was dropped, and why.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Switch off a rule by name; repeatable.")] = None,
    url: Url = None,
    model: Model = None,
    key_variable: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 8,
    timeout: Timeout = 120,
    attempts: Attempts = 5,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 2048,
    seed: Seed = None,
    cache: Cache = None,
    limit: Limit = None,
    prompt: PromptFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Drop cards that break a rule, then those a model would not keep. Without --endpoint: the rules alone."""
    from data_prep.card_rules import apply_rules
    from data_prep.card_verdict import judge_cards
    from data_prep.cards import read_card_files

    outputs_differ(files, out, dropped)
    cards = read_card_files(files)[:limit]
    ruling = apply_rules(cards, without or ())
    report: dict[str, Any] = {"cards": len(cards), **ruling.report()}
    rows = [Dropped(id=name, by="rules", reason=", ".join(rules)) for name, rules in ruling.broken.items()]
    kept, missing = ruling.kept, {}
    if url is None and model is None:
        tell("no --endpoint: filtered by the rules alone")
    else:
        server = {"key_variable": key_variable, "concurrency": concurrency, "timeout": timeout, "attempts": attempts}
        drawn = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        with progress("filter") as show:
            how = asking(url, model, out, cache, show, server, drawn)
            judged = judge_cards(ruling.kept, how, prompt or "card_verdict")
        tell_missing(judged.answers)
        kept, missing = judged.kept, judged.answers.missing
        rows += [Dropped(id=name, by="model", reason=reason) for name, reason in judged.dropped.items()]
        report |= judged.report()
    write_or_tell(out, kept)
    if dropped is not None:
        write_records(dropped, rows)
    show_report(f"filtered to {out}", report, as_json, missing_items=missing, out=str(out))
    if missing or not kept:
        raise typer.Exit(1)


@app.command(
    epilog="Example: esckit cards categorize kept.jsonl --out sorted.jsonl "
    "--endpoint http://localhost:8000/v1 --model qwen3-14b"
)
def categorize(
    files: CardFiles,
    out: Out,
    taxonomy: TaxonomyFile = None,
    again: Annotated[bool, typer.Option("--again", help="Also cards that have a full category.")] = False,
    url: Url = None,
    model: Model = None,
    key_variable: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 8,
    timeout: Timeout = 120,
    attempts: Attempts = 5,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 2048,
    seed: Seed = None,
    cache: Cache = None,
    limit: Limit = None,
    prompt: PromptFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Give every card a class of the taxonomy, chosen by a model. Cards without an answer stay as they were."""
    from data_prep.card_taxonomy import categorize as categorize_cards
    from data_prep.card_taxonomy import load_taxonomy
    from data_prep.cards import read_card_files

    outputs_differ(files, out)
    cards = read_card_files(files)[:limit]
    server = {"key_variable": key_variable, "concurrency": concurrency, "timeout": timeout, "attempts": attempts}
    drawn = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    with progress("categorize") as show:
        how = asking(url, model, out, cache, show, server, drawn)
        found = categorize_cards(cards, load_taxonomy(taxonomy), how, again, prompt or "card_category")
    write_or_tell(out, found.cards)
    tell_missing(found.answers)
    show_report(f"categorized to {out}", found.report(), as_json, missing_items=found.answers.missing, out=str(out))
    if found.answers.missing:
        raise typer.Exit(1)


@review_app.command(name="export", epilog="Example: esckit cards review export sorted.jsonl --out review.xlsx")
def review_export(
    files: CardFiles,
    out: Annotated[Path, typer.Option(help="Sheet to write, .xlsx or .csv.")],
    taxonomy: TaxonomyFile = None,
    overwrite: Overwrite = False,
    limit: Limit = None,
) -> None:
    """Write the cards as a sheet in which people say what to keep, fix what is wrong, and give quality and category."""
    from data_prep.card_review import export_review
    from data_prep.card_taxonomy import load_taxonomy
    from data_prep.cards import read_card_files

    if out.exists() and not overwrite:
        raise UserError(f"{out}: exists and may hold somebody's work; choose another --out or add --overwrite")
    cards = read_card_files(files)[:limit]
    export_review(out, cards, load_taxonomy(taxonomy))
    typer.echo(f"{out}: {len(cards)} cards, one a row")


@review_app.command(
    name="import",
    epilog="Example: esckit cards review import sorted.jsonl --sheet review.xlsx --out reviewed.jsonl",
)
def review_import(
    files: CardFiles,
    sheet: Annotated[list[Path], typer.Option(help="A sheet that was filled in; repeatable.")],
    out: Out,
    taxonomy: TaxonomyFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Apply filled sheets: keep, fix, grade. Faulty rows are listed and change nothing; the others count."""
    from data_prep.card_review import import_review
    from data_prep.card_taxonomy import load_taxonomy
    from data_prep.cards import read_card_files

    outputs_differ([*files, *sheet], out)
    review = import_review(read_card_files(files), sheet, load_taxonomy(taxonomy))
    write_or_tell(out, review.kept)
    for fault in review.faults[:SHOWN]:
        tell(fault)
    if len(review.faults) > SHOWN:
        tell(f"… and {len(review.faults) - SHOWN} more faults; --json lists all")
    show_report(f"reviewed to {out}", review.report(), as_json, unreviewed_ids=review.unreviewed, out=str(out))
    if review.faults or review.unreviewed or not review.kept:
        raise typer.Exit(1)


@app.command(epilog="Example: esckit cards dedupe esconv_cards.jsonl extes_cards.jsonl --out unique.jsonl")
def dedupe(
    files: CardFiles,
    out: Out,
    threshold: Annotated[float, typer.Option(help="Jaccard similarity of word pairs from which two are one.")] = 0.6,
    as_json: JsonFlag = False,
) -> None:
    """Keep one of the cards that say almost the same, across sources: the best graded, then the fullest."""
    from data_prep.card_dedupe import dedupe as dedupe_cards
    from data_prep.cards import read_card_files

    outputs_differ(files, out)
    cards = read_card_files(files)
    found = dedupe_cards(cards, threshold)
    write_or_tell(out, found.kept)
    show_report(f"unique cards to {out}", {"cards": len(cards), **found.report()}, as_json, out=str(out))


@app.command(epilog="Example: esckit cards stats reviewed.jsonl --extracted cards.jsonl --filtered kept.jsonl")
def stats(
    files: CardFiles,
    extracted: Annotated[list[Path] | None, typer.Option(help="Cards as extracted; repeatable.")] = None,
    filtered: Annotated[list[Path] | None, typer.Option(help="Cards after the model's filter; repeatable.")] = None,
    taxonomy: TaxonomyFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Count cards by source, category and missing fields. With --extracted or --filtered also the funnel, in which
    the given cards are those after people's review, beside the published one."""
    from data_prep.card_stats import PUBLISHED, STAGES, contents, funnel
    from data_prep.card_taxonomy import load_taxonomy
    from data_prep.cards import read_card_file

    # Not one set: the official English and Chinese files may use the same ids.
    read = [[c for f in group for c in read_card_file(f)] if group else None for group in (extracted, filtered, files)]
    report = contents(read[2] or [], load_taxonomy(taxonomy))
    if extracted or filtered:
        report["funnel"] = funnel(dict(zip(STAGES[:3], read, strict=True)))
        report["published_funnel"] = PUBLISHED
    if as_json:
        print_json(report)
        return
    tables = {name: report.pop(name) for name in ("funnel", "published_funnel") if name in report}
    if tables:
        rows = [
            (title, language, *("not given" if row[stage] is None else row[stage] for stage in STAGES))
            for title, table in (("these cards", tables["funnel"]), ("ESC-Eval", tables["published_funnel"]))
            for language, row in table.items()
        ]
        print_table("funnel", ("", "language", *(stage.replace("_", " ") for stage in STAGES)), rows)
    show_report(", ".join(map(str, files)), report, False)
