"""From a spreadsheet to an evaluated scorer in one command, on a rubric and dialogues that the code has never seen."""

import json
from pathlib import Path

import pytest
import yaml
from openpyxl import Workbook
from typer.testing import CliRunner

from data_prep.records import Dialogue, read_records
from esckit import app
from tests.end_to_end.test_chain import esckit
from tests.train.made import read_lines, write_lines
from train.scorer import Scorer

RECIPE = Path(__file__).parents[2] / "recipes/esc_rank/from_ratings.yaml"
NAMES = ("patience", "humour", "idle_talk")
KIND = ("that was stupid of you", "I see", "how hard that must be, I am here", "真不容易，我陪着你")


def levels_of(number: int) -> dict[str, int]:
    """The kinder the reply, the higher the level; the third scale has an own way."""
    kindness = number % 4
    return {"patience": min(kindness, 2), "humour": 1 + kindness, "idle_talk": 7 - 2 * kindness}


@pytest.fixture(scope="module")
def brought(tmp_path_factory) -> Path:
    """rubric.yaml, d.jsonl and sheet.xlsx as somebody would bring them."""
    folder = tmp_path_factory.mktemp("brought")
    words = {"en": "how much of it", "zh": "多少"}
    dimensions = [
        {
            "name": name,
            "scale": list(scale),
            "title": {"en": name, "zh": name},
            "question": words,
            "anchors": dict.fromkeys(range(scale[0], scale[1] + 1), words),
        }
        for name, scale in (("patience", (0, 2)), ("humour", (1, 5)), ("idle_talk", (1, 7)))
    ]
    rubric = {"name": "tea_house", "version": 3, "description": "made up", "dimensions": dimensions}
    (folder / "rubric.yaml").write_text(yaml.safe_dump(rubric, allow_unicode=True), encoding="utf-8")
    dialogues = [
        {
            "id": f"talk-{n:02d}",
            "language": "zh" if n % 4 == 3 else "en",
            "source": "made",
            "situation": f"trouble number {n} with {chr(97 + n % 26) * 9}",
            "turns": [
                {"speaker": "seeker", "text": f"my number is {n} and {chr(97 + n % 26) * 9} is what troubles me"},
                {"speaker": "supporter", "text": KIND[n % 4]},
            ],
        }
        for n in range(40)
    ]
    write_lines(folder / "d.jsonl", dialogues)
    write_sheet(folder / "sheet.xlsx", {})
    return folder


def write_sheet(path: Path, changed: dict[tuple[int, int], object], more: tuple[str, ...] = ()) -> None:
    """Two raters; the second gave no `humour` for every third dialogue. `changed` are cells (row, column) from 1."""
    book = Workbook()
    sheet = book.active
    sheet.append(["dialogue_id", "rater", *NAMES])
    for n, name in enumerate([*(f"talk-{n:02d}" for n in range(40)), *more]):
        given = levels_of(n)
        sheet.append([name, "ann", *given.values()])
        sheet.append([name, "bob", given["patience"], None if n % 3 == 0 else given["humour"], given["idle_talk"]])
    for (row, column), value in changed.items():
        sheet.cell(row, column).value = value
    book.save(path)


def command(brought: Path, sheet: Path, encoder: Path, out: Path) -> list[str]:
    return [
        *("train", str(RECIPE), f"data.ratings={sheet}", f"data.dialogues={brought / 'd.jsonl'}"),
        *(f"rubric={brought / 'rubric.yaml'}", f"out={out}", f"model.base={encoder}"),
        *("data.max_length=96", "training.num_train_epochs=2", "data.group_by=[situation]"),
    ]


@pytest.fixture(scope="module")
def finished(brought, tiny_encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("from-ratings") / "out"
    return out, esckit(*command(brought, brought / "sheet.xlsx", tiny_encoder, out))


def test_one_command_plans_trains_measures_and_reports(finished, brought):
    out, done = finished
    for said in ("parameters", "steps", "saved in", "the test part, which nothing was chosen by", "report:"):
        assert said in done.stdout
    report = (out / "report.md").read_text(encoding="utf-8")
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert "illustrative" not in report
    for name in NAMES:
        assert f"| {name} |" in report
        assert f"{name} (" in report  # the verdict against the constant, in words
    assert "constant" in report
    assert "no clinical judgment" in report
    data = metrics["data"]
    assert sum(data[part]["dialogues"] for part in ("train", "validation", "test")) == 40
    assert f"| test | {data['test']['dialogues']} | {data['test']['ratings']} |" in report
    assert [len(counts) for counts in data["train"]["per_level"].values()] == [3, 5, 7]
    parts = [{one["id"] for one in read_lines(out / "data" / f"{name}.jsonl")} for name in ("validation", "test")]
    assert not parts[0] & parts[1]
    assert len(read_lines(out / "data" / "ratings.jsonl")) == 40 * 6 - 14


def test_the_scorer_it_made_speaks_of_that_rubric(finished, brought):
    out, _ = finished
    scorer = Scorer.load(out, rubric=str(brought / "rubric.yaml"))
    assert scorer.rubric.name == "tea_house"
    (found,) = scorer.score(read_records(brought / "d.jsonl", Dialogue)[:1])
    assert {name: len(levels) for name, levels in found.items()} == {"patience": 3, "humour": 5, "idle_talk": 7}
    assert all(sum(levels) == pytest.approx(1) for levels in found.values())


def test_again_it_says_so_and_changes_nothing(finished, brought, tiny_encoder):
    out, _ = finished
    before = (out / "report.md").read_bytes()
    line = command(brought, brought / "sheet.xlsx", tiny_encoder, out)
    done = CliRunner().invoke(app, [*line, "--resume"], catch_exceptions=False)
    assert done.stdout == f"already finished: {out}\n"
    assert (out / "report.md").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({(4, 3): 3}, "row 4, column C (patience): 3 is off the scale, expected a whole level 0 to 2"),
        ({(4, 5): "lots"}, "row 4, column E (idle_talk): found "),
        ({(1, 4): "humor"}, "unknown column 'humor'; did you mean 'humour'?"),
    ],
)
def test_a_faulty_sheet_is_one_line_and_nothing_is_trained(brought, tiny_encoder, tmp_path, changed, says):
    from data_prep.errors import UserError
    from train.rank import train_scorer
    from train.recipe import load_recipe

    write_sheet(tmp_path / "sheet.xlsx", changed)
    line = command(brought, tmp_path / "sheet.xlsx", tiny_encoder, tmp_path / "out")
    with pytest.raises(UserError) as error:
        train_scorer(load_recipe(RECIPE, line[2:]))
    assert says in str(error.value)
    assert "correct the sheet, or keep the rest of it with: esckit ratings import" in str(error.value)
    assert "\n" not in str(error.value)


def test_ratings_of_unknown_dialogues_are_counted(brought, tiny_encoder, tmp_path):
    from train.rank import build_trainer
    from train.recipe import load_recipe

    write_sheet(tmp_path / "sheet.xlsx", {}, more=("never-1", "never-2"))
    line = command(brought, tmp_path / "sheet.xlsx", tiny_encoder, tmp_path / "out")
    _, report = build_trainer(load_recipe(RECIPE, line[2:]))
    assert report["rated_dialogues_in_no_file"] == 2
