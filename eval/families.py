"""Families of models by their names: a judge may favour its own kind (Panickssery et al. 2024, arXiv 2404.13076)."""

import re

FAMILIES = {
    "qwen": r"qwen|qwq",
    "llama": r"llama|vicuna",
    "gpt": r"\bgpt|chatgpt|\bo[134]\b",
    "claude": r"claude",
    "gemini": r"gemini|gemma",
    "mistral": r"mistral|mixtral|wizardlm-?2-?7b",
    "glm": r"chatglm|\bglm",
    "internlm": r"internlm",
    "yi": r"\byi-",
    "deepseek": r"deepseek",
    "smollm": r"smollm",
    "phi": r"\bphi-?\d",
}


def family(name: str) -> str | None:
    """The family a model's name tells, None where it tells none. A model distilled from another counts as its own."""
    return next((found for found, pattern in FAMILIES.items() if re.search(pattern, name.lower())), None)


def same_family(judge: str, supporters: list[str]) -> list[str]:
    """The supporters whose names are of the judge's family."""
    own = family(judge)
    return [name for name in supporters if own is not None and family(name) == own]
