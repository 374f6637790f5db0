"""Two servers on localhost, each with a real small model behind HTTP: shards joined are one run; faults made again."""

import threading
import time

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.records import write_records
from eval.chat_models import load_chat_model
from eval.chat_models.base import Request, Sampling
from eval.runs import load_run
from tests.eval.test_simulate import some_cards
from tests.openai_server import OpenAIServer


def serve(model_folder):
    """A server that answers with this model; one generation at a time, as the model is one."""
    model, lock = load_chat_model(f"hf:{model_folder}"), threading.Lock()

    def reply(body):
        how = Sampling(max_new_tokens=body["max_tokens"], temperature=body["temperature"], top_p=body.get("top_p", 1.0))
        with lock:
            [found] = model.reply([Request(str(time.monotonic_ns()), body["messages"], body["seed"])], how)
            model.forget()
        return found.text or "…"

    return OpenAIServer(reply, models=[{"id": "m", "max_model_len": 2048}])


def without_time(run):
    found = sorted(run.transcripts(), key=lambda one: one.key)
    return [[(turn.speaker, turn.text, turn.finish) for turn in one.turns] + [one.end_reason] for one in found]


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_two_servers_two_shards_and_one_run(tmp_path, tiny_model, temperature):
    cards = tmp_path / "cards.jsonl"
    write_records(cards, some_cards(5))
    with serve(tiny_model) as seeker, serve(tiny_model) as supporter:

        def run(name, *more):
            command = ["simulate", "--cards", cards, "--rounds", 2, "--max-new-tokens", 8, "--temperature", temperature]
            command += ["--seeker", f"openai:m@{seeker.url}", "--supporter", f"openai:m@{supporter.url}"]
            done = CliRunner().invoke(esckit.app, [*map(str, command), "--out", str(tmp_path / name), *more])
            assert done.exit_code == 0, (done.output, done.exception)

        run("whole")
        run("part1", "--shard", "1/2")
        run("part2", "--shard", "2/2")
        assert len(seeker.calls) == len(supporter.calls) == 2 * 5 * 2
    parts = [str(tmp_path / "part1"), str(tmp_path / "part2")]
    done = CliRunner().invoke(esckit.app, ["runs", "merge", *parts, "--out", str(tmp_path / "merged")])
    assert done.exit_code == 0, done.output
    whole = load_run(tmp_path / "whole")
    assert without_time(load_run(tmp_path / "merged")) == without_time(whole)
    assert len({turn.text for one in whole.transcripts() for turn in one.turns}) > 5, "the models do say something"


def test_faulty_dialogues_are_made_again_on_request_and_kept_aside(tmp_path):
    from eval.judge import ScorerJudge, score_run
    from eval.runs import append_to_run
    from tests.eval.made_run import MadeScorer
    from tests.openai_server import HTML, talk

    cards = tmp_path / "cards.jsonl"
    write_records(cards, some_cards(4))
    broken = [True]

    def fault(body):
        return HTML if broken[0] and body["seed"] % 3 == 0 else None

    with OpenAIServer(talk, fault_when=fault) as server:

        def run(*more):
            model = f"openai:m@{server.url}"
            command = ["simulate", "--cards", cards, "--rounds", 1, "--seeker", model, "--supporter", model]
            command += ["--out", tmp_path / "run", "--supporter-set", "attempts=1", "--seeker-set", "attempts=1"]
            return CliRunner().invoke(esckit.app, [*map(str, command), *more])

        first = run()
        assert first.exit_code == 1, first.output
        old = load_run(tmp_path / "run").transcripts()
        faulty = {one.key for one in old if one.end_reason.is_fault}
        assert 0 < len(faulty) < len(old) == 4
        with append_to_run(tmp_path / "run") as opened:
            score_run(opened, ScorerJudge(MadeScorer()))
        assert run().exit_code == 1, "without the option a fault stays"
        assert load_run(tmp_path / "run").transcripts() == old
        broken[0] = False
        again = run("--retry-errors")
        assert again.exit_code == 0, again.output
    new = {one.key: one for one in load_run(tmp_path / "run").transcripts()}
    assert set(new) == {one.key for one in old}
    assert not any(one.end_reason.is_fault for one in new.values())
    assert all(new[one.key] == one for one in old if one.key not in faulty), "whole ones are untouched"
    assert not {one.dialogue_key for one in load_run(tmp_path / "run").judgments()} & faulty
    aside = (tmp_path / "run" / "dialogues.failed.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(aside) == len(faulty)
    assert len((tmp_path / "run" / "judgments.failed.jsonl").read_text(encoding="utf-8").splitlines()) == 7 * len(
        faulty
    )
