"""Which checkpoint a run continues from: damage of any part is seen, and told in one line."""

import shutil
from pathlib import Path

import pytest
import torch

from data_prep.errors import UserError
from tests.train.made import made_checkpoint
from train.checkpoints import checkpoint_problem, last_checkpoint

PARTS = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def deepspeed_checkpoint(folder: Path, step: int) -> Path:
    checkpoint = made_checkpoint(folder, step, world_size=2)
    for name in ("optimizer.pt", "scheduler.pt"):
        (checkpoint / name).unlink()
    shards = checkpoint / f"global_step{step}"
    shards.mkdir()
    for name in ("mp_rank_00_model", "zero_pp_rank_0_mp_rank_00_optim", "zero_pp_rank_1_mp_rank_00_optim"):
        torch.save({"state": torch.ones(4)}, shards / f"{name}_states.pt")
    (checkpoint / "latest").write_text(shards.name, encoding="utf-8")
    return checkpoint


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "zeros"])
def test_damage_of_any_part_is_seen(tmp_path, part, damage):
    file = made_checkpoint(tmp_path, 5) / part
    assert checkpoint_problem(file.parent) is None
    content = file.read_bytes()
    file.write_bytes({"cut": content[:-1], "empty": b"", "zeros": bytes(len(content)), "gone": b""}[damage])
    if damage == "gone":
        file.unlink()
    problem = checkpoint_problem(file.parent)
    assert problem is not None
    assert "no weights" in problem if (damage == "gone" and part == PARTS[0]) else part in problem


@pytest.mark.parametrize(
    "part",
    [
        "latest",
        "rng_state_1.pth",
        "global_step5/mp_rank_00_model_states.pt",
        "global_step5/zero_pp_rank_1_mp_rank_00_optim_states.pt",
    ],
)
def test_every_processs_part_of_a_deepspeed_checkpoint_is_needed(tmp_path, part):
    checkpoint = deepspeed_checkpoint(tmp_path, 5)
    assert checkpoint_problem(checkpoint, 2) is None
    assert last_checkpoint(tmp_path, 2) == str(checkpoint)
    (checkpoint / part).unlink()
    assert checkpoint_problem(checkpoint, 2)


def test_a_cut_deepspeed_shard_is_seen(tmp_path):
    checkpoint = deepspeed_checkpoint(tmp_path, 5)
    shard = checkpoint / "global_step5" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shard.write_bytes(shard.read_bytes()[:100])
    assert checkpoint_problem(checkpoint, 2) == f"{shard.relative_to(checkpoint)} ends early"


def test_damaged_checkpoints_are_put_aside_with_one_warning(tmp_path, capsys):
    whole = made_checkpoint(tmp_path, 9)
    made_checkpoint(tmp_path, 8)
    for step, part in ((10, "optimizer.pt"), (11, "trainer_state.json")):
        (made_checkpoint(tmp_path, step) / part).unlink()
    assert last_checkpoint(tmp_path, 1, main_process=False) == str(whole)
    assert capsys.readouterr().err == ""
    assert last_checkpoint(tmp_path, 1) == str(whole)
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkpoint-11 (trainer_state.json is missing), checkpoint-10 (optimizer.pt is missing)" in line
    assert line.endswith("continuing from checkpoint-9")
    # The library's rotation must not count them.
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint-8", "checkpoint-9", "incomplete-10", "incomplete-11"}
    assert last_checkpoint(tmp_path, 1) == str(whole)
    assert capsys.readouterr().err == ""


def test_nothing_but_damaged_checkpoints_begins_anew_and_says_so(tmp_path, capsys):
    (made_checkpoint(tmp_path, 3) / "rng_state.pth").unlink()
    assert last_checkpoint(tmp_path, 1) is None
    assert "no earlier one: starting from the beginning" in capsys.readouterr().err
    assert last_checkpoint(tmp_path / "absent", 1) is None


def test_a_checkpoint_of_weights_alone_is_refused(tmp_path):
    checkpoint = made_checkpoint(tmp_path, 3)
    for part in PARTS[1:4]:
        (checkpoint / part).unlink()
    with pytest.raises(UserError, match=r"^[^\n]*holds weights only \(training\.save_only_model\)[^\n]*$"):
        last_checkpoint(tmp_path, 1)


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (4, 2)])
def test_another_number_of_processes_is_refused(tmp_path, before, now):
    made_checkpoint(tmp_path, 3, before)
    with pytest.raises(UserError, match=rf"of {before} process\(es\), this one has {now} "):
        last_checkpoint(tmp_path, now)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_the_order_is_that_of_the_steps(tmp_path):
    for step in (9, 10, 100):
        made_checkpoint(tmp_path, step)
    assert last_checkpoint(tmp_path, 1) == str(tmp_path / "checkpoint-100")
    shutil.rmtree(tmp_path / "checkpoint-100")
    assert last_checkpoint(tmp_path, 1) == str(tmp_path / "checkpoint-10")
