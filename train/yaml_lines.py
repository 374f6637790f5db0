"""YAML read strictly: duplicate keys refused, and every value's line remembered for error messages."""

import re
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import UserError
from data_prep.records import read_text

Location = tuple[str | int, ...]

# YAML 1.1 takes 1e-4 for text: it wants a dot and a signed exponent. YAML 1.2 and every reader take it for a number.
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    """Writes text that looks like such a number in quotes, so that it is read as text again."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def parse_yaml(text: str) -> Any:
    """Plain data from YAML text, as in a recipe. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def dump_yaml(content: Any) -> str:
    """The YAML of plain data in the order given; `load_yaml` reads it back to the same."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def load_yaml(path: str | Path) -> tuple[Any, dict[Location, int]]:
    """The content of a YAML file and the line (from 1) of every key and list item, by its location.

    Raises UserError for a file that is missing, is not YAML, uses a tag other than plain data, or repeats a key.
    """
    loader = _Loader(read_text(path))
    lines: dict[Location, int] = {}
    try:
        node = loader.get_single_node()
        return (_value(loader, node, (), lines, str(path)) if node else None), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply, or an alias (*name) contains itself") from None
    finally:
        loader.dispose()


def _value(loader: yaml.SafeLoader, node: yaml.Node, at: Location, lines: dict[Location, int], path: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise UserError(f"{path}:{line}: key {key!r} is not text; put it in quotes")
            if key in found:
                raise UserError(f"{path}:{line}: key {key!r} is set twice (first in line {lines[(*at, key)]})")
            lines[(*at, key)] = line
            found[key] = _value(loader, value_node, (*at, key), lines, path)
        return found
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            items.append(_value(loader, item, (*at, index), lines, path))
        return items
    try:
        return loader.construct_object(node)
    except ValueError:  # such as 2024-99-99, which YAML takes for a date
        raise UserError(
            f"{path}:{node.start_mark.line + 1}: the value is neither text nor a number nor a date; put it in quotes"
        ) from None
