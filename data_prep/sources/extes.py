"""ExTES (arXiv 2308.11584): emotional support dialogues written by a language model.

A record is {"scene", "description", "content": [entry, …]}; the key of an entry says who speaks: {"User": text} or
{"AI Strategy": name, "AI": text}.

Repaired, and counted: an entry with both speakers becomes two turns, in the order of its keys; an entry with neither
and without other text is dropped, as is a turn without text; `AI` (or `User`) given as an object that holds one text
is that text, and the object's key the strategy where the entry has none; a strategy on an entry without `AI` is
dropped; whitespace at the edges of texts is stripped; a field we do not know is ignored at the level of the record.
Runs of one speaker are noted and stay. All else is refused, an entry with text under another key too: it cannot be
known who says it.
"""

from collections.abc import Iterator
from operator import eq
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, Speaker, Turn
from data_prep.sources.base import EMPTY_TURN, Conversion, Draft, Made, Options, Source, each_file, json_records

SPEAKERS: dict[str, Speaker] = {"User": "seeker", "AI": "supporter"}
STRATEGY = "AI Strategy"


def _utterances(content: Any) -> int:
    """How many utterances the entries hold; an entry without a speaker counts as one."""
    if not isinstance(content, list):
        return 0
    return sum((("User" in entry) + ("AI" in entry) or 1) if isinstance(entry, dict) else 1 for entry in content)


def _strategy(value: Any, draft: Draft, n: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise draft.error(f"turn {n}: {STRATEGY} is not a text")
    return draft.stripped(value, "strategy") or None


def _unwrapped(value: Any, key: str, draft: Draft, n: int) -> tuple[str, str | None]:
    """The text of an utterance and, where it was an object, the one key that text stood under (or its strategy)."""
    if isinstance(value, str):
        return value, None
    if not isinstance(value, dict):
        raise draft.error(f"turn {n}: {key} is neither a text nor an object")
    inner = dict(value)
    named = _strategy(inner.pop(STRATEGY, None), draft, n) if key == "AI" else None
    if len(inner) != 1 or not isinstance(only := next(iter(inner.values())), str):
        raise draft.error(f"turn {n}: {key} is an object that does not hold exactly one text")
    draft.repairs[f"{key} given as an object: its text taken"] += 1
    under = next(iter(inner)).strip()
    if named is None and under and under not in (key, "text", "content", "Response", "response"):
        named = under
    return only, named


def _usual(entry: dict[str, Any]) -> Turn | None:
    """The turn of an entry as nearly all are, in which there is nothing to repair or to count; None for any other."""
    key = "User" if len(entry) == 1 else "AI"
    text, strategy = entry.get(key), entry.get(STRATEGY)
    if not isinstance(text, str) or not text or text != text.strip():
        return None
    if key == "User":
        return Turn(speaker="seeker", text=text)
    if len(entry) != 2 or not isinstance(strategy, str) or not strategy or strategy != strategy.strip():
        return None
    return Turn(speaker="supporter", text=text, strategy=strategy)


def _turns(entry: Any, draft: Draft, n: int) -> list[Turn]:
    """The turns of one entry: one as a rule, two when both speak, none when nobody says anything."""
    if not isinstance(entry, dict):
        raise draft.error(f"turn {n}: is not an object")
    usual = _usual(entry)
    if usual is not None:
        return [usual]
    strategy = _strategy(entry.get(STRATEGY), draft, n)
    speaking = [key for key in entry if key in SPEAKERS]
    for key, value in entry.items():
        if key not in SPEAKERS and key != STRATEGY and value not in (None, "", [], {}):
            raise draft.error(f"turn {n}: has something under a key that is none of User, AI, {STRATEGY}")
    if strategy is not None and "AI" not in entry:
        draft.repairs[f"{STRATEGY} without AI dropped"] += 1
    if not speaking:
        draft.repairs["turn with neither User nor AI dropped"] += 1
    if len(speaking) > 1:
        draft.repairs["turn with both User and AI split in two"] += 1
    turns = []
    for key in speaking:
        raw, named = _unwrapped(entry[key], key, draft, n) if entry[key] is not None else ("", None)
        text = draft.stripped(raw, "turn")
        if not text:
            draft.repairs[EMPTY_TURN] += 1
            continue
        if key == "User":
            turns.append(Turn(speaker="seeker", text=text))
            continue
        if strategy is None and named is None:
            draft.missing["supporter turn without strategy"] += 1
        turns.append(Turn(speaker="supporter", text=text, strategy=strategy or named))
    return turns


def _text(record: dict[str, Any], name: str, draft: Draft) -> str | None:
    """A text field, stripped; None, and counted, when absent, null or empty."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise draft.error(f"{name} is not a text")
    text = draft.stripped(value, name) if value is not None else ""
    if not text:
        draft.missing[name] += 1
    return text or None


def _dialogue(record: Any, dialogue_id: str, draft: Draft) -> Dialogue:
    if not isinstance(record, dict):
        raise draft.error("is not an object")
    content = record.get("content")
    if not isinstance(content, list) or not content:
        raise draft.error("has no list of turns under `content`")
    turns = [turn for n, entry in enumerate(content, start=1) for turn in _turns(entry, draft, n)]
    if not turns:
        raise draft.error("no turn has text")
    speakers = [turn.speaker for turn in turns]
    draft.noted["turn after a turn of the same speaker"] += sum(map(eq, speakers, speakers[1:]))
    scene, description = _text(record, "scene", draft), _text(record, "description", draft)
    draft.repairs["unknown field ignored"] += len(record.keys() - {"scene", "description", "content"})
    card = None
    if description is not None:
        category = (scene,) if scene is not None else ()
        card = RoleCard(id=dialogue_id, language="en", problem=description, category=category, source="extes")
    return Dialogue(
        id=dialogue_id,
        language="en",
        source="extes",
        turns=tuple(turns),
        card=card,
        situation=description,
        meta={"scene": scene} if scene is not None else {},
    )


def _is_ours(record: Any) -> bool:
    return isinstance(record, dict) and "content" in record


def _stream_file(file: Path, stem: str, conversion: Conversion) -> Iterator[Made]:
    for where, position, record in json_records(file, conversion):
        count = _utterances(record.get("content")) if isinstance(record, dict) else 0
        conversion.turns_read += count
        draft = Draft(where)
        try:
            dialogue = _dialogue(record, f"extes-{stem}-{position:05d}", draft)
        except UserError as error:
            conversion.refuse(where, error, count)
            continue
        draft.accept(conversion)
        yield where, [dialogue]


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues with a role card made of description and scene; ids are `extes-<file stem>-<position>`.

    `turns_read` counts utterances: an entry with both speakers is two; one with neither is one, and dropped as
    "turn with neither User nor AI dropped". Raises UserError when a file is no JSON at all.
    """
    yield from each_file(path, conversion, _is_ours, _stream_file)


EXTES = Source(
    name="extes",
    title="ExTES: emotional support dialogues written by a language model, with 16 strategies",
    languages=("en",),
    licence="none stated",
    files=("ExTES.json",),
    origin="Building Emotional Support Chatbots in the Era of LLMs (arXiv 2308.11584)",
    makes="dialogues",
    stream=stream,
)
