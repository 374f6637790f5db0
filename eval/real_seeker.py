"""`make real-seeker`: is a tuned seeker more like real ones than a prompted one? ESConv, and the page of results.

Data: ESConv train and valid as published, in the folder named by ESCKIT_REAL_DATA. Nothing of them is written into
the page but counts and figures.
"""

import json
from pathlib import Path
from typing import Any

import typer

from data_prep.records import write_text
from eval.chain import Stage, recipe, run_as_command, run_chain
from eval.real_esconv import BASE, OUT, data_folder
from eval.real_results import commands_section, table

PAGE = Path("docs/results/esconv_seeker.md")
RECIPE = "esc_role/esconv-smollm2-lora.yaml"
TRAINED = OUT / "esc_role"
CARDS = 60
RUNS = {"prompted": OUT / "seeker_prompted", "tuned": OUT / "seeker_tuned"}
FIGURES = OUT / "seeker_audit.json"

NOT_SHOWN = """## What these figures do not show

- A 135M-parameter model with one adapter, one seed, and a supporter of the same small kind: what is found is about
  these runs, not about ESC-Role on 14B.
- Real seekers talked with trained volunteers, the simulated ones with SmolLM2; part of every difference is the
  partner.
- Real dialogues are longer; the comparison is over as many exchanges as were simulated, and the cards are the
  situations of the very dialogues that are the reference, so that what is talked about is alike.
- The marks are phrases and counts. A seeker can pass all of them and still be unlike a person in distress.
- An AUC near 0.5 would mean that this classifier (words and shapes of turns) cannot tell, not that people could not.
- Nothing here was run on a GPU.
"""


def stages(data: Path) -> list[Stage]:
    """The commands of the chain, in order."""
    valid = OUT / "data" / "valid.jsonl"

    def simulate(name: str, seeker: str) -> Stage:
        command = ["simulate", "--cards", str(valid), "--limit", str(CARDS), "--seeker", seeker]
        command += ["--supporter", f"hf:{BASE}", "--rounds", "5", "--max-new-tokens", "64", "--batch-size", "16"]
        return Stage(f"Simulate, seeker {name}", [*command, "--out", str(RUNS[name])], incomplete_ok=True)

    return [
        Stage("Bring the chat model", ["model", "fetch", BASE]),
        *(
            Stage(
                f"Convert ESConv {split}",
                [
                    *("data", "convert", "esconv", str(data / "esconv" / f"{split}.txt")),
                    *("--out", str(OUT / "data" / f"{split}.jsonl")),
                ],
            )
            for split in ("train", "valid")
        ),
        Stage("Tune the seeker", ["train", recipe(RECIPE), "--resume"]),
        simulate("prompted", f"hf:{BASE}"),
        simulate("tuned", f"hf:{BASE}+{TRAINED}"),
        Stage(
            "Audit both, beside the real seekers",
            ["audit", *map(str, RUNS.values()), "--reference", str(valid), "--json"],
            capture=FIGURES,
        ),
    ]


def triple(value: Any, digits: int = 2) -> str:
    """`0.41 [0.30, 0.52]` of (mean, low, high)."""
    mean, low, high = value
    return f"{mean:.{digits}f}" if low is None else f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def auc(likeness: Any) -> str:
    if likeness["auc"] is None:
        return str(likeness["reason"])
    return triple((likeness["auc"], likeness["auc_low"], likeness["auc_high"]))


def nearer(likeness: Any) -> str:
    """In how many shapes of turns the tuned seeker is nearer to real ones, in words."""
    gaps = [
        [abs(feature["difference"][0]) for feature in pair]
        for pair in zip(*(one["features"] for one in likeness), strict=True)
    ]
    count = sum(tuned < prompted for prompted, tuned in gaps)
    apart = [name for name, one in zip(RUNS, likeness, strict=True) if (one["auc_low"] or 0) > 0.5]
    told = (
        f"The classifier tells {' and '.join(apart)} from real ones."
        if apart
        else "The classifier tells neither apart."
    )
    return (
        f"The tuned seeker is nearer to real ones than the prompted one in {count} of these {len(gaps)} shapes, by the "
        f"size of the difference. {told}\n"
    )


def curve(shares: Any) -> str:
    return ", ".join(f"{share:.0%}" for share in shares) or "unknown"


def results_page(commands: list[tuple[Stage, float]], data: str, audits: Any, trained: Any) -> str:
    """The page as Markdown; `data` is the folder of real data, replaced by $ESCKIT_REAL_DATA."""
    names = list(RUNS)
    likeness = [found["likeness"] for found in audits]
    features = [
        (
            first["name"],
            triple(first["real"]),
            triple(first["simulated"]),
            triple(first["difference"]),
            triple(second["simulated"]),
            triple(second["difference"]),
        )
        for first, second in zip(likeness[0]["features"], likeness[1]["features"], strict=True)
    ]
    rates = [
        (f"{one['side']} {one['fault']}", _rate(one), _rate(other))
        for one, other in zip(audits[0]["rates"], audits[1]["rates"], strict=True)
        if one["dialogues"] or other["dialogues"]
    ]
    rows = trained["data"]["train"]
    minutes = sum(seconds for _, seconds in commands) / 60
    sections = [
        "# Prompted and tuned seekers beside real ones: ESConv\n",
        f"Written by `make real-seeker` from what its commands printed; {minutes:.0f} minutes on two CPU cores in "
        f"float32 that did other work, too. The adapter's training alone took {trained['train_seconds']:.0f} s. "
        "Intervals are 95 %, over dialogues.\n",
        commands_section(commands, data),
        "## Data\n",
        f"Tuned on {rows['dialogues']} dialogues of ESConv train ({rows['supervised_tokens']:,} tokens of seekers' "
        f"turns). Simulated: {likeness[0]['simulated']} cards, the situations of ESConv valid dialogues, five "
        "exchanges, the same supporter (SmolLM2 with the standard prompt). Reference: "
        f"{likeness[0]['real']} real dialogues of ESConv valid, as many exchanges of each.\n",
        "## Told apart by a classifier\n",
        "Cross-validated AUC of a classifier over words and shapes of seeker turns; 0.5: cannot tell them apart.\n",
        table(("seeker", "AUC"), [(name, auc(one)) for name, one in zip(names, likeness, strict=True)]),
        "## Shapes of turns\n",
        table(
            ("per dialogue", "real", "prompted", "prompted minus real", "tuned", "tuned minus real"),
            features,
        ),
        nearer(likeness),
        "## Round by round\n",
        table(
            ("seeker", "has thanked or agreed by round 1, 2, …", "card's words used by round 1, 2, …"),
            [
                ("real", curve(likeness[0]["thanks_by_round"][1]), curve(likeness[0]["disclosure"][1])),
                *(
                    (name, curve(one["thanks_by_round"][0]), curve(one["disclosure"][0]))
                    for name, one in zip(names, likeness, strict=True)
                ),
            ],
        ),
        "## Marks of the audit (share of dialogues)\n",
        table(("fault", "prompted", "tuned"), rates),
        NOT_SHOWN,
    ]
    return "\n".join(sections)


def _rate(one: Any) -> str:
    return "" if one["share"] is None else triple((one["share"], one["low"], one["high"]))


def main() -> None:
    data = data_folder()
    chain = stages(data)
    seconds = run_chain(chain)
    audits = json.loads(FIGURES.read_text(encoding="utf-8"))
    trained = json.loads((TRAINED / "metrics.json").read_text(encoding="utf-8"))
    write_text(PAGE, results_page(list(zip(chain, seconds, strict=True)), str(data), audits, trained))
    typer.echo(f"finished in {sum(seconds) / 60:.1f} minutes; wrote {PAGE}")


if __name__ == "__main__":
    run_as_command(main)
