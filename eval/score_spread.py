"""Whether scores vary at all: where one level is nearly always given, any constant agrees with them as well."""

from collections import Counter
from collections.abc import Iterable, Sequence

from eval.runs import Judgment

HARDLY = 0.85
"""Mean share of the commonest level, over dimensions, from which scores are said to hardly vary."""
FEWEST = 5
"""Dialogues below which nothing is said: a few may be alike by chance."""


def spread_warning(label: str, judgments: Iterable[Judgment], dimensions: Sequence[str]) -> str | None:
    """One line with the figures where scores hardly vary, else None.

    A constant predictor says the commonest level of each dimension; its ACC is how often that is the level given, its
    ACC_soft how often it is at most one off, as ESC-Eval counts them.
    """
    levels: dict[str, Counter[int]] = {name: Counter() for name in dimensions}
    for judgment in judgments:
        if judgment.dimension in levels and judgment.expected is not None:
            level = judgment.level if judgment.level is not None else round(judgment.expected)
            levels[judgment.dimension][level] += 1
    given = {name: counts for name, counts in levels.items() if counts.total()}
    if not given or max(counts.total() for counts in given.values()) < FEWEST:
        return None
    common = {name: max(counts, key=lambda level: (counts[level], -level)) for name, counts in given.items()}
    total = sum(counts.total() for counts in given.values())
    shares = {name: counts[common[name]] / counts.total() for name, counts in given.items()}
    if sum(shares.values()) / len(shares) < HARDLY:
        return None
    soft = sum(counts[level] for name, counts in given.items() for level in counts if abs(level - common[name]) <= 1)
    exact = sum(counts[common[name]] for name, counts in given.items())
    one = [name for name, counts in given.items() if len(counts) == 1]
    alike = f"{len(one)} of {len(given)} dimensions have one level only; " if one else ""
    return (
        f"The scores of {label} hardly vary: {alike}a constant that always says the commonest level gets ACC "
        f"{exact / total:.1%} and ACC_soft {soft / total:.1%} on them. They beat no constant predictor: such scores "
        "can neither rank supporters nor show that a scorer works."
    )
