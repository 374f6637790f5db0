"""What only a scorer's recipe holds: dialogues with ratings, the heads, what the held-out ratings are used for."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from data_prep.splits import GROUP_KINDS
from train.recipe_sections import Files, LoraSection, ModelSection, Section

LongDialogues = Literal["last_turns", "head_and_tail", "windows"]
HeadKind = Literal["cumulative", "coral", "corn", "squared", "cross_entropy"]


class SplitSection(Section):
    """Parts of the rated dialogues that are held out, by group: see `data.group_by`."""

    validation: float = Field(default=0.15, ge=0, lt=1)
    """Share that the best checkpoint and the calibration are chosen on; 0 for none."""
    test: float = Field(default=0.15, ge=0, lt=1)
    """Share that is touched only when the scorer is finished; 0 for none."""

    @model_validator(mode="after")
    def _something_is_left(self) -> "SplitSection":
        if self.validation + self.test >= 1:
            raise PydanticCustomError("split", "validation and test together to be below 1, so that some are learned")
        if not self.validation + self.test:
            raise PydanticCustomError("split", "validation or test above 0; leave the section out for no split")
        return self


def _either_name(schema: dict[str, Any]) -> None:
    """In the JSON schema: `dialogues` beside `train`, one of them required."""
    properties = schema["properties"]
    properties["dialogues"] = {**properties["train"], "title": "Dialogues"}
    schema["required"] = [name for name in schema["required"] if name != "train"]
    schema["oneOf"] = [{"required": ["train"]}, {"required": ["dialogues"]}]


class ScorerData(Section):
    """Dialogues and what people said of them."""

    model_config = ConfigDict(json_schema_extra=_either_name)

    train: Files
    """Dialogues (JSONL). May be called `dialogues`, which says better what it holds where `split` divides them."""
    validation: Files | None = None
    split: SplitSection | None = None
    """Hold out parts of the dialogues; they are kept in the result folder, for `esckit evaluate`."""
    group_by: tuple[str, ...] = Field(default=GROUP_KINDS, min_length=1)
    """Dialogues that share one of these stay together in `split` and `scorer.folds`: card, situation, opening, text,
    language, source, meta.NAME, card.NAME. Near duplicates count as shared."""
    ratings: Files
    """JSON Lines of `esckit ratings import`, or the sheets themselves: XLSX, CSV, Label Studio."""
    key: str | None = None
    """key.json of `esckit ratings export`, where the sheets are blinded."""
    rater: str | None = None
    """Whose ratings these are, where a sheet does not say."""
    max_length: int = Field(ge=8)
    """Tokens that are read at once."""
    long_dialogues: LongDialogues = "last_turns"
    """What of a longer dialogue is read. last_turns: the end. head_and_tail: the beginning and the end.
    windows: all of it, in overlapping windows whose vectors are averaged."""
    limit: int | None = Field(None, ge=1)
    """Use only this many dialogues (a random sample by `seed`)."""

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, content: Any) -> Any:
        if isinstance(content, dict) and "dialogues" in content:
            if content.get("train") is not None:
                raise PydanticCustomError("names", "train or dialogues, not both: they are one setting")
            content = {**content, "train": content["dialogues"]}
            del content["dialogues"]
        return content


class ScorerSection(Section):
    """What is put on top of the backbone, and how it learns."""

    head: HeadKind = "cumulative"
    """cumulative: one score and ordered cut points, by likelihood. coral: the same, by the sum over cut points (Cao et
    al. 2020). corn: conditional probabilities (Shi et al. 2021). squared: squared error of the expected level.
    cross_entropy: levels without an order."""
    labels: Literal["each", "soft"] = "each"
    """each: every rating counts once. soft: the raters of a dialogue become one distribution, so that every dialogue
    counts alike however many rated it."""
    class_weights: Literal["none", "root", "balanced"] = "none"
    """Weight of a rating: balanced, by 1 / frequency of its level; root, by the square root of that."""
    rater_effects: bool = False
    """Learn how severe each rater is, dimension by dimension; predictions are of the average rater."""
    frozen: bool = False
    """Train only the heads; the model stays as it is."""
    pooling: Literal["auto", "mean", "last"] = "auto"
    """auto: the last token of a causal model, the mean over tokens of an encoder."""
    head_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the heads; default: ten times that of the backbone, since they start from nothing."""
    calibration: Literal["none", "temperature", "thresholds"] = "none"
    """Fitted on the validation ratings when training is done. temperature: sharper or flatter distributions, one number
    a dimension. thresholds: also where one level ends and the next begins."""
    members: int = Field(default=1, ge=1)
    """Scorers that are trained with one seed after the other; the result averages their distributions."""
    folds: int | None = Field(default=None, ge=2)
    """Cross-validation by group: so many scorers, each tested on a part that it never saw; the result averages them."""


class ScorerEvaluation(Section):
    """What the held-out ratings decide while a scorer trains."""

    metric: Literal["kappa", "loss"] = "kappa"
    """By which the best checkpoint is told: mean quadratic weighted kappa over the dimensions, or the loss."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations that were not better, and keep the best checkpoint."""


class ScorerRecipe(Section):
    kind: Literal["scorer"]
    rubric: Files
    """A rubric by name or .yaml path, or several, each with heads of its own on one backbone."""
    model: ModelSection
    lora: LoraSection | None = None
    scorer: ScorerSection = ScorerSection()
    data: ScorerData
    evaluation: ScorerEvaluation = ScorerEvaluation()
    training: dict[str, Any] = {}
    seed: int = Field(0, ge=0, lt=2**32)
    out: str

    @property
    def has_validation(self) -> bool:
        """Whether there are held-out ratings to choose by: a file of them, a part of the split, or the next fold."""
        split = self.data.split is not None and self.data.split.validation > 0
        return self.data.validation is not None or split or self.scorer.folds is not None

    @property
    def is_many(self) -> bool:
        """Whether several scorers are trained."""
        return self.scorer.members > 1 or self.scorer.folds is not None


Fault = tuple[tuple[str, ...], str]


def scorer_faults(recipe: ScorerRecipe) -> Iterator[Fault]:
    """What in a scorer's recipe contradicts itself, each with its place."""
    split, scorer = recipe.data.split, recipe.scorer
    if split and split.validation and recipe.data.validation:
        yield ("data", "split"), "data.split holds out a validation part, and data.validation names one; drop one"
    if scorer.folds and split and split.validation:
        yield (
            ("scorer", "folds"),
            "scorer.folds: the next fold is each one's validation part; set data.split.validation to 0",
        )
    if scorer.folds == 2 and recipe.data.validation is None:
        yield ("scorer", "folds"), "scorer.folds: 2 leave none to train on beside test and validation; take 3 or more"
    if scorer.calibration != "none" and not recipe.has_validation:
        yield (
            ("scorer", "calibration"),
            "scorer.calibration is fitted on held-out ratings; set data.validation or split",
        )
    if scorer.frozen and recipe.lora:
        yield ("scorer", "frozen"), "scorer.frozen trains no adapter; leave the lora section out"
    if scorer.rater_effects and scorer.labels == "soft":
        yield ("scorer", "rater_effects"), "scorer.rater_effects needs to know who rated; set scorer.labels: each"
    if recipe.model.quantization and not recipe.lora and not scorer.frozen:
        yield ("model", "quantization"), "model.quantization: 4-bit weights cannot be trained; add a lora section"
    if len(set(recipe.rubric)) < len(recipe.rubric):
        yield ("rubric",), "rubric: the same one is named twice"
