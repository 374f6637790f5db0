"""Arbitrary JSON near what a converter expects, and what has to hold for whatever it makes of it."""

import json
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.records import dump_line
from data_prep.sources import Conversion, Options, get_source

SECRET = "nobody may read this sentence"
EMPTY = "empty turn dropped"

texts = st.text(max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def nearly(good):
    """Mostly what belongs there, now and then something else."""
    return st.integers(0, 9).flatmap(lambda draw: anything if draw == 0 else good)


def some_of(fields):
    """Objects with some of the fields, each mostly good, and now and then one of no meaning."""
    return st.fixed_dictionaries(
        {}, optional={**{name: nearly(value) for name, value in fields.items()}, "x": anything}
    )


def balanced(conversion: Conversion) -> bool:
    """Every turn that was read is written, dropped as empty, or in a refused record."""
    written = sum(len(dialogue.turns) for dialogue in conversion.dialogues)
    refused = sum(refusal.turns for refusal in conversion.refused)
    return conversion.turns_read == written + conversion.repairs[EMPTY] + refused


def write(path: Path, records, as_lines: bool = True) -> Path:
    rows = [json.dumps(record) for record in records]
    path.write_text("\n".join(rows) if as_lines else f"[{','.join(rows)}]", encoding="utf-8")
    return path


def convert_anything(source: str, records, as_lines: bool, options: Options | None = None) -> Conversion | None:
    """Converts the records twice and checks what holds for every converter; None when the file as a whole is refused.

    Half characters and infinities make an array unreadable as a whole; lines are refused one by one.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "any.json", records, as_lines)
        try:
            conversion = get_source(source).read(path, options)
        except UserError:
            if as_lines:
                raise
            return None
        again = get_source(source).read(path, options)
    made = [*conversion.dialogues, *conversion.cards]
    assert [dump_line(record) for record in made] == [dump_line(r) for r in [*again.dialogues, *again.cards]]
    assert again.report() == conversion.report()
    assert len(made) + len(conversion.refused) == len(records)
    assert balanced(conversion)
    for record in made:
        assert type(record).model_validate(json.loads(dump_line(record))) == record
    assert len({record.id for record in made}) == len(made)
    return conversion
