"""Base models by hub id where no hub answers: one line, or what the hub client has kept."""

import os
import shutil
import subprocess
import sys

CODE = "from train.models import open_tokenizer; print(len(open_tokenizer('made-org/made-model')))"


def run(command, cache):
    """In its own process: the client reads its environment when it is imported. Nobody listens on port 9."""
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(cache), "NO_PROXY": "*"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_model_that_is_nowhere_is_one_line_without_a_hub(tmp_path):
    recipe = ["train", "recipes/quickstart/esc_role.yaml", f"out={tmp_path / 'out'}", "model.base=made-org/made-model"]
    done = run([sys.executable, "-m", "esckit", *recipe], tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()  # and not the client's own account of every attempt
    assert line.startswith(
        "error: model 'made-org/made-model' is not on this machine, and the hub is not reached; check"
    )


def test_what_the_hub_client_has_kept_needs_no_hub(tiny_model, tmp_path):
    kept = tmp_path / "models--made-org--made-model"
    shutil.copytree(tiny_model, kept / "snapshots" / ("a" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("a" * 40, encoding="utf-8")
    done = run([sys.executable, "-c", CODE], tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
