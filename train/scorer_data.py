"""Dialogues and ratings of a scorer's recipe: what becomes a row, what is held out, what is missing."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, Rating, read_located
from data_prep.rubric import Rubric, check_ratings, load_rubric
from train.recipe_scorer import ScorerRecipe, ScorerSection
from train.rows import Located, read_dialogues
from train.scorer_text import encode_dialogue, window_batch

MISSING = -100
UNKNOWN_RATER = -1

Labels = list[list[int]]
"""[raters][dimensions] level indices from 0; -100 where a rater gave none."""

Given = dict[str, dict[str, dict[str, float | None]]]
"""dialogue id -> rater -> dimension -> value."""

Row = dict[str, Any]
"""`windows` of token ids; `labels` and `weights` [raters][dimensions]; `raters`, an index each."""


@dataclass
class RankReport:
    """What became of the dialogues and ratings of one part."""

    dialogues: int = 0
    without_rating: int = 0
    ratings: int = 0
    missing_ratings: int = 0
    shortened: int = 0
    """Dialogues longer than max_length of which turns are not read."""
    windowed: int = 0
    """Dialogues longer than max_length that are read in windows."""
    per_level: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RatingSet:
    """The ratings of all rubrics of a recipe; a column is a dimension of one of them."""

    rubrics: tuple[Rubric, ...]
    given: tuple[Given, ...]

    def columns(self) -> list[str]:
        """Names of the columns: those of the dimensions, after the rubric's name where there are several."""
        if len(self.rubrics) == 1:
            return self.rubrics[0].names()
        return [f"{rubric.name}.{name}" for rubric in self.rubrics for name in rubric.names()]

    def level_counts(self) -> list[int]:
        return [len(dimension.levels()) for rubric in self.rubrics for dimension in rubric.dimensions]

    def ids(self) -> set[str]:
        """Dialogues with any entry."""
        return {identifier for given in self.given for identifier in given}

    def labels(self, identifier: str) -> tuple[list[str], Labels]:
        """Raters of one dialogue in order, and their level indices."""
        raters = sorted({rater for given in self.given for rater in given.get(identifier, {})})
        return raters, [list(self._row(identifier, rater)) for rater in raters]

    def _row(self, identifier: str, rater: str) -> Iterator[int]:
        for rubric, given in zip(self.rubrics, self.given, strict=True):
            values = given.get(identifier, {}).get(rater, {})
            for dimension in rubric.dimensions:
                value = values.get(dimension.name)
                yield MISSING if value is None else int(value) - dimension.scale[0]

    def is_rated(self, identifier: str) -> bool:
        return any(level != MISSING for row in self.labels(identifier)[1] for level in row)


@dataclass(frozen=True)
class Parts:
    """The dialogues of a recipe; `test` is never looked at while training."""

    train: list[Located]
    validation: list[Located]
    test: list[Located]


# ---- reading


def read_ratings(
    files: Sequence[str],
    rubric: Rubric,
    key: str | None = None,
    rater: str | None = None,
    others: Collection[str] = (),
) -> Given:
    """dialogue id -> rater -> dimension -> value, from JSON Lines of ratings and from rating sheets.

    Ratings of the rubrics named in `others` are passed over. Raises UserError for a rating off the rubric, one given
    twice, and any faulty cell of a sheet.
    """
    plain = [file for file in files if is_json_lines(file)]
    located = [pair for file in plain for pair in read_located(file, Rating) if pair[1].rubric not in others]
    check_ratings(located, rubric)
    located += _from_sheets([file for file in files if file not in plain], rubric, key, rater)
    ratings: Given = defaultdict(lambda: defaultdict(dict))
    for where, rating in located:
        given = ratings[rating.dialogue_id][rating.rater]
        if rating.dimension in given:
            raise UserError(
                f"{where}: rater {rating.rater!r} already rated {rating.dimension} of {rating.dialogue_id!r}; keep one"
            )
        given[rating.dimension] = rating.value
    return ratings


def is_json_lines(file: str) -> bool:
    """Whether a file of ratings is JSON Lines; else it is a sheet of some kind."""
    try:
        with open(file, "rb") as handle:
            return handle.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    except OSError:
        return True  # reading it says what is wrong


def _from_sheets(files: Sequence[str], rubric: Rubric, key: str | None, rater: str | None) -> list[tuple[str, Rating]]:
    """Ratings of sheets by `esckit ratings import`'s own reader. A scorer is not trained on half of a faulty sheet."""
    if not files:
        return []
    from data_prep.rating_keys import read_key
    from data_prep.ratings import import_ratings

    found = import_ratings(files, rubric, key=read_key(key, rubric) if key else None, rater=rater)
    if found.faults:
        more = f" (and {len(found.faults) - 1} more faults)" if len(found.faults) > 1 else ""
        raise UserError(
            f"{found.faults[0]}{more}; correct the sheet, or keep the rest of it with: esckit ratings import"
        )
    return [(", ".join(files), rating) for rating in found.ratings]


def read_rating_set(recipe: ScorerRecipe) -> RatingSet:
    """The ratings of every rubric of a recipe. Raises UserError as `read_ratings`, and for a sheet where there are
    several rubrics, since a sheet does not say which it is of."""
    rubrics = tuple(load_rubric(name) for name in recipe.rubric)
    names = [rubric.name for rubric in rubrics]
    if len(set(names)) < len(names):
        raise UserError(f"rubric: two of the files are versions of one rubric ({', '.join(names)}); keep one")
    data = recipe.data
    sheets = [file for file in data.ratings if not is_json_lines(file)]
    if sheets and len(rubrics) > 1:
        raise UserError(f"{sheets[0]}: sheets are read for one rubric at a time; first: esckit ratings import")
    given = tuple(
        read_ratings(data.ratings, rubric, data.key, data.rater, {*names} - {rubric.name}) for rubric in rubrics
    )
    return RatingSet(rubrics, given)


def read_parts(recipe: ScorerRecipe, ratings: RatingSet) -> Parts:
    """The dialogues of a recipe, split by group where it says so; only rated ones are split.

    Raises UserError where the dialogues make too few groups to fill every part.
    """
    located = read_dialogues(recipe.data.train, recipe.data.limit, recipe.seed)
    held_out = read_dialogues(recipe.data.validation, None, recipe.seed) if recipe.data.validation else []
    split = recipe.data.split
    if split is None:
        return Parts(located, held_out, [])
    shares = {"validation": split.validation, "test": split.test}
    shares = {name: share for name, share in shares.items() if share}
    parts = divide(located, ratings, {"train": 1 - sum(shares.values()), **shares}, recipe)
    return Parts(parts["train"], parts.get("validation") or held_out, parts.get("test", []))


def divide(
    located: Sequence[Located], ratings: RatingSet, shares: dict[str, float], recipe: ScorerRecipe
) -> dict[str, list[Located]]:
    """The rated dialogues in parts that share no group; within a part in the order of the files."""
    from data_prep.splits import split_by_group

    rated = [(where, one) for where, one in located if ratings.is_rated(one.id)]
    if not rated:
        raise UserError(f"{', '.join(recipe.data.ratings)}: no rating for the dialogues given; check ids and rubric")
    try:
        found = split_by_group([one for _, one in rated], shares, recipe.seed, recipe.data.group_by)
    except UserError as error:  # it speaks of the options of `esckit data split`
        said = str(error).replace(" (--group-by, --near)", " (data.group_by)").replace("--group-by", "data.group_by")
        raise UserError(said) from None
    ids = {name: {one.id for one in part} for name, part in found.items()}
    return {name: [pair for pair in rated if pair[1].id in chosen] for name, chosen in ids.items()}


# ---- rows


def rank_rows(
    recipe: ScorerRecipe,
    tokenizer: Any,
    located: Sequence[Located],
    ratings: RatingSet,
    part: str = "train",
    raters: dict[str, int] | None = None,
) -> tuple[list[Row], RankReport]:
    """One row a rated dialogue. `raters` are those whose severity is learned, by index.

    Raises UserError when a dimension has no rating at all in this part and, in the training part, when all of its
    ratings are the same level.
    """
    report = RankReport(
        per_level={name: [0] * n for name, n in zip(ratings.columns(), ratings.level_counts(), strict=True)}
    )
    rows = []
    for _, dialogue in located:
        names, labels = ratings.labels(dialogue.id)
        if not any(level != MISSING for row in labels for level in row):
            report.without_rating += 1
            continue
        windows, too_long = encode_dialogue(tokenizer, dialogue, recipe.data.max_length, recipe.data.long_dialogues)
        indices = [(raters or {}).get(name, UNKNOWN_RATER) for name in names]
        rows.append({"windows": windows, "labels": labels, "raters": indices})
        report.dialogues += 1
        report.windowed += too_long and recipe.data.long_dialogues == "windows"
        report.shortened += too_long and recipe.data.long_dialogues != "windows"
        for row in labels:
            _count(report, row)
    _check_levels(recipe, report, part)
    weigh(rows, recipe.scorer, list(report.per_level.values()) if part == "train" else None)
    return rows, report


def _count(report: RankReport, row: Sequence[int]) -> None:
    for name, level in zip(report.per_level, row, strict=True):
        if level == MISSING:
            report.missing_ratings += 1
        else:
            report.ratings += 1
            report.per_level[name][level] += 1


def _check_levels(recipe: ScorerRecipe, report: RankReport, part: str) -> None:
    files, where = ", ".join(recipe.data.ratings), "" if part == "train" else f" of the {part} part"
    empty = [name for name, counts in report.per_level.items() if not any(counts)]
    if empty:
        raise UserError(
            f"{files}: no rating of {', '.join(empty)} for the dialogues given{where}; check ids and rubric"
        )
    alike = [name for name, counts in report.per_level.items() if sum(map(bool, counts)) == 1]
    if alike and part == "train":
        raise UserError(
            f"{files}: all ratings of {alike[0]} are the same level, so there is nothing to learn; "
            "bring ratings that differ, or leave the dimension out of the rubric"
        )


def weigh(rows: Sequence[Row], section: ScorerSection, counts: Sequence[Sequence[int]] | None) -> None:
    """Puts `weights` into the rows, the shape of their labels, 0 where there is no rating.

    `counts` are the training ratings at each level of each dimension; None, for held-out rows, weighs no levels.
    """
    power = {"none": 0.0, "root": 0.5, "balanced": 1.0}[section.class_weights]
    by_level = [level_weights(one, power) for one in counts or []]
    for row in rows:
        shares = [sum(level != MISSING for level in column) for column in zip(*row["labels"], strict=True)]
        row["weights"] = [
            [
                0.0
                if level == MISSING
                else (by_level[index][level] if by_level else 1.0) / (shares[index] if section.labels == "soft" else 1)
                for index, level in enumerate(labels)
            ]
            for labels in row["labels"]
        ]


def level_weights(counts: Sequence[int], power: float) -> list[float]:
    """(1 / frequency) ** power of each level, with mean 1 over the ratings; 0 for a level nobody gave."""
    raw = [count**-power if count else 0.0 for count in counts]
    mean = sum(weight * count for weight, count in zip(raw, counts, strict=True)) / sum(counts)
    return [weight / mean for weight in raw]


def weighted_counts(rows: Sequence[Row], level_counts: Sequence[int]) -> list[list[float]]:
    """Weight of the ratings at each level of each dimension: what untrained heads should predict."""
    sums: list[Counter[int]] = [Counter() for _ in level_counts]
    for row in rows:
        for labels, weights in zip(row["labels"], row["weights"], strict=True):
            for index, (level, weight) in enumerate(zip(labels, weights, strict=True)):
                sums[index][level] += weight
    return [[found[level] for level in range(n)] for found, n in zip(sums, level_counts, strict=True)]


def rater_index(located: Sequence[Located], ratings: RatingSet) -> dict[str, int]:
    """Everybody who rated one of the dialogues, with an index."""
    names = {name for _, one in located for name in ratings.labels(one.id)[0]}
    return {name: index for index, name in enumerate(sorted(names))}


def rater_counts(rows: Sequence[Row], raters: int, dimensions: int) -> list[list[float]]:
    """Ratings of each rater on each dimension."""
    counts = [[0.0] * dimensions for _ in range(raters)]
    for row in rows:
        for rater, labels in zip(row["raters"], row["labels"], strict=True):
            for index, level in enumerate(labels):
                counts[rater][index] += level != MISSING
    return counts


def row_length(row: Row) -> int:
    """Tokens that are read of a dialogue."""
    return sum(map(len, row["windows"]))


def collate(rows: Sequence[Row], pad_id: int) -> dict[str, Any]:
    """Pads windows, and ratings to the largest number of raters: [batch, raters, dimensions].

    Labels come first: the library takes the size of a batch from its first entry, and windows are no dialogues.
    """
    import torch

    raters = max(len(row["labels"]) for row in rows)
    shape = (len(rows), raters, len(rows[0]["labels"][0]))
    labels, weights = torch.full(shape, MISSING), torch.zeros(shape)
    who = torch.full(shape[:2], UNKNOWN_RATER)
    for index, row in enumerate(rows):
        count = len(row["labels"])
        labels[index, :count] = torch.tensor(row["labels"])
        weights[index, :count] = torch.tensor(row["weights"])
        who[index, :count] = torch.tensor(row["raters"])
    windows = window_batch([row["windows"] for row in rows], pad_id)
    return {"labels": labels, "weights": weights, "raters": who, **windows}


def as_dialogues(located: Sequence[Located]) -> list[Dialogue]:
    return [dialogue for _, dialogue in located]


def rating_records(ratings: RatingSet, dialogues: Sequence[Dialogue]) -> list[Rating]:
    """The ratings of some dialogues as records, to be kept beside them."""
    records = []
    for rubric, given in zip(ratings.rubrics, ratings.given, strict=True):
        for dialogue in dialogues:
            for rater, values in sorted(given.get(dialogue.id, {}).items()):
                records += [
                    Rating(dialogue_id=dialogue.id, rater=rater, rubric=rubric.name, dimension=name, value=value)
                    for name, value in values.items()
                    if value is not None
                ]
    return records


def data_folder(recipe: ScorerRecipe) -> Path:
    """Where the parts of a split are kept."""
    return Path(recipe.out) / "data"
