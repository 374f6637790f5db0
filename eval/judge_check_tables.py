"""The checks of a judge as terminal tables and as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval.scorer_tables import cell
from eval.supporter_tables import Table, grid

TITLES = {
    "retest": "Asked again",
    "order_flips": "Order flips",
    "length": "Length",
    "padded": "Padded",
    "listed": "As lists",
    "repeated_advice": "Advice repeated",
    "rubric_order": "Order of the rubric",
    "wording": "Wording",
    "language": "Language of the rubric",
    "comparison": "Supporters compared, plain and at like length",
}
SAME = {
    "shift": "mean change",
    "absolute": "mean distance",
    "other_level": "other level",
    "rises": "rises",
    "falls": "falls",
}
COLUMNS = {
    "length": {
        "held": "judge, rating held",
        "judge": "judge, plain",
        "people": "raters",
        "matched": "longer of a pair rated alike",
    },
    "comparison": {
        "judge_plain": "judge",
        "judge_matched": "judge, like length",
        "people_plain": "people",
        "people_matched": "people, like length",
    },
}
NOTES = """\
Levels are those of the rubric; intervals are 95 % and over groups of dialogues. A rating holds quality only as well as
people agree: with few raters a slope of length may be quality that the rating missed. Longer: 1.25 times the words of
the supporter or more. The variants are mechanical and add no support."""


def tables(checks: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    for check in checks:
        columns = COLUMNS.get(check["name"], SAME)
        if check["rows"]:
            rows = [
                [
                    row["dimension"],
                    str(row["dialogues"]),
                    *(cell(row["figures"][key]) for key in columns),
                    row["verdict"],
                ]
                for row in check["rows"]
            ]
            title = f"{TITLES[check['name']]}: {check['what']}"
            yield Table(title, ["dimension", "dialogues", *columns.values(), "in words"], rows)


def not_applicable(checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for check in checks:
        if check["reason"] is not None:
            yield f"{TITLES[check['name']]}: not made: {check['reason']}"


def markdown(checks: Sequence[Mapping[str, Any]]) -> str:
    lines = ["## Checks of the judge", ""]
    for table in tables(checks):
        lines += [f"### {table.title}", "", *grid(table), ""]
    return "\n".join([*lines, *(f"- {line}" for line in not_applicable(checks)), "", NOTES, ""])


def show(checks: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console

    from eval.supporter_tables import draw

    console = Console()
    for table in tables(checks):
        draw(console, table)
    for line in (*not_applicable(checks), " ".join(NOTES.split())):
        console.print(line, soft_wrap=True, markup=False)
