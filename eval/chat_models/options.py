"""What a user sets for one model of a simulation: a small YAML file, and KEY=VALUE on the command line over it."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from data_prep.endpoint import DEFAULT_KEY_VARIABLE
from data_prep.errors import UserError
from data_prep.records import Record, describe_invalid, read_text
from eval.chat_models.base import Sampling

OWN_FIELDS = ("model", "messages", "stream", "n", "max_tokens", "temperature", "top_p", "seed", "stop")


class ModelOptions(Record):
    """Settings of one side. What is None is taken from the options of the command that hold for both sides."""

    prompt: str | None = Field(default=None, min_length=1)
    """System prompt: a name or a .yaml file; for the seeker the template around the card."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Token budget of a reply, thinking included."""
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: tuple[str, ...] | None = None
    """Strings before which a reply ends."""
    # From here on for openai: models only.
    reasoning: Literal["apart", "off"] = "apart"
    """What a model thinks aloud is stored apart, shown to nobody. off: the server is asked to have none
    (chat_template_kwargs, as vLLM, SGLang and llama.cpp read it); local models are always asked so."""
    key_variable: str = Field(default=DEFAULT_KEY_VARIABLE, min_length=1)
    """Environment variable that holds the key."""
    concurrency: int = Field(default=32, ge=1)
    """Most requests at once; shrinks when the server refuses with 429 and grows again slowly."""
    timeout: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds for one call, from its start to its last byte."""
    attempts: int = Field(default=8, ge=1)
    """Tries of a call that failed in passing; a time-out is tried twice, an empty reply once."""
    context_length: int | None = Field(default=None, ge=1)
    """Tokens of prompt and reply together, where the server does not say."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, for example {chat_template_kwargs: {enable_thinking: false}}."""

    def sampling(self, base: Sampling) -> Sampling:
        """`base` with what is set here in its place."""
        own = {name: getattr(self, name) for name in Sampling.model_fields}
        return base.model_copy(update={name: value for name, value in own.items() if value is not None})


ENDPOINT_ONLY = ("reasoning", "key_variable", "concurrency", "timeout", "attempts", "context_length", "extra")


def read_options(path: str | Path | None, settings: Sequence[str] = (), where: str = "--set") -> ModelOptions:
    """The options of a YAML file (None: none) with KEY=VALUE `settings` over them, whose values are read as YAML.

    Raises UserError with file or option and key for an unknown key or a value that does not fit.
    """
    found: dict[str, Any] = {}
    if path is not None:
        found = _mapping(read_text(path), str(path))
        _check_keys(found, str(path))
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{where} {setting!r}: write KEY=VALUE, for example temperature=0.3")
        _check_keys([key], where)
        found[key] = _parse(value, f"{where} {key}")
    try:
        options = ModelOptions.model_validate(found)
        options.sampling(Sampling(stop=options.stop or ()))
    except ValidationError as error:
        raise UserError(f"{path if path is not None and not settings else where}: {describe_invalid(error)}") from None
    if own := [name for name in options.extra if name in OWN_FIELDS]:
        raise UserError(f"{path or where}: extra sets {own[0]!r}, which esckit sets itself; use the option for it")
    return options


def check_fits(options: ModelOptions, spec: str, where: str) -> None:
    """Raises UserError for an option that the kind of model named by `spec` does not have."""
    if spec.startswith("openai:"):
        return
    for name in ENDPOINT_ONLY:
        if name in options.model_fields_set:
            raise UserError(f"{where}: {name!r} is an option of openai: models, and {spec!r} is none; leave it out")


def _mapping(text: str, where: str) -> dict[str, Any]:
    content = _parse(text, where)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{where}: is no list of options; write lines like temperature: 0.3")
    return content


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise UserError(f"{where}: is not valid YAML{line}") from None


def _check_keys(keys: Any, where: str) -> None:
    for key in keys:
        if key not in ModelOptions.model_fields:
            near = get_close_matches(str(key), ModelOptions.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ModelOptions.model_fields)}"
            raise UserError(f"{where}: unknown option {key!r}; {hint}")
