"""Scoring a run: scorers behind one protocol, and the loop that appends their judgments and can be resumed.

A dialogue that was not finished is not scored: its judgments are missing with the end reason. Whatever changes a
judgment (weights, rubric) is in the scorer's label, so judgments of two scorers stand side by side and never mix.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from data_prep.errors import UserError
from data_prep.records import Dialogue
from data_prep.rubric import Rubric
from eval.runs import Judgment, RunWriter, Transcript


class Judge(Protocol):
    """Anything that judges dialogues: a trained scorer, a generative scorer, an LLM."""

    @property
    def rubric(self) -> Rubric: ...

    def identity(self) -> dict[str, Any]:
        """All that changes its judgments, with at least `name`; no paths, no time. Stored in the run folder."""
        ...

    def shortened(self, transcripts: Sequence[Transcript]) -> int:
        """How many of the dialogues are not read whole."""
        ...

    def judge(
        self, transcripts: Sequence[Transcript], batch_size: int, have: Collection[tuple[str, str]] = ()
    ) -> Iterator[list[Judgment]]:
        """A list of judgments a batch, every dimension of every transcript once, under `scorer_label(self)`.

        A list may hold some of the dimensions only. `have` are (dialogue key, dimension) that are not needed again.
        """
        ...


class TrainedScorer(Protocol):
    """The side of train.scorer.Scorer that is used here."""

    rubric: Rubric

    def identity(self) -> dict[str, str]: ...

    def score(self, dialogues: Sequence[Dialogue], batch_size: int = 16) -> list[dict[str, tuple[float, ...]]]:
        """Of every dialogue: dimension name → probabilities over its levels, lowest first."""
        ...

    def shortened(self, dialogues: Sequence[Dialogue]) -> int: ...


def scorer_label(judge: Judge) -> str:
    """`name@hash`: short enough for a table; the hash is of the whole identity and of the rubric's content."""
    content = json.dumps([judge.identity(), judge.rubric.sha], sort_keys=True, ensure_ascii=False)
    return f"{judge.identity()['name']}@{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def median_level(probabilities: Sequence[float], levels: Sequence[int]) -> int:
    """The smallest level whose cumulative probability reaches one half.

    The median, not the mode: levels are ordered, and a split such as .4 on 0, .3 on 3, .3 on 4 is not a 0.
    """
    for level, cumulative in zip(levels, accumulate(probabilities), strict=True):
        if cumulative >= 0.5 - 1e-9:
            return level
    return levels[-1]


def from_probabilities(
    transcript: Transcript, scorer: str, rubric: Rubric, found: dict[str, tuple[float, ...]]
) -> list[Judgment]:
    """One judgment a dimension; `expected` is Σ level · p, `level` the median level."""
    judgments = []
    for dimension in rubric.dimensions:
        levels, probabilities = dimension.levels(), found[dimension.name]
        judgments.append(
            Judgment(
                dialogue_key=transcript.key,
                scorer=scorer,
                rubric=rubric.name,
                dimension=dimension.name,
                probabilities=probabilities,
                expected=sum(level * p for level, p in zip(levels, probabilities, strict=True)),
                level=median_level(probabilities, levels),
            )
        )
    return judgments


class ScorerJudge:
    """A trained scorer as a judge."""

    def __init__(self, scorer: TrainedScorer):
        self.scorer = scorer
        self.rubric = scorer.rubric

    def identity(self) -> dict[str, Any]:
        return dict(self.scorer.identity())

    def judge(
        self, transcripts: Sequence[Transcript], batch_size: int, have: Collection[tuple[str, str]] = ()
    ) -> Iterator[list[Judgment]]:
        label = scorer_label(self)
        # Longest first: batches are of like lengths, what does not fit into memory fails at once, and the time left
        # is never estimated too low.
        ordered = sorted(transcripts, key=lambda transcript: -sum(len(turn.text) for turn in transcript.turns))
        for start in range(0, len(ordered), batch_size):
            batch = ordered[start : start + batch_size]
            found = self.scorer.score([transcript.to_dialogue() for transcript in batch], batch_size=batch_size)
            yield [
                judgment
                for transcript, probabilities in zip(batch, found, strict=True)
                for judgment in from_probabilities(transcript, label, self.rubric, probabilities)
            ]

    def shortened(self, transcripts: Sequence[Transcript]) -> int:
        """How many of the dialogues are too long for the scorer, so that their oldest turns are not read."""
        return self.scorer.shortened([transcript.to_dialogue() for transcript in transcripts])


def load_judge(path: str, rubric: str | None = None) -> ScorerJudge:
    """The judge of a trained scorer's folder; `rubric` chooses one of several (`Scorer.load`).

    Raises UserError when the folder is no scorer, or the rubric is not as it was in training.
    """
    from train.scorer import Scorer

    return ScorerJudge(Scorer.load(path, rubric))


@dataclass
class ScoringSummary:
    """What a scoring did: numbers of dialogues, and why judgments are missing."""

    scorer: str
    dialogues: int
    scored: int = 0
    already: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Dialogues without a full set of judgments, by reason; those of an earlier call are counted too."""


def score_run(
    run: RunWriter,
    judge: Judge,
    batch_size: int = 16,
    progress: Callable[[float], None] | None = None,
    retry_missing: bool = False,
) -> ScoringSummary:
    """Scores every dialogue of a run that this scorer has not yet judged; appends after every batch.

    `progress` is called with the number of dialogues of each batch, the already judged ones first; a batch that was
    judged on some dimensions counts by their share. With `retry_missing` this scorer's missing judgments are made
    again, the old ones kept aside. Raises UserError when the run holds no dialogue.
    """
    transcripts = run.transcripts()
    if not transcripts:
        raise UserError(f"{run.folder}: holds no dialogue to score; finish `esckit simulate` first")
    label = scorer_label(judge)
    run.add_scorer(label, {"identity": judge.identity(), "rubric": judge.rubric.model_dump(mode="json")})
    if retry_missing:
        run.set_aside_missing(label)
    have = {(judgment.dialogue_key, judgment.dimension) for judgment in run.judgments() if judgment.scorer == label}
    names = judge.rubric.names()
    open_ones = [one for one in transcripts if any((one.key, name) not in have for name in names)]
    summary = ScoringSummary(label, len(transcripts), already=len(transcripts) - len(open_ones))

    def keep(judgments: list[Judgment]) -> None:
        new = [one for one in judgments if (one.dialogue_key, one.dimension) not in have]
        run.add_judgments(new)
        if progress:
            progress(len(new) / len(names))

    if progress and have:
        progress(len(have) / len(names))
    unfinished = [one for one in open_ones if one.end_reason.is_fault]
    if unfinished:
        keep([missing for one in unfinished for missing in _unscored(one, label, judge.rubric)])
    finished = [one for one in open_ones if not one.end_reason.is_fault]
    for judgments in judge.judge(finished, batch_size, have):
        keep(judgments)
    summary.scored = len(finished)
    reasons: dict[str, str] = {}
    for judgment in run.judgments():
        if judgment.scorer == label and judgment.reason is not None:
            reasons.setdefault(judgment.dialogue_key, judgment.reason)
    summary.missing.update(reasons.values())
    return summary


def _unscored(transcript: Transcript, label: str, rubric: Rubric) -> list[Judgment]:
    reason = f"not scored: the dialogue ended with {transcript.end_reason.value}"
    return [
        Judgment(dialogue_key=transcript.key, scorer=label, rubric=rubric.name, dimension=name, reason=reason)
        for name in rubric.names()
    ]
