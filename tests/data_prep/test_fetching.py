"""Fetching datasets: the real hub client against a hub made here; nothing leaves the machine."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_prep import fetching
from data_prep import hub as hub_module
from data_prep.errors import UserError
from data_prep.sources import get_source

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "thu-coai/esconv"
FILES = {"train.txt": b'{"dialog": []}\n', "README.md": "数据".encode(), "deep/valid.txt": b"{}\n"}


class MadeHub(BaseHTTPRequestHandler):
    """The part of the hub's interface that a snapshot download uses, for one dataset."""

    asked: list[str]
    gated = False

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.asked.append(path)
        if self.gated and "/resolve/" in path:  # the metadata of gated datasets are public
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        files = FILES | {"loader.py": b"import os", "train.parquet": b"PAR1"}
        if path == f"/api/datasets/{NAME}":
            return self.answer(json.dumps({"id": NAME, "sha": COMMIT}).encode())
        if path == f"/api/datasets/{NAME}/tree/{COMMIT}":
            rows = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return self.answer(json.dumps(rows).encode())
        data = files.get(path.removeprefix(f"/datasets/{NAME}/resolve/{COMMIT}/"))
        return self.answer(data) if data is not None else self.send_error(404)

    def answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path):
    """Environment in which the hub client asks the made hub."""
    MadeHub.asked, MadeHub.gated = [], False
    server = ThreadingHTTPServer(("127.0.0.1", 0), MadeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "ESCKIT_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_DISABLE_XET": "1",
    }
    server.shutdown()
    server.server_close()


def run(env, *arguments):
    """The command in a process of its own: the hub client reads its environment once."""
    command = [sys.executable, "-m", "esckit", "data", "fetch", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_from_the_hub_with_revision_and_hashes(tmp_path, hub):
    code, out, err = run(hub, "esconv", "--out", tmp_path / "esconv")
    assert code == 0, err
    assert out == str(tmp_path / "esconv")
    source = json.loads((tmp_path / "esconv" / "source.json").read_text(encoding="utf-8"))
    assert (source["name"], source["hub_id"], source["commit"]) == ("esconv", NAME, COMMIT)
    assert source["licence"] == "CC BY-NC 4.0"
    assert source["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in FILES.items()
    }
    for name, data in FILES.items():
        assert (tmp_path / "esconv" / name).read_bytes() == data
    # Neither code nor what we do not read is asked for.
    assert not any(path.endswith((".py", ".parquet")) for path in MadeHub.asked)
    # The default place, then again: the hub is not asked a second time.
    code, out, err = run(hub, "esconv")
    assert out == str(tmp_path / "cache" / "datasets" / "esconv")
    MadeHub.asked.clear()
    assert "already in" in run(hub, "esconv")[2]
    assert not MadeHub.asked
    assert not list((tmp_path / "cache" / "datasets").glob(".*"))


def test_a_gated_dataset_says_what_to_do(tmp_path, hub):
    MadeHub.gated = True
    code, _, err = run(hub, "esconv", "--out", tmp_path / "esconv")
    assert code == 2
    last = err.splitlines()[-1]
    assert "access must be asked for on its hub page" in last
    assert "bring train.txt" in last
    assert not (tmp_path / "esconv").exists()


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_hub_it_says_which_file_to_bring(tmp_path, hub, offline):
    closed = hub | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": offline}
    start = time.monotonic()
    code, out, err = run(closed, "psych8k", "--out", tmp_path / "p")
    assert code == 2
    assert not out
    assert time.monotonic() - start < 60
    last = err.splitlines()[-1]
    assert last.startswith("error: cannot fetch psych8k from hub dataset EmoCareAI/Psych8k (")
    assert "bring Alexander_Street_shareGPT_2.0.json from ChatCounselor (arXiv 2309.15461)" in last
    assert "Needs access: its authors grant it on request" in last
    assert last.endswith("then: esckit data convert psych8k PATH --out FILE")
    assert not (tmp_path / "p").exists()


def test_datasets_that_are_not_on_the_hub_and_folders_in_use(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"is not on the hub; bring esc_judge_roles-v1\.json from ESC-J"):
        fetching.fetch_dataset(get_source("esc-judge-personas"))
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="holds something else than esconv"):
        fetching.fetch_dataset(get_source("esconv"), tmp_path)
    monkeypatch.setenv("ESCKIT_CACHE", str(tmp_path))
    assert fetching.dataset_folder("x") == tmp_path / "datasets" / "x"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": 3, "hub_id": "a/b"}', '{"files": {"x": {}}, "hub_id": "a/b"}']
)
def test_a_damaged_source_json_is_not_a_fetched_folder(tmp_path, text):
    (tmp_path / "source.json").write_text(text, encoding="utf-8")
    assert not fetching.is_fetched(tmp_path, "a/b")


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.setenv("ESCKIT_CACHE", str(tmp_path / "cache"))
    assert hub_module.cache_root() == tmp_path / "cache"
    monkeypatch.setenv("ESCKIT_CACHE", "")
    assert hub_module.cache_root() == Path.home() / ".cache" / "esckit"


def test_a_look_up_that_hangs_is_given_up():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0.2 seconds"):
        hub_module.within(0.2, lambda: time.sleep(5))
    assert time.monotonic() - start < 2
    with pytest.raises(ZeroDivisionError):
        hub_module.within(5, lambda: 1 // 0)
    assert hub_module.within(5, lambda: 7) == 7
