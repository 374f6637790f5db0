"""What the tests of every converter share: reading made files, the balance of turns, arbitrary input."""

import json
from pathlib import Path

from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.records import dump_line
from data_prep.rubric import check_ratings, load_rubric
from data_prep.sources import SOURCES, Conversion, get_source
from data_prep.sources.base import KINDS

SECRET = "nobody may read this sentence"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False, allow_infinity=False) | texts
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


def nearly(strategy):
    """Mostly the right thing."""
    return st.one_of(strategy, strategy, strategy, anything)


def put(path: Path, content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def said(conversion: Conversion) -> list[list[tuple[str, str]]]:
    return [[(turn.speaker, turn.text) for turn in dialogue.turns] for dialogue in conversion.dialogues]


def balanced(conversion: Conversion, *dropped: str) -> bool:
    """Every turn read is written, dropped for a named cause, or in a refused record."""
    written = sum(len(dialogue.turns) for dialogue in conversion.dialogues)
    assert written == sum(conversion.turns_written.values())
    causes = sum(conversion.repairs[cause] for cause in ("empty turn dropped", *dropped))
    return conversion.turns_read == written + causes + sum(refusal.turns for refusal in conversion.refused)


def converted_or_refused(name: str, path: Path, *dropped: str) -> Conversion | None:
    """Converts what may be anything: sound records and refusals in one line, or a UserError; nothing else."""
    try:
        conversion = get_source(name).read(path)
    except UserError as error:
        refused = str(error)
    else:
        refused = None
    if refused is not None:
        assert "\n" not in refused
        return None
    records = [record for kind in KINDS.values() for record in conversion.made(kind)]
    for record in records:
        assert type(record).model_validate(json.loads(dump_line(record))) == record
    rubric = SOURCES[name].rubric
    if rubric is not None:
        check_ratings((("", rating) for rating in conversion.ratings), load_rubric(rubric))
    ids = [dialogue.id for dialogue in conversion.dialogues]
    assert len(set(ids)) == len(ids)
    assert balanced(conversion, *dropped)
    assert all(refusal.reason for refusal in conversion.refused)
    assert all(count >= 0 for count in (conversion.repairs + conversion.missing + conversion.noted).values())
    return conversion


def unreadable(folder: Path, content: str, name: str) -> dict[str, Path]:
    """The same content with a BOM, and in UTF-16, for what must be read and what must be refused."""
    with_bom, utf16 = folder / "bom" / name, folder / "utf16" / name
    for path, encoding in ((with_bom, "utf-8-sig"), (utf16, "utf-16")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode(encoding))
    return {"bom": with_bom, "utf16": utf16}
