"""A human study over runs: dialogues sampled for blinded sheets, ratings brought back, judge and people compared."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import UserError
from data_prep.records import Dialogue, Rating
from data_prep.rubric import Dimension, Rubric
from eval.report_runs import RATINGS
from eval.runs import Judgment, Run, Transcript
from eval.scorer_figures import Predictions, figures, numbered
from eval.statistics import Interval

SHOWN = ("kappa", "spearman", "mae", "within_one")
APART = "::"


@dataclass(frozen=True)
class Agreement:
    """How well a judge agrees with people on one dimension, beside a constant that says people's commonest level."""

    dimension: str
    dialogues: int
    judge: dict[str, Interval]
    """kappa (quadratic weights), spearman, mae (levels), within_one, with intervals over cards."""
    constant: dict[str, Interval]


def study_id(run: Run, key: str) -> str:
    """A dialogue's name in a study of several runs: keys are unique in their run only."""
    return f"{run.folder.name}{APART}{key}"


def sample_dialogues(runs: Sequence[Run], cards: int, seed: int = 0) -> list[Dialogue]:
    """The whole dialogues of `cards` cards that all runs have, one sample each, in a drawn order.

    The same cards for every supporter, so that people's ratings are paired as the judge's are. Nothing of the
    dialogue's origin is left in it but its id, which sheets do not show. Raises UserError when too few cards are shared
    or two runs have the same folder name.
    """
    names = [run.folder.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"two runs are called {twice[0]!r}; rename one folder, ratings are brought back by that name")
    generator = random.Random(seed)
    whole: list[dict[str, list[Transcript]]] = []
    for run in runs:
        by_card: dict[str, list[Transcript]] = {}
        for one in run.transcripts():
            if not one.end_reason.is_fault:
                by_card.setdefault(one.card.id, []).append(one)
        whole.append(by_card)
    shared = sorted(set(whole[0]).intersection(*whole[1:]))
    if len(shared) < cards:
        raise UserError(f"only {len(shared)} cards have a whole dialogue in all runs; --cards {cards} asks for more")
    chosen = generator.sample(shared, cards)
    found = []
    for run, by_card in zip(runs, whole, strict=True):
        for card in chosen:
            one = generator.choice(sorted(by_card[card], key=lambda transcript: transcript.sample))
            found.append(one.to_dialogue().model_copy(update={"id": study_id(run, one.key), "meta": {}}))
    generator.shuffle(found)
    return found


def ratings_of(run: Run, ratings: Iterable[Rating]) -> list[Rating]:
    """The ratings of a study that are of this run's dialogues, under their keys there."""
    start = f"{run.folder.name}{APART}"
    return [
        one.model_copy(update={"dialogue_id": one.dialogue_id.removeprefix(start)})
        for one in ratings
        if one.dialogue_id.startswith(start)
    ]


def people_of(run: Run, rubric: Rubric) -> str | None:
    """The label of ratings of this rubric that were attached to a run, the last one; None without."""
    found = [
        label
        for label, stored in run.scorers().items()
        if stored.get("identity", {}).get("kind") == RATINGS and stored["rubric"]["name"] == rubric.name
    ]
    return found[-1] if found else None


def agreement(
    rubric: Rubric,
    pairs: Sequence[tuple[str, dict[tuple[str, str], Judgment], dict[tuple[str, str], Judgment], dict[str, str]]],
    seed: int = 0,
) -> list[Agreement]:
    """Judge and people on the dialogues that have both.

    `pairs`, one a supporter: its name, the judge's judgments and people's, by (key, dimension), and cards by key.
    """
    found = []
    for dimension in rubric.dimensions:
        rows = [
            (one, rated, cards[key])
            for _, judged, people, cards in pairs
            for (key, name), rated in people.items()
            if name == dimension.name and rated.level is not None and (one := judged.get((key, name))) is not None
            if one.expected is not None and key in cards
        ]
        if rows:
            found.append(_agreement(dimension, rows, seed))
    return found


def _agreement(dimension: Dimension, rows: Sequence[tuple[Judgment, Judgment, str]], seed: int) -> Agreement:
    levels = list(dimension.levels())
    rated = np.array([levels.index(int(people.level or 0)) for _, people, _ in rows])
    groups = numbered([card for _, _, card in rows])
    said = [_distribution(judged, levels) for judged, _, _ in rows]
    judge = Predictions(np.array([_level(judged, levels) for judged, _, _ in rows]), np.array(said))
    common = int(np.bincount(rated, minlength=len(levels)).argmax())
    constant = Predictions(np.full(len(rows), common), np.tile(np.eye(len(levels))[common], (len(rows), 1)))
    both: list[dict[str, Interval]] = [
        {name: value for name, value in figures(rated, one, groups, seed).items() if name in SHOWN}
        for one in (judge, constant)
    ]
    return Agreement(dimension.name, len(rows), both[0], both[1])


def _level(judged: Judgment, levels: Sequence[int]) -> int:
    level = judged.level if judged.level is not None else round(judged.expected or 0)
    return levels.index(min(max(level, levels[0]), levels[-1]))


def _distribution(judged: Judgment, levels: Sequence[int]) -> Any:
    if judged.probabilities is not None:
        return judged.probabilities
    return np.eye(len(levels))[_level(judged, levels)]


def study_files(folder: Path) -> tuple[Path, Path]:
    """Where the sampled dialogues and the sheets of a study lie."""
    return folder / "dialogues.jsonl", folder / "annotation"
