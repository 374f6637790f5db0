"""`esckit compare`: which of two supporters a judge prefers, dialogue beside dialogue, in both orders."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eval.progress import progress_bar

if TYPE_CHECKING:
    from eval.pairwise import Outcomes


def compare(
    a: Annotated[Path, typer.Argument(help="Run folder of one supporter.")],
    b: Annotated[Path, typer.Argument(help="Run folder of the other, on the same cards.")],
    judge: Annotated[str, typer.Option(metavar="MODEL", help="Chat model that judges: hf:PATH or openai:MODEL@URL.")],
    out: Annotated[Path, typer.Option(help="Folder of the comparisons; the same command goes on there.")],
    rubric: Annotated[str, typer.Option(help="Whose criteria are judged by: a name or a .yaml file.")] = "esc_eval",
    prompt: Annotated[str, typer.Option(help="In what words; a name or a .yaml file of a prompt.")] = "compare",
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs read at once; changes the speed only.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Have a judge compare two supporters pair by pair, in both orders; an answer that flips with the order is a tie.

    Example: esckit compare runs/base runs/tuned --judge openai:qwen3@http://localhost:8000/v1 --out runs/base-tuned
    """
    from data_prep.prompt import load_prompt
    from data_prep.rubric import load_rubric
    from eval.chat_models import load_chat_models
    from eval.families import same_family
    from eval.pairwise import compare as compare_runs
    from eval.pairwise import pairs_of
    from eval.runs import load_run, lock_folder

    console = Console(stderr=True, markup=False, highlight=False)
    runs = load_run(a), load_run(b)
    asked, criteria = load_prompt(prompt), load_rubric(rubric)
    pairs, _ = pairs_of(*runs)
    out.mkdir(parents=True, exist_ok=True)
    unlock = lock_folder(out)
    try:
        [model] = load_chat_models([judge], say=console.print)
        with progress_bar("comparisons", 2 * len(pairs), console) as advance:
            found = compare_runs(out, runs, model, asked, criteria, batch_size, advance)
    finally:
        unlock()
    labels = [pairs[0][side].supporter for side in (0, 1)]
    own = same_family(judge, labels)
    result = summary(found, labels)
    if own:
        result["note"] = f"the judge is of the family of {', '.join(own)}, and judges may favour their own kind"
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        for line in lines(result):
            typer.echo(line)
    if found.missing:
        raise typer.Exit(1)


def summary(found: "Outcomes", labels: list[str]) -> dict[str, Any]:
    """The result for a script; shares are 0..1."""
    from eval.statistics_pairwise import bradley_terry

    wins = {side: sum(row.outcome == side for row in found.rows) for side in ("a", "b", "tie")}
    fitted = bradley_terry(found.rows) if found.rows else None
    return {
        "a": labels[0],
        "b": labels[1],
        "pairs": len(found.rows) + sum(found.missing.values()),
        "a_better": wins["a"],
        "b_better": wins["b"],
        "ties": wins["tie"],
        "flips": found.flips,
        "preference_a": asdict(found.preference),
        "first_chosen": asdict(found.first_chosen),
        "bradley_terry": None
        if fitted is None
        else {"a": asdict(fitted.strengths["a"]), "ties": fitted.ties, "reason": fitted.reason},
        "missing": dict(found.missing),
        "unpaired": found.unpaired,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The result in words."""
    from eval.report_text import number

    def shown(value: dict[str, Any], scale: float = 100, signed: bool = False) -> str:
        digits = 0 if scale == 100 else 2
        mean, low, high = (None if value[key] is None else value[key] * scale for key in ("mean", "low", "high"))
        if low is None:
            return f"{number(mean, digits, signed)} (no interval: {value['reason']})"
        return f"{number(mean, digits, signed)} ({number(low, digits, signed)} to {number(high, digits, signed)})"

    told = [
        f"{result['a']} better in {result['a_better']} pairs, {result['b']} in {result['b_better']}, "
        f"{result['ties']} ties ({result['flips']} of these flipped with the order)",
        f"preference for {result['a']}, ties half: {shown(result['preference_a'])} percent, 95 % interval over cards",
        f"the first dialogue was chosen in {shown(result['first_chosen'])} percent of clear answers (50: no bias)",
    ]
    fitted = result["bradley_terry"]
    if fitted and fitted["reason"] is None:
        told.append(f"Bradley-Terry with ties, log strength of {result['a']}: {shown(fitted['a'], 1, True)}")
    told += [f"Note: {result['note']}"] if "note" in result else []
    told += [f"  {count} pairs missing: {reason}" for reason, count in sorted(result["missing"].items())]
    if result["unpaired"]:
        told.append(f"  {result['unpaired']} dialogues have no whole partner and are left out")
    return told
