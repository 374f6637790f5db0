"""A scorer or judge against human ratings, and what its levels depend on besides quality."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import UserError
from data_prep.records import Dialogue
from data_prep.rubric import Rubric
from eval.judge import Judge, ScorerJudge, scorer_label
from eval.judge_input import Judged, JudgmentStore, as_transcript, open_store
from eval.progress import progress_bar

GROUP_BY = "card,situation,opening,text"


@dataclass(frozen=True)
class JudgeQuestion:
    """All that `esckit evaluate` was asked of a scorer or judge. `asked`: how a chat model is asked (load_judge)."""

    model: str
    on: str
    ratings: Sequence[str]
    rubric: str | None = None
    baselines_from: Sequence[str] = ()
    group_by: str = GROUP_BY
    level: str = "median"
    batch_size: int = 4
    limit: int | None = None
    out: Path | None = None
    probe: bool = False
    asked: Mapping[str, Any] | None = None
    seed: int = 0


def is_scorer(model: str) -> bool:
    """Whether a name is the folder of a trained scorer."""
    return (Path(model) / "scorer_config.json").is_file()


def open_judge(asked: JudgeQuestion, dialogues: Sequence[Dialogue]) -> Judge:
    """The judge of a name: a trained scorer's folder, or a chat model that is asked. Raises UserError."""
    from eval.generative_scorer import load_generative_judge
    from eval.judge import load_judge

    if is_scorer(asked.model):
        return load_judge(asked.model, asked.rubric)
    if asked.model.startswith("openai:"):
        from eval.llm_judge import load_endpoint_judge

        how = dict(asked.asked or {})
        for name in ("adapters", "official"):
            if how.pop(name, None) is not None:
                raise UserError(f"--{name} is for weights on this machine (hf:PATH), not for a server's model")
        return load_endpoint_judge(asked.model, asked.rubric or "esc_eval", **how)
    languages = {one.language for one in dialogues}
    return load_generative_judge(asked.model, languages, asked.rubric or "esc_eval", **(asked.asked or {}))


def read_rated(on: str) -> list[Dialogue]:
    """Dialogues of a file, or the whole ones of a run folder, whose ids are their keys there."""
    from data_prep.records import read_records
    from eval.runs import load_run

    if not Path(on).is_dir():
        return read_records(on, Dialogue)
    whole = [one.to_dialogue() for one in load_run(on).transcripts() if not one.end_reason.is_fault]
    if not whole:
        raise UserError(f"{on}: holds no whole dialogue; finish `esckit simulate` first")
    return whole


def evaluate_judge(asked: JudgeQuestion) -> dict[str, Any]:
    """What `esckit evaluate --json` prints. Raises UserError for data that do not fit."""
    from data_prep.cli import parse_names
    from data_prep.records import read_records
    from eval.evaluate_scorer import evaluate_scorer, group_numbers
    from train.rank import read_ratings

    if not asked.ratings:
        raise UserError("--ratings is missing: a scorer is measured against what people said of the dialogues")
    dialogues = read_rated(asked.on)[: asked.limit]
    learned = [dialogue for file in asked.baselines_from for dialogue in read_records(file, Dialogue)]
    judge = open_judge(asked, dialogues)
    others, training_levels = _of_scorer(judge)
    ratings = read_ratings(list(asked.ratings), judge.rubric, others=others)
    group_by = parse_names(asked.group_by, "--group-by")
    with open_store(asked.out) as store:
        with progress_bar("score", len(dialogues)) as advance:
            judged = store.judge(judge, dialogues, asked.batch_size, advance)
        found = evaluate_scorer(
            judge.rubric,
            _scores(judged, judge.rubric),
            dialogues,
            ratings,
            training_levels,
            learned,
            group_by,
            asked.level,
            named_levels=not _has_probabilities(judged),
        )
        result = {
            "scorer": judge.identity(),
            "label": scorer_label(judge),
            "on": Path(asked.on).name,
            "shortened": judge.shortened([as_transcript(one) for one in dialogues]),
            "missing": dict(_missing(judged)),
            **asdict(found),
        }
        if asked.probe:
            groups = group_numbers(dialogues, group_by)
            result["checks"] = _probed(judge, store, dialogues, judged, ratings, groups, asked)
    return result


def _of_scorer(judge: Judge) -> tuple[set[str], Mapping[str, Sequence[int]] | None]:
    """Other rubrics of a trained scorer, and the ratings it learned from; nothing of other judges."""
    if not isinstance(judge, ScorerJudge):
        return set(), None
    config: Any = judge.scorer.config  # type: ignore[attr-defined]
    return {one.rubric.name for one in config.rubrics} - {judge.rubric.name}, config.training_levels


def _has_probabilities(judged: Judged) -> bool:
    return any(one.probabilities is not None for dialogue in judged for one in dialogue.values())


def _scores(judged: Judged, rubric: Rubric) -> list[dict[str, Sequence[float]] | None]:
    """Distributions; of a judge that names a level, all on that one."""
    found: list[dict[str, Sequence[float]] | None] = []
    for dialogue in judged:
        given: dict[str, Sequence[float]] = {}
        for name, one in dialogue.items():
            if one.probabilities is not None:
                given[name] = one.probabilities
            elif one.level is not None:
                given[name] = [float(level == one.level) for level in rubric.dimension(name).levels()]
        found.append(given or None)
    return found


def _missing(judged: Judged) -> Counter[str]:
    """Judgments without a value, by reason."""
    return Counter(one.reason for dialogue in judged for one in dialogue.values() if one.reason is not None)


def _probed(
    judge: Judge,
    store: JudgmentStore,
    dialogues: Sequence[Dialogue],
    judged: Judged,
    ratings: Mapping[str, Any],
    groups: Any,
    asked: JudgeQuestion,
) -> list[dict[str, Any]]:
    from eval.judge_checks import Material
    from eval.judge_probe import probe

    material = Material(
        dialogues=dialogues,
        group=np.asarray(groups),
        human=[_means(ratings.get(one.id, {})) for one in dialogues],
        dimensions=judge.rubric.names(),
        seed=asked.seed,
    )
    return [asdict(check) for check in probe(judge, store, judged, material, asked.batch_size)]


def _means(raters: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for given in raters.values():
        for name, value in given.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}
