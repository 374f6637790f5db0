"""The page of results of `make real`: every figure in it comes from a file that a command of the chain printed."""

from collections.abc import Sequence
from typing import Any

from eval.chain import Stage
from eval.scorer_tables import markdown

NOT_SHOWN = """## What these figures do not show

- The base is a 135M-parameter model. That tuning lowers its perplexity on real seekers says that the path works and
  that the data carry signal; it says nothing about how a 14B ESC-Role would do, and perplexity is not realism.
- One run with one seed each. The intervals are over dialogues; they hold no variation between training runs.
- Train and held-out dialogues come from the same collection and the same kind of paid volunteers.
- The survey was answered by the seeker of the same conversation, mostly with 4 and 5. With so little spread, exact
  and within-one agreement are high for a constant; quadratic kappa is the figure that a constant cannot earn.
- FailedESConv was rejected by its authors for quality. Part of what a scorer finds in the pooled test set is the
  difference between the two collections, not between supporters of one collection.
- The scorer rates simulated conversations of another kind than those it was trained on, over {cards} demo cards. The
  comparison of the two prompts shows that the chain runs, not which prompt helps people.
- Nothing here was run on a GPU.
"""


def results_page(
    commands: Sequence[tuple[Stage, float]],
    data: str,
    leaks: Any,
    perplexity: Any,
    agreement: Any,
    role: Any,
    rank: Any,
    report: Any,
) -> str:
    """The whole page as Markdown; `data` is the folder of real data, replaced by $ESCKIT_REAL_DATA."""
    minutes = sum(seconds for _, seconds in commands) / 60
    supporters = report["supporters"]
    cards = max(score["percent"]["n_cards"] for entry in supporters for score in entry["scores"].values())
    sections = [
        "# The chain on real data: ESConv\n",
        f"Written by `make real` from what its commands printed; {minutes:.0f} minutes on two CPU cores in float32. "
        "Intervals are 95 % bootstrap intervals over dialogues (over cards for the simulation).\n",
        commands_section(commands, data),
        _data(leaks, role, rank, perplexity),
        _perplexity(perplexity, role),
        _agreement(agreement, rank),
        _simulation(report),
        NOT_SHOWN.format(cards=cards),
    ]
    return "\n".join(sections)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def interval(found: Any, digits: int = 2) -> str:
    """`0.41 [0.30, 0.52]`, or why there is no interval."""
    if found["mean"] is None:
        return f"undefined ({found['reason']})"
    if found["low"] is None:
        return f"{found['mean']:.{digits}f}"
    return f"{found['mean']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def commands_section(commands: Sequence[tuple[Stage, float]], data: str) -> str:
    lines = []
    for stage, seconds in commands:
        words = [word.replace(data, "$ESCKIT_REAL_DATA") for word in stage.arguments]
        quoted = [f"'{word}'" if " " in word else word for word in words]
        kept = f" > {stage.capture}" if stage.capture else ""
        lines.append(f"esckit {' '.join(quoted)}{kept}  # {seconds:.0f} s")
    return "## Commands\n\n```sh\n" + "\n".join(lines) + "\n```\n"


def _data(leaks: Any, role: Any, rank: Any, perplexity: Any) -> str:
    trained, fitted = role["data"]["train"], rank["data"]["train"]
    rows = [
        (
            "ESC-Role, training (ESConv train)",
            trained["dialogues"],
            f"{trained['supervised_tokens']} supervised tokens",
        ),
        ("ESC-Role, held out (ESConv valid)", perplexity["dialogues"], f"{perplexity['tokens']} supervised tokens"),
        ("scorer, training", fitted["dialogues"], f"{fitted['ratings']} ratings"),
        (
            "scorer, validation",
            rank["data"]["validation"]["dialogues"],
            f"{rank['data']['validation']['ratings']} ratings",
        ),
    ]
    shared = "; ".join(_leak_rows(leaks)) or "nothing that was looked for"
    return (
        "## Data\n\n"
        + table(("set", "dialogues", "size"), rows)
        + f"\n{trained['shortened']} training dialogues lost their oldest turns to fit; "
        + f"{fitted['shortened']} did for the scorer, which keeps the last turns.\n"
        + "The scorer's sets come from ESConv train, valid and FailedESConv pooled and split so that no situation, "
        + f"opening or text is on two sides; {fitted['without_rating']} training dialogues had no rating and were left "
        + "out.\n"
        + f"ESConv train and valid as published share: {shared}.\n"
    )


def _leak_rows(leaks: Any) -> list[str]:
    """Kinds of a leak report that found something, with the records concerned on each side."""
    return [
        f"{leak['kind']}: {leak['shared']} ({len(leak['ids_a'])} training and {len(leak['ids_b'])} held-out dialogues)"
        for leak in leaks["leaks"]
        if leak["shared"]
    ]


def _perplexity(perplexity: Any, role: Any) -> str:
    after, before = perplexity["models"].values()
    return (
        "## ESC-Role: held-out perplexity of seeker turns\n\n"
        + table(
            ("model", "perplexity per token"),
            [("base", interval(before)), ("base + ESC-Role adapter", interval(after))],
        )
        + f"\nPerplexity after / before on the same dialogues: {interval(perplexity['ratio'], 3)}. "
        + f"{role['steps']} steps in {role['train_seconds']:.0f} s, {role['trainable_parameters']:,} trainable "
        + "parameters. Tokens counted are those that carry loss in training: the seeker's words and the end of each "
        + "turn.\n"
    )


def _agreement(agreement: Any, rank: Any) -> str:
    return (
        "## ESC-RANK: the seeker survey (1 to 5) on held-out dialogues\n\n"
        + markdown(agreement, level=3)
        + f"\n{rank['steps']} steps in {rank['train_seconds']:.0f} s.\n"
    )


def _simulation(report: Any) -> str:
    rows = []
    for entry in report["supporters"]:
        ends = ", ".join(f"{reason} {count}" for reason, count in entry["end_reasons"].items())
        scores = [f"{name} {interval(score['percent'], 1)}" for name, score in entry["scores"].items()]
        rows.append((entry["label"], entry["dialogues"], ends, "; ".join(scores)))
    warnings = [f"- {warning}" for warning in report["warnings"]]
    return (
        "## Simulation over the official English demo cards\n\n"
        + table(("supporter", "dialogues", "ended by", "mean score, 0 to 100"), rows)
        + f"\n{report['answer']}\n\n"
        + "\n".join(warnings)
        + "\n"
    )
