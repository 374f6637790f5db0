"""Several rows in one, none of them seeing another.

A packed row holds its dialogues one after the other and says how long each is. Positions start again at 0 with every
dialogue, and there is no attention mask: from that the models themselves make the mask (with SDPA or eager attention)

    hello  hi   | how   are   you          positions  0 1 | 0 1 2
      x         |
      x    x    |
                |  x
                |  x     x
                |  x     x     x

or the sequence borders that flash attention works by. It holds only while the key-value cache is off.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import UserError
from train.masking import IGNORED


@dataclass(frozen=True)
class PackedRow:
    """`input_ids` and `labels` of the dialogues one after the other; `seq_lengths` sums to their length."""

    input_ids: list[int]
    labels: list[int]
    seq_lengths: list[int]


def best_fit(lengths: Sequence[int], capacity: int, seed: int) -> list[list[int]]:
    """Groups of row indices whose lengths sum to `capacity` at most, the same for the same arguments.

    Best fit, longest first: each row goes where it leaves the least room. Rows of equal length take turns by `seed`,
    which decides who shares a row but not how many there are. Raises ValueError for a row longer than `capacity`.
    """
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda index: -lengths[index])
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (what is left, number of the pack), sorted
    for index in order:
        if lengths[index] > capacity:
            raise ValueError(f"a row of {lengths[index]} tokens does not fit into {capacity}")
        at = bisect_left(room, (lengths[index], 0))
        if at == len(room):
            left, number = capacity, len(packs)
            packs.append([])
        else:
            left, number = room.pop(at)
        packs[number].append(index)
        insort(room, (left - lengths[index], number))
    return packs


def pack_rows(rows: Sequence[Any], capacity: int, seed: int) -> list[PackedRow]:
    """Packs rows with `input_ids` and `labels` into rows of at most `capacity` tokens (`data.max_length`).

    Who sits with whom is fixed for a run, so that every epoch has the same number of steps and a resumed run reads
    what an undisturbed one does; the isolation makes neighbours meaningless anyway. The order of the packed rows
    changes with every epoch, by the sampler.
    """
    return [
        PackedRow(
            [token for index in pack for token in rows[index].input_ids],
            [label for index in pack for label in (IGNORED, *rows[index].labels[1:])],  # nothing predicts a first token
            [len(rows[index].input_ids) for index in pack],
        )
        for pack in best_fit([len(row.input_ids) for row in rows], capacity, seed)
    ]


def make_packed_collator(pad_token_id: int, flatten: bool) -> Any:
    """A collator for packed rows: `input_ids`, `labels`, `position_ids`, and never an `attention_mask`.

    With `flatten` (flash attention) a batch becomes one long row with the borders of its dialogues; otherwise rows
    stay rows, since the mask of a flattened batch would grow with its square, and each padding token is a dialogue
    of its own.
    """
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    class PackedCollator(DataCollatorForLanguageModeling):
        def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = super().torch_call(examples)
            batch.pop("attention_mask", None)  # with one, positions would no longer separate the dialogues
            return batch

    return PackedCollator(pad_token_id=pad_token_id, padding_free=flatten, return_position_ids=True)


def check_isolation(model: Any, vocabulary: int) -> None:
    """Proves on a few tokens that packed rows do not see each other in this model.

    Raises UserError when they do: the architecture does not read dialogue borders off the positions.
    """
    import torch

    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(vocabulary, (1, length), generator=generator).to(device) for length in (7, 5))
    collator = make_packed_collator(0, flatten=getattr(model.config, "_attn_implementation", "") in FLASH)
    ids = torch.cat([first, second], 1)[0].tolist()
    batch = collator([{"input_ids": ids, "labels": ids, "seq_lengths": [7, 5]}])
    inputs = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
        if name != "labels"
    }
    was_training = model.training
    model.eval()
    with torch.no_grad():
        packed = model(**inputs, use_cache=False).logits.float()
        alone = torch.cat([model(input_ids=one, use_cache=False).logits for one in (first, second)], 1).float()
    model.train(was_training)
    # Norms, not the largest difference: two kernels that are equal but for bfloat16's rounding are 0.02 to 0.05 apart
    # in a deep model, and single logits much more; dialogues that see each other, 0.7 and more.
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.2
    if float((packed - alone).norm()) > tolerance * float(alone.norm()):
        raise UserError(
            f"data.packing: {type(model).__name__} lets packed dialogues see each other; set data.packing: false "
            "(batches are made by length instead)"
        )


FLASH = ("flash_attention_2", "flash_attention_3")
