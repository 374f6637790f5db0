"""The system text that InternLM2's own `chat` method puts before every message, kept where its code is not run.

The chat template does not add it; the published scoring script calls that method. So a conversion keeps the text in a
file of its own, and who asks as the published script did puts it before the question.
"""

import ast
import json
from pathlib import Path

from data_prep.errors import UserError
from data_prep.records import parse_json, read_text, write_text

CODE = "modeling_internlm2.py"
FILE = "internlm2_chat.json"
ARGUMENT = "meta_instruction"


def keep_chat_system(source: Path, target: Path) -> bool:
    """Writes the text into the converted folder; False where the source has no such code. The code is only parsed."""
    text = default_system(source / CODE)
    if text is not None:
        write_text(target / FILE, json.dumps({"system": text}, ensure_ascii=False) + "\n")
    return text is not None


def default_system(code: Path) -> str | None:
    """The default of `meta_instruction` in the `chat` method; None where there is none."""
    if not code.is_file():
        return None
    try:
        tree = ast.parse(read_text(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "chat":
            named = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            for argument, default in zip(named, node.args.defaults, strict=True):
                if argument.arg == ARGUMENT and isinstance(default, ast.Constant) and isinstance(default.value, str):
                    return default.value
    return None


def chat_system(base: str | Path) -> str | None:
    """The text that a converted folder keeps; None where it keeps none. Raises UserError for a damaged file."""
    path = Path(base) / FILE
    if not path.is_file():
        return None
    content = parse_json(read_text(path), str(path))
    text = content.get("system") if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise UserError(f"{path}: holds no text under `system`; convert the model again")
    return text
