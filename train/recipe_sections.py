"""The sections that recipes of all kinds share: the model that is tuned and its adapter."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from train.recipe_training import takes_no_truth


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and takes_no_truth(cls.model_fields[str(info.field_name)].annotation):
            raise PydanticCustomError("number_type", "Input should be a number, not true or false")
        return value


def as_list(value: Any) -> Any:
    """One name stands for a list of one."""
    return [value] if isinstance(value, str) else value


Files = Annotated[
    tuple[str, ...], BeforeValidator(as_list, json_schema_input_type=str | tuple[str, ...]), Field(min_length=1)
]


class ModelSection(Section):
    """The model that is tuned."""

    base: str
    """A name of `esckit model fetch`, a model folder, or a hub id."""
    revision: str | None = None
    """Commit or branch on the hub."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on a GPU that has it, float32 elsewhere."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """auto: flash attention where the package is there and GPU and dtype allow it, else sdpa."""
    quantization: Literal["4bit"] | None = None
    """4bit: QLoRA with bitsandbytes; needs a GPU."""
    trust_remote_code: bool = False
    """True runs code that the model's repository brings."""


class LoraSection(Section):
    """Leave the whole section out for full fine-tuning."""

    r: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.05, ge=0, lt=1)
    targets: str | tuple[str, ...] = "all-linear"
    dora: bool = False
