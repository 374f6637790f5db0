"""`esckit data doctor`: what a training file would do with a model's tokenizer and template, before anything trains.

Training stops at the first fault; the doctor reads on, counts every kind of fault and says where the first ones are.
Texts are never quoted: places are `file:line`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import ValidationError

from data_prep.chat_format import Message
from data_prep.errors import UserError
from data_prep.records import Dialogue, describe_invalid, parse_json, read_text
from data_prep.sample import Sample
from train.masking import IGNORED, ChatRenderer, Encoded, fit
from train.rows import ChatFormat, learned_messages
from train.templates import pieces_of, stabilise

Verdict = Literal["ok", "warning", "fault"]
MARKS: dict[Verdict, str] = {"ok": "✓", "warning": "!", "fault": "✗"}
PLACES = 3
"""How many places a line shows; all are counted."""
ROLES = ("system", "user", "assistant")
SPEAKERS = ("seeker", "supporter")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `count`: records with the finding; `text`: what it is and, when it is something,
    what to do; `places`: the first of them as `file:line`."""

    name: str
    verdict: Verdict
    count: int
    text: str
    places: tuple[str, ...] = ()

    def line(self) -> str:
        """For people: mark, name, finding, first places."""
        more = ", …" if self.count > len(self.places) > 0 else ""
        return f"{MARKS[self.verdict]} {self.name}: {self.text}" + (
            f" [{', '.join(self.places)}{more}]" if self.places else ""
        )


@dataclass(frozen=True)
class Diagnosis:
    """Figures of the records that could be rendered, and all checks in a fixed order."""

    records: int
    rendered: int
    tokens: int
    supervised_tokens: int
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether `esckit train` would take the file: no fault, whatever the warnings."""
        return all(check.verdict != "fault" for check in self.checks)


@dataclass
class Findings:
    """Places by check, kept in the order of the file; a record counts once a check."""

    places: dict[str, list[str]] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, where: str, fault: bool, reason: str = "") -> None:
        found = self.places.setdefault(name, [])
        if where not in found[-1:]:
            found.append(where)
        if fault:
            self.faults.add(name)
        self.reasons.setdefault(name, reason.removeprefix(f"{where}: "))

    def check(self, name: str, fine: str, found: str) -> Check:
        """`fine` when nothing was found; else `found`, in which {count} and {reason} (the first one) are filled in."""
        places = self.places.get(name, [])
        if not places:
            return Check(name, "ok", 0, fine)
        verdict: Verdict = "fault" if name in self.faults else "warning"
        text = found.replace("{count}", f"{len(places):,}").replace("{reason}", self.reasons[name])
        return Check(name, verdict, len(places), text, tuple(places[:PLACES]))


def examine(file: str | Path, tokenizer: Any, how: ChatFormat) -> Diagnosis:
    """Looks at every record of a file of dialogues or of rendered messages as training on it would.

    `how.side` is who is trained on dialogues; messages say it themselves. Raises UserError when the file cannot be
    opened or holds nothing that looks like our records.
    """
    findings = Findings()
    renderer: ChatRenderer | None = None
    try:
        renderer = ChatRenderer(stabilise(tokenizer))
    except UserError as error:
        findings.add("template", "", True, str(error))
    marks = plain_marks(renderer) if renderer else ()
    total = 0
    lengths: list[int] = []
    supervised = 0
    for where, record in records_of(file, findings):
        total += 1
        prepared = messages_of(record, how, where, findings) if record is not None else None
        if prepared is None:
            continue
        messages, learned = prepared
        look_at_words(messages, learned, where, findings)
        if renderer is None:
            continue
        look_at_marks(messages, where, renderer, marks, findings)
        row = look_at_row(messages, learned, where, renderer, how.max_length, findings)
        if row is not None:
            lengths.append(len(row.input_ids))
            supervised += row.supervised()
    checks = (*data_checks(findings), *row_checks(findings, renderer, lengths, how.max_length))
    return Diagnosis(total, len(lengths), sum(lengths), supervised, checks)


def records_of(file: str | Path, findings: Findings) -> Iterator[tuple[str, Dialogue | Sample | None]]:
    """Every record with its place; None for one that training would not read, which is then among the findings.

    The first readable record tells which kind the file holds, as in training.
    """
    kind: type[Dialogue] | type[Sample] | None = None
    seen: set[str] = set()
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            value = parse_json(line, where)
        except UserError as error:
            findings.add("records", where, True, str(error))
            yield where, None
            continue
        kind = kind or kind_of(file, value)
        record = read_record(kind, value, where, findings)
        if record is not None and record.id in seen:
            findings.add("records", where, True, "an id that an earlier record has; ids must differ")
        seen |= {record.id} if record is not None else set()
        yield where, record
    if kind is None:
        raise UserError(f"{file}: holds no record; expected dialogues or messages, one JSON object a line")


def kind_of(file: str | Path, value: Any) -> type[Dialogue] | type[Sample]:
    """What a file holds, by its first record. Raises UserError for what is neither."""
    if isinstance(value, dict) and "messages" in value:
        return Sample
    if isinstance(value, dict) and "turns" in value:
        return Dialogue
    from data_prep.sources.detect import not_ours

    raise UserError(
        not_ours(file, "Dialogue") or f"{file}: holds neither dialogues (turns) nor messages; see docs/data.md"
    )


def read_record(
    kind: type[Dialogue] | type[Sample], value: Any, where: str, findings: Findings
) -> Dialogue | Sample | None:
    """The record, or None when training would not read it. What has a check of its own is told there."""
    rows = value.get("turns" if kind is Dialogue else "messages") if isinstance(value, dict) else None
    key, known = ("speaker", SPEAKERS) if kind is Dialogue else ("role", ROLES)
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and isinstance(row.get(key), str) for row in rows):
        if any(row[key] not in known for row in rows):
            findings.add("roles", where, True)
            return None
        if any(row[key] == "system" for row in rows[1:]):
            findings.add("order", where, True)
            return None
        if kind is Sample and all(row.get("train") is False for row in rows):
            findings.add("loss", where, True)
            return None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        findings.add("records", where, True, describe_invalid(error))
        return None


def messages_of(
    record: Dialogue | Sample, how: ChatFormat, where: str, findings: Findings
) -> tuple[list[Message], list[bool]] | None:
    """What is trained on one record, up to its last learned message; None when nothing can be."""
    if isinstance(record, Sample):
        how = replace(how, side=record.side or how.side)
    elif how.side not in record.speakers():
        findings.add("loss", where, True)
        return None
    elif how.side == "seeker" and record.card is None:
        findings.add("card", where, True)
        return None
    try:
        messages, learned = learned_messages(record, how, where)
    except UserError as error:
        findings.add("records", where, True, str(error))
        return None
    end = max((index for index, learn in enumerate(learned) if learn), default=-1) + 1
    return messages[:end], learned[:end]


def look_at_words(messages: Sequence[Message], learned: Sequence[bool], where: str, findings: Findings) -> None:
    """What is wrong with the messages whatever the template does with them."""
    for message, learn in zip(messages, learned, strict=True):
        if not message["content"].strip():
            findings.add("empty", where, learn)
    if any(one["role"] == other["role"] for one, other in pairwise(messages)):
        findings.add("order", where, False)


def look_at_marks(
    messages: Sequence[Message], where: str, renderer: ChatRenderer, marks: Sequence[str], findings: Findings
) -> None:
    """Whether somebody wrote what the template or the tokenizer uses to tell turns apart."""
    text = "\n".join(message["content"] for message in messages)
    if any(token in text for token in renderer.control_texts):
        findings.add("typed", where, False)
    if any(mark in text for mark in marks):
        findings.add("marks", where, False, ", ".join(marks))


def plain_marks(renderer: ChatRenderer) -> tuple[str, ...]:
    """Marks that the template writes as plain text, such as [INST]: nobody can tell them from typed ones."""
    messages = renderer.accepted([{"role": role, "content": ""} for role in ("system", "user", "assistant")])
    text = " ".join(pieces_of(renderer.tokenizer, [message["role"] for message in messages]))
    for token in sorted(renderer.control_texts, key=len, reverse=True):
        text = text.replace(token, " ")
    return tuple(sorted(set(re.findall(r"<+/?[^\s<>]+>+|\[/?[^\s\[\]]+\]", text))))


def look_at_row(
    messages: Sequence[Message],
    learned: Sequence[bool],
    where: str,
    renderer: ChatRenderer,
    max_length: int,
    findings: Findings,
) -> Encoded | None:
    """The whole record as ids, and what is wrong with them; None when the template refuses it."""
    try:
        row = renderer.encode(messages, learned)
    except UserError as error:
        findings.add("template", where, True, str(error))
        return None
    ends = [
        token
        for token, label, following in zip(row.input_ids, row.labels, [*row.labels[1:], IGNORED], strict=True)
        if label != IGNORED and following == IGNORED
    ]
    if len(ends) < sum(learned) or not set(ends) <= set(renderer.stop_ids):
        findings.add("terminator", where, True)
    bos = renderer.tokenizer.bos_token_id
    if bos is not None and row.input_ids[:2] == [bos, bos]:
        findings.add("bos", where, True)
    if len(row.input_ids) > max_length:
        findings.add("length", where, False)
        try:
            fit(renderer, messages, max_length, where, learned)
        except UserError:
            findings.add("too long", where, True)
    return row


def data_checks(findings: Findings) -> list[Check]:
    """The checks that need no template."""
    return [
        findings.check(
            "records", "all can be read", "{count} cannot be read; correct or remove them; the first: {reason}"
        ),
        findings.check(
            "roles",
            "all are known",
            "{count} with a name that is none of ours; messages have system, user, assistant, turns have seeker, "
            "supporter; rename them",
        ),
        findings.check(
            "order",
            "a system message comes first, neighbours differ",
            "{count} with a system message that is not the first, or neighbouring messages of one role; put the one "
            "first, join the others (`esckit data build` does)",
        ),
        findings.check(
            "empty",
            "every message says something",
            "{count} with an empty message; a learned one teaches to say nothing: remove it (`esckit data clean` does)",
        ),
        findings.check(
            "loss",
            "every record has something to learn",
            "{count} from which nothing would be learned: no turn of the trained side, or no message with train: true; "
            "remove them",
        ),
        findings.check(
            "card",
            "every seeker who is trained has a role card",
            "{count} dialogues without a role card, which seeker training needs; make cards (`esckit cards extract`) "
            "or train the other side",
        ),
    ]


def row_checks(findings: Findings, renderer: ChatRenderer | None, lengths: Sequence[int], limit: int) -> list[Check]:
    """The checks of what template and tokenizer make of the records; the template's alone when it is unusable."""
    if renderer is None:
        return [Check("template", "fault", 1, findings.reasons["template"])]
    ends = ", ".join(renderer.tokenizer.convert_ids_to_tokens(renderer.stop_ids))
    share = f"{len(findings.places.get('length', [])) / len(lengths):.1%}" if lengths else "none"
    longest = f"the longest has {max(lengths):,}, the middle one {median(lengths):,.0f}" if lengths else "none rendered"
    return [
        template_check(findings, renderer),
        findings.check(
            "terminator",
            f"every learned turn ends with a token that generation stops on ({ends})",
            f"{{count}} where a learned turn does not end with {ends}: the model would not stop there; correct the "
            "chat template",
        ),
        findings.check(
            "bos", bos_text(renderer), "{count} that begin with two bos tokens; remove one from the chat template"
        ),
        findings.check(
            "length",
            f"no record has to lose turns to {limit:,} tokens; {longest}",
            f"{{count}} ({share}) have more than {limit:,} tokens and lose their oldest turns; {longest}; raise "
            "max_length if memory allows",
        ),
        findings.check(
            "too long",
            f"system prompt and last exchange always fit into {limit:,}",
            f"{{count}} whose system prompt and last exchange alone have more than {limit:,} tokens; raise max_length "
            "or remove them",
        ),
        findings.check(
            "typed",
            "nobody wrote the name of a control token",
            "{count} with the name of a control token in a text; here it stays text, other tools may take it for a "
            "turn's end: remove it if it is none of the people's own words",
        ),
        findings.check(
            "marks",
            "nobody wrote a mark that the template writes as plain text",
            "{count} with a mark that the template writes as plain text ({reason}), which the model cannot tell apart; "
            "remove it",
        ),
    ]


def template_check(findings: Findings, renderer: ChatRenderer) -> Check:
    """Refusals are faults; what a user should know of how the template is used is a warning."""
    fine = "renders every record"
    check = findings.check("template", fine, "{count} that it refuses; the first: {reason}")
    if check.verdict == "ok" and renderer.notes:
        return Check("template", "warning", 0, f"{fine}; {'; '.join(renderer.notes)}")
    return check


def bos_text(renderer: ChatRenderer) -> str:
    """What is fine about the beginning, with a warning for other tools where the tokenizer adds a token of its own."""
    tokenizer = renderer.tokenizer
    bos = tokenizer.bos_token_id
    if bos is not None and tokenizer("x")["input_ids"][:1] == [bos]:
        return "one at most; the tokenizer adds another to rendered text unless told add_special_tokens=False"
    return "one at most"
