"""`esckit evaluate JUDGE --probe`: asks a judge again in many ways and collects what its levels depend on.

Every check is listed; one that does not apply to a kind of judge says why.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from data_prep.judge_prompt import JudgePrompt, OwnPrompt
from data_prep.prompt import load_prompt
from data_prep.records import Dialogue, Language
from eval.judge import Judge
from eval.judge_checks import (
    COMPARISON,
    LENGTH,
    Check,
    Material,
    changes,
    comparisons,
    length_slope,
    verdict_of_reward,
    verdict_of_sameness,
)
from eval.judge_input import Judged, JudgmentStore
from eval.judge_variants import VARIANTS
from eval.progress import progress_bar

OTHER: dict[Language, Language] = {"en": "zh", "zh": "en"}
NO_WORDS = "this judge is asked in no words: it reads the dialogue alone"
NOTHING = "the judge gave no level at all, so there is nothing to change"
OFFICIAL = "this judge is asked in fixed words (--official)"


@runtime_checkable
class AskedInWords(Protocol):
    """A judge that can be asked in other words; `how.prompt` is how it is asked now."""

    how: Any

    def asked_with(self, prompt: JudgePrompt) -> Judge: ...


WHAT = {
    "length": LENGTH,
    "comparison": COMPARISON,
    "retest": "the same question again, in another order of the dialogues; second less first",
    "padded": "a sentence that says nothing after every supporter turn; variant less original",
    "listed": "supporter turns as numbered lists of the same sentences; variant less original",
    "repeated_advice": "the first advice again in each later supporter turn; variant less original",
    "rubric_order": "anchors from the highest level to the lowest; changed less original",
    "wording": "the same request in other words; changed less original",
    "language": "the rubric in the other language, the dialogue as it is; changed less original",
    "order_flips": "two dialogues compared in both orders",
}


def probe(
    judge: Judge,
    store: JudgmentStore,
    judged: Judged,
    material: Material,
    batch_size: int,
) -> Iterator[Check]:
    """Every check, one after the other; `judged` are the judgments of the material as it is."""
    if all(one.expected is None for dialogue in judged for one in dialogue.values()):
        yield from (Check(name, what, reason=NOTHING) for name, what in WHAT.items())
        return
    yield _retest(judge, store, judged, material, batch_size)
    yield Check(
        "order_flips",
        WHAT["order_flips"],
        reason="this judge rates one dialogue at a time; `esckit compare` counts flips of pairs",
    )
    yield length_slope(judged, material)
    for name in VARIANTS:
        yield _variant(name, judge, store, judged, material, batch_size)
    for name, prompt, reason in _prompts(judge):
        if prompt is None or not isinstance(judge, AskedInWords):
            yield Check(name, WHAT[name], reason=reason)
            continue
        with progress_bar(name, len(material.dialogues)) as advance:
            again = store.judge(judge.asked_with(prompt), material.dialogues, batch_size, advance)
        yield changes(name, WHAT[name], judged, again, material, verdict_of_sameness)
    yield comparisons(judged, material)


def _retest(judge: Judge, store: JudgmentStore, judged: Judged, material: Material, batch_size: int) -> Check:
    """Asked anew: nothing is taken from the store. Other neighbours in a batch must change nothing either."""
    backwards = list(material.dialogues)[::-1]
    with progress_bar("retest", len(backwards)) as advance:
        again = store.judge(judge, backwards, max(1, batch_size // 2), advance, fresh=True)
    return changes("retest", WHAT["retest"], judged, again[::-1], material, verdict_of_sameness)


def _variant(
    name: str, judge: Judge, store: JudgmentStore, judged: Judged, material: Material, batch_size: int
) -> Check:
    made: list[tuple[int, Dialogue]] = []
    for place, dialogue in enumerate(material.dialogues):
        variant = VARIANTS[name](dialogue)
        if variant is not None:
            made.append((place, variant))
    if not made:
        return Check(name, WHAT[name], reason="no dialogue has anything that this variant would change")
    places = [place for place, _ in made]
    with progress_bar(name, len(made)) as advance:
        again = store.judge(judge, [variant for _, variant in made], batch_size, advance)
    before = [judged[place] for place in places]
    return changes(name, WHAT[name], before, again, material, verdict_of_reward, places)


def _prompts(judge: Judge) -> Iterator[tuple[str, JudgePrompt | None, str | None]]:
    """(check, prompt to ask with, or why there is none)."""
    names = ("rubric_order", "wording", "language")
    if not isinstance(judge, AskedInWords):
        yield from ((name, None, NO_WORDS) for name in names)
        return
    prompt = judge.how.prompt
    if not isinstance(prompt, OwnPrompt):
        yield from ((name, None, OFFICIAL) for name in names)
        return
    yield "rubric_order", replace(prompt, order="descending"), None
    reworded = load_prompt("judge_reworded")
    if prompt.prompt.sha == reworded.sha:
        reworded = load_prompt("judge")
    yield "wording", replace(prompt, prompt=reworded), None
    yield "language", OtherLanguage(prompt), None


class OtherLanguage:
    """The words around a dialogue in the language that it is not in."""

    def __init__(self, prompt: OwnPrompt):
        self._prompt = prompt

    def text(self, dialogue: Dialogue, dimension: Any) -> str:
        return replace(self._prompt, language=OTHER[dialogue.language]).text(dialogue, dimension)

    def reference(self) -> dict[str, Any]:
        return {**self._prompt.reference(), "language": "other"}
