"""The funnel table of a card set, and what is in it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.card_taxonomy import Taxonomy
from data_prep.cards import FIELDS, QUALITIES
from data_prep.records import RoleCard

STAGES = ("extracted", "after_llm_filter", "after_human_filter", "high", "middle")
LANGUAGES = ("en", "zh")
# ESC-Eval (arXiv 2406.14952), its table of role cards. The English row is as printed: 331 + 1455 is not 1708.
PUBLISHED: dict[str, dict[str, int]] = {
    "en": dict(zip(STAGES, (3673, 2792, 1708, 331, 1455), strict=True)),
    "zh": dict(zip(STAGES, (2023, 1566, 1093, 324, 769), strict=True)),
}


def funnel(stages: Mapping[str, Sequence[RoleCard] | None]) -> dict[str, dict[str, int | None]]:
    """Cards by language at every one of STAGES; None for a stage whose cards were not given.

    `stages` gives the cards of the first three; high and middle are counted by the quality of the third's.
    """
    table: dict[str, dict[str, int | None]] = {}
    reviewed = stages.get("after_human_filter")
    for language in LANGUAGES:
        row: dict[str, int | None] = {}
        for stage in STAGES[:3]:
            cards = stages.get(stage)
            row[stage] = None if cards is None else sum(card.language == language for card in cards)
        for quality in STAGES[3:]:
            row[quality] = (
                None
                if reviewed is None or not any(card.quality for card in reviewed)
                else sum(card.language == language and card.quality == quality for card in reviewed)
            )
        table[language] = row
    return table


def contents(cards: Sequence[RoleCard], taxonomy: Taxonomy) -> dict[str, Any]:
    """Counts by language, source, quality, category (level 1 and the full path) and field that is not mentioned.

    Categories are counted under the taxonomy's ids however they are spelt; others under their own words.
    """
    paths = [taxonomy.canonical(card.category) or card.category for card in cards]
    return {
        "cards": len(cards),
        "language": _counted(card.language for card in cards),
        "source": _counted(f"{card.source} ({card.language})" for card in cards),
        "quality": {
            **{name: sum(card.quality == name for card in cards) for name in QUALITIES},
            "not said": sum(card.quality is None for card in cards),
        },
        "category_level_1": _counted(
            f"{path[0] if path else 'none'} ({card.language})" for path, card in zip(paths, cards, strict=True)
        ),
        "category": _counted("/".join(path) or "none" for path in paths),
        "not_mentioned": {name: sum(getattr(card, name) is None for card in cards) for name in FIELDS},
    }


def _counted(names: Any) -> dict[str, int]:
    """Most frequent first, then by name."""
    return dict(sorted(Counter(names).items(), key=lambda entry: (-entry[1], entry[0])))
