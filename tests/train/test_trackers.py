"""Trackers: none unless asked, wandb offline without a key and without one connection, tensorboard beside the run."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from data_prep.errors import UserError
from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from train.output import make_arguments
from train.trackers import WANDB_DEFAULTS, prepare_trackers, tracker_errors


@pytest.fixture
def clean(monkeypatch, tmp_path):
    """An environment without key and settings; what the code sets is undone after the test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*WANDB_DEFAULTS, "WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "NETRC", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it
        monkeypatch.delenv(name)


@pytest.mark.parametrize("report_to", ["wandb", ["tensorboard", "wandb"]])
def test_wandb_without_a_key_goes_offline_with_one_warning(clean, report_to, tmp_path, capsys):
    for _ in range(2):
        assert prepare_trackers(report_to, str(tmp_path / "out")) == (
            [report_to] if report_to == "wandb" else report_to
        )
    assert os.environ["WANDB_MODE"] == "offline"
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert capsys.readouterr().err.count("warning: no wandb key is set") == 1


def test_wandb_with_a_key_is_left_alone(clean, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "made")
    prepare_trackers("wandb", "out")
    assert "WANDB_MODE" not in os.environ
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password made\n", encoding="utf-8")
    prepare_trackers("wandb", "out")
    assert "WANDB_MODE" not in os.environ
    assert capsys.readouterr().err == ""
    (tmp_path / ".netrc").write_text("machine elsewhere.org login user password made\n", encoding="utf-8")
    prepare_trackers("wandb", "out")
    assert os.environ["WANDB_MODE"] == "offline"


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_one_line(clean, name, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("train.trackers.find_spec", lambda module: None if module == name else find(module))
    with pytest.raises(UserError, match=rf"^training\.report_to: {name} is not installed; run: pip install {name}$"):
        prepare_trackers(name, "out")


@pytest.mark.parametrize("name", ["all", "mlflow"])
def test_other_trackers_are_refused(clean, name):
    with pytest.raises(UserError, match=rf"'{name}' is not supported; known: wandb, tensorboard, none"):
        prepare_trackers(name, "out")


@pytest.mark.parametrize("report_to", ["none", None, []])
def test_no_tracker_unless_asked(report_to, tmp_path):
    from transformers import TrainingArguments

    data = write_lines(tmp_path / "train.jsonl", [dialogue("a", "hello", "hi")])
    recipe = recipe_of(tmp_path, chat_content(tmp_path / "model", tmp_path / "out", data))
    silent = recipe.model_copy(update={"training": {**recipe.training, "report_to": report_to}})
    assert make_arguments(TrainingArguments, silent).report_to == []


def test_wandb_that_cannot_be_reached_is_one_line():
    from wandb.errors import CommError

    says = r"^wandb: timed out; set WANDB_MODE=offline, or training\.report_to: none$"
    with pytest.raises(UserError, match=says), tracker_errors():
        raise CommError("timed\nout")
    with pytest.raises(KeyError), tracker_errors():
        raise KeyError("ours")


def count_connections(server: socket.socket, seen: list[bytes]) -> None:
    """Until the test itself comes by."""
    while seen[-1:] != [b"probe"]:
        connection, _ = server.accept()
        with connection:
            seen.append(connection.recv(200))


def test_a_run_logs_to_both_without_a_key_and_connects_to_nobody(tiny_model, tmp_path):
    """The whole command in its own process, wandb's service included: whatever wants out goes through the proxy of
    the environment, and the one named there counts who comes."""
    data = write_lines(tmp_path / "data.jsonl", [dialogue(f"d{n}", "hello", "I am sad 难过") for n in range(2)])
    content = chat_content(tiny_model, tmp_path / "out", data, max_steps=1, report_to=["wandb", "tensorboard"])
    content["data"]["validation"] = str(data)
    content["evaluation"] = {"samples": 1, "max_new_tokens": 3}
    recipe_of(tmp_path, content)
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=count_connections, args=(server, seen), daemon=True)
        thread.start()
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
        environment |= {"HOME": str(tmp_path), "HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy}
        environment |= {key.lower(): proxy for key in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
        environment |= {"no_proxy": "", "NO_PROXY": ""}
        command = [sys.executable, "-m", "esckit", "train", str(tmp_path / "recipe.yaml")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        with socket.create_connection(server.getsockname()) as probe:  # the counter counts
            probe.sendall(b"probe")
        thread.join(10)
    assert done.returncode == 0, done.stderr
    assert seen == [b"probe"]
    assert done.stderr.count("warning:") == 1
    out = tmp_path / "out"
    (offline,) = (out / "wandb").glob("offline-run-*")
    (log,) = offline.glob("*.wandb")
    stored = log.read_bytes()
    assert b"eval/loss" in stored
    (table,) = (offline / "files" / "media" / "table").glob("samples_*.table.json")
    shown = json.loads(table.read_text(encoding="utf-8"))
    (line,) = [json.loads(text) for text in (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert shown["data"] == [list(line.values())]
    assert list((out / "tensorboard").glob("events*"))
    assert not Path("wandb").exists()
