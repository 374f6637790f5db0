"""A real local HTTP server that speaks the OpenAI chat protocol, for tests: scripted, faulty on demand, counting.

    with OpenAIServer(reply=lambda body: "hello") as server:
        ...  # call server.url, then look at server.calls

`reply` makes the text (or the bytes of a whole completion) from a request's body. Faults given to `inject` are
served first, one a call, whatever is asked; `fault_when` decides by request. By hand: python -m tests.openai_server,
which answers the role-card prompts.
"""

import hashlib
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call: status, headers and bytes as they are, after `delay` seconds. With `cut` the
    connection is closed without an answer."""

    status: int = 500
    content: bytes = b'{"error": {"message": "made to fail", "type": "server_error"}}'
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False


def rate_limited(retry_after: str | None = None) -> Fault:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Fault(429, b'{"error": {"message": "slow down", "type": "requests"}}', headers)


def completion(text: str | None, finish_reason: str = "stop", usage: tuple[int, int] = (7, 3), **message: Any) -> bytes:
    """The bytes of a completion; `usage` counts the tokens of prompt and reply."""
    content = {
        "id": "made",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)},
    }
    return json.dumps(content).encode()


SERVER_ERROR = Fault()
EMPTY = Fault(200, completion(""))
NOTHING = Fault(200, b"")
HTML = Fault(200, b"<html><body>gateway</body></html>", {"Content-Type": "text/html"})
NOT_JSON = Fault(200, b'{"choices": [')
CUT = Fault(cut=True)


def context_exceeded(limit: int = 4096) -> Fault:
    """What vLLM answers to a prompt that is too long."""
    message = f"This model's maximum context length is {limit} tokens. However, you requested more."
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return Fault(400, json.dumps({"error": error}).encode())


@dataclass(frozen=True)
class Call:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: Body
    at: float
    """time.monotonic() at its arrival."""


def asked(body: Body) -> str:
    """The first user message."""
    return next(message["content"] for message in body["messages"] if message["role"] == "user")


class OpenAIServer:
    """Use as a context manager; `calls` holds every request, `most_at_once` the highest number in flight."""

    def __init__(
        self,
        reply: Callable[[Body], str | bytes] = lambda body: "hello",
        *,
        fault_when: Callable[[Body], Fault | None] = lambda body: None,
        delay: float = 0.0,
        takes_schema: bool = True,
        slots: int | None = None,
        models: list[dict[str, Any]] | None = None,
        port: int = 0,
    ) -> None:
        """`slots`: calls answered at a time, others wait (None: all at once); `models`: what GET /models lists (None:
        404); `port`: 0 takes a free one."""
        self.reply = reply
        self.fault_when = fault_when
        self.delay = delay
        self.takes_schema = takes_schema
        self.models = models
        self.port = port
        self.dead = False
        self._slots = threading.Semaphore(slots or 10_000)
        self.calls: list[Call] = []
        self.most_at_once = 0
        self._now = 0
        self._faults: deque[Fault] = deque()
        self._lock = threading.Lock()

    def inject(self, *faults: Fault) -> None:
        with self._lock:
            self._faults.extend(faults)

    def die(self) -> None:
        """From now on every connection is closed without an answer and new ones are refused."""
        self.dead = True
        self._server.shutdown()
        self._server.server_close()

    def counts(self) -> Counter[str]:
        """How often each text was asked, by the first user message."""
        with self._lock:
            return Counter(asked(call.body) for call in self.calls)

    def __enter__(self) -> "OpenAIServer":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._serve(self)

            def do_GET(self) -> None:
                outer._list(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass  # clients that time out hang up

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.dead:
            self.die()

    def _list(self, request: BaseHTTPRequestHandler) -> None:
        content = json.dumps({"object": "list", "data": self.models or []}).encode()
        _answer(request, Fault(404 if self.models is None else 200, content))

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        with self._lock:
            self.calls.append(Call(request.path, dict(request.headers), body, time.monotonic()))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            fault = self._faults.popleft() if self._faults else None
        try:
            answer = fault or self.fault_when(body) or self._refuses_schema(body)
            if answer is None:
                said = self.reply(body)
                content = said if isinstance(said, bytes) else completion(said)
                answer = Fault(200, content, delay=self.delay)
            with self._slots:
                time.sleep(answer.delay)
        finally:
            with self._lock:
                self._now -= 1
        if answer.cut or self.dead:
            request.close_connection = True
            return
        _answer(request, answer)

    def _refuses_schema(self, body: Body) -> Fault | None:
        if self.takes_schema or "response_format" not in body:
            return None
        return Fault(400, b'{"error": {"message": "unsupported", "type": "invalid_request_error"}}')


def _answer(request: BaseHTTPRequestHandler, answer: Fault) -> None:
    request.send_response(answer.status)
    for name, value in {"Content-Type": "application/json", **answer.headers}.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(answer.content)))
    request.end_headers()
    request.wfile.write(answer.content)


def talk(body: Body) -> str:
    """A reply that follows from the whole request, as a model's with a fixed seed does."""
    seen = json.dumps([body["messages"], body.get("seed")], ensure_ascii=False)
    return f"I see {hashlib.sha256(seen.encode()).hexdigest()[:12]}，{len(body['messages'])} 句。"


def card_replies(body: Body) -> str:
    """Plausible answers to the three role-card prompts; the material must be JSON."""
    material = json.loads(asked(body))
    names = set(body.get("response_format", {}).get("json_schema", {}).get("schema", {}).get("properties", {}))
    if "conversation" in material:
        texts = [turn["text"] for turn in material["conversation"] if turn["speaker"] == "seeker"]
        problem = " ".join(" ".join([material.get("situation", ""), *texts]).split())[:300]
        return json.dumps({"age": "30", "gender": None, "occupation": "Not mentioned", "problem": problem})
    if "category" in names or '"category"' in body["messages"][0]["content"]:
        system = body["messages"][0]["content"]
        path = next(line for line in system.splitlines() if line.count("/") == 2).partition(":")[0]
        return json.dumps({"category": path})
    return json.dumps({"reason": "there is enough to talk about", "keep": True})


if __name__ == "__main__":
    with OpenAIServer(card_replies) as by_hand:
        print(by_hand.url, flush=True)
        threading.Event().wait()
