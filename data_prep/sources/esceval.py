"""ESC-Eval (arXiv 2406.14952) as a source: its role cards, its sample transcripts and their scores.

The formats are read by data_prep.official. Nothing is repaired; a bad record is refused and the others are kept.
"""

from pathlib import Path

from data_prep import official
from data_prep.errors import UserError
from data_prep.sources.base import Conversion, Options, Source

ORIGIN = "ESC-Eval (EMNLP 2024); haidequanbu/ESC-Eval"
LICENCE = "none stated"


def convert_cards(path: Path, options: Options) -> Conversion:
    """Role cards with their published text verbatim. `missing` counts the fields a card does not mention."""
    conversion = Conversion()
    seen: set[str] = set()
    for where, value in official.iter_cards(path):
        try:
            card = official.parse_card(value, where)
            if card.id in seen:
                raise UserError(f"{where}: id {card.id!r} is already used; ids must differ")
            if options.language is not None and card.language != options.language:
                raise UserError(f"{where}: card is in {card.language!r}, but --language {options.language} was given")
        except UserError as error:
            conversion.refuse(where, error)
            continue
        seen.add(card.id)
        conversion.cards.append(card)
        for name in ("age", "gender", "occupation", "problem"):
            conversion.missing[f"{name} not mentioned"] += getattr(card, name) is None
    conversion.missing = +conversion.missing
    return conversion


def convert_transcripts(path: Path, options: Options) -> Conversion:
    """Dialogues, verbatim. The files do not say their language: `options.language` must."""
    if options.language is None:
        raise UserError(f"{path}: the language of the transcripts is not in the file; give it")
    conversion = Conversion()
    for where, key, lines in official.iter_transcripts(path):
        count = len(lines) if isinstance(lines, list) else 0
        conversion.turns_read += count
        try:
            dialogue = official.parse_transcript(lines, where, f"{path.stem}-{key}", options.language, key)
        except UserError as error:
            conversion.refuse(where, error, count)
            continue
        conversion.dialogues.append(dialogue)
    return conversion


def convert_scores(path: Path, options: Options) -> Conversion:
    """Ratings of rubric esc_eval. The files do not say who rated: `options.rater` must."""
    if options.rater is None:
        raise UserError(f"{path}: the rater is not in the file; give a name")
    conversion = Conversion()
    for where, key, levels in official.iter_scores(path):
        try:
            ratings = official.parse_scores(levels, where, f"{path.stem}-{key}", options.rater)
        except UserError as error:
            conversion.refuse(where, error)
            continue
        conversion.ratings += ratings
        conversion.missing["dimension not in the file"] += len(official.official_dimensions()) - len(ratings)
        conversion.missing["level"] += sum(rating.value is None for rating in ratings)
    conversion.missing = +conversion.missing
    return conversion


ESCEVAL_CARDS = Source(
    name="esceval-cards",
    title="ESC-Eval role cards: 331 English, 324 Chinese, of high quality",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("card_high_en.json", "card_high_zh.json", "test_en.json", "test_zh.json"),
    origin=ORIGIN,
    makes="cards",
    convert=convert_cards,
)
ESCEVAL_TRANSCRIPTS = Source(
    name="esceval-transcripts",
    title="ESC-Eval sample dialogues between ESC-Role and a supporter model",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("result/*.json",),
    origin=ORIGIN,
    makes="dialogues",
    convert=convert_transcripts,
    asks=("language",),
)
ESCEVAL_SCORES = Source(
    name="esceval-scores",
    title="ESC-Eval scores of the sample dialogues on seven dimensions",
    languages=("en", "zh"),
    licence=LICENCE,
    files=("score/*.json",),
    origin=ORIGIN,
    makes="ratings",
    convert=convert_scores,
    rubric=official.RUBRIC,
    asks=("rater",),
)
