"""Chat models behind a URL: over real HTTP on this machine, with servers that fail in every way."""

import asyncio
import json

import pytest

from data_prep.endpoint_places import Places
from data_prep.errors import UserError
from eval.chat_models import load_chat_model, parse_spec
from eval.chat_models.base import Request, Sampling
from eval.chat_models.options import ModelOptions, read_options
from tests.openai_server import (
    CUT,
    EMPTY,
    HTML,
    NOT_JSON,
    SERVER_ERROR,
    Fault,
    OpenAIServer,
    completion,
    context_exceeded,
    rate_limited,
)

SAMPLING = Sampling(max_new_tokens=20, temperature=0.5, top_p=0.9)
HELLO = ({"role": "system", "content": "be kind"}, {"role": "user", "content": "我睡不着 <|im_end|> \ud83d"})


def ask(server, times=1, sampling=SAMPLING, say=lambda remark: None, conversation=None, **options):
    model = load_chat_model(f"openai:m@{server.url}", options=ModelOptions(**options), say=say)
    requests = [Request(conversation or f"c{index}/seeker", HELLO, 2**62 + index) for index in range(times)]
    return model.reply(requests, sampling)


def test_what_is_sent_and_what_comes_back():
    said = completion("<think>hm</think> 我在听。STOP and more", usage=(11, 5))
    with OpenAIServer(lambda body: said, models=[{"id": "m", "max_model_len": 4096}]) as server:
        model = load_chat_model(
            f"openai:m@{server.url}",
            options=ModelOptions(reasoning="off", extra={"chat_template_kwargs": {"a": 1}, "top_k": 3}),
        )
        [reply] = model.reply([Request("c/seeker", HELLO, 2**62 + 5)], SAMPLING.model_copy(update={"stop": ("STOP",)}))
        body = server.calls[0].body
    assert (reply.text, reply.thinking, reply.finish) == ("我在听。", "hm", "stop")
    assert (reply.prompt_tokens, reply.new_tokens, model.stats.generated) == (11, 5, 5)
    assert reply.seconds > 0
    assert body == {
        "model": "m", "messages": list(HELLO), "temperature": 0.5, "max_tokens": 20, "top_p": 0.9, "seed": 5,
        "stop": ["STOP"], "top_k": 3, "chat_template_kwargs": {"a": 1, "enable_thinking": False},
    }  # fmt: skip
    assert model.describe()["context_length"] == model.context_length == 4096


@pytest.mark.parametrize(
    ("fault", "failure", "part"),
    [
        (SERVER_ERROR, "error", "HTTP 500"),
        (HTML, "error", "HTML"),
        (NOT_JSON, "error", "no JSON"),
        (CUT, "error", "connection broke"),
        (EMPTY, "empty", "said nothing"),
        (Fault(200, completion("<think>for ever", "length")), "empty", "only thought; it was cut"),
        (Fault(200, completion("x"), delay=2), "timeout", "no complete reply within 0.3 s"),
        (rate_limited(), "error", "HTTP 429"),
        (context_exceeded(2048), "context_full", "context of 2048 tokens"),
        (Fault(200, completion("half a sen", "length", usage=(30, 4))), "context_full", "cut the reply after 4 of 20"),
    ],
)
def test_a_fault_is_a_failure_and_never_words(fault, failure, part):
    with OpenAIServer(fault_when=lambda body: fault) as server:
        # A busy machine is no hang: only the test of a hang is impatient.
        [reply] = ask(server, attempts=1, timeout=0.3 if failure == "timeout" else 60)
    assert (reply.failure, reply.text, reply.finish) == (failure, "", None)
    assert part in reply.detail
    assert "made to fail" not in reply.detail


def test_a_prompt_that_cannot_fit_is_not_sent_and_one_that_did_not_fit_is_not_believed():
    with OpenAIServer(
        lambda body: completion("ok", usage=(90, 5)), models=[{"id": "m", "context_length": 100}]
    ) as server:
        [reply] = ask(server)
        assert (reply.failure, reply.detail) == ("context_full", "90 prompt tokens and 20 new ones exceed 100")
        model = load_chat_model(f"openai:m@{server.url}")
        for _ in range(2):
            [reply] = model.reply([Request("c/seeker", HELLO, 1)], SAMPLING)
            assert reply.failure == "context_full"
    assert len(server.calls) == 2  # the second request of the conversation could not be shorter than the first


def test_a_server_that_cuts_prompts_is_told():
    said, counts = [], iter([50, 30])
    with OpenAIServer(lambda body: completion("ok", usage=(next(counts), 5))) as server:
        model = load_chat_model(f"openai:m@{server.url}", say=said.append)
        for _ in range(2):
            assert model.reply([Request("c/seeker", HELLO, 1)], SAMPLING)[0].text == "ok"
    assert len(said) == 1
    assert "cuts prompts" in said[0]


def test_429_is_waited_out_and_halves_the_calls_at_once():
    with OpenAIServer(delay=0.02) as server:
        model = load_chat_model(f"openai:m@{server.url}", options=ModelOptions(concurrency=8))
        server.inject(*[rate_limited("0.2")] * 8)
        replies = model.reply([Request(f"c{index}/seeker", HELLO, 1) for index in range(8)], SAMPLING)
        assert [reply.text for reply in replies] == ["hello"] * 8
        first, later = server.calls[:8], server.calls[8:]
        assert later[0].at - first[0].at >= 0.2
        # Eight refusals at once are one sign: 8 → 4, and eight good calls later it has begun to grow.
        assert 4 < model._client.places.limit < 8


def test_places_shrink_once_a_burst_grow_slowly_and_are_not_lost_when_a_call_is_stopped():
    async def run():
        places, most, now = Places(4), 0, 0

        async def call(seconds=0.005):
            nonlocal most, now
            async with places:
                now += 1
                most = max(most, now)
                await asyncio.sleep(seconds)
                now -= 1

        await asyncio.gather(*(call() for _ in range(20)))
        assert most == 4
        places.shrink(0)
        places.shrink(0)
        assert places.limit == 2
        most = 0
        calls = [asyncio.create_task(call()) for _ in range(20)]
        await asyncio.sleep(0.001)
        for stopped in calls[5:15]:
            stopped.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert most == 2
        for good, limit in [(1, 2), (1, 3), (2, 3), (1, 4), (50, 4)]:
            for _ in range(good):
                places.grow()
            assert places.limit == limit
        most = 0
        await asyncio.wait_for(asyncio.gather(*(call() for _ in range(8))), 5)
        assert most == 4
        for _ in range(9):
            places.shrink(places.generation)
        assert places.limit == 1

    asyncio.run(run())


def test_a_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("MADE_KEY", "sk-made-nobody-may-read")
    with OpenAIServer(fault_when=lambda body: Fault(500, b"sk-made-nobody-may-read")) as server:
        model = load_chat_model(f"openai:m@{server.url}", options=ModelOptions(key_variable="MADE_KEY", attempts=1))
        [reply] = model.reply([Request("c/seeker", HELLO, 1)], SAMPLING)
        assert server.calls[0].headers["Authorization"] == "Bearer sk-made-nobody-may-read"
    assert "sk-made" not in json.dumps(model.describe()) + str(reply)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("openai:gpt", "openai:MODEL@URL"),
        ("openai:m@ftp://x", "openai:MODEL@URL"),
        ("openai:m@http://user:secret@host/v1", "holds a user"),
        ("openai:m@http://host/v1?key=secret", "holds a user, a query"),
        ("openai:m@http://127.0.0.1:9/v1", "nobody answers at 127.0.0.1:9"),
        ("replay:/nowhere", "file not found"),
    ],
)
def test_a_wrong_name_or_a_dead_server_is_one_line(spec, part):
    with pytest.raises(UserError) as caught:
        load_chat_model(spec)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_where_weights_are_needed_a_server_is_refused():
    with pytest.raises(UserError, match="weights on this machine"):
        parse_spec("openai:m@http://host/v1")


def test_options_come_from_a_file_and_the_command_line_goes_before_it(tmp_path):
    file = tmp_path / "o.yaml"
    file.write_text("temperature: 0.2\nstop: ['User:', '求助者：']\nextra: {top_k: 3}\n", encoding="utf-8")
    options = read_options(file, ["temperature=0", "timeout=5"])
    assert options.sampling(SAMPLING) == Sampling(
        max_new_tokens=20, temperature=0, top_p=0.9, stop=("User:", "求助者：")
    )
    assert (options.timeout, options.extra) == (5, {"top_k": 3})


@pytest.mark.parametrize(
    ("text", "settings", "part"),
    [
        ("temprature: 1", [], "unknown option 'temprature'; did you mean 'temperature'?"),
        ("temperature: hot", [], "o.yaml: temperature: found str"),
        ("temperature: .nan", [], "temperature"),
        ("[1, 2]", [], "is no list of options"),
        ("a: [", [], "is not valid YAML"),
        ("stop: ['']", [], "must not be empty"),
        ("extra: {model: x}", [], "extra sets 'model'"),
        ("", ["temperature"], "write KEY=VALUE"),
        ("", ["top_p=2"], "--set: top_p"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, text, settings, part):
    file = tmp_path / "o.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_options(file, settings)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
