"""Chat models behind a URL: any server that speaks the OpenAI chat protocol.

One client for one model and event loop. An HTTP error, an HTML page, a hang or a dead server is a failure with a
reason; nothing that a server sends other than a model's words ever becomes a reply.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from data_prep.endpoint import ChatClient, Endpoint, Failure, Key
from data_prep.endpoint import Reply as Answer
from data_prep.endpoint import Sampling as Asked
from data_prep.errors import UserError
from eval.chat_models.base import Reply, Request, Sampling, Stats, cut_at
from eval.chat_models.options import ModelOptions

SPEC = re.compile(r"openai:(?P<model>.+?)@(?P<url>https?://.*)", re.DOTALL)
# Trying again what is decided by the seed gives the same, and a hang is long enough twice.
FEWER_ATTEMPTS = {"empty": 1, "bad_reply": 3, "timeout": 2}
SEED_BITS = 31  # the most that every server's integer holds
UNKNOWN_CONTEXT = 10**9


def endpoint_of(spec: str, options: ModelOptions) -> Endpoint:
    """The endpoint that `openai:MODEL@URL` names. Raises UserError; the URL is never repeated, it may hold a secret."""
    found = SPEC.fullmatch(spec)
    if found is None:
        raise UserError(
            "model openai:…: is not of the form openai:MODEL@URL; for example openai:qwen3@http://localhost:8000/v1"
        )
    try:
        return Endpoint(
            url=found["url"],
            model=found["model"],
            key_variable=options.key_variable,
            concurrency=options.concurrency,
            timeout=options.timeout,
            attempts=options.attempts,
            fewer_attempts=FEWER_ATTEMPTS,
        )
    except UserError as error:
        what = str(error).removeprefix("--endpoint: ").removeprefix("--model: ")
        raise UserError(f"model openai:{found['model']}@…: the address {what}") from None


class EndpointChatModel:
    """A chat model on a server. Raises UserError where nobody answers, the key is refused or the model not served."""

    def __init__(self, name: str, options: ModelOptions, say: Callable[[str], None] = lambda remark: None):
        self.name = name
        self.stats = Stats()
        self.concurrency = options.concurrency
        self._options = options
        self._endpoint = endpoint_of(name, options)
        Key(options.key_variable)  # refuses what is no key
        self._say = say
        self._client: ChatClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Runner | None = None
        self._seen: dict[str, int] = {}
        """Prompt tokens of the last turn of each conversation, as the server counted them."""
        self.context_length = options.context_length or self._ask_context() or UNKNOWN_CONTEXT

    def describe(self) -> dict[str, Any]:
        """All that decides replies; never the key, and not how many requests run at once."""
        known = self.context_length < UNKNOWN_CONTEXT
        return {
            "kind": "openai",
            "model": self._endpoint.model,
            "url": self._endpoint.url,
            "context_length": self.context_length if known else None,
            "reasoning": self._options.reasoning,
            "timeout": self._options.timeout,
            "attempts": self._options.attempts,
            "extra": self._options.extra,
        }

    @property
    def down(self) -> str | None:
        failure = self._client.final if self._client else None
        return f"{failure.detail}." if failure else None

    def forget(self) -> None:
        self._seen.clear()

    def reply(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """One reply per request, in order; as many at once as the server takes."""

        async def all_of_them() -> list[Reply]:
            return list(await asyncio.gather(*(self.reply_one(request, sampling) for request in requests)))

        if self._runner is None:
            self._runner = asyncio.Runner()  # one loop for all turns, so that connections stay open
        return self._runner.run(all_of_them())

    async def reply_one(self, request: Request, sampling: Sampling) -> Reply:
        """The reply to one request; `seconds` counts from its start, waits for a free place included."""
        started = time.perf_counter()
        client = await self._connected()
        too_long = self._too_long(request, sampling)
        if too_long:
            return Reply("", failure="context_full", detail=too_long)
        messages = [{"role": message["role"], "content": message["content"]} for message in request.messages]
        outcome = await client.chat(messages, self._asked(request, sampling))
        seconds = time.perf_counter() - started
        if isinstance(outcome, Failure):
            return _failed(outcome, seconds)
        return self._read(request, sampling, outcome, seconds)

    async def close(self) -> None:
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.__aexit__()

    async def _connected(self) -> ChatClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = ChatClient(self._endpoint, say=lambda remark: self._say(f"{self.name}: {remark}"))
            self._loop = loop
            await self._client.__aenter__()
        return self._client

    def _asked(self, request: Request, sampling: Sampling) -> Asked:
        extra = dict(self._options.extra)
        if self._options.reasoning == "off":
            given = extra.get("chat_template_kwargs")
            extra["chat_template_kwargs"] = {**(given if isinstance(given, dict) else {}), "enable_thinking": False}
        return Asked(
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            top_p=sampling.top_p,
            seed=request.seed % 2**SEED_BITS,
            stop=sampling.stop or None,
            extra=extra,
        )

    def _too_long(self, request: Request, sampling: Sampling) -> str | None:
        """Why a prompt cannot fit: the last one is the beginning of it.

        A first prompt has no measure but the server's own; it is checked by what the server counts (`_read`).
        """
        least = self._seen.get(request.conversation, 0)
        if least + sampling.max_new_tokens > self.context_length:
            return (
                f"at least {least} prompt tokens and {sampling.max_new_tokens} new ones exceed the context "
                f"of {self.context_length}"
            )
        return None

    def _read(self, request: Request, sampling: Sampling, answer: Answer, seconds: float) -> Reply:
        prompt = answer.usage.get("prompt_tokens", 0)
        new = answer.usage.get("completion_tokens", 0)
        self.stats.prompt_read += prompt
        self.stats.generated += new
        before = self._seen.get(request.conversation, 0)
        self._seen[request.conversation] = max(prompt, before)
        if prompt < before and prompt:
            self._say(
                f"{self.name}: the server counts fewer prompt tokens than a turn before; unless it leaves out what "
                "it remembers, it cuts prompts: raise its context (Ollama: num_ctx) and set context_length"
            )
        full = None
        if prompt + sampling.max_new_tokens > self.context_length:
            full = f"{prompt} prompt tokens and {sampling.max_new_tokens} new ones exceed {self.context_length}"
        elif answer.finish_reason == "length" and 0 < new < sampling.max_new_tokens - 1:
            full = f"the server cut the reply after {new} of {sampling.max_new_tokens} tokens"
        if full:
            return Reply("", failure="context_full", detail=full, prompt_tokens=prompt, new_tokens=new, seconds=seconds)
        text = cut_at(answer.text, sampling.stop)
        finish = "length" if answer.finish_reason == "length" and text == answer.text else "stop"
        return Reply(text, finish, None, None, answer.thinking, prompt, new, seconds)  # type: ignore[arg-type]

    def _ask_context(self) -> int | None:
        """The context length the server states, in tokens. Raises UserError when there is no use in beginning."""

        async def ask() -> Any:
            async with ChatClient(self._endpoint) as client:
                return await client.served()

        served = asyncio.run(ask())
        if isinstance(served, Failure):
            raise UserError(f"model {self.name}: {served.detail}")
        if served and self._endpoint.model not in served:
            # An alias may still work; the server has the last word at the first request.
            self._say(f"{self.name}: the server does not list this model; it lists {', '.join(sorted(served)[:5])}")
        return served.get(self._endpoint.model)


def _failed(failure: Failure, seconds: float) -> Reply:
    kinds = {"timeout": "timeout", "empty": "empty", "context_full": "context_full"}
    kind: Any = kinds.get(failure.kind, "error")
    tries = f" (tried {failure.attempts} times)" if failure.attempts > 1 else ""
    return Reply("", failure=kind, detail=f"{failure.detail}{tries}", seconds=seconds)
