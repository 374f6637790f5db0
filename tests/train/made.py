"""Small recipes and dialogues for tests of the training floor."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from train.recipe import Recipe, load_recipe

SAMPLES = Path(__file__).parents[2] / "data_prep" / "samples"


def write_lines(path: Path, values: list[Any]) -> Path:
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recipe_of(folder: Path, content: dict[str, Any], *overrides: str) -> Recipe:
    """A checked recipe from its content, through a file as users write it (JSON is YAML)."""
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return load_recipe(path, overrides)


def chat_content(model: Path, out: Path, train: Path, **training: Any) -> dict[str, Any]:
    return {
        "kind": "seeker",
        "out": str(out),
        "model": {"base": str(model)},
        "lora": {"r": 4, "alpha": 8, "dropout": 0.1},
        "data": {"train": str(train), "max_length": 2048},
        "training": {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "logging_steps": 1,
            **training,
        },
    }


def dialogue(identifier: str, *texts: str, card: bool = True, opening: str = "supporter") -> dict[str, Any]:
    """A dialogue whose sides alternate, the supporter first unless said otherwise."""
    sides = ("supporter", "seeker") if opening == "supporter" else ("seeker", "supporter")
    found: dict[str, Any] = {
        "id": identifier,
        "language": "en",
        "source": "made",
        "turns": [{"speaker": sides[index % 2], "text": text} for index, text in enumerate(texts)],
    }
    if card:
        found["card"] = {"id": f"card-{identifier}", "language": "en", "problem": "bad sleep", "source": "made"}
    return found


def made_checkpoint(folder: Path, step: int, world_size: int = 1) -> Path:
    """A whole checkpoint as the trainer leaves it, small; of as many processes as said."""
    from safetensors.torch import save_file

    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    save_file({"lora_A": torch.ones(2, 3), "lora_B": torch.ones(3, 2)}, checkpoint / "adapter_model.safetensors")
    ranks = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{rank}.pth" for rank in range(world_size)]
    for name in ("optimizer.pt", "scheduler.pt", *ranks):
        torch.save({"state": torch.ones(4)}, checkpoint / name)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    return checkpoint


def weights_of(out: str | Path) -> dict[str, torch.Tensor]:
    files = [path for path in Path(out).rglob("*.safetensors") if "checkpoints" not in path.parts]
    return {f"{path.name} {name}": tensor for path in files for name, tensor in load_file(path).items()}


def assert_same_result(left: str | Path, right: str | Path) -> None:
    first, second = weights_of(left), weights_of(right)
    assert first
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def as_if_killed_after(recipe: Recipe, step: int, folder: Path) -> Recipe:
    """The same run in another folder, as if it had been killed after the checkpoint of `step`."""
    killed = recipe.model_copy(update={"out": str(folder / "out")})
    checkpoint = f"checkpoints/checkpoint-{step}"
    shutil.copytree(Path(recipe.out) / checkpoint, folder / "out" / checkpoint)
    saved = (Path(recipe.out) / "recipe.yaml").read_text(encoding="utf-8").replace(recipe.out, killed.out)
    (folder / "out" / "recipe.yaml").write_text(saved, encoding="utf-8")
    shutil.copy(Path(recipe.out) / "start.json", folder / "out")
    return killed
