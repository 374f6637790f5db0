"""What is wrong with a recipe, collected over all checks and told at once, each with its line."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel

from data_prep.errors import UserError
from train.yaml_lines import Location

Step = Literal["keys", "training", "data", "names", "out"]
"""The step of the check that a fault belongs to: keys and types, the trainer's arguments, files, rubric and prompts."""


class RecipeFaults:
    """Collects every fault of one recipe; `where` turns a location into `file:line` or the override that set it."""

    def __init__(self, path: str, lines: dict[Location, int]):
        self.path, self.lines = path, lines
        self.overridden: dict[Location, str] = {}
        self.found: list[tuple[Step, str]] = []
        self.warnings: list[str] = []

    def where(self, location: Location) -> str:
        parts = [location[:length] for length in range(len(location), 0, -1)]
        # Overrides first: one that replaces a section leaves the lines of the old one behind.
        for part in parts:
            if part in self.overridden:
                return f"override {self.overridden[part]!r}"
        for part in parts:
            if part in self.lines:
                return f"{self.path}:{self.lines[part]}"
            for made, text in self.overridden.items():
                if made[: len(part)] == part:  # a section that only an override mentions
                    return f"override {text!r}"
        return self.path

    def moved(self, old: Location, new: Location) -> None:
        """What is said of `new` from now on was written at `old`."""
        if old in self.overridden:
            self.overridden[new] = self.overridden[old]
        elif old in self.lines:
            self.lines[new] = self.lines[old]

    def add(self, location: Location, message: str, step: Step = "keys") -> None:
        line = f"{self.where(location)}: {message}"
        if (step, line) not in self.found:
            self.found.append((step, line))

    def warn(self, location: Location, message: str) -> None:
        self.warnings.append(f"{self.where(location)}: {message}")

    def of(self, step: Step) -> list[str]:
        return [line for found, line in self.found if found == step]

    def raise_if_any(self) -> None:
        if self.found:
            raise UserError("\n".join(dict.fromkeys(line for _, line in self.found)))


def explain(fault: Any, shape: type[BaseModel], faults: RecipeFaults) -> None:
    """One pydantic fault as one line."""
    location: Location = tuple(fault["loc"])
    name = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        section = ".".join(str(part) for part in location[:-1])
        known = _section_keys(shape, location[:-1])
        faults.add(location, unknown_key(str(location[-1]), section, known))
    elif fault["type"] == "missing":
        faults.add(location, f"{name} is missing; it has no default")
    else:
        faults.add(location, f"{name}: found {fault['input']!r:.60}, expected: {fault['msg']}")


def _section_keys(shape: type[BaseModel], location: Location) -> list[str]:
    for part in location:
        annotation = shape.model_fields[str(part)].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        shape = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return list(shape.model_fields)


def unknown_key(key: str, section: str, known: Sequence[str]) -> str:
    close = get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
    if len(hint) > 400:
        hint = "see the documentation of transformers.TrainingArguments for the known keys"
    return f"unknown key {key!r} in {section or 'the recipe'}; {hint}"
