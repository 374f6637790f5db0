"""`esckit evaluate`: a trained thing against held-out data."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import UserError
from eval.progress import progress_bar


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A scorer folder, or a chat model: hf:BASE+ADAPTER.")],
    on: Annotated[str, typer.Option("--on", metavar="DIALOGUES", help="Held-out dialogues (JSONL).")],
    ratings: Annotated[
        list[str] | None, typer.Option(help="Ratings of those dialogues (JSONL), for a scorer; may be repeated.")
    ] = None,
    side: Annotated[str, typer.Option(help="Whose turns a chat model is measured on: seeker or supporter.")] = "seeker",
    max_length: Annotated[int, typer.Option(help="Tokens a dialogue; older turns of longer ones are dropped.")] = 2048,
    batch_size: Annotated[int, typer.Option(help="Dialogues read at once.")] = 4,
    against: Annotated[str | None, typer.Option(help="A second chat model to compare with, such as the base.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first N dialogues.")] = None,
    by_turn: Annotated[bool, typer.Option("--by-turn", help="Also show perplexity at each turn position.")] = False,
    strategies: Annotated[
        bool, typer.Option("--strategies", help="Also how often a supporter picks the real strategy of a turn.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure a chat model's perplexity, or a scorer's agreement with raters, on held-out data.

    Example: esckit evaluate hf:smollm2-135m-instruct+runs/role --on valid.jsonl --against hf:smollm2-135m-instruct

    Example: esckit evaluate runs/rank --on valid.jsonl --ratings ratings.jsonl
    """
    if (Path(model) / "scorer_config.json").is_file():
        if not ratings:
            raise UserError("--ratings is missing: a scorer is measured against what people said of the dialogues")
        if by_turn:
            raise UserError("--by-turn is for a chat model; a scorer reads whole dialogues")
        if strategies:
            raise UserError("--strategies is for a supporter, a scorer picks none; leave it out")
        result = _scorer(model, on, ratings, batch_size, limit)
    else:
        if ratings:
            raise UserError(f"{model}: is no scorer folder (no scorer_config.json), and --ratings is for a scorer")
        if side not in ("seeker", "supporter"):
            raise UserError(f"--side {side!r}: expected seeker or supporter")
        result = _chat(model, against, on, side, max_length, batch_size, limit, by_turn, strategies)
    if as_json:
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        _show(result)


def _scorer(path: str, on: str, ratings_files: list[str], batch_size: int, limit: int | None) -> dict[str, Any]:
    from data_prep.records import Dialogue, read_records
    from eval.evaluate import scorer_agreement, verdict
    from train.rank import read_ratings
    from train.scorer import Scorer

    scorer = Scorer.load(path)
    dialogues = read_records(on, Dialogue)[:limit]
    ratings = read_ratings(ratings_files, scorer.rubric)
    found = scorer_agreement(scorer, dialogues, ratings, batch_size=batch_size)
    return {
        "scorer": scorer.identity(),
        "dialogues": len(dialogues),
        "dialogues_without_rating": sum(not _is_rated(ratings.get(one.id, {})) for one in dialogues),
        "dimensions": [{**asdict(figures), "verdict": verdict(figures)} for figures in found],
    }


def _is_rated(raters: dict[str, dict[str, float | None]]) -> bool:
    return any(value is not None for given in raters.values() for value in given.values())


def _chat(
    model: str,
    against: str | None,
    on: str,
    side: Any,
    max_length: int,
    batch_size: int,
    limit: int | None,
    with_turns: bool,
    strategies: bool,
) -> dict[str, Any]:
    from data_prep.prompt import load_prompt
    from eval.chat_models import parse_spec
    from eval.evaluate import perplexity_interval, perplexity_ratio
    from eval.strategies import strategy_choices, strategy_figures, strategy_tokens
    from train.masking import ChatRenderer
    from train.models import load_chat_model
    from train.perplexity import by_turn, total, turn_losses
    from train.rows import ChatFormat, chat_rows, read_rows
    from train.templates import stabilise

    how = ChatFormat(side, load_prompt(side), load_prompt("greeting"), max_length)
    located = read_rows([on], None, seed=0)[:limit]
    result: dict[str, Any] = {"on": on, "side": side, "dialogues": len(located), "models": {}}
    losses = {}
    for name in [model, *([against] if against else [])]:
        spec = parse_spec(name)
        loaded, tokenizer = load_chat_model(spec.base, spec.adapter)
        renderer = ChatRenderer(stabilise(tokenizer))
        for note in renderer.notes:
            typer.echo(f"note: {note}", err=True)
        rows, report = chat_rows(how, renderer, located)
        with progress_bar(name, len(rows)) as advance:
            turns = turn_losses(loaded, rows, batch_size, advance)
        losses[name] = [total(each) for each in turns]
        if with_turns:
            result.setdefault("by_turn", {})[name] = by_turn(turns)
        result["models"][name] = asdict(perplexity_interval(losses[name]))
        if strategies:
            with progress_bar(f"{name}, strategies", len(rows)) as advance:
                choices = strategy_choices(loaded, rows, strategy_tokens(renderer), batch_size, advance)
            result.setdefault("strategies", {})[name] = asdict(strategy_figures(choices))
        result["tokens"] = report.supervised_tokens
        result["shortened"] = report.shortened
    if against:
        result["ratio"] = asdict(perplexity_ratio(losses[against], losses[model]))
    return result


def _cell(interval: dict[str, Any], digits: int = 2) -> str:
    if interval["mean"] is None:
        return "undefined"
    if interval["low"] is None:
        return f"{interval['mean']:.{digits}f}"
    return f"{interval['mean']:.{digits}f} [{interval['low']:.{digits}f}, {interval['high']:.{digits}f}]"


def _show_turns(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"Perplexity at each {result['side']} turn")
    for column in ("turn", "tokens", *result["by_turn"]):
        table.add_column(column, overflow="fold")
    # Models with different tokenizers may see more turns or fewer tokens: the first one's are shown.
    for cells in zip(*result["by_turn"].values(), strict=False):
        figures = ["undefined" if cell["perplexity"] is None else f"{cell['perplexity']:.2f}" for cell in cells]
        table.add_row(str(cells[0]["turn"]), str(cells[0]["tokens"]), *figures)
    console.print(table)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if "models" in result:
        table = Table(title=f"Perplexity of {result['side']} turns, {result['dialogues']} dialogues, 95 % interval")
        table.add_column("model", overflow="fold")
        table.add_column("perplexity")
        for name, interval in result["models"].items():
            table.add_row(name, _cell(interval))
        console.print(table)
        console.print(f"{result['tokens']} supervised tokens; {result['shortened']} dialogues shortened to max_length")
        if "by_turn" in result:
            _show_turns(console, result)
        if "ratio" in result:
            console.print(f"first / second: {_cell(result['ratio'], 3)} (below 1: the first predicts better)")
        if "strategies" in result:
            _show_strategies(console, result["strategies"])
        return
    table = Table(title=f"{result['scorer']['name']} on {result['dialogues']} dialogues, 95 % interval over dialogues")
    for column in ("dimension", "predictor", "exact", "within one", "kappa (quadratic)", "MAE"):
        table.add_column(column)
    for row in result["dimensions"]:
        for who, figures in (("scorer", row["scorer"]), (f"constant {row['constant_level']}", row["constant"])):
            cells = [_cell(figures[name]) for name in ("accuracy", "within_one", "kappa", "mae")]
            table.add_row(row["dimension"] if who == "scorer" else "", who, *cells)
    console.print(table)
    if result["dialogues_without_rating"]:
        console.print(f"{result['dialogues_without_rating']} dialogues have no rating in the files given: left out")
    for row in result["dimensions"]:
        console.print(f"{row['dimension']} ({row['ratings']} ratings): {row['verdict']}")


def _show_strategies(console: Any, found: dict[str, Any]) -> None:
    from rich.table import Table

    one = next(iter(found.values()))
    table = Table(title=f"Strategy of {one['turns']} supporter turns, real history, 95 % interval over dialogues")
    for column in ("model", "accuracy", "macro-F1", "mass on the eight"):
        table.add_column(column, overflow="fold")
    for name, figures in found.items():
        table.add_row(name, *(_cell(figures[key]) for key in ("accuracy", "macro_f1", "mass")))
    table.add_row(f"always {one['constant']}", _cell(one["constant_accuracy"]), f"{one['constant_macro_f1']:.2f}", "")
    console.print(table)
