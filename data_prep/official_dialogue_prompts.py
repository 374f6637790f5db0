"""The published prompts of the simulated dialogues, read from your own clone of the official ESC-Eval repository.

The repository carries no licence to hand its texts on, so they are not in here. Its `evaluate.py` is parsed and never
run. Three things are looked for in it: what is put around a role card (`prompt = "…" + card["base"] + "…"`, once a
branch of the language), the line a dialogue opens with (the `user` message of the same branch), and the system prompt
that every supporter gets. Anything that is written in another way is refused, with the line.
"""

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.prompt import Prompt
from data_prep.records import read_text
from data_prep.rubric import Wording

SCRIPT = "evaluate.py"
PROMPT, CARD = "prompt", "base"


@dataclass(frozen=True)
class OfficialDialoguePrompts:
    """The three texts in both languages; the system prompt of the supporters is the same in both."""

    greeting: Prompt
    seeker: Prompt
    supporter: Prompt


def read_dialogue_prompts(clone: str | Path) -> OfficialDialoguePrompts:
    """Reads them from a clone (or from the path of its evaluate.py).

    Raises UserError, with the line where there is one, when the file is not there or is written in another way.
    """
    path = Path(clone) / SCRIPT if Path(clone).is_dir() else Path(clone)
    if not path.is_file():
        raise UserError(f"{path}: file not found; --official-repo names your clone of haidequanbu/ESC-Eval")
    try:
        tree = ast.parse(read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{path}{line}: is no Python file that can be parsed") from None
    branches = _language_branches(tree, path)
    cards = {language: _around_card(branch, path) for language, branch in branches.items()}
    greetings = {language: _one_message(branch, "user", path) for language, branch in branches.items()}
    # The seeker's own system message is a name there, so what is left as text is the supporters'.
    system = _one_message([tree], "system", path)
    return OfficialDialoguePrompts(
        greeting=_prompt("official_greeting", {name: _literal(text) for name, text in greetings.items()}),
        seeker=_prompt("official_seeker", cards),
        supporter=_prompt("official_supporter", dict.fromkeys(("en", "zh"), _literal(system))),
    )


def _language_branches(tree: ast.Module, path: Path) -> dict[str, list[ast.stmt]]:
    """The two branches of the `if` over the language that sets the prompt."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or not all(map(_sets_prompt, (node.body, node.orelse))):
            continue
        named = [part.value for part in ast.walk(node.test) if isinstance(part, ast.Constant)]
        if named == ["zh"]:
            return {"zh": node.body, "en": node.orelse}
        if named == ["en"]:
            return {"en": node.body, "zh": node.orelse}
        raise UserError(f"{path}:{node.lineno}: the language is chosen in a way that is not known here")
    raise UserError(f"{path}: does not choose a prompt by language; name the official repository's {SCRIPT}")


def _sets_prompt(body: list[ast.stmt]) -> bool:
    return any(_is_prompt(statement) for statement in body)


def _is_prompt(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Name) and target.id == PROMPT


def _around_card(branch: list[ast.stmt], path: Path) -> str:
    """The prompt as a template with the card in it."""
    statement = next(found for found in branch if _is_prompt(found))
    assert isinstance(statement, ast.Assign)
    parts = _summands(statement.value)
    template = ""
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            template += _literal(part.value)
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) and part.slice.value == CARD:
            template += "{{ card }}"
        else:
            raise UserError(f"{path}:{part.lineno}: the prompt is put together in a way that is not known here")
    if template.count("{{ card }}") != 1:
        raise UserError(f"{path}:{statement.lineno}: the prompt does not hold the role card exactly once")
    return template


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _summands(node.left) + _summands(node.right)
    return [node]


def _one_message(branch: list[ast.stmt] | list[ast.Module], role: str, path: Path) -> str:
    """The one text that messages of this role have. Raises UserError for none and for several."""
    found: dict[str, int] = {}
    for node in (inner for statement in branch for inner in ast.walk(statement)):
        if not isinstance(node, ast.Dict):
            continue
        values = {
            key.value: value.value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
        }
        content = values.get("content")
        if values.get("role") == role and isinstance(content, str):
            found.setdefault(content, node.lineno)
    if len(found) != 1:
        where = f"{path}:{list(found.values())[1]}" if found else str(path)
        raise UserError(f"{where}: expected one text for the {role} message, found {len(found)}")
    return next(iter(found))


def _literal(text: str) -> str:
    """Text as a template that renders to exactly it, whatever braces and line ends it holds."""
    escaped = text.encode("unicode_escape").decode().replace('"', '\\"')
    return '{{ "' + escaped + '" }}'


def _prompt(name: str, text: dict[str, str]) -> Prompt:
    sha = hashlib.sha256(repr(sorted(text.items())).encode()).hexdigest()[:12]
    return Prompt(name=name, version=1, sha=sha, text=Wording(en=text["en"], zh=text["zh"]))
