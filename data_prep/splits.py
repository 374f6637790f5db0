"""Splits by group and what two sets share.

Dialogues that share a role card, a situation, an opening or their whole text say the same thing twice: one on each
side of a split makes a model look better than it is. The same holds when only a few words differ, so near duplicates
count as shared unless that is switched off. `split_by_group` keeps them together; `data_prep.leaks` counts what two
sets have in common.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from data_prep.errors import UserError
from data_prep.normalising import CHINESE, normalised, word_count
from data_prep.records import Dialogue, RoleCard

__all__ = ["CHINESE", "GROUP_KINDS", "NEAR", "groups", "keys_of", "normalised", "split_by_group", "word_count"]

GROUP_KINDS = ("card", "situation", "opening", "text")
# Greetings of a few words ("hi, how are you") open many dialogues that have nothing else in common.
FEW_WORDS = 5
# Similarity from which two texts count as the same.
NEAR = 0.8


def _card_keys(card: RoleCard) -> set[tuple[str, str]]:
    keys = {("card", f"id {card.source} {card.language} {card.id}")}
    if card.problem is not None:
        keys.add(("card", f"text {normalised(card.as_text())}"))
        keys.add(("situation", normalised(card.problem)))
    return keys


def opening(dialogue: Dialogue) -> str:
    """The seeker's first turn, normalised; empty when it has no more than five words."""
    return next((first_words(turn.text) for turn in dialogue.turns if turn.speaker == "seeker"), "")


def first_words(text: str) -> str:
    """A seeker's first turn, normalised; empty when it has no more than five words."""
    found = normalised(text)
    return found if word_count(found) > FEW_WORDS else ""


def keys_of(record: Dialogue | RoleCard) -> set[tuple[str, str]]:
    """(kind, value) pairs by which two records are recognised as saying the same thing.

    Kinds: `id`; `card`, the same card by id or by text; `situation`, the same normalised situation or problem of the
    card; `opening`, the same first words of the seeker when they are more than five; `text`, the same dialogue.
    """
    if isinstance(record, RoleCard):
        return {key for key in {("id", record.id)} | _card_keys(record) if key[1]}
    keys = {("id", record.id), ("opening", opening(record))}
    if record.card is not None:
        keys |= _card_keys(record.card)
    if record.situation is not None:
        keys.add(("situation", normalised(record.situation)))
    said = [(turn.speaker, normalised(turn.text)) for turn in record.turns]
    if any(text for _, text in said):
        keys.add(("text", "\n".join(f"{speaker} {text}" for speaker, text in said)))
    return {key for key in keys if key[1]}


def near_texts(record: Dialogue | RoleCard) -> Iterator[tuple[str, str]]:
    """(kind, text) pairs in which near duplicates are looked for: situation, opening and whole text.

    The problem of a card stands with the situations. Openings of a few words and texts of as few are left out.
    """
    card = record if isinstance(record, RoleCard) else record.card
    situations = {card.problem} if card is not None else set()
    if isinstance(record, Dialogue):
        situations.add(record.situation)
        yield "opening", opening(record)
        yield "text", "\n".join(turn.text for turn in record.turns)
    for text in sorted(situation for situation in situations if situation is not None):
        # Two problems of a word or two ("job crisis", "job crises") are alike by chance.
        if word_count(normalised(text)) > FEW_WORDS:
            yield "situation", text


def value_of(dialogue: Dialogue, key: str) -> str | None:
    """The value of `language`, `source`, `meta.NAME` or `card.NAME` as text, None where the dialogue has none.

    `NAME` may go deeper, `meta.a.b`. Raises UserError for any other key.
    """
    first, *path = key.split(".")
    if first not in ("language", "source", "meta", "card") or bool(path) != (first in ("meta", "card")):
        raise UserError(f"{key!r} is no key of a dialogue; expected language, source, meta.NAME or card.NAME")
    value: Any = getattr(dialogue, first)
    if first == "card" and value is not None:
        value = value.model_dump(mode="json")
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or value == [] or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _check_keys(
    dialogues: Sequence[Dialogue], keys: Sequence[str], option: str, more_known: Sequence[str] = ()
) -> None:
    """Raises UserError for a key that there is not or that no dialogue has a value for: it is misspelt.

    `more_known` are what the option takes beside the keys of `value_of`.
    """
    for key in keys:
        first, *path = key.split(".")
        if bool(path) == (first in ("meta", "card")) and first in ("language", "source", "meta", "card"):
            if any(value_of(dialogue, key) is not None for dialogue in dialogues):
                continue
            told = f"{option}: no dialogue has a value for {key!r}"
        else:
            told = f"{option}: {key!r} is no key of a dialogue"
        known = [*more_known, "language", "source", *_own_keys(dialogues)]
        close = get_close_matches(key, known, n=1)
        kinds = ", ".join([*more_known, "language", "source", "meta.NAME", "card.NAME"])
        raise UserError(f"{told}; " + (f"did you mean {close[0]!r}?" if close else f"expected one of {kinds}"))


def _own_keys(dialogues: Sequence[Dialogue]) -> list[str]:
    """meta.NAME and card.NAME of what the dialogues have, in order."""
    found = {f"meta.{name}" for dialogue in dialogues for name in dialogue.meta}
    if any(dialogue.card is not None for dialogue in dialogues):
        found |= {f"card.{name}" for name in RoleCard.model_fields}
    return sorted(found)


def groups(
    dialogues: Sequence[Dialogue],
    group_by: Sequence[str] = GROUP_KINDS,
    near: float | None = None,
) -> list[list[Dialogue]]:
    """Dialogues that must stay together: the connected components of "shares a key" (union-find).

    `group_by` names kinds of `keys_of` and keys of `value_of`; a dialogue without a value shares it with none.
    `near` is the similarity, 0.5 to 1, from which situations, openings and texts in `group_by` count as the same
    (`data_prep.duplicates`); None for equal ones only.
    Raises UserError when an id occurs twice and for an unknown or misspelt key.
    """
    parent = list(range(len(dialogues)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    own = [key for key in group_by if key not in GROUP_KINDS]
    _check_keys(dialogues, own, "--group-by", GROUP_KINDS)
    seen: set[str] = set()
    owner: dict[tuple[str, str], int] = {}
    for index, dialogue in enumerate(dialogues):
        if dialogue.id in seen:
            raise UserError(f"dialogue id {dialogue.id!r} occurs twice; ids must differ within what is split")
        seen.add(dialogue.id)
        keys = {key for key in keys_of(dialogue) if key[0] in group_by}
        keys |= {(key, value) for key in own if (value := value_of(dialogue, key)) is not None}
        for key in keys:
            parent[root(index)] = root(owner.setdefault(key, index))
    if near is not None:
        _join_near(dialogues, [kind for kind in GROUP_KINDS if kind in group_by], near, parent, root)
    found: dict[int, list[Dialogue]] = defaultdict(list)
    for index, dialogue in enumerate(dialogues):
        found[root(index)].append(dialogue)
    return list(found.values())


def _join_near(dialogues: Sequence[Dialogue], kinds: Sequence[str], near: float, parent: list[int], root: Any) -> None:
    from data_prep.duplicates import near_pairs

    # The order of ids, not of the file: what a full band leaves out must not depend on how a file is sorted.
    ordered = sorted(range(len(dialogues)), key=lambda index: dialogues[index].id)
    for kind in kinds:
        texts = (
            (index, text) for index in ordered for of_kind, text in near_texts(dialogues[index]) if of_kind == kind
        )
        for one, other in near_pairs(texts, near):
            parent[root(other)] = root(one)


def check_fractions(fractions: Mapping[str, float]) -> None:
    """Raises UserError unless there are two or more splits, all above 0, that sum to 1."""
    if len(fractions) < 2:
        raise UserError("a split needs two or more parts, for example train=0.9,test=0.1")
    for name, fraction in fractions.items():
        if not 0 < fraction < 1:
            raise UserError(f"fraction of {name!r} is {fraction:g}; expected a number between 0 and 1")
    if abs(sum(fractions.values()) - 1) > 1e-6:
        raise UserError(f"fractions sum to {sum(fractions.values()):g}; expected 1")


def split_by_group(
    dialogues: Sequence[Dialogue],
    fractions: Mapping[str, float],
    seed: int,
    group_by: Sequence[str] = GROUP_KINDS,
    stratify: Sequence[str] = (),
    near: float | None = NEAR,
) -> dict[str, list[Dialogue]]:
    """Splits whole groups (see `groups`), so that no two parts share a card, situation, opening or text.

    Near duplicates count as shared by default: a reworded situation or opening is the leak that equality misses.
    `stratify` names keys of `value_of` whose values every part should have in its share; groups come first, so a
    value that fills only one group stands in one part.

    The result depends on the dialogues and the seed, not on the order they come in; within a part they are ordered
    by id. Groups are given out from large to small, each to the part that still lacks most (of its dialogues and, with
    `stratify`, of the group's values), so without `stratify` a part misses its share by less than the largest group
    (large groups therefore go to large parts).
    Raises UserError for impossible fractions, repeated ids, keys no dialogue has, and when there are too few groups
    to fill every part.
    """
    check_fractions(fractions)
    _check_keys(dialogues, stratify, "--stratify")
    found = groups(dialogues, group_by, near)
    labels = {
        dialogue.id: [("", None), *((key, value_of(dialogue, key)) for key in stratify)] for dialogue in dialogues
    }
    totals = Counter(label for of_dialogue in labels.values() for label in of_dialogue)

    def drawn(group: list[Dialogue]) -> tuple[int, int, str]:
        smallest = min(dialogue.id for dialogue in group)
        # Rare values first among groups of one size: the common ones can level the sizes afterwards.
        rarest = min(totals[label] for dialogue in group for label in labels[dialogue.id])
        return -len(group), rarest, hashlib.sha256(f"{seed}:{smallest}".encode()).hexdigest()

    parts: dict[str, list[Dialogue]] = {name: [] for name in fractions}
    given: dict[str, Counter[tuple[str, str | None]]] = {name: Counter() for name in fractions}
    # How much of each value is to be shared out: all of it, or, so that no part gets all of one value before the
    # others get any, what has been given out up to and with this group.
    due = Counter(totals)
    if stratify:
        due.clear()
    for group in sorted(found, key=drawn):
        held = Counter(label for dialogue in group for label in labels[dialogue.id])
        if stratify:
            due += held
        lacks = {
            name: sum(count * (fractions[name] * due[label] - given[name][label]) for label, count in held.items())
            for name in fractions
        }
        chosen = max(fractions, key=lacks.__getitem__)
        parts[chosen] += group
        given[chosen] += held
    for name, part in parts.items():
        if not part:
            raise UserError(
                f"split {name!r} would be empty: {len(dialogues)} dialogues make only {len(found)} separate groups; "
                "use fewer parts, other fractions, or group by less (--group-by, --near)"
            )
        part.sort(key=lambda dialogue: dialogue.id)
    return parts
