"""The published ESC-RANK prompts, read from your own clone of the official repository, and its way to read a reply.

The repository carries no licence to hand its prompts on, so they are not in here. Its `score.py` is parsed and never
run: what is evaluated of it are texts, lists of texts, and the few operations that put a prompt together (`+`,
`join`, `replace`, `strip`, an index). Anything else in those lines is refused, with the line.
"""

import ast
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.official import UNPARSED, official_dimensions, transcript_lines
from data_prep.records import Dialogue, Language, read_text
from data_prep.rubric import Dimension

SCRIPT = "score.py"
RUBRICS: dict[Language, str] = {"en": "prompt_EN", "zh": "prompt_ZH"}
NAMES, KEYS, LABELS = "dimention_list", "key_list", "label_list"
LISTS = (*RUBRICS.values(), NAMES, KEYS, LABELS)
DIALOGUE, PROMPT = "dialogue", "prompt1"
METHODS = {"join", "replace", "strip"}


def official_parser(reply: str, labels: Sequence[str] = ("0", "1", "2", "3", "4")) -> int:
    """What the published script reads from a reply: the first of `labels` that occurs anywhere in it, else -1.

    For comparison only. Its faults: the lowest digit wins wherever it stands, so "4 out of 10" is 0 and "3, because
    two of 4 points hold" is 3 but "4: none of the 2 faults" is 2; a digit of another number counts, so "15" is 1; a
    reply without a digit is -1, which then enters the means as if it were a level.
    """
    return next((int(label) for label in labels if label in reply), UNPARSED)


@dataclass(frozen=True)
class OfficialPrompt:
    """The prompts of one clone. `steps` are the statements that make `dialogue` and `prompt1`, in order."""

    path: Path
    lists: Mapping[str, tuple[str, ...]]
    steps: tuple[ast.Assign | ast.AugAssign, ...]

    def text(self, dialogue: Dialogue, dimension: Dimension) -> str:
        """The message that the published script sends for a dialogue, byte for byte.

        Every turn is a line as in the official transcripts; the greeting is among them where the dialogue has one.
        Raises UserError for a dimension that the official files do not have.
        """
        if dimension.official_key not in self.lists[KEYS]:
            raise UserError(f"{self.path}: has no prompt for the dimension {dimension.name}")
        known: dict[str, Any] = {
            "item": transcript_lines(dialogue),
            "prompt_list": self.lists[RUBRICS[dialogue.language]],
            "index_d": self.lists[KEYS].index(dimension.official_key),
        }
        known["dimention"] = self.lists[NAMES][known["index_d"]]
        for step in self.steps:
            name = _assigned(step)
            value = _value(step.value, known, self.path)
            known[name] = known[name] + value if isinstance(step, ast.AugAssign) else value
        return str(known[PROMPT])

    def labels(self) -> tuple[str, ...]:
        return self.lists[LABELS]

    def reference(self) -> dict[str, str]:
        """What a run folder stores of it: the words themselves stay in the clone."""
        return {"name": "official", "sha": self.sha}

    @cached_property
    def sha(self) -> str:
        """First 12 hex digits of the sha256 of everything that goes into a prompt."""
        content = repr([sorted(self.lists.items()), [ast.dump(step) for step in self.steps]])
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def read_official_prompt(clone: str | Path) -> OfficialPrompt:
    """Reads the prompts from a clone of the official repository (or from the path of its score.py).

    Raises UserError, with the line where there is one, when the file is not there or is written in another way.
    """
    path = Path(clone) / SCRIPT if Path(clone).is_dir() else Path(clone)
    if not path.is_file():
        raise UserError(f"{path}: file not found; name your clone of the official ESC-Eval repository")
    try:
        tree = ast.parse(read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{path}{line}: is no Python file that can be parsed") from None
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AugAssign)]
    assignments.sort(key=lambda node: node.lineno)
    lists = {name: _list_of(name, assignments, path) for name in LISTS}
    steps = tuple(node for node in assignments if _assigned(node) in (DIALOGUE, PROMPT))
    _check(lists, steps, path)
    found = OfficialPrompt(path, lists, steps)
    _try_all(found)
    return found


def _assigned(node: ast.Assign | ast.AugAssign) -> str:
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _list_of(name: str, assignments: Sequence[ast.Assign | ast.AugAssign], path: Path) -> tuple[str, ...]:
    for node in assignments:
        if _assigned(node) == name and isinstance(node, ast.Assign):
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, RecursionError):
                value = None
            if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
                return tuple(value)
            raise UserError(f"{path}:{node.lineno}: {name} is no list of texts")
    raise UserError(f"{path}: does not define {name}; name the official repository's score.py")


def _check(lists: Mapping[str, Sequence[str]], steps: Sequence[ast.stmt], path: Path) -> None:
    if not steps:
        raise UserError(f"{path}: does not say how {PROMPT} is put together")
    for name in (*RUBRICS.values(), NAMES):
        if len(lists[name]) != len(lists[KEYS]):
            raise UserError(f"{path}: {name} has {len(lists[name])} entries and {KEYS} {len(lists[KEYS])}")
    unknown = [key for key in lists[KEYS] if key not in official_dimensions()]
    if unknown:
        raise UserError(f"{path}: {KEYS} holds {unknown[0]!r}, which is none of {', '.join(official_dimensions())}")


def _try_all(found: OfficialPrompt) -> None:
    """Puts a prompt together once, so that a file written in another way is told at once."""
    known: dict[str, Any] = {
        "item": ["a"],
        "prompt_list": found.lists[RUBRICS["en"]],
        "index_d": 0,
        "dimention": found.lists[NAMES][0],
    }
    for step in found.steps:
        name = _assigned(step)
        if isinstance(step, ast.AugAssign) and (not isinstance(step.op, ast.Add) or name not in known):
            raise UserError(f"{found.path}:{step.lineno}: {name} is changed in a way that is not known here")
        value = _value(step.value, known, found.path)
        known[name] = known[name] + value if isinstance(step, ast.AugAssign) else value
    if not isinstance(known.get(PROMPT), str):
        raise UserError(f"{found.path}: {PROMPT} is no text")


def _value(node: ast.expr, known: Mapping[str, Any], path: Path) -> Any:
    """The value of an expression over texts. Raises UserError, with the line, for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, known, path), _value(node.right, known, path)
        if isinstance(left, str) and isinstance(right, str):
            return left + right
    if isinstance(node, ast.Subscript):
        whole, index = _value(node.value, known, path), _value(node.slice, known, path)
        if isinstance(whole, tuple) and isinstance(index, int):
            return whole[index]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        text = _value(node.func.value, known, path)
        given = [_value(argument, known, path) for argument in node.args]
        if isinstance(text, str) and node.func.attr in METHODS:
            return _called(text, node.func.attr, given, f"{path}:{node.lineno}")
    raise UserError(f"{path}:{node.lineno}: the prompt is put together in a way that is not known here")


def _called(text: str, method: str, given: list[Any], where: str) -> str:
    try:
        return str(getattr(text, method)(*given))
    except TypeError:
        raise UserError(f"{where}: {method} is called in a way that is not known here") from None
