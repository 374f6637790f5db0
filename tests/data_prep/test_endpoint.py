import asyncio
import json
import logging
import time
from email.utils import formatdate

import pytest

from data_prep.endpoint import ChatClient
from data_prep.endpoint_reply import retry_after_seconds, split_thinking
from data_prep.endpoint_terms import Clock, Endpoint, Failure, Reply, Sampling
from data_prep.errors import UserError
from tests.openai_server import (
    CUT,
    EMPTY,
    HTML,
    NOT_JSON,
    NOTHING,
    SERVER_ERROR,
    Fault,
    OpenAIServer,
    completion,
    rate_limited,
)

KEY = "sk-made-0123456789-nobody-may-read"
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"title": "reply", "type": "object", "properties": {"a": {"type": "string"}}}


class FakeClock:
    """Time that passes only by sleeping."""

    def __init__(self, now=1_700_000_000.0):
        self.time = now
        self.slept = []

    def clock(self):
        async def sleep(seconds):
            self.slept.append(seconds)
            self.time += seconds

        return Clock(now=lambda: self.time, ticks=lambda: self.time, sleep=sleep)


def chat(server, *, messages=HELLO, times=1, at_once=False, fake=None, schema=None, say=lambda remark: None, **changes):
    """The outcomes of `times` calls to the server."""
    sampling = changes.pop("sampling", Sampling())
    endpoint = Endpoint(**{"url": server.url, "model": "m", "timeout": 5, "first_wait": 0.01, **changes})

    async def run():
        clock = fake.clock() if fake else None
        async with ChatClient(endpoint, say=say, clock=clock) as client:
            calls = [lambda: client.chat(messages, sampling, schema)] * times
            if at_once:
                return list(await asyncio.gather(*(call() for call in calls)))
            return [await call() for call in calls]

    return asyncio.run(run())


def test_a_reply_with_what_was_sent():
    with OpenAIServer(lambda body: f"you said {body['messages'][0]['content']}") as server:
        (reply,) = chat(server, sampling=Sampling(temperature=0.5, max_tokens=9, seed=3, stop=("x",)))
    assert reply == Reply(
        text="you said hi",
        finish_reason="stop",
        model="served-model",
        usage={"prompt_tokens": 7, "completion_tokens": 3},
    )
    (call,) = server.calls
    assert call.path == "/v1/chat/completions"
    assert call.body == {"model": "m", "messages": HELLO, "temperature": 0.5, "max_tokens": 9, "seed": 3, "stop": ["x"]}
    assert "Authorization" not in call.headers


def test_any_text_arrives_as_it_is():
    text = '"\\ \ud800 \U0001f600 <|im_end|> \x00 \u2028 你好'
    with OpenAIServer(lambda body: body["messages"][0]["content"].replace("\ud800", "")) as server:
        (reply,) = chat(server, messages=[{"role": "user", "content": text}])
    assert server.calls[0].body["messages"][0]["content"] == text
    assert reply.text == text.replace("\ud800", "").strip()


@pytest.mark.parametrize(
    "fault", [SERVER_ERROR, Fault(503), Fault(529), EMPTY, NOTHING, HTML, NOT_JSON, CUT, rate_limited()]
)
def test_a_passing_fault_is_retried(fault):
    with OpenAIServer() as server:
        server.inject(fault, fault)
        (reply,) = chat(server)
    assert (reply.text, reply.attempts, len(server.calls)) == ("hello", 3, 3)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (SERVER_ERROR, "server_error"),
        (CUT, "server_error"),
        (rate_limited(), "rate_limited"),
        (EMPTY, "empty"),
        (NOTHING, "empty"),
        (Fault(200, completion(None)), "empty"),
        (Fault(200, completion("<think>for ever", "length")), "empty"),
        (HTML, "bad_reply"),
        (NOT_JSON, "bad_reply"),
        (Fault(200, b"[]"), "bad_reply"),
        (Fault(200, b'{"choices": []}'), "bad_reply"),
        (Fault(200, b'{"choices": [{"message": {"content": 5}}]}'), "bad_reply"),
        (Fault(200, b'{"error": {"message": "hello"}}'), "bad_reply"),
        (Fault(200, b'{"choices": [{"message": {"content": "\\ud800"}}]}'), "bad_reply"),
        (Fault(200, b"[" * 100_000), "bad_reply"),
    ],
)
def test_a_lasting_fault_is_a_failure_with_its_kind(fault, kind):
    with OpenAIServer() as server:
        server.inject(*[fault] * 3)
        (failure,) = chat(server, attempts=3)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.attempts, len(server.calls)) == (kind, 3, 3)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(401), "auth"),
        (Fault(403), "auth"),
        (Fault(400), "bad_request"),
        (Fault(404), "bad_request"),
        (Fault(307, headers={"Location": "http://127.0.0.1:1/"}), "bad_reply"),
        (Fault(429, b'{"error": {"code": "insufficient_quota"}}'), "rate_limited"),
    ],
)
def test_what_will_not_pass_is_not_retried(fault, kind):
    with OpenAIServer() as server:
        server.inject(fault)
        (failure,) = chat(server)
    assert (failure.kind, len(server.calls)) == (kind, 1)


def test_without_access_later_calls_end_at_once():
    with OpenAIServer() as server:
        server.inject(Fault(401))
        outcomes = chat(server, times=3)
    assert [outcome.kind for outcome in outcomes] == ["auth"] * 3
    assert len(server.calls) == 1


def test_a_time_out_counts_from_the_start_of_the_request():
    with OpenAIServer(delay=0.3) as server:
        replies = chat(server, times=4, at_once=True, concurrency=1, timeout=0.9)
        assert all(isinstance(reply, Reply) for reply in replies), "waiting for a place must not count"
        server.delay = 2.0
        start = time.monotonic()
        (failure,) = chat(server, timeout=0.3, attempts=2)
        assert time.monotonic() - start < 1.5
    assert (failure.kind, failure.attempts) == ("timeout", 2)


def test_a_server_that_trickles_is_timed_out():
    async def run():
        async def trickle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(100):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)

        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", "m", timeout=0.3, attempts=1)
        async with ChatClient(endpoint) as client:
            return await client.chat(HELLO)

    assert asyncio.run(run()).kind == "timeout"


def test_nobody_there_ends_the_run():
    with OpenAIServer() as server:
        pass
    outcomes = chat(server, times=3, attempts=2)
    assert [(outcome.kind, outcome.attempts) for outcome in outcomes] == [
        ("refused_connection", 2),
        ("refused_connection", 0),
        ("refused_connection", 0),
    ]


def test_waiting_for_a_server_that_is_not_there_is_said_once():
    with OpenAIServer() as server:
        pass
    told = []
    chat(server, times=3, attempts=3, at_once=True, say=told.append)
    assert len(told) == 1
    assert "nobody answers at 127.0.0.1" in told[0]
    assert "trying 3 times (--attempts)" in told[0]


def test_never_more_at_once_than_allowed():
    with OpenAIServer(delay=0.05) as server:
        replies = chat(server, times=20, at_once=True, concurrency=3)
    assert len(replies) == 20
    assert server.most_at_once == 3


# ---- waiting


def test_back_off_doubles_with_jitter_and_is_repeatable():
    slept = []
    for _ in range(2):
        fake = FakeClock()
        with OpenAIServer() as server:
            server.inject(*[SERVER_ERROR] * 6)
            chat(server, fake=fake, attempts=7, first_wait=1, longest_wait=8)
        slept.append(fake.slept)
    assert slept[0] == slept[1]
    for seconds, span in zip(slept[0], (1, 2, 4, 8, 8, 8), strict=True):
        assert span / 2 <= seconds <= span
    assert len({seconds / span for seconds, span in zip(slept[0], (1, 2, 4, 8, 8, 8), strict=True)}) == 6


@pytest.mark.parametrize("header", ["7", formatdate(1_700_000_007, usegmt=True)])
def test_retry_after_is_waited_for(header):
    fake = FakeClock()
    with OpenAIServer() as server:
        server.inject(rate_limited(header))
        (reply,) = chat(server, fake=fake)
    assert reply.attempts == 2
    assert fake.slept == [7]


def test_retry_after_holds_for_all_calls():
    with OpenAIServer() as server:
        server.inject(rate_limited("1"))
        chat(server, times=6, at_once=True, concurrency=1)
    first, *others = [call.at for call in server.calls]
    assert len(others) == 6
    assert min(others) - first >= 0.95


def test_a_retry_after_of_hours_is_told_not_slept():
    fake = FakeClock()
    with OpenAIServer() as server:
        server.inject(rate_limited("7200"))
        outcomes = chat(server, fake=fake, times=2)
    assert [outcome.kind for outcome in outcomes] == ["rate_limited"] * 2
    assert "7200 s" in str(outcomes[0])
    assert (fake.slept, len(server.calls)) == ([], 1)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3),
        ("0", 0),
        ("1.5", 1.5),
        ("soon", None),
        ("-4", None),
        ("", None),
        ("nan", None),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("32 Foo 2023", None),
    ],
)
def test_retry_after_forms(header, seconds):
    assert retry_after_seconds(header, 1_700_000_000) == seconds


# ---- what servers differ in


def test_a_schema_is_sent_where_it_is_taken():
    with OpenAIServer() as server:
        (reply,) = chat(server, schema=SCHEMA)
    assert reply.schema_used
    assert server.calls[0].body["response_format"]["json_schema"]["schema"] == SCHEMA


def test_a_schema_is_dropped_and_said_once_where_it_is_not():
    said = []
    with OpenAIServer(takes_schema=False) as server:
        replies = chat(server, times=4, schema=SCHEMA, say=said.append)
    assert [(reply.text, reply.schema_used) for reply in replies] == [("hello", False)] * 4
    assert len(said) == 1
    assert ["response_format" in call.body for call in server.calls] == [True, False, False, False, False]


def test_a_400_for_another_reason_keeps_the_schema():
    said = []
    with OpenAIServer() as server:
        server.inject(Fault(400), Fault(400))
        failure, reply = chat(server, times=2, schema=SCHEMA, say=said.append)
    assert failure.kind == "bad_request"
    assert reply.schema_used
    assert said == []


def test_the_newer_name_of_the_token_limit():
    def refuses(body):
        error = {
            "message": "no",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "unsupported_parameter",
        }
        return Fault(400, json.dumps({"error": error}).encode()) if "max_tokens" in body else None

    said = []
    with OpenAIServer(fault_when=refuses) as server:
        replies = chat(server, times=5, at_once=True, concurrency=3, sampling=Sampling(max_tokens=5), say=said.append)
        replies += chat(server, times=2, sampling=Sampling(max_tokens=5))
    assert [reply.text for reply in replies] == ["hello"] * 7
    assert [call.body.get("max_completion_tokens") for call in server.calls[-3:]] == [None, 5, 5]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ("plain", None)),
        ("<think>a\nb</think>\n\nsaid", ("said", "a\nb")),
        ("<think></think>said", ("said", None)),
        ("thought</think>said", ("said", "thought")),
        ("<think>never closed", ("", "never closed")),
        ('{"a": "</think>"}', ('{"a": "</think>"}', None)),
        ("I said <think> once", ("I said <think> once", None)),
    ],
)
def test_thinking_is_kept_apart(text, expected):
    assert split_thinking(text) == expected


def test_thinking_in_a_field_of_its_own():
    with OpenAIServer() as server:
        server.inject(Fault(200, completion("said", reasoning_content="thought")))
        (reply,) = chat(server)
    assert (reply.text, reply.thinking) == ("said", "thought")


# ---- secrets


def test_the_key_is_sent_and_shown_nowhere(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    echo = json.dumps({"error": {"message": f"bad key {KEY}", "code": KEY, "param": KEY}}).encode()
    said, shown = [], []
    with OpenAIServer() as server:
        shown += chat(server, say=said.append)
        for status in (400, 401, 404, 429, 500):
            server.inject(*[Fault(status, echo)] * 2)
            shown += chat(server, say=said.append, attempts=2)
    assert {call.headers["Authorization"] for call in server.calls} == {f"Bearer {KEY}"}
    assert len(shown) == 6
    assert KEY not in repr(shown) + repr(said) + caplog.text
    assert KEY not in repr(ChatClient(Endpoint("http://localhost/v1", "m")).__dict__)


def test_the_key_comes_from_the_named_variable(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("MY_KEY", KEY)
    with OpenAIServer() as server:
        chat(server, key_variable="MY_KEY")
    assert server.calls[0].headers["Authorization"] == f"Bearer {KEY}"


def test_what_is_no_key_is_told_without_it(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\nX-Other: 1")
    with OpenAIServer() as server, pytest.raises(UserError) as told:
        chat(server)
    assert KEY not in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://host/v1",
        "http://",
        f"http://me:{KEY}@host/v1",
        f"https://host/v1?key={KEY}",
        "http://[::1/v1",
        "http://host:99999/v1",
        "http://host:0x/v1",
    ],
)
def test_addresses_that_are_none(url):
    with pytest.raises(UserError, match=r"^--endpoint: ") as told:
        Endpoint(url, "m")
    assert KEY not in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "changes", [{"model": " "}, {"concurrency": 0}, {"attempts": 0}, {"timeout": 0}, {"timeout": float("nan")}]
)
def test_settings_that_are_none(changes):
    with pytest.raises(UserError):
        Endpoint(**{"url": "http://localhost/v1", "model": "m", **changes})


def test_either_form_of_the_address():
    assert Endpoint("http://h/v1/", "m").address() == "http://h/v1/chat/completions"
    assert Endpoint("http://h/v1/chat/completions", "m").address() == "http://h/v1/chat/completions"
