"""`esckit model export`: a training result made ready for somebody else."""

from pathlib import Path
from typing import Annotated

import typer

TARGETS = ("merged", "hub", "ollama", "vllm")


def export(
    model: Annotated[str, typer.Argument(metavar="FOLDER", help="Result of `esckit train`, or of --to merged.")],
    to: Annotated[str, typer.Option(help="merged, hub, ollama or vllm.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the merged model (--to merged).")] = None,
    base: Annotated[str | None, typer.Option(help="16-bit base model, if not the one the adapter names.")] = None,
    dtype: Annotated[str, typer.Option(help="Merged weights: auto (the base's), float32, bfloat16, float16.")] = "auto",
    repo: Annotated[str | None, typer.Option(help="organisation/name on the hub (--to hub).")] = None,
    private: Annotated[bool, typer.Option("--private/--public", help="Who sees the repository.")] = True,
    name: Annotated[str, typer.Option(help="Name under which the model is served (ollama, vllm).")] = "esc-model",
) -> None:
    """Merge an adapter (proven on probe texts), upload a result, or print what Ollama or vLLM need to serve it.

    Example: esckit model export runs/esc_role --to merged --out merged/esc_role

    Example: esckit model export merged/esc_role --to ollama --name esc-role
    """
    from data_prep.errors import UserError
    from train import publish

    if to not in TARGETS:
        raise UserError(f"--to {to!r}: known: {', '.join(TARGETS)}")
    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise UserError(f"--dtype is {dtype!r}; known: auto, float32, bfloat16, float16")
    if to == "merged":
        if out is None:
            raise UserError("--out is missing: the folder of the merged model")
        publish.export_merged(model, out, base, dtype, typer.echo)
        typer.echo(f"saved in {out}")
    elif to == "hub":
        if repo is None:
            raise UserError("--repo is missing: organisation/name on the hub")
        typer.echo(publish.export_hub(model, repo, private, typer.echo))
    else:
        commands = publish.ollama_files(model, name) if to == "ollama" else publish.vllm_commands(model, name)
        typer.echo("files are complete; run:")
        for command in commands:
            typer.echo(command)


def convert_internlm2(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Folder of an InternLM2 model.")],
    adapters: Annotated[
        list[Path] | None, typer.Argument(metavar="[ADAPTER]...", help="Folders of LoRA adapters on it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder: base/ and one folder an adapter, by its name.")] = Path(
        "llama"
    ),
) -> None:
    """Put InternLM2 and LoRA adapters on it into the Llama layout, so that they load without code from the hub.

    Example: esckit model convert-internlm2 internlm2-chat-7b ESC-RANK/empathic ESC-RANK/empathic_en --out esc-rank
    """
    from data_prep.errors import UserError
    from train.convert_internlm2 import convert_adapter, convert_base

    names = ["base", *(adapter.resolve().name for adapter in adapters or [])]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"two of the folders are called {twice!r}; rename one, each gets a folder of its name in --out")
    convert_base(base, out / "base", typer.echo)
    for adapter, name in zip(adapters or [], names[1:], strict=True):
        convert_adapter(adapter, base, out / name, typer.echo, str(out / "base"))
