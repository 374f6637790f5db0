"""What a report holds: supporters with their figures, differences, slices, all ready to be shown."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from data_prep.leaks import Leak
from data_prep.rubric import Rubric
from eval.report_audit import AuditSummary
from eval.runs import Judgment, Run, Transcript
from eval.slices import Slice
from eval.statistics import Interval, PairedDifference
from eval.statistics_ranks import RankInterval
from eval.statistics_variance import Components
from eval.study import Agreement

if TYPE_CHECKING:
    from eval.reference import Reference

AVERAGE = "average"
ALPHA = 0.05
FEW_CARDS = 10


@dataclass(frozen=True)
class Column:
    """A dimension of the rubric, or the average of all. `scale` is None for an average over unlike scales."""

    name: str
    title: str
    scale: tuple[int, int] | None


@dataclass(frozen=True)
class Figure:
    """One supporter on one column: on 0..100, and in levels where the column has a scale."""

    percent: Interval
    level: Interval | None
    detectable: float | None
    """Smallest difference, in points of 100, to another supporter on as many cards that would be found with
    probability 0.8 if the two were unrelated; pairing on the same cards usually finds smaller ones."""


@dataclass
class Entry:
    """One supporter of one run."""

    label: str
    run: str
    supporter: str
    transcripts: list[Transcript]
    judgments: dict[tuple[str, str], Judgment]
    """By (dialogue key, dimension)."""
    points: dict[str, dict[str, list[float]]]
    """Column → card → one value a sample, on 0..100."""
    dialogue_points: dict[str, dict[str, float]]
    """Dialogue key → column → value on 0..100, where there is one."""
    figures: dict[str, Figure]
    audit: AuditSummary
    end_reasons: Counter[str]
    missing: Counter[str]
    """Dialogues without a full set of judgments, by reason."""
    cut_turns: int
    """Supporter turns that ended at the token limit."""
    bounds: tuple[float, float] | None
    """The average, on 0..100, were every dialogue without a score at the bottom, and at the top, of the scale."""
    variance: Components | None
    """Of the average, in squared points of 100; None where no card has two samples and no dialogue two judges."""
    rank: RankInterval | None = None
    """None without an average, or with a single supporter."""


@dataclass
class Comparison:
    """a minus b, in points of 100; a is the one with the higher average."""

    a: Entry
    b: Entry
    by_column: dict[str, PairedDifference]
    holm_p: dict[str, float | None] = field(default_factory=dict)
    """The average: corrected over all pairs. The dimensions: over all pairs and dimensions."""

    @property
    def clear(self) -> bool:
        p = self.holm_p[AVERAGE]
        return p is not None and p < ALPHA


@dataclass
class Report:
    """All figures; entries are ordered by their average, the best first."""

    runs: list[Run]
    rubric: Rubric
    scorers: dict[str, dict[str, Any]]
    columns: list[Column]
    entries: list[Entry]
    comparisons: list[Comparison]
    confidence: float
    seed: int
    warnings: list[str]
    slices: list[Slice]
    """Of the averages, in the order of the entries."""
    reference: "Reference | None" = None
    """A published leaderboard beside it, where one was asked for (`eval.reference.compare_with`)."""
    agreement: list[Agreement] = field(default_factory=list)
    """Judge and people, where people's ratings of these dialogues were attached (`esckit study attach`)."""
    leaks: list[tuple[str, Sequence[Leak]]] | None = None
    """What the cards share with named training files, by file; None where none was named."""
