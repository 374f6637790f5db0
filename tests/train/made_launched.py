"""What the tests of real launches share."""

import json
from pathlib import Path
from typing import Any

import pytest

from train.launch import Launch, launch
from train.recipe import Recipe, load_recipe


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Rows are kept here, not in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESCKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def write_recipe(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def launched(recipe_file: Path, out: Path, config: str, resume: bool = False) -> Recipe:
    """The recipe trained by two processes of a configuration."""
    recipe = load_recipe(recipe_file, [f"out={out}"])
    arguments = [str(recipe_file), f"out={out}", *(["--resume"] if resume else [])]
    assert launch(recipe, Launch(config, 2, cpu=True), arguments) == 0
    return recipe
