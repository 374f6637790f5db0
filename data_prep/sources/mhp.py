"""Reddit posts about mental health (MHP), a source of role cards in ESC-Eval.

    {"id": "…", "title": "…", "selftext": "…", "subreddit": "…", "comments": ["…" or {"body": "…"}, …]}

JSON Lines, a JSON array, or CSV with a header of such names. The post's text is under `selftext`, `body`, `post` or
`text`. A post becomes a dialogue of one turn, the seeker's: title, blank line, text, both verbatim; the comments, if
there are any, are kept in `meta`, not as turns, for nobody there talks with the poster alone. The author's name is
not kept. A post without text is its title alone, counted. Dropped, and counted: deleted, removed and empty comments.
Refused: posts that were deleted or removed, and those with neither title nor text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, Turn
from data_prep.sources.base import Conversion, Made, Options, Source
from data_prep.sources.layouts import LayoutDraft, json_values, record_id
from data_prep.sources.reading import slug, starts_with
from data_prep.sources.tables import read_table

TEXT_FIELDS = ("selftext", "body", "post", "text")
GONE = frozenset({"[deleted]", "[removed]", "[deleted by user]", "[ removed by reddit ]", "[removed by reddit]"})


def _is_gone(text: str) -> bool:
    return text.strip().casefold() in GONE


def _text(record: dict[str, Any], name: str, draft: LayoutDraft) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise draft.error(f"`{name}` is not a text")
    return value


def _comments(record: dict[str, Any], draft: LayoutDraft) -> list[str]:
    raw = record.get("comments")
    if raw is None or raw == "":
        return []
    if isinstance(raw, int):  # a dump that gives their number only
        return []
    if not isinstance(raw, list):
        raise draft.error("`comments` is not a list")
    kept = []
    for number, comment in enumerate(raw, start=1):
        text = comment
        if isinstance(comment, dict):
            text = next((comment[name] for name in ("body", "text") if isinstance(comment.get(name), str)), None)
        if not isinstance(text, str):
            raise draft.error(f"comment {number}: has no text")
        if _is_gone(text) or not text.strip():
            draft.repairs["deleted, removed or empty comment dropped"] += 1
        else:
            kept.append(text)
    return kept


def _post(record: dict[str, Any], draft: LayoutDraft) -> Dialogue:
    present = [name for name in TEXT_FIELDS if name in record]
    if len(present) > 1:
        raise draft.error(f"has its text in {len(present)} fields ({', '.join(present)}); keep one of them")
    if not present and "title" not in record:
        raise draft.error(f"has neither a title nor one of {', '.join(TEXT_FIELDS)}")
    title, text = _text(record, "title", draft), _text(record, present[0], draft) if present else ""
    if _is_gone(text) or _is_gone(title):
        raise draft.error("the post was deleted or removed")
    if not title.strip() and not text.strip():
        raise draft.error("the post is empty")
    draft.missing["title"] += not title.strip()
    draft.missing["text, the title stands alone"] += not text.strip()
    parts = [part for part in (title, text) if part.strip()]
    meta: dict[str, Any] = {"title": title} if title.strip() else {}
    subreddit = _text(record, "subreddit", draft)
    if subreddit:
        meta["subreddit"] = subreddit
    comments = _comments(record, draft)
    if comments:
        meta["comments"] = comments
    turn = Turn(speaker="seeker", text="\n\n".join(parts))
    return Dialogue(id=draft.id, language=draft.language, source="mhp", turns=(turn,), meta=meta)


def _records(path: Path, conversion: Conversion) -> Iterator[tuple[str, str, Any]]:
    """(where, place, record) of a JSON file, a folder of them, or a CSV file; by content."""
    if path.is_dir() or starts_with(path) in ("{", "[", ""):
        yield from json_values(path, conversion)
        return
    table = read_table(path)
    if not {"title", *TEXT_FIELDS} & set(table.header):
        raise UserError(f"{path}:1: has no column title, {', '.join(TEXT_FIELDS)}; expected posts, JSON or CSV")
    for name in ("title", *TEXT_FIELDS):
        if name in table.header:
            table.column(name)
    for position, (where, cells) in enumerate(table.rows, start=1):
        place = f"{slug(path.stem)}-{position:04d}"
        if isinstance(cells, UserError):
            yield where, place, cells
            continue
        record: dict[str, Any] = dict(zip(table.header, cells, strict=True))
        record.pop("comments", None)  # a cell is no list of comments
        yield where, place, record


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues of one turn; ids are the post's own, else `mhp-<file>-<position>`."""
    for where, place, record in _records(path, conversion):
        draft = LayoutDraft(where, id=record_id(record, place, "mhp"), language=options.language or "en")
        conversion.turns_read += 1
        try:
            if isinstance(record, UserError):
                raise record
            if not isinstance(record, dict):
                raise draft.error("is not an object")
            dialogue = _post(record, draft)
        except UserError as error:
            conversion.refuse(where, error, 1)
            continue
        draft.accept(conversion)
        yield where, [dialogue]


MHP = Source(
    name="mhp",
    title="Reddit posts about mental health, one seeker turn each, for role cards",
    languages=("en",),
    licence="none stated; the posts are their authors'",
    files=("*.csv", "*.jsonl", "*.json"),
    origin="posts of mental-health subreddits, such as the hub dataset; ESC-Eval (EMNLP 2024) names no file",
    hub_id="solomonk/reddit_mental_health_posts",
    makes="dialogues",
    stream=stream,
)
