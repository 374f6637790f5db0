"""Suites: many supporters under one seeker, one set of cards and one scorer, from one file to one report.

Every stage is a command that can be typed by hand and goes on where it was stopped; a supporter that fails is recorded
and the others go on.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from data_prep.errors import UserError
from data_prep.records import Record, describe_invalid, read_text, write_text

STATE = "suite.json"


class Supporter(Record):
    """One system under test. `model` None: there is nothing public to run, and `note` says why."""

    name: str = Field(min_length=1)
    model: str | None = None
    """hf:PATH, hf:BASE+ADAPTER, openai:MODEL@URL or replay:FILE, as for `esckit simulate`."""
    prompt: str | None = None
    """Its recommended system prompt; None: the suite's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The model's own options, as for `--supporter-set` (context_length, reasoning, …)."""
    note: str | None = None

    @model_validator(mode="after")
    def _says_why(self) -> "Supporter":
        if self.model is None and not self.note:
            raise ValueError("a supporter without model needs a note that says why")
        return self


class Judging(Record):
    """Who scores: a trained scorer's folder, or a chat model that is asked."""

    scorer: str | None = None
    judge: str | None = None
    official: str | None = None
    adapters: str | None = None
    batch_size: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def _one(self) -> "Judging":
        if (self.scorer is None) == (self.judge is None):
            raise ValueError("give either scorer or judge")
        return self


class Suite(Record):
    """A suite file."""

    name: str = Field(min_length=1)
    out: str = Field(min_length=1)
    cards: str
    seeker: str
    language: str | None = None
    limit: int | None = Field(default=None, ge=1)
    rounds: int = Field(default=5, ge=1)
    samples: int = Field(default=1, ge=1)
    seed: int = 0
    batch_size: int = Field(default=8, ge=1)
    max_new_tokens: int = Field(default=256, ge=1)
    """The same for both sides and all supporters: unequal budgets make a comparison of lengths meaningless."""
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    score: Judging
    reference: str | None = None
    supporters: tuple[Supporter, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _named_apart(self) -> "Suite":
        folders = [folder_name(one.name) for one in self.supporters]
        twice = sorted({name for name in folders if folders.count(name) > 1})
        if twice:
            raise ValueError(f"two supporters have the name {twice[0]!r}")
        return self


def folder_name(name: str) -> str:
    """A supporter's name as a folder's."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("._") or "supporter"


def load_suite(path: str | Path, overrides: Sequence[str] = ()) -> Suite:
    """A suite from its YAML file, with `key=value` changes. Raises UserError with file, key and what was expected."""
    path = Path(path)
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(
            f"{path}:{mark.line + 1 if mark else 1}: not valid YAML ({getattr(error, 'problem', error)})"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}:1: is no suite; expected keys such as cards, seeker, score, supporters")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"{override!r}: write KEY=VALUE, for example limit=10")
        place = content
        *sections, last = key.split(".")
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise UserError(f"override {override!r}: {section} has no keys of its own")
        place[last] = yaml.safe_load(value)
    try:
        return Suite.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        if fault["type"] == "extra_forbidden":
            raise UserError(f"{path}: {_unknown(fault['loc'])}") from None
        raise UserError(f"{path}: {describe_invalid(error)}") from None


def _unknown(location: tuple[int | str, ...]) -> str:
    key = str(location[-1])
    shapes: dict[str, type[Record]] = {"score": Judging, "supporters": Supporter}
    shape = shapes.get(str(location[0]), Suite) if location[1:] else Suite
    near = get_close_matches(key, shape.model_fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(shape.model_fields)}"
    return f"unknown key {'.'.join(map(str, location))!r}; {hint}"


def run_folder(suite: Suite, supporter: Supporter) -> Path:
    return Path(suite.out) / folder_name(supporter.name)


def simulate_arguments(suite: Suite, supporter: Supporter) -> list[str]:
    """The `esckit simulate` command of one supporter."""
    assert supporter.model is not None
    found = ["simulate", "--cards", suite.cards, "--seeker", suite.seeker, "--supporter", supporter.model]
    found += ["--supporter-name", supporter.name, "--out", str(run_folder(suite, supporter))]
    for name in ("rounds", "samples", "seed", "batch_size", "max_new_tokens", "temperature", "top_p"):
        found += [f"--{name.replace('_', '-')}", str(getattr(suite, name))]
    for name in ("language", "limit"):
        if (value := getattr(suite, name)) is not None:
            found += [f"--{name}", str(value)]
    if supporter.prompt:
        found += ["--supporter-prompt", supporter.prompt]
    for key, value in supporter.options.items():
        found += ["--supporter-set", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return found


def score_arguments(suite: Suite, supporter: Supporter) -> list[str]:
    """The `esckit score` command of one supporter's run."""
    found = ["score", str(run_folder(suite, supporter)), "--batch-size", str(suite.score.batch_size)]
    for name in ("scorer", "judge", "official", "adapters"):
        if (value := getattr(suite.score, name)) is not None:
            found += [f"--{name}", value]
    return found


def report_arguments(suite: Suite, supporters: Sequence[Supporter]) -> list[str]:
    """The `esckit report` command over all runs that were scored."""
    found = ["report", *(str(run_folder(suite, one)) for one in supporters), "--out", str(Path(suite.out) / "report")]
    return [*found, "--reference", suite.reference] if suite.reference else found


Command = Callable[[Sequence[str]], int]


def run_suite(suite: Suite, run: Command, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs all stages and returns what became of every supporter, which OUT/suite.json keeps, too.

    `run` runs one esckit command and returns its exit code: 0 done, 1 done with some items missing, other: failed.
    """
    Path(suite.out).mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"suite": suite.model_dump(mode="json"), "supporters": {}, "report": None}
    present = [one for one in suite.supporters if one.model is not None]
    for one in suite.supporters:
        if one.model is None:
            state["supporters"][one.name] = {"state": "left out", "why": one.note}
            say(f"{one.name}: left out: {one.note}")
    fine = []
    for number, one in enumerate(present, start=1):
        say(f"[{number}/{len(present)}] {one.name}")
        began = time.monotonic()
        found = _one(suite, one, run)
        state["supporters"][one.name] = {**found, "seconds": round(time.monotonic() - began, 1)}
        _keep(suite, state)
        if found["state"] == "scored":
            fine.append(one)
        else:
            say(f"{one.name}: {found['state']}: {found['why']}; the others go on")
    if fine:
        code = run(report_arguments(suite, fine))
        state["report"] = str(Path(suite.out) / "report" / "report.html") if code in (0, 1) else None
    _keep(suite, state)
    return state


def _one(suite: Suite, supporter: Supporter, run: Command) -> dict[str, Any]:
    losses = False
    for stage, arguments in (
        ("simulate", simulate_arguments(suite, supporter)),
        ("audit", ["audit", str(run_folder(suite, supporter))]),
        ("score", score_arguments(suite, supporter)),
    ):
        code = run(arguments)
        losses |= code == 1
        if code not in (0, 1):
            return {"state": "failed", "why": f"esckit {stage} ended with exit code {code}; its message is above"}
    return {"state": "scored", "losses": losses}


def _keep(suite: Suite, state: dict[str, Any]) -> None:
    write_text(Path(suite.out) / STATE, json.dumps(state, ensure_ascii=False, indent=1) + "\n")


def esckit(arguments: Sequence[str]) -> int:
    """One command as its own process: memory is given back between supporters, and a crash ends only one of them."""
    return subprocess.run([sys.executable, "-m", "esckit", *arguments], check=False).returncode


def plan_lines(suite: Suite) -> list[str]:
    """What would be run: cards, dialogues, utterances, and every supporter with what is known of its model."""
    from eval.chat_models import kind_of
    from eval.cli_simulate import read_cards

    cards = read_cards(Path(suite.cards), suite.language, suite.limit)
    present = [one for one in suite.supporters if one.model is not None]
    dialogues = len(cards) * suite.samples
    lines = [
        f"{suite.name}: {len(cards)} cards × {suite.samples} samples × {len(present)} supporters = "
        f"{dialogues * len(present)} dialogues of {suite.rounds} exchanges, "
        f"{dialogues * len(present) * suite.rounds * 2} utterances of at most {suite.max_new_tokens} tokens",
        f"seeker {suite.seeker}; scorer {suite.score.scorer or suite.score.judge}",
    ]
    for one in suite.supporters:
        if one.model is None:
            lines.append(f"  {one.name}: left out: {one.note}")
        else:
            lines.append(f"  {one.name}: {one.model} ({_reach(one.model, kind_of(one.model))})")
    return lines


def _reach(model: str, kind: str) -> str:
    """Whether a local model is here; servers and the hub are asked when the run begins."""
    if kind != "hf":
        return "a server, asked when it begins" if kind == "openai" else kind
    from eval.chat_models import parse_spec
    from train.model_files import find_model

    try:
        base = parse_spec(model).base
    except UserError as error:
        return f"not ready: {error}"
    return "on this machine" if Path(base).is_dir() or find_model(base) else "not on this machine; the hub is asked"
