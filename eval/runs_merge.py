"""Run folders that were made side by side (`--shard i/n`) joined into one, by key and never by position."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import UserError
from eval.run_records import WHOLE, Judgment, Plan, Transcript
from eval.runs import Run, differences, load_run, open_run

KeyedT = TypeVar("KeyedT", Transcript, Judgment)
FIRST_SHOWN = 5


def merge_runs(folders: Sequence[Path], out: Path) -> Run:
    """Writes all dialogues and judgments of the folders to a new one, by card and sample; `missing()` says what lacks.

    Raises UserError for folders of other settings or cards (the difference is shown), for a dialogue that two of
    them hold, for scorers of one name and other settings, and when `out` is there already.
    """
    runs = [load_run(folder) for folder in folders]
    if out.exists():
        raise UserError(f"{out}: exists already; name a folder that is not there yet")
    plan = _common_plan(runs)
    order = {key: place for place, key in enumerate(plan.dialogue_keys())}
    transcripts = _joined([(run, run.transcripts()) for run in runs])
    for run, transcript in transcripts:
        if transcript.key not in order:
            raise UserError(f"{run.folder}: holds dialogue {transcript.key!r}, which is none of its manifest's plan")
    judgments = _joined([(run, run.judgments()) for run in runs])
    scorers = _common_scorers(runs)
    # Built aside and renamed, so that a merge that was stopped leaves nothing that looks like a whole run.
    aside = out.with_name(f".{out.name}.merging")
    if aside.exists():
        raise UserError(f"{aside}: is left from a merge that was stopped, or one is going on; remove it and try again")
    with open_run(aside, runs[0].settings, plan) as writer:
        writer.add_transcripts([found for _, found in sorted(transcripts, key=lambda one: order[one[1].key])])
        for name, settings in scorers.items():
            writer.add_scorer(name, settings)
        if judgments:
            writer.add_judgments([found for _, found in judgments])
        writer.note("merged", [_origin(run) for run in runs])
    aside.rename(out)
    return load_run(out)


def _common_plan(runs: Sequence[Run]) -> Plan:
    """The plan of the whole. Raises UserError where settings or cards differ, or where a folder has no plan."""
    plans = [run.plan for run in runs]
    for run, plan in zip(runs, plans, strict=True):
        if plan is None:
            raise UserError(
                f"{run.folder}: was made by an earlier version and does not say which dialogues belong to it"
            )
        found = differences(runs[0].settings, run.settings)
        if plans[0] is not None and plan.cards != plans[0].cards:
            found.append("other cards")
        if found:
            told = "; ".join(found[:FIRST_SHOWN]).replace("in the folder", f"in {runs[0].folder}")
            raise UserError(f"{run.folder}: was made with other settings than {runs[0].folder} ({told})")
    assert plans[0] is not None
    return plans[0].model_copy(update={"shard": WHOLE})


def _joined(parts: Sequence[tuple[Run, Sequence[KeyedT]]]) -> list[tuple[Run, KeyedT]]:
    """All records with their run. Raises UserError when two runs hold the same key."""
    seen: dict[Any, Run] = {}
    joined = []
    for run, records in parts:
        for record in records:
            if record.key in seen:
                what = record.key if isinstance(record.key, str) else record.key[0]
                raise UserError(
                    f"{run.folder}: {what!r} is in {seen[record.key].folder} too; merge folders of different shards"
                )
            seen[record.key] = run
            joined.append((run, record))
    return joined


def _common_scorers(runs: Sequence[Run]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for run in runs:
        for name, settings in run.scorers().items():
            if found := differences(known.setdefault(name, settings), settings):
                raise UserError(f"{run.folder}: scorer {name!r} judged here with other settings ({'; '.join(found)})")
    return known


def _origin(run: Run) -> dict[str, Any]:
    """Where a part comes from: its shard and what ran it. No path: folders move."""
    return {key: value for key, value in run.manifest.items() if key in ("environment", "resumed")} | {
        "folder": run.folder.name,
        "shard": run.manifest["plan"]["shard"],
    }
