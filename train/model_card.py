"""The model card of a result folder: what it was made from, how, under which licences, and how well it did.

Nothing of a dialogue and no path of a machine is in it: files are named without their folders.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import UserError

PURPOSE = {
    "seeker": "A simulated help seeker (ESC-Role): it plays a role card in an emotional-support conversation, to test "
    "supporter models. It is no record of a person, and what it says of a role card's trouble is invented.",
    "supporter": "A supporter in emotional-support conversations, for research. It is no therapist and no crisis "
    "service: do not put it before people in distress without human oversight.",
    "scorer": "A scorer of emotional-support conversations (ESC-RANK): it reads a dialogue and gives a "
    "distribution over the scale of every dimension. It repeats its raters, their mistakes included.",
}

LIMITS = """## What the scores are good for

The scores compare supporters under one kind of seeker and one rubric: the dialogues, languages and raters named above.
They make no clinical judgment, of a person or of a program, and are no ground for deciding what somebody in distress is
told. Another kind of dialogue, another language, another seeker model or another wording of the rubric is outside of
what was measured. Where the agreement above is low or its interval reaches 0, the dimension should not be reported.
"""

PARTS = {
    "validation": "validation part (the checkpoint or the calibration may have been chosen by it)",
    "test": "test part (nothing was chosen by it)",
    "cross_validation": "all dialogues, each scored by members that never saw its group",
}


def card_of(folder: Path) -> str:
    """The card of a finished run. Raises UserError when the run is unfinished."""
    return card_text(_read(folder, "recipe.yaml"), _read(folder, "metrics.json"))


def card_text(recipe: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The card as Markdown with the hub's YAML head, from a resolved recipe and the content of metrics.json."""
    sheets = datasheets(recipe)
    base = _named(recipe["model"]["base"])
    head = {
        "base_model": base,
        "library_name": "peft" if recipe.get("lora") else "transformers",
        "pipeline_tag": "text-classification" if recipe["kind"] == "scorer" else "text-generation",
        "tags": ["emotional-support-conversation", f"esc-{recipe['kind']}", "esckit"],
        "license": "other",
    }
    sections = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n",
        f"# {recipe['kind'].capitalize()} on {_plain(base)}\n",
        PURPOSE[recipe["kind"]] + "\n",
        _data_section(recipe, metrics, sheets),
        _figures_section(metrics),
        *((_agreement_section(recipe, metrics), LIMITS) if recipe["kind"] == "scorer" else ()),
        "## Recipe\n\n```yaml\n" + _recipe_text(recipe) + "```\n",
        "## Versions\n\n" + ", ".join(f"{name} {number}" for name, number in metrics["versions"].items()) + "\n",
    ]
    return "\n".join(section for section in sections if section)


def datasheets(recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """The datasheets beside the training files (`esckit data build` writes them), each once."""
    found = {}
    for file in recipe["data"]["train"]:
        path = Path(file).parent / "datasheet.json"
        if path.is_file():
            found[path] = json.loads(path.read_text(encoding="utf-8"))
    return list(found.values())


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise UserError(f"{path}: file not found; a model card is written from a finished training run")
    text = path.read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)
    return content


def _data_section(recipe: dict[str, Any], metrics: dict[str, Any], sheets: list[dict[str, Any]]) -> str:
    lines = ["## Data\n"]
    for name in ("train", "validation", "test"):
        found = metrics["data"].get(name)
        if found:
            counts = ", ".join(f"{_words(key)} {value:,}" for key, value in found.items() if isinstance(value, int))
            lines.append(f"- {name}: {counts}")
    lines += [f"- file `{_plain(Path(file).name)}`, sha256 {sha}" for file, sha in metrics["data_sha256"].items()]
    sources = {
        (entry["source"], entry["licence"]) for sheet in sheets for entry in sheet.get("sources", []) if entry["source"]
    }
    if sources:
        lines.append("\nSources and what their licences say (from the datasheets beside the data):\n")
        lines += [f"- {_plain(source)}: {_plain(licence)}" for source, licence in sorted(sources)]
    else:
        lines.append("\nNo datasheet was found beside the training files: sources and licences must be added by hand.")
    lines.append(f"\nThe base model's licence ({_plain(_named(recipe['model']['base']))}) applies to this model too.")
    return "\n".join(lines) + "\n"


def _figures_section(metrics: dict[str, Any]) -> str:
    losses, held_out = metrics["train_loss"], metrics["eval_loss"]
    lines = [f"- steps: {metrics['steps']:,}; trainable parameters: {metrics['trainable_parameters']:,}"]
    if losses:
        lines.append(f"- training loss: {losses[0]:.4f} at the first log, {losses[-1]:.4f} at the last")
    if held_out:
        lines.append(f"- held-out loss, in order of evaluation: {', '.join(f'{loss:.4f}' for loss in held_out)}")
    else:
        lines.append("- held-out loss: not measured (the recipe names no validation data)")
    perplexity = (metrics.get("validation") or {}).get("perplexity")
    if perplexity is not None:
        lines.append(f"- held-out perplexity of the learned turns: {perplexity:.2f}")
    return "## Figures\n\n" + "\n".join(lines) + "\n"


def _agreement_section(recipe: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Quadratic weighted kappa with the raters, part by part; a scorer without held-out ratings says so."""
    rubrics = ", ".join(_plain(Path(name).name) for name in recipe["rubric"])
    lines = [f"## Agreement with raters\n\nRubric: {rubrics}. Quadratic weighted kappa of the median level with every"]
    lines[0] += " rating; 0 is what a constant reaches; 95 % bootstrap interval over dialogues.\n"
    if metrics["data"].get("illustrative"):
        lines.append("**Trained on illustrative samples: no figure here says anything of people.**\n")
    if not metrics.get("agreement"):
        lines.append("Not measured: the recipe holds no ratings out. Nobody should use scores of unknown agreement.")
    for part, table in metrics.get("agreement", {}).items():
        lines += [f"\nOn the {PARTS[part]}:\n", "| dimension | kappa | ratings | dialogues |", "|---|---|---|---|"]
        for name, found in table.items():
            lines.append(f"| {_plain(name)} | {_kappa(found)} | {found['ratings']} | {found['dialogues']} |")
    return "\n".join(lines) + "\n"


def _kappa(found: dict[str, Any]) -> str:
    if found["kappa"] is None:
        return f"undefined: {found['reason']}"
    if found["low"] is None:
        return f"{found['kappa']:.2f} (no interval: {found['reason']})"
    return f"{found['kappa']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _recipe_text(recipe: dict[str, Any]) -> str:
    """The resolved recipe, files and folders without their place on this machine."""
    files = {
        key: [Path(file).name for file in value]
        for key, value in recipe["data"].items()
        if key in ("train", "validation", "ratings") and value
    }
    shown = _named({**recipe, "data": {**recipe["data"], **files}})
    if recipe["kind"] == "scorer":
        shown["rubric"] = [Path(name).name for name in recipe["rubric"]]
        shown["data"]["key"] = recipe["data"]["key"] and Path(recipe["data"]["key"]).name
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).replace("```", "'''")


def _named(value: Any) -> Any:
    """Paths as the name of what they lead to, at any depth."""
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~", ".")) else value


def _plain(text: str) -> str:
    """Text for Markdown: one line, no markup of its own."""
    return " ".join(str(text).split()).replace("`", "'").replace("<", "&lt;")


def _words(key: str) -> str:
    return key.replace("_", " ")
