"""ESConv (arXiv 2106.01144) and its failed dialogues, in the three shapes they are published in.

- the hub split: JSON Lines, turns {"text", "speaker": "usr" | "sys", "strategy"};
- the release: a JSON array, turns {"content", "speaker": "seeker" | "supporter", "annotation": {"strategy"}};
- FailedESConv: as the release, with "speaker" for the seeker, "listener" for the supporter, and the seeker's running
  feedback (1 to 5) in the annotation of some turns.

Repaired, and counted: whitespace at the edges of turns and situations is stripped; a turn without text is dropped;
the labels of experience, emotion and problem are lower-cased; the twelve spellings of strategies become the eight
names; a strategy on a seeker's turn is dropped; a survey score off its 1 to 5 scale, or no number, is no value; a
field we do not know is ignored. Runs of one speaker stay as they are.
Missing, and counted: the final survey (150 dialogues of the release lack it) gives two ratings without a value, so
that every dialogue has its two; nothing stands in for it. All else is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, Rating, RoleCard, Speaker, Turn
from data_prep.sources.base import Conversion, Draft, Made, Options, Source, each_file, json_records

RUBRIC = "esconv_survey"
SPEAKERS: dict[str, Speaker] = {
    "usr": "seeker",
    "seeker": "seeker",
    "speaker": "seeker",
    "sys": "supporter",
    "supporter": "supporter",
    "listener": "supporter",
}
STRATEGIES = (
    "Question",
    "Restatement or Paraphrasing",
    "Reflection of feelings",
    "Self-disclosure",
    "Affirmation and Reassurance",
    "Providing Suggestions",
    "Information",
    "Others",
)
# Names of the annotation scheme before the paper fixed the eight; they occur in FailedESConv only.
OTHER_SPELLINGS = {
    "questions": "Question",
    "restatement": "Restatement or Paraphrasing",
    "approval and reassurance": "Affirmation and Reassurance",
    "direct guidance": "Providing Suggestions",
    "other": "Others",
}
LABELS = ("experience_type", "emotion_type", "problem_type")
REMARKS = ("seeker_question1", "seeker_question2", "supporter_question1", "supporter_question2")
FIELDS = {*LABELS, *REMARKS, "situation", "survey_score", "dialog"}
LEVELS = range(1, 6)


def _fold(name: str) -> str:
    return " ".join(name.strip().strip("[]").casefold().replace("-", " ").replace("_", " ").split())


STRATEGY_NAMES = {_fold(name): name for name in STRATEGIES} | OTHER_SPELLINGS


def _level(value: Any) -> int | None:
    """A survey answer, a string or a whole number from 1 to 5, as int; None for anything else."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"\s*[0-9]{1,3}\s*", value) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value in LEVELS else None


def _score(survey: dict[str, Any], side: str, name: str, state: Draft) -> tuple[int | None, str | None]:
    """(level, None), or (None, why there is none)."""
    answers = survey.get(side) or {}
    if not isinstance(answers, dict):
        raise state.error(f"survey_score.{side} is not an object")
    value = answers.get(name)
    if value is None or value == "":
        state.missing[f"{side}'s {name}"] += 1
        return None, "not answered in the source"
    level = _level(value)
    if level is None:
        state.repairs[f"{side}'s {name} off the scale 1..5: no value"] += 1
        return None, "off the scale 1..5 in the source"
    return level, None


def _strategy(raw: Any, speaker: Speaker, state: Draft, n: int) -> str | None:
    if raw is None:
        if speaker == "supporter":
            state.missing["supporter turn without strategy"] += 1
        return None
    if speaker == "seeker":
        state.repairs["strategy on a seeker turn dropped"] += 1
        return None
    name = STRATEGY_NAMES.get(_fold(raw)) if isinstance(raw, str) else None
    if name is None:
        raise state.error(f"turn {n}: strategy is none of the eight ({', '.join(STRATEGIES)}) nor a known spelling")
    state.repairs["strategy spelling"] += name != raw
    return name


def _turn(raw: Any, state: Draft, n: int) -> Turn | None:
    """One turn; None when it has no text."""
    if not isinstance(raw, dict):
        raise state.error(f"turn {n}: is not an object")
    role = raw.get("speaker")
    if not isinstance(role, str) or role not in SPEAKERS:
        raise state.error(f"turn {n}: speaker is none of {', '.join(SPEAKERS)}")
    texts = [raw[key] for key in ("text", "content") if key in raw]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise state.error(f"turn {n}: expected one text, under `text` or `content`")
    annotation = raw.get("annotation") or {}
    if not isinstance(annotation, dict):
        raise state.error(f"turn {n}: annotation is not an object")
    speaker = SPEAKERS[role]
    strategy = _strategy(raw.get("strategy", annotation.get("strategy")), speaker, state, n)
    meta: dict[str, Any] = {}
    if annotation.get("feedback") is not None:
        meta["feedback"] = _level(annotation["feedback"])
        state.repairs["feedback off the scale 1..5: no value"] += meta["feedback"] is None
    unknown = set(raw) - {"speaker", "text", "content", "annotation", "strategy"}
    state.repairs["unknown field ignored"] += len(unknown) + len(set(annotation) - {"strategy", "feedback"})
    text = texts[0].strip()
    if not text:
        state.repairs["empty turn dropped"] += 1
        return None
    state.repairs["whitespace at the edge of a turn"] += text != texts[0]
    return Turn(speaker=speaker, text=text, strategy=strategy, meta=meta)


def _text(record: dict[str, Any], name: str, state: Draft) -> str | None:
    """A text field, stripped; None when absent, null or empty."""
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise state.error(f"{name} is not a text")
    return value.strip() or None


def _meta(record: dict[str, Any], state: Draft) -> dict[str, Any]:
    """Labels, intensities and the survey's free remarks."""
    meta: dict[str, Any] = {}
    for name in LABELS:
        label = _text(record, name, state)
        if label is None:
            state.missing[name] += 1
        meta[name] = label.lower() if label is not None else None
        state.repairs[f"{name} lower-cased"] += label is not None and label != label.lower()
    survey = record.get("survey_score") or {}
    if not isinstance(survey, dict):
        raise state.error("survey_score is not an object")
    for name in ("initial_emotion_intensity", "final_emotion_intensity"):
        meta[name] = _score(survey, "seeker", name, state)[0]
    meta["supporter_relevance"] = _score(survey, "supporter", "relevance", state)[0]
    for name in REMARKS:
        remark = _text(record, name, state)
        if remark is not None:
            meta[name] = remark
    return meta


def _card(dialogue_id: str, situation: str | None, meta: dict[str, Any], source: str) -> RoleCard | None:
    """The seeker as far as the survey before the talk describes them: a problem, its kind and the emotion."""
    if situation is None:
        return None
    return RoleCard(
        id=dialogue_id,
        language="en",
        problem=situation,
        category=(meta["problem_type"],) if meta["problem_type"] else (),
        source=source,
        meta={"emotion_type": meta["emotion_type"]},
    )


def _convert_record(record: Any, dialogue_id: str, state: Draft) -> tuple[Dialogue, list[Rating]]:
    if not isinstance(record, dict):
        raise state.error("is not an object")
    raw_turns = record.get("dialog")
    if not isinstance(raw_turns, list) or not raw_turns:
        raise state.error("has no list of turns under `dialog`")
    turns = [_turn(raw, state, number) for number, raw in enumerate(raw_turns, start=1)]
    kept = tuple(turn for turn in turns if turn is not None)
    if not kept:
        raise state.error("no turn has text")
    failed = any(raw["speaker"] in ("speaker", "listener") for raw in raw_turns)
    source = "esconv-failed" if failed else "esconv"
    situation = _text(record, "situation", state)
    if situation is None:
        state.missing["situation"] += 1
    state.repairs["whitespace at the edge of a situation"] += situation is not None and situation != record["situation"]
    meta = _meta(record, state)
    state.repairs["unknown field ignored"] += len(set(record) - FIELDS)
    dialogue = Dialogue(
        id=dialogue_id,
        language="en",
        source=source,
        turns=kept,
        card=_card(dialogue_id, situation, meta, source),
        situation=situation,
        meta=meta,
    )
    ratings = []
    for dimension in ("empathy", "relevance"):
        value, reason = _score(record.get("survey_score") or {}, "seeker", dimension, state)
        ratings.append(
            Rating(
                dialogue_id=dialogue_id,
                rater="seeker",
                rubric=RUBRIC,
                dimension=dimension,
                value=value,
                reason=reason,
            )
        )
    return dialogue, ratings


def _is_ours(record: Any) -> bool:
    return isinstance(record, dict) and "dialog" in record


def _stream_file(file: Path, stem: str, conversion: Conversion) -> Iterator[Made]:
    for where, position, record in json_records(file, conversion):
        raw_turns = record.get("dialog") if isinstance(record, dict) else None
        count = len(raw_turns) if isinstance(raw_turns, list) else 0
        conversion.turns_read += count
        state = Draft(where)
        try:
            dialogue, ratings = _convert_record(record, f"esconv-{stem}-{position:04d}", state)
        except UserError as error:
            conversion.refuse(where, error, count)
            continue
        state.accept(conversion)
        yield where, [dialogue, *ratings]


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """Dialogues with a role card each, and two ratings by the seeker of each (rubric esconv_survey).

    Ids are `esconv-<file stem>-<position>`, so they stay the same as long as the file does. The seeker's card and
    the intensities before and after (`meta`) come from the survey; `source` is "esconv-failed" for FailedESConv.
    Of a folder, files whose first record is no object with `dialog` are skipped (it comes with a list of the
    strategies). Raises UserError when a file is no JSON at all; bad records are in `refused`.
    """
    yield from each_file(path, conversion, _is_ours, _stream_file)


ESCONV = Source(
    name="esconv",
    title="ESConv and FailedESConv: crowd-sourced emotional support conversations",
    languages=("en",),
    licence="CC BY-NC 4.0",
    files=("train.txt / valid.txt / test.txt (JSON Lines)", "ESConv.json", "FailedESConv.json"),
    origin="Towards Emotional Support Dialog Systems (ACL 2021); thu-coai/Emotional-Support-Conversation",
    hub_id="thu-coai/esconv",
    makes="dialogues",
    rubric=RUBRIC,
    stream=stream,
)
