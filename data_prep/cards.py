"""Role cards as a set: reading either kind of file, what a card's fields are, and how a changed card stays honest.

The steps of their construction are neighbours: card_extract (from dialogues and posts), card_rules and card_verdict
(what is dropped), card_review (people), card_taxonomy (categories), card_dedupe, card_stats; card_llm asks the model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from data_prep import official
from data_prep.errors import UserError
from data_prep.records import NOT_MENTIONED, RoleCard, read_records, read_text
from data_prep.sources.detect import layout_of, not_ours

Quality = Literal["high", "middle", "low"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
FIELDS = ("age", "gender", "occupation", "problem")
LONGEST = {"age": 80, "gender": 80, "occupation": 200, "problem": 4000}
"""Characters; a longer text is no value of that field."""
NOTHING_SAID = {"", "null", "none", "unknown", "n/a", "未知", "无"} | {
    word.casefold() for word in NOT_MENTIONED.values()
}


def read_card_file(path: str | Path) -> list[RoleCard]:
    """Cards of an official JSON file or of our JSON Lines, told apart by content. Raises UserError like both."""
    if read_text(path).lstrip()[:1] == "[":
        if layout_of(path) not in (None, "esceval-cards") and (told := not_ours(path, "RoleCard")):
            raise UserError(told)
        return official.read_cards(path)
    return read_records(path, RoleCard)


def read_card_files(paths: Sequence[Path]) -> list[RoleCard]:
    """The cards of several files as one set, in order. Raises UserError when an id occurs in two of them."""
    cards: list[RoleCard] = []
    origin: dict[str, Path] = {}
    for path in paths:
        for card in read_card_file(path):
            if card.id in origin:
                raise UserError(f"{path}: card id {card.id!r} is also in {origin[card.id]}; ids must differ")
            origin[card.id] = path
            cards.append(card)
    return cards


def field_text(value: str | None) -> str | None:
    """A field on one line, without space around it; None when it only says that nothing is known.

    A field with line ends could forge the other labelled lines of a card.
    """
    text = " ".join((value or "").split())
    return None if text.casefold().rstrip(".。") in NOTHING_SAID else text


def with_fields(card: RoleCard, fields: Mapping[str, str | None]) -> RoleCard:
    """The card with some of FIELDS changed. A text that was published verbatim moves to meta["published_text"],
    because it no longer says what the fields say."""
    changes: dict[str, Any] = dict(fields)
    if card.text is not None:
        changes |= {"text": None, "meta": {**card.meta, "published_text": card.text}}
    return card.model_copy(update=changes)


def with_meta(card: RoleCard, **entries: Any) -> RoleCard:
    """The card with entries added to its meta."""
    return card.model_copy(update={"meta": {**card.meta, **entries}})


def material(card: RoleCard) -> dict[str, str | None]:
    """What a model is shown of a card: its fields and nothing else."""
    return {name: getattr(card, name) for name in FIELDS}
