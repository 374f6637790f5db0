"""The run folder: settings are compared, one writer at a time, torn lines are repaired, damage is named."""

import os
import subprocess
import sys
import time

import pytest
from pydantic import ValidationError

from data_prep.errors import UserError
from data_prep.records import RoleCard, dump_line
from eval.runs import EndReason, Judgment, Transcript, TranscriptTurn, append_to_run, load_run, open_run

SETTINGS = {"sampling": {"temperature": 0.7, "stop": ("a", "b")}, "rounds": 5}


def transcript(key="c#0", text="hello"):
    return Transcript(
        key=key,
        card=RoleCard(id=key.partition("#")[0], language="en", source="test", problem="sleep"),
        sample=0,
        supporter="s",
        seeker="r",
        turns=(
            TranscriptTurn(speaker="supporter", text="Hi"),
            TranscriptTurn(speaker="seeker", text=text, finish="stop", new_tokens=3, prompt_tokens=9, seconds=0.5),
        ),
        end_reason=EndReason.supporter_empty,
        seed=7,
    )


def judgment(**changes):
    fields = {"dialogue_key": "c#0", "scorer": "x", "rubric": "r", "dimension": "empathy"}
    return Judgment(**{**fields, **changes})


def test_what_is_written_is_read(tmp_path):
    folder = tmp_path / "run"
    odd = transcript("d#0", "line\u2028end\x85 \x00 <b>\n 😞 \\")
    with open_run(folder, SETTINGS) as run:
        run.add_transcripts([transcript(), odd])
        run.add_judgments([judgment(probabilities=(0.25, 0.75), expected=0.75, level=1)])
        run.add_judgments([judgment(dimension="fluency", reason="no number in the reply", raw="hm")])
    found = load_run(folder)
    assert found.transcripts() == [transcript(), odd]
    assert [made.expected for made in found.judgments()] == [0.75, None]
    assert found.settings["sampling"] == {"temperature": 0.7, "stop": ["a", "b"]}
    assert found.manifest["environment"]["versions"]["torch"]
    assert found.notes == []


def test_a_transcript_as_a_dialogue_has_words_and_card_only():
    dialogue = transcript().to_dialogue()
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [("supporter", "Hi"), ("seeker", "hello")]
    assert (dialogue.id, dialogue.card.id, dialogue.meta["end_reason"]) == ("c#0", "c", "supporter_empty")


def test_equal_settings_go_on_and_other_settings_are_shown(tmp_path):
    with open_run(tmp_path, SETTINGS) as run:
        run.add_transcripts([transcript()])
    with open_run(tmp_path, SETTINGS) as run:
        assert [found.key for found in run.transcripts()] == ["c#0"]
    other = {"sampling": {"temperature": 1.0, "stop": ["a", "b"]}, "extra": None}
    with pytest.raises(UserError) as caught:
        open_run(tmp_path, other)
    message = str(caught.value)
    assert "sampling.temperature: 0.7 in the folder, 1.0 now" in message
    assert "rounds: 5 in the folder, absent now" in message
    assert "extra: absent in the folder, null now" in message
    assert "stop" not in message
    assert "\n" not in message
    with open_run(tmp_path, SETTINGS):  # the refusal gave the lock back
        pass


def test_another_environment_is_noted_not_refused(tmp_path, monkeypatch):
    with open_run(tmp_path, SETTINGS):
        pass
    with open_run(tmp_path, SETTINGS):
        pass
    assert "resumed" not in load_run(tmp_path).manifest
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")
    with open_run(tmp_path, SETTINGS):
        pass
    assert [found["python"] for found in load_run(tmp_path).manifest["resumed"]] == ["9.9.9"]


def test_a_second_writer_is_refused_until_the_first_is_killed(tmp_path):
    code = (
        "import sys, time; from eval.runs import open_run; run = open_run(sys.argv[1], {'a': 1}); "
        "print('open', flush=True); time.sleep(60)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "open\n"
        for attempt in (lambda: open_run(tmp_path / "run", {"a": 1}), lambda: append_to_run(tmp_path / "run")):
            with pytest.raises(UserError, match="another process is writing"):
                attempt()
        assert load_run(tmp_path / "run").transcripts() == []  # reading is always allowed
    finally:
        writer.kill()
        writer.wait()
    with open_run(tmp_path / "run", {"a": 1}):
        pass


@pytest.mark.parametrize("cut", [1, 2, 40, -1])
def test_a_torn_last_line_is_removed_and_said(tmp_path, cut):
    with open_run(tmp_path, SETTINGS) as run:
        run.add_transcripts([transcript("a#0"), transcript("b#0")])
    path = tmp_path / "dialogues.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[:first] + whole[first:][:cut])
    reader = load_run(tmp_path)
    assert [found.key for found in reader.transcripts()] == ["a#0"]
    assert "incomplete" in reader.notes[0]
    with open_run(tmp_path, SETTINGS) as run:
        assert len(run.notes) == 1
        assert "removed" in run.notes[0]
        assert path.read_bytes() == whole[:first]
        run.add_transcripts([transcript("b#0")])
    assert path.read_bytes() == whole


def test_a_batch_is_one_write(tmp_path, monkeypatch):
    """A reader at any moment sees whole batches."""
    with open_run(tmp_path, SETTINGS) as run:
        seen = []
        real = os.fsync
        monkeypatch.setattr(
            "os.fsync", lambda handle: (seen.append((tmp_path / "dialogues.jsonl").read_bytes()), real(handle))
        )
        run.add_transcripts([transcript(f"{index}#0") for index in range(5)])
    assert [block.count(b"\n") for block in seen] == [5]


def test_damage_is_named_by_line_and_never_quoted(tmp_path):
    with open_run(tmp_path, SETTINGS) as run:
        run.add_transcripts([transcript("a#0", "secret")])
    path = tmp_path / "dialogues.jsonl"
    good = path.read_text()
    for bad, part in [
        (good + good, "occurs twice"),
        (good + '{"key": "secret"}\n', "card"),
        (good + "secret\n", "not valid JSON"),
        (good + "\n", "not valid JSON"),
    ]:
        path.write_text(bad)
        with pytest.raises(UserError) as caught:
            load_run(tmp_path).transcripts()
        message = str(caught.value)
        assert f"{path}:2" in message
        assert part in message
        assert "secret" not in message.replace(str(path), "")
    path.write_bytes(good.encode() + b"\xff\n")
    with pytest.raises(UserError, match=r":2: is not valid UTF-8"):
        load_run(tmp_path).transcripts()


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_run(tmp_path / "none")
    with pytest.raises(UserError, match="is no run folder"):
        load_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds files but no manifest"):
        open_run(tmp_path, SETTINGS)
    with pytest.raises(UserError, match="is a file"):
        open_run(tmp_path / "notes.txt", SETTINGS)
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(UserError, match="no manifest of a run"):
        open_run(tmp_path, SETTINGS)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_scorers_keep_their_settings(tmp_path):
    with open_run(tmp_path, SETTINGS):
        pass
    with append_to_run(tmp_path) as run:
        run.add_scorer("x", {"sha": "1"})
        run.add_scorer("x", {"sha": "1"})
        with pytest.raises(UserError, match='sha: "1" in the folder, "2" now'):
            run.add_scorer("x", {"sha": "2"})
        run.add_scorer("y", {"sha": "2"})
    assert load_run(tmp_path).scorers() == {"x": {"sha": "1"}, "y": {"sha": "2"}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"level": 3},
        {"expected": 1.0, "reason": "both"},
        {"probabilities": (0.5, 0.4), "expected": 0.4},
        {"probabilities": (float("nan"), 1.0), "expected": 1.0},
        {"expected": float("nan")},
    ],
)
def test_a_judgment_has_a_value_or_a_reason(fields):
    with pytest.raises(ValidationError):
        judgment(**fields)


def test_ten_thousand_dialogues_open_at_once(tmp_path):
    with open_run(tmp_path, SETTINGS) as run:
        run.add_transcripts([transcript(f"{index}#0") for index in range(10_000)])
    started = time.perf_counter()
    assert len(load_run(tmp_path).transcripts()) == 10_000
    assert time.perf_counter() - started < 10
    assert dump_line(load_run(tmp_path).transcripts()[-1]) == dump_line(transcript("9999#0"))
