"""PsyQA (arXiv 2106.01702): questions to a Chinese mental-health forum and their answers.

A record is {"questionID", "question", "description", "keywords": "a,b", "answers": [{"answer_text", "has_label",
"labels_sequence": [{"type", "start", "end"}, …] | null}, …]}. Every answer becomes a dialogue of two turns: the
seeker's question and, on the next line, its description; the supporter's answer.

Repaired, and counted: whitespace at the edges of texts is stripped, and the places of the labels moved with it; a
field we do not know is ignored. Missing, and counted: description, keywords, and the labels of an answer. A question
without answers, an answer without text, and labels outside their answer are refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Dialogue, Turn
from data_prep.sources.base import Conversion, Draft, Made, Options, Source, each_file, json_records

FIELDS = {"questionID", "question", "description", "keywords", "answers"}


def _text(record: dict[str, Any], name: str, draft: Draft) -> str:
    """A text field, stripped; "" when absent or null."""
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise draft.error(f"{name} is not a text")
    return draft.stripped(value, name)


def _labels(raw: Any, text: str, kept: str, draft: Draft) -> list[dict[str, Any]] | None:
    """The labelled spans of an answer, as places in the text that was kept; None when it has no labels."""
    if raw is None:
        draft.missing["answer without strategy labels"] += 1
        return None
    if not isinstance(raw, list):
        raise draft.error("labels_sequence is not a list")
    lead = len(text) - len(text.lstrip())
    spans = []
    for n, span in enumerate(raw, start=1):
        if not isinstance(span, dict) or not isinstance(span.get("type"), str):
            raise draft.error(f"label {n}: is not an object with a type")
        start, end = span.get("start"), span.get("end")
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= len(text):
            raise draft.error(f"label {n}: start and end are not places in the answer")
        places = [min(max(place - lead, 0), len(kept)) for place in (start, end)]
        spans.append({"type": span["type"], "start": places[0], "end": places[1]})
    return spans


def _question(record: Any, draft: Draft) -> tuple[str, dict[str, Any]]:
    """The seeker's text and what is known of the question."""
    if not isinstance(record, dict):
        raise draft.error("is not an object")
    question, description = _text(record, "question", draft), _text(record, "description", draft)
    if not question and not description:
        raise draft.error("has neither question nor description")
    draft.missing["description"] += not description
    identifier = record.get("questionID")
    if identifier is not None and (isinstance(identifier, bool) or not isinstance(identifier, int | str)):
        raise draft.error("questionID is neither a number nor a text")
    keywords = [word.strip() for word in _text(record, "keywords", draft).split(",") if word.strip()]
    draft.missing["keywords"] += not keywords
    if not isinstance(record.get("answers"), list) or not record["answers"]:
        raise draft.error("has no list of answers")
    draft.repairs["unknown field ignored"] += len(record.keys() - FIELDS)
    meta: dict[str, Any] = {"question_id": str(identifier)} if identifier is not None else {}
    if keywords:
        meta["keywords"] = keywords
    return "\n".join(filter(None, (question, description))), meta


def _answer(raw: Any, draft: Draft) -> Turn:
    if not isinstance(raw, dict):
        raise draft.error("is not an object")
    text = raw.get("answer_text")
    if not isinstance(text, str):
        raise draft.error("answer_text is not a text")
    kept = draft.stripped(text, "reply")
    if not kept:
        raise draft.error("answer_text is empty")
    labels = _labels(raw.get("labels_sequence"), text, kept, draft)
    draft.repairs["unknown field ignored"] += len(raw.keys() - {"answer_text", "has_label", "labels_sequence"})
    return Turn(speaker="supporter", text=kept, meta={"labels": labels} if labels is not None else {})


def _is_ours(record: Any) -> bool:
    return isinstance(record, dict) and "answers" in record


def _stream_file(file: Path, stem: str, conversion: Conversion) -> Iterator[Made]:
    for where, position, record in json_records(file, conversion):
        raw_answers = record.get("answers") if isinstance(record, dict) else None
        count = len(raw_answers) if isinstance(raw_answers, list) else 0
        draft = Draft(where)
        try:
            asked, meta = _question(record, draft)
        except UserError as error:
            conversion.turns_read += 2 * count
            conversion.refuse(where, error, 2 * count)
            continue
        draft.accept(conversion)
        name = f"psyqa-{stem}-{position:05d}"
        seeker = Turn(speaker="seeker", text=asked)
        for number, raw in enumerate(raw_answers or (), start=1):
            conversion.turns_read += 2
            place = f"{where}: answer {number}"
            draft = Draft(place)
            try:
                answer = _answer(raw, draft)
            except UserError as error:
                conversion.refuse(place, error, 2)
                continue
            draft.accept(conversion)
            dialogue = Dialogue(
                id=f"{name}-{number}",
                language="zh",
                source="psyqa",
                turns=(seeker, answer),
                meta={**meta, "group": name, "answer": number},
            )
            yield place, [dialogue]


def stream(path: Path, options: Options, conversion: Conversion) -> Iterator[Made]:
    """One dialogue an answer; ids are `psyqa-<file stem>-<position of the question>-<number of the answer>`.

    A labelled answer keeps its strategies as spans in the turn's `meta`. `turns_read` counts the question once for
    every answer, as it is written; what is repaired in a question is counted once. All answers of a question have the
    same `group` in `meta`. Raises UserError when a file is no JSON at all.
    """
    yield from each_file(path, conversion, _is_ours, _stream_file)


PSYQA = Source(
    name="psyqa",
    title="PsyQA: questions to a Chinese mental-health forum and their answers",
    languages=("zh",),
    licence="academic use only",
    files=("PsyQA_example.json (public)", "PsyQA_full.json (on request)"),
    origin="PsyQA: A Chinese Dataset for Generating Long Counseling Text (Findings of ACL 2021); thu-coai/PsyQA",
    agreement="Needs a signed user agreement: ask its authors (see their repository) and bring the file yourself.",
    makes="dialogues",
    stream=stream,
)
