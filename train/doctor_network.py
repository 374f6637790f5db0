"""What `esckit doctor` asks over the network: the hub, and a chat endpoint if one is named. Short time-outs."""

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from data_prep.endpoint import LOOPBACK
from data_prep.endpoint_terms import Endpoint, Key
from data_prep.errors import UserError
from data_prep.hub import within
from train.doctor import Finding
from train.fetch import MODELS

# Seconds for one answer, and altogether: a name look-up can hang beyond the former.
TIMEOUT = 3.0
DEADLINE = 6.0
MOST_BYTES = 1024 * 1024
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def ask(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and the first bytes of one GET. Raises OSError with a short reason when there is no answer."""
    import httpx

    def call() -> tuple[int, bytes]:
        here = urlsplit(url).hostname in LOOPBACK  # never behind a proxy
        with (
            httpx.Client(timeout=TIMEOUT, trust_env=not here, follow_redirects=True) as client,
            client.stream("GET", url, headers=headers) as reply,
        ):
            content = b""
            for part in reply.iter_bytes():
                content += part
                if len(content) > MOST_BYTES:
                    break
            return reply.status_code, content

    try:
        return within(DEADLINE, call)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, UnicodeError, ValueError) as error:
        raise OSError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def shown(url: str) -> str:
    """Scheme, host and port only: an address can hold a name and a password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def hub_findings() -> Iterator[Finding]:
    """Whether base models can be had from the hub by their id."""
    offline = [name for name in OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]
    if offline:
        yield Finding("hub", "note", f"{', '.join(offline)} set: only models on this machine can be used; unset to ask")
        return
    address = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    instead = "bring model folders yourself, or set HF_ENDPOINT to a mirror"
    try:
        host = shown(address)
        status, _ = ask(f"{address}/api/models/{next(iter(MODELS.values())).hub_id}")
    except ValueError:
        yield Finding("hub", "note", "HF_ENDPOINT is not a URL; for example https://huggingface.co")
    except OSError as error:
        yield Finding("hub", "note", f"{host} is not reached ({error}); {instead}")
    else:
        if status == 200:
            yield Finding("hub", "ok", f"{host} answers")
        else:
            yield Finding("hub", "note", f"{host} answers with status {status}; {instead}")


def endpoint_findings(url: str) -> Iterator[Finding]:
    """Whether the chat server answers and which models it lists. Raises UserError for what is no address."""
    endpoint = Endpoint(url, model="any")
    address = url.rstrip("/").removesuffix("/chat/completions") + "/models"
    try:
        headers = Key(endpoint.key_variable).headers()
    except UserError as error:
        yield Finding("endpoint", "bad", str(error))
        return
    try:
        status, content = ask(address, headers)
    except OSError as error:
        yield Finding("endpoint", "bad", f"{shown(url)} is not reached ({error}); start the server, check the address")
        return
    if status in (401, 403):
        key = "the key is refused" if headers else "it asks for a key"
        yield Finding("endpoint", "bad", f"{shown(url)}: {key} (status {status}); set {endpoint.key_variable}")
    elif status != 200:
        yield Finding(
            "endpoint",
            "note",
            f"{shown(url)} answers with status {status} when asked for its models; check that the address ends as the "
            "server prints it, often /v1",
        )
    else:
        names = model_names(content)
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield Finding("endpoint", "ok", f"{shown(url)} serves {', '.join(names[:5])}{more}")
        else:
            yield Finding("endpoint", "note", f"{shown(url)} answers, but lists no model; is it a chat server?")


def model_names(content: bytes) -> list[str]:
    """Names in an OpenAI-style list of models, each on one line; none when it is something else."""
    try:
        listed: Any = json.loads(content)["data"]
        names = [entry["id"] for entry in listed]
    except (ValueError, KeyError, TypeError):
        return []
    return ["".join(c if c.isprintable() else "?" for c in name)[:100] for name in names if isinstance(name, str)]
