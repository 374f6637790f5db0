"""A scorer or judge against human ratings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from eval.progress import progress_bar

GROUP_BY = "card,situation,opening,text"


@dataclass(frozen=True)
class JudgeQuestion:
    """All that `esckit evaluate` was asked of a scorer or judge."""

    model: str
    on: str
    ratings: Sequence[str]
    rubric: str | None = None
    baselines_from: Sequence[str] = ()
    group_by: str = GROUP_BY
    level: str = "median"
    batch_size: int = 4
    limit: int | None = None


def is_scorer(model: str) -> bool:
    """Whether a name is the folder of a trained scorer."""
    return (Path(model) / "scorer_config.json").is_file()


def evaluate_judge(asked: JudgeQuestion) -> dict[str, Any]:
    """What `esckit evaluate --json` prints. Raises UserError for data that do not fit."""
    from data_prep.cli import parse_names
    from data_prep.records import Dialogue, read_records
    from eval.evaluate_scorer import evaluate_scorer
    from train.rank import read_ratings
    from train.scorer import Scorer

    if not asked.ratings:
        raise UserError("--ratings is missing: a scorer is measured against what people said of the dialogues")
    dialogues = read_records(asked.on, Dialogue)[: asked.limit]
    learned = [dialogue for file in asked.baselines_from for dialogue in read_records(file, Dialogue)]
    scorer = Scorer.load(asked.model, asked.rubric)
    others = {one.rubric.name for one in scorer.config.rubrics} - {scorer.rubric.name}
    ratings = read_ratings(list(asked.ratings), scorer.rubric, others=others)
    with progress_bar("score", len(dialogues)) as advance:
        scores = scorer.score(dialogues, asked.batch_size, advance)
    found = evaluate_scorer(
        scorer.rubric,
        scores,
        dialogues,
        ratings,
        scorer.config.training_levels,
        learned,
        parse_names(asked.group_by, "--group-by"),
        asked.level,
    )
    shortened = scorer.shortened(dialogues)
    return {"scorer": scorer.identity(), "on": Path(asked.on).name, "shortened": shortened, **asdict(found)}
