"""`make real-supporter`: the chain reads what it made, and its page holds the figures it was given and no path."""

from eval.chain import Stage
from eval.real_supporter import results_page, stages
from tests.eval.test_real_esconv import FOUND, UNDEFINED


def test_the_chain_reads_only_what_an_earlier_stage_made(real_data):
    made: set[str] = set()
    for stage in stages(real_data):
        words = list(stage.arguments)
        outputs = {words[at + 1] for at, word in enumerate(words) if word == "--out"}
        for file in {word for word in words if word.startswith("runs/real/") and word.endswith(".jsonl")} - outputs:
            assert file in made or any(file.startswith(folder + "/") for folder in made), (stage.title, file)
        made |= outputs


def test_the_page_holds_the_figures_and_no_path():
    figures = {
        "turns": 321,
        "accuracy": FOUND,
        "macro_f1": UNDEFINED,
        "mass": FOUND,
        "constant": "Question",
        "constant_accuracy": FOUND,
        "constant_macro_f1": 0.07,
        "counts": {"Question": 200, "Others": 121},
    }
    rows = {"dialogues": 7, "supervised_tokens": 1100, "shortened": 1}
    page = results_page(
        commands=[(Stage("Train", ["train", "/home/me/real/x.yaml"]), 61.0)],
        data="/home/me/real",
        found={
            "models": {"after": FOUND, "before": UNDEFINED},
            "ratio": FOUND,
            "dialogues": 5,
            "tokens": 9876,
            "strategies": {"after": figures, "before": figures},
        },
        trained={"data": {"train": rows}, "steps": 3, "train_seconds": 60.0, "trainable_parameters": 1234},
    )
    for figure in ("0.50 [0.25, 0.75]", "undefined (no variance)", "9,876", "0.07", "321 turns", "always Question"):
        assert figure in page
    assert "/home/me" not in page
