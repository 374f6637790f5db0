"""What the mechanical audit says of each supporter's dialogues, for the report: rates, marks, who is above a threshold.

A difference between supporters is worth little where the seeker did not do its job, so the report always says.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.audit import Audit, Mark, Rate, audit, rates
from eval.runs import Transcript

THRESHOLD = 0.2
"""Share of dialogues with one fault from which a run is marked."""


@dataclass(frozen=True)
class AuditSummary:
    """The audit of one supporter's dialogues."""

    rates: Sequence[Rate]
    marks: Mapping[str, list[Mark]]
    """By the dialogue's key."""
    crisis: frozenset[str]
    """Keys of the dialogues of crisis cards."""
    above: Sequence[Rate]
    """The rates above `THRESHOLD`."""


def summarise_audit(transcripts: Sequence[Transcript], rounds: int | None) -> AuditSummary:
    """Audits the dialogues; `rounds` is how many exchanges the run asked for, None where it does not say."""
    found: Audit = audit(transcripts, rounds)
    cards = {transcript.key: transcript.card.id for transcript in transcripts}
    shares = rates(found, list(cards), cards.__getitem__)
    marks: dict[str, list[Mark]] = {}
    for mark in found.marks:
        marks.setdefault(mark.key, []).append(mark)
    above = [rate for rate in shares if rate.share is not None and rate.share > THRESHOLD]
    return AuditSummary(shares, marks, found.crisis, above)


def audit_warning(summaries: Mapping[str, AuditSummary]) -> str | None:
    """One line on the marked supporters, by label; None where all are below the threshold everywhere."""
    marked = {label: one for label, one in summaries.items() if one.above}
    if not marked:
        return None
    head = f"Marked by the audit (a fault in more than {THRESHOLD:.0%} of the dialogues)"
    if len(marked) > 2:
        faults = Counter(f"{rate.side} {rate.fault}" for one in marked.values() for rate in one.above)
        often = ", ".join(f"{fault} ({count})" for fault, count in faults.most_common(3))
        return f"{head}: {len(marked)} of {len(summaries)} supporters, most often for {often}; see Audit."
    said = (
        f"{label}: " + ", ".join(f"{rate.side} {rate.fault} {rate.share:.0%}" for rate in one.above)
        for label, one in marked.items()
    )
    return f"{head}. {'. '.join(said)}."
