"""Made run folders and a made scorer for the tests of scoring and reporting (nothing random, nothing downloaded)."""

import hashlib

import numpy as np

from data_prep.records import RoleCard
from data_prep.rubric import load_rubric
from eval.runs import EndReason, Transcript, TranscriptTurn, open_run

SETTINGS = {
    "cards": {"sha256": "c" * 64, "used": 8, "language": None, "limit": None},
    "simulation": {
        "rounds": 2,
        "samples": 1,
        "seed": 7,
        "batch_size": 8,
        "seeker_sampling": {"max_new_tokens": 64, "temperature": 0.7, "top_p": 0.9},
        "supporter_sampling": {"max_new_tokens": 64, "temperature": 0.7, "top_p": 0.9},
        "greeting": {"name": "greeting", "version": 1, "sha": "111111111111"},
        "seeker_prompt": {"name": "seeker", "version": 1, "sha": "222222222222"},
        "supporter_prompt": {"name": "supporter", "version": 1, "sha": "333333333333"},
        "greeting_shown_to_supporter": True,
    },
    "seeker": {"label": "hf:made-seeker", "model": {"path": "made-seeker", "sha256": "0123abcd"}},
}


def make_transcript(card, sample=0, supporter="made", end_reason=EndReason.rounds, texts=None, language="en"):
    """Greeting + two rounds; `texts` replaces the words of the turns in order."""
    words = list(texts or ["Hello.", "I cannot sleep.", "That sounds hard.", "It is.", f"{supporter} is here."])
    turns = tuple(
        TranscriptTurn(speaker="seeker" if place % 2 else "supporter", text=text) for place, text in enumerate(words)
    )
    return Transcript(
        key=f"{card}#{sample}",
        card=RoleCard(id=card, language=language, problem="exams", source="made"),
        sample=sample,
        supporter=supporter,
        seeker="made-seeker",
        turns=turns,
        end_reason=end_reason,
        detail="timeout" if end_reason.endswith("error") else None,
        seed=7,
    )


def make_run(folder, supporter="made", cards=8, samples=1, transcripts=None, **changes):
    """A run folder of `cards` × `samples` finished dialogues, or of the transcripts given.

    `changes` replace settings: `seeker={...}`, or `simulation={"rounds": 3}` for single ones.
    """
    if transcripts is None:
        transcripts = [make_transcript(f"c{c}", s, supporter) for c in range(cards) for s in range(samples)]
    settings = {**SETTINGS, "supporter": {"label": supporter, "model": {"path": supporter}}}
    for key, value in changes.items():
        settings[key] = {**settings[key], **value}
    with open_run(folder, settings) as run:
        run.add_transcripts(transcripts)
    return folder


class MadeScorer:
    """Interface of train.scorer.Scorer; the distribution follows from card, sample, dimension and supporter."""

    def __init__(self, weights="w1", rubric="esc_eval", better=(), shift=0.5, illustrative=False):
        self.rubric = load_rubric(rubric)
        self.weights, self.better, self.shift, self.illustrative = weights, better, shift, illustrative
        self.batches = []

    def identity(self):
        identity = {
            "name": "made-rank",
            "sha256": self.weights,
            "rubric": self.rubric.name,
            "rubric_version": str(self.rubric.version),
            "rubric_sha": self.rubric.sha,
            "base": "made-encoder",
        }
        return identity | ({"illustrative": "true"} if self.illustrative else {})

    def shortened(self, dialogues):
        return 0

    def score(self, dialogues, batch_size=16, progress=None):
        self.batches.append([dialogue.id for dialogue in dialogues])
        return [self._one(dialogue) for dialogue in dialogues]

    def _one(self, dialogue):
        found = {}
        for dimension in self.rubric.dimensions:
            # What card and dimension share is common to all supporters; a little is each supporter's own.
            common = _unit(f"{dialogue.card.id}{dimension.name}")
            own = _unit(f"{dialogue.id}{dimension.name}{dialogue.meta['supporter']}")
            low, high = dimension.scale
            better = self.shift if dialogue.meta["supporter"] in self.better else 0.0
            center = low + (high - low) * (0.25 + 0.4 * common + 0.1 * own) + better
            weights = np.exp(-((np.array(dimension.levels()) - center) ** 2) / 0.8)
            found[dimension.name] = tuple(float(p) for p in weights / weights.sum())
        return found


def _unit(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
