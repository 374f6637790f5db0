"""`make real-seeker`: its commands, and a page whose every figure comes from what they printed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.records import write_records
from eval.cli_simulate import read_cards
from eval.real_seeker import curve, results_page, stages, triple
from tests.eval.made_run import make_transcript

LIKENESS = {
    "simulated": 60,
    "real": 195,
    "features": [
        {
            "name": "words a turn",
            "simulated": [9.0, 8.0, 10.0],
            "real": [20.0, 19.0, 21.0],
            "difference": [-11, -12, -10],
        }
    ],
    "thanks_by_round": [[0.1, 0.2], [0.0, 0.3]],
    "disclosure": [[0.4, 0.5], [0.1, 0.2]],
    "auc": 0.9,
    "auc_low": 0.85,
    "auc_high": 0.95,
    "reason": None,
}
RATE = {"side": "seeker", "fault": "speaks_as_ai", "dialogues": 3, "of": 60, "share": 0.05, "low": 0.02, "high": 0.1}
TRAINED = {"data": {"train": {"dialogues": 120, "supervised_tokens": 30_000}}, "train_seconds": 510.0}


def test_commands_are_valid_and_use_the_same_cards_and_supporter():
    chain = stages(Path("/data"))
    simulations = [list(stage.arguments) for stage in chain if stage.arguments[0] == "simulate"]
    assert len(simulations) == 2
    different = [pair for pair in zip(*simulations, strict=True) if pair[0] != pair[1]]
    assert len(different) == 2, "the seeker and the folder, nothing else"
    for stage in chain:
        words = [word for word in stage.arguments if word.startswith("--")]
        known = CliRunner().invoke(esckit.app, [*[w for w in stage.arguments[:2] if w.isalpha()], "--help"]).output
        assert stage.arguments[0] in ("data", "model") or all(word[:12] in known for word in words)


def test_the_page_holds_what_was_printed():
    other = {**LIKENESS, "auc": None, "reason": "too few dialogues"}
    audits = [{"likeness": LIKENESS, "rates": [RATE]}, {"likeness": other, "rates": [{**RATE, "share": 0.25}]}]
    chain = [(stage, 60.0) for stage in stages(Path("/data/of/mine"))]
    page = results_page(chain, "/data/of/mine", audits, TRAINED)
    for part in (
        "0.90 [0.85, 0.95]",
        "too few dialogues",
        "20.00 [19.00, 21.00]",
        "510 s",
        "30,000",
        "0.25 [0.02, 0.10]",
    ):
        assert part in page
    assert "/data/of/mine" not in page
    assert "$ESCKIT_REAL_DATA" in page


def test_small_formats():
    assert triple((0.5, None, None)) == "0.50"
    assert curve([]) == "unknown"
    assert curve([0.1, 0.25]) == "10%, 25%"


def test_cards_of_dialogues_can_be_played(tmp_path):
    file = tmp_path / "dialogues.jsonl"
    made = [make_transcript(f"c{n // 2}", n % 2).to_dialogue() for n in range(6)]
    write_records(file, made)
    assert [card.id for card in read_cards(file, None, None)] == ["c0", "c1", "c2"], "each card once"
    write_records(file, [one.model_copy(update={"card": None}) for one in made])
    with pytest.raises(UserError, match="holds dialogues without role cards; make some: esckit cards extract"):
        read_cards(file, None, None)
