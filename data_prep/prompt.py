"""Prompt templates: versioned YAML files in `prompts/`, rendered by a sandboxed Jinja2.

What is put into a template is data: it is never itself read as a template.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field, ValidationError

from data_prep.errors import UserError
from data_prep.records import Record, describe_invalid, read_text
from data_prep.rubric import Wording

PROMPT_FOLDER = Path(__file__).parent / "prompts"


class PromptFile(Record):
    """The shape of a prompt file: a name, a version that grows with every change, and one text a language."""

    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    text: Wording


@dataclass(frozen=True)
class Prompt:
    """A loaded template. `sha` is of the file, so that a manifest can say exactly which text was used."""

    name: str
    version: int
    sha: str
    text: Wording

    def render(self, language: str, **values: str) -> str:
        """The text in `language` ("en" or "zh") with `values` filled in. Raises UserError on a broken template."""
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
        try:
            return environment.from_string(getattr(self.text, language)).render(**values)
        except TemplateError as error:
            raise UserError(f"prompt {self.name!r} ({language}) cannot be rendered: {error}") from None

    def reference(self) -> dict[str, str | int]:
        """What a manifest stores of it."""
        return {"name": self.name, "version": self.version, "sha": self.sha}


@cache
def load_prompt(name: str) -> Prompt:
    """A shipped prompt by name, or a user's by path (ending in .yaml or .yml). Raises UserError for an unknown one."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROMPT_FOLDER / f"{name}.yaml"
    if path.parent == PROMPT_FOLDER and not path.exists():
        known = sorted(found.stem for found in PROMPT_FOLDER.glob("*.yaml"))
        raise UserError(f"unknown prompt {name!r}; known: {', '.join(known)}, or the path of a .yaml file")
    content = read_text(path)
    try:
        found = PromptFile.model_validate(yaml.safe_load(content))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({getattr(error, 'problem', error)})") from None
    except ValidationError as error:
        raise UserError(f"{path}: {describe_invalid(error)}") from None
    sha = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Prompt(name=found.name, version=found.version, sha=sha, text=found.text)
