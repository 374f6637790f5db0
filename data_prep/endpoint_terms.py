"""What is said to and heard from a chat server: the address, how a reply is drawn, replies, failures, the key."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from data_prep.errors import UserError

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
    first_token: tuple[tuple[str, float], ...] | None = None
    """(token, log probability) of the likeliest first tokens, where they were asked for and the server gave them."""


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
