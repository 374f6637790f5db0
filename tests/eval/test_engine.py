"""The engine under strain: end rules, memory that runs out, shards, kills at random moments, a full disk."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from data_prep.errors import UserError
from data_prep.records import dump_line
from eval.chat_models import load_chat_model
from eval.end_rules import takes_leave
from eval.environment import git_commit
from eval.run_records import EndReason, Plan, in_shard, parse_shard
from eval.runs import load_run, open_run
from eval.runs_merge import merge_runs
from eval.simulate import SimulationSettings, simulate
from tests.eval.made_run import make_transcript
from tests.eval.test_simulate import GREEDY, SAMPLED, Scripted, card, run, settings_for, some_cards, without_time

LEAVES = [
    "Thank you so much. Goodbye!",
    "Okay, bye",
    "I feel better now. I should go now, take care!",
    "Thanks again, have a good night.",
    "Good night",
    "谢谢你，我好多了。再见！",
    "那先这样吧，晚安。",
    "拜拜～",
]
STAYS = [
    "I could not even say goodbye to my father before he died.",
    "I have to take care of my mother every day.",
    "She left without saying goodbye. I keep thinking about it",
    "Goodbye is the word he wrote on the note that I found in the kitchen",
    "Bye was all he said. What should I do?",
    "他走的时候连再见都没有说，我到现在还很难过",
    "没有人会跟我说晚安",
    "I don't know",
    "",
    "😞" * 10_000,
]


@pytest.mark.parametrize(("texts", "expected"), [(LEAVES, True), (STAYS, False)], ids=["leaves", "stays"])
def test_a_goodbye_is_told_from_talk_about_one(texts, expected):
    assert [text[:60] for text in texts if takes_leave(text) is not expected] == []


def test_natural_ends_leave_the_supporter_the_last_word():
    def seeker_says(conversation, turn):
        if conversation.startswith("leaves"):
            return "Thank you, goodbye." if turn == 1 else f"I am sad {turn}"
        return "Again." if conversation.startswith("loops") else f"{conversation} {turn}"

    def supporter_says(conversation, turn):
        return "again  " if conversation.startswith("loops") else f"help {turn}"

    settings = SimulationSettings(rounds=4, end="natural")
    cards = [card(name) for name in ("leaves", "loops", "stays")]
    made = {one.card.id: one for one in run(cards, Scripted("r", seeker_says), Scripted("s", supporter_says), settings)}
    assert {name: (one.end_reason, len(one.turns)) for name, one in made.items()} == {
        "leaves": (EndReason.seeker_goodbye, 5),
        "loops": (EndReason.loop, 5),
        "stays": (EndReason.rounds, 9),
    }
    assert not any(one.end_reason.is_fault for one in made.values())
    fixed = run(cards, Scripted("r", seeker_says), Scripted("s", supporter_says), SimulationSettings(rounds=4))
    assert {one.end_reason for one in fixed} == {EndReason.rounds}
    assert "end_rules" in settings.describe()
    assert {reason for reason in EndReason if reason.is_fault} == {
        reason for reason in EndReason if reason.split("_")[-1] in ("empty", "full", "error", "timeout")
    }


class Narrow:
    """Stands before a model's forward and has memory for so many rows only."""

    def __init__(self, model, rows):
        self.forward, self.rows, self.refused = model.forward, rows, 0
        model.forward = self

    def __call__(self, *arguments, **named):
        if len(named["input_ids"]) > self.rows:
            self.refused += 1
            raise torch.OutOfMemoryError("made")
        return self.forward(*arguments, **named)

    @property
    def __signature__(self):
        import inspect

        return inspect.signature(self.forward)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_memory_that_runs_out_halves_the_batch_and_changes_no_word(tiny_model, sampling):
    cards = some_cards(5)
    wanted = without_time(
        run(cards, *[load_chat_model(str(tiny_model)) for _ in "ab"], settings_for(sampling, batch_size=5))
    )
    seeker, supporter = (load_chat_model(str(tiny_model)) for _ in "ab")
    narrow = Narrow(seeker._weights.model, 2)
    made = without_time(run(cards, seeker, supporter, settings_for(sampling, batch_size=5)))
    assert made == wanted
    assert narrow.refused == seeker.stats.halved == 2  # 5 rows, then 3; what is learned holds for later turns
    assert supporter.stats.halved == 0
    narrow.rows = 0
    with pytest.raises(UserError, match="not even one conversation fits"):
        run(cards, seeker, supporter, settings_for(sampling, batch_size=5))


def test_what_is_kept_and_is_no_beginning_of_the_prompt_is_read_again_and_counted(tiny_model):
    from eval.chat_models.base import Request

    model, fresh = load_chat_model(str(tiny_model)), load_chat_model(str(tiny_model))
    first = [{"role": "user", "content": "hello, how are you"}]
    said = model.reply([Request("c", first, 1)], GREEDY)[0].text
    assert model.stats.reread == 0
    other = [*first, {"role": "assistant", "content": "I am sad today"}, {"role": "user", "content": "why?"}]
    assert said != "I am sad today"
    reply = model.reply([Request("c", other, 2)], GREEDY)[0]
    assert model.stats.reread == 1
    assert model.stats.prompt_reused > 0
    assert reply.text == fresh.reply([Request("c", other, 2)], GREEDY)[0].text


def lines(transcripts):
    return sorted(dump_line(one) for one in without_time(transcripts))


def plan_of(cards, shard="1/1"):
    return Plan(cards=tuple(one.id for one in cards), samples=1, shard=shard)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_alone_in_a_batch_sharded_and_resumed_are_the_same(tiny_model, tmp_path, sampling):
    cards = some_cards(7)
    seeker, supporter = (load_chat_model(str(tiny_model)) for _ in "ab")

    def made(**changes):
        return run(cards, seeker, supporter, settings_for(sampling, **changes))

    alone = lines(made(batch_size=1))
    assert lines(made(batch_size=7)) == alone
    first, *_ = simulate(cards, seeker, supporter, settings_for(sampling, batch_size=3))
    rest = run(cards, seeker, supporter, settings_for(sampling, batch_size=3), done={one.key for one in first})
    assert lines([*first, *rest]) == alone

    folders = []
    for part in (3, 1, 2):
        settings = settings_for(sampling, shard=f"{part}/3")
        folders.append(tmp_path / f"part{part}")
        with open_run(folders[-1], settings.describe(), plan_of(cards, f"{part}/3")) as writer:
            writer.add_transcripts(run(cards, seeker, supporter, settings))
    sizes = [len(load_run(folder).transcripts()) for folder in folders]
    assert sum(sizes) == 7
    assert max(sizes) < 7
    whole = merge_runs(folders, tmp_path / "whole")
    assert lines(whole.transcripts()) == alone
    assert [one.card.id for one in whole.transcripts()] == [one.id for one in cards]
    assert whole.missing() == []


def test_shards_are_a_partition_by_key():
    keys = [f"{index}#0" for index in range(1000)]
    parts = [[key for key in keys if in_shard(key, f"{part}/4")] for part in (1, 2, 3, 4)]
    assert sorted(key for part in parts for key in part) == sorted(keys)
    assert all(200 < len(part) < 300 for part in parts)
    for wrong in ("0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"):
        with pytest.raises(UserError, match="--shard"):
            parse_shard(wrong)


def test_merging_refuses_what_does_not_belong_together_and_says_what_is_missing(tmp_path):
    cards = [card(name) for name in "abcd"]

    def part(name, keys, settings=None, shard="1/1", of=cards):
        with open_run(tmp_path / name, settings or {"seed": 1}, plan_of(of, shard)) as writer:
            writer.add_transcripts([make_transcript(key) for key in keys])
        return tmp_path / name

    one, two = part("one", "db"), part("two", "a")
    merged = merge_runs([one, two], tmp_path / "out")
    assert [found.key for found in merged.transcripts()] == ["a#0", "b#0", "d#0"]
    assert merged.missing() == ["c#0"]
    assert [origin["folder"] for origin in merged.manifest["merged"]] == ["one", "two"]
    for other, told in [
        (one, "'d#0' is in .*one too"),
        (part("other", "c", {"seed": 2}), r"seed: 1 in .*one, 2 now"),
        (part("cards", "c", of=cards[1:]), "other cards"),
        (part("strange", "x"), "none of its manifest's plan"),
    ]:
        with pytest.raises(UserError, match=told) as caught:
            merge_runs([one, other], tmp_path / "none")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match="exists already"):
        merge_runs([one, two], tmp_path / "out")
    with pytest.raises(UserError, match="shard"):
        open_run(one, {"seed": 1}, plan_of(cards, "1/2"))


def test_a_full_disk_is_one_line_and_loses_nothing_finished(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_run(tmp_path / "run", {"seed": 1}) as writer:
        writer.add_transcripts([make_transcript("a")])
        file = tmp_path / "run" / "dialogues.jsonl"
        before = file.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        try:
            with pytest.raises(UserError, match="cannot be written") as caught:
                writer.add_transcripts([make_transcript("b"), make_transcript("c")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(caught.value)
        assert file.read_bytes() == before
        writer.add_transcripts([make_transcript("b")])
    assert [one.key for one in load_run(tmp_path / "run").transcripts()] == ["a#0", "b#0"]


def test_the_manifest_names_the_commit(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True)

    assert git_commit(tmp_path) is None
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-m", "x")
    git_commit.cache_clear()
    clean = git_commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "a").write_text("2")
    git_commit.cache_clear()
    assert git_commit(tmp_path) == clean + "+changes"


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from pathlib import Path
from eval.chat_models import load_chat_model
from eval.run_records import EndReason
from eval.runs import open_run
from eval.simulate import simulate
from tests.eval.test_simulate import SAMPLED, settings_for, some_cards

out, model = Path(sys.argv[1]), sys.argv[2]
models = [load_chat_model(model) for _ in "ab"]
settings = settings_for(SAMPLED, batch_size=2, rounds=2)
cards = some_cards(16)

def attempt(folder):
    with open_run(folder, settings.describe()) as run:
        done = {one.key for one in run.transcripts()}
        for batch in simulate(cards, *models, settings, done):
            run.add_transcripts(batch)

started = time.monotonic()
attempt(out / "whole")
whole = time.monotonic() - started
draws, killed = random.Random(7), 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        attempt(out / "run")
        os._exit(0)
    time.sleep(draws.uniform(0, whole / 8))
    os.kill(child, signal.SIGKILL)
    killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
attempt(out / "run")
print(killed)
"""


def test_killed_at_twenty_random_moments_it_ends_with_the_same_records(tiny_model, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(tiny_model)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10  # of twenty; the rest were done before their moment came
    found, wanted = (load_run(tmp_path / name).transcripts() for name in ("run", "whole"))
    assert len(wanted) == 16
    assert [dump_line(one) for one in without_time(found)] == [dump_line(one) for one in without_time(wanted)]
