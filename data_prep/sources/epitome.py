"""EPITOME (arXiv 2009.08441): (post, response) pairs from Reddit, rated for three mechanisms of empathy.

Three CSV files of the same pairs in the same order, one a mechanism: sp_id, rp_id, seeker_post, response_post, level
(0 to 2), rationales (parts of the response, each ended by |). Which file is of which mechanism is told by its name,
the only thing that says it. Rows are joined by position and their ids compared: some pairs occur twice, some of them
with other levels, so no key finds a row.

Repaired, and counted: where the text of a pair differs between the files, that of the emotional-reactions file is
kept; whitespace at the edges of texts is stripped; a level that is none of 0, 1, 2 is a rating without a value; the
second and third occurrence of a pair get -2 and -3 at the end of their ids. HTML entities stay as they are: reading
them is cleaning, and a step of its own. A row whose ids differ between the files, whose columns are not the six, or
without text is refused.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from data_prep.errors import UserError
from data_prep.records import Dialogue, Rating, Turn, read_text
from data_prep.sources.base import Conversion, Draft, Made, Options, Source
from data_prep.sources.reading import data_files

RUBRIC = "epitome"
RATER = "epitome"
MECHANISMS = {
    "emotional_reactions": "emotional",
    "interpretations": "interpretation",
    "explorations": "exploration",
}
COLUMNS = ["sp_id", "rp_id", "seeker_post", "response_post", "level", "rationales"]
LEVELS = {"0": 0, "1": 1, "2": 2}
Row = list[str] | None


def _find(path: Path) -> dict[str, Path]:
    """The file of each mechanism, in the folder given or beside the file given."""
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise UserError(f"{path}: file not found; check the path (relative to {Path.cwd()})")
    files = data_files(folder)
    found = {}
    for mechanism, word in MECHANISMS.items():
        named = [file for file in files if word in file.name.lower() and file.parent == files[0].parent]
        if len(named) != 1:
            raise UserError(
                f"{folder}: has {len(named)} files with {word!r} in the name, expected one; "
                f"give the folder of the three files, each named for its mechanism ({', '.join(MECHANISMS.values())})"
            )
        found[mechanism] = named[0]
    if len(set(found.values())) < len(found):
        raise UserError(f"{folder}: one file has the names of two mechanisms; name each file for its own")
    return found


def _rows(file: Path) -> Iterator[list[str]]:
    """The rows after the header. Raises UserError when the file is not this table."""
    reader = csv.reader(io.StringIO(read_text(file), newline=""))
    # Posts are long; the limit is the module's, so it is put back.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num}: is not CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)
    if not rows or [name.strip() for name in rows[0]] != COLUMNS:
        raise UserError(f"{file}: its first line is not {','.join(COLUMNS)}")
    return iter(rows[1:])


def _rationales(text: str) -> list[str]:
    return [part.strip() for part in text.split("|") if part.strip()]


def _pair(rows: dict[str, Row], draft: Draft) -> list[str]:
    """sp_id, rp_id, post and response that the three rows agree on."""
    lengths = {mechanism: len(row) if row is not None else 0 for mechanism, row in rows.items()}
    for mechanism, length in lengths.items():
        if length == 0:
            raise draft.error(f"the {mechanism} file has no such row")
        if length != len(COLUMNS):
            raise draft.error(f"the {mechanism} file has {length} columns here, expected {len(COLUMNS)}")
    whole = [row for row in rows.values() if row is not None]
    if len({tuple(row[:2]) for row in whole}) > 1:
        raise draft.error("sp_id and rp_id are not the same in the three files")
    for place, what in ((2, "seeker_post"), (3, "response_post")):
        draft.repairs[f"{what} differs between the files: that of {next(iter(rows))} kept"] += (
            len({row[place] for row in whole}) > 1
        )
    identifiers = [part.strip() for part in whole[0][:2]]
    if not all(identifiers):
        raise draft.error("sp_id or rp_id is empty")
    post, response = draft.stripped(whole[0][2], "seeker_post"), draft.stripped(whole[0][3], "response_post")
    if not post or not response:
        raise draft.error("seeker_post or response_post is empty")
    return [*identifiers, post, response]


def _rating(dialogue_id: str, mechanism: str, level: str, draft: Draft) -> Rating:
    value = LEVELS.get(level.strip())
    if value is None:
        draft.repairs["level off the scale 0..2: no value"] += 1
    reason = "off the scale 0..2 in the source" if value is None else None
    return Rating(dialogue_id=dialogue_id, rater=RATER, rubric=RUBRIC, dimension=mechanism, value=value, reason=reason)


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Two-turn dialogues (post, response) with three ratings each, of rubric epitome.

    Ids are `epitome-<sp_id>-<rp_id>`; all responses to a post have the same `group` in `meta`, where the rationales
    are too. `turns_read` counts two for every row of the joined table, and refusals name the row, from 1.
    Raises UserError when the three files cannot be found or one is not this table.
    """
    files = _find(path)
    tables = {mechanism: _rows(file) for mechanism, file in files.items()}
    where_at = files["emotional_reactions"].parent
    times: Counter[str] = Counter()
    for number, joined in enumerate(zip_longest(*tables.values()), start=1):
        rows: dict[str, Row] = dict(zip(tables, joined, strict=True))
        if not any(joined):
            continue
        conversion.turns_read += 2
        where = f"{where_at}: row {number}"
        draft = Draft(where)
        try:
            sp_id, rp_id, post, response = _pair(rows, draft)
        except UserError as error:
            conversion.refuse(where, error, 2)
            continue
        name = f"epitome-{sp_id}-{rp_id}"
        times[name] += 1
        if times[name] > 1:
            draft.repairs["pair that occurs again: kept, with a number at the end of its id"] += 1
        identifier = name if times[name] == 1 else f"{name}-{times[name]}"
        whole = {mechanism: row for mechanism, row in rows.items() if row is not None}
        ratings = [_rating(identifier, mechanism, row[4], draft) for mechanism, row in whole.items()]
        rationales = {mechanism: _rationales(row[5]) for mechanism, row in whole.items()}
        draft.accept(conversion)
        dialogue = Dialogue(
            id=identifier,
            language="en",
            source="epitome",
            turns=(Turn(speaker="seeker", text=post), Turn(speaker="supporter", text=response)),
            meta={
                "sp_id": sp_id,
                "rp_id": rp_id,
                "group": f"epitome-{sp_id}",
                "rationales": {mechanism: parts for mechanism, parts in rationales.items() if parts},
            },
        )
        yield where, [dialogue, *ratings]


EPITOME = Source(
    name="epitome",
    title="EPITOME: Reddit posts and responses, rated for three mechanisms of empathy",
    languages=("en",),
    licence="academic use only",
    files=("emotional-reactions-reddit.csv", "interpretations-reddit.csv", "explorations-reddit.csv"),
    origin=(
        "A Computational Approach to Understanding Empathy Expressed in Text-Based Mental Health Support (EMNLP 2020); "
        "behavioral-data/Empathy-Mental-Health"
    ),
    makes="dialogues",
    rubric=RUBRIC,
    stream=stream,
)
