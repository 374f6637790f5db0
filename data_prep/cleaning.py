"""Cleaning of dialogues in named, counted steps, each of which can be left out.

A step takes one dialogue and gives it back changed, unchanged or not at all (None), with a count of what it did. The
steps of STEPS run in that order, those that change texts and turns over and over until nothing changes any more, so
that cleaning what is clean changes nothing. Text that no step speaks of is left as it is, to the character. What a
role card was published as (`card.text`) is touched by masking only.

Merging and cutting keep what was there: `meta["originals"]` of a merged turn holds the turns it was made of,
`meta["removed_chatter"]` of a dialogue the texts from which something was cut.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice, pairwise
from typing import Any

from data_prep.chatter import LIKELY, without_chatter
from data_prep.crisis import KINDS, crisis_kinds, may_have_crisis_joined
from data_prep.errors import UserError
from data_prep.opening_marks import Openings
from data_prep.records import Dialogue, RoleCard, Turn
from data_prep.tidying import (
    ESCAPED,
    INVISIBLE,
    PERSONAL,
    PERSONAL_TOO,
    UNTIDY,
    UNUSUAL,
    UNUSUAL_EDGE,
    Counts,
    drop_zero_width,
    mask,
    tidy,
    unescape,
)

Stepped = tuple[Dialogue | None, Counts]
Apply = Callable[[Dialogue], Stepped]
Change = Callable[[str, Counts], str]
NOTHING: Counts = Counter()

# Dialogues read ahead: the openings of so many are hashed together.
AHEAD = 16
CARD_FIELDS = ("age", "gender", "occupation", "problem")


@dataclass(frozen=True)
class Step:
    """One step: `start()` gives the function that is applied, with a memory of its own where it needs one."""

    name: str
    about: str
    default: bool
    start: Callable[[], Apply]


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


def _joined(dialogue: Dialogue) -> str:
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


def _change_texts(
    change: Change, suspects: Sequence[str], pattern: re.Pattern[str] | None = None, published_too: bool = False
) -> Apply:
    """A step that applies `change` to every text of a dialogue in which there is something to do.

    `suspects` and `pattern` are searched in the texts joined, begun and ended by NUL: one look at most dialogues.
    """

    def apply(dialogue: Dialogue) -> Stepped:
        counts: Counts = Counter()
        joined = _joined(dialogue)
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


def _cut_chatter(dialogue: Dialogue) -> Stepped:
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


def _drop_empty(dialogue: Dialogue) -> Stepped:
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


def _merge(dialogue: Dialogue) -> Stepped:
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


# ---- steps that mark


def _in_order(kinds: Iterable[str]) -> list[str]:
    found = set(kinds)
    return [kind for kind in KINDS if kind in found]


def _flag_crisis(dialogue: Dialogue) -> Stepped:
    if not may_have_crisis_joined(_joined(dialogue)):
        return dialogue, NOTHING
    turns = [(position, crisis_kinds(turn.text)) for position, turn in enumerate(dialogue.turns)]
    card = dialogue.card
    of_card = _in_order(crisis_kinds(f"{card.problem or ''}\n{card.text or ''}")) if card is not None else []
    kinds = _in_order(
        [*crisis_kinds(dialogue.situation or ""), *of_card, *(kind for _, found in turns for kind in found)]
    )
    if not kinds:
        return dialogue, NOTHING
    mark = {"kinds": kinds, "turns": [position for position, found in turns if found]}
    update: dict[str, Any] = {"meta": {**dialogue.meta, "crisis": mark}}
    if card is not None and of_card:
        update["card"] = card.model_copy(update={"meta": {**card.meta, "crisis": {"kinds": of_card}}})
    marked = dialogue.model_copy(update=update)
    if marked == dialogue:
        return dialogue, NOTHING
    return marked, Counter({"dialogues marked": 1, **{f"with {kind}": 1 for kind in kinds}})


def flag_card(card: RoleCard) -> RoleCard:
    """The card with `meta["crisis"] = {"kinds": […]}` when it speaks of a crisis, else as it is."""
    kinds = _in_order(crisis_kinds(f"{card.problem or ''}\n{card.text or ''}"))
    return card.model_copy(update={"meta": {**card.meta, "crisis": {"kinds": kinds}}}) if kinds else card


TEXT_STEPS = (
    Step(
        "html",
        "HTML entities become their characters and <br> a line break",
        True,
        lambda: _change_texts(unescape, ESCAPED),
    ),
    Step(
        "zero-width",
        "BOMs, zero-width spaces and soft hyphens are removed; joiners within emoji stay",
        True,
        lambda: _change_texts(drop_zero_width, INVISIBLE),
    ),
    Step(
        "whitespace",
        "line ends become \\n, runs of spaces one space; edges of lines are stripped, at most one blank line stays",
        True,
        lambda: _change_texts(tidy, UNTIDY),
    ),
    Step(
        "mask",
        "phone numbers, e-mail addresses and handles become [PHONE], [EMAIL], [HANDLE]; crisis lines stay",
        False,
        lambda: _change_texts(mask, PERSONAL, PERSONAL_TOO, published_too=True),
    ),
    Step(
        "task-chatter",
        "sentences about the annotation task's buttons, survey and pay are cut; the turn as it was is kept in meta",
        True,
        lambda: _cut_chatter,
    ),
    Step(
        "empty-turns",
        "turns without text are dropped, and dialogues of which no turn is left",
        True,
        lambda: _drop_empty,
    ),
    Step(
        "merge-runs",
        "neighbouring turns of one speaker become one; the originals are kept in meta",
        True,
        lambda: _merge,
    ),
)
# These change no text: they come last and see each dialogue once. The last two look at more than one dialogue.
LAST_STEPS = (
    Step(
        "crisis-flag",
        "dialogues and cards that speak of suicide, self-harm or abuse are marked in meta; no text changes",
        True,
        lambda: _flag_crisis,
    ),
    Step(
        "drop-openings", "dialogues that open nearly as an earlier one are dropped", False, lambda: Openings(drop=True)
    ),
    Step(
        "mark-openings",
        "dialogues that open nearly as an earlier one are marked with its id in meta",
        True,
        lambda: Openings(drop=False),
    ),
)
STEPS: dict[str, Step] = {step.name: step for step in (*TEXT_STEPS, *LAST_STEPS)}


@dataclass
class CleaningReport:
    """What was read, written and dropped, and what each step did; complete once the dialogues are used up."""

    read: int = 0
    written: int = 0
    steps: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counter))

    def as_dict(self) -> dict[str, Any]:
        return {
            "read": self.read,
            "written": self.written,
            "dropped": self.read - self.written,
            "steps": {name: dict(sorted(counts.items())) for name, counts in self.steps.items()},
        }


def choose_steps(without: Iterable[str] = (), also: Iterable[str] = ()) -> list[Step]:
    """The default steps less `without` plus `also`. Raises UserError for an unknown name or one given for both."""
    without, also = set(without), set(also)
    for name in sorted(without | also):
        if name not in STEPS:
            close = get_close_matches(name, STEPS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(STEPS)}"
            raise UserError(f"unknown cleaning step {name!r}; {hint} (all of them: esckit data clean --list)")
    both = sorted(without & also)
    if both:
        raise UserError(f"cleaning step {both[0]!r} is asked for both with and without; choose one")
    return [step for step in STEPS.values() if (step.default or step.name in also) and step.name not in without]


def clean(
    dialogues: Iterable[Dialogue], steps: Sequence[Step] | None = None, report: CleaningReport | None = None
) -> Iterator[Dialogue]:
    """Yields the dialogues cleaned, in their order; those that a step drops are left out.

    `steps` are the default ones unless given; they run in the order of STEPS. Reads AHEAD dialogues at a time; holds,
    besides these, about 4 kB for every distinct opening when openings are compared. Cleaning twice gives the same as
    once.
    """
    report = report if report is not None else CleaningReport()
    chosen = {step.name for step in (choose_steps() if steps is None else steps)}
    single = [(step.name, step.start()) for step in TEXT_STEPS if step.name in chosen]
    whole = [(step.name, step.start()) for step in LAST_STEPS if step.name in chosen]
    comparing = [(name, apply) for name, apply in whole if isinstance(apply, Openings)]
    # These come before those that compare.
    marking = whole[: len(whole) - len(comparing)]
    for name in (*(name for name, _ in single), *(name for name, _ in whole)):
        report.steps[name] += Counter()
    masked = "mask" in chosen
    read = iter(dialogues)
    while batch := list(islice(read, AHEAD)):
        report.read += len(batch)
        kept: list[Dialogue] = []
        for dialogue in batch:
            clear = not single or _is_clean(dialogue, masked)
            current = dialogue if clear else _until_clean(dialogue, single, report)
            marked = _once(current, marking, report) if current is not None else None
            if marked is not None:
                kept.append(marked)
        for _, apply in comparing:
            apply.look_ahead(kept)
        for dialogue in kept:
            finished = _once(dialogue, comparing, report)
            if finished is not None:
                report.written += 1
                yield finished


def _is_clean(dialogue: Dialogue, masked: bool) -> bool:
    """Whether none of TEXT_STEPS has anything to do, found out in one look; False where it takes a closer one."""
    previous = None
    for turn in dialogue.turns:
        if turn.speaker == previous:
            return False
        previous = turn.speaker
    joined = _joined(dialogue)
    return not (
        UNUSUAL.search(joined)
        or "\0\0" in joined
        or ((" " in joined or "\n" in joined) and UNUSUAL_EDGE.search(joined))
        or (dialogue.language == "en" and LIKELY.search(joined))
        or (masked and (any(suspect in joined for suspect in PERSONAL) or PERSONAL_TOO.search(joined)))
    )


def _once(dialogue: Dialogue, steps: Sequence[tuple[str, Apply]], report: CleaningReport) -> Dialogue | None:
    current: Dialogue | None = dialogue
    for name, apply in steps:
        if current is None:
            return None
        current, counts = apply(current)
        if counts:
            report.steps[name] += counts
    return current


def _until_clean(dialogue: Dialogue, steps: Sequence[tuple[str, Apply]], report: CleaningReport) -> Dialogue | None:
    """Applies the steps until all of them leave the dialogue alone: a step may make work for one before it."""
    while True:
        current = _once(dialogue, steps, report)
        # Steps give back the same object when they have nothing to do; most dialogues are done in one round.
        if current is None or current is dialogue or current == dialogue:
            return current
        dialogue = current
