"""Dialogues and cards made for tests of the builds, and strategies that draw any."""

from hypothesis import strategies as st

from data_prep.records import Dialogue, RoleCard, Turn
from data_prep.sources.esconv import STRATEGIES


def card(identifier="c1", language="en", **changes):
    given = {"problem": f"problem of {identifier}", "age": "30", "source": "made", **changes}
    return RoleCard(id=identifier, language=language, **given)


def dialogue(identifier, *turns, with_card=True, language="en", **changes):
    """Turns as "s:text" (seeker), "p:text" (supporter) or "p[Question]:text"."""
    made = []
    for turn in turns or ("p:hello", f"s:this is what happened to {identifier} last year", "p:and then", "s:nothing"):
        head, _, text = turn.partition(":")
        strategy = head[2:-1] if "[" in head else None
        made.append(Turn(speaker="seeker" if head[0] == "s" else "supporter", text=text, strategy=strategy))
    given = card(f"card-{identifier}", language) if with_card else None
    return Dialogue(id=identifier, language=language, source="made", turns=tuple(made), **{"card": given, **changes})


def located(*dialogues):
    return [(f"d.jsonl:{number}", made) for number, made in enumerate(dialogues, start=1)]


# ---- any records

LANGUAGE = st.sampled_from(("en", "zh"))
TEXT = st.text(max_size=12)
SOME = st.text(min_size=1, max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
META = st.dictionaries(
    st.sampled_from(("merged", "persona", "dialogue_id", "card_id", "source_id", "x")), VALUE, max_size=3
)
TURN = st.builds(
    Turn,
    speaker=st.sampled_from(("seeker", "supporter")),
    text=TEXT,
    strategy=st.none() | st.sampled_from(STRATEGIES) | TEXT,
    meta=META,
)
CARD = st.builds(
    RoleCard,
    id=SOME,
    language=LANGUAGE,
    age=st.none() | TEXT,
    gender=st.none() | TEXT,
    occupation=st.none() | TEXT,
    problem=st.none() | TEXT,
    source=SOME,
    text=st.none() | TEXT,
    meta=META,
)
DIALOGUE = st.builds(
    Dialogue,
    id=SOME,
    language=LANGUAGE,
    source=SOME,
    turns=st.lists(TURN, min_size=1, max_size=6).map(tuple),
    card=st.none() | CARD,
    situation=st.none() | TEXT,
    meta=META,
)
DIALOGUES = st.lists(DIALOGUE, max_size=6, unique_by=lambda made: made.id)
