"""Which support strategy a model picks: the strategy prefix of every supporter turn, read from one forward a dialogue.

A supporter trained with prefixes begins each turn with `[Question]` or another of ESConv's eight strategies. At the
position after `[` the model's probabilities of the eight continuations are compared; the history is the real one, with
the real strategies of earlier turns in it. Nothing is generated and nothing parsed:

    ... <|im_start|>assistant\\n  [   Question  ]   What   happened   ?   <|im_end|> ...
                                  ^ the distribution that is read
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.resampling import bootstrap_interval, weights_of
from data_prep.sources.esconv import STRATEGIES
from eval.statistics import Interval, ratio_interval
from train.masking import IGNORED, ChatRenderer, Encoded

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class StrategyTokens:
    """How a tokenizer spells the prefixes, as far as they differ: `lead` is what all share, `spelled` the tokens after
    it for every strategy."""

    lead: tuple[int, ...]
    spelled: dict[str, tuple[int, ...]]

    def begin_with(self, tokens: Sequence[int]) -> list[str]:
        """The strategies whose spelling after the lead begins with these tokens."""
        return [name for name, ids in self.spelled.items() if ids[: len(tokens)] == tuple(tokens)]


@dataclass(frozen=True)
class Choice:
    """One supporter turn: `row` is its dialogue's index, `mass` the probability the model gave to the eight together
    (0..1): far below 1 it would often have begun its turn otherwise."""

    row: int
    gold: str
    predicted: str
    mass: float


@dataclass(frozen=True)
class StrategyFigures:
    """Accuracy and macro-F1 (0..1) with intervals over dialogues, beside the best constant answer."""

    turns: int
    accuracy: Interval
    macro_f1: Interval
    mass: Interval
    constant: str
    constant_accuracy: Interval
    constant_macro_f1: float
    counts: dict[str, int]


def strategy_tokens(renderer: ChatRenderer) -> StrategyTokens:
    """The prefixes as they are spelled at the beginning of a turn and before a word."""

    def spell(text: str) -> list[int]:
        row = renderer.encode([{"role": "user", "content": "x"}, {"role": "assistant", "content": text}])
        return [label for label in row.labels if label != IGNORED]

    spelled = {name: _shared(spell(f"[{name}] x"), spell(f"[{name}] What")) for name in STRATEGIES}
    together = enumerate(zip(*spelled.values(), strict=False))
    length = next(at for at, tokens in together if len(set(tokens)) > 1)
    return StrategyTokens(next(iter(spelled.values()))[:length], {name: ids[length:] for name, ids in spelled.items()})


def _shared(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The tokens that both begin with."""
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def branch_points(row: Encoded, tokens: StrategyTokens) -> list[tuple[int, str]]:
    """(position after the lead, strategy) of every supervised turn that begins with a strategy prefix."""
    found = []
    lead = list(tokens.lead)
    for start, label in enumerate(row.labels):
        if label == IGNORED or (start > 0 and row.labels[start - 1] != IGNORED):
            continue
        at = start + len(lead)
        named = [name for name, ids in tokens.spelled.items() if tuple(row.labels[at : at + len(ids)]) == ids]
        if named and row.labels[start:at] == lead:
            found.append((at, named[0]))
    return found


def strategy_choices(
    model: Any,
    rows: Sequence[Encoded],
    tokens: StrategyTokens,
    batch_size: int = 4,
    progress: Callable[[int], None] | None = None,
) -> list[Choice]:
    """What the model picks at every branch point of the rows, in the rows' order. Rows of like length go together.

    Picked is what greedy decoding among the eight would begin with. Where a tokenizer gives two strategies the same
    next token and the model picks it, that turn is read on until they part.
    """
    import torch

    from train.perplexity import batch_of

    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].input_ids))
    choices: list[Choice] = []
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            ids, mask, _ = batch_of([rows[index] for index in chosen])
            logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
            for index, row_logits in zip(chosen, logits, strict=True):
                for at, gold in branch_points(rows[index], tokens):
                    chances = row_logits[at - 1].float().softmax(-1)
                    picked, mass = _pick(model, rows[index].input_ids[:at], chances, tokens)
                    choices.append(Choice(index, gold, picked, mass))
            if progress:
                progress(len(chosen))
    return sorted(choices, key=lambda choice: choice.row)


def _pick(model: Any, history: Sequence[int], chances: Any, tokens: StrategyTokens) -> tuple[str, float]:
    """(strategy picked, mass of all at the first token). `chances` is the distribution [vocabulary] after `history`."""
    import torch

    path: list[int] = []
    left, mass = list(tokens.spelled), None
    while len(left) > 1:
        following = sorted({tokens.spelled[name][len(path)] for name in left})
        found = chances[following]
        mass = float(found.sum()) if mass is None else mass
        path.append(following[int(found.argmax())])
        left = tokens.begin_with(path)
        if len(left) > 1:
            ids = torch.tensor([[*history, *path]], device=chances.device)
            chances = model(input_ids=ids, use_cache=False).logits[0, -1].float().softmax(-1)
    assert mass is not None
    return left[0], mass


def strategy_figures(choices: Sequence[Choice], seed: int = 0) -> StrategyFigures:
    """Raises UserError when no turn has a strategy prefix."""
    if not choices:
        raise UserError(
            "no supporter turn begins with a strategy; make data with: esckit data build supporter --strategy prefix"
        )
    counts = Counter(choice.gold for choice in choices)
    constant = max(counts, key=lambda name: counts[name])
    by_row: dict[int, list[Choice]] = {}
    for choice in choices:
        by_row.setdefault(choice.row, []).append(choice)
    turns = [len(group) for group in by_row.values()]

    def share(value: Callable[[Choice], float]) -> Interval:
        return ratio_interval([sum(map(value, group)) for group in by_row.values()], turns, seed=seed)

    tables = np.stack([_table((choice.gold, choice.predicted) for choice in group) for group in by_row.values()])
    always = _table((choice.gold, constant) for choice in choices)
    return StrategyFigures(
        turns=len(choices),
        accuracy=share(lambda choice: choice.predicted == choice.gold),
        macro_f1=_macro_f1_interval(tables, seed),
        mass=share(lambda choice: choice.mass),
        constant=constant,
        constant_accuracy=share(lambda choice: constant == choice.gold),
        constant_macro_f1=float(macro_f1(always, always.sum(axis=1) > 0)),
        counts=dict(counts.most_common()),
    )


def _table(pairs: Iterable[tuple[str, str]]) -> Counts:
    """[8 meant, 8 said]: how often each strategy was said where each was meant."""
    table = np.zeros((len(STRATEGIES), len(STRATEGIES)))
    for meant, said in pairs:
        table[STRATEGIES.index(meant), STRATEGIES.index(said)] += 1
    return table


def macro_f1(tables: Counts, occurring: Any) -> Any:
    """Mean F1 over the `occurring` strategies (mask of 8) of tables [..., 8 meant, 8 said] -> [...].

    F1 of a strategy is 2 hits / (times said + times meant), and 0 where it was neither.
    """
    hits = np.diagonal(tables, axis1=-2, axis2=-1)
    both = tables.sum(axis=-1) + tables.sum(axis=-2)
    return (2 * hits / np.maximum(both, 1))[..., occurring].mean(axis=-1)


def _macro_f1_interval(tables: Counts, seed: int) -> Interval:
    """Macro-F1 of the dialogues' tables [dialogues, 8, 8] together; the bootstrap redraws dialogues."""
    occurring = tables.sum(axis=(0, 2)) > 0
    estimate = float(macro_f1(tables.sum(axis=0), occurring))
    limits = bootstrap_interval(
        lambda index: macro_f1(np.tensordot(weights_of(index, len(tables)), tables, axes=1), occurring),
        estimate,
        len(tables),
        seed=seed,
    )
    return Interval(estimate, limits.low, limits.high, len(tables), method=limits.method, reason=limits.reason)
