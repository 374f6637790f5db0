"""`esckit recipe schema`: what a recipe may hold, as a JSON schema, so that editors complete and check it.

The keys of `training` are those of the installed library's argument class, with the types that `recipe check` holds
them to; a key that the toolkit sets itself is left out. Names that newer libraries dropped are read, not offered.
"""

import dataclasses
from typing import Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from train.recipe import RESERVED, ChatRecipe, ScorerRecipe, training_arguments_class

# Editors know this version best; the schema uses nothing that came later.
DIALECT = "http://json-schema.org/draft-07/schema#"


def recipe_schema(kind: Literal["seeker", "supporter", "scorer"] | None = None) -> dict[str, Any]:
    """The JSON schema of one kind of recipe, or of all of them."""
    if kind is not None:
        return {"$schema": DIALECT, "title": f"esckit recipe of a {kind}", **_schema_of(kind)}
    chat, scorer = _schema_of(None), _schema_of("scorer")
    definitions = {**chat.pop("$defs"), **scorer.pop("$defs")}
    # Told apart by `kind`, so that an editor does not answer one wrong key with "fits none of two shapes".
    return {
        "$schema": DIALECT,
        "title": "esckit recipe",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": ["seeker", "supporter", "scorer"]}},
        "if": {"properties": {"kind": {"const": "scorer"}}, "required": ["kind"]},
        "then": scorer,
        "else": chat,
        "$defs": definitions,
    }


def _schema_of(kind: str | None) -> dict[str, Any]:
    shape: type[BaseModel] = ScorerRecipe if kind == "scorer" else ChatRecipe
    schema = shape.model_json_schema()
    if kind in ("seeker", "supporter"):
        schema["properties"]["kind"] = {"const": kind}
    schema["properties"]["training"] = _training_schema(training_arguments_class(shape))
    return schema


def _training_schema(arguments_class: Any) -> dict[str, Any]:
    helps = {
        field.name: str(field.metadata.get("help") or "") for field in dataclasses.fields(arguments_class) if field.init
    }
    properties = {}
    for name, hint in get_type_hints(arguments_class).items():
        if name in helps and name not in RESERVED:
            properties[name] = _type_schema(hint)
            if helps[name]:
                properties[name]["description"] = " ".join(helps[name].split())
    return {
        "type": "object",
        "description": f"Arguments of {arguments_class.__name__}, passed through.",
        "properties": properties,
        "additionalProperties": False,
    }


def _type_schema(hint: Any) -> dict[str, Any]:
    """The schema of one type; any value where the type is of the library's own making."""
    if any(dataclasses.is_dataclass(part) for part in get_args(hint)):
        return {}
    try:
        schema = TypeAdapter(hint).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return {}
    return _without_references(schema, schema.pop("$defs", {}))


def _without_references(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_without_references(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _without_references(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    kept = {key: _without_references(value, definitions) for key, value in schema.items()}
    return {key: value for key, value in kept.items() if key not in ("title", "description") or "enum" not in kept}
