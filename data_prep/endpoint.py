"""The one client for servers that speak the OpenAI chat protocol: bounded, retried, timed, and silent about keys.

A call ends in a Reply or in a Failure with a kind, never in text that only looks like a reply. Keys come from the
environment alone; they are not in any record, message or log line of ours, and neither is what a server writes in
its error pages, which may repeat them or the text that was sent.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from data_prep.endpoint_places import Places
from data_prep.endpoint_reply import (
    BadReplyError,
    context_fault,
    error_fields,
    listed_models,
    parse_completion,
    retry_after_seconds,
)
from data_prep.errors import UserError

if TYPE_CHECKING:
    import ssl

    import httpx

FailureKind = Literal[
    "timeout",
    "rate_limited",
    "server_error",
    "bad_reply",
    "empty",
    "refused_connection",
    "auth",
    "bad_request",
    "context_full",
]
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
MAX_REPLY_BYTES = 16 * 1024 * 1024
# A chat server on this machine is never behind a proxy, whatever the environment says.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Endpoint:
    """Where to call and how patiently. Times are in seconds; `attempts` counts the first call too."""

    url: str
    """Base address as servers print it, for example http://localhost:8000/v1."""
    model: str
    key_variable: str = DEFAULT_KEY_VARIABLE
    """Name of the environment variable that holds the key; without one in it, no key is sent."""
    concurrency: int = 8
    timeout: float = 120.0
    """For one request, from its start to the last byte of its reply; waiting for a free place does not count."""
    attempts: int = 5
    first_wait: float = 1.0
    longest_wait: float = 60.0
    """Also the longest Retry-After that is waited for."""
    fewer_attempts: Mapping[str, int] = field(default_factory=dict)
    """Kinds of failure that are tried less often than `attempts`, and how often."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port_is_fine = parts.port is None or parts.port > 0
        except ValueError:
            raise UserError("--endpoint: is not a URL; for example http://localhost:8000/v1") from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UserError(
                "--endpoint: holds a user, a query or a fragment; give the bare address and put the key "
                f"into the environment variable {DEFAULT_KEY_VARIABLE}"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
            raise UserError("--endpoint: is not a URL; for example http://localhost:8000/v1")
        if not self.model.strip():
            raise UserError("--model: is empty; name the model as the server lists it")
        for name in ("concurrency", "attempts"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}: must be 1 or more")
        if not self.timeout > 0:
            raise UserError("--timeout: must be more than 0 seconds")

    def address(self) -> str:
        """The address that is posted to."""
        return self.url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn. What is None is not sent, so the server's own default holds."""

    temperature: float | None = 0.0
    max_tokens: int | None = 1024
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, as the server at hand knows them."""

    def sent(self) -> dict[str, Any]:
        """The fields of the request."""
        values = {name: getattr(self, name) for name in ("temperature", "max_tokens", "top_p", "seed", "stop")}
        known = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}
        return {**self.extra, **known}


@dataclass(frozen=True)
class Reply:
    """What a model said. `text` is never empty; what it thought aloud before is in `thinking`."""

    text: str
    thinking: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    """As the server names it, which need not be what was asked for."""
    usage: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 1
    schema_used: bool = False
    """Whether the server was held to the JSON schema."""


@dataclass(frozen=True)
class Failure:
    """Why there is no reply. `detail` is safe to print; `final` says that other calls would fail alike."""

    kind: FailureKind
    detail: str
    attempts: int = 1
    status: int | None = None
    final: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True)
class Clock:
    """Time as the client sees it: `now` (seconds since 1970, for dates), `ticks` (for spans) and `sleep`."""

    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Key:
    """A secret that does not print."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self._secret = os.environ.get(variable, "").strip()
        if not all("!" <= character <= "~" for character in self._secret):
            raise UserError(f"environment variable {variable}: is not a key; expected letters and digits on one line")

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._secret}"} if self._secret else {}

    def is_in(self, text: str) -> bool:
        return bool(self._secret) and self._secret in text

    def __repr__(self) -> str:
        return f"Key({self.variable}, {'set' if self._secret else 'not set'})"


@dataclass(frozen=True)
class _Trouble:
    """One failed try: the Failure it would end in, whether another may help, and what the server asks to wait."""

    failure: Failure
    again: bool
    wait: float | None = None
    param: str | None = None


class ChatClient:
    """Calls one endpoint, at most `concurrency` requests at a time. Use as an async context manager.

    `say` is given each remark that concerns the whole run, once. Back-off doubles from `first_wait` and is drawn
    from the upper half of that span by a generator seeded with `seed`. A Retry-After (seconds or date) holds for
    all calls of the client; a 429 also halves the number of calls at a time, which then grows again slowly.
    After a final failure (no access, nobody there) later calls end in it at once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        say: Callable[[str], None] = lambda remark: None,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self._key = Key(endpoint.key_variable)
        self._say = say
        self._clock = clock or Clock()
        self._random = random.Random(seed)
        self.places = Places(endpoint.concurrency)
        self._not_before = 0.0
        self.final: Failure | None = None
        """The failure that ended all hope of this server."""
        self._said: set[str] = set()
        self._tls: ssl.SSLContext | bool = False
        self._schema_refused = False
        self._new_limit_name = False
        self._http: httpx.AsyncClient | None = None
        self._lines: list[httpx.AsyncClient] = []
        """Clients that nobody is using, the last used last: its connection is the likeliest to be still open."""

    async def __aenter__(self) -> "ChatClient":
        import httpx

        try:
            httpx.URL(self.endpoint.address())
        except httpx.InvalidURL:
            raise UserError("--endpoint: is not a URL; for example http://localhost:8000/v1") from None
        self._tls = httpx.create_ssl_context()  # once, it reads all certificates
        self._http = self._new_line()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            for line in (self._http, *self._lines):
                await line.aclose()
            self._http = None
            self._lines.clear()

    def _new_line(self) -> "httpx.AsyncClient":
        """A client that will hold one connection. A shared pool looks at every connection for every request, which
        at 64 of them costs more than the request."""
        import httpx

        # Redirects are not followed: the key would travel to wherever they point.
        return httpx.AsyncClient(
            headers=self._key.headers(),
            timeout=None,
            follow_redirects=False,
            verify=self._tls,
            trust_env=urlsplit(self.endpoint.url).hostname not in LOOPBACK,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=1),
        )

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Reply | Failure:
        """One reply to `messages` ([{"role", "content"}, …]).

        `schema` is a JSON schema that the reply should follow; a server that answers 400 for it is asked without,
        so the caller still has to check what comes.
        """
        sampling = sampling or Sampling()
        attempt = 0
        while True:
            attempt += 1
            with_schema = schema is not None and not self._schema_refused
            outcome = await self._try(messages, sampling, schema if with_schema else None)
            if isinstance(outcome, Failure):
                return replace(outcome, attempts=attempt - 1)
            if isinstance(outcome, Reply):
                return replace(outcome, attempts=attempt, schema_used=with_schema)
            if outcome.failure.status == 400 and with_schema:
                plain = await self._try(messages, sampling, None)
                if isinstance(plain, Failure):
                    return replace(plain, attempts=attempt)
                if isinstance(plain, Reply):
                    self._schema_refused = True
                    self._remark("the server takes no response_format json_schema; asking without it")
                    return replace(plain, attempts=attempt)
                outcome = plain
            kind = outcome.failure.kind
            attempts = min(self.endpoint.attempts, self.endpoint.fewer_attempts.get(kind, self.endpoint.attempts))
            if not outcome.again or attempt >= attempts:
                return self._give_up(outcome.failure, attempt)
            if kind == "refused_connection":
                self._remark(f"{outcome.failure.detail} trying {self.endpoint.attempts} times (--attempts)")
            await self._back_off(outcome, attempt)

    async def served(self) -> dict[str, int | None] | Failure:
        """The models the server lists at /models, each with its context length in tokens where it states one.

        One try. A Failure says that nobody is there or that the key is refused; any other answer that is no list
        is an empty one, for not every server keeps it.
        """
        import httpx

        assert self._http is not None, "use ChatClient as an async context manager"
        try:
            async with asyncio.timeout(min(30.0, self.endpoint.timeout)):
                address = self.endpoint.address().removesuffix("/chat/completions") + "/models"
                response = await self._http.get(address)
        except (TimeoutError, httpx.TimeoutException):
            return {}
        except httpx.ConnectError:
            return self._nobody()
        except httpx.HTTPError:
            return {}
        if response.status_code in (401, 403):
            return self._refused(response.status_code, response.headers, response.content).failure
        return listed_models(response.content) if response.status_code == 200 else {}

    # ---- one request

    def _body(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, schema: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.endpoint.model, "messages": list(messages), **sampling.sent()}
        if self._new_limit_name and "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")
        if schema is not None:
            name = str(schema.get("title", "reply"))
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": name, "strict": True, "schema": dict(schema)},
            }
        return body

    async def _try(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, schema: Mapping[str, Any] | None
    ) -> Reply | _Trouble | Failure:
        """One request, in a place of its own; a Failure when there is no sense in sending it."""
        async with self.places as generation:
            blocked = await self._wait_for_turn()
            # What other calls have learnt of the server meanwhile is in the body.
            outcome = blocked or await self._send(self._body(messages, sampling, schema))
            if isinstance(outcome, Reply):
                self.places.grow()
            elif isinstance(outcome, _Trouble) and outcome.failure.kind == "rate_limited":
                self.places.shrink(generation)
            return outcome

    async def _send(self, body: Mapping[str, Any]) -> Reply | _Trouble:
        import httpx

        assert self._http is not None, "use ChatClient as an async context manager"
        seconds = self.endpoint.timeout
        try:
            async with asyncio.timeout(seconds):
                status, headers, content = await self._post(body)
        except (TimeoutError, httpx.TimeoutException):
            return _Trouble(Failure("timeout", f"no complete reply within {seconds:g} s"), again=True)
        except httpx.ConnectError:
            return _Trouble(self._nobody(), again=True)
        except httpx.HTTPError as error:
            detail = f"the connection broke ({type(error).__name__})"
            return _Trouble(Failure("server_error", detail), again=True)
        if content is None:
            return _Trouble(Failure("bad_reply", "the reply is larger than 16 MB", status=status), again=False)
        if status != 200:
            trouble = self._refused(status, headers, content)
            if status == 400 and trouble.param == "max_tokens" and "max_tokens" in body:
                self._new_limit_name = True
                self._remark("the server wants max_completion_tokens instead of max_tokens; sending that")
                renamed = {name: value for name, value in body.items() if name != "max_tokens"}
                return await self._send({**renamed, "max_completion_tokens": body["max_tokens"]})
            return trouble
        try:
            return Reply(**parse_completion(content))
        except BadReplyError as error:
            return _Trouble(Failure("empty" if error.empty else "bad_reply", str(error), status=status), again=True)

    def _nobody(self) -> Failure:
        place = urlsplit(self.endpoint.url)
        detail = f"nobody answers at {place.hostname}:{place.port or place.scheme}; is the server running?"
        return Failure("refused_connection", detail, final=True)

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes | None]:
        """Status, headers and body; a body over the limit is None."""
        assert self._http is not None
        content = bytearray()
        # Escaped, so that half of a surrogate pair cannot break the request.
        data = json.dumps(body).encode("ascii")
        headers = {"Content-Type": "application/json"}
        line = self._lines.pop() if self._lines else self._new_line()
        try:
            async with line.stream("POST", self.endpoint.address(), content=data, headers=headers) as response:
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > MAX_REPLY_BYTES:
                        return response.status_code, response.headers, None
            return response.status_code, response.headers, bytes(content)
        finally:
            self._lines.append(line)

    def _refused(self, status: int, headers: Mapping[str, str], content: bytes) -> _Trouble:
        """The trouble that a status other than 200 tells of."""
        code, param = (None if word and self._key.is_in(word) else word for word in error_fields(content))
        named = f", {code}" if code else ""
        wait = retry_after_seconds(headers.get("retry-after"), self._clock.now())
        told = f"HTTP {status}{named}"

        def trouble(kind: FailureKind, detail: str, again: bool, final: bool = False) -> _Trouble:
            return _Trouble(Failure(kind, detail, status=status, final=final), again, wait, param)

        if status in (401, 403):
            hint = f"{told}; is the key in the environment variable {self.endpoint.key_variable} right?"
            return trouble("auth", hint, again=False, final=True)
        if status == 429:
            spent = code == "insufficient_quota"
            return trouble("rate_limited", told, again=not spent, final=spent)
        if status in (400, 413, 422) and (full := context_fault(content)):
            return trouble("context_full", f"{told}; {full}", again=False)
        if status == 408 or status == 409 or status == 425 or status >= 500:
            return trouble("server_error", told, again=status not in (501, 505))
        if status == 404:
            hint = f"{told}; does the server have this model, and does the address end in /v1?"
            return trouble("bad_request", hint, again=False, final=True)
        if 300 <= status < 400 or status < 300:
            return trouble("bad_reply", f"{told}; give the address that the server itself answers at", again=False)
        return trouble("bad_request", told + (f", parameter {param}" if param else ""), again=False)

    # ---- between requests

    def _remark(self, remark: str) -> None:
        if remark not in self._said:
            self._said.add(remark)
            self._say(remark)

    def _give_up(self, failure: Failure, attempts: int) -> Failure:
        ended = replace(failure, attempts=attempts)
        if failure.final and self.final is None:
            self.final = ended
        return ended

    async def _wait_for_turn(self) -> Failure | None:
        """Waits out what the server asked for; a Failure when there is no sense in calling."""
        while self.final is None:
            rest = self._not_before - self._clock.ticks()
            if rest <= 0:
                return None
            if rest > self.endpoint.longest_wait:
                detail = f"the server asks to wait {rest:.0f} s, longer than {self.endpoint.longest_wait:g} s"
                return Failure("rate_limited", detail, status=429)
            await self._clock.sleep(rest)
        return self.final

    async def _back_off(self, outcome: _Trouble, attempt: int) -> None:
        if outcome.wait:
            self._not_before = max(self._not_before, self._clock.ticks() + outcome.wait)
            return
        span = min(self.endpoint.longest_wait, self.endpoint.first_wait * 2 ** (attempt - 1))
        await self._clock.sleep(span * self._random.uniform(0.5, 1.0))
