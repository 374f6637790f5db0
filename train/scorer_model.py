"""The ESC-RANK model in memory and in a folder: a backbone that reads a dialogue once, and one head a dimension."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from data_prep.errors import UserError
from train.models import read_weights
from train.ordinal import Heads, RaterSeverity

HEADS = "heads.safetensors"
RATERS = "raters.safetensors"
"""In checkpoints only: predictions need no rater."""


class ScorerModel(nn.Module):
    """Backbone, pooling by attention mask, heads. Padding, on either side, changes nothing."""

    accepts_loss_kwargs = True  # the trainer passes the weight of the ratings in the whole accumulated batch

    def __init__(
        self,
        backbone: nn.Module,
        heads: Heads,
        pooling: str,
        raters: RaterSeverity | None = None,
        frozen: bool = False,
    ):
        super().__init__()
        self.backbone, self.heads, self.pooling, self.raters, self.frozen = backbone, heads, pooling, raters, frozen
        self.config = backbone.config
        self.first_position = first_position(backbone)
        if frozen:
            backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> "ScorerModel":
        """A frozen backbone stays as it reads: without dropout."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        dialogue_of: Tensor | None = None,
        labels: Tensor | None = None,
        weights: Tensor | None = None,
        raters: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> dict[str, Tensor]:
        """input_ids, attention_mask [windows, length]; dialogue_of [windows], rising from 0, None: one window each;
        labels and weights [batch, raters, dimensions]; raters [batch, raters], -1 for unknown ones.

        Returns `loss` when there are labels, and `log_probabilities` [batch, dimensions, most levels], padded with
        -inf where a dimension has fewer levels.
        """
        pooled = self.read(input_ids, attention_mask)
        if dialogue_of is not None:
            pooled = mean_of_windows(pooled, dialogue_of)
        logs = self.heads(pooled)
        most = max(self.heads.level_counts)
        padded = [nn.functional.pad(log, (0, most - log.shape[1]), value=float("-inf")) for log in logs]
        output = {"log_probabilities": torch.stack(padded, dim=1)}
        if labels is not None:
            output = {"loss": self.loss(logs, labels, weights, raters, num_items_in_batch), **output}
        return output

    def read(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """One vector a row."""
        # Positions count real tokens only, so that left padding does not shift them.
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0) + self.first_position
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            hidden = self.backbone(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=positions
            ).last_hidden_state
            return pool(hidden, attention_mask, self.pooling)

    def loss(
        self, logs: list[Tensor], labels: Tensor, weights: Tensor | None, raters: Tensor | None, divide_by: Any
    ) -> Tensor:
        """The heads' loss; in training each rater is read through his or her severity."""
        if self.raters is None or raters is None or not self.training:
            return self.heads.loss(logs, labels, weights, divide_by)
        loss = self.heads.loss(logs, labels, weights, divide_by, self.raters(raters))
        # The prior is shared out over the parts of a step as the ratings are.
        here = weights.sum() if weights is not None else (labels >= 0).sum()
        return loss + self.raters.prior() * (here / (here if divide_by is None else divide_by))

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


def mean_of_windows(pooled: Tensor, dialogue_of: Tensor) -> Tensor:
    """[windows, hidden] -> [dialogues, hidden]; `dialogue_of` [windows] rises from 0."""
    dialogues = int(dialogue_of[-1]) + 1
    if dialogues == len(pooled):
        return pooled
    sums = pooled.new_zeros(dialogues, pooled.shape[1]).index_add(0, dialogue_of, pooled)
    return sums / torch.bincount(dialogue_of, minlength=dialogues).unsqueeze(-1).to(pooled.dtype)


def pick_pooling(asked: str, config: Any) -> str:
    """ "auto" is the last token for models that read left to right, the mean over tokens for encoders."""
    if asked != "auto":
        return asked
    encoders = ("bert", "roberta", "xlm-roberta", "deberta-v2", "modernbert", "electra", "distilbert", "mpnet")
    return "mean" if config.model_type in encoders else "last"


def save_weights(model: ScorerModel, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Adapter, or backbone, or neither when it is frozen; heads; severity of the raters. `state` is the gathered one
    under ZeRO-3."""
    state = model.state_dict() if state is None else state
    empty = [name for name, tensor in state.items() if tensor.numel() == 0]
    if empty:
        raise RuntimeError(f"weights were not gathered before saving: {empty[0]} is empty")
    folder.mkdir(parents=True, exist_ok=True)
    if not model.frozen:
        target = folder / ("adapter" if _is_peft(model.backbone) else "backbone")
        model.backbone.save_pretrained(target, state_dict=_part(state, "backbone."))  # type: ignore[operator]
    # Buffers are not gathered: every process holds them whole.
    buffers = dict(model.heads.named_buffers())
    heads = {name: tensor.detach().float().cpu().contiguous() for name, tensor in _part(state, "heads.").items()}
    save_file({**{name: tensor.cpu().contiguous() for name, tensor in buffers.items()}, **heads}, folder / HEADS)
    if model.raters is not None:
        raters = {name: tensor.contiguous() for name, tensor in _part(state, "raters.").items()}
        save_file(raters, folder / RATERS)


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def load_weights(model: ScorerModel, folder: Path) -> None:
    """Puts a saved folder's weights into a model of the same shape. Raises UserError when a part is missing or NaN."""
    heads = read_weights(folder / HEADS)
    try:
        model.heads.load_state_dict(heads)
        if model.raters is not None:
            model.raters.load_state_dict(read_weights(folder / RATERS))
        if model.frozen:
            return
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
