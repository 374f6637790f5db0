"""The published tables, and a report beside them."""

import csv

import pytest
from scipy.stats import kendalltau

from data_prep.errors import UserError
from eval.judge import ScorerJudge, score_run
from eval.reference import (
    CARDS,
    LEADERBOARDS,
    PUBLISHED,
    SPELT,
    compare_with,
    kendall,
    load_leaderboard,
    published_name,
)
from eval.report import build_report
from eval.runs import append_to_run, load_run
from tests.eval.made_run import MadeScorer, make_run

DIMENSIONS = ["fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall"]


@pytest.mark.parametrize(("language", "count"), [("en", 14), ("zh", 12)])
def test_published_averages_recompute(language, count):
    systems = load_leaderboard(language)
    assert len(systems) == count
    for row in systems.values():
        assert sum(row[name] for name in DIMENSIONS) / 7 == pytest.approx(row["average"], abs=0.011)


def test_the_paper_says_of_its_scorer_what_the_table_holds():
    rows = list(csv.DictReader((PUBLISHED / "esc_rank.csv").open(encoding="utf-8")))
    assert {row["dimension"] for row in rows} == {*DIMENSIONS, "average_as_printed"}
    of = {(row["dimension"], row["metric"], row["system"]): row for row in rows}
    assert len(of) == len(rows) == 8 * 2 * 3
    for dimension in DIMENSIONS:
        exact, soft = (of[dimension, metric, "esc_rank"] for metric in ("acc", "acc_soft"))
        assert float(exact["second_number_en_inferred"]) < float(soft["second_number_en_inferred"])


def test_names_are_matched_as_wholes():
    systems = load_leaderboard("en")
    assert published_name("hf:Qwen/Qwen1.5-7B-Chat", systems) == "Qwen1.5-7B-Chat"
    assert published_name("openai:meta-llama/Meta-Llama-3-8B-Instruct@http://h:1/v1", systems) == "LLaMA3-8B-Instruct"
    assert published_name("EmoLLM", systems) == "EmoLLM"
    assert published_name("hf:Qwen/Qwen1.5-72B-Chat", systems) is None
    assert set(SPELT) | {"GPT-4", "ChatGPT"} == set(systems)


def test_tau_is_scipys_and_few_systems_have_no_interval():
    pairs = [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0), (4.0, 5.0), (5.0, 4.0), (6.0, 6.0)]
    found = kendall(pairs)
    assert found.mean == pytest.approx(kendalltau(*zip(*pairs, strict=True)).statistic)
    assert found.low < found.mean <= found.high
    assert "too few" in kendall(pairs[:3]).reason
    assert kendall([]).mean is None
    assert "same score" in kendall([(1.0, 1.0), (1.0, 2.0)]).reason


def test_a_report_beside_the_table(tmp_path):
    folders = [make_run(tmp_path / name, name) for name in ("hf:EmoLLM", "hf:SoulChat", "mine")]
    for folder in folders:
        with append_to_run(folder) as run:
            score_run(run, ScorerJudge(MadeScorer()))
    report = build_report([load_run(folder) for folder in folders])
    found = compare_with(report, "en")
    assert set(found.matched.values()) == {"EmoLLM", "SoulChat"}
    assert found.tau.mean in (-1, 1)
    assert "too few" in found.tau.reason
    said = " ".join(found.notes)
    for part in ("made-seeker", "made-rank@", f"there {CARDS['en']} of high", "only the order"):
        assert part in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", ":1: needs the columns model and average"),
        ("model,average\nx,120\n", ":2: average: found '120', expected a number from 0 to 100"),
        ("model,average\nx,nan\n", ":2: average: found 'nan'"),
        ("model,average\nx,1\nx,2\n", ":3: 'x' occurs twice"),
        ("model,average\n", "holds no system"),
    ],
)
def test_a_table_of_ones_own_that_is_wrong(tmp_path, text, says):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=says):
        load_leaderboard(str(path))
    assert LEADERBOARDS["en"].is_file()


def test_no_such_table():
    with pytest.raises(UserError, match="neither en nor zh nor a file"):
        load_leaderboard("fr")
