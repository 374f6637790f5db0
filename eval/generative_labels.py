"""How a model may write a level, as token ids, and the probability of each level from its logits.

A level has several forms: "3" and " 3" are different tokens to most tokenizers, and a level of two digits may be two
tokens. Of one level all forms are summed; two forms that are the same tokens count once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import UserError
from train.masking import ChatRenderer

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Labels:
    """`forms[k]` are the token sequences of the k-th level; no sequence begins another.

    `chains` are what must be read after the prompt so that every form's last token has logits to be looked up in:
    every proper beginning of a form is a beginning of some chain. (()) where all forms are one token.
    """

    forms: tuple[tuple[Ids, ...], ...]
    chains: tuple[Ids, ...]

    def depth(self) -> int:
        """Positions whose logits are needed, counted from the prompt's last token."""
        return 1 + max(len(chain) for chain in self.chains)


def answer_ids(renderer: ChatRenderer, text: str) -> Ids:
    """The ids of an assistant's whole answer without what ends its turn, as they are in training."""
    encoded = renderer.encode([{"role": "user", "content": "?"}, {"role": "assistant", "content": text}])
    learned = [token for token, label in zip(encoded.input_ids, encoded.labels, strict=True) if label >= 0]
    stop = next(index for index, token in enumerate(learned) if token in renderer.control_ids)
    return tuple(learned[:stop])


def label_forms(renderer: ChatRenderer, levels: Sequence[int]) -> Labels:
    """The forms of whole levels, bare and after a space.

    Where one level begins another (1 and 10), the shorter counts only with the end of the turn after it. Raises
    UserError when the tokenizer writes two levels alike.
    """
    plain = {level: {answer_ids(renderer, text) for text in (str(level), f" {level}")} - {()} for level in levels}
    owners: dict[Ids, int] = {}
    for level, found in plain.items():
        for form in found:
            if owners.setdefault(form, level) != level:
                raise UserError(f"{renderer.name}: writes the levels {owners[form]} and {level} with the same tokens")
    forms = []
    for level in levels:
        closed: list[Ids] = []
        for form in sorted(plain[level]):
            begins = any(other != form and other[: len(form)] == form for other in owners)
            closed += [(*form, stop) for stop in renderer.stop_ids] if begins else [form]
        forms.append(tuple(closed))
    beginnings = {form[:end] for found in forms for form in found for end in range(1, len(form))}
    chains = sorted(one for one in beginnings if not any(one != two and two[: len(one)] == one for two in beginnings))
    return Labels(tuple(forms), tuple(chains) or ((),))


def level_probabilities(labels: Labels, logits: Sequence[Any]) -> Any:
    """Probability of every level [rows, levels], not normalised: what it sums to is the label mass.

    `logits[c]` are those after chain c, float32 [rows, 1 + len(chain), vocabulary], from the prompt's last token on.
    """
    import torch

    logs = [torch.log_softmax(found, dim=-1) for found in logits]
    columns = []
    for forms in labels.forms:
        total: Any = 0.0
        for form in forms:
            # Any chain that has the form's beginning: a causal model gives the same there whatever follows.
            chain = next(n for n, ids in enumerate(labels.chains) if ids[: len(form) - 1] == form[:-1])
            total = total + logs[chain][:, list(range(len(form))), list(form)].sum(-1).exp()
        columns.append(total)
    return torch.stack(columns, dim=-1)
