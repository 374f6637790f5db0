"""The published ESC-Eval artefacts (arXiv 2406.14952), both ways: role cards, transcripts and scores.

Reading and writing back gives the same JSON; written files are laid out as the published ones (indent 4, no escapes,
no newline at the end). Nothing is repaired here: a file of another shape is a UserError with file and record.

- cards: a list of {"base", "res", "source", "base_biaozhu", "language", "id"}
- transcripts: {"0": ["AI assistant：…", "ESC-Role：…", …], …}, keyed by the position of the card
- scores: {"0": {"fluency": 3, "diversity": 3, …}, …}, keyed alike, whole levels 0 to 4
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import (
    CARD_LABELS,
    NOT_MENTIONED,
    Dialogue,
    Language,
    Rating,
    RoleCard,
    Speaker,
    Turn,
    parse_json,
    read_text,
    write_text,
)
from data_prep.rubric import Rubric, check_ratings, load_rubric

RUBRIC = "esc_eval"
LANGUAGES: dict[str, Language] = {"english": "en", "chinese": "zh"}
LANGUAGE_NAMES: dict[Language, str] = {"en": "english", "zh": "chinese"}
CARD_KEYS = ("base", "res", "source", "base_biaozhu", "language", "id")
# Only the line's first label tells who speaks; the same words inside an utterance are what a person said.
PREFIXES: dict[Speaker, str] = {"supporter": "AI assistant：", "seeker": "ESC-Role："}
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
POSITION = re.compile(r"0|[1-9][0-9]*")

# The published scorer writes -1 when it finds no digit in the reply: a missing value, not a level.
UNPARSED = -1
UNPARSED_REASON = "the official scorer found no level in the reply (-1)"
NULL_REASON = "null in the score file"


def _dump(path: str | Path, content: Any) -> None:
    write_text(path, json.dumps(content, ensure_ascii=False, indent=4))


# ---- role cards


def _card_field(value: str | None, language: Language) -> str | None:
    """A field's text, or None where the card says that it is not mentioned."""
    if value is None or value.casefold().rstrip(".。") in ("", NOT_MENTIONED[language].casefold()):
        return None
    return value


def card_fields(text: str, language: Language) -> dict[str, str | None]:
    """The fields of a card's labelled lines: age, gender, occupation, problem; None where not mentioned.

    A label is one of the language's four at the start of a line, followed by `:` or `：`; each counts the first time.
    Blank lines are skipped; any other line continues the field above it.
    """
    names = dict(zip((label.casefold() for label in CARD_LABELS[language]), CARD_LABELS["en"], strict=True))
    found: dict[str, list[str]] = {}
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        label, *rest = re.split("[:：]", line, maxsplit=1)
        name = names.get(label.strip().casefold())
        if rest and name is not None and name not in found:
            found[name] = [rest[0].strip()]
        elif found:
            found[next(reversed(found))].append(line)
    joined = {name: "\n".join(filter(None, lines)) for name, lines in found.items()}
    return {name.lower(): _card_field(joined.get(name), language) for name in CARD_LABELS["en"]}


def parse_card(value: Any, where: str) -> RoleCard:
    """One official card. The published text is kept verbatim in `text`, all keys we do not use in `meta`.

    Raises UserError, naming `where`, for a missing or unknown value and for a text without any labelled line.
    """
    if not isinstance(value, dict):
        raise UserError(f"{where}: is not an object; expected a card with {', '.join(CARD_KEYS)}")
    for key in ("base", "res", "source", "language"):
        if not isinstance(value.get(key), str):
            raise UserError(f"{where}: {key}: found {type(value.get(key)).__name__}, expected a text")
    if value["language"] not in LANGUAGES:
        raise UserError(f"{where}: language is neither {' nor '.join(LANGUAGES)}")
    if not value["source"]:
        raise UserError(f"{where}: source is empty; expected the name of a dataset")
    identifier = value.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, int | str) or identifier == "":
        raise UserError(f"{where}: id: found {type(identifier).__name__}, expected a whole number")
    if isinstance(identifier, str) and WHOLE_NUMBER.fullmatch(identifier):
        raise UserError(f"{where}: id is a number in quotes; write it without them")
    language = LANGUAGES[value["language"]]
    fields = card_fields(value["base"], language)
    if not any(fields.values()):
        raise UserError(f"{where}: base has none of the lines {', '.join(CARD_LABELS[language])} filled in")
    meta = {key: kept for key, kept in value.items() if key not in ("base", "res", "source", "language", "id")}
    for key, kept in meta.items():
        if kept is not None and not isinstance(kept, str | int | float):
            raise UserError(f"{where}: a key of its own holds a {type(kept).__name__}; expected a text or a number")
        if key == "base_biaozhu" and not isinstance(kept, str):
            raise UserError(f"{where}: base_biaozhu: found {type(kept).__name__}, expected a text")
    return RoleCard(
        id=str(identifier),
        language=language,
        category=(value["res"],) if value["res"] else (),
        source=value["source"],
        text=value["base"],
        meta=meta,
        age=fields["age"],
        gender=fields["gender"],
        occupation=fields["occupation"],
        problem=fields["problem"],
    )


def iter_cards(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yields (where, value) for every entry of a card file. Raises UserError when it is no list."""
    values = parse_json(read_text(path), str(path))
    if not isinstance(values, list):
        raise UserError(f'{path}: is not a JSON list; expected the official cards, [{{"base": …}}, …]')
    for position, value in enumerate(values, start=1):
        yield f"{path}: record {position}", value


def read_cards(path: str | Path) -> list[RoleCard]:
    """All cards of an official card file, in order. Raises UserError at the first bad one or repeated id."""
    cards: list[RoleCard] = []
    seen: set[str] = set()
    for where, value in iter_cards(path):
        card = parse_card(value, where)
        if card.id in seen:
            raise UserError(f"{where}: id {card.id!r} is already used; ids must differ")
        seen.add(card.id)
        cards.append(card)
    return cards


def card_entry(card: RoleCard) -> dict[str, Any]:
    """The official form of a card. Its deeper categories, quality and nested `meta` have no place there."""
    entry: dict[str, Any] = {
        "base": card.as_text(),
        "res": card.category[0] if card.category else "",
        "source": card.source,
        "language": LANGUAGE_NAMES[card.language],
        "id": int(card.id) if WHOLE_NUMBER.fullmatch(card.id) else card.id,
    }
    kept = {
        key: value
        for key, value in card.meta.items()
        if key not in entry and (value is None or isinstance(value, str | int | float))
    }
    merged = entry | kept
    order = [key for key in CARD_KEYS if key in merged] + [key for key in kept if key not in CARD_KEYS]
    return {key: merged[key] for key in order}


def write_cards(path: str | Path, cards: Iterable[RoleCard]) -> None:
    """Writes an official card file, atomically."""
    _dump(path, [card_entry(card) for card in cards])


# ---- transcripts


def _keyed(path: str | Path, expected: str) -> Iterator[tuple[str, str, Any]]:
    """Yields (where, key, value) of a file that is one JSON object keyed by position."""
    content = parse_json(read_text(path), str(path))
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: is not a JSON object with entries; expected {expected}")
    for number, (key, value) in enumerate(content.items(), start=1):
        if not POSITION.fullmatch(key):
            raise UserError(f"{path}: record {number}: key is not a position (0, 1, 2, …); expected {expected}")
        yield f"{path}: record {key!r}", key, value


def iter_transcripts(path: str | Path) -> Iterator[tuple[str, str, Any]]:
    """Yields (where, key, lines) for every dialogue of a transcript file. Raises UserError when it is none."""
    return _keyed(path, '{"0": ["AI assistant：…", "ESC-Role：…"]}')


def parse_transcript(
    lines: Any, where: str, identifier: str, language: Language, key: str, card: RoleCard | None = None
) -> Dialogue:
    """One official transcript. Utterances are verbatim, empty ones too: a model's empty reply is a fact.

    `meta` holds the key and whether the first line is the fixed greeting, which the supporter model never saw: the
    dialogues open with it, so a first line of the supporter's is taken for it.
    Raises UserError, naming `where`, when a line does not begin with one of the two speaker labels.
    """
    if not isinstance(lines, list) or not lines:
        raise UserError(f"{where}: is not a list of lines")
    turns = []
    for number, line in enumerate(lines, start=1):
        speaker = next(
            (name for name, prefix in PREFIXES.items() if isinstance(line, str) and line.startswith(prefix)), None
        )
        if speaker is None:
            raise UserError(
                f"{where}: line {number}: does not begin with {' or '.join(PREFIXES.values())} (full-width colon)"
            )
        turns.append(Turn(speaker=speaker, text=line.removeprefix(PREFIXES[speaker])))
    return Dialogue(
        id=identifier,
        language=language,
        source="esc-eval",
        turns=tuple(turns),
        card=card,
        meta={"official_key": key, "greeting": turns[0].speaker == "supporter"},
    )


def read_transcripts(path: str | Path, language: Language, cards: Sequence[RoleCard] | None = None) -> list[Dialogue]:
    """All dialogues of an official transcript file; ids are `<file stem>-<key>`, as in `read_scores`.

    The language is the caller's to say: the file does not. `cards`, when given, are those of the run, in its order.
    Raises UserError for a bad record and for a key without a card.
    """
    dialogues = []
    for where, key, lines in iter_transcripts(path):
        if cards is not None and int(key) >= len(cards):
            raise UserError(f"{where}: there are only {len(cards)} cards; give the card file the run was made with")
        card = cards[int(key)] if cards is not None else None
        dialogues.append(parse_transcript(lines, where, f"{Path(path).stem}-{key}", language, key, card))
    return dialogues


def transcript_lines(dialogue: Dialogue) -> list[str]:
    """A dialogue's turns as the lines of an official transcript, each behind its speaker's label."""
    return [f"{PREFIXES[turn.speaker]}{turn.text}" for turn in dialogue.turns]


def write_transcripts(path: str | Path, dialogues: Sequence[Dialogue]) -> None:
    """Writes an official transcript file, atomically.

    Keys are the official ones where all dialogues have one, otherwise the positions. Raises UserError when two
    dialogues share a key.
    """
    keys = [dialogue.meta.get("official_key") for dialogue in dialogues]
    if not all(isinstance(key, str) for key in keys):
        keys = [str(position) for position in range(len(dialogues))]
    if len(set(keys)) < len(keys):
        raise UserError(f"{path}: two dialogues have the same official key; write one official file a run")
    _dump(
        path,
        {key: transcript_lines(dialogue) for key, dialogue in zip(keys, dialogues, strict=True)},
    )


# ---- scores


@cache
def _rubric() -> Rubric:
    return load_rubric(RUBRIC)


def official_dimensions() -> dict[str, str]:
    """Our names of the seven dimensions by their key in the official files."""
    dimensions = _rubric().dimensions
    return {dimension.official_key: dimension.name for dimension in dimensions if dimension.official_key}


def iter_scores(path: str | Path) -> Iterator[tuple[str, str, Any]]:
    """Yields (where, key, levels) for every dialogue of a score file. Raises UserError when it is none."""
    return _keyed(path, '{"0": {"fluency": 3, …}}')


def parse_scores(levels: Any, where: str, dialogue_id: str, rater: str) -> list[Rating]:
    """The ratings of one dialogue, in the order of the file; -1 and null are ratings without a value.

    Raises UserError, naming `where`, for an unknown dimension and for a value that is no level of the rubric.
    """
    rubric = _rubric()
    names = official_dimensions()
    if not isinstance(levels, dict) or not levels:
        raise UserError(f"{where}: is not an object of levels; expected the keys {', '.join(names)}")
    ratings = []
    for number, (key, level) in enumerate(levels.items(), start=1):
        if key not in names:
            raise UserError(f"{where}: key {number} is none of the official dimensions ({', '.join(names)})")
        reason = None
        if level is None:
            reason = NULL_REASON
        elif type(level) is not int:  # a bool is an int to isinstance
            raise UserError(f"{where}: {key}: found {type(level).__name__}, expected a whole level from 0 to 4")
        elif level == UNPARSED:
            reason = UNPARSED_REASON
        elif level not in rubric.dimension(names[key]).levels():
            raise UserError(f"{where}: {key} is off the scale 0..4")
        ratings.append(
            Rating(
                dialogue_id=dialogue_id,
                rater=rater,
                rubric=RUBRIC,
                dimension=names[key],
                value=None if reason else level,
                reason=reason,
            )
        )
    return ratings


def read_scores(path: str | Path, rater: str) -> list[Rating]:
    """All ratings of an official score file, by the `rater` the caller names.

    Dialogue ids are `<file stem>-<key>`: the published score and transcript files of a model share their name.
    """
    ratings = []
    for where, key, levels in iter_scores(path):
        ratings += parse_scores(levels, where, f"{Path(path).stem}-{key}", rater)
    return ratings


def write_scores(path: str | Path, ratings: Iterable[Rating], keys: Mapping[str, str] | None = None) -> None:
    """Writes an official score file, atomically: one rater's ratings of one run.

    `keys` gives the official key of each dialogue id; without it the digits at the end of the id are the key, as
    `read_scores` made them. A missing value is written as -1 if that is where it came from, else as null.
    Raises UserError for a rating of another rubric, for an id without a key and for two values in one place.
    """
    rubric = _rubric()
    official = {name: key for key, name in official_dimensions().items()}
    ids: dict[str, str] = {}
    content: dict[str, dict[str, int | None]] = {}
    for rating in ratings:
        check_ratings([(str(path), rating)], rubric)
        key = keys.get(rating.dialogue_id) if keys is not None else _key_of(rating.dialogue_id)
        if key is None:
            raise UserError(f"{path}: dialogue {rating.dialogue_id!r} has no official key; give the key of every id")
        if ids.setdefault(key, rating.dialogue_id) != rating.dialogue_id:
            raise UserError(f"{path}: two dialogues have the official key {key!r}; write one official file a run")
        levels = content.setdefault(key, {})
        if official[rating.dimension] in levels:
            raise UserError(
                f"{path}: {rating.dimension} of dialogue {rating.dialogue_id!r} is rated twice; "
                "official files hold one rater"
            )
        if rating.value is None:
            levels[official[rating.dimension]] = UNPARSED if rating.reason == UNPARSED_REASON else None
        else:
            levels[official[rating.dimension]] = int(rating.value)
    _dump(path, content)


def _key_of(dialogue_id: str) -> str | None:
    tail = dialogue_id.rpartition("-")[2]
    return tail if POSITION.fullmatch(tail) else None
