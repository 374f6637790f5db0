"""What a chat server sends back, read strictly: pure functions from bytes and headers to values."""

import json
import re
from email.utils import parsedate_to_datetime
from typing import Any

from data_prep.records import encodable

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
THINKING = re.compile(r"\s*<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)
THINKING_END = re.compile(r"</think(?:ing)?>")


class BadReplyError(Exception):
    """A 200 that holds no usable reply; `empty` when it is well-formed but says nothing."""

    def __init__(self, detail: str, empty: bool = False) -> None:
        super().__init__(detail)
        self.empty = empty


def split_thinking(text: str) -> tuple[str, str | None]:
    """(what was said, what was thought before in a <think> block), both stripped; None when there is no such block.

    A block that is never closed is all thought. A closing mark without an opening one (some chat templates open it
    themselves) ends the thought, except in a reply that begins as JSON, where it is part of a value.
    """
    opened = THINKING.match(text)
    if opened:
        return text[opened.end() :].strip(), opened.group(1).strip() or None
    closing = None if text.lstrip()[:1] in ("{", "[") else THINKING_END.search(text)
    if closing:
        return text[closing.end() :].strip(), text[: closing.start()].strip() or None
    return text.strip(), None


def parse_completion(content: bytes) -> dict[str, Any]:
    """The fields of a Reply from a completion's bytes. Raises BadReplyError for anything that is not one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        kind = "HTML" if content.lstrip()[:1] == b"<" else "no JSON"
        raise BadReplyError(
            f"the reply is {kind}; is this the address of a chat server?" if content.strip() else "the reply is empty",
            empty=not content.strip(),
        ) from None
    try:
        choice = value["choices"][0]
        message = choice["message"]
        text = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadReplyError("the reply has no choices[0].message") from None
    if text is not None and not isinstance(text, str):
        raise BadReplyError("choices[0].message.content is not a text")
    if not encodable(message):
        raise BadReplyError("the reply holds half a character (an unpaired surrogate)")
    said, thinking = split_thinking(text or "")
    for name in ("reasoning_content", "reasoning"):
        if thinking is None and isinstance(message.get(name), str) and message[name].strip():
            thinking = message[name].strip()
    reason = choice.get("finish_reason")
    if not said:
        cut = "; it was cut at max_tokens" if reason == "length" else ""
        raise BadReplyError(f"the model {'only thought' if thinking else 'said nothing'}{cut}", empty=True)
    usage = value.get("usage")
    first = None if thinking else first_token(choice)
    return {
        "text": said,
        "thinking": thinking,
        "finish_reason": reason if isinstance(reason, str) else None,
        "model": value["model"] if isinstance(value.get("model"), str) else None,
        "usage": {
            name: usage[name]
            for name in ("prompt_tokens", "completion_tokens")
            if isinstance(usage, dict) and type(usage.get(name)) is int
        },
        "first_token": first,
    }


def first_token(choice: dict[str, Any]) -> tuple[tuple[str, float], ...] | None:
    """The likeliest first tokens with their log probabilities, as servers of the OpenAI protocol give them when asked
    with `logprobs` and `top_logprobs`; None for anything that is not such a list."""
    try:
        found = [(one["token"], float(one["logprob"])) for one in choice["logprobs"]["content"][0]["top_logprobs"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    fine = all(isinstance(token, str) and value <= 1e-3 for token, value in found)  # written so that NaN fails
    return tuple(found) if found and fine else None


def error_fields(content: bytes) -> tuple[str | None, str | None]:
    """(code or type, parameter) of an error body where they are plain identifiers; its prose is never used."""
    try:
        error = json.loads(content)["error"]
        found = [error.get(name) for name in ("code", "type", "param")]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None, None
    code, kind, param = (v if isinstance(v, str) and IDENTIFIER.fullmatch(v) else None for v in found)
    return code or kind, param


# How servers say that prompt and reply do not fit (OpenAI and vLLM, vLLM since 0.11, SGLang, llama.cpp). Only the
# fact and a number are taken from their prose.
CONTEXT_WORDS = re.compile(r"context[ _]length|context[ _]size|context window|max_model_len", re.IGNORECASE)
CONTEXT_NUMBER = re.compile(
    r"(?:context length (?:is|of)|max_model_len\D{0,3}|context length \(|context size \(|n_ctx\D{0,4})\s*(\d{2,9})",
    re.IGNORECASE,
)
CONTEXT_FIELDS = ("max_model_len", "context_length", "max_context_length", "context_window", "n_ctx")


def context_fault(content: bytes) -> str | None:
    """What an error body says of a context that is too short, in our words; None when it is about something else."""
    if not CONTEXT_WORDS.search(content.decode("utf-8", "replace")[:4000]):
        return None
    found = CONTEXT_NUMBER.search(content.decode("utf-8", "replace")[:4000])
    stated = f" of {found[1]} tokens" if found else ""
    return f"prompt and reply do not fit into the server's context{stated}"


def listed_models(content: bytes) -> dict[str, int | None]:
    """Model name → context length in tokens (None: not stated) from the bytes of GET /models; {} if it is no list."""
    try:
        entries = json.loads(content)["data"]
        # llama.cpp keeps its figures a level deeper; its n_ctx_train is the model's, not the server's, so not read.
        return {
            entry["id"]: next(
                (
                    place[name]
                    for place in (entry, entry.get("meta"))
                    if isinstance(place, dict)
                    for name in CONTEXT_FIELDS
                    if type(place.get(name)) is int and place[name] > 0
                ),
                None,
            )
            for entry in entries
            if isinstance(entry.get("id"), str)
        }
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks to wait, at least 0; None without one, or when it says neither a
    number of seconds nor a date (RFC 9110, 10.2.3). `now` is in seconds since 1970."""
    if header is None:
        return None
    header = header.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", header):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
