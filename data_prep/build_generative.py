"""Training rows for the paper's way to score: a question about one dimension, and its number as the answer."""

from collections.abc import Mapping, Sequence

from data_prep.build_rank import RankPart
from data_prep.judge_prompt import JudgePrompt
from data_prep.records import Language
from data_prep.rubric import Rubric
from data_prep.sample import Sample, SampleMessage


def generative_rows(part: RankPart, rubric: Rubric, prompt: JudgePrompt) -> dict[tuple[str, Language], list[Sample]]:
    """Rows by dimension and language: the question as user, the rating as the answer, which alone is learned.

    Every rating is a row of its own, so that several raters teach their distribution; one without a value is none.
    """
    dialogues = {dialogue.id: dialogue for dialogue in part.dialogues}
    rows: dict[tuple[str, Language], list[Sample]] = {}
    for rating in part.ratings:
        if rating.value is None:
            continue
        dialogue = dialogues[rating.dialogue_id]
        asked = prompt.text(dialogue, rubric.dimension(rating.dimension))
        sample = Sample(
            id=f"{dialogue.id}/{rating.dimension}/{rating.rater}",
            messages=(
                SampleMessage(role="user", content=asked, train=False),
                SampleMessage(role="assistant", content=str(int(rating.value)), train=True),
            ),
            meta={"dialogue": dialogue.id, "source": dialogue.source, "language": dialogue.language},
        )
        rows.setdefault((rating.dimension, dialogue.language), []).append(sample)
    return rows


def file_names(part: str, rows: Mapping[tuple[str, Language], Sequence[Sample]]) -> dict[str, Sequence[Sample]]:
    """The rows by the name of the file they go into: train.empathy_en.messages.jsonl."""
    return {f"{part}.{dimension}_{language}.messages.jsonl": found for (dimension, language), found in rows.items()}
