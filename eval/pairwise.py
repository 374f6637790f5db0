"""Two supporters side by side: a judge reads both dialogues of a card in both orders and names the better one.

OUT/manifest.json        both runs by the hash of their dialogues, the judge, the prompt; a resume must agree with it
OUT/comparisons.jsonl    append-only, one line a pair and order

A verdict counts only when both orders agree. When the judge sticks to a place whatever stands there, the pair is a tie
and counted as a flip; a reply that cannot be read leaves the pair missing, with the text.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import UserError
from data_prep.judge_prompt import quoted, quoted_card
from data_prep.prompt import Prompt
from data_prep.records import Record, parse_json, read_records, read_text, write_text
from data_prep.rubric import Rubric
from eval.chat_models.base import ChatModel, Reply, Request, Sampling
from eval.runs import Run, Transcript, append_lines, repair_lines
from eval.statistics import Interval, mean_interval
from eval.statistics_pairwise import PairOutcome

LINES, MANIFEST = "comparisons.jsonl", "manifest.json"
ANSWER = re.compile(r"[\s*_`\"'“「（(\[]*(A|B|TIE|平手)[\s*_`\"'”」）)\].。!！]*", re.IGNORECASE)
SAMPLING = Sampling(max_new_tokens=16, temperature=0, top_p=1)

Verdict = Literal["a", "b", "tie"]


class Comparison(Record):
    """What the judge said of one pair in one order. `verdict` is about the runs, whatever place they stood in."""

    pair: str
    """Key of both dialogues: card and sample."""
    card: str
    a_first: bool
    verdict: Verdict | None = None
    raw: str | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, bool]:
        return self.pair, self.a_first


@dataclass(frozen=True)
class Outcomes:
    """All pairs of two runs, judged."""

    rows: list[PairOutcome]
    flips: int
    """Pairs whose verdict followed the order."""
    first_chosen: Interval
    """Share of clear verdicts that went to the dialogue that stood first; 0.5 is no bias. Over cards."""
    missing: Counter[str]
    """Pairs without a verdict in both orders, by reason."""
    unpaired: int
    """Dialogues that only one of the runs has, or that are not whole."""
    preference: Interval
    """Share of pairs in favour of a, ties half, over cards."""


def pairs_of(a: Run, b: Run) -> tuple[list[tuple[Transcript, Transcript]], int]:
    """Whole dialogues of the same card and sample, and how many dialogues have no partner.

    Raises UserError when a card of the same id is another card in the other run, or nothing is shared.
    """
    sides = [{one.key: one for one in run.transcripts() if not one.end_reason.is_fault} for run in (a, b)]
    shared = [key for key in sides[0] if key in sides[1]]
    pairs = [(sides[0][key], sides[1][key]) for key in shared]
    for one, other in pairs:
        if one.card != other.card:
            raise UserError(f"{b.folder}: card {one.card.id!r} is another card than in {a.folder}")
    if not pairs:
        raise UserError(f"{a.folder} and {b.folder} share no finished dialogue of the same card")
    total = len(a.transcripts()) + len(b.transcripts())
    return pairs, total - 2 * len(pairs)


def question(prompt: Prompt, rubric: Rubric, first: Transcript, second: Transcript) -> str:
    """What the judge is asked: card, both dialogues, every criterion of the rubric with the meaning of its levels."""
    one, other = first.to_dialogue(), second.to_dialogue()
    language = one.language
    colon = "：" if language == "zh" else ": "
    criteria = []
    for dimension in rubric.dimensions:
        criteria.append(f"- {getattr(dimension.title, language)}{colon}{getattr(dimension.question, language)}")
        criteria += [
            f"  {level}{colon}{getattr(anchor, language)}" for level, anchor in sorted(dimension.anchors.items())
        ]
    return prompt.render(
        language,
        card=quoted_card(one, language),
        first=quoted(one, language),
        second=quoted(other, language),
        criteria="\n".join(criteria),
    )


def read_answer(reply: str) -> Literal["first", "second", "tie"] | None:
    """A, B or TIE and nothing else but quotes, marks and white space around it."""
    found = ANSWER.fullmatch(reply)
    if found is None:
        return None
    return {"a": "first", "b": "second"}.get(found[1].lower(), "tie")  # type: ignore[return-value]


def compare(
    folder: Path,
    runs: tuple[Run, Run],
    judge: ChatModel,
    prompt: Prompt,
    rubric: Rubric,
    batch_size: int = 8,
    progress: Callable[[float], None] = lambda done: None,
) -> Outcomes:
    """Judges what is not judged yet and appends it; then all outcomes.

    Raises UserError when the folder holds another comparison, or the judge's server is gone.
    """
    pairs, unpaired = pairs_of(*runs)
    _check_manifest(folder, _manifest(runs, judge, prompt, rubric))
    path = folder / LINES
    repair_lines(path)
    done = {one.key: one for one in read_records(path, Comparison)} if path.exists() and path.stat().st_size else {}
    waiting = [(pair, order) for pair in pairs for order in (True, False) if (pair[0].key, order) not in done]
    progress(len(done))
    # Longest first, both orders of a pair in one batch where it fits.
    waiting.sort(key=lambda one: -sum(len(turn.text) for side in one[0] for turn in side.turns))
    for start in range(0, len(waiting), batch_size):
        batch = waiting[start : start + batch_size]
        judged = list(_judge(batch, judge, prompt, rubric))
        down = getattr(judge, "down", None)
        if down:
            raise UserError(f"judge {judge.name.split('@')[0]}: {down} The comparisons before this are kept")
        append_lines(path, judged)
        done |= {one.key: one for one in judged}
        progress(len(batch))
    return outcomes([done[pair[0].key, order] for pair in pairs for order in (True, False)], unpaired)


def _judge(
    batch: Sequence[tuple[tuple[Transcript, Transcript], bool]], judge: ChatModel, prompt: Prompt, rubric: Rubric
) -> Iterator[Comparison]:
    requests = []
    for (one, other), a_first in batch:
        asked = question(prompt, rubric, *((one, other) if a_first else (other, one)))
        requests.append(Request(f"{one.key}|{a_first}", [{"role": "user", "content": asked}], 0))
    replies = judge.reply(requests, SAMPLING)
    judge.forget()
    for ((one, _), a_first), reply in zip(batch, replies, strict=True):
        yield _read(one, a_first, reply)


def _read(transcript: Transcript, a_first: bool, reply: Reply) -> Comparison:
    place: dict[str, Any] = {"pair": transcript.key, "card": transcript.card.id, "a_first": a_first}
    if reply.failure:
        return Comparison(**place, reason=reply.detail or reply.failure)
    answer = read_answer(reply.text)
    if answer is None:
        return Comparison(**place, raw=reply.text, reason="the reply is neither A, B nor TIE")
    verdict: Verdict = "tie" if answer == "tie" else "a" if (answer == "first") == a_first else "b"
    return Comparison(**place, verdict=verdict, raw=reply.text)


def outcomes(comparisons: Sequence[Comparison], unpaired: int, seed: int = 0) -> Outcomes:
    """Pairs from both orders: agreement counts, a clear verdict beside a tie is a tie, opposite ones are a flip."""
    by_pair: dict[str, list[Comparison]] = {}
    for one in comparisons:
        by_pair.setdefault(one.pair, []).append(one)
    rows, missing, flips = [], Counter[str](), 0
    first: dict[str, list[float]] = {}
    favour: dict[str, list[float]] = {}
    for both in by_pair.values():
        card = both[0].card
        unread = [one for one in both if one.verdict is None]
        if unread or len(both) < 2:
            missing[unread[0].reason or "no answer" if unread else "judged in one order only"] += 1
            continue
        for one in both:
            if one.verdict != "tie":
                first.setdefault(card, []).append(float((one.verdict == "a") == one.a_first))
        verdicts = {one.verdict for one in both}
        flips += verdicts == {"a", "b"}
        outcome: Verdict = both[0].verdict if len(verdicts) == 1 and both[0].verdict else "tie"
        rows.append(PairOutcome(card, "a", "b", outcome))
        favour.setdefault(card, []).append({"a": 1.0, "tie": 0.5, "b": 0.0}[outcome])
    return Outcomes(rows, flips, mean_interval(first, seed=seed), missing, unpaired, mean_interval(favour, seed=seed))


def _manifest(runs: tuple[Run, Run], judge: ChatModel, prompt: Prompt, rubric: Rubric) -> dict[str, Any]:
    def words(run: Run) -> str:
        spoken = [[one.key, one.card.as_text(), [turn.text for turn in one.turns]] for one in run.transcripts()]
        return hashlib.sha256(json.dumps(sorted(spoken), ensure_ascii=True).encode()).hexdigest()[:16]

    return {
        "a": words(runs[0]),
        "b": words(runs[1]),
        "judge": {"name": judge.name.split("@")[0], **judge.describe()},
        "prompt": prompt.reference(),
        "rubric": [rubric.name, rubric.version, rubric.sha],
    }


def _check_manifest(folder: Path, wanted: dict[str, Any]) -> None:
    path = folder / MANIFEST
    if not path.exists():
        write_text(path, json.dumps(wanted, ensure_ascii=False, indent=1) + "\n")
        return
    found = parse_json(read_text(path), str(path))
    differing = [name for name in wanted if found.get(name) != json.loads(json.dumps(wanted[name]))]
    if differing:
        raise UserError(f"{folder}: holds another comparison ({', '.join(differing)} differ); name another --out")
