"""The steps of cleaning that change texts and turns, each a function from a dialogue to what is left of it.

Every step looks first, in one go, whether there is anything to do: in most dialogues there is not.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import eq
from typing import Any

from data_prep.chatter import LIKELY, without_chatter
from data_prep.crisis import crisis_kinds
from data_prep.records import Dialogue, RoleCard, Turn
from data_prep.tidying import PERSONAL, PERSONAL_TOO, UNUSUAL, UNUSUAL_EDGE, Counts

Stepped = tuple[Dialogue | None, Counts]
Apply = Callable[[Dialogue], Stepped]
Change = Callable[[str, Counts], str]
NOTHING: Counts = Counter()

CARD_FIELDS = ("age", "gender", "occupation", "problem")


# ---- texts of a dialogue


def _parts(turn: Turn) -> list[dict[str, Any]] | None:
    """The turns a merged turn was made of, as long as they still make up its text; None for any other turn."""
    parts = turn.meta.get("originals")
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
    ):
        return None
    return parts if "\n".join(part["text"] for part in parts) == turn.text else None


def _change_turn(turn: Turn, change: Callable[[str], str]) -> Turn:
    """The turn with its text changed; a merged turn is changed part by part, and parts left empty are dropped."""
    parts = _parts(turn)
    if parts is None:
        text = change(turn.text)
        return turn if text == turn.text else turn.model_copy(update={"text": text})
    changed = [{**part, "text": change(part["text"])} for part in parts]
    if changed == parts:
        return turn
    changed = [part for part in changed if part["text"]]
    return turn.model_copy(
        update={"text": "\n".join(part["text"] for part in changed), "meta": {**turn.meta, "originals": changed}}
    )


def _texts(dialogue: Dialogue) -> list[str]:
    """All texts the steps look at, in order."""
    texts = [turn.text for turn in dialogue.turns]
    if dialogue.situation is not None:
        texts.append(dialogue.situation)
    if dialogue.card is not None:
        card = dialogue.card
        texts += [
            value for value in (card.age, card.gender, card.occupation, card.problem, card.text) if value is not None
        ]
    return texts + _removed(dialogue)


_last_joined: tuple[Dialogue | None, str] = (None, "")


def joined_texts(dialogue: Dialogue) -> str:
    """All of `_texts` joined, begun and ended by NUL; remembers the last answer, since every step asks for it."""
    global _last_joined
    last, joined = _last_joined
    if last is not dialogue:
        joined = _join(dialogue)
        _last_joined = (dialogue, joined)
    return joined


def _join(dialogue: Dialogue) -> str:
    if dialogue.situation is None and dialogue.card is None and not dialogue.meta:
        return "\0" + "\0".join([turn.text for turn in dialogue.turns]) + "\0"
    return "\0".join(("", *_texts(dialogue), ""))


def _removed(dialogue: Dialogue) -> list[str]:
    """The texts that task chatter was cut from."""
    removed = dialogue.meta.get("removed_chatter")
    return removed if isinstance(removed, list) and all(isinstance(text, str) for text in removed) else []


def _change_card(card: RoleCard, change: Callable[[str], str], published_too: bool) -> RoleCard:
    names = (*CARD_FIELDS, "text") if published_too else CARD_FIELDS
    old = {name: getattr(card, name) for name in names if getattr(card, name) is not None}
    new = {name: change(value) for name, value in old.items()}
    return card if new == old else card.model_copy(update=new)


def change_texts(
    change: Change, suspects: Sequence[str], pattern: re.Pattern[str] | None = None, published_too: bool = False
) -> Apply:
    """A step that applies `change` to every text of a dialogue in which there is something to do.

    `suspects` and `pattern` are searched in the texts joined, begun and ended by NUL: one look at most dialogues.
    """

    def apply(dialogue: Dialogue) -> Stepped:
        counts: Counts = Counter()
        joined = joined_texts(dialogue)
        if not any(suspect in joined for suspect in suspects) and (pattern is None or not pattern.search(joined)):
            return dialogue, counts

        def changed(text: str) -> str:
            return change(text, counts)

        update: dict[str, Any] = {"turns": tuple(_change_turn(turn, changed) for turn in dialogue.turns)}
        if dialogue.situation is not None:
            update["situation"] = changed(dialogue.situation)
        if dialogue.card is not None:
            update["card"] = _change_card(dialogue.card, changed, published_too)
        removed = _removed(dialogue)
        if removed:
            update["meta"] = {**dialogue.meta, "removed_chatter": [changed(text) for text in removed]}
        return (dialogue.model_copy(update=update) if +counts else dialogue), +counts

    return apply


# ---- steps that change turns


def cut_chatter(dialogue: Dialogue) -> Stepped:
    counts: Counts = Counter()
    if dialogue.language != "en":
        return dialogue, counts
    removed: list[str] = []

    def cut(text: str) -> str:
        kept, sentences = without_chatter(text)
        # Nothing that speaks of a crisis is taken for chatter.
        if not sentences or crisis_kinds(text):
            return text
        removed.append(text)
        counts["turns cut" if kept else "turns emptied"] += 1
        return kept

    turns = tuple(_change_turn(turn, cut) for turn in dialogue.turns)
    if not removed:
        return dialogue, counts
    meta = {**dialogue.meta, "removed_chatter": [*_removed(dialogue), *removed]}
    return dialogue.model_copy(update={"turns": turns, "meta": meta}), counts


def drop_empty(dialogue: Dialogue) -> Stepped:
    kept = tuple([turn for turn in dialogue.turns if turn.text and not turn.text.isspace()])
    if len(kept) == len(dialogue.turns):
        return dialogue, NOTHING
    counts = Counter({"turns dropped": len(dialogue.turns) - len(kept), "dialogues without text dropped": not kept})
    return (dialogue.model_copy(update={"turns": kept}) if kept else None), +counts


def _originals(turn: Turn) -> list[dict[str, Any]]:
    parts = _parts(turn)
    if parts is not None:
        return parts
    return [turn.model_dump(exclude={"speaker"}, exclude_defaults=True)]


def merge_runs(dialogue: Dialogue) -> Stepped:
    turns = dialogue.turns
    if all(one.speaker != other.speaker for one, other in pairwise(turns)):
        return dialogue, NOTHING
    runs: list[list[Turn]] = []
    for turn in turns:
        if runs and runs[-1][0].speaker == turn.speaker:
            runs[-1].append(turn)
        else:
            runs.append([turn])
    merged = []
    for run in runs:
        if len(run) == 1:
            merged.append(run[0])
            continue
        originals = [part for turn in run for part in _originals(turn)]
        kept = {key: value for turn in run if _parts(turn) is not None for key, value in turn.meta.items()}
        strategies = [turn.strategy for turn in run if turn.strategy is not None]
        merged.append(
            Turn(
                speaker=run[0].speaker,
                text="\n".join(turn.text for turn in run),
                strategy=strategies[0] if strategies else None,
                meta={**kept, "originals": originals},
            )
        )
    counts = Counter({"runs merged": sum(len(run) > 1 for run in runs), "turns joined": len(turns) - len(runs)})
    return dialogue.model_copy(update={"turns": tuple(merged)}), counts


def nothing_to_do(speakers: Sequence[str], language: str, joined: str, masked: bool, usual: bool = False) -> bool:
    """Whether no step that changes texts or turns (masking among them only if `masked`) has anything to do.

    `joined` are the texts of a dialogue as `joined_texts` gives them; when no character in them is UNUSUAL for sure
    (`usual`), there is less to look for. False where it takes a closer look.
    """
    return not (
        any(map(eq, speakers, speakers[1:]))
        or (not usual and UNUSUAL.search(joined))
        or "\0\0" in joined
        or ((" " in joined or "\n" in joined) and UNUSUAL_EDGE.search(joined))
        or (language == "en" and LIKELY.search(joined))
        or (masked and (any(suspect in joined for suspect in PERSONAL) or PERSONAL_TOO.search(joined)))
    )
