"""A chat model on a server as a judge, of whatever words it was trained on.

Each dimension is one request whose beginning, card and dialogue, is the same, so that servers that keep prefixes read
it once. A level's probability comes from the first token's log probabilities where the server gives them
(`label_probabilities`), else from k samples (`samples_k`): the judge's identity says which. A reply that cannot be
read is missing, with its text; so is a request that failed, with the reason.
"""

import asyncio
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from data_prep.endpoint import ChatClient
from data_prep.endpoint_terms import Failure, Reply, Sampling
from data_prep.errors import UserError
from data_prep.judge_prompt import OwnPrompt, parse_level
from data_prep.rubric import Dimension, Rubric, load_rubric
from eval.chat_models.endpoint import SEED_BITS, endpoint_of
from eval.chat_models.options import ModelOptions
from eval.judge import median_level, scorer_label
from eval.runs import Judgment, Transcript

TOP_TOKENS = 20  # the most that servers of this protocol give
LABELS: dict[str, Any] = {"logprobs": True, "top_logprobs": TOP_TOKENS}
Reading = Literal["label_probabilities", "samples"]


@dataclass(frozen=True)
class Asking:
    """How the server's model is asked. `samples` counts the replies a dimension where probabilities are not given."""

    prompt: OwnPrompt
    reading: Reading
    samples: int = 5
    temperature: float = 0.7
    min_mass: float = 0.5
    max_tokens: int = 64
    repeat: int = 0


class EndpointJudge:
    """A judge behind a URL (`eval.judge.Judge`)."""

    def __init__(
        self,
        spec: str,
        rubric: Rubric,
        how: Asking,
        options: ModelOptions | None = None,
        say: Callable[[str], None] = lambda remark: None,
    ):
        self.rubric = rubric
        self.how = how
        self._options = options or ModelOptions()
        self._endpoint = endpoint_of(spec, self._options)
        self._say = say
        many = f"samples_{how.samples}"
        self._spec = spec
        self._identity = {
            "name": f"{self._endpoint.model}-{'labels' if how.reading == 'label_probabilities' else many}",
            "kind": "llm",
            "base": self._endpoint.model,
            "url": self._endpoint.url,
            "prompt": how.prompt.reference(),
            "reading": how.reading if how.reading == "label_probabilities" else many,
            **(
                {"min_mass": how.min_mass}
                if how.reading == "label_probabilities"
                else {"temperature": how.temperature, "max_tokens": how.max_tokens}
            ),
            **({"repeat": how.repeat} if how.repeat else {}),
        }

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def asked_with(self, prompt: OwnPrompt) -> "EndpointJudge":
        """The same model, asked in other words: another judge by its identity, for checks of this one."""
        return EndpointJudge(self._spec, self.rubric, replace(self.how, prompt=prompt), self._options, self._say)

    def shortened(self, transcripts: Sequence[Transcript]) -> int:
        """None ever: what does not fit into the server's context is a missing judgment with the reason."""
        return 0

    def judge(
        self, transcripts: Sequence[Transcript], batch_size: int, have: Collection[tuple[str, str]] = ()
    ) -> Iterator[list[Judgment]]:
        """Judgments in the order they are finished, `batch_size` dialogues at a time.

        Raises UserError when the server is gone for good; what was judged before is not lost.
        """
        with asyncio.Runner() as runner:
            client = ChatClient(self._endpoint, say=self._say)
            runner.run(client.__aenter__())
            try:
                for start in range(0, len(transcripts), batch_size):
                    batch = transcripts[start : start + batch_size]
                    asked = [
                        (transcript, dimension)
                        for transcript in batch
                        for dimension in self.rubric.dimensions
                        if (transcript.key, dimension.name) not in have
                    ]
                    yield runner.run(self._batch(client, asked))
                    if client.final is not None:
                        raise UserError(
                            f"judge {self._endpoint.model}: {client.final.detail} What was judged before is kept; "
                            "the same command goes on"
                        )
            finally:
                runner.run(client.__aexit__())

    async def _batch(self, client: ChatClient, asked: Sequence[tuple[Transcript, Dimension]]) -> list[Judgment]:
        judged = await asyncio.gather(*(self._one(client, transcript, dimension) for transcript, dimension in asked))
        # A server that is gone says nothing of a dialogue: what it did not answer is asked when the command goes on.
        return [one for one in judged if client.final is None or one.reason is None or one.raw is not None]

    async def _one(self, client: ChatClient, transcript: Transcript, dimension: Dimension) -> Judgment:
        messages = [{"role": "user", "content": self.how.prompt.text(transcript.to_dialogue(), dimension)}]
        if self.how.reading == "label_probabilities":
            answer = await client.chat(messages, Sampling(temperature=0.0, max_tokens=4, extra=LABELS))
            return self._of_labels(transcript, dimension, answer)
        answers = await asyncio.gather(
            *(
                client.chat(messages, self._sampling(transcript.key, dimension.name, n), schema_of(dimension))
                for n in range(self.how.samples)
            )
        )
        return self._of_samples(transcript, dimension, answers)

    def _sampling(self, key: str, dimension: str, n: int) -> Sampling:
        seed = hashlib.sha256(f"{key}|{dimension}|{n}|{self.how.repeat}".encode()).digest()
        # One sample is the likeliest reply; several must be able to differ.
        return Sampling(
            temperature=self.how.temperature if self.how.samples > 1 else 0.0,
            max_tokens=self.how.max_tokens,
            seed=int.from_bytes(seed[:8], "big") % 2**SEED_BITS,
            extra=self._options.extra,
        )

    def _of_labels(self, transcript: Transcript, dimension: Dimension, answer: Reply | Failure) -> Judgment:
        if isinstance(answer, Failure):
            return self._missing(transcript, dimension, f"{answer.kind}: {answer.detail}")
        if answer.first_token is None:
            return self._missing(transcript, dimension, "no label probabilities in the reply", raw=answer.text)
        found = label_shares(answer.first_token, dimension.levels())
        mass = sum(found)
        if mass <= 0 or mass < self.how.min_mass:
            reason = f"label mass below {self.how.min_mass:g}: the model is about to say something else than a level"
            return self._missing(transcript, dimension, reason, raw=answer.text, label_mass=min(1.0, mass))
        return self._found(transcript, dimension, [p / mass for p in found], raw=answer.text, label_mass=min(1.0, mass))

    def _of_samples(self, transcript: Transcript, dimension: Dimension, answers: Sequence[Reply | Failure]) -> Judgment:
        """All samples count or none: dropping those that cannot be read would favour what is easy to say."""
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        if failed:
            return self._missing(transcript, dimension, f"{failed[0].kind}: {failed[0].detail}")
        said = [answer.text for answer in answers if isinstance(answer, Reply)]
        levels = [read_level(text, dimension.levels()) for text in said]
        raw = said[0] if len(said) == 1 else json.dumps(said, ensure_ascii=False)
        unread = [text for text, level in zip(said, levels, strict=True) if level is None]
        if unread:
            several = f" in {len(unread)} of {len(said)} replies" if len(said) > 1 else ""
            return self._missing(transcript, dimension, f"no level could be read from the reply{several}", raw=raw)
        counts = Counter(levels)
        return self._found(
            transcript, dimension, [counts[level] / len(levels) for level in dimension.levels()], raw=raw
        )

    def _found(
        self, transcript: Transcript, dimension: Dimension, probabilities: Sequence[float], **more: Any
    ) -> Judgment:
        levels = dimension.levels()
        return Judgment(
            **self._place(transcript, dimension),
            probabilities=tuple(probabilities),
            expected=sum(level * p for level, p in zip(levels, probabilities, strict=True)),
            level=median_level(probabilities, levels),
            **more,
        )

    def _missing(self, transcript: Transcript, dimension: Dimension, reason: str, **more: Any) -> Judgment:
        return Judgment(**self._place(transcript, dimension), reason=reason, **more)

    def _place(self, transcript: Transcript, dimension: Dimension) -> dict[str, Any]:
        return {
            "dialogue_key": transcript.key,
            "scorer": scorer_label(self),
            "rubric": self.rubric.name,
            "dimension": dimension.name,
        }


def schema_of(dimension: Dimension) -> dict[str, Any]:
    """What a server that takes schemas is held to: {"level": one of the scale}."""
    return {
        "title": "rating",
        "type": "object",
        "properties": {"level": {"type": "integer", "enum": list(dimension.levels())}},
        "required": ["level"],
        "additionalProperties": False,
    }


def read_level(text: str, levels: range) -> int | None:
    """The level of a reply: {"level": n} and nothing else, or words that name one number (`parse_level`)."""
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        level = value.get("level") if isinstance(value, dict) and set(value) == {"level"} else None
        return level if type(level) is int and level in levels else None
    return parse_level(text, levels)


def label_shares(tokens: Sequence[tuple[str, float]], levels: range) -> list[float]:
    """Probability of every level by the first token: all tokens that are the level, spaces aside, are summed. Levels of
    two digits are more than one token to most models, so such a scale has little mass here and is missing."""
    shares: dict[str, float] = defaultdict(float)
    for token, logprob in tokens:
        shares[token.strip()] += math.exp(logprob)
    return [shares[str(level)] for level in levels]


async def gives_labels(spec: str, options: ModelOptions, ask: bool = True) -> bool:
    """Whether the server tells first tokens' probabilities; asked once with a question of two words.

    Raises UserError when nobody answers or the key is refused.
    """
    async with ChatClient(endpoint_of(spec, options)) as client:
        there = await client.served()
        if isinstance(there, Failure):
            raise UserError(f"judge {spec.split('@')[0]}: {there.detail}")
        if not ask:
            return False
        asked = [{"role": "user", "content": "Answer with the digit 1 and nothing else."}]
        answer = await client.chat(asked, Sampling(temperature=0.0, max_tokens=4, extra=LABELS))
    if isinstance(answer, Failure):
        if answer.final:
            raise UserError(f"judge {spec.split('@')[0]}: {answer.detail}")
        return False
    return answer.first_token is not None


def load_endpoint_judge(
    spec: str,
    rubric: str = "esc_eval",
    prompt: str = "llm_judge",
    reading: str = "labels",
    samples: int = 5,
    min_mass: float = 0.5,
    repeat: int = 0,
    options: ModelOptions | None = None,
    say: Callable[[str], None] = lambda remark: None,
) -> EndpointJudge:
    """A judge of an `openai:MODEL@URL`. `reading`: labels (probabilities; samples, and a remark, where the server gives
    none) or generate (samples). Raises UserError before anything is judged when something does not fit."""
    if reading not in ("labels", "generate"):
        raise UserError(f"--reading {reading!r}: expected labels or generate")
    options = options or ModelOptions()
    with_labels = asyncio.run(gives_labels(spec, options, ask=reading == "labels"))
    if reading == "labels" and not with_labels:
        say(f"{spec.split('@')[0]}: the server gives no label probabilities; {samples} samples a dimension instead")
    how = Asking(
        OwnPrompt.load(prompt),
        "label_probabilities" if with_labels else "samples",
        samples=samples,
        min_mass=min_mass,
        repeat=repeat,
    )
    return EndpointJudge(spec, load_rubric(rubric), how, options, say)
