"""What the open chat layouts (messages, ShareGPT, PatientHub, sdialog) have in common.

A layout is not a dataset: anybody's data may come in it. So the language comes from the record or from --language,
the text stays verbatim (cleaning is a step of its own), and what we export carries, under the key `esckit`, the
parts of our records that the layout has no place for, so that it comes back whole.

Repaired, and counted: a turn without text is dropped (not from our own exports: there an empty reply is a fact).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from data_prep.errors import UserError
from data_prep.records import Dialogue, Language, RoleCard, Speaker, describe_invalid, parse_json, read_text
from data_prep.sources.base import EMPTY_TURN, Conversion, Draft, Made, Options, json_records
from data_prep.sources.reading import data_files, file_ids, starts_with

EXTRAS = "esckit"
LANGUAGES: dict[str, Language] = {"en": "en", "english": "en", "zh": "zh", "chinese": "zh", "中文": "zh"}
UNKNOWN = "unknown field ignored"
# Spellings of the two sides of a chat, and the names that counselling data give seeker and supporter.
CHAT_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}
SEEKER_NAMES = frozenset(
    {"seeker", "help-seeker", "client", "patient", "user", "human", "usr", "来访者", "求助者", "患者", "用户"}
)
SUPPORTER_NAMES = frozenset(
    {"supporter", "counselor", "counsellor", "therapist", "doctor", "assistant", "ai", "bot", "gpt", "sys"}
    | {"listener", "支持者", "咨询师", "心理咨询师", "医生", "助手"}
)

RecordT = TypeVar("RecordT", bound=BaseModel)


@dataclass
class LayoutDraft(Draft):
    """A draft that knows what every layout leaves to the record or to the user."""

    id: str = ""
    language: Language = "en"
    turns: int = 0
    """Turns the record holds, as read."""


@dataclass
class Parts:
    """What a layout says of one dialogue."""

    turns: list[tuple[Speaker, str]]
    meta: dict[str, Any] = field(default_factory=dict)
    card: RoleCard | None = None
    situation: str | None = None
    extras: Any = None
    """What our own export added, or None."""


# ---- files


def first_line(path: Path) -> str:
    """The first line that is not blank, without BOM; empty when there is none or the file cannot be read.

    Of a line that does not begin an object only a part: an array may be one line of any length.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="\n") as stream:
            for part in iter(lambda: stream.readline(1 << 16), ""):
                if part.strip():
                    return part if part.endswith("\n") or part.lstrip()[:1] != "{" else part + stream.readline()
    except OSError:
        pass
    return ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _one_object(path: Path) -> Any:
    """The object that fills a file over several lines, or None when the file is JSON Lines.

    Raises UserError when it is one object that is damaged: then no other line begins a record.
    """
    text = read_text(path)
    try:
        return parse_json(text, str(path))
    except UserError:
        lines = [line for line in text.split("\n") if line.startswith("{") and line.strip() != "{"]
        if any(_is_json(line) for line in lines):
            return None
        raise


def json_values(path: Path, conversion: Conversion) -> Iterator[tuple[str, str, Any]]:
    """Yields (where, place, value) for the records of a file or a folder: JSON array, JSON Lines or one object.

    `place` is `<file>-<position>`, a stable part of an id. In a folder, files that are not JSON are skipped and
    named in the report, and one that cannot be read is refused while the others are read.
    """
    files = data_files(path)
    for file, stem in zip(files, file_ids(files, path), strict=True):
        try:
            if path.is_dir() and starts_with(file) not in ("{", "["):
                conversion.skip(file)
                continue
            line = first_line(file)
            whole = _one_object(file) if line.lstrip().startswith("{") and not _is_json(line) else None
            if whole is not None:
                yield str(file), f"{stem}-0001", whole
                continue
            for where, position, value in json_records(file, conversion):
                yield where, f"{stem}-{position:04d}", value
        except UserError as error:
            if not path.is_dir():
                raise
            conversion.refuse(str(file), error)


# ---- ids, languages, speakers


def record_id(record: Any, place: str, source: str) -> str:
    """The record's own id (a text or a whole number), or one made of source and place."""
    found = record.get("id") if isinstance(record, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return found if isinstance(found, str) and found else f"{source}-{place}"


def said_language(value: Any) -> Language | None:
    """A language as files spell it; None when it is none of ours."""
    return LANGUAGES.get(value.strip().casefold()) if isinstance(value, str) else None


def _language(record: Any, extras: Any, options: Options, where: str) -> Language:
    """The record's language, or the one the user gave. Raises UserError when neither says it."""
    said = None
    for place in (extras, record):
        if said is None and isinstance(place, dict):
            said = said_language(place.get("language"))
    language = said or options.language
    if language is None:
        raise UserError(f"{where}: the record does not say its language; give --language en or --language zh")
    return language


def plain_fields(record: Mapping[str, Any], known: set[str], draft: Draft) -> dict[str, Any]:
    """The record's further fields that are plain values, for `meta`; nested ones are ignored and counted."""
    rest = {key: value for key, value in record.items() if key not in known}
    plain = {key: value for key, value in rest.items() if value is None or isinstance(value, str | int | float)}
    draft.repairs[UNKNOWN] += len(rest) - len(plain)
    return plain


def chat_seeker(options: Options) -> str:
    """Which chat role is the seeker: "user" unless the options say "assistant". Raises UserError for another one."""
    role = CHAT_ROLES.get((options.seeker or "user").casefold())
    if role not in ("user", "assistant"):
        raise UserError("--seeker: expected user or assistant, the role that the seeker has in the file")
    return role


@lru_cache(maxsize=64)
def _folded(role: str) -> str:
    return role.strip().casefold()


def chat_turns(
    record: Mapping[str, Any], keys: tuple[str, str, str], draft: LayoutDraft
) -> tuple[str | None, list[tuple[str, str]]]:
    """(system prompt, [(role in lower case, text), …]) of a list of messages; `keys` are those of list, role and text.

    Raises UserError when it is no such list, and for a system message that does not come first.
    """
    name, role_key, text_key = keys
    raw = record.get(name)
    if not isinstance(raw, list) or not raw:
        raise draft.error(f"has no list of turns under `{name}`")
    draft.turns = len(raw)
    system: str | None = None
    turns: list[tuple[str, str]] = []
    for number, entry in enumerate(raw, start=1):
        if not isinstance(entry, dict):
            raise draft.error(f"turn {number}: is not an object")
        role, text = entry.get(role_key), entry.get(text_key)
        if not isinstance(role, str):
            raise draft.error(f"turn {number}: `{role_key}` is not a text")
        if not isinstance(text, str):
            raise draft.error(f"turn {number}: `{text_key}` is not a text")
        if len(entry) > 2:
            draft.repairs[UNKNOWN] += len(entry) - 2
        role = _folded(role)
        if role == "system":
            if number > 1:
                raise draft.error(f"turn {number}: a system message is read only at the beginning")
            system = text
            draft.turns -= 1
            continue
        turns.append((role, text))
    return system, turns


def chat_speakers(turns: Sequence[tuple[str, str]], seeker: str, draft: Draft) -> list[tuple[Speaker, str]]:
    """Turns with chat roles as turns of seeker and supporter. Raises UserError for any other role."""
    sides: dict[str, Speaker] = {
        role: "seeker" if side == seeker else "supporter" for role, side in CHAT_ROLES.items() if side != "system"
    }
    for number, (role, _) in enumerate(turns, start=1):
        if role not in sides:
            raise draft.error(f"turn {number}: role is none of {', '.join(CHAT_ROLES)}")
    return [(sides[role], text) for role, text in turns]


def _side(name: str) -> Speaker | None:
    folded = name.strip().casefold()
    if folded in SEEKER_NAMES:
        return "seeker"
    return "supporter" if folded in SUPPORTER_NAMES else None


def tell_apart(
    names: Sequence[str], seeker: str | None, draft: LayoutDraft, roles: Mapping[str, str] | None = None
) -> dict[str, Speaker]:
    """Who of at most two speakers is the seeker: the one that --seeker names, else by name (or by their role).

    One known side settles the other. Raises UserError for more than two speakers and where nobody is known.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) > 2:
        raise draft.error(f"has {len(distinct)} speakers, expected one seeker and one supporter")
    if seeker is not None:
        if seeker not in distinct:
            raise draft.error("no speaker has the name given with --seeker")
        return {name: "seeker" if name == seeker else "supporter" for name in distinct}
    sides = {name: _side(name) or _side((roles or {}).get(name, "")) for name in distinct}
    told = {name: side for name, side in sides.items() if side is not None}
    if not told:
        raise draft.error("no speaker's name says who is the seeker; give --seeker NAME")
    if len(told) < len(distinct):
        (known,) = told.values()
        other: Speaker = "supporter" if known == "seeker" else "seeker"
        return {name: told.get(name, other) for name in distinct}
    if len(distinct) == 2 and len(set(told.values())) < 2:
        raise draft.error(f"both speakers' names mean a {told[distinct[0]]}; give --seeker NAME")
    return told


# ---- dialogues and cards


def _restored(parts: Parts, draft: LayoutDraft, fallback: str) -> dict[str, Any]:
    """Our record from the layout's turns and what our export kept beside them."""
    extras = parts.extras
    if not isinstance(extras, dict):
        raise draft.error(f"{EXTRAS} is not an object")
    notes = extras.get("turns", [{}] * len(parts.turns))
    if not isinstance(notes, list) or not all(isinstance(note, dict) for note in notes):
        raise draft.error(f"{EXTRAS}.turns is not a list of objects")
    if len(notes) != len(parts.turns):
        draft.repairs["notes on turns dropped: the turns were edited after our export"] += 1
        notes = [{}] * len(parts.turns)
    turns = [
        {**note, "speaker": speaker, "text": text} for note, (speaker, text) in zip(notes, parts.turns, strict=True)
    ]
    kept = {key: value for key, value in extras.items() if key != "turns"}
    return {"source": fallback, **kept, "id": draft.id, "language": draft.language, "turns": turns}


def _built(parts: Parts, draft: LayoutDraft, source: str) -> dict[str, Any]:
    kept = [{"speaker": speaker, "text": text} for speaker, text in parts.turns if text.strip()]
    draft.repairs[EMPTY_TURN] += len(parts.turns) - len(kept)
    return {
        "id": draft.id,
        "language": draft.language,
        "source": source,
        "turns": kept,
        "card": parts.card,
        "situation": parts.situation,
        "meta": parts.meta,
    }


def _validated(kind: type[RecordT], values: Any, draft: Draft) -> RecordT:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise draft.error(describe_invalid(error)) from None


def make_dialogue(parts: Parts, draft: LayoutDraft, source: str) -> Dialogue:
    """The dialogue of one record. Raises UserError when no turn of the seeker's has text."""
    values = _built(parts, draft, source) if parts.extras is None else _restored(parts, draft, source)
    if not any(turn["speaker"] == "seeker" and turn["text"].strip() for turn in values["turns"]):
        raise draft.error("the seeker says nothing: no turn of theirs has text")
    return _validated(Dialogue, values, draft)


def records_of(
    path: Path,
    options: Options,
    conversion: Conversion,
    source: str,
    extras_of: Callable[[dict[str, Any]], Any],
    make: Callable[[dict[str, Any], LayoutDraft], Dialogue | RoleCard],
) -> Iterator[Made]:
    """The loop over the records: language, id, refusals and counts."""
    for where, place, record in json_values(path, conversion):
        if not isinstance(record, dict):
            conversion.refuse(where, UserError(f"{where}: is not an object"))
            continue
        language = _language(record, extras_of(record), options, where)
        draft = LayoutDraft(where, id=record_id(record, place, source), language=language)
        try:
            if options.language not in (None, language):
                raise draft.error(f"is in {language!r}, but --language {options.language} was given")
            made = make(record, draft)
        except UserError as error:
            conversion.turns_read += draft.turns
            conversion.refuse(where, error, draft.turns)
            continue
        conversion.turns_read += draft.turns
        draft.accept(conversion)
        yield where, [made]


def own_extras(record: dict[str, Any]) -> Any:
    """What our export put beside a layout's own keys."""
    return record.get(EXTRAS)


def stream_dialogues(
    path: Path,
    options: Options,
    conversion: Conversion,
    source: str,
    parse: Callable[[dict[str, Any], LayoutDraft], Parts],
    extras_of: Callable[[dict[str, Any]], Any] = own_extras,
) -> Iterator[Made]:
    """Dialogues of a layout that `parse` reads one record of."""

    def make(record: dict[str, Any], draft: LayoutDraft) -> Dialogue:
        return make_dialogue(parse(record, draft), draft, source)

    return records_of(path, options, conversion, source, extras_of, make)


def stream_cards(
    path: Path,
    options: Options,
    conversion: Conversion,
    source: str,
    parse: Callable[[dict[str, Any], LayoutDraft], RoleCard],
    extras_of: Callable[[dict[str, Any]], Any] = own_extras,
) -> Iterator[Made]:
    """Role cards of a layout. A record with our own extras gives back the card that was exported, whole."""

    def make(record: dict[str, Any], draft: LayoutDraft) -> RoleCard:
        extras = extras_of(record)
        if extras is None:
            return parse(record, draft)
        if not isinstance(extras, dict):
            raise draft.error(f"{EXTRAS} is not an object")
        return _validated(RoleCard, extras, draft)

    return records_of(path, options, conversion, source, extras_of, make)
