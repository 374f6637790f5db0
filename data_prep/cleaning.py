"""Cleaning of dialogues in named, counted steps, each of which can be left out.

A step takes one dialogue and gives it back changed, unchanged or not at all (None), with a count of what it did. The
steps of STEPS run in that order, those that change texts and turns over and over until nothing changes any more, so
that cleaning what is clean changes nothing. Text that no step speaks of is left as it is, to the character. What a
role card was published as (`card.text`) is touched by masking only.

Merging and cutting keep what was there: `meta["originals"]` of a merged turn holds the turns it was made of,
`meta["removed_chatter"]` of a dialogue the texts from which something was cut.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

from data_prep.crisis import crisis_kinds, may_have_crisis_joined
from data_prep.crisis_terms import KINDS
from data_prep.errors import UserError
from data_prep.opening_marks import Openings, Read, opening_of
from data_prep.plain import PlainDialogue
from data_prep.records import Dialogue, RoleCard
from data_prep.text_steps import (
    NOTHING,
    Apply,
    Stepped,
    change_texts,
    cut_chatter,
    drop_empty,
    joined_texts,
    merge_runs,
    nothing_to_do,
)
from data_prep.tidying import (
    ESCAPED,
    INVISIBLE,
    PERSONAL,
    PERSONAL_TOO,
    UNTIDY,
    Counts,
    drop_zero_width,
    mask,
    tidy,
    unescape,
)

# Dialogues read ahead: the openings of so many are hashed together.
AHEAD = 256


@dataclass(frozen=True)
class Step:
    """One step: `start()` gives what is applied to each dialogue, with a memory of its own where it needs one."""

    name: str
    about: str
    default: bool
    start: Callable[[], Apply | Openings]


def _in_order(kinds: Iterable[str]) -> list[str]:
    found = set(kinds)
    return [kind for kind in KINDS if kind in found]


def _flag_crisis(dialogue: Dialogue) -> Stepped:
    if not may_have_crisis_joined(joined_texts(dialogue)):
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
        lambda: change_texts(unescape, ESCAPED),
    ),
    Step(
        "zero-width",
        "BOMs, zero-width spaces and soft hyphens are removed; joiners within emoji stay",
        True,
        lambda: change_texts(drop_zero_width, INVISIBLE),
    ),
    Step(
        "whitespace",
        "line ends become \\n, runs of spaces one space; edges of lines are stripped, at most one blank line stays",
        True,
        lambda: change_texts(tidy, UNTIDY),
    ),
    Step(
        "mask",
        "phone numbers, e-mail addresses and handles become [PHONE], [EMAIL], [HANDLE]; crisis lines stay",
        False,
        lambda: change_texts(mask, PERSONAL, PERSONAL_TOO, published_too=True),
    ),
    Step(
        "task-chatter",
        "sentences about the annotation task's buttons, survey and pay are cut; the turn as it was is kept in meta",
        True,
        lambda: cut_chatter,
    ),
    Step(
        "empty-turns",
        "turns without text are dropped, and dialogues of which no turn is left",
        True,
        lambda: drop_empty,
    ),
    Step(
        "merge-runs",
        "neighbouring turns of one speaker become one; the originals are kept in meta",
        True,
        lambda: merge_runs,
    ),
)
# These change no text: they come last and see each dialogue once.
CRISIS_FLAG = Step(
    "crisis-flag",
    "dialogues and cards that speak of suicide, self-harm or abuse are marked in meta; no text changes",
    True,
    lambda: _flag_crisis,
)
COMPARING_STEPS = (
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
STEPS: dict[str, Step] = {step.name: step for step in (*TEXT_STEPS, CRISIS_FLAG, *COMPARING_STEPS)}


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
    for record in clean_read(dialogues, steps, report):
        yield record if isinstance(record, Dialogue) else record.dialogue()


def clean_read(
    records: Iterable[Read], steps: Sequence[Step] | None = None, report: CleaningReport | None = None
) -> Iterator[Read]:
    """`clean` of dialogues of which some may be plain lines; those that no step changes come back as they are."""
    report = report if report is not None else CleaningReport()
    chosen = [(step.name, step.start()) for step in (choose_steps() if steps is None else steps)]
    chosen.sort(key=lambda named: list(STEPS).index(named[0]))
    for name, _ in chosen:
        report.steps[name] += Counter()
    comparing = [(name, step) for name, step in chosen if isinstance(step, Openings)]
    alone = [(name, step) for name, step in chosen if not isinstance(step, Openings)]
    changing = [(name, step) for name, step in alone if name != CRISIS_FLAG.name]
    marking = alone[len(changing) :]
    masked = any(name == "mask" for name, _ in changing)
    read = iter(records)
    while batch := list(islice(read, AHEAD)):
        report.read += len(batch)
        kept: list[Read] = []
        for record in batch:
            if isinstance(record, PlainDialogue):
                joined = record.joined()
                if not (
                    changing and not nothing_to_do(record.speakers, record.language, joined, masked, True)
                ) and not (marking and may_have_crisis_joined(joined)):
                    kept.append(record)
                    continue
                record = record.dialogue()
            cleaned = _until_clean(record, changing, masked, report)
            marked = _once(cleaned, marking, report) if cleaned is not None else None
            if marked is not None:
                kept.append(marked)
        for finished in _compared(kept, comparing, report) if comparing else kept:
            report.written += 1
            yield finished


def _once(dialogue: Dialogue, steps: Sequence[tuple[str, Apply]], report: CleaningReport) -> Dialogue | None:
    current: Dialogue | None = dialogue
    for name, apply in steps:
        if current is None:
            return None
        current, counts = apply(current)
        if counts:
            report.steps[name] += counts
    return current


def _until_clean(
    dialogue: Dialogue, steps: Sequence[tuple[str, Apply]], masked: bool, report: CleaningReport
) -> Dialogue | None:
    """Applies the steps until all of them leave the dialogue alone: a step may make work for one before it."""
    speakers = [turn.speaker for turn in dialogue.turns]
    if not steps or nothing_to_do(speakers, dialogue.language, joined_texts(dialogue), masked):
        return dialogue
    while True:
        current = _once(dialogue, steps, report)
        # Steps give back the same object when they have nothing to do; most dialogues are done in one round.
        if current is None or current is dialogue or current == dialogue:
            return current
        dialogue = current


def _compared(records: Sequence[Read], steps: Sequence[tuple[str, Openings]], report: CleaningReport) -> Iterator[Read]:
    """The records that are left once their openings are compared with all before them."""
    openings = [opening_of(record) for record in records]
    for _, step in steps:
        step.look_ahead(openings)
    for record, text in zip(records, openings, strict=True):
        current: Read | None = record
        for name, step in steps:
            if current is not None:
                current, counts = step.compare(current, text)
                if counts:
                    report.steps[name] += counts
        if current is not None:
            yield current
