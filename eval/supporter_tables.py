"""What `esckit evaluate` says of a chat model: perplexity, strategies, text metrics; for a terminal and as Markdown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eval.metrics import METRICS
from eval.scorer_tables import cell

NOTES = """\
Text metrics are 0..100, with 95 % intervals over dialogues; each reply answers the real history. Tokens: English
words as NLTK cuts them, Chinese characters; nlpcc2025 is cut at white space. esconv and nlpcc2025 compute as the
published scripts do (BLEU: of the corpus; there of each reply, then averaged. Distinct-n of esconv drops the last
n-gram of every reply). METEOR has no synonyms (WordNet): values are somewhat below those that have them. Distinct-n
falls with the amount of text: compare it on the same turns only."""


@dataclass(frozen=True)
class Table:
    title: str
    head: list[str]
    rows: list[list[str]]


def tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Every table of a result, in order."""
    if result["models"]:
        title = f"Perplexity of {result['side']} turns, {result['dialogues']} dialogues, 95 % interval"
        yield Table(title, ["model", "perplexity"], [[name, cell(one)] for name, one in result["models"].items()])
    if "by_turn" in result:
        yield _turns(result)
    if "strategies" in result:
        yield _strategies(result["strategies"])
    for name, found in result.get("replies", {}).items():
        for part in found["languages"]:
            yield _metrics(name, part)
    for part in result.get("chance", ()):
        yield _metrics("chance, real replies of other dialogues", part)
    if "differences" in result:
        yield from _differences(result)
    named = {name: found["strategies"] for name, found in result.get("replies", {}).items() if found["strategies"]}
    if named:
        yield _named(named)
    for dimension, metrics in result.get("correlations", {}).items():
        yield _correlations(dimension, metrics)


def remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """What a reader has to know beside the tables, a line each."""
    if "tokens" in result:
        yield f"{result['tokens']} supervised tokens; {result['shortened']} dialogues shortened to max_length"
    if result.get("ratio"):
        yield f"first / second: {cell(result['ratio'], 3)} (below 1: the first predicts better)"
    for name, found in result.get("replies", {}).items():
        for part in found["languages"]:
            yield from _task8(name, part)
        missing = sum(found["missing"].values())
        if missing:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(found["missing"].items()))
            yield f"{name}: {missing} of {found['turns']} turns have no reply ({told}): they are in no figure"
        if found["cut"]:
            yield f"{name}: {found['cut']} of {found['replies']} replies were ended by --max-new-tokens"
        if found["strategies"] and found["strategies"]["unnamed"]:
            one = found["strategies"]
            yield f"{name}: {one['unnamed']} of {one['turns']} replies name no strategy: no hits"
    first = next(iter(result.get("replies", {}).values()), None)
    if first is not None:
        for reason, count in first["left_out"].items():
            yield f"left out: {count} {reason}"
        yield " ".join(NOTES.split())


def _task8(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    if "nlpcc2025" not in part["definitions"]:
        yield f"{name} ({part['language']}): no nlpcc2025 figures: the task and its script are for English"
    elif part["task8"] is not None:
        yield f"{name} ({part['language']}): NLPCC 2025 task 8 overall {part['task8']:.2f} (METEOR without synonyms)"
    else:
        needs = {"extrema": "Vector Extrema (--vectors)", "g_score": "the G-Score of an LLM judge (--g-score)"}
        lacks = " and ".join(needs[one] for one in part["task8_lacks"])
        yield f"{name} ({part['language']}): no NLPCC 2025 task 8 overall score without {lacks}"


def _turns(result: Mapping[str, Any]) -> Table:
    rows = []
    # Models with different tokenizers may see more turns or fewer tokens: the first one's are shown.
    for cells in zip(*result["by_turn"].values(), strict=False):
        shown = ["undefined" if one["perplexity"] is None else f"{one['perplexity']:.2f}" for one in cells]
        rows.append([str(cells[0]["turn"]), str(cells[0]["tokens"]), *shown])
    return Table(f"Perplexity at each {result['side']} turn", ["turn", "tokens", *result["by_turn"]], rows)


def _strategies(found: Mapping[str, Any]) -> Table:
    one = next(iter(found.values()))
    rows = [
        [name, *(cell(figures[key]) for key in ("accuracy", "macro_f1", "mass"))] for name, figures in found.items()
    ]
    rows.append([f"always {one['constant']}", cell(one["constant_accuracy"]), f"{one['constant_macro_f1']:.2f}", ""])
    title = f"Strategy of {one['turns']} supporter turns, real history, 95 % interval over dialogues"
    return Table(title, ["model", "accuracy", "macro-F1", "mass on the eight"], rows)


def _metrics(name: str, part: Mapping[str, Any]) -> Table:
    definitions = part["definitions"]
    rows = []
    for metric, label in METRICS.items():
        cells = [cell(one[metric]) if metric in one else "" for one in definitions.values()]
        if any(cells):
            rows.append([label, *cells])
    title = f"{name}: {part['replies']} replies in {part['dialogues']} dialogues ({part['language']}), by definition"
    return Table(title, ["metric", *definitions], rows)


def _differences(result: Mapping[str, Any]) -> Iterator[Table]:
    first, second = result["replies"]
    for language, metrics in result["differences"].items():
        rows = [[METRICS[name], cell(one)] for name, one in metrics.items()]
        title = f"{first} less {second}, same turns ({language}), definition esckit"
        yield Table(title, ["metric", "difference"], rows)


def _named(named: Mapping[str, Any]) -> Table:
    rows = [[name, str(one["turns"]), cell(one["accuracy"]), cell(one["macro_f1"])] for name, one in named.items()]
    return Table("Strategy that the replies name", ["model", "turns", "accuracy", "macro-F1"], rows)


def _correlations(dimension: str, metrics: Mapping[str, Any]) -> Table:
    some = next(iter(metrics.values()))
    rows = [
        [METRICS[name], *(cell(one[key]) for key in ("overall", "within", "between", "partial"))]
        for name, one in metrics.items()
    ]
    title = f"Spearman correlation with ratings of {dimension}: {some['replies']} dialogues, {some['models']} models"
    return Table(title, ["metric", "overall", "within models", "between models", "length held constant"], rows)


def show(result: Mapping[str, Any]) -> None:
    """Prints every table, then the remarks."""
    from rich.console import Console

    console = Console()
    for table in tables(result):
        draw(console, table)
    for line in remarks(result):
        console.print(line, soft_wrap=True, markup=False)


def draw(console: Any, table: Table) -> None:
    from rich.markup import escape
    from rich.table import Table as Drawn

    drawn = Drawn(title=escape(table.title), title_justify="left")
    for head in table.head:
        drawn.add_column(escape(head), overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    console.print(drawn)


def markdown(result: Mapping[str, Any]) -> str:
    """The same as a Markdown page."""
    lines: list[str] = []
    for table in tables(result):
        lines += [f"## {table.title}", "", *grid(table), ""]
    return "\n".join([*lines, *(f"- {line}" for line in remarks(result)), ""])


def grid(table: Table) -> Iterator[str]:
    """The lines of a Markdown table."""
    for row in (table.head, ["---"] * len(table.head), *table.rows):
        yield f"| {' | '.join(text.replace('|', '&#124;') for text in row)} |"
