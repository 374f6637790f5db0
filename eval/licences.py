"""The licence ledger of a report: which data and models went in, and what their licences forbid, as far as known.

A list of what publishers state, no legal advice: a model's own card counts, and what is not listed is unknown.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.datasheet import licence_of
from eval.runs import Run

UNKNOWN = "unknown: see its own page"
# By the beginning of the model's name, without the publisher.
MODELS = (
    (r"qwen2\.5-(3b|72b)", "Qwen Research or Qwen licence"),
    (r"qwen(2\.5|3)", "Apache-2.0"),
    (r"qwen1\.5", "Tongyi Qianwen licence"),
    (r"smollm", "Apache-2.0"),
    (r"(meta-)?llama-?3", "Meta Llama 3 Community Licence"),
    (r"internlm2", "Apache-2.0 code; weights free for research, commercial use on application"),
    (r"chatglm3", "ChatGLM3-6B licence: research free, commercial use on registration"),
    (r"yi-", "Apache-2.0"),
    (r"vicuna", "Llama 2 Community Licence"),
    (r"mistral-7b", "Apache-2.0"),
    (r"gemma", "Gemma Terms of Use"),
    (r"(all-)?minilm", "Apache-2.0"),
    (r"gpt-|chatgpt", "OpenAI's terms of use"),
)
FORBIDS = (
    (r"\bNC\b|non-?commercial|research", "commercial use, unless agreed with its owner"),
    (r"\bND\b", "passing on changed versions"),
    (r"none stated|unknown", "not known to allow anything: ask its owner"),
    (r"Community Licence", "use against its acceptable-use policy; very large services need their own licence"),
    (r"Terms of Use|terms of use", "use against its terms; training of competing models where they say so"),
    (r"Qianwen", "very large services need their own licence"),
    (r"registration|application", "commercial use before registration"),
    (r"\bSA\b", "passing on changed versions under other terms"),
)


@dataclass(frozen=True)
class LedgerRow:
    """One thing that went in."""

    kind: str
    name: str
    licence: str
    forbids: str


def ledger(runs: Sequence[Run], scorers: dict[str, dict[str, Any]], sources: Iterable[str]) -> list[LedgerRow]:
    """Rows for role cards' sources, seekers, supporters and scorers, each once."""
    rows = [_row("role cards", source, licence_of(source, {})) for source in sorted(set(sources))]
    for run in runs:
        for side in ("seeker", "supporter"):
            label = str(run.settings.get(side, {}).get("label", "unknown"))
            rows.append(_row(side, label, licence_of_model(label)))
    for label, stored in scorers.items():
        base = str(stored.get("identity", {}).get("base", "")) or label
        rows.append(_row("scorer", f"{label} (on {base})" if base != label else label, licence_of_model(base)))
    return list(dict.fromkeys(rows))


def licence_of_model(name: str) -> str:
    """Licence of a model by its name, adapters counted as their base; `UNKNOWN` for a name that is not listed."""
    base = name.split(":", 1)[-1].split("@")[0].split("+")[0].rsplit("/", 1)[-1].lower()
    return next((licence for pattern, licence in MODELS if re.match(pattern, base)), UNKNOWN)


def _row(kind: str, name: str, licence: str) -> LedgerRow:
    found = [what for pattern, what in FORBIDS if re.search(pattern, licence)]
    return LedgerRow(kind, name, licence, "; ".join(found) or "nothing listed here beyond naming its source")
