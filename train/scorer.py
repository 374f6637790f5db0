"""The ESC-RANK model: a backbone that reads a dialogue once, and one ordinal head a dimension.

A saved scorer is one folder:

    scorer_config.json   rubric in full, dimension names, scales, base model, pooling, lengths, provenance
    heads.safetensors    the ordinal heads
    adapter/             the LoRA adapter, or backbone/ with all weights after full fine-tuning
    tokenizer files
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn

from data_prep.chat_format import merge_runs
from data_prep.errors import UserError
from data_prep.records import Dialogue, Record, describe_invalid, parse_json, read_text, sha256_of, write_text
from data_prep.rubric import Rubric
from train.models import device_name, load_backbone, open_tokenizer, read_weights
from train.ordinal import OrdinalHeads, ordinal_loss
from train.recipe import ModelSection

CONFIG = "scorer_config.json"
HEADS = "heads.safetensors"

Distribution = tuple[float, ...]


class ScorerConfig(Record):
    """What a scorer folder says of itself."""

    format: int = 1
    base: str
    revision: str | None = None
    dtype: str = "auto"
    attention: str = "sdpa"
    pooling: str
    max_length: int = Field(ge=8)
    adapter: bool
    """True: LoRA in adapter/; False: all weights in backbone/."""
    rubric: Rubric
    rubric_sha: str
    illustrative: bool
    """True when it was trained on samples that are no human study data."""
    training_levels: dict[str, list[int]]
    """Training ratings at each level of each dimension, lowest first: the constant baseline comes from here."""
    data_sha256: dict[str, str] = Field(default_factory=dict)

    def model_section(self) -> ModelSection:
        return ModelSection.model_validate(
            {"base": self.base, "revision": self.revision, "dtype": self.dtype, "attention": self.attention}
        )


class ScorerModel(nn.Module):
    """Backbone, pooling by attention mask, heads. Padding, on either side, changes nothing."""

    accepts_loss_kwargs = True  # the trainer passes the number of ratings in the whole accumulated batch

    def __init__(self, backbone: nn.Module, heads: OrdinalHeads, pooling: str):
        super().__init__()
        self.backbone, self.heads, self.pooling = backbone, heads, pooling
        self.config = backbone.config
        self.first_position = first_position(backbone)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> dict[str, Tensor]:
        """input_ids, attention_mask [batch, length]; labels [batch, raters, dimensions].

        Returns `loss` when there are labels, and `log_probabilities` [batch, dimensions, most levels], padded with
        -inf where a dimension has fewer levels.
        """
        # Positions count real tokens only, so that left padding does not shift them.
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0) + self.first_position
        hidden = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions
        ).last_hidden_state
        logs = self.heads(pool(hidden, attention_mask, self.pooling))
        most = max(self.heads.level_counts)
        padded = [nn.functional.pad(log, (0, most - log.shape[1]), value=float("-inf")) for log in logs]
        output = {"log_probabilities": torch.stack(padded, dim=1)}
        if labels is not None:
            output = {"loss": ordinal_loss(logs, labels, num_items_in_batch), **output}
        return output

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()  # type: ignore[operator]

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        self.backbone.gradient_checkpointing_enable(**kwargs)  # type: ignore[operator]


def first_position(backbone: nn.Module) -> int:
    """The position of a text's first token: 0, but after the padding's own in RoBERTa, XLM-RoBERTa and MPNet."""
    for name, module in backbone.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def pool(hidden: Tensor, attention_mask: Tensor, how: str) -> Tensor:
    """[batch, length, hidden] -> [batch, hidden]: the mean over real tokens, or the last real token."""
    if how == "mean":
        weights = attention_mask.unsqueeze(-1).float()  # bfloat16 cannot count beyond 256
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    last = (positions * attention_mask).argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


def encode_dialogue(tokenizer: Any, dialogue: Dialogue, max_length: int) -> tuple[list[int], bool]:
    """Token ids of a dialogue for a scorer, and whether it had to be shortened.

    `[start] seeker: ... [end of turn] supporter: ... [end of turn]`. The end of turn is a special token; text that
    looks like one is spelled out, so nobody can forge a turn. A dialogue that is too long loses its oldest turns; a
    last turn that is too long by itself keeps its end.
    """
    start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    spell = partial(tokenizer, split_special_tokens=True)
    head = [start] if start is not None else []
    turns = [
        [*spell(f"{turn.speaker}: {turn.text}", add_special_tokens=False)["input_ids"], end]
        for turn in merge_runs(dialogue.turns)
    ]
    room = max_length - len(head)
    kept: list[list[int]] = []
    for turn in reversed(turns):
        if kept and sum(map(len, kept)) + len(turn) > room:
            break
        kept.insert(0, turn[-room:])
    shortened = len(kept) < len(turns) or len(kept[0]) < len(turns[len(turns) - len(kept)])
    return head + [token for turn in kept for token in turn], shortened


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int, left: bool = False) -> dict[str, Tensor]:
    """input_ids and attention_mask [batch, longest]."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for index, row in enumerate(rows):
        span = slice(longest - len(row), None) if left else slice(0, len(row))
        ids[index, span] = torch.tensor(row)
        mask[index, span] = 1
    return {"input_ids": ids, "attention_mask": mask}


def save_weights(model: ScorerModel, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Adapter (or backbone) and heads into a folder. `state` is the gathered one under ZeRO-3."""
    state = model.state_dict() if state is None else state
    empty = [name for name, tensor in state.items() if tensor.numel() == 0]
    if empty:
        raise RuntimeError(f"weights were not gathered before saving: {empty[0]} is empty")
    folder.mkdir(parents=True, exist_ok=True)
    backbone = {key.removeprefix("backbone."): value for key, value in state.items() if key.startswith("backbone.")}
    target = folder / ("adapter" if _is_peft(model.backbone) else "backbone")
    model.backbone.save_pretrained(target, state_dict=backbone)  # type: ignore[operator]
    heads = {key.removeprefix("heads."): value.contiguous() for key, value in state.items() if key.startswith("heads.")}
    save_file(heads, folder / HEADS)


def load_weights(model: ScorerModel, folder: Path) -> None:
    """Puts a saved folder's weights into a model of the same shape. Raises UserError when a part is missing or NaN."""
    heads = read_weights(folder / HEADS)
    try:
        model.heads.load_state_dict(heads)
        if _is_peft(model.backbone):
            from peft import get_peft_model_state_dict, set_peft_model_state_dict

            adapter = read_weights(folder / "adapter" / "adapter_model.safetensors")
            # PEFT leaves what it is not given as it was drawn, in silence.
            if set(adapter) != set(get_peft_model_state_dict(model.backbone)):
                raise RuntimeError("the adapter holds other layers than its configuration names")
            set_peft_model_state_dict(model.backbone, adapter)
        else:
            model.backbone.load_state_dict(read_weights(folder / "backbone" / "model.safetensors"))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: weights and configuration do not fit each other: {reason}") from None


def _is_peft(module: nn.Module) -> bool:
    return hasattr(module, "peft_config")


def pick_pooling(asked: str, config: Any) -> str:
    """ "auto" is the last token for models that read left to right, the mean over tokens for encoders."""
    if asked != "auto":
        return asked
    encoders = ("bert", "roberta", "xlm-roberta", "deberta-v2", "modernbert", "electra", "distilbert", "mpnet")
    return "mean" if config.model_type in encoders else "last"


class Scorer:
    """A trained scorer, ready to use: `Scorer.load(path).score(dialogues)`."""

    def __init__(self, model: ScorerModel, tokenizer: Any, config: ScorerConfig, name: str, sha256: str):
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.rubric, self.name, self.sha256 = config.rubric, name, sha256

    @classmethod
    def load(cls, path: str | Path) -> "Scorer":
        """Raises UserError when the folder is no scorer, is incomplete, or its base model cannot be loaded."""
        folder = Path(path)
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder}: is no scorer folder ({CONFIG} is missing); train one with a scorer recipe")
        try:
            config = ScorerConfig.model_validate(parse_json(read_text(folder / CONFIG), str(folder / CONFIG)))
        except ValidationError as error:
            raise UserError(f"{folder / CONFIG}: {describe_invalid(error)}") from None
        if config.adapter:
            from peft import PeftConfig, get_peft_model

            if not (folder / "adapter" / "adapter_config.json").is_file():
                raise UserError(f"{folder}: the scorer folder is not complete (adapter/adapter_config.json is missing)")
            backbone = get_peft_model(
                load_backbone(config.model_section()), PeftConfig.from_pretrained(str(folder / "adapter"))
            )
        else:
            backbone = load_backbone(config.model_section().model_copy(update={"base": str(folder / "backbone")}))
        model = ScorerModel(backbone, new_heads(backbone, config.rubric), config.pooling)
        load_weights(model, folder)
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*.safetensors")):
            if "checkpoints" not in file.relative_to(folder).parts:
                digest.update(sha256_of(file).encode())
        tokenizer = open_tokenizer(str(folder))
        return cls(model.eval().to(device_name()), tokenizer, config, folder.name, digest.hexdigest())

    def identity(self) -> dict[str, Any]:
        """What a run stores to say which scorer gave a number."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "base": self.config.base,
            "rubric": self.rubric.name,
            "rubric_version": self.rubric.version,
            "rubric_sha": self.rubric.sha,
            "max_length": self.config.max_length,
            "illustrative": self.config.illustrative,
        }

    def shortened(self, dialogues: Sequence[Dialogue]) -> int:
        """How many of the dialogues are longer than max_length, so that their oldest turns are not read."""
        return sum(encode_dialogue(self.tokenizer, dialogue, self.config.max_length)[1] for dialogue in dialogues)

    @torch.no_grad()
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
        rows = [encode_dialogue(self.tokenizer, dialogue, self.config.max_length)[0] for dialogue in dialogues]
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        results: list[dict[str, Distribution]] = [{} for _ in rows]
        device = next(self.model.parameters()).device
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = pad_batch([rows[index] for index in chosen], self.tokenizer.pad_token_id)
            logs = self.model(**{key: value.to(device) for key, value in batch.items()})["log_probabilities"]
            for row, index in zip(logs.double().exp().cpu(), chosen, strict=True):
                for dimension, values in zip(self.rubric.dimensions, row, strict=True):
                    levels = values[: len(dimension.levels())]
                    results[index][dimension.name] = tuple((levels / levels.sum()).tolist())
            if progress:
                progress(len(chosen))
        return results


def new_heads(backbone: Any, rubric: Rubric) -> OrdinalHeads:
    return OrdinalHeads(backbone.config.hidden_size, [len(dimension.levels()) for dimension in rubric.dimensions])


def save_config(config: ScorerConfig, folder: Path) -> None:
    """Written last: a folder with it is complete."""
    write_text(folder / CONFIG, json.dumps(config.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n")
