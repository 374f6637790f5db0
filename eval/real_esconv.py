"""`make real`: the whole chain on real human data, and the page of results written from what it printed.

Data: ESConv (train, valid) and FailedESConv as published, and the official English demo cards of ESC-Eval, in the
folder named by ESCKIT_REAL_DATA. Nothing of them is written into the page but counts and figures.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from data_prep.errors import UserError
from data_prep.records import write_text
from eval.chain import REPOSITORY, Stage, recipe, run_as_command, run_chain
from eval.real_results import results_page

OUT = Path("runs/real")
PAGE = Path("docs/results/real_esconv.md")
NEEDED = {
    "esconv/train.txt": "ESConv, hub split: dataset thu-coai/esconv on the Hugging Face hub",
    "esconv/valid.txt": "ESConv, hub split: dataset thu-coai/esconv on the Hugging Face hub",
    "esconv/FailedESConv.json": "the ESConv authors' repository thu-coai/Emotional-Support-Conversation",
    "esceval/test_en.json": "the official repository haidequanbu/ESC-Eval (demo cards)",
}
BASE = "smollm2-135m-instruct"
SUPPORTERS = (("plain prompt", "supporter_plain"), ("supportive prompt", "supporter"))
HELD_OUT = 60


def data_folder(needed: Mapping[str, str] = NEEDED) -> Path:
    """The folder of real data. Raises UserError that names every file of `needed` that is missing and its origin."""
    named = os.environ.get("ESCKIT_REAL_DATA")
    default = REPOSITORY.parent / "shared" / "data"
    folder = Path(named) if named else default
    missing = [f"{name} ({origin})" for name, origin in needed.items() if not (folder / name).is_file()]
    if missing:
        say = f"{folder} lacks: {'; '.join(missing)}" if named else f"not set; it must hold: {'; '.join(missing)}"
        raise UserError(f"ESCKIT_REAL_DATA: {say}")
    return folder


def stages(data: Path) -> list[Stage]:
    """The commands of the chain, in order."""
    converted, split = OUT / "data", OUT / "split"

    def convert(file: str, name: str) -> Stage:
        arguments = ["data", "convert", "esconv", str(data / file), "--out", str(converted / f"{name}.jsonl")]
        return Stage(f"Convert {file}", [*arguments, "--ratings-out", str(converted / f"{name}_ratings.jsonl")])

    pool = [str(converted / f"{name}.jsonl") for name in ("train", "valid", "failed")]
    ratings = [f"--ratings={converted / f'{name}_ratings.jsonl'}" for name in ("train", "valid", "failed")]
    role, rank = OUT / "esc_role", OUT / "esc_rank"
    chain = [
        Stage("Bring the chat model", ["model", "fetch", BASE]),
        Stage("Bring the encoder", ["model", "fetch", "minilm-l6"]),
        convert("esconv/train.txt", "train"),
        convert("esconv/valid.txt", "valid"),
        convert("esconv/FailedESConv.json", "failed"),
        Stage(
            "What train and held-out share", ["data", "leaks", pool[0], pool[1], "--json"], capture=OUT / "leaks.json"
        ),
        Stage(
            "Split all rated dialogues by situation",
            ["data", "split", *pool, "--out", str(split), "--fractions", "train=0.7,valid=0.1,test=0.2"],
        ),
        Stage("Train ESC-Role", ["train", recipe("esc_role/esconv-smollm2-lora.yaml"), "--resume"]),
        Stage(
            "Held-out perplexity of seeker turns, after and before",
            [
                *("evaluate", f"hf:{BASE}+{role}", "--against", f"hf:{BASE}", "--on", pool[1]),
                *("--limit", str(HELD_OUT), "--max-length", "1024", "--json"),
            ],
            capture=OUT / "perplexity.json",
        ),
        Stage(
            "Train the scorer of the seeker survey", ["train", recipe("esc_rank/esconv-survey-minilm.yaml"), "--resume"]
        ),
        Stage(
            "The scorer and the baselines against the raters",
            [
                *("evaluate", str(rank), "--on", str(split / "test.jsonl"), *ratings, "--batch-size", "16"),
                *("--baselines-from", str(split / "train.jsonl"), "--json"),
            ],
            capture=OUT / "agreement.json",
        ),
    ]
    runs = []
    for name, prompt in SUPPORTERS:
        runs.append(str(OUT / prompt))
        chain.append(
            Stage(
                f"Simulate over the official demo cards: {name}",
                [
                    *("simulate", "--cards", str(data / "esceval" / "test_en.json"), "--seeker", f"hf:{BASE}+{role}"),
                    *("--supporter", f"hf:{BASE}", "--supporter-prompt", prompt),
                    *("--supporter-name", f"{BASE}, {name}", "--samples", "4", "--batch-size", "12"),
                    *("--max-new-tokens", "100", "--out", runs[-1]),
                ],
                incomplete_ok=True,
            )
        )
    chain += [
        Stage(f"Score: {name}", ["score", run, "--scorer", str(rank)], True)
        for (name, _), run in zip(SUPPORTERS, runs, strict=True)
    ]
    report = ["report", *runs, "--out", str(OUT / "report"), "--json"]
    chain.append(Stage("Report", report, capture=OUT / "report.json"))
    return chain


def main() -> None:
    data = data_folder()
    chain = stages(data)
    seconds = run_chain(chain)

    def read(name: str) -> Any:
        return json.loads((OUT / name).read_text(encoding="utf-8"))

    page = results_page(
        commands=[(stage, time) for stage, time in zip(chain, seconds, strict=True)],
        data=str(data),
        leaks=read("leaks.json"),
        perplexity=read("perplexity.json"),
        agreement=read("agreement.json"),
        role=read("esc_role/metrics.json"),
        rank=read("esc_rank/metrics.json"),
        report=read("report.json"),
    )
    write_text(PAGE, page)
    typer.echo(f"finished in {sum(seconds) / 60:.1f} minutes; wrote {PAGE} and {OUT / 'report' / 'report.html'}")


if __name__ == "__main__":
    run_as_command(main)
