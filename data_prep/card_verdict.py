"""The second half of filtering: a model says of each card whether it can be played, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from data_prep.card_llm import Answers, Asking, Question, UnusableError, ask_all, json_object
from data_prep.cards import material, with_meta
from data_prep.prompt import load_prompt
from data_prep.records import Record, RoleCard

SCHEMA = {
    "title": "verdict",
    "type": "object",
    # The reason first: a model that has to name it before deciding decides by it.
    "properties": {"reason": {"type": "string"}, "keep": {"type": "boolean"}},
    "required": ["reason", "keep"],
    "additionalProperties": False,
}


class Verdict(Record):
    """A decision without a reason is none, and a word that only looks like yes or no is none either."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: str = Field(min_length=1, max_length=2000)
    keep: bool


@dataclass
class Filtering:
    """Cards kept, those dropped with the reason by id, and in `answers.missing` those nobody decided on."""

    kept: list[RoleCard] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    answers: Answers[Verdict] = field(default_factory=Answers)

    def report(self) -> dict[str, Any]:
        return {"kept_by_model": len(self.kept), "dropped_by_model": len(self.dropped), **self.answers.report()}


def parse(_: Question, text: str) -> Verdict:
    """The verdict of a reply. Raises UnusableError."""
    try:
        verdict = Verdict.model_validate(json_object(text))
    except ValidationError:
        raise UnusableError("expected the keys reason (a sentence) and keep (true or false)") from None
    if not verdict.reason.strip():
        raise UnusableError("the reason is empty")
    return verdict


def judge_cards(cards: Sequence[RoleCard], asking: Asking, prompt_name: str = "card_verdict") -> Filtering:
    """Asks about every card. A kept card carries the verdict in its meta; one without a verdict is in neither list."""
    prompt = load_prompt(prompt_name)
    questions = [
        Question(
            item=card.id,
            task="card_verdict",
            prompt=prompt,
            language=card.language,
            material=material(card),
            schema=SCHEMA,
        )
        for card in cards
    ]
    found = Filtering(answers=ask_all(questions, parse, asking))
    for card in cards:
        verdict = found.answers.found.get(card.id)
        if verdict is None:
            continue
        if verdict.keep:
            origin = {"model": asking.endpoint.model, "prompt": prompt.reference()}
            found.kept.append(with_meta(card, verdict={"keep": True, "reason": verdict.reason, **origin}))
        else:
            found.dropped[card.id] = verdict.reason
    return found
