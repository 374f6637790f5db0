"""A dialogue or post becomes a role card: the questions to a model, and the strict reading of its replies."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, ValidationError

from data_prep.card_llm import Answers, Asking, Question, UnusableError, ask_all, json_object
from data_prep.cards import FIELDS, LONGEST, field_text
from data_prep.errors import UserError
from data_prep.prompt import Prompt, load_prompt
from data_prep.records import Dialogue, Record, RoleCard, describe_invalid

SCHEMA = {
    "title": "role_card",
    "type": "object",
    "properties": {name: {"type": ["string", "null"]} for name in FIELDS},
    "required": list(FIELDS),
    "additionalProperties": False,
}


class CardReply(Record):
    """The shape of a reply; a key too many, too few or of another type is no card."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    age: str | None
    gender: str | None
    occupation: str | None
    problem: str | None


@dataclass
class Extraction:
    """Cards in the order of the dialogues, and what there is no card of, with the reason by dialogue id."""

    cards: list[RoleCard] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Not asked: nothing of the seeker's is in them."""
    answers: Answers[dict[str, str | None]] = field(default_factory=Answers)

    def report(self) -> dict[str, Any]:
        return {
            "cards": len(self.cards),
            "without_problem": sum(card.problem is None for card in self.cards),
            "skipped": dict(sorted(Counter(self.skipped.values()).items())),
            **self.answers.report(),
        }


def material(dialogue: Dialogue) -> dict[str, Any]:
    """What a model is shown of a dialogue or post."""
    shown: dict[str, Any] = {"situation": dialogue.situation} if dialogue.situation else {}
    shown["conversation"] = [{"speaker": turn.speaker, "text": turn.text} for turn in dialogue.turns]
    return shown


def question(dialogue: Dialogue, prompt: Prompt) -> Question:
    return Question(
        item=dialogue.id,
        task="card_extract",
        prompt=prompt,
        language=dialogue.language,
        material=material(dialogue),
        schema=SCHEMA,
    )


def parse(_: Question, text: str) -> dict[str, str | None]:
    """The four fields of a reply, each on one line. Raises UnusableError."""
    try:
        reply = CardReply.model_validate(json_object(text))
    except ValidationError as error:
        # Keys that a model invents can repeat private text.
        extra = any(fault["type"] == "extra_forbidden" for fault in error.errors(include_url=False))
        raise UnusableError("a key that is none of the four" if extra else describe_invalid(error)) from None
    fields = {name: field_text(getattr(reply, name)) for name in FIELDS}
    for name, value in fields.items():
        if value is not None and len(value) > LONGEST[name]:
            raise UnusableError(f"{name} is longer than {LONGEST[name]} characters")
    return fields


def _nothing_said(dialogue: Dialogue) -> bool:
    texts: Iterable[str] = (turn.text for turn in dialogue.turns if turn.speaker == "seeker")
    return not any(text.strip() for text in [dialogue.situation or "", *texts])


def extract(dialogues: Sequence[Dialogue], asking: Asking, prompt_name: str = "card_extract") -> Extraction:
    """One card a dialogue, with its id; meta says which dialogue, model and prompt it comes from.

    A dialogue whose question fails has no card and is in `answers.missing`. Raises UserError when an id occurs twice.
    """
    prompt = load_prompt(prompt_name)
    found = Extraction()
    asked: dict[str, Dialogue] = {}
    for dialogue in dialogues:
        if dialogue.id in asked or dialogue.id in found.skipped:
            raise UserError(f"dialogue id {dialogue.id!r} occurs twice; ids must differ")
        if _nothing_said(dialogue):
            found.skipped[dialogue.id] = "nothing said by the seeker"
        else:
            asked[dialogue.id] = dialogue
    found.answers = ask_all([question(dialogue, prompt) for dialogue in asked.values()], parse, asking)
    origin = {"model": asking.endpoint.model, "prompt": prompt.reference()}
    for dialogue in asked.values():
        fields = found.answers.found.get(dialogue.id)
        if fields is None:
            continue
        meta: dict[str, Any] = {
            "dialogue": dialogue.id,
            "extracted": {**origin, "key": found.answers.keys[dialogue.id]},
        }
        if "crisis" in dialogue.meta:  # a mark that must not get lost on the way
            meta["crisis"] = dialogue.meta["crisis"]
        card = RoleCard(id=dialogue.id, language=dialogue.language, source=dialogue.source, meta=meta)
        found.cards.append(card.model_copy(update=fields))
    return found
