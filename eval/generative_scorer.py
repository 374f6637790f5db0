"""The paper's way to score: ask a language model for the number, one adapter for each dimension and language.

The base is loaded once; adapters are the outer loop, dialogues the inner one, in batches of like lengths. A level's
probability is read from the logits of the first answer tokens, without generating: `label_mass` is what all levels
have together. Or the model generates, and its reply is read strictly; what cannot be read is missing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from data_prep.chat_format import Message
from data_prep.errors import UserError
from data_prep.judge_prompt import JudgePrompt, OwnPrompt, parse_level
from data_prep.official_prompt import read_official_prompt
from data_prep.records import Dialogue, Language
from data_prep.rubric import Dimension, Rubric, load_rubric
from eval.chat_models.base import Reply, Request, Sampling
from eval.chat_models.local import LocalChatModel
from eval.generative_labels import Labels, label_forms, level_probabilities
from eval.generative_reading import can_share, read_prompts
from eval.judge import median_level, scorer_label
from eval.runs import Judgment, Transcript
from train.internlm2_chat import chat_system

Key = tuple[str, Language]
READINGS = ("labels", "generate")
MIN_MASS = 0.5


@dataclass(frozen=True)
class GenerativeSettings:
    """How a model is asked. `min_mass`: below this label mass a judgment is missing."""

    prompt: JudgePrompt
    system: str | None = None
    reading: Literal["labels", "generate"] = "labels"
    min_mass: float = MIN_MASS
    max_new_tokens: int = 32

    def messages(self, dialogue: Dialogue, dimension: Dimension) -> list[Message]:
        asked: list[Message] = [{"role": "user", "content": self.prompt.text(dialogue, dimension)}]
        return [{"role": "system", "content": self.system}, *asked] if self.system else asked


class GenerativeJudge:
    """A generative scorer as a judge. `models` has a chat model for every dimension and language that is scored."""

    def __init__(self, rubric: Rubric, models: Mapping[Key, LocalChatModel], how: GenerativeSettings):
        self.rubric = rubric
        self.how = how
        self._models = models
        self._labels = cache(label_forms)
        details = {f"{name}_{language}": model.describe() for (name, language), model in models.items()}
        first = next(iter(details.values()))
        self._identity = {
            "name": f"{first.get('base', 'model')}-{how.reading}",
            "kind": "generative",
            **{key: first.get(key) for key in ("base", "weights", "config", "revision", "dtype", "template")},
            "adapters": {name: found.get("adapter") for name, found in details.items()},
            "prompt": how.prompt.reference(),
            "system": how.system,
            "reading": how.reading,
            **({"min_mass": how.min_mass} if how.reading == "labels" else {"max_new_tokens": how.max_new_tokens}),
        }

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def asked_with(self, prompt: JudgePrompt) -> "GenerativeJudge":
        """The same weights, asked in other words: another judge by its identity, for checks of this one."""
        return GenerativeJudge(self.rubric, self._models, replace(self.how, prompt=prompt))

    def shortened(self, transcripts: Sequence[Transcript]) -> int:
        """None ever: a dialogue that is too long has a missing judgment, with the reason."""
        return 0

    def judge(
        self, transcripts: Sequence[Transcript], batch_size: int, have: Collection[tuple[str, str]] = ()
    ) -> Iterator[list[Judgment]]:
        """A list of judgments a batch and adapter: every dimension of every transcript once, save those in `have`."""
        for model, language, dimensions in self._groups():
            open_ones = [
                one
                for one in transcripts
                if one.card.language == language and any((one.key, each.name) not in have for each in dimensions)
            ]
            # Longest first: batches are of like lengths, and what does not fit into memory fails at once.
            open_ones.sort(key=lambda one: -sum(len(turn.text) for turn in one.turns))
            for start in range(0, len(open_ones), batch_size):
                yield self._batch(model, dimensions, open_ones[start : start + batch_size])

    def _groups(self) -> list[tuple[LocalChatModel, Language, list[Dimension]]]:
        """Dimensions of one language that the same weights score: what is read of a dialogue serves all of them."""
        groups: dict[tuple[int, Language], tuple[LocalChatModel, Language, list[Dimension]]] = {}
        for (name, language), model in self._models.items():
            place = groups.setdefault((id(model), language), (model, language, []))
            place[2].append(self.rubric.dimension(name))
        return list(groups.values())

    def _batch(
        self, model: LocalChatModel, dimensions: Sequence[Dimension], batch: Sequence[Transcript]
    ) -> list[Judgment]:
        asked = [[self.how.messages(one.to_dialogue(), each) for one in batch] for each in dimensions]
        if self.how.reading == "generate":
            return self._generated(model, dimensions, batch, asked)
        prompts = [[model.renderer.prompt(messages) for messages in each] for each in asked]
        labels = [self._labels(model.renderer, each.levels()) for each in dimensions]
        depth = max(one.depth() for one in labels)
        longest = [max(map(len, row)) for row in zip(*prompts, strict=True)]
        fits = [at for at, length in enumerate(longest) if length + depth - 1 <= model.context_length]
        judged = [
            self._missing(batch[at], each, f"{longest[at]} prompt tokens exceed the context of {model.context_length}")
            for at in range(len(batch))
            if at not in fits
            for each in dimensions
        ]
        if fits:
            rows = [[each[at] for at in fits] for each in prompts]
            judged += self._read(model, dimensions, [batch[at] for at in fits], rows, labels)
        return judged

    def _read(
        self,
        model: LocalChatModel,
        dimensions: Sequence[Dimension],
        batch: Sequence[Transcript],
        prompts: list[list[list[int]]],
        labels: Sequence[Labels],
    ) -> list[Judgment]:
        judged = []
        with model.weights() as weights:
            share = can_share(weights.config.get_text_config())
            found = read_prompts(weights, prompts, [one.chains for one in labels], share)
            for dimension, forms, logits in zip(dimensions, labels, found, strict=True):
                rows = level_probabilities(forms, logits).double().tolist()
                judged += [self._of_labels(one, dimension, row) for one, row in zip(batch, rows, strict=True)]
        return judged

    def _of_labels(self, transcript: Transcript, dimension: Dimension, found: Sequence[float]) -> Judgment:
        mass = sum(found)
        if not isfinite(mass):
            return self._missing(transcript, dimension, "the model's output is not a number; are the weights damaged?")
        if mass <= 0 or mass < self.how.min_mass:
            reason = f"label mass below {self.how.min_mass:g}: the model is about to say something else than a level"
            return self._missing(transcript, dimension, reason, label_mass=mass)
        probabilities = tuple(p / mass for p in found)
        levels = dimension.levels()
        return Judgment(
            **self._place(transcript, dimension),
            probabilities=probabilities,
            expected=sum(level * p for level, p in zip(levels, probabilities, strict=True)),
            level=median_level(probabilities, levels),
            label_mass=mass,
        )

    def _generated(
        self,
        model: LocalChatModel,
        dimensions: Sequence[Dimension],
        batch: Sequence[Transcript],
        asked: Sequence[Sequence[Sequence[Message]]],
    ) -> list[Judgment]:
        sampling = Sampling(max_new_tokens=self.how.max_new_tokens, temperature=0, top_p=1)
        judged = []
        for dimension, messages in zip(dimensions, asked, strict=True):
            requests = [Request(one.key, each, 0) for one, each in zip(batch, messages, strict=True)]
            replies = model.reply(requests, sampling)
            judged += [self._of_reply(one, dimension, reply) for one, reply in zip(batch, replies, strict=True)]
        model.forget()
        return judged

    def _of_reply(self, transcript: Transcript, dimension: Dimension, reply: Reply) -> Judgment:
        if reply.failure:
            return self._missing(transcript, dimension, reply.detail or reply.failure)
        level = parse_level(reply.text, dimension.levels())
        if level is None:
            return self._missing(transcript, dimension, "no level could be read from the reply", raw=reply.text)
        return Judgment(**self._place(transcript, dimension), expected=level, level=level, raw=reply.text)

    def _place(self, transcript: Transcript, dimension: Dimension) -> dict[str, Any]:
        return {
            "dialogue_key": transcript.key,
            "scorer": scorer_label(self),
            "rubric": self.rubric.name,
            "dimension": dimension.name,
        }

    def _missing(self, transcript: Transcript, dimension: Dimension, reason: str, **more: Any) -> Judgment:
        return Judgment(**self._place(transcript, dimension), reason=reason, **more)


def find_adapters(folder: str | Path, rubric: Rubric, languages: Collection[Language]) -> dict[Key, str]:
    """The adapter folder of every dimension and language.

    They are called `empathy_en` and `empathy_zh`, or as published: by the official key, `empathic_en` for English and
    `empathic` for Chinese. Raises UserError with all that are missing.
    """
    found: dict[Key, str] = {}
    absent = []
    for dimension in rubric.dimensions:
        for language in sorted(languages):
            names = [f"{dimension.name}_{language}"]
            if dimension.official_key:
                names.append(dimension.official_key + ("_en" if language == "en" else ""))
            paths = [Path(folder) / name for name in names]
            path = next((path for path in paths if (path / "adapter_config.json").is_file()), None)
            if path is None:
                absent.append(" or ".join(dict.fromkeys(names)))
            else:
                found[dimension.name, language] = str(path)
    if absent:
        raise UserError(f"{folder}: holds no adapter folder {', '.join(absent)}")
    return found


def load_generative_judge(
    model: str,
    languages: Collection[Language],
    rubric: str = "esc_eval",
    adapters: str | None = None,
    prompt: str | None = None,
    official: str | None = None,
    reading: str = "labels",
    min_mass: float = MIN_MASS,
    dtype: str = "auto",
) -> GenerativeJudge:
    """A judge of an `hf:` model, with one adapter a dimension and language from the folder `adapters`, or as it is.

    `official` is a clone of the official repository, whose prompts are then used, with the system text that
    InternLM2's own code adds where the converted model has kept it. Raises UserError before any weights are read when
    something does not fit.

    `prompt`: in what words; by default those that our adapters are trained with where there is one, else those for a
    model that was trained for nothing of the kind, which show the card, too.
    """
    from eval.chat_models import load_chat_models, parse_spec

    if reading not in READINGS:
        raise UserError(f"--reading {reading!r}: expected {' or '.join(READINGS)}")
    chosen = load_rubric(rubric)
    spec = parse_spec(model)
    words = prompt or ("judge" if adapters or spec.adapter else "llm_judge")
    asked: JudgePrompt = read_official_prompt(official) if official else OwnPrompt.load(words)
    if adapters and spec.adapter:
        raise UserError(f"--judge {model} names an adapter and --adapters a folder of them; leave one out")
    if official and any(dimension.official_key is None for dimension in chosen.dimensions):
        raise UserError(f"--official has prompts for esc_eval, not for rubric {chosen.name}")
    keys: list[Key] = [(each.name, language) for each in chosen.dimensions for language in sorted(languages)]
    paths = find_adapters(adapters, chosen, languages) if adapters else {}
    names = {key: f"hf:{spec.base}+{paths[key]}" if key in paths else model for key in keys}
    distinct = list(dict.fromkeys(names.values()))
    loaded = dict(zip(distinct, load_chat_models(distinct, dtype), strict=True))
    models: dict[Key, Any] = {key: loaded[name] for key, name in names.items()}
    system = chat_system(spec.base) if official else None
    how = GenerativeSettings(asked, system, reading, min_mass)  # type: ignore[arg-type]
    return GenerativeJudge(chosen, models, how)
