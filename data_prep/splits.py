"""Splits by group and what two sets share.

Dialogues that share a role card, a situation, an opening or their whole text say the same thing twice: one on each
side of a split makes a model look better than it is. `split_by_group` keeps them together; `leak_report` counts what
two sets have in common.
"""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from data_prep.errors import UserError
from data_prep.records import Dialogue, Record, RoleCard

KINDS = ("id", "card", "situation", "opening", "text")
# Greetings of a few words ("hi, how are you") open many dialogues that have nothing else in common.
FEW_WORDS = 5
CHINESE = re.compile("[\u3400-\u9fff]")
BESIDE_CHINESE = re.compile("(?<=[\u3400-\u9fff]) | (?=[\u3400-\u9fff])")


def normalised(text: str) -> str:
    """Letters and digits only, in one case and width, single spaces: equal for texts that read the same."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    spaced = " ".join("".join(char if char.isalnum() else " " for char in folded).split())
    # Chinese has no spaces of its own: what is left of its punctuation must not tell two texts apart.
    return BESIDE_CHINESE.sub("", spaced)


def word_count(text: str) -> float:
    """Number of words of a normalised text; a Chinese character counts as half a word."""
    others, chinese = CHINESE.subn(" ", text)
    return len(others.split()) + chinese / 2


def _card_keys(card: RoleCard) -> set[tuple[str, str]]:
    keys = {("card", f"id {card.source} {card.language} {card.id}")}
    if card.problem is not None:
        keys.add(("card", f"text {normalised(card.as_text())}"))
        keys.add(("situation", normalised(card.problem)))
    return keys


def _opening(dialogue: Dialogue) -> str:
    first = next((turn.text for turn in dialogue.turns if turn.speaker == "seeker"), "")
    found = normalised(first)
    return found if word_count(found) > FEW_WORDS else ""


def keys_of(record: Dialogue | RoleCard) -> set[tuple[str, str]]:
    """(kind, value) pairs by which two records are recognised as saying the same thing.

    Kinds: `id`; `card`, the same card by id or by text; `situation`, the same normalised situation or problem of the
    card; `opening`, the same first words of the seeker when they are more than five; `text`, the same dialogue.
    """
    if isinstance(record, RoleCard):
        return {key for key in {("id", record.id)} | _card_keys(record) if key[1]}
    keys = {("id", record.id), ("opening", _opening(record))}
    if record.card is not None:
        keys |= _card_keys(record.card)
    if record.situation is not None:
        keys.add(("situation", normalised(record.situation)))
    said = [(turn.speaker, normalised(turn.text)) for turn in record.turns]
    if any(text for _, text in said):
        keys.add(("text", "\n".join(f"{speaker} {text}" for speaker, text in said)))
    return {key for key in keys if key[1]}


def groups(dialogues: Sequence[Dialogue]) -> list[list[Dialogue]]:
    """Dialogues that must stay together: the connected components of "shares a key" (union-find).

    Raises UserError when an id occurs twice.
    """
    parent = list(range(len(dialogues)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    owner: dict[tuple[str, str], int] = {}
    for index, dialogue in enumerate(dialogues):
        if ("id", dialogue.id) in owner:
            raise UserError(f"dialogue id {dialogue.id!r} occurs twice; ids must differ within what is split")
        for key in keys_of(dialogue):
            parent[root(index)] = root(owner.setdefault(key, index))
    found: dict[int, list[Dialogue]] = defaultdict(list)
    for index, dialogue in enumerate(dialogues):
        found[root(index)].append(dialogue)
    return list(found.values())


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
    dialogues: Sequence[Dialogue], fractions: Mapping[str, float], seed: int
) -> dict[str, list[Dialogue]]:
    """Splits whole groups, so that no two parts share a card, situation, opening or text.

    The result depends on the dialogues and the seed, not on the order they come in; within a part they are ordered
    by id. Groups are given out from large to small, each to the part that still lacks most, so a part misses its
    share by less than the largest group (large groups therefore go to large parts).
    Raises UserError for impossible fractions, repeated ids, and when there are too few groups to fill every part.
    """
    check_fractions(fractions)

    def drawn(group: list[Dialogue]) -> tuple[int, str]:
        smallest = min(dialogue.id for dialogue in group)
        return -len(group), hashlib.sha256(f"{seed}:{smallest}".encode()).hexdigest()

    parts: dict[str, list[Dialogue]] = {name: [] for name in fractions}
    found = sorted(groups(dialogues), key=drawn)
    for group in found:
        lacking = max(fractions, key=lambda name: fractions[name] * len(dialogues) - len(parts[name]))
        parts[lacking] += group
    for name, part in parts.items():
        if not part:
            raise UserError(
                f"split {name!r} would be empty: {len(dialogues)} dialogues make only {len(found)} separate groups; "
                "use fewer parts or other fractions"
            )
        part.sort(key=lambda dialogue: dialogue.id)
    return parts


class Leak(Record):
    """What two sets share of one kind: how many distinct things, and the records concerned on each side."""

    kind: str
    shared: int
    ids_a: tuple[str, ...] = ()
    ids_b: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.shared} shared, {len(self.ids_a)} records of A and {len(self.ids_b)} of B"


def leak_report(a: Iterable[Dialogue | RoleCard], b: Iterable[Dialogue | RoleCard]) -> list[Leak]:
    """What `a` and `b` have in common, one entry for each of KINDS in that order; nothing shared gives zeros.

    Each side may hold dialogues or role cards: cards made from a dataset leak into it by their problem. Kinds
    overlap on purpose: the same dialogue on both sides shares its opening as well as its text.
    """
    sides = []
    for records in (a, b):
        ids: dict[tuple[str, str], list[str]] = defaultdict(list)
        for record in records:
            for key in keys_of(record):
                ids[key].append(record.id)
        sides.append(ids)
    report = []
    for kind in KINDS:
        common = [key for key in sides[0] if key[0] == kind and key in sides[1]]
        concerned = [tuple(sorted({found for key in common for found in side[key]})) for side in sides]
        report.append(Leak(kind=kind, shared=len(common), ids_a=concerned[0], ids_b=concerned[1]))
    return report
