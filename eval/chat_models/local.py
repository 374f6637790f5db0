"""Local Hugging Face chat models: batched generation that keeps what it has read of every conversation.

Between turns each conversation holds its token ids and their keys and values, without padding. For the next turn the
rows are laid side by side again (k: kept, n: new, x: generated, .: hole, masked):

    row 0   k k k k k k   . n n n   x x x
    row 1   k k k . . .   n n n n   x x .
            kept          prompt    generated

Positions count real tokens only, so a hole costs memory until the turn ends but never changes a result.
"""

import inspect
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from data_prep.errors import UserError
from eval.chat_models.base import Reply, Request, Sampling, Stats, cut_at, split_thinking
from eval.chat_models.cpu_attention import use_cpu_attention
from eval.chat_models.kept import Held, RoomyLayer
from eval.chat_models.picking import pick
from train.masking import ChatRenderer
from train.templates import template_text

SHORTEST_ALIKE = 16
"""Tokens that prompts must begin with in common for these to be read apart: a pass of its own costs time, too."""


class Weights:
    """A loaded model that several chat models may share, each with its own adapter or none."""

    def __init__(self, model: Any):
        self.model = model
        use_cpu_attention(model)

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[Any]:
        """The model with this adapter switched on and no other."""
        if not hasattr(self.model, "peft_config"):
            yield self.model
        elif adapter is None:
            with self.model.disable_adapter():
                yield self.model
        else:
            if self.model.active_adapters != [adapter]:
                self.model.set_adapter(adapter, inference_mode=True)
            yield self.model


class LocalChatModel:
    """A chat model on this machine. `details` is what `describe` reports of its files."""

    def __init__(
        self, name: str, weights: Weights, tokenizer: Any, details: dict[str, Any], adapter: str | None = None
    ):
        self.name = name
        self.stats = Stats()
        self.renderer = ChatRenderer(tokenizer)
        self.notes = self.renderer.notes
        self._weights = weights
        self._adapter = adapter
        self._details = details
        weights.model.eval()
        config = weights.model.config.get_text_config()
        self.context_length = _context_length(config, tokenizer)
        # A sliding window or a recurrent state cannot be cut and laid out anew: such models read every turn afresh.
        self._config = config
        self._keeps = all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
        self._held: dict[str, Held] = {}
        self._alike: Held | None = None
        """What the prompts of the last new conversations began with in common."""
        self._most_rows: int | None = None  # most conversations that memory is known to hold side by side

    def describe(self) -> dict[str, Any]:
        parameter = next(self._weights.model.parameters())
        return {
            "kind": "hf",
            **self._details,
            **({"thinking": False} if "enable_thinking" in template_text(self.renderer.tokenizer) else {}),
            "dtype": str(self._weights.model.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "context_length": self.context_length,
        }

    def weights(self) -> AbstractContextManager[Any]:
        """The loaded model with this chat model's adapter and no other, for who reads logits."""
        return self._weights.using(self._adapter)

    def forget(self) -> None:
        self._held.clear()
        self._alike = None

    def reply(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """One reply per request, in order; a prompt that leaves no room for `max_new_tokens` is a failure.

        Raises UserError when a single conversation does not fit into memory.
        """
        if len({request.conversation for request in requests}) < len(requests):
            raise ValueError("a conversation occurs twice in one batch")
        started = time.perf_counter()
        prompts = [self.renderer.prompt(request.messages) for request in requests]
        fits = [len(prompt) + sampling.max_new_tokens <= self.context_length for prompt in prompts]
        rows = [
            _Row(request.conversation, prompt, request.seed)
            for request, prompt, fit in zip(requests, prompts, fits, strict=True)
            if fit
        ]
        self._fill(rows, sampling)
        seconds = time.perf_counter() - started
        done = iter(rows)
        return [
            self._reply(next(done), sampling, seconds) if fit else self._too_long(len(prompt), sampling, seconds)
            for prompt, fit in zip(prompts, fits, strict=True)
        ]

    def _fill(self, rows: list["_Row"], sampling: Sampling) -> None:
        """Generates all replies. A batch that memory does not hold is halved, and from then on none is larger."""
        size = self._most_rows or len(rows)
        waiting = [rows[start : start + size] for start in range(0, len(rows), size or 1)]
        while waiting:
            batch = waiting.pop(0)
            try:
                with torch.inference_mode(), self._weights.using(self._adapter) as model:
                    self._generate(model, batch, sampling)
                continue
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise UserError(
                        f"{self.name}: not even one conversation fits into memory beside the weights; "
                        "lower --max-new-tokens or take a smaller --dtype (finished dialogues are kept)"
                    ) from None
            # Outside of `except`, where the error's own frames still hold the tensors.
            self._make_room()
            self._most_rows = size = (len(batch) + 1) // 2
            self.stats.halved += 1
            for row in batch:
                row.begin_again()
            waiting[:0] = [batch[:size], batch[size:]]

    def _make_room(self) -> None:
        """Drops all that is kept of conversations; they are read again when they go on."""
        self.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _reply(self, row: "_Row", sampling: Sampling, seconds: float) -> Reply:
        tokens, read = len(row.new) + row.stopped, len(row.prompt)
        self.stats.generated += tokens
        if row.failed:
            return Reply("", failure="error", detail=row.failed, prompt_tokens=read, new_tokens=tokens, seconds=seconds)
        text, thinking = split_thinking(self.renderer.tokenizer.decode(row.new, skip_special_tokens=True))
        said = cut_at(text, sampling.stop)
        finish = "stop" if row.stopped or said != text else "length"
        return Reply(said, finish, None, None, thinking, read, tokens, seconds)  # type: ignore[arg-type]

    def _too_long(self, prompt: int, sampling: Sampling, seconds: float) -> Reply:
        detail = (
            f"{prompt} prompt tokens and {sampling.max_new_tokens} new ones exceed the context of {self.context_length}"
        )
        return Reply("", failure="context_full", detail=detail, prompt_tokens=prompt, seconds=seconds)

    def _generate(self, model: Any, rows: list["_Row"], sampling: Sampling) -> None:
        """Fills `new`, `stopped` and `failed` of every row and keeps what was read of it."""
        batch = _Batch(model, self._config, self._keeps, rows[0].prompt[0])
        held = [self._held.pop(row.conversation, Held()) for row in rows]
        if self._keeps:
            self._begin_alike(batch, rows, held)
        logits = batch.begin(rows, held)
        for row in rows:
            self.stats.prompt_reused += row.kept
            self.stats.reread += row.reread
            self.stats.prompt_read += len(row.prompt) - row.kept
        stops = set(self.renderer.stop_ids)
        while True:
            for row, token in zip(batch.rows, pick(logits, sampling, batch.rows), strict=True):
                row.take(token, stops, sampling.max_new_tokens)
            live = [row for row in batch.rows if not row.done]
            if not live:
                break
            if self._keeps and len(live) <= len(batch.rows) // 2:
                self._keep(batch)
                batch.pack(live, [self._held.pop(row.conversation) for row in live])
            logits = batch.step()
        if self._keeps:
            self._keep(batch)

    def _begin_alike(self, batch: "_Batch", rows: Sequence["_Row"], held: list[Held]) -> None:
        """Gives new conversations what their prompts begin with in common: the system prompt, read once for all.

        The last such beginning stays for the batches after this one; it never outlives `forget`.
        """
        new = [place for place, (row, known) in enumerate(zip(rows, held, strict=True)) if not _shared(known, row)]
        prompts = [rows[place].prompt for place in new]
        # The whole of the shortest prompt may be shared, but its last token must be read with its own row.
        length = min((len(prompt) - 1 for prompt in prompts), default=0)
        for prompt in prompts[1:]:
            length = _common_prefix(prompts[0][:length], prompt)
        kept = min(length, _common_prefix(self._alike.ids, prompts[0])) if prompts and self._alike else 0
        if len(new) > 1 and length - kept >= SHORTEST_ALIKE:
            self._alike, kept = batch.read_alone(prompts[0][:length]), length
            # Read for one of the rows, which will count it as kept like the others.
            self.stats.prompt_read += length
            self.stats.prompt_reused -= length
        if kept and self._alike:
            for place in new:
                held[place] = Held(self._alike.ids[:kept], list(self._alike.layers))

    def _keep(self, batch: "_Batch") -> None:
        for row, held in zip(batch.rows, batch.unpack(), strict=True):
            self._held[row.conversation] = held


@dataclass
class _Row:
    """One conversation while its reply is generated."""

    conversation: str
    prompt: list[int]
    seed: int
    kept: int = 0
    reread: bool = False
    """Whether what was held of it is no beginning of its prompt, so that a part had to be read anew."""

    def __post_init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        """As if no token had been generated."""
        self.draws = random.Random(self.seed)
        self.new: list[int] = []
        self.stopped = self.done = False
        self.failed: str | None = None

    def draw(self) -> float:
        return self.draws.random()

    def take(self, token: int | None, stops: set[int], limit: int) -> None:
        """Adds the next token (None: the model gave no distribution). A row that is done takes nothing."""
        if self.done:
            return
        if token is None:
            self.failed = "the model's output is not a number; are the weights damaged or the dtype too narrow?"
        elif token in stops:
            self.stopped = True
        else:
            self.new.append(token)
        self.done = token is None or self.stopped or len(self.new) == limit


class _Batch:
    """Rows side by side in one cache. `mask` [rows, slots] says which slots hold a real token of the row."""

    def __init__(self, model: Any, config: Any, keeps: bool, filler: int):
        self.model = model
        self.config = config
        self.keeps = keeps
        self.filler = filler  # id fed into holes: any valid one, it is masked
        self.device = model.device
        # transformers 5.24 renamed the argument; the older name goes when pyproject asks for 5.24.
        inner = model.get_base_model() if hasattr(model, "peft_config") else model
        known = inspect.signature(inner.forward).parameters
        self.cache_argument = "cache" if "cache" in known else "past_key_values"
        self.rows: list[_Row] = []

    def begin(self, rows: list[_Row], held: list[Held]) -> torch.Tensor:
        """Reads what is new of every prompt in one pass; returns the logits of the next token [rows, vocabulary]."""
        for row, known in zip(rows, held, strict=True):
            # At least one token must be read: the logits of the last one are needed.
            row.kept = min(_common_prefix(known.ids, row.prompt), len(row.prompt) - 1)
            row.reread = row.kept < len(known.ids)
            known.ids = known.ids[: row.kept]
        self.pack(rows, held)
        return self._read([row.prompt[row.kept :] for row in rows])

    def read_alone(self, ids: list[int]) -> Held:
        """What a model holds of these tokens, read as a single row."""
        row = _Row("", ids, 0)
        self.pack([row], [Held()])
        self._read([ids])
        return self.unpack()[0]

    def step(self) -> torch.Tensor:
        """Reads the last token of every row that goes on; the others get a hole."""
        return self._read([[] if row.done else row.new[-1:] for row in self.rows])

    def pack(self, rows: list[_Row], held: list[Held]) -> None:
        """Lays held conversations side by side, left-aligned, and takes their layers out of `held`."""
        self.rows = rows
        lengths = [len(known.ids) for known in held]
        width = max(lengths)
        self.lengths = torch.tensor(lengths, device=self.device)
        self.mask = torch.arange(width, device=self.device) < self.lengths[:, None]
        if not self.keeps:
            self.cache: Cache = DynamicCache(config=self.config)
            return
        self.cache = Cache(layer_class_to_replicate=RoomyLayer)
        if width == 0:
            return
        # Layer by layer from the last, each freed as soon as it is copied: never two copies of everything.
        layers = []
        while any(known.layers for known in held):
            pairs = [known.layers.pop() if known.layers else None for known in held]
            layers.append(RoomyLayer.holding(pairs, lengths, width))
        self.cache.layers = layers[::-1]

    def unpack(self) -> list[Held]:
        """What each row holds: real tokens only, copied out of the padded cache."""
        held = []
        cached: list[Any] = self.cache.layers
        for index, row in enumerate(self.rows):
            slots = self.mask[index].nonzero().squeeze(1)
            ids = (row.prompt + row.new)[: len(slots)]
            layers = [(layer.keys[index][:, slots], layer.values[index][:, slots]) for layer in cached]
            held.append(Held(ids, layers))
        return held

    def _read(self, tokens: list[list[int]]) -> torch.Tensor:
        """One pass over the new tokens of each row, right-aligned; returns the logits of each last one."""
        width = max(len(new) for new in tokens)
        ids = torch.tensor([[self.filler] * (width - len(new)) + new for new in tokens], device=self.device)
        counts = torch.tensor([len(new) for new in tokens], device=self.device)
        real = torch.arange(width, device=self.device) >= width - counts[:, None]
        positions = (self.lengths[:, None] + real.cumsum(1) - 1).clamp(min=0)
        self.mask = torch.cat([self.mask, real], dim=1)
        self.lengths = self.lengths + counts
        out = self.model(
            input_ids=ids,
            attention_mask=self.mask.long(),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.cache},
        )
        return out.logits[:, -1].float()


def _shared(known: Held, row: _Row) -> bool:
    """Whether anything of a conversation that is held is of use for its next prompt."""
    return bool(known.ids) and _common_prefix(known.ids, row.prompt) > 0


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


def _context_length(config: Any, tokenizer: Any) -> int:
    """The smaller of what the weights and the tokenizer state; one of them must."""
    stated = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    # Tokenizers that do not know say 10^30.
    known = [length for length in stated if isinstance(length, int) and 0 < length < 10**9]
    if not known:
        raise UserError("the model states no context length; set max_position_embeddings in its config.json")
    return min(known)
