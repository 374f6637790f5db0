"""Where the spread of scores comes from: role cards, samples of one card, judges."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rated:
    """One value: of which card, which dialogue (sample) of it, by which judge."""

    card: str
    dialogue: str
    judge: str
    value: float


@dataclass(frozen=True)
class Components:
    """Variances, in squared units of the values. None where the data do not repeat what would be needed.

    With one judge `sample` holds the judge's own noise, too: nothing separates them. A negative estimate, which chance
    can give where the true variance is small, is 0 and named in `below_zero`.
    """

    card: float | None
    sample: float | None
    judge: float | None
    rest: float | None
    """Dialogue × judge, and noise."""
    cards: int
    dialogues: int
    judges: int
    below_zero: tuple[str, ...]


def variance_components(values: Sequence[Rated]) -> Components:
    """Components by the method of moments: mean squares set equal to their expectations (Searle, Casella and McCulloch
    1992, Variance Components, chapters 3 and 5), dialogues nested in cards and crossed with judges.

    Only dialogues with a value of every judge count. Raises ValueError for two values of one dialogue and judge.
    """
    judges = sorted({one.judge for one in values})
    table: dict[tuple[str, str], dict[str, float]] = {}
    for one in values:
        if one.judge in table.setdefault((one.card, one.dialogue), {}):
            raise ValueError(f"dialogue {one.dialogue!r} has two values of judge {one.judge!r}")
        table[one.card, one.dialogue][one.judge] = one.value
    whole = {key: row for key, row in table.items() if len(row) == len(judges)}
    cards = sorted({card for card, _ in whole})
    n, j, c = len(whole), len(judges), len(cards)
    if n < 2:
        return Components(None, None, None, None, c, n, j, ())
    x = np.array([[row[judge] for judge in judges] for row in whole.values()])
    card_of = np.array([cards.index(card) for card, _ in whole])
    sizes = np.bincount(card_of)
    means = x.mean(axis=1)
    card_means = np.bincount(card_of, means) / sizes
    ms_card = j * float((sizes * (card_means - means.mean()) ** 2).sum()) / (c - 1) if c > 1 else None
    ms_sample = j * float(((means - card_means[card_of]) ** 2).sum()) / (n - c) if n > c else None
    ms_judge = n * float(((x.mean(axis=0) - x.mean()) ** 2).sum()) / (j - 1) if j > 1 else None
    residual = x - means[:, None] - x.mean(axis=0)[None, :] + x.mean()
    rest = float((residual**2).sum()) / ((n - 1) * (j - 1)) if j > 1 else None
    noise = rest or 0.0
    # E(MS_card) = rest + j·sample + j·n0·card, where n0 is the typical number of dialogues of a card.
    n0 = (n - float((sizes**2).sum()) / n) / (c - 1) if c > 1 else 0.0
    estimates = {
        "card": (ms_card - ms_sample) / (j * n0) if ms_card is not None and ms_sample is not None else None,
        "sample": (ms_sample - noise) / j if ms_sample is not None else None,
        "judge": (ms_judge - noise) / n if ms_judge is not None else None,
    }
    below = tuple(name for name, value in estimates.items() if value is not None and value < 0)
    kept = {name: None if value is None else max(0.0, value) for name, value in estimates.items()}
    return Components(kept["card"], kept["sample"], kept["judge"], rest, c, n, j, below)
