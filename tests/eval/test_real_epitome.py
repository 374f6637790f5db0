"""`make real-epitome`: the chain reads what it made, and its page holds the figures it was given."""

import pytest

from data_prep.errors import UserError
from eval.chain import Stage
from eval.real_epitome import NEEDED, PUBLISHED, results_page, stages
from eval.real_esconv import data_folder
from eval.scorer_figures import FIGURES

FOUND = {"mean": 0.5, "low": 0.25, "high": 0.75, "n_cards": 3, "method": "BCa", "reason": None}


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCKIT_REAL_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"emotional-reactions-reddit\.csv") as caught:
        data_folder(NEEDED)
    assert "esconv" not in str(caught.value)


def test_the_recipe_reads_what_the_chain_made(tmp_path):
    from eval.chain import REPOSITORY
    from train.recipe import load_recipe

    recipe = load_recipe(REPOSITORY / "recipes" / "esc_rank" / "epitome-minilm.yaml", need_files=False)
    words = [word for stage in stages(tmp_path) for word in stage.arguments]
    assert recipe.data.ratings[0] in words
    assert f"{recipe.out}" in words
    assert recipe.data.train[0] == f"{words[words.index('split') + 3]}/train.jsonl"


def test_the_page_holds_the_figures_and_no_path():
    figures = dict.fromkeys(FIGURES, FOUND)
    predictor = {"figures": figures, "confusion": [[1, 0], [1, 1]]}
    parts = [
        {
            **{"dimension": name, "language": "en", "ratings": 3, "dialogues": 3, "constant_level": 0},
            **{"levels": [0, 1], "counts": [1, 2], "verdict": "beats the constant predictor", "differences": {}},
            "predictors": {"scorer": predictor, "constant": predictor},
        }
        for name in PUBLISHED
    ]
    page = results_page(
        [(Stage("Convert", ["data", "convert", "epitome", "/home/me/real/epitome"]), 61.0)],
        "/home/me/real",
        {
            "dimensions": parts,
            "baselines": "fitted on 9 training dialogues",
            "groups": 3,
            "level": "mode",
            "dialogues": 3,
        },
        {
            "data": {"train": {"dialogues": 7, "ratings": 21, "shortened": 1}},
            **{"steps": 3, "train_seconds": 8.0, "trainable_parameters": 1234},
        },
    )
    assert "/home/me" not in page
    assert "$ESCKIT_REAL_DATA/epitome  # 61 s" in page
    assert "| explorations | 0.500 [0.250, 0.750] | 0.500 [0.250, 0.750] | 0.67 0.67 | 0.938 / 0.659 |" in page
    assert "fitted on 9 training dialogues" in page
