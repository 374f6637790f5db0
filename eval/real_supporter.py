"""`make real-supporter`: a supporter with strategies on ESConv, and the page of results written from what was printed.

Data: ESConv train and valid as published, in the folder named by ESCKIT_REAL_DATA. Nothing of them is written into
the page but counts and figures.
"""

import json
from pathlib import Path
from typing import Any

import typer

from data_prep.records import write_text
from eval.chain import Stage, recipe, run_as_command, run_chain
from eval.real_esconv import BASE, HELD_OUT, OUT, data_folder
from eval.real_results import commands_section, interval, table

PAGE = Path("docs/results/esconv_supporter.md")
RECIPE = "esc_supporter/esconv-strategy-smollm2-lora.yaml"
TRAINED = Path("runs/esc_supporter/esconv-strategy-smollm2-lora")
DATA = Path("runs/data")
FIGURES = OUT / "supporter_strategy.json"
DIALOGUES = 160

NOT_SHOWN = """## What these figures do not show

- The base is a 135M-parameter model and one run with one seed; the intervals are over dialogues only.
- The history of every turn is the real one, with the real strategies of earlier turns in it. A supporter that lives
  with its own earlier choices is another, harder case.
- Turns of the supporter that follow each other are one message; the strategy that is read is that of its first turn.
  Picking another strategy than the volunteer did is not a fault in itself: people would not always agree either.
- Published strategy accuracies on ESConv use other splits, other histories and other label sets: they cannot be put
  beside these.
- The base model was never told what a prefix is, so its picks are close to noise; the constant is the fair opponent.
- Nothing here was run on a GPU.
"""


def stages(data: Path) -> list[Stage]:
    """The commands of the chain, in order: those that the recipe names, and the same for the held-out dialogues."""

    def built(split: str, name: str, *parts: str) -> list[Stage]:
        converted, turns = DATA / f"{name}.jsonl", DATA / f"{name}_turns.jsonl"
        # Merged turns would lose every strategy but the first one's.
        clean = ["data", "clean", str(converted), "--without", "merge-runs", "--out", str(turns)]
        build = ["data", "build", "supporter", str(turns), "--strategy", "prefix", *parts]
        return [
            Stage(
                f"Convert ESConv {split}",
                ["data", "convert", "esconv", str(data / "esconv" / f"{split}.txt"), "--out", str(converted)],
            ),
            Stage(f"Clean {split}", clean),
            Stage(f"Strategies before the replies: {split}", [*build, "--out", str(DATA / f"{name}_strategy")]),
        ]

    held_out = str(DATA / "held_out_strategy" / "train.messages.jsonl")
    return [
        Stage("Bring the chat model", ["model", "fetch", BASE]),
        *built("train", "supporter", "--split", "train=0.9,valid=0.1"),
        *built("valid", "held_out"),
        Stage("Train", ["train", recipe(RECIPE), f"data.limit={DIALOGUES}", "--resume"]),
        Stage(
            "Held-out perplexity and strategies, after and before",
            [
                *("evaluate", f"hf:{BASE}+{TRAINED}", "--against", f"hf:{BASE}", "--on", held_out),
                *(
                    "--side",
                    "supporter",
                    "--no-replies",
                    "--strategies",
                    "--limit",
                    str(HELD_OUT),
                    "--max-length",
                    "1024",
                    "--json",
                ),
            ],
            capture=FIGURES,
        ),
    ]


def results_page(commands: list[tuple[Stage, float]], data: str, found: Any, trained: Any) -> str:
    """The page as Markdown; `data` is the folder of real data, replaced by $ESCKIT_REAL_DATA."""
    minutes = sum(seconds for _, seconds in commands) / 60
    after, before = found["models"].values()
    picks, base_picks = found["strategies"].values()
    rows = trained["data"]["train"]
    counts = ", ".join(f"{name} {count}" for name, count in picks["counts"].items())
    sections = [
        "# A supporter with strategies: ESConv\n",
        f"Written by `make real-supporter` from what its commands printed; {minutes:.0f} minutes on two CPU cores in "
        "float32. Intervals are 95 % bootstrap intervals over dialogues.\n",
        commands_section(commands, data),
        "## Training\n",
        f"{rows['dialogues']} dialogues of ESConv train, {rows['supervised_tokens']:,} supervised tokens, "
        f"{rows['shortened']} dialogues without their oldest turns to fit; {trained['steps']} steps in "
        f"{trained['train_seconds']:.0f} s, {trained['trainable_parameters']:,} trainable parameters.\n",
        "## Held-out perplexity of supporter turns\n",
        f"{found['dialogues']} dialogues of ESConv valid, {found['tokens']:,} supervised tokens: the strategy prefix, "
        "the words, and the end of each turn.\n",
        table(
            ("model", "perplexity per token"),
            [("base", interval(before)), ("base + supporter adapter", interval(after))],
        ),
        f"Perplexity after / before on the same dialogues: {interval(found['ratio'], 3)}.\n",
        "## Strategy of a turn, with the real history\n",
        table(
            ("predictor", "accuracy", "macro-F1", "probability of the eight prefixes"),
            [
                ("tuned", *(interval(picks[key]) for key in ("accuracy", "macro_f1", "mass"))),
                ("base", *(interval(base_picks[key]) for key in ("accuracy", "macro_f1", "mass"))),
                (
                    f"always {picks['constant']}",
                    interval(picks["constant_accuracy"]),
                    f"{picks['constant_macro_f1']:.2f}",
                    "",
                ),
            ],
        ),
        f"{picks['turns']} turns: {counts}.\n",
        NOT_SHOWN,
    ]
    return "\n".join(sections)


def main() -> None:
    data = data_folder()
    chain = stages(data)
    seconds = run_chain(chain)
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    trained = json.loads((TRAINED / "metrics.json").read_text(encoding="utf-8"))
    write_text(PAGE, results_page(list(zip(chain, seconds, strict=True)), str(data), found, trained))
    typer.echo(f"finished in {sum(seconds) / 60:.1f} minutes; wrote {PAGE}")


if __name__ == "__main__":
    run_as_command(main)
