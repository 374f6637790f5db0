"""Asking a chat server many questions of one kind, with a memory on disk.

Every answer is appended to a JSON Lines cache the moment it arrives, under a key of everything that changes it, so
that a run that is killed goes on where it stopped and nothing that was answered is asked twice.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from filelock import FileLock
from filelock import Timeout as LockTimeout

from data_prep.endpoint import ChatClient
from data_prep.endpoint_terms import Clock, Endpoint, Failure, Reply, Sampling
from data_prep.errors import UserError
from data_prep.prompt import Prompt
from data_prep.records import parse_json, read_text

T = TypeVar("T")
FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
# What opens a special token or an instruction mark in any chat format in use; a JSON reader sees the same text.
SPECIAL = re.compile("[<>\\[\\]\u2028\u2029]")


class UnusableError(Exception):
    """A reply that is not what was asked for. The message says what is wrong and quotes nothing."""


def as_data(value: Any) -> str:
    """`value` as JSON in which no text can end its string, open a tag, or spell a special token of a chat format."""
    if isinstance(value, str):
        return SPECIAL.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{as_data(str(key))}: {as_data(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_data, value)) + "]"
    return json.dumps(value)


def json_object(text: str) -> dict[str, Any]:
    """The one JSON object that a reply consists of, with or without a code fence around it. Raises UnusableError."""
    text = text.strip()
    fenced = FENCED.fullmatch(text)
    try:
        found = parse_json(fenced.group(1) if fenced else text, "reply")
    except UserError:
        raise UnusableError("not one JSON object") from None
    if not isinstance(found, dict):
        raise UnusableError("JSON, but not an object")
    return found


@lru_cache(maxsize=64)
def _instructions(prompt: Prompt, language: str, values: tuple[tuple[str, str], ...]) -> str:
    return prompt.render(language, **dict(values))


@dataclass(frozen=True)
class Question:
    """One thing to ask about one item. The material goes in as data, apart from the instructions."""

    item: str
    """Id of the record that it is about."""
    task: str
    prompt: Prompt
    language: str
    material: Mapping[str, Any]
    schema: Mapping[str, Any]
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of the prompt's own placeholders; never text of a dialogue, card or post."""

    def messages(self) -> list[dict[str, str]]:
        """Instructions as system message, the material alone as user message."""
        return [
            {"role": "system", "content": _instructions(self.prompt, self.language, tuple(self.values.items()))},
            {"role": "user", "content": as_data(self.material)},
        ]

    def key(self, model: str, sampling: Sampling) -> str:
        """Hash of all that the answer depends on: task, model, prompt, sampling, schema, language and the text."""
        parts = {
            "task": self.task,
            "model": model,
            "prompt": self.prompt.reference(),
            "language": self.language,
            "sampling": sampling.sent(),
            "schema": dict(self.schema),
            "messages": self.messages(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class ReplyCache:
    """Replies by key, in an append-only file that one process holds at a time. Use as a context manager.

    A last line without its end is what a kill leaves: it is cut off (`torn` says so). Raises UserError when the file
    is in use or holds any other line that is not one of ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        self._replies: dict[str, dict[str, Any]] = {}
        self._lock = FileLock(f"{path}.lock", timeout=0)
        self._stream: IO[str] | None = None

    def __enter__(self) -> "ReplyCache":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except LockTimeout:
            raise UserError(f"{self.path}: another run is using this cache; wait for it or give another") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None
        try:
            if self.path.exists():
                self._mend()
                self._read()
            self._stream = open(self.path, "a", encoding="utf-8", newline="\n")
        except OSError as error:
            self._lock.release()
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        self._lock.release()

    def __contains__(self, key: str) -> bool:
        return key in self._replies

    def __len__(self) -> int:
        return len(self._replies)

    def text(self, key: str) -> str:
        """The reply under `key`."""
        return self._replies[key]["text"]

    def add(self, key: str, question: Question, reply: Reply, used: bool) -> None:
        """Appends a reply and flushes it. One that could not be used is kept for the record, not found again."""
        line = {
            "key": key,
            "used": used,
            "task": question.task,
            "item": question.item,
            "prompt": question.prompt.reference(),
            "text": reply.text,
            "thinking": reply.thinking,
            "finish_reason": reply.finish_reason,
            "model": reply.model,
            "usage": dict(reply.usage),
            "schema_used": reply.schema_used,
        }
        assert self._stream is not None, "use ReplyCache as a context manager"
        try:
            self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._stream.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None
        if used:
            self._replies[key] = line

    def _mend(self) -> None:
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            with open(self.path, "r+b") as stream:
                stream.truncate(content.rfind(b"\n") + 1)
            self.torn = True

    def _read(self) -> None:
        for number, line in enumerate(read_text(self.path).split("\n"), start=1):
            if not line:
                continue
            where = f"{self.path}:{number}"
            found = parse_json(line, where)
            if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("key", "text")):
                raise UserError(f"{where}: is not a line of a reply cache; give another --cache or delete the line")
            if found.get("used") is True:
                self._replies[found["key"]] = found


@dataclass
class Answers(Generic[T]):
    """What became of the questions: `found` by item; `missing` by item with the reason in one line."""

    found: dict[str, T] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """Key in the cache by item."""
    asked: int = 0
    """Questions put to the server in this run."""
    from_cache: int = 0
    stopped: str | None = None
    """Why the run ended before all was asked: nobody answers there, or not for us. `missing` holds the rest too."""

    def report(self) -> dict[str, Any]:
        """Counts, and how often each reason."""
        reasons = Counter(reason.partition(":")[0] for reason in self.missing.values())
        return {
            "answered": len(self.found),
            "missing": len(self.missing),
            "reasons": dict(sorted(reasons.items())),
            "asked_now": self.asked,
            "from_cache": self.from_cache,
        }


@dataclass(frozen=True)
class Asking:
    """How questions are asked: the server, the sampling, the memory, and whom to tell."""

    endpoint: Endpoint
    cache: Path
    sampling: Sampling = field(default_factory=Sampling)
    tries: int = 3
    """How often a question is put when the reply is unusable."""
    say: Callable[[str], None] = lambda remark: None
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with (done, total) after every question that had to be asked."""
    clock: Clock | None = None


def ask_all(questions: Sequence[Question], parse: Callable[[Question, str], T], asking: Asking) -> Answers[T]:
    """Asks what the cache does not know, concurrently; the order of replies changes nothing in the result.

    `parse` turns a reply into a value or raises UnusableError; then the question is put again with the fault named,
    at most `tries` times in all, after which the item is missing. Questions with the same key are asked once.
    """
    with _cache(asking) as cache:
        return asyncio.run(_ask_all(questions, parse, asking, cache))


@contextmanager
def _cache(asking: Asking) -> Iterator[ReplyCache]:
    with ReplyCache(asking.cache) as cache:
        if cache.torn:
            asking.say(f"{asking.cache}: the last line was incomplete (a run was killed) and is cut off")
        yield cache


async def _ask_all(
    questions: Sequence[Question], parse: Callable[[Question, str], T], asking: Asking, cache: ReplyCache
) -> Answers[T]:
    answers: Answers[T] = Answers()
    waiting: dict[str, list[Question]] = {}
    for question in questions:
        key = question.key(asking.endpoint.model, asking.sampling)
        answers.keys[question.item] = key
        try:
            if key in cache:
                answers.found[question.item] = parse(question, cache.text(key))
                answers.from_cache += 1
                continue
        except UnusableError:  # an earlier version accepted what this one does not
            pass
        waiting.setdefault(key, []).append(question)
    if not waiting:
        return answers
    todo = iter(waiting.items())
    done = 0

    async def worker(client: ChatClient) -> None:
        # Workers share one iterator: no more tasks exist than may run, however many questions there are.
        nonlocal done
        for key, alike in todo:
            outcome = await _ask(client, alike[0], key, parse, asking, cache)
            if isinstance(outcome, Failure) and outcome.final:
                # The same would be said of every other question: they are not gone through.
                answers.stopped = answers.stopped or str(outcome)
                left = [question.item for _, group in [(key, alike), *todo] for question in group]
                answers.missing |= dict.fromkeys(left, str(outcome))
                return
            outcome = str(outcome) if isinstance(outcome, Failure) else outcome
            for question in alike:
                if isinstance(outcome, str):
                    answers.missing[question.item] = outcome
                else:
                    answers.found[question.item] = parse(question, outcome.text)
            answers.asked += 1
            done += 1
            asking.progress(done, len(waiting))

    async with ChatClient(asking.endpoint, say=asking.say, clock=asking.clock) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(asking.endpoint.concurrency, len(waiting))):
                    group.create_task(worker(client))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
    return answers


def _first(error: BaseException) -> BaseException:
    """The first exception inside a group: a user's mistake has to arrive as itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _ask(
    client: ChatClient,
    question: Question,
    key: str,
    parse: Callable[[Question, str], T],
    asking: Asking,
    cache: ReplyCache,
) -> Reply | Failure | str:
    """A reply that `parse` accepts, cached; or why there is none: the server's failure, or what is wrong with it."""
    messages = question.messages()
    reason = ""
    for _ in range(asking.tries):
        reply = await client.chat(messages, asking.sampling, question.schema)
        if isinstance(reply, Failure):
            return reply
        try:
            parse(question, reply.text)
        except UnusableError as error:
            cut = "; it was cut at --max-tokens" if reply.finish_reason == "length" else ""
            reason = f"unusable reply: {error}{cut}"
            cache.add(key, question, reply, used=False)
            # At temperature 0 the same question would get the same reply.
            again = as_data({"your_last_reply_was": str(error), "answer_with": "one JSON object as described, only"})
            # The reply stands between them because many chat templates insist on turns.
            said = {"role": "assistant", "content": as_data(reply.text)}
            messages = [*question.messages(), said, {"role": "user", "content": again}]
            continue
        cache.add(key, question, reply, used=True)
        return reply
    return reason
