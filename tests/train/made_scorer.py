"""Small scorer recipes, on the bundled ratings unless other data are given."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from data_prep.records import Dialogue
from tests.train.made import SAMPLES, recipe_of
from train.models import load_tokenizer
from train.recipe import ScorerRecipe
from train.scorer_model import ScorerModel
from train.scorer_text import encode_dialogue, window_batch


def scorer_content(model: Path, out: Path, **training: Any) -> dict[str, Any]:
    return {
        "kind": "scorer",
        "rubric": "esc_eval",
        "out": str(out),
        "model": {"base": str(model)},
        "lora": {"r": 4, "alpha": 8, "dropout": 0.1},
        "data": {
            "train": str(SAMPLES / "rated_dialogues.jsonl"),
            "ratings": str(SAMPLES / "ratings.jsonl"),
            "max_length": 256,
            "limit": 12,
        },
        "training": {
            "learning_rate": 1e-2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "logging_steps": 1,
            **training,
        },
    }


def scorer_recipe(folder: Path, content: dict[str, Any], *overrides: str) -> ScorerRecipe:
    recipe = recipe_of(folder, content, *overrides)
    assert isinstance(recipe, ScorerRecipe)
    return recipe


def live_scores(model: ScorerModel, recipe: ScorerRecipe, dialogues: Sequence[Dialogue]) -> torch.Tensor:
    """Log probabilities [dialogues, dimensions, levels], each dialogue read alone by the model as it stands."""
    tokenizer = load_tokenizer(recipe.model)
    model.eval()
    rows = [
        encode_dialogue(tokenizer, dialogue, recipe.data.max_length, recipe.data.long_dialogues)[0]
        for dialogue in dialogues
    ]
    with torch.no_grad():
        return torch.cat([model(**window_batch([row], tokenizer.pad_token_id))["log_probabilities"] for row in rows])
