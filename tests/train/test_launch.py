"""Launching without starting anything: the configurations, what is refused, what each process is told."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from data_prep.errors import UserError
from train import world
from train.launch import CONFIGS, Launch, check_launch, command, config_names, environment, find_config, read_config

ZERO = ["zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"]
NAMES = ["cpu", "fsdp2", "multi_gpu", "multi_node", "single_gpu", *ZERO]
SHARED = {"zero1": 1, "zero2": 2, "zero2_offload": 2, "zero3": 3, "zero3_offload": 3, "multi_node": 3}


def test_every_way_of_launching_is_there():
    assert config_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_reads_every_configuration(name):
    config = read_config(find_config(name))
    lines = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 40
    assert lines[0].startswith("# ")
    assert any("--accelerate " + name in line for line in lines)  # the command that uses it
    assert config.num_processes == (1 if name == "single_gpu" else -1)  # left to the launcher
    assert config.mixed_precision is None  # left to the recipe
    found = config.deepspeed_config.get("zero_stage")
    assert found == SHARED.get(name)
    if found:  # the trainer fills these in; two truths could disagree
        assert config.deepspeed_config["gradient_accumulation_steps"] == "auto"
        assert config.deepspeed_config["gradient_clipping"] == "auto"
        assert config.deepspeed_config.get("zero3_save_16bit_model") == (True if found == 3 else None)


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        (Launch("zero9", 2), 2, "no such file or configuration; known: cpu, fsdp2"),
        (Launch("zero3", 2), 0, "needs a GPU and none is visible"),
        (Launch("single_gpu"), 0, "needs a GPU and none is visible"),
        (Launch("single_gpu", 2), 4, "is for one process, 2 were asked for"),
        (Launch("single_gpu", machines=2), 4, "is for one process, 2 were asked for"),
        (Launch("multi_gpu", 4), 2, "4 on this machine, which has 2 GPU"),
        (Launch("fsdp2", 2, cpu=True), 0, "on GPUs only"),
        (Launch("cpu"), 0, "say how many processes"),
        (Launch("multi_node", 3, machines=2, main_process_ip="a", main_process_port=1), 8, "cannot be shared by 2"),
        (Launch("multi_node", 4, machines=2), 8, "give both"),
        (Launch("multi_node", 4, 2, 2, "a", 1), 8, "numbered from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wanted, gpus, message):
    with pytest.raises(UserError, match=message) as caught:
        check_launch(wanted, gpus)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["distributed_type: MULTI_GPU\nzero_stages: 3\n", "{", "- 1\n", "use_cpu: true\n", ""]
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml: is no accelerate configuration") as caught:
        check_launch(Launch(str(path), 2), 2)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_would_start_one_process_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("distributed_type: MULTI_CPU\nuse_cpu: true\n", encoding="utf-8")
    with pytest.raises(UserError, match="MULTI_CPU is not supported"):
        check_launch(Launch(str(path), 2), 2)


def test_without_a_number_every_gpu_of_every_machine_gets_a_process():
    assert check_launch(Launch("multi_gpu"), 4).processes == 4
    assert check_launch(Launch("multi_node", None, 2, 1, "node0", 29500), 8).processes == 16


def test_the_launcher_is_given_what_was_asked_for(tmp_path):
    checked = check_launch(Launch("multi_node", 16, 2, 1, "node0", 29500), 8)
    line = command(checked, ["r.yaml", "seed=3", "--resume"])
    options = dict(zip(line[3:13:2], line[4:14:2], strict=True))
    assert options == {
        "--config_file": str(CONFIGS / "multi_node.yaml"),
        "--num_processes": "16",
        "--num_machines": "2",
        "--machine_rank": "1",
        "--main_process_port": "29500",
    }
    assert line[-6:] == ["--module", "esckit", "train", "r.yaml", "seed=3", "--resume"]
    told = environment(checked, str(tmp_path))
    assert (told[world.ASKED], told[world.STRATEGY], told[world.REPORTS]) == ("16", "DEEPSPEED", str(tmp_path))
    assert "DS_ACCELERATOR" not in told


def test_on_the_processor_no_gpu_is_seen():
    told = environment(check_launch(Launch("zero2", 2, cpu=True), 4), "r")
    assert (told["CUDA_VISIBLE_DEVICES"], told["DS_ACCELERATOR"]) == ("", "cpu")
    assert "ACCELERATE_USE_CPU" not in told  # DeepSpeed would be left out in silence
    assert environment(check_launch(Launch("cpu", 2), 4), "r")["ACCELERATE_USE_CPU"] == "true"


def arguments(processes: int, strategy: str = "MULTI_GPU", gpus: int = 1) -> SimpleNamespace:
    state = SimpleNamespace(distributed_type=SimpleNamespace(value=strategy))
    return SimpleNamespace(world_size=processes, distributed_state=state, n_gpu=gpus)


@pytest.fixture
def no_launch(monkeypatch):
    for name in (world.ASKED, world.STRATEGY, world.REPORTS, "WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    return monkeypatch


def test_another_number_of_processes_than_asked_for_is_an_error(no_launch):
    world.check_world(arguments(1))
    no_launch.setenv(world.ASKED, "2")
    world.check_world(arguments(2))
    with pytest.raises(UserError, match="2 processes were asked for, but this run has 1"):
        world.check_world(arguments(1))
    no_launch.delenv(world.ASKED)
    no_launch.setenv("WORLD_SIZE", "4")  # torchrun's own
    with pytest.raises(UserError, match="4 processes were asked for, but this run has 1"):
        world.check_world(arguments(1))


def test_one_process_that_sees_several_gpus_is_told_to_choose(no_launch):
    says = r"^4 GPUs are visible and this is one process; .*--num-processes 4, or one: CUDA_VISIBLE_DEVICES=0 esckit"
    with pytest.raises(UserError, match=says):
        world.check_world(arguments(1, "NO", gpus=4))


def test_a_launch_that_lost_deepspeed_is_an_error(no_launch):
    no_launch.setenv(world.ASKED, "2")
    no_launch.setenv(world.STRATEGY, "DEEPSPEED")
    world.check_world(arguments(2, "DEEPSPEED"))
    with pytest.raises(UserError, match="says DEEPSPEED, but this run is MULTI_CPU"):
        world.check_world(arguments(2, "MULTI_CPU"))


def test_one_process_where_accelerate_was_asked_for_two_is_an_error(no_launch):
    no_launch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    no_launch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match="started one"):
        world.check_world(arguments(1))


def test_the_first_process_speaks_for_all(tmp_path, no_launch):
    no_launch.setenv(world.REPORTS, str(tmp_path))
    no_launch.setattr(sys, "stdout", sys.stdout)  # put back after the test
    for rank in ("1", "0"):
        no_launch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as ended, world.process_report():
            raise UserError(f"rank {rank} found a fault")
        assert ended.value.code == 2
    assert world.read_reports(tmp_path) == (2, "error: rank 0 found a fault")
    assert world.read_reports(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--accelerate", "zero3", "--num-processes", "2"], "error: --accelerate zero3: needs a GPU"),
        (["--num-processes", "2"], "belong to --accelerate"),
        (["--accelerate", "cpu", "--num-processes", "2", "data.train=nowhere.jsonl"], "nowhere.jsonl not found"),
    ],
)
def test_the_command_line_refuses_before_it_starts_anything(options, message, tmp_path):
    recipe = tmp_path / "r.yaml"
    data = tmp_path / "d.jsonl"
    data.write_text("", encoding="utf-8")
    recipe.write_text(
        json.dumps(
            {
                "kind": "seeker",
                "out": str(tmp_path / "out"),
                "model": {"base": str(tmp_path)},
                "data": {"train": str(data), "max_length": 64},
            }
        ),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "esckit", "train", str(recipe), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
