"""Simulation with servers, files and a person as models; the engine in which every dialogue goes its own way."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from data_prep.errors import UserError
from data_prep.records import dump_line, write_records
from eval.chat_models import load_chat_model
from eval.chat_models.base import Sampling
from eval.chat_models.options import ModelOptions
from eval.cli_simulate import simulate as command
from eval.runs import EndReason, load_run
from eval.simulate import SimulationSettings, simulate
from eval.simulate_async import simulate_one_by_one
from tests.eval.test_simulate import MAIN, card, some_cards, without_time
from tests.openai_server import CUT, HTML, Fault, OpenAIServer, completion, rate_limited, talk

SETTINGS = SimulationSettings(rounds=3, samples=2, batch_size=4, seed=3)
KILLS = int(os.environ.get("ESCKIT_TEST_KILLS", "2"))  # 20 by hand now and then
app = typer.Typer()
app.command()(command)


@pytest.fixture
def servers():
    """A server for the seeker and another for the supporter, whose replies follow from the request alone."""
    listed = [{"id": "m", "max_model_len": 100_000}]
    with OpenAIServer(talk, models=listed, delay=0.002) as seeker, OpenAIServer(talk, models=listed) as supporter:
        yield seeker, supporter


def model_of(server, **options):
    return load_chat_model(f"openai:m@{server.url}", options=ModelOptions(**options))


def one_by_one(cards, seeker, supporter, settings=SETTINGS, **options):
    made = []
    simulate_one_by_one(cards, seeker, supporter, settings, made.append, **options)
    return sorted(made, key=lambda transcript: transcript.key)


def test_both_engines_make_the_same_records(servers):
    cards = some_cards(7)
    told = []
    free = one_by_one(cards, *map(model_of, servers), seeker_name="s", on_turns=told.append)
    in_step = [made for batch in simulate(cards, *map(model_of, servers), SETTINGS, seeker_name="s") for made in batch]
    assert without_time(free) == without_time(sorted(in_step, key=lambda made: made.key))
    assert len(free) == 14
    assert sum(told) == 14 * 2 * 3
    assert {made.end_reason for made in free} == {EndReason.rounds}


def test_what_is_on_its_way_is_bounded_and_done_keys_are_left_out(servers):
    seeker, supporter = (model_of(server, concurrency=3) for server in servers)
    made = one_by_one(some_cards(12), seeker, supporter, done={"c0#0", "c5#1"})
    assert len(made) == 22
    assert not {"c0#0", "c5#1"} & {transcript.key for transcript in made}
    assert all(1 < server.most_at_once <= 3 for server in servers)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (HTML, "error"),
        (Fault(500), "error"),
        (CUT, "error"),
        (Fault(200, completion("")), "empty"),
        (Fault(200, completion("late"), delay=3), "timeout"),
    ],
)
@pytest.mark.parametrize("side", ["seeker", "supporter"])
def test_a_fault_ends_its_own_dialogue_alone(servers, fault, reason, side):
    broken = servers[side == "supporter"]
    broken.fault_when = lambda body: fault if "sick" in str(body["messages"]) and len(body["messages"]) > 3 else None
    cards = [card("well", "fine"), card("ill", "sick")]
    if side == "supporter":  # which sees no card: its second turn fails in every dialogue
        broken.fault_when = lambda body: fault if len(body["messages"]) > 4 else None
    patience = 1 if reason == "timeout" else 60  # a busy machine is no hang
    made = one_by_one(cards, *(model_of(server, attempts=1, timeout=patience) for server in servers))
    ends = {transcript.key: transcript.end_reason.value for transcript in made}
    hurt = f"{side}_{reason}"
    assert ends["ill#0"] == ends["ill#1"] == hurt
    assert ends["well#0"] == ("rounds" if side == "seeker" else hurt)
    turns = next(transcript.turns for transcript in made if transcript.key == "ill#0")
    assert all(turn.text.startswith("I see") for turn in turns[1:])


def test_a_server_that_dies_ends_what_was_under_way_and_begins_nothing_more(servers):
    _, supporter = servers
    models = [model_of(server, attempts=1, concurrency=2) for server in servers]
    made = []

    def finished(transcript):
        made.append(transcript)
        if len(made) == 6:
            supporter.die()

    with pytest.raises(UserError, match=r"nobody answers .* the same command goes on") as caught:
        simulate_one_by_one(some_cards(20), *models, SETTINGS, finished)
    assert "\n" not in str(caught.value)
    assert 6 <= len(made) < 16
    assert {transcript.end_reason.value for transcript in made[:6]} == {"rounds"}
    assert {transcript.end_reason.value for transcript in made[6:]} <= {"supporter_error", "rounds"}


def test_a_record_that_cannot_be_written_stops_the_run_with_its_own_line(servers):
    def full(transcript):
        raise UserError("run/dialogues.jsonl: is the disk full?")

    with pytest.raises(UserError, match="disk full"):
        simulate_one_by_one(some_cards(9), *map(model_of, servers), SETTINGS, full)


# --- the command


def arguments(folder, seeker, supporter, *more):
    options = {"cards": folder / "cards.jsonl", "seeker": seeker, "supporter": supporter, "rounds": 3, "seed": 4}
    return [part for name, value in options.items() for part in (f"--{name}", str(value))] + [*map(str, more)]


@pytest.fixture
def folder(tmp_path):
    write_records(tmp_path / "cards.jsonl", some_cards(40))
    return tmp_path


def invoke(*parts, text=None):
    result = CliRunner().invoke(app, list(parts), input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def lines(path):
    return sorted(dump_line(made) for made in without_time(load_run(path).transcripts()))


def test_killed_at_random_moments_and_gone_on_with_gives_the_same_records(folder, servers):
    names = [f"openai:m@{server.url}" for server in servers]
    assert invoke(*arguments(folder, *names, "--out", folder / "whole")).exit_code == 0
    servers[1].delay = 0.03
    draws, file = random.Random(0), folder / "run" / "dialogues.jsonl"
    parts = arguments(folder, *names, "--out", folder / "run", *["--supporter-set", "concurrency=2"])
    limit = time.monotonic() + 120
    for _ in range(KILLS):
        done = file.read_bytes().count(b"\n") if file.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *parts], cwd=Path(__file__).parents[2],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        while not (file.exists() and file.read_bytes().count(b"\n") >= done + 1):
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.001)
        time.sleep(draws.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(load_run(folder / "run").transcripts()) < 40
    servers[1].delay = 0
    invoke(*parts)
    assert lines(folder / "run") == lines(folder / "whole")
    assert len(lines(folder / "run")) == 40


def test_options_of_each_side_reach_its_server_and_the_manifest(folder, servers):
    (folder / "seeker.yaml").write_text('temperature: 0.1\nmax_new_tokens: 30\nstop: ["\\nHelper:"]\n')
    names = [f"openai:m@{server.url}" for server in servers]
    more = ["--seeker-config", folder / "seeker.yaml", "--supporter-set", "prompt=supporter_plain", "--limit", 2]
    parts = arguments(folder, *names, "--out", folder / "run", *more)
    assert invoke(*parts).exit_code == 0
    seeker, supporter = (server.calls[0].body for server in servers)
    assert (seeker["temperature"], seeker["max_tokens"], seeker["stop"]) == (0.1, 30, ["\nHelper:"])
    assert (supporter["temperature"], supporter["max_tokens"]) == (0.7, 256)
    settings = load_run(folder / "run").settings
    assert settings["simulation"]["seeker_sampling"]["stop"] == ["\nHelper:"]
    assert settings["simulation"]["supporter_prompt"]["name"] == "supporter_plain"
    assert settings["seeker"]["model"]["kind"] == "openai"
    # How many calls run at once changes no record, how long is waited may.
    assert invoke(*parts, "--seeker-set", "concurrency=1").exit_code == 0
    other = CliRunner().invoke(app, [*parts, "--seeker-set", "timeout=1"])
    assert "seeker.model.timeout: 120.0 in the folder, 1.0 now" in str(other.exception)


def test_429_for_a_while_loses_nothing(folder, servers):
    servers[1].inject(*[rate_limited("0.1")] * 12)
    names = [f"openai:m@{server.url}" for server in servers]
    assert invoke(*arguments(folder, *names, "--out", folder / "run", "--limit", 6)).exit_code == 0
    assert {made.end_reason for made in load_run(folder / "run").transcripts()} == {EndReason.rounds}


def test_a_local_model_talks_to_a_server(folder, servers, tiny_model):
    parts = ["--out", folder / "run", "--limit", 3, "--max-new-tokens", 6, "--temperature", 1.0]
    invoke(*arguments(folder, tiny_model, f"openai:m@{servers[1].url}", *parts))
    made = load_run(folder / "run").transcripts()
    assert len(made) == 3
    assert any(turn.text.startswith("I see") for transcript in made for turn in transcript.turns)


def test_an_option_that_a_kind_does_not_have_is_refused(folder, tiny_model):
    parts = arguments(folder, tiny_model, "human", "--out", folder / "run", "--supporter-set", "timeout=3")
    result = CliRunner().invoke(app, parts)
    assert isinstance(result.exception, UserError)
    assert "'timeout' is an option of openai: models" in str(result.exception)


# --- replay and human


def test_a_run_replayed_says_the_same(folder, servers):
    names = [f"openai:m@{server.url}" for server in servers]
    invoke(*arguments(folder, *names, "--out", folder / "run", "--limit", 5, "--samples", 2))
    for shown in ("--greeting-shown", "--greeting-hidden"):
        again = [f"replay:{folder / 'run'}", f"replay:{folder / 'run' / 'dialogues.jsonl'}"]
        out = folder / shown
        assert invoke(*arguments(folder, *again, "--out", out, "--limit", 5, "--samples", 2, shown)).exit_code == 0
        words = [
            {made.key: [turn.text for turn in made.turns] for made in load_run(run).transcripts()}
            for run in (folder / "run", out)
        ]
        assert words[0] == words[1]
    more = ["--out", folder / "long", "--limit", 6, "--rounds", 4]
    assert invoke(*arguments(folder, *again, *more)).exit_code == 1
    ends = {made.key: (made.end_reason.value, made.detail) for made in load_run(folder / "long").transcripts()}
    assert ends["c0#0"] == ("seeker_error", "dialogues.jsonl: the seeker answers 3 times here")
    assert ends["c5#0"][1] == "dialogues.jsonl holds no dialogue of this key or card"


def test_dialogues_and_official_transcripts_are_replayed_by_card(tmp_path):
    from data_prep.official import write_transcripts

    cards = [card("c0"), card("c1", "我睡不着", "zh")]
    base = {"source": "made", "language": "en"}
    dialogues = [
        {**base, "id": f"d{index}", "card": json.loads(dump_line(one)), "turns": [
            {"speaker": "supporter", "text": "Hi"}, {"speaker": "seeker", "text": f"说{index}"},
            {"speaker": "supporter", "text": f"a{index}"},
        ]} for index, one in enumerate(cards)
    ]  # fmt: skip
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in dialogues))
    model = load_chat_model(f"replay:{file}")
    settings = SimulationSettings(rounds=1)
    assert [[t.text for t in made.turns[1:]] for made in one_by_one(cards, model, model, settings)] == [
        ["说0", "a0"],
        ["说1", "a1"],
    ]
    from data_prep.records import Dialogue, read_records

    write_transcripts(tmp_path / "t.json", read_records(file, Dialogue))
    official = load_chat_model(f"replay:{tmp_path / 't.json'}")
    assert any(turn.text == "a1" for turns in official._said.values() for turn in turns)


def test_a_person_is_shown_the_card_and_answers_line_by_line(folder, servers):
    parts = arguments(folder, "human", f"openai:m@{servers[1].url}", "--out", folder / "run", "--limit", 2)
    typed = "\n  I feel \x1b[1m down \nyes\nno\nsecond\n"
    result = CliRunner().invoke(app, parts, input=typed)
    assert isinstance(result.exception, UserError)
    assert "the input ended; finished dialogues are kept" in str(result.exception)
    [made] = load_run(folder / "run").transcripts()
    assert [turn.text for turn in made.turns if turn.speaker == "seeker"] == ["I feel \x1b[1m down", "yes", "no"]
    assert made.card.as_text().splitlines()[-1] in result.output
    assert invoke(*parts, text="a\nb\nc\n").exit_code == 0
    assert len(load_run(folder / "run").transcripts()) == 2


def test_a_stop_string_ends_a_local_reply(tiny_model):
    from eval.chat_models.base import Request

    model = load_chat_model(str(tiny_model))
    request = [Request("c/seeker", [{"role": "user", "content": "hello"}], 1)]
    [whole] = model.reply(request, Sampling(max_new_tokens=20, temperature=0))
    stop = whole.text[len(whole.text) // 2 :][:2]
    model.forget()
    [cut] = model.reply(request, Sampling(max_new_tokens=20, temperature=0, stop=("never so", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)].strip()
    assert cut.finish == "stop"
