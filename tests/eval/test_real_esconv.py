"""`make real`: says what it needs, and its page holds the figures it was given."""

import pytest

from data_prep.errors import UserError
from eval.chain import Stage
from eval.real_esconv import NEEDED, data_folder, stages
from eval.real_results import interval, results_page
from eval.scorer_figures import FIGURES

FOUND = {"mean": 0.5, "low": 0.25, "high": 0.75, "n_cards": 3, "method": "BCa", "reason": None}
UNDEFINED = {"mean": None, "low": None, "high": None, "n_cards": 3, "method": None, "reason": "no variance"}


def test_missing_files_are_named_with_where_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCKIT_REAL_DATA", str(tmp_path))
    with pytest.raises(UserError) as caught:
        data_folder()
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in NEEDED)


def test_the_chain_reads_only_what_an_earlier_stage_made(real_data):
    chain = stages(real_data)
    made = set()
    for stage in chain:
        words = [word.split("=", 1)[-1] for word in stage.arguments]
        wanted = {word for word in words if word.startswith("runs/real/") and word.endswith(".jsonl")}
        outputs = {words[at + 1] for at, word in enumerate(words) if word in ("--out", "--ratings-out")}
        for file in wanted - outputs:
            assert file in made or any(file.startswith(folder + "/") for folder in made), (stage.title, file)
        made |= outputs


def test_intervals_say_why_there_is_none():
    assert interval(FOUND) == "0.50 [0.25, 0.75]"
    assert interval(UNDEFINED) == "undefined (no variance)"


def test_the_page_holds_the_figures_and_no_path():
    counts = {"dialogues": 7, "supervised_tokens": 11, "shortened": 1, "ratings": 14, "without_rating": 2}
    figures = dict.fromkeys(FIGURES, FOUND)
    part = {
        **{"dimension": "empathy", "language": "en", "ratings": 3, "dialogues": 3, "constant_level": 5},
        **{"levels": [1, 2], "counts": [1, 2], "verdict": "does not beat the constant predictor", "differences": {}},
        "predictors": {
            "scorer": {"figures": figures, "confusion": [[1, 0], [1, 1]]},
            "constant": {"figures": {**figures, "kappa": UNDEFINED}, "confusion": [[0, 1], [0, 2]]},
        },
    }
    page = results_page(
        commands=[(Stage("Convert", ["data", "convert", "esconv", "/home/me/real/train.txt"]), 61.0)],
        data="/home/me/real",
        leaks={"leaks": [{"kind": "opening", "shared": 1, "ids_a": ["a"], "ids_b": ["b", "c"]}]},
        perplexity={"models": {"after": FOUND, "before": UNDEFINED}, "ratio": FOUND, "dialogues": 5, "tokens": 9},
        agreement={"dimensions": [part], "baselines": "fitted on 9 training dialogues", "groups": 3, "level": "mode"},
        role={"data": {"train": counts}, "steps": 3, "train_seconds": 60.0, "trainable_parameters": 1234},
        rank={"data": {"train": counts, "validation": counts}, "steps": 4, "train_seconds": 8.0},
        report={
            "answer": "No clear difference.",
            "warnings": ["only 3 cards"],
            "supporters": [
                {"label": "a", "dialogues": 3, "end_reasons": {"rounds": 3}, "scores": {"empathy": {"percent": FOUND}}}
            ],
        },
    )
    assert "/home/me" not in page
    assert "$ESCKIT_REAL_DATA/train.txt  # 61 s" in page
    assert "| base | undefined (no variance) |" in page
    assert "opening: 1 (1 training and 2 held-out dialogues)" in page
    assert "does not beat the constant predictor" in page
    assert "over 3 demo cards" in page
