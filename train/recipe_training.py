"""The `training:` block of a recipe against the library's own argument class: names and types, nothing loaded."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from train.recipe_faults import RecipeFaults, unknown_key


def takes_no_truth(annotation: Any) -> bool:
    """True for a type that holds numbers and no bool: Python would read `true` as 1 there."""
    types = set(_types(annotation))
    return bool(types & {int, float}) and bool not in types


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def check_training(
    training: Mapping[str, Any], arguments_class: Any, reserved: Mapping[str, str], faults: RecipeFaults
) -> dict[str, Any]:
    """Adds a fault for every key that is unknown, reserved, or of the wrong type; returns the values converted."""
    hints = get_type_hints(arguments_class)
    checked: dict[str, Any] = {}
    for key, value in training.items():
        location = ("training", key)
        if key in reserved:
            faults.add(location, f"training.{key} cannot be set here; {reserved[key]}", "training")
        elif key not in hints or key.startswith("_"):
            known = [name for name in hints if not name.startswith("_") and name not in reserved]
            faults.add(location, unknown_key(key, "training", known), "training")
        else:
            try:
                checked[key] = _convert(value, hints[key])
            except (ValidationError, ValueError) as error:
                message = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
                if isinstance(value, bool) and "'no'" in str(message):
                    message = f"{message}; YAML reads a bare no as false: write \"'no'\", quotes and all"
                faults.add(location, f"training.{key}: found {value!r:.60}, expected: {message}", "training")
    return checked


def _convert(value: Any, hint: Any) -> Any:
    if isinstance(value, bool) and takes_no_truth(hint):
        raise ValueError("a number, not true or false")
    converted = TypeAdapter(hint).validate_python(value)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError("a finite number")
    # Enums stay as written: the arguments class reads them itself.
    return value if isinstance(converted, str) and isinstance(value, str) else converted
