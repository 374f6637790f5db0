"""Training sets for a scorer: dialogues and what people said of them, one row a dialogue with all its ratings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from data_prep.build import Located, Split, Tally
from data_prep.errors import UserError
from data_prep.records import Dialogue, Language, Rating, Record, Turn, dump_line
from data_prep.rubric import Rubric, check_ratings
from data_prep.sources.base import Refusal

LocatedRating = tuple[str, Rating]


class RankRow(Record):
    """One dialogue with every dimension of a rubric and every rater's value; null: this rater gave none."""

    id: str = Field(min_length=1)
    language: Language
    source: str
    rubric: str
    turns: tuple[Turn, ...]
    ratings: dict[str, dict[str, float | None]]
    """{dimension: {rater: value}}; a dimension that nobody rated is there and empty."""


@dataclass(frozen=True)
class RankPart:
    """One part: dialogues by id, their ratings (by dialogue, dimension of the rubric, rater), and the rows of both."""

    name: str
    dialogues: list[Dialogue]
    ratings: list[Rating]
    rows: list[RankRow]


def accepted_ratings(located: Sequence[LocatedRating], rubric: Rubric, tally: Tally) -> list[LocatedRating]:
    """Ratings on the scale, each once; the others are refused with file and line.

    The same rating twice is taken once and counted. Two values of one rater for one dialogue and dimension refuse
    both: which one is meant is not ours to say.
    """
    found = {rating.rubric for _, rating in located}
    if located and rubric.name not in found:
        # Not line by line: it is the option that is wrong, not every rating.
        names = ", ".join(sorted(found))
        raise UserError(f"the ratings are for rubric {names}, not {rubric.name}; give it with --rubric")
    checked: dict[tuple[str, str, str], list[LocatedRating]] = {}
    for where, rating in located:
        try:
            check_ratings([(where, rating)], rubric)
        except UserError as error:
            tally.refused.append(Refusal(where, str(error).removeprefix(f"{where}: ")))
            continue
        checked.setdefault((rating.dialogue_id, rating.dimension, rating.rater), []).append((where, rating))
    accepted = []
    for same in checked.values():
        if len({rating.value for _, rating in same}) > 1:
            places = sorted(where for where, _ in same)
            for where, _ in same:
                other = next(place for place in places if place != where)
                tally.refused.append(Refusal(where, f"the same rater gives another value at {other}"))
            continue
        tally.repairs["rating that occurs twice taken once"] += len(same) - 1
        # By content, not by place: of two missing values with different reasons it is the same one every time.
        accepted.append(min(same, key=lambda pair: dump_line(pair[1])))
    return accepted


def matched(
    dialogues: Sequence[Located], ratings: Sequence[LocatedRating], tally: Tally
) -> tuple[list[Dialogue], dict[str, list[Rating]]]:
    """Dialogues that somebody rated, and their ratings by id; what lacks the other half is counted.

    A dialogue whose ratings have no value is not rated. Raises UserError when nothing is left.
    """
    by_id: dict[str, list[Rating]] = {}
    for _, rating in ratings:
        by_id.setdefault(rating.dialogue_id, []).append(rating)
    known = {dialogue.id for _, dialogue in dialogues}
    strangers = [identifier for identifier in by_id if identifier not in known]
    tally.missing["rated dialogue that is in no dialogue file"] += len(strangers)
    tally.missing["rating of a dialogue that is in no dialogue file"] += sum(len(by_id[name]) for name in strangers)
    rated = []
    for _, dialogue in dialogues:
        found = by_id.get(dialogue.id, [])
        if any(rating.value is not None for rating in found):
            rated.append(dialogue)
        else:
            reason = "dialogue whose ratings have no value" if found else "dialogue without a rating"
            tally.missing[f"{reason}: left out"] += 1
    if not rated:
        raise UserError(
            f"no dialogue has a rating: {len(known)} dialogues and {len(by_id)} rated ids have none in common with a "
            "value; compare the ids of the two files"
        )
    return rated, by_id


def rank_row(dialogue: Dialogue, ratings: Sequence[Rating], rubric: Rubric) -> RankRow:
    """`ratings` are those of this dialogue, in the order in which raters shall be listed."""
    values: dict[str, dict[str, float | None]] = {name: {} for name in rubric.names()}
    for rating in ratings:
        values[rating.dimension][rating.rater] = rating.value
    return RankRow(
        id=dialogue.id,
        language=dialogue.language,
        source=dialogue.source,
        rubric=rubric.name,
        turns=dialogue.turns,
        ratings=values,
    )


def count_ratings(by_id: Mapping[str, Sequence[Rating]], rubric: Rubric, tally: Tally) -> None:
    """Figures of the used ratings: values a dimension, raters, dialogues by how many raters they have."""
    values: Counter[str] = Counter()
    raters: set[str] = set()
    for ratings in by_id.values():
        raters |= {rating.rater for rating in ratings}
        present = {rating.rater for rating in ratings if rating.value is not None}
        tally.figures[f"dialogues with {len(present)} rater{'s' * (len(present) != 1)}"] += 1
        for rating in ratings:
            values[rating.dimension] += rating.value is not None
            tally.missing["rating without a value: kept as null"] += rating.value is None
    tally.figures["raters"] = len(raters)
    for name in rubric.names():
        tally.figures[f"values of {name}"] = values[name]
        if not values[name]:
            tally.missing[f"dimension {name} that nobody rated"] += 1


def build_rank(
    dialogues: Sequence[Located], ratings: Sequence[LocatedRating], rubric: Rubric, split: Split
) -> tuple[list[RankPart], Tally]:
    """The training set of a scorer. Raises UserError when no dialogue has a rating or a part would be empty."""
    tally = Tally()
    accepted = accepted_ratings(ratings, rubric, tally)
    rated, by_id = matched(dialogues, accepted, tally)
    order = {name: position for position, name in enumerate(rubric.names())}
    used = {
        dialogue.id: sorted(by_id[dialogue.id], key=lambda rating: (order[rating.dimension], rating.rater))
        for dialogue in rated
    }
    count_ratings(used, rubric, tally)
    parts = []
    for name, chosen in split.parts(rated).items():
        rows = [rank_row(dialogue, used[dialogue.id], rubric) for dialogue in chosen]
        parts.append(RankPart(name, list(chosen), [rating for row in rows for rating in used[row.id]], rows))
    return parts, tally
