"""`esckit quickstart`: the whole chain on the embedded default and the bundled samples."""

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL = "smollm2-135m-instruct"
ENCODER = "minilm-l6"
SUPPORTERS = (("plain prompt", "supporter_plain"), ("supportive prompt", "supporter"))


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("runs/quickstart"),
    cards: Annotated[int, typer.Option(min=4, help="Role cards to simulate.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Exchanges a dialogue.")] = 3,
    model: Annotated[str, typer.Option(help="Chat model to start from.")] = MODEL,
    encoder: Annotated[str, typer.Option(help="Encoder the scorer reads with.")] = ENCODER,
) -> None:
    """Prepare, train ESC-Role and ESC-RANK, simulate two supporters, score and report: a first look at everything.

    Runs on a laptop without an account or a GPU; stopped, it goes on where it was. The bundled samples are
    illustrative: the report shows what the toolkit does, not which prompt is better.

    Example: esckit quickstart --out runs/quickstart
    """
    from eval.chain import run_chain

    seconds = run_chain(stages(out, cards, rounds, model, encoder))
    typer.echo(f"\nfinished in {sum(seconds) / 60:.1f} minutes; open {(out / 'report' / 'report.html').resolve()}")


def stages(out: Path, cards: int, rounds: int, model: str, encoder: str) -> list[Any]:
    """The commands of the chain, in order."""
    from eval.chain import SAMPLES, Stage, recipe, shown

    role, rank = out / "esc_role", out / "esc_rank"
    known = {MODEL: "chat model", ENCODER: "encoder"}
    chain = [Stage(f"Bring the {known[name]}", ["model", "fetch", name]) for name in (model, encoder) if name in known]
    chain += [
        Stage(
            "Train ESC-Role, the simulated seeker",
            [
                *("train", recipe("quickstart/esc_role.yaml"), "--resume"),
                *(f"out={role}", f"model.base={model}", f"data.train={shown(SAMPLES / 'dialogues.jsonl')}"),
            ],
        ),
        Stage(
            "Train ESC-RANK, the scorer",
            [
                *("train", recipe("quickstart/esc_rank.yaml"), "--resume"),
                *(f"out={rank}", f"model.base={encoder}"),
                f"data.train={shown(SAMPLES / 'rated_dialogues.jsonl')}",
                f"data.ratings={shown(SAMPLES / 'ratings.jsonl')}",
            ],
        ),
    ]
    runs = []
    for name, prompt in SUPPORTERS:
        run = str(out / prompt)
        runs.append(run)
        chain.append(
            Stage(
                f"Simulate conversations with the supporter: {name}",
                [
                    *("simulate", "--cards", shown(SAMPLES / "cards.jsonl"), "--language", "en", "--limit", str(cards)),
                    *("--seeker", f"hf:{model}+{role}", "--supporter", f"hf:{model}"),
                    *("--supporter-prompt", prompt, "--supporter-name", f"{Path(model).name}, {name}"),
                    *("--rounds", str(rounds), "--max-new-tokens", "64", "--out", run),
                ],
                incomplete_ok=True,
            )
        )
    for (name, _), run in zip(SUPPORTERS, runs, strict=True):
        chain.append(Stage(f"Score: {name}", ["score", run, "--scorer", str(rank)], incomplete_ok=True))
    chain.append(Stage("Report", ["report", *runs, "--out", str(out / "report")]))
    return chain
