"""`esckit data export` and `esckit data fetch`: our records in other tools' layouts, and datasets from the hub."""

import json
from pathlib import Path
from typing import Annotated

import typer

from data_prep.errors import UserError


def export(
    layout: Annotated[str, typer.Argument(metavar="FORMAT", help="messages, sharegpt, patienthub or sdialog.")],
    file: Annotated[Path, typer.Argument(help="JSON Lines file of dialogues or of role cards.")],
    out: Annotated[
        Path,
        typer.Option(help="File to write; a folder for layouts of one file a record (sdialog, PatientHub sessions)."),
    ],
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Only what the layout defines, without strategies, cards and notes of ours."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write dialogues or role cards in the layout of another tool; `esckit data convert` reads them back."""
    from difflib import get_close_matches

    from data_prep.cli import read_dialogues_or_cards, refuse_overwriting
    from data_prep.exports import FORMATS, write_export

    if layout not in FORMATS:
        close = get_close_matches(layout.casefold(), FORMATS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(FORMATS)}"
        raise UserError(f"unknown format {layout!r}; {hint}")
    refuse_overwriting(file, (out,))
    records = read_dialogues_or_cards(file)
    files = write_export(FORMATS[layout], records, out, bare)
    if as_json:
        report = {"format": layout, "records": len(records), "out": str(out), "files": len(files)}
        typer.echo(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        typer.echo(
            f"{len(records):,} records written to {out}" + (f" ({len(files):,} files)" if files != [out] else "")
        )


def fetch(
    source: Annotated[str, typer.Argument(help="Name of the source, see: esckit data sources")],
    out: Annotated[Path | None, typer.Option(help="Folder for the files; by default one in the cache.")] = None,
) -> None:
    """Download a dataset's files from the Hugging Face hub, with their revision and sha256 in source.json.

    Where there is no hub, or the dataset is not on it, the error says which files to bring and from where.
    """
    from data_prep.fetching import fetch_dataset
    from data_prep.sources import get_source

    folder = fetch_dataset(get_source(source), out, lambda line: typer.echo(line, err=True))
    typer.echo(str(folder))
