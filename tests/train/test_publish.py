"""What leaves a run: a proven merge, a card that names its data, files for Ollama and vLLM, an upload to a made hub."""

import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import yaml

from data_prep.errors import UserError
from tests.conftest import make_tokenizer
from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from train import publish
from train.masking import ChatRenderer
from train.merge import MergeReport, check_merge, merged_model
from train.model_card import card_of
from train.models import load_chat_model
from train.sft import train_chat


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory) -> Path:
    """A finished LoRA run with a large learning rate, so that the adapter says something else than the base."""
    folder = tmp_path_factory.mktemp("publish")
    data = write_lines(
        folder / "private-name.jsonl", [dialogue(f"d{n}", "hello", "I am sad", "why", "work") for n in range(6)]
    )
    sheet = {"sources": [{"source": "esconv", "licence": "CC BY-NC 4.0", "records": 6}]}
    (folder / "datasheet.json").write_text(json.dumps(sheet), encoding="utf-8")
    content = chat_content(tiny_model, folder / "out", data, max_steps=4, learning_rate=0.1)
    train_chat(recipe_of(folder, content))
    return folder / "out"


@pytest.fixture(scope="module")
def merged(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("merged") / "model"
    publish.export_merged(str(run), out, None, "auto", lambda line: None)
    return out


def test_the_merged_model_says_what_base_and_adapter_say(run, merged, tiny_model):
    ids = torch.tensor([[5, 9, 77, 31, 8]])
    alone, _ = load_chat_model(str(merged))
    both, _ = load_chat_model(str(tiny_model), str(run))
    base, _ = load_chat_model(str(tiny_model))
    with torch.inference_mode():
        found, wanted, before = (model(input_ids=ids).logits for model in (alone, both, base))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert (wanted - before).abs().max() > 0.1
    report = json.loads((merged / "merge.json").read_text(encoding="utf-8"))
    assert report["dtype"] == "float32"
    assert report["change"] < 1e-3 < report["adapter_effect"]
    for name in ("chat_template.jinja", "generation_config.json", "README.md", "recipe.yaml", "tokenizer.json"):
        assert (merged / name).is_file(), name


def test_sixteen_bit_merges_are_proven_too_and_a_changed_model_is_refused(run, tiny_model):
    for dtype in ("bfloat16", "float16"):
        model, _, report = merged_model(str(tiny_model), str(run), dtype)
        assert str(model.dtype) == f"torch.{dtype}"
        assert report.change > 0
    for change in (0.5, float("nan")):
        with pytest.raises(UserError, match=r"moved by .* nothing was written"):
            check_merge(MergeReport("bfloat16", change, 0.5, 2.0), "runs/x")


def test_a_quantised_base_is_refused(run, tiny_model, tmp_path):
    base = tmp_path / "four-bit"
    shutil.copytree(tiny_model, base)
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="is a quantised model"):
        publish.export_merged(str(run), tmp_path / "out", str(base), "auto", lambda line: None)
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over_and_what_is_no_result_is_named(run, merged, tmp_path):
    with pytest.raises(UserError, match="is not empty"):
        publish.export_merged(str(run), merged, None, "auto", lambda line: None)
    with pytest.raises(UserError, match="is no result of"):
        publish.export_merged(str(tmp_path), tmp_path / "new", None, "auto", lambda line: None)


def test_a_full_fine_tune_is_copied_without_its_checkpoints(merged, tmp_path):
    (merged / "checkpoints").mkdir(exist_ok=True)
    (merged / "checkpoints" / "x").write_text("", encoding="utf-8")
    try:
        publish.export_merged(str(merged), tmp_path / "copy", None, "auto", lambda line: None)
    finally:
        shutil.rmtree(merged / "checkpoints")
    assert (tmp_path / "copy" / "model.safetensors").is_file()
    assert not (tmp_path / "copy" / "checkpoints").exists()


def test_generation_stops_on_what_ends_a_turn(run, merged):
    stops = ChatRenderer(make_tokenizer()).stop_ids
    for folder in (run, merged):
        found = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
        assert sorted([found] if isinstance(found, int) else found) == stops


def test_the_card_names_data_licences_figures_and_no_path(run):
    text = card_of(run)
    head = yaml.safe_load(text.split("---")[1])
    assert head["library_name"] == "peft"
    assert "esc-seeker" in head["tags"]
    for wanted in (
        "esconv: CC BY-NC 4.0",
        "private-name.jsonl",
        "learning_rate: 0.1",
        "trainable parameters",
        "sha256",
    ):
        assert wanted in text, wanted
    assert not re.search(r"/tmp/|/home/|" + re.escape(str(run.parent)), text)
    with pytest.raises(UserError, match="written from a finished training run"):
        card_of(run.parent)


# ---- serving


def test_vllm_is_given_rank_and_template_and_what_it_refuses_is_said(run, merged, tmp_path):
    [command] = publish.vllm_commands(str(run), "role")
    assert "--enable-lora --max-lora-rank 8" in command
    assert f"role={run}" in command
    assert publish.vllm_commands(str(merged), "role") == [f"vllm serve {merged} --served-model-name role"]
    for change, reason in (
        ({"use_dora": True}, "no DoRA"),
        ({"r": 4096}, "rank 4096"),
        ({"modules_to_save": ["x"]}, "whole"),
    ):
        folder = tmp_path / reason.replace(" ", "-")
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")) | change
        (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(UserError, match=reason):
            publish.vllm_commands(str(folder), "role")
    (folder / "chat_template.jinja").unlink()


def test_ollama_is_given_a_template_that_says_the_same(merged, run):
    commands = publish.ollama_files(str(merged), "role")
    text = (merged / "Modelfile").read_text(encoding="utf-8")
    assert commands[0] == f"ollama create role -f {merged / 'Modelfile'}"
    assert 'PARAMETER stop "<|im_end|>"' in text
    template = re.search(r'TEMPLATE """(.*)"""', text, re.DOTALL)[1]
    talk = [("system", "be kind"), ("user", "hi {{ .Role }}"), ("assistant", "hello"), ("user", "bye")]
    messages = [{"role": role, "content": content} for role, content in talk]
    wanted = make_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert go_rendering(template, talk) == wanted
    with pytest.raises(UserError, match="takes merged weights"):
        publish.ollama_files(str(run), "role")


def go_rendering(template: str, talk) -> str:
    """What Go's text/template makes of the few actions we write."""
    body, _, opening = template.removeprefix("{{ range .Messages }}").rpartition("{{ end }}")
    cases = dict(re.findall(r'\{\{ if eq \.Role "(\w+)" \}\}(.*?)\{\{ end \}\}', body, re.DOTALL))
    return "".join(content.join(cases[role].split("{{ .Content }}")) for role, content in talk) + opening


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for m in messages %}{% if m['role'] == 'system' %}{% else %}[{% if loop.index0 == 1 %}"
            "{{ messages[0]['content'] }}{% endif %}{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}",
            "every message once|by its place",
        ),
        (
            "{% for m in messages %}<|im_start|>{% if loop.index0 == 1 %}!{% endif %}{{ m['role'] }}\n"
            "{{ m['content'] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
            "by its place",
        ),
    ],
)
def test_a_template_that_ollama_cannot_say_is_refused(template, reason):
    with pytest.raises(UserError, match=reason):
        publish.ollama_template(ChatRenderer(make_tokenizer(template)))


# ---- the hub


class MadeHub(BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files asks for."""

    commits: list[str] = []
    refuse = False

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.refuse:
            return self.answer({"error": "You may not"}, 403)
        if self.path == "/api/repos/create":
            return self.answer({"url": f"http://{self.headers['Host']}/me/role", "name": "me/role"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
            return self.answer({"files": [{**f, "shouldIgnore": False} for f in files]})
        if "/commit/" in self.path:
            self.commits.append(body)
            return self.answer({"commitOid": "0" * 40, "commitUrl": f"http://{self.headers['Host']}/me/role/commit/0"})
        return self.answer({}, 404)

    def do_GET(self):
        if self.path.startswith("/api/models/me/role"):
            return self.answer({"id": "me/role", "sha": "0" * 40, "siblings": []})
        return self.answer({}, 404)

    def answer(self, content, code=200):
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


UPLOAD = """
import sys
from data_prep.errors import UserError
from train.publish import export_hub
try:
    print(export_hub(sys.argv[1], "me/role", True, print))
except UserError as error:
    print(f"refused: {error}")
"""


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), MadeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    MadeHub.commits, MadeHub.refuse = [], False
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def upload(run: Path, hub: str, tmp_path: Path, token: str | None = "hf_made") -> str:
    """In a process of its own: the hub's client reads its environment once."""
    import os
    import subprocess
    import sys

    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
    env.pop("HF_TOKEN", None)
    if token:
        env["HF_TOKEN"] = token
    env["NO_PROXY"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, "-c", UPLOAD, str(run)], cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_upload_sends_the_model_and_nothing_private(run, hub, tmp_path):
    (run / "samples.jsonl").write_text("what a model said\n", encoding="utf-8")
    said = upload(run, hub, tmp_path)
    assert "me/role" in said
    [commit] = MadeHub.commits
    sent = {json.loads(line)["value"]["path"] for line in commit.splitlines() if '"file"' in line}
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "chat_template.jinja"} <= sent
    assert not [name for name in sent if name.startswith("checkpoints") or name == "samples.jsonl"]


def test_no_token_and_a_refusal_are_one_line(run, hub, tmp_path):
    assert "refused: no hub token is set" in upload(run, hub, tmp_path, token=None)
    MadeHub.refuse = True
    said = upload(run, hub, tmp_path)
    assert "refused: the hub did not take 'me/role'" in said
    assert "hf_made" not in said
    assert len(said.strip().splitlines()) <= 2
