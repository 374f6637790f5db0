"""Runs in the layouts of other tools, and dialogues of other tools as a run, so that they can be scored and reported.

| layout   | out                                                            | in                             |
|----------|----------------------------------------------------------------|--------------------------------|
| official | `{"0": ["AI assistant：…", "ESC-Role：…"]}`, one file a sample | the same; cards with --cards   |
| messages | JSON Lines of `messages`, the seeker as user                   | the same                       |
| sharegpt | JSON Lines of `conversations`, the seeker as human             | the same                       |
| csv      | one row a turn                                                 | the same, or any table of them |
| lm-eval  | a folder: results.json and samples_<rubric>.jsonl              |                                |

What messages and ShareGPT have no place for goes under the key `esckit`; so ours → theirs → ours keeps every word,
card, sample and end reason. Token counts and seeds stay behind: they are of the run that made them.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.exports import FORMATS, write_export
from data_prep.official import read_transcripts
from data_prep.records import Dialogue, Language, RoleCard, sha256_of, write_text
from data_prep.sources import Options, get_source
from eval.protocols import write_official
from eval.run_records import EndReason, Plan, Transcript, TranscriptTurn
from eval.runs import Run, open_run
from eval.statistics import mean_interval

EXPORTS = ("official", "messages", "sharegpt", "csv", "lm-eval")
IMPORTS = ("official", "messages", "sharegpt", "csv")
CSV_COLUMNS = (
    "id",
    "speaker",
    "text",
    "turn",
    "card",
    "sample",
    "language",
    "seeker_model",
    "supporter_model",
    "end_reason",
)


# ---- out


def export_run(run: Run, layout: str, out: Path) -> list[str]:
    """Writes a run's dialogues in a layout and returns the files. Raises UserError for a run without dialogues."""
    transcripts = run.transcripts()
    if not transcripts:
        raise UserError(f"{run.folder}: holds no dialogue yet; nothing to write")
    if layout == "official":
        return write_official(run, out)
    if layout == "csv":
        write_text(out, _table(transcripts))
        return [str(out)]
    if layout == "lm-eval":
        return _write_lm_eval(run, transcripts, out)
    written = write_export(FORMATS[layout], [transcript.to_dialogue() for transcript in transcripts], out)
    return [str(file) for file in written]


def _table(transcripts: Sequence[Transcript]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for one in transcripts:
        rest = (one.card.id, one.sample, one.card.language, one.seeker, one.supporter, one.end_reason.value)
        for place, turn in enumerate(one.turns):
            writer.writerow((one.key, turn.speaker, turn.text, place, *rest))
    return stream.getvalue()


def _write_lm_eval(run: Run, transcripts: Sequence[Transcript], out: Path) -> list[str]:
    """`results.json` and one `samples_<rubric>.jsonl` a scorer, with the keys lm-evaluation-harness writes.

    A metric is the mean level of a dimension, its error from a bootstrap over cards: half the 68 % interval.
    """
    judged: dict[tuple[str, str], dict[str, dict[str, float | None]]] = {}
    for judgment in run.judgments():
        task = judged.setdefault((judgment.rubric, judgment.scorer), {})
        task.setdefault(judgment.dialogue_key, {})[judgment.dimension] = judgment.expected
    if not judged:
        raise UserError(f"{run.folder}: nothing is scored yet; run: esckit score {run.folder} --scorer …")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; lm-eval results are a folder")
    results: dict[str, Any] = {}
    files = []
    for (rubric, scorer), values in judged.items():
        label = rubric if sum(name == rubric for name, _ in judged) == 1 else f"{rubric}_{scorer.replace('@', '_')}"
        results[label] = {"alias": label, "scorer": scorer, **_lm_eval_metrics(transcripts, values)}
        file = out / f"samples_{label}.jsonl"
        lines = [_lm_eval_sample(place, one, values.get(one.key, {})) for place, one in enumerate(transcripts)]
        write_text(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        files.append(str(file))
    content = {
        "results": results,
        "n-samples": {task: {"original": len(transcripts), "effective": len(transcripts)} for task in results},
        "config": {"model": transcripts[0].supporter, "settings": run.settings},
        "git_hash": run.manifest["environment"].get("git_commit"),
    }
    write_text(out / "results.json", json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    return [str(out / "results.json"), *files]


def _lm_eval_metrics(
    transcripts: Sequence[Transcript], values: dict[str, dict[str, float | None]]
) -> dict[str, float | int | None]:
    metrics: dict[str, float | int | None] = {}
    for name in dict.fromkeys(name for found in values.values() for name in found):
        by_card: dict[str, list[float]] = {}
        for one in transcripts:
            value = values.get(one.key, {}).get(name)
            if value is not None:
                by_card.setdefault(one.card.id, []).append(value)
        interval = mean_interval(by_card, confidence=0.6827)
        known = interval.low is not None and interval.high is not None
        metrics[f"{name},none"] = interval.mean
        metrics[f"{name}_stderr,none"] = (interval.high - interval.low) / 2 if known else None  # type: ignore[operator]
        metrics[f"{name}_scored,none"] = sum(len(found) for found in by_card.values())
    return metrics


def _lm_eval_sample(place: int, one: Transcript, found: dict[str, float | None]) -> dict[str, Any]:
    said = [{"role": turn.speaker, "content": turn.text} for turn in one.turns]
    return {
        "doc_id": place,
        "doc": {"key": one.key, "card": one.card.as_text(), "language": one.card.language},
        "target": "",
        "resps": [[said]],
        "filtered_resps": [said],
        "end_reason": one.end_reason.value,
        **found,
    }


# ---- in


def import_dialogues(
    file: Path, layout: str, language: Language | None = None, cards: Sequence[RoleCard] | None = None
) -> list[Dialogue]:
    """The dialogues of a file. Raises UserError at the first that cannot be read, and for an unknown language."""
    if layout == "official":
        if language is None:
            raise UserError(f"{file}: official transcripts do not say their language; give --language en or zh")
        return read_transcripts(file, language, cards)
    if layout == "csv" and language is None:
        raise UserError(f"{file}: a table does not say its language; give --language en or zh")
    conversion = get_source(layout).read(file, Options(language=language))
    if conversion.refused:
        more = f" (and {len(conversion.refused) - 1} more)" if len(conversion.refused) > 1 else ""
        raise UserError(f"{conversion.refused[0]}{more}")
    return conversion.dialogues


def as_transcripts(
    dialogues: Sequence[Dialogue], supporter: str | None, seeker: str | None, cards: Sequence[RoleCard] = ()
) -> list[Transcript]:
    """Dialogues as transcripts: what the record says of itself counts, then what the caller says.

    Cards are taken from the dialogue, else by their id among `cards`, else made without any field, for a transcript
    has one. Raises UserError where nobody says which supporter it was, and when two have the same key.
    """
    known = {card.id: card for card in cards}
    made: dict[str, Transcript] = {}
    for dialogue in dialogues:
        transcript = _as_transcript(dialogue, supporter, seeker, known)
        if transcript.key in made:
            raise UserError(
                f"dialogue {dialogue.id!r}: a dialogue of card and sample {transcript.key!r} is there already"
            )
        made[transcript.key] = transcript
    return list(made.values())


def _as_transcript(
    dialogue: Dialogue, supporter: str | None, seeker: str | None, known: dict[str, RoleCard]
) -> Transcript:
    named, _, number = dialogue.id.rpartition("#")
    ours = bool(named) and number.isascii() and number.isdecimal()
    card = dialogue.card or known.get(named if ours else dialogue.id) or known.get(dialogue.id)
    if card is None:
        card = RoleCard(id=named if ours else dialogue.id, language=dialogue.language, source="imported")
    sample = int(number) if ours else 0
    name = supporter or dialogue.meta.get("supporter")
    if not isinstance(name, str) or not name:
        raise UserError(f"dialogue {dialogue.id!r}: does not say which supporter it is of; give --supporter NAME")
    partner = seeker or dialogue.meta.get("seeker")
    reason = dialogue.meta.get("end_reason")
    return Transcript(
        key=f"{card.id}#{sample}",
        card=card,
        sample=sample,
        supporter=name,
        seeker=partner if isinstance(partner, str) and partner else "imported",
        turns=tuple(TranscriptTurn(speaker=turn.speaker, text=turn.text) for turn in dialogue.turns),
        end_reason=EndReason(reason) if reason in list(EndReason) else EndReason.imported,
        seed=None,
    )


def write_import(out: Path, file: Path, layout: str, transcripts: Sequence[Transcript]) -> int:
    """Writes transcripts to a run folder and returns how many are new there; the same import again adds nothing.

    Raises UserError when the folder holds another run.
    """
    rounds = max(sum(turn.speaker == "seeker" for turn in one.turns) for one in transcripts)
    labels = {side: sorted({getattr(one, side) for one in transcripts}) for side in ("seeker", "supporter")}
    settings: dict[str, Any] = {
        "cards": {"used": len({one.card.id for one in transcripts}), "language": None, "limit": None},
        "simulation": {"imported_from": layout, "sha256": sha256_of(file), "rounds": rounds},
        **{side: {"label": " + ".join(names), "model": None} for side, names in labels.items()},
    }
    cards = tuple(dict.fromkeys(one.card.id for one in transcripts))
    plan = Plan(cards=cards, samples=max(one.sample for one in transcripts) + 1)
    with open_run(out, settings, plan) as run:
        have = {one.key for one in run.transcripts()}
        new = [one for one in transcripts if one.key not in have]
        if new:
            run.add_transcripts(new)
    return len(new)
