"""The published ESC-Eval tables, and a report beside them: what may be compared with them, and what may not.

Source of the tables: eval/published/README.md.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.errors import UserError
from eval.report_records import AVERAGE, Report
from eval.statistics import Interval

PUBLISHED = Path(__file__).parent / "published"
LEADERBOARDS = {"en": PUBLISHED / "leaderboard_en.csv", "zh": PUBLISHED / "leaderboard_zh.csv"}
CARDS = {"en": 331, "zh": 324}
FEWEST_SYSTEMS = 5
# How the published names are spelt in the names of models, without case and punctuation. GPT-4 and ChatGPT are services
# that have changed since, so that nothing of today is taken for them.
SPELT = {
    "Vicuna-7B-1.5": ("vicuna7b15", "vicuna7bv15"),
    "WizardLM2-7B": ("wizardlm27b",),
    "Qwen1.5-7B-Chat": ("qwen157bchat",),
    "ChatGLM3-6B": ("chatglm36b",),
    "Yi-6B-Chat": ("yi6bchat",),
    "LLaMA3-8B-Instruct": ("llama38binstruct", "metallama38binstruct"),
    "ChatCounselor": ("chatcounselor",),
    "MindChat": ("mindchat",),
    "SoulChat": ("soulchat",),
    "EmoLLM": ("emollm",),
    "MeChat": ("mechat",),
    "ExTES-LLaMa": ("extesllama",),
}


@dataclass(frozen=True)
class Reference:
    """A published leaderboard, and how a report's supporters stand to it."""

    name: str
    systems: dict[str, dict[str, float]]
    """System → dimension or "average" → 0..100, in the order published."""
    matched: dict[str, str]
    """Label of a supporter here → name there; nobody else is taken for the same system."""
    tau: Interval
    """Kendall's tau-b between both orders of the matched systems, with a bootstrap interval over systems."""
    notes: list[str]
    """What differs, so that figures must not be compared number by number."""


def load_leaderboard(name: str) -> dict[str, dict[str, float]]:
    """A published table, `en` or `zh`, or a CSV file of the same shape (a column `model`, others 0..100).

    Raises UserError for a file that has no column `model`, or a value that is no number from 0 to 100.
    """
    path = LEADERBOARDS.get(name, Path(name))
    if not path.is_file():
        raise UserError(f"--reference is {name!r}: neither en nor zh nor a file")
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        if "model" not in (reader.fieldnames or ()) or AVERAGE not in (reader.fieldnames or ()):
            raise UserError(f"{path}:1: needs the columns model and average, and one a dimension")
        systems: dict[str, dict[str, float]] = {}
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if row["model"] in systems:
                raise UserError(f"{where}: {row['model']!r} occurs twice")
            systems[row["model"]] = {
                key: _percent(value, f"{where}: {key}") for key, value in row.items() if key != "model"
            }
    if not systems:
        raise UserError(f"{path}: holds no system")
    return systems


def _percent(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 100:
        raise UserError(f"{where}: found {text!r}, expected a number from 0 to 100")
    return value


def compare_with(report: Report, name: str) -> Reference:
    """The report beside a leaderboard (`load_leaderboard`)."""
    systems = load_leaderboard(name)
    matched: dict[str, str] = {}
    for entry in report.entries:
        found = published_name(entry.supporter, systems)
        if found is not None and found not in matched.values():
            matched[entry.label] = found
    ours = {entry.label: entry.figures[AVERAGE].percent.mean for entry in report.entries}
    pairs = [(mean, systems[there][AVERAGE]) for label, there in matched.items() if (mean := ours[label]) is not None]
    return Reference(name, systems, matched, kendall(pairs, report.confidence, report.seed), _notes(report, name))


def published_name(supporter: str, systems: Sequence[str] | dict[str, dict[str, float]]) -> str | None:
    """Which published system a supporter's name says it is: an equal name, or one of `SPELT` as the model's name."""
    plain = _plain(supporter.split(":", 1)[-1].split("@")[0].rsplit("/", 1)[-1])
    for system in systems:
        if plain == _plain(system) or plain in SPELT.get(system, ()):
            return system
    return None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def kendall(pairs: Sequence[tuple[float, float]], confidence: float = 0.95, seed: int = 0) -> Interval:
    """Kendall's tau-b of pairs, with a percentile bootstrap interval over pairs; none below five of them.

    Resamples in which one side is constant have no tau and are left out.
    """
    from scipy.stats import kendalltau

    count = len(pairs)
    if count < 2:
        return Interval(
            None, None, None, count, reason=f"{count} of the published systems are here; an order needs two"
        )
    values = np.array(pairs)
    tau = float(kendalltau(values[:, 0], values[:, 1]).statistic)
    if not np.isfinite(tau):
        return Interval(None, None, None, count, reason="all systems have the same score on one side")
    if count < FEWEST_SYSTEMS:
        return Interval(tau, None, None, count, reason=f"{count} systems are too few for an interval")
    generator = np.random.default_rng(seed)
    drawn = (values[generator.integers(0, count, count)] for _ in range(1999))
    found = [float(kendalltau(one[:, 0], one[:, 1]).statistic) for one in drawn if np.ptp(one, axis=0).all()]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(tau, float(low), float(high), count, method="percentile")


def _notes(report: Report, name: str) -> list[str]:
    run = report.runs[0]
    seeker = run.settings.get("seeker", {}).get("label", "unknown")
    cards = len({transcript.card.id for entry in report.entries for transcript in entry.transcripts})
    scale = report.columns[0].scale
    notes = [
        f"Seeker: here {seeker}, there ESC-Role on Qwen1.5-14B-Chat.",
        f"Scorer: here {', '.join(report.scorers)}, there people (one label a dialogue and dimension).",
    ]
    if name in CARDS:
        notes.append(f"Cards: here {cards}, there {CARDS[name]} of high quality.")
    if report.rubric.name != "esc_eval" or scale != (0, 4):
        notes.append(f"Rubric: here {report.rubric.name}, there the seven dimensions of ESC-Eval on 0..4.")
    languages = {transcript.card.language for entry in report.entries for transcript in entry.transcripts}
    if name in CARDS and languages != {name}:
        notes.append(f"Language: the cards here are in {', '.join(sorted(languages))}, there in {name}.")
    notes.append("So only the order of systems can be compared, and only where the same systems are on both sides.")
    return notes
