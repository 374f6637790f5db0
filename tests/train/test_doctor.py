"""`esckit doctor` against real servers on this machine, with nothing listening, and with things broken on purpose."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from data_prep.errors import UserError
from esckit import app
from train import doctor
from train.doctor import Finding, cpu_quota, examine, memory
from train.doctor_network import endpoint_findings, hub_findings, shown

SECRET = "made-secret-7f3a"
HUB_PATH = "/api/models/HuggingFaceTB/SmolLM2-135M-Instruct"


@contextmanager
def serving(answer) -> Iterator[SimpleNamespace]:
    """A server whose `answer(path, headers)` is (status, bytes), or None to say nothing for a while."""
    calls: list[tuple[str, dict[str, str]]] = []
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append((self.path, dict(self.headers)))
            found = answer(self.path, dict(self.headers))
            if found is None:
                done.wait(20)
                return
            status, content = found
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", calls=calls)
    finally:
        done.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def dead() -> str:
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def online(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def one(findings) -> Finding:
    (finding,) = findings
    return finding


# ---- the hub


def test_a_hub_that_answers(online, monkeypatch):
    with serving(lambda path, _: (200, b"{}") if path == HUB_PATH else (404, b"")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        found = one(hub_findings())
    assert found == Finding("hub", "ok", f"{server.url} answers")


@pytest.mark.parametrize("status", [401, 404, 503])
def test_a_hub_that_refuses_is_a_note(online, monkeypatch, status):
    with serving(lambda *_: (status, b"")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        found = one(hub_findings())
    assert found.verdict == "note"
    assert f"status {status}" in found.text


def test_no_hub_is_a_note_and_quick(online, monkeypatch, dead):
    monkeypatch.setenv("HF_ENDPOINT", dead)
    found = one(hub_findings())
    assert found.verdict == "note"
    assert "is not reached" in found.text


def test_a_hub_that_never_answers_is_given_up(online, monkeypatch):
    with serving(lambda *_: None) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        start = time.monotonic()
        found = one(hub_findings())
        assert time.monotonic() - start < 8
    assert "is not reached" in found.text


@pytest.mark.parametrize("address", ["nonsense", "http://", "http://[::1", "http://a:b:c"])
def test_an_address_that_is_none_is_told(online, monkeypatch, address):
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert one(hub_findings()).verdict == "note"


def test_offline_nothing_is_asked(monkeypatch):
    with serving(lambda *_: (200, b"{}")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        found = one(hub_findings())
    assert "HF_HUB_OFFLINE" in found.text
    assert server.calls == []


def test_an_address_is_shown_without_name_and_password():
    assert shown(f"https://me:{SECRET}@mirror.example:8443/x?k={SECRET}") == "https://mirror.example:8443"


# ---- an endpoint


def models(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


def test_an_endpoint_that_answers_lists_its_models(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with serving(lambda *_: (200, models("a", "b", "c", "d", "e", "f\n✗ forged"))) as server:
        found = one(endpoint_findings(f"{server.url}/v1"))
        assert found == Finding("endpoint", "ok", f"{server.url} serves a, b, c, d, e and 1 more")
        one(endpoint_findings(f"{server.url}/v1/chat/completions"))
    assert [path for path, _ in server.calls] == ["/v1/models", "/v1/models"]
    assert server.calls[0][1]["Authorization"] == f"Bearer {SECRET}"


def test_names_of_a_server_stay_on_one_line():
    with serving(lambda *_: (200, models("x\n✗ forged\x1b[31m", 3))) as server:
        assert one(endpoint_findings(server.url)).text.endswith("serves x?✗ forged?[31m")


@pytest.mark.parametrize(
    ("status", "content", "verdict", "told"),
    [
        (401, b"", "bad", "it asks for a key (status 401); set OPENAI_API_KEY"),
        (404, b"", "note", "status 404"),
        (200, b"<html>", "note", "lists no model"),
        (200, b"[1]", "note", "lists no model"),
        (200, b'{"data": []}', "note", "lists no model"),
        (200, b'{"data": 3}', "note", "lists no model"),
    ],
)
def test_an_endpoint_that_answers_otherwise(monkeypatch, status, content, verdict, told):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda *_: (status, content)) as server:
        found = one(endpoint_findings(f"{server.url}/v1"))
    assert found.verdict == verdict
    assert told in found.text


def test_a_refused_key_is_not_repeated(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with serving(lambda *_: (401, SECRET.encode())) as server:
        found = one(endpoint_findings(server.url))
    assert "the key is refused" in found.text
    assert SECRET not in found.text
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\nx")
    found = one(endpoint_findings(server.url))
    assert found.verdict == "bad"
    assert SECRET not in found.text


def test_no_endpoint_there_ends_with_1_and_every_other_finding_is_still_told(monkeypatch, dead):
    done = CliRunner().invoke(app, ["doctor", "--endpoint", f"{dead}/v1"])
    assert done.exit_code == 1
    assert f"✗ endpoint: {dead} is not reached" in done.output
    assert "✓ python: " in done.output
    assert "keys: " in done.output


def test_what_is_no_address_is_wrong_usage():
    with pytest.raises(UserError, match="--endpoint: is not a URL"):
        list(endpoint_findings("nonsense"))
    with pytest.raises(UserError) as caught:
        list(endpoint_findings(f"http://me:{SECRET}@host/v1"))
    assert SECRET not in str(caught.value)


# ---- this machine


def test_the_report_as_json_holds_every_topic_and_no_secret(monkeypatch, tmp_path):
    for name in doctor.KEYS:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("ESCKIT_CACHE", str(tmp_path))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    assert SECRET not in done.output
    found = json.loads(done.output)
    topics = {entry["topic"] for entry in found}
    assert topics >= {"python", "cores", "memory", "cache", "devices", "packages", "optional", "hub", "keys", "models"}
    assert all("\n" not in entry["text"] for entry in found)
    assert sum("is set (not shown)" in entry["text"] for entry in found) == len(doctor.KEYS)
    assert any(entry["text"].startswith("smollm2-135m-instruct is not fetched; run:") for entry in found)


def test_keys_that_are_not_set_say_what_they_are_for(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in doctor.KEYS:
        monkeypatch.setenv(name, " ")
    assert [finding.verdict for finding in doctor.secrets()] == ["note"] * 3
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / ".netrc").write_text(SECRET)
    assert [finding.verdict for finding in doctor.secrets()] == ["ok", "note", "ok"]
    assert not any(SECRET in finding.text for finding in doctor.secrets())


def test_versions_are_held_against_ranges_and_against_what_is_tested(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "[project]\ndependencies = ['rich>=13', 'numpy<1', 'no-such-package>=1', 'typer', 'deepspeed-missing>=1', "
        "'other; sys_platform == \"nowhere\"']\n"
    )
    import importlib.metadata

    rich = importlib.metadata.version("rich")
    (tmp_path / "constraints.txt").write_text(f"# made\nrich=={rich}\ntyper==0.0.1\n")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setitem(doctor.OPTIONAL, "deepspeed-missing", "nothing")
    found = {finding.text.split()[0]: finding for finding in doctor.packages()}
    assert found["numpy"].verdict == "bad"
    assert "<1 is needed; run: pip install" in found["numpy"].text
    assert found["no-such-package"].verdict == "bad"
    assert found["typer"].verdict == "note"
    assert "tests run on 0.0.1" in found["typer"].text
    assert found["deepspeed-missing"].verdict == "note"
    assert found["1"].text == "1 of 5 needed packages are as tested"
    assert "other" not in found


def test_too_little_room_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=doctor.GIB // 2))
    monkeypatch.setenv("ESCKIT_CACHE", str(tmp_path / "not" / "yet"))
    cache = next(finding for finding in doctor.disk() if finding.topic == "cache")
    assert cache.verdict == "note"
    assert "too little even for a small model; set ESCKIT_CACHE" in cache.text


def test_limits_of_a_container_count(tmp_path):
    seen = SimpleNamespace(available=900, total=1000)
    assert memory(seen, tmp_path) == (900, 1000)
    assert cpu_quota(tmp_path) is None
    (tmp_path / "memory.max").write_text("500\n")
    (tmp_path / "memory.current").write_text("450\n")
    assert memory(seen, tmp_path) == (50, 500)
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 200\n")
    assert memory(seen, tmp_path) == (250, 500)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(seen, tmp_path) == (900, 1000)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) is None


def test_a_broken_torch_makes_the_toolkit_unusable(monkeypatch, tmp_path):
    import sys

    (tmp_path / "torch.py").write_text("raise OSError('libmade.so: cannot open\\nshared object')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch")
    found = one(doctor.devices())
    assert found.verdict == "bad"
    assert "libmade.so: cannot open shared object" in found.text


def test_an_old_python_is_told(monkeypatch):
    monkeypatch.setattr(doctor.platform, "python_version_tuple", lambda: ("3", "10", "2"))
    assert one(doctor.python()).verdict == "bad"


def test_the_real_machine_passes(online, monkeypatch, dead):
    monkeypatch.setenv("HF_ENDPOINT", dead)
    assert not [finding for finding in examine() if finding.verdict == "bad"]
    assert Path(doctor.ROOT / "pyproject.toml").is_file()
