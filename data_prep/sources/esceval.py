"""ESC-Eval (arXiv 2406.14952) as a source: its role cards, its sample transcripts and their scores.

The formats are read by data_prep.official. A file is taken, or a folder: a clone of the official repository, where
cards, transcripts and scores lie side by side. Of a folder the files of the asked kind are taken, told by content, and
the others are named as skipped. Nothing is repaired; a bad record is refused and the others are kept.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_prep import official
from data_prep.errors import UserError
from data_prep.normalising import CHINESE
from data_prep.records import Language, RoleCard, parse_json, read_text
from data_prep.sources.base import Conversion, Options, Source
from data_prep.sources.reading import data_files, starts_with

ORIGIN = "ESC-Eval (EMNLP 2024); haidequanbu/ESC-Eval"
LICENCE = "none stated"
COPIES = "card that stands in another file too, taken once"


def _is_cards(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and {"base", "res", "source", "language"} <= set(first)


def _is_transcripts(content: Any) -> bool:
    first = next(iter(content.values()), None) if isinstance(content, dict) else None
    return isinstance(first, list) and any(str(line).startswith(tuple(official.PREFIXES.values())) for line in first)


def _is_scores(content: Any) -> bool:
    first = next(iter(content.values()), None) if isinstance(content, dict) else None
    return isinstance(first, dict) and bool(official.official_dimensions().keys() & first.keys())


def _files(path: Path, is_ours: Callable[[Any], bool], conversion: Conversion) -> list[Path]:
    """The file itself, whatever it holds, or the files of a folder that are of this kind; the others are skipped.

    A file that cannot be read is refused. Raises UserError when there is no such path, or none of this kind in it.
    """
    if not path.is_dir():
        return [path]
    found = []
    for file in data_files(path):
        try:
            if starts_with(file) in ("[", "{") and is_ours(parse_json(read_text(file), str(file))):
                found.append(file)
            else:
                conversion.skip(file)
        except UserError as error:
            # JSON Lines begin like an object and are not one; they are another dataset's.
            conversion.skip(file) if "Extra data" in str(error) else conversion.refuse(str(file), error)
    return found


def _names_differ(path: Path, files: list[Path]) -> None:
    """Raises UserError when two files of a folder have the same name: dialogues are told apart by it."""
    for stem, count in Counter(file.stem for file in files).items():
        if count > 1:
            raise UserError(
                f"{path}: holds {count} files named {stem}, whose dialogues would have the same ids; "
                f"give one folder of them, for example {next(file for file in files if file.stem == stem).parent}"
            )


def _language_of(file: Path) -> Language:
    """The language that a transcript file is written in: Chinese letters on most lines or not."""
    dialogues = parse_json(read_text(file), str(file)).values()
    lines = [line for said in dialogues if isinstance(said, list) for line in said]
    texts = [line.partition("：")[2] for line in lines if isinstance(line, str)]
    return "zh" if sum(CHINESE.search(text) is not None for text in texts) * 2 > len(texts) else "en"


def convert_cards(path: Path, options: Options) -> Conversion:
    """Role cards with their published text verbatim. `missing` counts the fields a card does not mention.

    Of a folder, cards in another language than `options.language` are left out, and a card that a second file holds
    too (the demo cards are such copies) is taken once; both are counted.
    """
    conversion = Conversion()
    seen: dict[str, RoleCard] = {}
    for file in _files(path, _is_cards, conversion):
        for where, value in official.iter_cards(file):
            try:
                card = official.parse_card(value, where)
                if card.id in seen and path.is_dir() and _same_card(card, seen[card.id]):
                    conversion.noted[COPIES] += 1
                    continue
                if card.id in seen:
                    raise UserError(f"{where}: id {card.id!r} is already used; ids must differ")
                if options.language is not None and card.language != options.language:
                    if path.is_dir():
                        conversion.noted[f"card in {card.language}, left out by --language"] += 1
                        continue
                    raise UserError(
                        f"{where}: card is in {card.language!r}, but --language {options.language} was given"
                    )
            except UserError as error:
                conversion.refuse(where, error)
                continue
            seen[card.id] = card
            conversion.cards.append(card)
            for name in ("age", "gender", "occupation", "problem"):
                conversion.missing[f"{name} not mentioned"] += getattr(card, name) is None
    conversion.missing = +conversion.missing
    return conversion


def _same_card(one: RoleCard, other: RoleCard) -> bool:
    return (one.text, one.source, one.language) == (other.text, other.source, other.language)


def convert_transcripts(path: Path, options: Options) -> Conversion:
    """Dialogues, verbatim. The files do not say their language: `options.language` must.

    Of a folder, files that are written in the other language are skipped.
    """
    if options.language is None:
        raise UserError(f"{path}: the language of the transcripts is not in the file; give it")
    conversion = Conversion()
    files = _files(path, _is_transcripts, conversion)
    if path.is_dir():
        ours = [file for file in files if _language_of(file) == options.language]
        for file in files:
            if file not in ours:
                conversion.skip(file)
        files = ours
        _names_differ(path, files)
    for file in files:
        for where, key, lines in official.iter_transcripts(file):
            count = len(lines) if isinstance(lines, list) else 0
            conversion.turns_read += count
            try:
                dialogue = official.parse_transcript(lines, where, f"{file.stem}-{key}", options.language, key)
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
    files = _files(path, _is_scores, conversion)
    _names_differ(path, files)
    for file in files:
        for where, key, levels in official.iter_scores(file):
            try:
                ratings = official.parse_scores(levels, where, f"{file.stem}-{key}", options.rater)
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
