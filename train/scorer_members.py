"""Several scorers that speak as one: seeds, and cross-validation by group.

Every member is an ordinary run in `members/NAME`, trained from files in `data/` by a recipe of its own, so that one
that was stopped goes on and a finished one is not trained again. The result averages their distributions. With folds
every rated dialogue is scored by members that never saw it: `out_of_fold.jsonl` holds those distributions and
metrics.json how far they agree with the raters.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.records import Dialogue, write_records, write_text
from train.output import data_sha256, finished_metrics, library_versions, open_output, write_metrics
from train.recipe import ScorerRecipe
from train.rows import Located
from train.scorer_data import (
    Parts,
    RatingSet,
    as_dialogues,
    data_folder,
    divide,
    rating_records,
    read_parts,
    read_rating_set,
)

MEMBERS = "members"
RunOne = Callable[[ScorerRecipe], Any]


@dataclass(frozen=True)
class Member:
    """One of several; `unseen` are the dialogues of its fold, which it is tested on."""

    name: str
    recipe: ScorerRecipe
    unseen: list[Dialogue]


def train_members(recipe: ScorerRecipe, resume: bool = False, run_one: RunOne | None = None) -> dict[str, Any]:
    """Trains every member that is not finished, by `run_one` (default: here), and writes the scorer they make.

    Raises UserError as training one does, and where there are too few groups for the folds.
    """
    from train.rank import train_scorer

    open_output(recipe, resume)
    ratings = read_rating_set(recipe)
    parts = read_parts(recipe, ratings)
    members = write_members(recipe, ratings, parts)
    found = []
    for number, member in enumerate(members, start=1):
        done = finished_metrics(member.recipe)
        print(f"{member.name}, {number} of {len(members)}: {'already finished' if done else 'training'}", flush=True)
        if done is None:
            (run_one or (lambda one: train_scorer(one, resume=True)))(member.recipe)
            done = finished_metrics(member.recipe)
        assert done is not None
        found.append(done)
    return _finish(recipe, ratings, parts, members, found)


def write_members(recipe: ScorerRecipe, ratings: RatingSet, parts: Parts) -> list[Member]:
    """The recipes of all members, and the files they are trained from."""
    folder = data_folder(recipe)
    _write(folder, "test", parts.test)
    everybody = as_dialogues([*parts.train, *parts.validation, *parts.test])
    write_records(folder / "ratings.jsonl", rating_records(ratings, everybody))
    folds = _folds(recipe, ratings, parts)
    members = []
    for name, (train, validation, unseen) in folds.items():
        place = folder / name
        files = {"train": _write(place, "train", train), "validation": _write(place, "validation", validation)}
        for number in range(recipe.scorer.members):
            seed = f"seed-{recipe.seed + number}" if recipe.scorer.members > 1 else ""
            title = "-".join(part for part in (name, seed) if part)
            one = _member_recipe(recipe, title, recipe.seed + number, files)
            members.append(Member(title, one, as_dialogues(unseen)))
    return members


def _write(folder: Path, name: str, located: Sequence[Located]) -> tuple[str, ...] | None:
    if not located:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / f"{name}.jsonl", as_dialogues(located))
    return (str(folder / f"{name}.jsonl"),)


def _folds(
    recipe: ScorerRecipe, ratings: RatingSet, parts: Parts
) -> dict[str, tuple[list[Located], list[Located], list[Located]]]:
    """Name -> what is trained on, chosen by, and never seen. The next fold is chosen by, unless the recipe has
    validation data of its own."""
    count = recipe.scorer.folds
    if count is None:
        return {"": (parts.train, parts.validation, [])}
    names = [f"fold-{number + 1}" for number in range(count)]
    divided = divide(parts.train, ratings, dict.fromkeys(names, 1 / count), recipe)
    folds = {}
    for number, name in enumerate(names):
        chosen_by = names[(number + 1) % count] if not parts.validation else None
        rest = [pair for other in names if other not in (name, chosen_by) for pair in divided[other]]
        folds[name] = (rest, divided[chosen_by] if chosen_by else parts.validation, divided[name])
    return folds


def _member_recipe(recipe: ScorerRecipe, name: str, seed: int, files: dict[str, Any]) -> ScorerRecipe:
    data = {"split": None, "limit": None, "key": None, "rater": None, **files}
    data["ratings"] = (str(data_folder(recipe) / "ratings.jsonl"),)
    return recipe.model_copy(
        update={
            "seed": seed,
            "out": str(Path(recipe.out) / MEMBERS / name),
            "data": recipe.data.model_copy(update=data),
            "scorer": recipe.scorer.model_copy(update={"members": 1, "folds": None}),
        }
    )


def _finish(
    recipe: ScorerRecipe, ratings: RatingSet, parts: Parts, members: Sequence[Member], found: list[dict[str, Any]]
) -> dict[str, Any]:
    """Writes the configuration of the whole, what it says of held-out dialogues, and the metrics."""
    from train.rank import RankData, write_config
    from train.scorer import Scorer, read_config

    out = Path(recipe.out)
    report = _data_report(ratings, parts, found)
    data = RankData(ratings, parts, {}, {}, report)
    pooling = read_config(Path(members[0].recipe.out)).pooling
    write_config(recipe, data, pooling, [f"{MEMBERS}/{member.name}" for member in members])
    scorer = Scorer.load(out)
    scorer.tokenizer.save_pretrained(out)
    agreement = {}
    if parts.test:
        agreement["test"] = _agreement(
            ratings, as_dialogues(parts.test), scorer.probabilities(as_dialogues(parts.test))
        )
    if recipe.scorer.folds:
        agreement["cross_validation"] = _out_of_fold(out, ratings, members)
    metrics = {
        "kind": recipe.kind,
        "data": report,
        "data_sha256": data_sha256(recipe),
        "members": [member.name for member in members],
        "steps": sum(one["steps"] for one in found),
        "train_loss": [],
        "eval_loss": [one["eval_loss"][-1] for one in found if one["eval_loss"]],
        "train_seconds": sum(one["train_seconds"] or 0 for one in found),
        "trainable_parameters": sum(one["trainable_parameters"] for one in found),
        "agreement": agreement,
        "versions": library_versions(),
    }
    write_metrics(recipe, metrics)
    return metrics


def _data_report(ratings: RatingSet, parts: Parts, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Levels over all that any member learned from; the other counts are those of the first member."""
    per_level = {name: [0] * n for name, n in zip(ratings.columns(), ratings.level_counts(), strict=True)}
    for _, dialogue in parts.train:
        for row in ratings.labels(dialogue.id)[1]:
            for name, level in zip(per_level, row, strict=True):
                if level >= 0:
                    per_level[name][level] += 1
    rated = sum(ratings.is_rated(dialogue.id) for _, dialogue in parts.train)
    counts = {"dialogues": rated, "ratings": sum(map(sum, per_level.values())), "per_level": per_level}
    first: dict[str, Any] = found[0]["data"]
    known = {dialogue.id for part in (parts.train, parts.validation, parts.test) for _, dialogue in part}
    return {
        **first,
        "train": {**first["train"], **counts, "without_rating": len(parts.train) - rated},
        "rated_dialogues_in_no_file": len(ratings.ids() - known),
    }


def _out_of_fold(out: Path, ratings: RatingSet, members: Sequence[Member]) -> dict[str, Any]:
    """Scores every dialogue by the members that never saw it, keeps that, and compares it with the raters."""
    import torch

    from train.scorer import Scorer

    scored: dict[str, list[Any]] = defaultdict(list)
    dialogues: dict[str, Dialogue] = {}
    for member in members:
        found = Scorer.load(member.recipe.out).probabilities(member.unseen)
        for dialogue, probabilities in zip(member.unseen, found, strict=True):
            scored[dialogue.id].append(probabilities)
            dialogues[dialogue.id] = dialogue
    means = {identifier: torch.stack(several).mean(0) for identifier, several in scored.items()}
    columns = list(zip(ratings.columns(), ratings.level_counts(), strict=True))
    lines = [
        {"dialogue_id": identifier, "probabilities": {n: mean[i, :k].tolist() for i, (n, k) in enumerate(columns)}}
        for identifier, mean in sorted(means.items())
    ]
    write_text(out / "out_of_fold.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    chosen = list(dialogues.values())
    return _agreement(ratings, chosen, torch.stack([means[dialogue.id] for dialogue in chosen]))


def _agreement(ratings: RatingSet, dialogues: Sequence[Dialogue], probabilities: Any) -> dict[str, Any]:
    import torch

    from train.rank import levels_and_labels
    from train.scorer_agreement import agreement_table

    labels = [torch.tensor(ratings.labels(dialogue.id)[1]) for dialogue in dialogues]
    padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    levels, wanted = levels_and_labels(probabilities.log(), padded)
    table = agreement_table(ratings.columns(), levels, wanted)
    return {name: asdict(figures) for name, figures in table.items()}
