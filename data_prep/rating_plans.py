"""Who rates what: dialogues are given to raters so that loads are equal and raters meet each other evenly."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from random import Random

from data_prep.errors import UserError

# Names become file names and cells of spreadsheets.
RATER_NAME = re.compile(r"\w[\w-]{0,59}")


def rater_names(raters: str) -> list[str]:
    """`3` as rater-1 to rater-3, `ann,bob` as they are. Raises UserError for anything else."""
    if raters.strip().isascii() and raters.strip().isdigit():
        count = int(raters)
        if not 1 <= count <= 1000:
            raise UserError(f"--raters: found {count}, expected 1 to 1000 raters")
        return [f"rater-{number}" for number in range(1, count + 1)]
    names = [name.strip() for name in raters.split(",")]
    for name in names:
        if not RATER_NAME.fullmatch(name):
            raise UserError(f"--raters: {name[:40]!r} is no name made of letters, digits, - and _; for example ann,bob")
    twice = [name for name, count in Counter(name.casefold() for name in names).items() if count > 1]
    if twice:
        raise UserError(f"--raters: {twice[0]!r} occurs twice")
    return names


def assign(
    dialogue_ids: Sequence[str], raters: Sequence[str], per_item: int, overlap: float = 1.0, seed: int = 0
) -> dict[str, list[str]]:
    """rater -> dialogue ids in this rater's own random order.

    A share `overlap` (0 to 1, rounded to whole dialogues) gets `per_item` raters each, the others one. Loads differ
    by at most one dialogue, and of equally loaded raters those are put together who have met least, so that
    agreement rests on all pairs of raters. The same arguments give the same plan. Raises UserError for a plan that
    cannot be made.
    """
    if not dialogue_ids:
        raise UserError("there is no dialogue to assign")
    if len(set(dialogue_ids)) < len(dialogue_ids):
        twice = Counter(dialogue_ids).most_common(1)[0][0]
        raise UserError(f"dialogue id {twice!r} occurs twice; ids must differ")
    if not 1 <= per_item <= len(raters):
        raise UserError(f"--per-item is {per_item}, but there are {len(raters)} raters; each rates a dialogue once")
    if not 0 <= overlap <= 1:
        raise UserError(f"--overlap is {overlap:g}, expected a share from 0 to 1")
    random = Random(f"plan {seed}")
    ids = sorted(dialogue_ids)
    random.shuffle(ids)
    shared = round(overlap * len(ids))
    loads: Counter[str] = Counter()
    met: Counter[frozenset[str]] = Counter()
    plan: dict[str, list[str]] = {rater: [] for rater in raters}
    for index, dialogue_id in enumerate(ids):
        chosen: list[str] = []
        for _ in range(per_item if index < shared else 1):
            free = [rater for rater in raters if rater not in chosen]
            chosen.append(
                min(
                    free,
                    key=lambda rater: (
                        loads[rater],
                        sum(met[frozenset((rater, other))] for other in chosen),
                        random.random(),
                    ),
                )
            )
        for rater in chosen:
            loads[rater] += 1
            plan[rater].append(dialogue_id)
        met.update(frozenset(pair) for pair in combinations(chosen, 2))
    for rater in raters:
        Random(f"order {seed} {rater}").shuffle(plan[rater])
    return plan
