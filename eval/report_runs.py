"""Which runs may stand in one report: judged by one scorer on one rubric, and alike in all but the supporter."""

from collections.abc import Sequence
from typing import Any

from data_prep.errors import UserError
from data_prep.rubric import Rubric
from eval.runs import Judgment, Run, differences

PANEL = "panel"
RATINGS = "ratings"

# What may differ between compared runs: the system under test, and how much was run. The supporter's prompt and
# sampling belong to the system under test, but a reader must know of them, so they are noted.
NOTED_SETTINGS = ("simulation.supporter_",)
FREE_SETTINGS = (
    "supporter.",
    "cards.",
    "simulation.seed:",
    "simulation.samples:",
    "simulation.batch_size:",
    *NOTED_SETTINGS,
)


def judgments_by(run: Run, label: str) -> tuple[list[str], dict[tuple[str, str], Judgment]]:
    """The judges behind a label of `choose_scorers`, and judgments by (dialogue key, dimension).

    A panel's judgment is the mean of its members' expected levels, and missing where one of them has none: a mean over
    changing members would compare unlike things.
    """
    found: dict[str, dict[tuple[str, str], Judgment]] = {}
    for judgment in run.judgments():
        found.setdefault(judgment.scorer, {})[judgment.dialogue_key, judgment.dimension] = judgment
    if not label.startswith(f"{PANEL} of "):
        return [label], found.get(label, {})
    members = _judges(run, PANEL)
    keys = dict.fromkeys(key for name in members for key in found[name])
    return members, {key: _mean_of(label, key, [found[name].get(key) for name in members]) for key in keys}


def _mean_of(label: str, key: tuple[str, str], judged: Sequence[Judgment | None]) -> Judgment:
    one = next(judgment for judgment in judged if judgment is not None)
    place: dict[str, Any] = {"dialogue_key": key[0], "dimension": key[1], "scorer": label, "rubric": one.rubric}
    levels = [judgment.expected for judgment in judged if judgment is not None and judgment.expected is not None]
    if len(levels) < len(judged):
        return Judgment(
            **place, reason=f"{len(judged) - len(levels)} of {len(judged)} judges of the panel gave no level"
        )
    return Judgment(**place, expected=sum(levels) / len(levels))


def _judges(run: Run, asked: str | None) -> list[str]:
    """Whose judgments a run holds. People's ratings count when they are asked for, or nothing else is there."""
    present = sorted({judgment.scorer for judgment in run.judgments()})
    kinds = {name: run.scorers().get(name, {}).get("identity", {}).get("kind") for name in present}
    machines = [name for name in present if kinds[name] != RATINGS]
    return machines if machines and asked in (None, PANEL) else present


def choose_scorers(runs: Sequence[Run], asked: str | None, force: bool, warnings: list[str]) -> list[str]:
    """The scorer label to use of every run."""
    chosen = []
    for run in runs:
        present = _judges(run, asked)
        if not present:
            raise UserError(f"{run.folder}: is not scored; run: esckit score {run.folder} --scorer PATH")
        if asked == PANEL:
            if len(present) < 2:
                raise UserError(
                    f"{run.folder}: --scorer panel needs two judges at least; only {present[0]} judged here"
                )
            chosen.append(f"{PANEL} of {', '.join(present)}")
            continue
        fitting = [name for name in present if asked is None or name == asked or name.split("@")[0] == asked]
        if not fitting:
            raise UserError(f"{run.folder}: scorer {asked!r} did not judge here; known: {', '.join(present)}")
        if len(fitting) > 1:
            raise UserError(
                f"{run.folder}: judged by {len(fitting)} scorers ({', '.join(fitting)}); name one with --scorer"
            )
        chosen.append(fitting[0])
    for run, label in zip(runs, chosen, strict=True):
        if label != chosen[0]:
            found = f"{runs[0].folder} was judged by {chosen[0]}, {run.folder} by {label}"
            if not force:
                raise UserError(f"{found}; score both with one scorer, or compare anyway with --force")
            warnings.append(f"Forced: {found}; a difference may be the scorers', not the supporters'.")
    return chosen


def one_rubric(runs: Sequence[Run], chosen: Sequence[str]) -> Rubric:
    rubrics = []
    for run, label in zip(runs, chosen, strict=True):
        names = judgments_by(run, label)[0]
        kinds = {run.scorers().get(name, {}).get("rubric", {}).get("name") for name in names}
        if len(kinds) > 1:
            raise UserError(f"{run.folder}: the judges of the panel used different rubrics; name one with --scorer")
        stored = run.scorers().get(names[0])
        if stored is None or "rubric" not in stored:
            raise UserError(f"{run.folder / 'scorers.json'}: says nothing of scorer {label!r}; score the run again")
        rubrics.append(Rubric.model_validate(stored["rubric"]))
    shape = [(dimension.name, dimension.scale) for dimension in rubrics[0].dimensions]
    for run, rubric in zip(runs, rubrics, strict=True):
        # Not even --force can subtract a scale of 1..5 from one of 0..4.
        if [(dimension.name, dimension.scale) for dimension in rubric.dimensions] != shape:
            raise UserError(
                f"{run.folder}: rubric {rubric.name} has other dimensions than {rubrics[0].name} of {runs[0].folder}"
            )
    return rubrics[0]


def check_comparable(runs: Sequence[Run], force: bool, warnings: list[str]) -> None:
    first = runs[0]
    cards = {one.card.id: one.card for one in first.transcripts()}
    for run in runs[1:]:
        lines = [
            line.replace(" in the folder", f" in {first.folder.name}").replace(" now", f" in {run.folder.name}")
            for line in differences(first.settings, run.settings)
        ]
        if noted := [line for line in lines if line.startswith(NOTED_SETTINGS)]:
            warnings.append(f"The supporters were set up differently: {_listed(noted)}.")
        found = [line for line in lines if not line.startswith(FREE_SETTINGS)]
        changed = sorted({c.card.id for c in run.transcripts() if cards.get(c.card.id, c.card) != c.card})
        if changed:
            found.append(f"card {changed[0]!r} is another card there ({len(changed)} such cards)")
        if not found:
            continue
        if not force:
            raise UserError(
                f"{run.folder}: differs from {first.folder} in more than the supporter ({_listed(found)}); "
                "simulate both alike, or compare anyway with --force"
            )
        warnings.append(f"Forced: {run.folder.name} differs in more than the supporter ({_listed(found)}).")


def _listed(lines: Sequence[str]) -> str:
    return "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
