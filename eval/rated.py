"""Ratings that people gave, or that were published, as judgments of a run: a judge that only looks them up."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Rating
from data_prep.rubric import Rubric, check_ratings
from eval.judge import median_level, scorer_label
from eval.report_runs import RATINGS
from eval.runs import Judgment, Transcript


class RatingsJudge:
    """Ratings by dialogue key, the raters of a dialogue averaged. `name` is what reports call it, such as "people"."""

    def __init__(self, name: str, rubric: Rubric, ratings: Sequence[Rating], study: Sequence[Rating] = ()):
        """`study` are all ratings that these are a part of: with them the judge is the same one in all of its runs.

        Raises UserError for a rating of another rubric, or off its scale.
        """
        check_ratings(((f"{name}: dialogue {one.dialogue_id}", one) for one in ratings), rubric)
        self.rubric = rubric
        self._values: dict[tuple[str, str], list[float]] = {}
        for rating in ratings:
            if rating.value is not None:
                self._values.setdefault((rating.dialogue_id, rating.dimension), []).append(rating.value)
        self._identity: dict[str, Any] = {
            "name": name,
            "kind": RATINGS,
            "raters": len({one.rater for one in study or ratings}),
        }
        if study:
            content = sorted((one.dialogue_id, one.dimension, one.rater, repr(one.value)) for one in study)
            digest = hashlib.sha256(repr(content).encode("utf-8", "surrogatepass"))
            self._identity["sha256"] = digest.hexdigest()

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def shortened(self, transcripts: Sequence[Transcript]) -> int:
        return 0

    def rated(self, transcripts: Sequence[Transcript]) -> int:
        """How many of the dialogues have any rating."""
        known = {key for key, _ in self._values}
        return sum(one.key in known for one in transcripts)

    def judge(
        self, transcripts: Sequence[Transcript], batch_size: int, have: Collection[tuple[str, str]] = ()
    ) -> Iterator[list[Judgment]]:
        """`expected` is the raters' mean, `probabilities` how many gave each level, where all gave whole ones."""
        label = scorer_label(self)
        for transcript in transcripts:
            yield [self._of(transcript, name, label) for name in self.rubric.names()]

    def _of(self, transcript: Transcript, name: str, label: str) -> Judgment:
        place: dict[str, Any] = {
            "dialogue_key": transcript.key,
            "scorer": label,
            "rubric": self.rubric.name,
            "dimension": name,
        }
        values = self._values.get((transcript.key, name))
        if not values:
            return Judgment(**place, reason="nobody rated it")
        levels = self.rubric.dimension(name).levels()
        expected = sum(values) / len(values)
        if not all(value.is_integer() for value in values):
            return Judgment(**place, expected=expected)
        shares = tuple(values.count(float(level)) / len(values) for level in levels)
        return Judgment(**place, probabilities=shares, expected=expected, level=median_level(shares, levels))


def official_ratings(path: Any, transcripts: Sequence[Transcript], rater: str) -> list[Rating]:
    """The scores of an official file for the dialogues of the official file of the same name, by their position.

    Raises UserError when the file has scores of other dialogues, or of fewer.
    """
    from data_prep.official import iter_scores, parse_scores

    found = list(iter_scores(path))
    if len(found) != len(transcripts):
        raise UserError(f"{path}: has scores of {len(found)} dialogues, the transcripts are {len(transcripts)}")
    # The keys are positions, and transcripts keep the order of their file.
    return [
        rating
        for (where, _, levels), transcript in zip(found, transcripts, strict=True)
        for rating in parse_scores(levels, where, transcript.key, rater)
    ]
