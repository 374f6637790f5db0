"""The dialogues of a report as data for the page's viewer, in parts that a browser can hold.

The data lie in a JSON block that no browser executes, and the viewer's script puts text into the page only as text.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.report_records import AVERAGE, Entry, Report
from eval.report_text import visible
from eval.runs import EndReason, Transcript

SCRIPT = (Path(__file__).parent / "templates" / "viewer.js").read_text(encoding="utf-8")
LARGEST = 20_000_000
"""Bytes of dialogues in one page: browsers stay quick, and with the rest a page stays under 30 MB."""


def script_hash() -> str:
    """The one script that the page's policy lets run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


@dataclass(frozen=True)
class Part:
    """Dialogues of one page: how many, and their JSON, ready to stand in a `<script type="application/json">`."""

    dialogues: int
    cards: int
    data: str


def viewer_parts(report: Report, largest: int = LARGEST) -> list[Part]:
    """All dialogues, by card, in parts of at most `largest` bytes (one card's dialogues are never parted)."""
    parts: list[Part] = []
    waiting: list[tuple[str, str, int]] = []
    size = 0
    for card, dialogues in _by_card(report):
        card_json, text = _json(card), ",".join(map(_json, dialogues))
        length = len((card_json + text).encode("utf-8", "replace"))
        if waiting and size + length > largest:
            parts.append(_part(report, waiting))
            waiting, size = [], 0
        waiting.append((f"{_json(card['id'])}:{card_json}", text, len(dialogues)))
        size += length
    if waiting:
        parts.append(_part(report, waiting))
    return parts


def _part(report: Report, waiting: Sequence[tuple[str, str, int]]) -> Part:
    from eval.report_plot import colour

    head = {
        "supporters": [{"label": visible(e.label), "colour": colour(n)} for n, e in enumerate(report.entries)],
        "columns": [visible(dimension.title.en) for dimension in report.rubric.dimensions],
    }
    cards = ",".join(card for card, _, _ in waiting)
    dialogues = ",".join(text for _, text, _ in waiting)
    data = f'{_json(head)[:-1]},"cards":{{{cards}}},"dialogues":[{dialogues}]}}'
    return Part(sum(count for _, _, count in waiting), len(waiting), data)


def _json(value: Any) -> str:
    """JSON without any character that could end or open an element, or a line to an old browser."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _by_card(report: Report) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Cards in the order of the first run that has them, each with its dialogues, supporters side by side."""
    cards: dict[str, dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    for place, entry in enumerate(report.entries):
        for transcript in sorted(entry.transcripts, key=lambda one: one.sample):
            card = transcript.card
            if card.id not in cards:
                crisis = transcript.key in entry.audit.crisis
                cards[card.id] = {"id": card.id, "language": card.language, "text": card.as_text(), "crisis": crisis}
            found.setdefault(card.id, []).append(_dialogue(transcript, entry, place, report))
    for identifier, shown in cards.items():
        yield shown, found[identifier]


def _dialogue(transcript: Transcript, entry: Entry, place: int, report: Report) -> dict[str, Any]:
    marks = entry.audit.marks.get(transcript.key, [])
    scores = []
    for dimension in report.rubric.dimensions:
        judgment = entry.judgments.get((transcript.key, dimension.name))
        scores.append(None if judgment is None or judgment.expected is None else round(judgment.expected, 2))
    turns = []
    for number, turn in enumerate(transcript.turns):
        told: dict[str, Any] = {"who": turn.speaker, "text": turn.text}
        if turn.finish == "length":
            told["cut"] = True
        if turn.thinking:
            told["thinking"] = turn.thinking
        if here := [f"{mark.fault}: {mark.reason}" for mark in marks if mark.turn == number]:
            told["marks"] = here
        turns.append(told)
    return {
        "card": transcript.card.id,
        "sample": transcript.sample,
        "supporter": place,
        "end": transcript.end_reason.value,
        "fault": transcript.end_reason.is_fault,
        "detail": None if transcript.end_reason is EndReason.rounds else transcript.detail,
        "scores": scores,
        "average": _average(transcript, entry),
        "marks": [f"{mark.side} {mark.fault}: {mark.reason}" for mark in marks if mark.turn is None],
        "faults": sorted({f"{mark.side} {mark.fault}" for mark in marks}),
        "turns": turns,
    }


def _average(transcript: Transcript, entry: Entry) -> float | None:
    """On 0..100, of this dialogue alone."""
    value = entry.dialogue_points.get(transcript.key, {}).get(AVERAGE)
    return None if value is None else round(value, 1)
