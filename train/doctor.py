"""`esckit doctor`: what this machine is and has, and what each finding means for the work with the toolkit.

Every finding is one line. Only what makes the toolkit unusable is bad; what narrows it (no GPU, no network) is a
note that says what then does not work. Keys are told as set or not set; none is ever read into a message.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.hub import cache_root
from train.fetch import known_models, model_path

Verdict = Literal["ok", "note", "bad"]
MARKS: dict[Verdict, str] = {"ok": "✓", "note": "!", "bad": "✗"}
GIB = 1024**3
OLDEST_PYTHON = (3, 11)
ROOT = Path(__file__).resolve().parents[1]
INSTALL = "pip install --constraint constraints.txt --editable ."

# Packages some work can do without: what needs them.
OPTIONAL = {
    "bitsandbytes": "4-bit QLoRA (model.quantization: 4bit), on a GPU only",
    "flash_attn": "model.attention: flash_attention_2 and packed rows, on a GPU only",
    "liger_kernel": "training.use_liger_kernel, on a GPU only",
    "deepspeed": "ZeRO over many GPUs",
    "wandb": "training.report_to: wandb",
    "tensorboard": "training.report_to: tensorboard",
}

KEYS = {
    "HF_TOKEN": "models behind a licence on the hub, and publishing",
    "OPENAI_API_KEY": "servers that ask for a key",
    "WANDB_API_KEY": "tracking with wandb; without it runs are logged offline",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `text` is a line: what it is, what it means, what to do."""

    topic: str
    verdict: Verdict
    text: str


def examine(endpoint: str | None = None) -> list[Finding]:
    """All findings in a fixed order. Asks the hub and the endpoint with short time-outs; loads no model."""
    from train.doctor_network import endpoint_findings, hub_findings

    found: list[Finding] = []
    for look in (python, machine, disk, devices, packages, optional_packages, hub_findings):
        found += look()
    if endpoint is not None:
        found += endpoint_findings(endpoint)
    for look in (secrets, models):
        found += look()
    return found


def python() -> Iterator[Finding]:
    """The interpreter against the oldest one the toolkit runs on."""
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    parts = tuple(map(int, platform.python_version_tuple()[:2]))
    if parts < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield Finding(
            "python", "bad", f"{version} on {system}: {oldest} or newer is needed; make an environment with one"
        )
    else:
        yield Finding("python", "ok", f"{version} on {system}")


def machine() -> Iterator[Finding]:
    """Cores and memory that this process may use, which in a container is less than the machine has."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    usable = min(cores, quota) if quota else cores
    limited = f" (limited to {usable:g} of {os.cpu_count()})" if usable < (os.cpu_count() or 1) else ""
    yield Finding("cores", "ok", f"{usable:g} CPU cores{limited}")
    free, total = memory(psutil.virtual_memory())
    told = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < 2 * GIB:
        yield Finding("memory", "note", f"{told}: too little for the quickstart (about 2 GiB); end other programs")
    else:
        yield Finding("memory", "ok", f"{told}; `esckit train RECIPE --plan` says what a recipe needs")


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that a container is limited to; None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def memory(seen: Any, root: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """(free, total) bytes: what psutil saw, or what a container's limit leaves of it."""
    try:
        limit, used = (int((root / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return seen.available, seen.total
    # Pages of files count as used and are given back when needed, so the limit alone bounds what is free.
    try:
        lines = (root / "memory.stat").read_text().splitlines()
        used -= sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, IndexError):
        pass
    return min(seen.available, max(limit - used, 0)), min(seen.total, limit)


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def disk() -> Iterator[Finding]:
    """Room and rights where models are kept and where results go."""
    from huggingface_hub import constants

    places = {
        "cache": (cache_root(), "set ESCKIT_CACHE to another folder"),
        "hub cache": (Path(constants.HF_HUB_CACHE), "set HF_HOME to another folder"),
        "working folder": (Path.cwd(), "work in another folder"),
    }
    for name, (path, other) in places.items():
        place = existing(path)
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            yield Finding(name, "note", f"{path}: cannot be looked at ({error.strerror})")
            continue
        told = f"{path}: {free / GIB:.1f} GiB free"
        if not os.access(place, os.W_OK):
            yield Finding(name, "note", f"{path}: cannot be written; {other}")
        elif free < 1 * GIB:
            yield Finding(name, "note", f"{told}: too little even for a small model; {other}")
        elif free < 20 * GIB:
            yield Finding(name, "note", f"{told}: enough for small models; one of 7B in 16 bits takes 15; {other}")
        else:
            yield Finding(name, "ok", told)


def devices() -> Iterator[Finding]:
    """What models run on: CUDA GPUs, or the CPU."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        reason = " ".join(str(error).split())[:200]
        yield Finding("devices", "bad", f"torch cannot be imported ({reason}); run: {INSTALL}")
        return
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        name = torch.cuda.get_device_name(index)
        free, total = torch.cuda.mem_get_info(index)
        bf16 = torch.cuda.get_device_capability(index)[0] >= 8
        told = f"cuda:{index} {name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
        if bf16:
            yield Finding("devices", "ok", f"{told}, bfloat16")
        else:
            yield Finding("devices", "note", f"{told}, no bfloat16: training runs in float32, twice the memory")
    if not torch.cuda.is_available():
        apple = torch.backends.mps.is_available()
        there = "an Apple GPU is there and not used" if apple else "no GPU is visible"
        if shutil.which("nvidia-smi") and torch.version.cuda is None:
            there = "an NVIDIA driver is there, but this torch is built without CUDA (install one that is)"
        yield Finding(
            "devices",
            "note",
            f"{there}: models run on the CPU in float32; small ones (SmolLM2, MiniLM) train in minutes to an hour, "
            "7B ones need a GPU, 4-bit loading too",
        )


def required() -> list[Any]:
    """What the toolkit declares that it needs, for this platform: packaging's Requirement objects."""
    from packaging.requirements import Requirement

    project = ROOT / "pyproject.toml"
    if project.is_file():
        with project.open("rb") as file:
            lines = tomllib.load(file)["project"]["dependencies"]
    else:
        lines = importlib.metadata.requires("esckit") or []
    found = [Requirement(line) for line in lines]
    return [need for need in found if need.marker is None or need.marker.evaluate({"extra": ""})]


def tested_versions() -> dict[str, str]:
    """name -> the version the tests run on; empty where constraints.txt is not beside the code."""
    path = ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pairs = (line.split("==") for line in lines if "==" in line and not line.lstrip().startswith("#"))
    return {name.strip().lower().replace("_", "-"): version.strip() for name, version in pairs}


def packages() -> Iterator[Finding]:
    """Installed versions against the ranges that are needed and the versions that are tested."""
    tested = tested_versions()
    as_tested, wanting = 0, 0
    for need in required():
        name = need.name.lower().replace("_", "-")
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            wanting += 1
            verdict: Verdict = "note" if name in OPTIONAL else "bad"
            yield Finding("packages", verdict, f"{need.name} {need.specifier} is not installed; run: {INSTALL}")
            continue
        if not need.specifier.contains(version, prereleases=True):
            wanting += 1
            yield Finding("packages", "bad", f"{need.name} is {version}, {need.specifier} is needed; run: {INSTALL}")
        elif name in tested and tested[name] != version.partition("+")[0]:
            wanting += 1
            yield Finding(
                "packages", "note", f"{need.name} is {version}: in the range, though the tests run on {tested[name]}"
            )
        else:
            as_tested += 1
    if as_tested:
        yield Finding("packages", "ok", f"{as_tested} of {as_tested + wanting} needed packages are as tested")


def optional_packages() -> Iterator[Finding]:
    """Which of the packages that only some work needs are there."""
    for name, use in OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            yield Finding("optional", "note", f"{name} is not installed: needed for {use}")
        else:
            try:
                version = f" {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                version = ""
            yield Finding("optional", "ok", f"{name}{version}: for {use}")


def secrets() -> Iterator[Finding]:
    """Which secrets are set. Their values are looked at for being empty, and nothing else."""
    netrc = (Path.home() / ".netrc").is_file()
    for name, use in KEYS.items():
        if os.environ.get(name, "").strip():
            yield Finding("keys", "ok", f"{name} is set (not shown): for {use}")
        elif name == "HF_TOKEN" and _logged_in():
            yield Finding("keys", "ok", f"{name} is not set; a login of the hub client is kept: for {use}")
        elif name == "WANDB_API_KEY" and netrc:
            yield Finding("keys", "ok", f"{name} is not set; ~/.netrc is there and may hold it: for {use}")
        else:
            yield Finding("keys", "note", f"{name} is not set: needed for {use}")


def _logged_in() -> bool:
    from huggingface_hub import constants

    return Path(constants.HF_TOKEN_PATH).is_file()


def models() -> Iterator[Finding]:
    """The small models that can be fetched by name, and how many others the hub client keeps."""
    from huggingface_hub import constants

    for name in known_models():
        if model_path(name):
            yield Finding("models", "ok", f"{name} is fetched")
        else:
            yield Finding("models", "note", f"{name} is not fetched; run: esckit model fetch {name}")
    kept = sorted(Path(constants.HF_HUB_CACHE).glob("models--*"))
    if kept:
        yield Finding("models", "ok", f"{len(kept)} models are in the hub client's cache")
