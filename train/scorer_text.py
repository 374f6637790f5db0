"""How a scorer reads a dialogue: token ids of whole turns, and what happens to a dialogue that is too long."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from data_prep.chat_format import merge_runs
from data_prep.records import Dialogue
from train.recipe_scorer import LongDialogues

if TYPE_CHECKING:
    from torch import Tensor

GAP = "[...]"
"""Stands where turns were left out of the middle."""


def encode_dialogue(
    tokenizer: Any, dialogue: Dialogue, max_length: int, how: LongDialogues = "last_turns"
) -> tuple[list[list[int]], bool]:
    """Windows of token ids, none longer than max_length, and whether the dialogue is longer than one.

    `[start] seeker: ... [end of turn] supporter: ... [end of turn]`. The end of turn is a special token; text that
    looks like one is spelled out, so nobody can forge a turn. Turns are left out whole; a turn that is too long by
    itself keeps its end (as the first turn of head_and_tail its beginning; in windows it is read piece by piece).
    """
    start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    spell = partial(tokenizer, split_special_tokens=True, add_special_tokens=False)
    head = [start] if start is not None else []
    turns = [[*spell(f"{turn.speaker}: {turn.text}")["input_ids"], end] for turn in merge_runs(dialogue.turns)]
    room = max_length - len(head)
    if sum(map(len, turns)) <= room:
        return [head + _joined(turns)], False
    if how == "windows":
        return [head + window for window in _windows(turns, room)], True
    if how == "head_and_tail":
        return [head + _head_and_tail(turns, [*spell(GAP)["input_ids"], end], room)], True
    return [head + _joined(_last_turns(turns, room))], True


def _joined(turns: Sequence[Sequence[int]]) -> list[int]:
    return [token for turn in turns for token in turn]


def _last_turns(turns: Sequence[list[int]], room: int) -> list[list[int]]:
    """As many of the last turns as there is room for, at least the end of the very last."""
    kept: list[list[int]] = []
    for turn in reversed(turns):
        if kept and sum(map(len, kept)) + len(turn) > room:
            break
        kept.insert(0, turn[-room:])
    return kept


def _head_and_tail(turns: Sequence[list[int]], gap: list[int], room: int) -> list[int]:
    """First turns up to half of the room, a gap, and the last turns that fit into what is left."""
    if len(gap) > room // 4:
        gap = []
    half = (room - len(gap)) // 2
    first: list[list[int]] = [[*turns[0][: half - 1], turns[0][-1]] if len(turns[0]) > half else turns[0]]
    for turn in turns[1:]:
        if sum(map(len, first)) + len(turn) > half:
            break
        first.append(turn)
    beginning = _joined(first) + gap
    rest = turns[len(first) :] or [turns[0]]  # a single turn that is too long: its beginning and its end
    return beginning + _joined(_last_turns(rest, room - len(beginning)))


def _windows(turns: Sequence[list[int]], room: int) -> list[list[int]]:
    """Windows of whole turns, each beginning half a window after the one before or later, that cover everything."""
    pieces = [turn[at : at + room] for turn in turns for at in range(0, len(turn), room)]
    windows: list[list[int]] = []
    begin = 0
    while True:
        stop, length = begin, 0
        while stop < len(pieces) and length + len(pieces[stop]) <= room:
            length += len(pieces[stop])
            stop += 1
        windows.append(_joined(pieces[begin:stop]))
        if stop == len(pieces):
            return windows
        # The next one has to hold the piece that did not fit any more, and reads half of this one again at most.
        span = len(pieces[stop])
        fresh = stop
        while fresh > begin + 1 and span + len(pieces[fresh - 1]) <= room and span <= room // 2:
            fresh -= 1
            span += len(pieces[fresh])
        begin = fresh


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int, left: bool = False) -> "dict[str, Tensor]":
    """input_ids and attention_mask [batch, longest]."""
    import torch

    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for index, row in enumerate(rows):
        span = slice(longest - len(row), None) if left else slice(0, len(row))
        ids[index, span] = torch.tensor(row)
        mask[index, span] = 1
    return {"input_ids": ids, "attention_mask": mask}


def window_batch(dialogues: Sequence[Sequence[Sequence[int]]], pad_id: int) -> "dict[str, Tensor]":
    """The windows of several dialogues: as `pad_batch`, and `dialogue_of` [windows], the dialogue each belongs to."""
    import torch

    owners = [index for index, windows in enumerate(dialogues) for _ in windows]
    batch = pad_batch([window for windows in dialogues for window in windows], pad_id)
    return {**batch, "dialogue_of": torch.tensor(owners)}
