"""What cards are about: a taxonomy of up to three levels in a YAML file, and a model that picks among its classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator

from data_prep.card_llm import Answers, Asking, Question, UnusableError, ask_all, json_object
from data_prep.cards import material, with_meta
from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import Language, Record, RoleCard, describe_invalid, read_text

SHIPPED = Path(__file__).parent / "taxonomy.yaml"
LEVELS = 3
SEPARATOR = "/"


class Class(Record):
    """One class and those below it."""

    id: str = Field(pattern=r"^[A-Za-z0-9_]+$")
    en: str = Field(min_length=1, pattern=r"^[^\n]+$")
    zh: str = Field(min_length=1, pattern=r"^[^\n]+$")
    official: str | None = None
    """The word for it in ESC-Eval's card files."""
    below: tuple["Class", ...] = ()

    @model_validator(mode="after")
    def _ids_differ(self) -> "Class":
        _check_ids(self.below, self.id)
        return self


def _check_ids(classes: Sequence[Class], parent: str) -> None:
    ids = [entry.id for entry in classes]
    if len(set(ids)) < len(ids):
        raise ValueError(f"two classes below {parent} have the same id")


class Taxonomy(Record):
    """A tree of classes. A path is the ids from level 1 down to a class with none below it."""

    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    classes: tuple[Class, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _shape(self) -> "Taxonomy":
        _check_ids(self.classes, "the top")
        if any(len(path) > LEVELS for path in self.paths()):
            raise ValueError(f"more than {LEVELS} levels")
        return self

    def _walk(self) -> Iterator[tuple[Class, ...]]:
        def below(entry: Class, above: tuple[Class, ...]) -> Iterator[tuple[Class, ...]]:
            line = (*above, entry)
            yield line
            for deeper in entry.below:
                yield from below(deeper, line)

        for entry in self.classes:
            yield from below(entry, ())

    def paths(self) -> list[tuple[str, ...]]:
        """All full paths, in the order of the file."""
        return [tuple(entry.id for entry in line) for line in self._walk() if not line[-1].below]

    def described(self, language: Language, first: str | None = None) -> str:
        """One line a path with its meaning, of level 1 `first` only where that is given."""
        lines = []
        for line in self._walk():
            if not line[-1].below and first in (None, line[0].id):
                path = SEPARATOR.join(entry.id for entry in line)
                lines.append(f"{path}: {' > '.join(getattr(entry, language) for entry in line)}")
        return "\n".join(lines)

    def canonical(self, category: Sequence[str]) -> tuple[str, ...] | None:
        """The ids for a category told by ids, by names, or by the official word; None when it is none of ours."""
        if not category:
            return None
        entries, found = self.classes, []
        for word in category:
            entry = next((e for e in entries if word.strip() in (e.id, e.en, e.zh, e.official)), None)
            if entry is None:
                return None
            found.append(entry.id)
            entries = entry.below
        return tuple(found)

    def is_full(self, category: Sequence[str]) -> bool:
        """Whether a category is a path down to the lowest level."""
        return self.canonical(category) in self.paths()


def load_taxonomy(path: Path | None = None) -> Taxonomy:
    """The shipped taxonomy, or a user's. Raises UserError when the file is none."""
    path = path or SHIPPED
    try:
        return Taxonomy.model_validate(yaml.safe_load(read_text(path)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{place}: not valid YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    except ValidationError as error:
        raise UserError(f"{path}: {describe_invalid(error)}") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply; a taxonomy has {LEVELS} levels") from None


class CategoryReply(Record):
    """The shape of a reply."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    category: str


@dataclass
class Categorisation:
    """All cards in order, those that were answered for with their new category; counts of the others."""

    cards: list[RoleCard] = field(default_factory=list)
    had_one: int = 0
    answers: Answers[tuple[str, ...]] = field(default_factory=Answers)

    def report(self) -> dict[str, Any]:
        return {"cards": len(self.cards), "had_one": self.had_one, **self.answers.report()}


def categorize(
    cards: Sequence[RoleCard],
    taxonomy: Taxonomy,
    asking: Asking,
    again: bool = False,
    prompt_name: str = "card_category",
) -> Categorisation:
    """Gives every card a full path of the taxonomy, chosen by the model.

    A card that has a full path keeps it unless `again`; one whose level 1 is known (published, or given by people)
    is only offered the classes below it. A reply that is none of the classes offered leaves the card as it was.
    """
    prompt = load_prompt(prompt_name)
    questions: list[Question] = []
    for card in cards:
        known = taxonomy.canonical(card.category)
        if taxonomy.is_full(card.category) and not again:
            continue
        first = known[0] if known is not None and not again else None
        questions.append(
            Question(
                item=card.id,
                task="card_category",
                prompt=prompt,
                language=card.language,
                material=material(card),
                schema=_schema(taxonomy, first),
                values={"paths": taxonomy.described(card.language, first)},
            )
        )
    found = Categorisation(answers=ask_all(questions, _parse, asking), had_one=len(cards) - len(questions))
    origin = {"model": asking.endpoint.model, "prompt": prompt.reference()}
    origin["taxonomy"] = {"name": taxonomy.name, "version": taxonomy.version}
    for card in cards:
        path = found.answers.found.get(card.id)
        if path is not None:
            card = with_meta(card, categorised=origin).model_copy(update={"category": path})
        found.cards.append(card)
    return found


def _schema(taxonomy: Taxonomy, first: str | None) -> dict[str, Any]:
    offered = [SEPARATOR.join(path) for path in taxonomy.paths() if first in (None, path[0])]
    return {
        "title": "category",
        "type": "object",
        "properties": {"category": {"type": "string", "enum": offered}},
        "required": ["category"],
        "additionalProperties": False,
    }


def _parse(question: Question, text: str) -> tuple[str, ...]:
    """The path of a reply. Raises UnusableError when it is none of those offered."""
    try:
        reply = CategoryReply.model_validate(json_object(text))
    except ValidationError:
        raise UnusableError("expected the key category (a text)") from None
    chosen = reply.category.strip()
    if chosen not in question.schema["properties"]["category"]["enum"]:
        raise UnusableError("none of the classes offered")
    return tuple(chosen.split(SEPARATOR))
