"""The two ways to hold a dialogue that have a name: the published ESC-Eval loop, and ours.

|                        | official                               | recommended                        |
|------------------------|----------------------------------------|------------------------------------|
| prompts, greeting      | the published texts, from your clone   | ours, or yours                     |
| exchanges              | five                                   | --rounds (5), --end                |
| supporter's greeting   | never shown to the supporter           | shown, unless --greeting-hidden    |

In both, all supporters have the same token budget and decoding (`--max-new-tokens`, `--temperature`); the published
code has 512 sampled tokens for one model and 256 greedy ones for another.
"""

from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.official import write_transcripts
from data_prep.official_dialogue_prompts import read_dialogue_prompts
from data_prep.records import Dialogue
from eval.run_records import Transcript
from eval.runs import Run

PROTOCOLS = ("recommended", "official")
END_RULES = ("rounds", "natural")
OFFICIAL_ROUNDS = 5
OPTIONS = {
    "rounds": "--rounds",
    "end": "--end",
    "greeting": "--greeting",
    "seeker_prompt": "--seeker-prompt",
    "supporter_prompt": "--supporter-prompt",
    "greeting_shown_to_supporter": "--greeting-shown",
}


def protocol_settings(protocol: str, official_repo: Path | None, **given: Any) -> dict[str, Any]:
    """Fields of SimulationSettings for a protocol; `given` are the user's own, None where not given.

    Raises UserError for an unknown protocol or end rule, for an official one without a clone, and where the user
    asks for what the official protocol has otherwise.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"--protocol is {protocol!r}; known: {', '.join(PROTOCOLS)}")
    if given.get("end") not in (None, *END_RULES):
        raise UserError(f"--end is {given['end']!r}; known: {', '.join(END_RULES)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    if protocol == "recommended":
        if official_repo is not None:
            raise UserError("--official-repo is read for --protocol official only; add that, or leave it out")
        return chosen
    if official_repo is None:
        raise UserError(
            "--protocol official needs the published prompts, which may not be handed on; clone "
            "https://github.com/haidequanbu/ESC-Eval and name it with --official-repo"
        )
    prompts = read_dialogue_prompts(official_repo)
    fixed = {
        "rounds": OFFICIAL_ROUNDS,
        "end": "rounds",
        "greeting": prompts.greeting,
        "seeker_prompt": prompts.seeker,
        "supporter_prompt": prompts.supporter,
        "greeting_shown_to_supporter": False,
    }
    against = [OPTIONS[name] for name, value in chosen.items() if value != fixed[name]]
    if against:
        raise UserError(f"--protocol official fixes {', '.join(against)}; leave it out, or use --protocol recommended")
    return {"protocol": "official", **fixed}


def official_dialogues(run: Run, transcripts: list[Transcript]) -> list[Dialogue]:
    """Dialogues with the position of their card as their official key; those that a fault ended are left out.

    Raises UserError for a run that does not say in which order its cards were.
    """
    if run.plan is None:
        raise UserError(f"{run.folder}: was made by an earlier version and does not say the order of its cards")
    places = {card: str(position) for position, card in enumerate(run.plan.cards)}
    whole = [transcript for transcript in transcripts if not transcript.end_reason.is_fault]
    whole.sort(key=lambda transcript: int(places[transcript.card.id]))
    return [
        dialogue.model_copy(update={"meta": {**dialogue.meta, "official_key": places[transcript.card.id]}})
        for transcript in whole
        for dialogue in [transcript.to_dialogue()]
    ]


def write_official(run: Run, out: Path) -> list[str]:
    """Writes a run as official transcript files: `out`, or one file a sample where there are several.

    Returns the files written. An official file has one dialogue a card. Raises UserError like `official_dialogues`,
    and for a run without a whole dialogue.
    """
    by_sample: dict[int, list[Transcript]] = {}
    for transcript in run.transcripts():
        by_sample.setdefault(transcript.sample, []).append(transcript)
    written = []
    for sample, transcripts in sorted(by_sample.items()):
        dialogues = official_dialogues(run, transcripts)
        if dialogues:
            file = out if len(by_sample) == 1 else out.with_name(f"{out.stem}-{sample}{out.suffix}")
            write_transcripts(file, dialogues)
            written.append(str(file))
    if not written:
        raise UserError(f"{run.folder}: holds no whole dialogue; nothing to write")
    return written


def write_beside(run: Run) -> list[str]:
    """The official transcript file in the run folder itself; nothing while no dialogue is whole."""
    if all(transcript.end_reason.is_fault for transcript in run.transcripts()):
        return []
    return write_official(run, run.folder / "official.json")
