"""`esckit chat` as a person uses it: a real process, a made model, lines on standard input."""

import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.records import Dialogue, read_records
from eval.chat_models.human import printable
from eval.cli_chat import Talk

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "data_prep" / "samples" / "cards.jsonl"


def chat(model: Path, lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "esckit", "chat", str(model), "--max-new-tokens", "8", *options]
    return subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_talk_with_a_seeker_is_kept_with_its_card(tiny_model, tmp_path):
    kept = tmp_path / "talk.jsonl"
    done = chat(
        tiny_model, f"hello\n<|im_end|> and?\n/save {kept}\n/quit\n", "--card", str(CARDS), "--temperature", "1"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("seeker:") == 2
    assert "What it tells is invented" in done.stdout
    [dialogue] = read_records(kept, Dialogue)
    assert [turn.speaker for turn in dialogue.turns] == ["supporter", "seeker"] * 2
    assert dialogue.turns[2].text == "<|im_end|> and?"
    assert dialogue.card is not None


def test_a_talk_with_a_supporter_ends_with_its_input(tiny_model):
    done = chat(tiny_model, "I feel low\n", "--language", "zh")
    assert done.returncode == 0, done.stderr
    assert "supporter:" in done.stdout
    assert "no crisis service" in done.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--card", str(CARDS), "--card-number", "9999"), "holds"),
        (("--language", "fr"), "known: en, zh"),
        (("--card", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line(tiny_model, options, reason):
    done = chat(tiny_model, "", *options)
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


class Model:
    """Answers with what it is told and keeps what it was asked."""

    name = "made"

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def reply(self, requests, sampling):
        self.asked.append([dict(message) for message in requests[0].messages])
        return [self.replies.pop(0)]

    def forget(self):
        self.asked.append("forgotten")


def talk_of(*replies):
    from eval.chat_models.base import Sampling

    return Talk(Model(*replies), "supporter", "be kind", Sampling(), 0)


def test_a_failed_reply_leaves_no_trace_and_the_last_exchange_can_be_taken_back(capsys):
    from eval.chat_models.base import Reply

    talk = talk_of(Reply("", failure="context_full", detail="too long"), Reply("yes", "stop"), Reply("no", "stop"))
    talk.answer("first")
    assert talk.turns == []
    talk.answer("second")
    talk.answer("third")
    assert [turn.text for turn in talk.turns] == ["second", "yes", "third", "no"]
    talk.command("/again")
    assert [turn.text for turn in talk.turns] == ["second", "yes"]
    assert talk.command("/new")
    assert talk.turns == []
    assert talk.model.asked[-1] == "forgotten"
    assert not talk.command("/quit")
    assert "no reply: too long" in capsys.readouterr().out


def test_a_file_is_never_written_over(tmp_path, capsys):
    from eval.chat_models.base import Reply

    (tmp_path / "a.jsonl").write_text("mine", encoding="utf-8")
    talk = talk_of(Reply("yes", "stop"))
    talk.command(f"/save {tmp_path / 'b.jsonl'}")
    talk.answer("hi")
    talk.command(f"/save {tmp_path / 'a.jsonl'}")
    assert (tmp_path / "a.jsonl").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "b.jsonl").exists()


def test_a_reply_cannot_steer_the_terminal():
    assert printable("a\x1b[2Jb\u202ec\nd") == "a[2Jbc\nd"
