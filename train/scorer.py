"""A trained scorer, ready to use: `Scorer.load(path).score(dialogues)`.

A saved scorer is one folder:

    scorer_config.json   rubrics in full, base model, pooling, lengths, provenance
    heads.safetensors    the heads of every dimension, calibration included
    adapter/             the LoRA adapter, or backbone/ with all weights after full fine-tuning
    tokenizer files
    members/             instead of weights, where several scorers speak as one
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError

from data_prep.errors import UserError
from data_prep.records import Dialogue, Record, describe_invalid, parse_json, read_text, sha256_of, write_text
from data_prep.rubric import Rubric, known_rubrics, load_rubric
from data_prep.rubric_changes import rubric_changes
from train.models import device_name, load_backbone, open_tokenizer
from train.ordinal import Heads, make_heads
from train.recipe_scorer import HeadKind, LongDialogues
from train.recipe_sections import ModelSection
from train.scorer_model import ScorerModel, load_weights
from train.scorer_text import encode_dialogue, window_batch

CONFIG = "scorer_config.json"
FORMAT = 2

Distribution = tuple[float, ...]


class TrainedRubric(Record):
    """A rubric as it was in training, and how often raters gave each level of it."""

    rubric: Rubric
    sha: str
    training_levels: dict[str, list[int]]
    """Training ratings at each level of each dimension, lowest first: the constant baseline comes from here."""


class ScorerConfig(Record):
    """What a scorer folder says of itself."""

    format: int = FORMAT
    base: str
    revision: str | None = None
    dtype: str = "auto"
    attention: str = "sdpa"
    quantization: Literal["4bit"] | None = None
    head: HeadKind = "cumulative"
    pooling: str
    max_length: int = Field(ge=8)
    long_dialogues: LongDialogues = "last_turns"
    weights: Literal["adapter", "backbone", "frozen"]
    """Where the trained weights of the backbone are; frozen: it is the base model as it came."""
    rubrics: tuple[TrainedRubric, ...] = Field(min_length=1)
    chosen: int = Field(default=0, exclude=True)
    """Which of the rubrics is spoken of, in memory only."""
    members: tuple[str, ...] = ()
    """Folders below this one whose distributions are averaged."""
    illustrative: bool
    """True when it was trained on samples that are no human study data."""
    data_sha256: dict[str, str] = Field(default_factory=dict)

    def model_section(self) -> ModelSection:
        names = ("base", "revision", "dtype", "attention", "quantization")
        return ModelSection.model_validate({name: getattr(self, name) for name in names})

    @property
    def rubric(self) -> Rubric:
        return self.rubrics[self.chosen].rubric

    @property
    def training_levels(self) -> dict[str, list[int]]:
        return self.rubrics[self.chosen].training_levels

    @property
    def level_counts(self) -> list[int]:
        """Number of levels of every dimension of all rubrics, in the order of the heads."""
        return level_counts([one.rubric for one in self.rubrics])

    @property
    def first_head(self) -> int:
        """The head of the chosen rubric's first dimension."""
        return sum(len(one.rubric.dimensions) for one in self.rubrics[: self.chosen])


def level_counts(rubrics: Sequence[Rubric]) -> list[int]:
    return [len(dimension.levels()) for rubric in rubrics for dimension in rubric.dimensions]


def read_config(folder: Path) -> ScorerConfig:
    """Raises UserError when the folder is no scorer, or its configuration is faulty or was changed."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: is no scorer folder ({CONFIG} is missing); train one with a scorer recipe")
    content = parse_json(read_text(path), str(path))
    if isinstance(content, dict) and content.get("format") != FORMAT:
        raise UserError(f"{path}: is of format {content.get('format')}, this version reads {FORMAT}; train it again")
    try:
        config = ScorerConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {describe_invalid(error)}") from None
    for one in config.rubrics:
        if one.rubric.sha != one.sha:
            raise UserError(
                f"{path}: rubric {one.rubric.name} was changed since training (sha {one.rubric.sha}, trained on "
                f"{one.sha}); a scorer knows only what its raters read: bring the old text back, or train again"
            )
    return config


class Scorer:
    """One trained scorer or several that speak as one, for one of the rubrics it was trained on."""

    def __init__(self, models: Sequence[ScorerModel], tokenizer: Any, config: ScorerConfig, name: str, sha256: str):
        self.models, self.tokenizer, self.config = list(models), tokenizer, config
        self.rubric, self.name, self.sha256 = config.rubric, name, sha256

    @property
    def model(self) -> ScorerModel:
        """The first model: the only one, unless there are members."""
        return self.models[0]

    @classmethod
    def load(cls, path: str | Path, rubric: str | None = None) -> "Scorer":
        """`rubric`, a name or the path of a .yaml file, says which of several; its text must be as it was in training.

        Raises UserError when the folder is no scorer, is incomplete, its base model cannot be loaded, or the rubric
        is not among those it was trained on or has changed since (the difference is named).
        """
        folder = Path(path)
        config = read_config(folder)
        if rubric is not None:
            config = choose_rubric(config, rubric, folder)
        models, tokenizer = load_models(folder, config)
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*.safetensors")):
            if "checkpoints" not in file.relative_to(folder).parts:
                digest.update(sha256_of(file).encode())
        return cls(models, tokenizer, config, folder.name, digest.hexdigest())

    def identity(self) -> dict[str, Any]:
        """What a run stores to say which scorer gave a number."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "base": self.config.base,
            "rubric": self.rubric.name,
            "rubric_version": self.rubric.version,
            "rubric_sha": self.rubric.sha,
            "head": self.config.head,
            "members": len(self.models),
            "max_length": self.config.max_length,
            "long_dialogues": self.config.long_dialogues,
            "illustrative": self.config.illustrative,
        }

    def encode(self, dialogue: Dialogue) -> tuple[list[list[int]], bool]:
        """The windows that are read of a dialogue, and whether it is longer than one."""
        return encode_dialogue(self.tokenizer, dialogue, self.config.max_length, self.config.long_dialogues)

    def shortened(self, dialogues: Sequence[Dialogue]) -> int:
        """How many of the dialogues are longer than max_length, so that turns of them are not read."""
        if self.config.long_dialogues == "windows":
            return 0
        return sum(self.encode(dialogue)[1] for dialogue in dialogues)

    def score(
        self,
        dialogues: Sequence[Dialogue],
        batch_size: int = 16,
        progress: Callable[[int], None] | None = None,
    ) -> list[dict[str, Distribution]]:
        """A distribution over the levels of every dimension, lowest level first, for each dialogue in order.

        Every dialogue is read once for all dimensions, in batches of similar length. `progress` is called with the
        number of dialogues just done.
        """
        found = self.probabilities(dialogues, batch_size, progress)[:, self.config.first_head :]
        results: list[dict[str, Distribution]] = []
        for one in found:
            levels = [(d.name, row[: len(d.levels())]) for d, row in zip(self.rubric.dimensions, one, strict=False)]
            results.append({name: tuple((row / row.sum()).tolist()) for name, row in levels})
        return results

    @torch.no_grad()
    def probabilities(
        self, dialogues: Sequence[Dialogue], batch_size: int = 16, progress: Callable[[int], None] | None = None
    ) -> torch.Tensor:
        """The same for the dimensions of all rubrics: [dialogues, dimensions, most levels], 0 beyond a scale's end."""
        rows = [self.encode(dialogue)[0] for dialogue in dialogues]
        order = sorted(range(len(rows)), key=lambda index: -sum(map(len, rows[index])))
        counts = self.config.level_counts
        results = torch.zeros(len(rows), len(counts), max(counts), dtype=torch.float64)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            results[chosen] = self._read([rows[index] for index in chosen])
            if progress:
                progress(len(chosen))
        return results

    def _read(self, rows: Sequence[Sequence[Sequence[int]]]) -> torch.Tensor:
        """Probabilities [batch, heads, most levels] in float64: the mean over the members."""
        device = next(self.model.parameters()).device
        batch = {key: value.to(device) for key, value in window_batch(rows, self.tokenizer.pad_token_id).items()}
        found = [model(**batch)["log_probabilities"].double().exp().cpu() for model in self.models]
        return torch.stack(found).mean(0) if len(found) > 1 else found[0]


def load_models(folder: Path, config: ScorerConfig) -> tuple[list[ScorerModel], Any]:
    """The models of a folder, or of its members, and their tokenizer. Raises UserError for what is not complete."""
    if not config.members:
        return [load_model(folder, config)], open_tokenizer(str(folder))
    models = []
    for member in config.members:
        inside = read_config(folder / member)
        if inside.level_counts != config.level_counts or inside.members:
            raise UserError(f"{folder / member}: is no member of this scorer: it was trained on other dimensions")
        models.append(load_model(folder / member, inside))
    return models, open_tokenizer(str(folder / config.members[0]))


def load_model(folder: Path, config: ScorerConfig) -> ScorerModel:
    """The model of one folder, ready to read."""
    section = config.model_section()
    if config.weights == "backbone":
        section = section.model_copy(update={"base": str(folder / "backbone")})
    elif config.weights == "adapter" and not (folder / "adapter" / "adapter_config.json").is_file():
        raise UserError(f"{folder}: the scorer folder is not complete (adapter/adapter_config.json is missing)")
    backbone = load_reader(section)
    if config.weights == "adapter":
        from peft import PeftConfig, get_peft_model

        backbone = get_peft_model(backbone, PeftConfig.from_pretrained(str(folder / "adapter")))
    heads = new_heads(backbone, [one.rubric for one in config.rubrics], config.head)
    model = ScorerModel(backbone, heads, config.pooling, frozen=config.weights == "frozen")
    load_weights(model, folder)
    return model.eval().to(device_name())


def load_reader(section: ModelSection) -> Any:
    """The backbone as training and scoring read with it: the layers that 4-bit loading leaves alone in float32."""
    backbone = load_backbone(section)
    if section.quantization:
        from peft import prepare_model_for_kbit_training

        backbone = prepare_model_for_kbit_training(backbone, use_gradient_checkpointing=False)
    return backbone


def choose_rubric(config: ScorerConfig, asked: str, folder: Path) -> ScorerConfig:
    """The configuration with another rubric chosen. Raises UserError when it has none of that name or another text."""
    wanted = load_rubric(asked) if asked.endswith((".yaml", ".yml")) or asked in known_rubrics() else None
    name = wanted.name if wanted else asked
    names = [one.rubric.name for one in config.rubrics]
    if name not in names:
        raise UserError(f"{folder}: was not trained on rubric {name!r}; it knows: {', '.join(names)}")
    chosen = names.index(name)
    trained = config.rubrics[chosen].rubric
    if wanted is not None and wanted.sha != trained.sha:
        changes = "; ".join(rubric_changes(trained, wanted))
        raise UserError(f"{asked}: rubric {name} has changed since {folder} was trained: {changes}; train again")
    return config.model_copy(update={"chosen": chosen})


def new_heads(backbone: Any, rubrics: Sequence[Rubric], kind: str = "cumulative") -> Heads:
    return make_heads(kind, backbone.config.get_text_config().hidden_size, level_counts(rubrics))


def save_config(config: ScorerConfig, folder: Path) -> None:
    """Written last: a folder with it is complete."""
    write_text(folder / CONFIG, json.dumps(config.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n")
