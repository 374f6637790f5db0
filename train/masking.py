"""Messages to token ids, and which of them carry loss.

The chat template's structure and the people's words are tokenised separately:

    structure   <|im_start|>user\n        <|im_end|>\n<|im_start|>assistant\n        <|im_end|>\n
    content                       hello                                        hi!
    labels      -100 ........................................................  hi! <|im_end|> -100

The template is rendered once per sequence of roles with a place-holder for every content, so it never sees what
people wrote: a user who types `<|im_end|>` has written nine characters, not ended a turn. Training, simulation and
perplexity all come through here, so they cannot disagree about the format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from jinja2 import TemplateError

from data_prep.chat_format import Message
from data_prep.errors import UserError

IGNORED = -100

# Rendered and compared when a tokenizer is first used: if these do not come out as the tokenizer's own rendering,
# nothing else would either.
PROBES: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Hello there."), ("assistant", "Hi! What's on your mind?")),
    (
        ("system", "Be kind.\nAge: 30"),
        ("user", "I lost my job, 3 days ago"),
        ("assistant", "Oh no..."),
        ("user", "我最近睡不好"),
        ("assistant", "听起来很辛苦。\n想说说吗？"),
    ),
)


@dataclass(frozen=True)
class Encoded:
    """One conversation as ids; `labels` has the id itself where loss is taken and -100 elsewhere (same length)."""

    input_ids: list[int]
    labels: list[int]

    def supervised(self) -> int:
        """Number of tokens that carry loss."""
        return sum(label != IGNORED for label in self.labels)


class ChatRenderer:
    """Renders conversations for one tokenizer.

    Raises UserError when the tokenizer has no chat template, when the template cannot be rendered faithfully by
    pieces (proven on probe conversations), or when an assistant turn does not end with a special token.
    """

    def __init__(self, tokenizer: Any):
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(f"{name}: has no chat template; use a chat (instruct) model, or save a template with it")
        self.tokenizer = tokenizer
        self.name = name
        self._pieces = lru_cache(maxsize=None)(self._render_pieces)
        self.control_ids = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        self._trims = {role: self._template_trims(role) for role in ("system", "user", "assistant")}
        self._check_probes()
        self.stop_ids = self._terminators()

    def encode(self, messages: Sequence[Message], train_on: Sequence[bool] | None = None) -> Encoded:
        """Ids and labels of a whole conversation.

        `train_on[i]` says whether message i carries loss (default: every assistant message). A supervised message
        includes the special token that ends its turn, so that the model learns to stop.
        """
        if train_on is None:
            train_on = [message["role"] == "assistant" for message in messages]
        pieces = self._pieces(tuple(message["role"] for message in messages), False)
        ids: list[int] = []
        labels: list[int] = []

        def add(tokens: Sequence[int], supervised: bool) -> None:
            ids.extend(tokens)
            labels.extend(tokens if supervised else [IGNORED] * len(tokens))

        add(pieces[0], False)
        for message, learn, following in zip(messages, train_on, pieces[1:], strict=True):
            add(self.content_ids(message), learn)
            end = self._terminator_end(following) if learn else 0
            add(following[:end], True)
            add(following[end:], False)
        return Encoded(ids, labels)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to where the assistant is to speak."""
        pieces = self._pieces(tuple(message["role"] for message in messages), True)
        ids = list(pieces[0])
        for message, following in zip(messages, pieces[1:], strict=True):
            ids.extend(self.content_ids(message))
            ids.extend(following)
        return ids

    def content_ids(self, message: Message) -> list[int]:
        """Ids of what somebody wrote, with special tokens in it spelled out as plain text."""
        content = message["content"]
        if self._trims[message["role"]]:
            content = content.strip()
        ids = self.tokenizer(content, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if not self.control_ids.isdisjoint(ids):
            raise UserError(
                f"{self.name}: the tokenizer turns text into a control token even when told not to; "
                "use a fast (tokenizers-based) tokenizer"
            )
        return ids

    def _render_pieces(self, roles: tuple[str, ...], generation: bool) -> tuple[list[int], ...]:
        """Token ids of the template's text before, between and after the contents: len(roles) + 1 pieces."""
        # Private-use characters: no template trims, splits or matches on them.
        marks = [f"\ue000{index}\ue001" for index in range(len(roles))]
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        text = self._apply(messages, generation)
        pieces = []
        for mark in marks:
            before, found, text = text.partition(mark)
            if not found or mark in text:
                raise UserError(
                    f"{self.name}: its chat template does not keep every message once and in order "
                    f"(roles: {', '.join(roles)}); it cannot be rendered faithfully"
                )
            pieces.append(before)
        pieces.append(text)
        return tuple(self.tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in pieces)

    def _apply(self, messages: Sequence[Any], generation: bool) -> str:
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generation)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(f"{self.name}: its chat template refuses the roles ({roles}): {error}") from None

    def _template_trims(self, role: str) -> bool:
        """Whether the template strips white space around a message of this role (Llama-3 and Gemma do)."""
        mark = " \ue000 "
        for before in ([], [{"role": "user", "content": "x"}]):
            try:
                return mark not in self._apply([*before, {"role": role, "content": mark}], False)
            except UserError:
                continue
        return False

    def _check_probes(self) -> None:
        """Compares our rendering of clean text with the tokenizer's own; at least one probe must be accepted."""
        refusal: UserError | None = None
        accepted = 0
        for probe in PROBES:
            messages: list[Message] = [{"role": role, "content": content} for role, content in probe]  # type: ignore[typeddict-item]
            try:
                text = self._apply(messages, False)
            except UserError as error:
                refusal = error
                continue
            accepted += 1
            expected = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if self.encode(messages).input_ids != expected:
                raise UserError(
                    f"{self.name}: its chat template cannot be rendered faithfully by pieces "
                    "(tokens would merge across the borders of what people wrote)"
                )
        if not accepted and refusal is not None:
            raise refusal

    def _terminator_end(self, piece: Sequence[int]) -> int:
        """Length of the beginning of `piece` that ends the assistant's turn, its special token included."""
        for index, token in enumerate(piece):
            if token in self.control_ids:
                return index + 1
        raise UserError(
            f"{self.name}: its chat template does not end an assistant turn with a special token; "
            "the model could never learn to stop"
        )

    def _terminators(self) -> list[int]:
        """Ids on which generation must stop: what ends an assistant turn, and the end of text."""
        piece = self._pieces(("user", "assistant"), False)[-1]
        stops = {piece[self._terminator_end(piece) - 1]}
        if self.tokenizer.eos_token_id is not None:
            stops.add(self.tokenizer.eos_token_id)
        return sorted(stops)


def fit(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    max_length: int,
    where: str,
    train_on: Sequence[bool] | None = None,
) -> tuple[Encoded, int]:
    """Encodes what fits into `max_length` tokens; returns it and the number of messages dropped.

    `train_on` as in `ChatRenderer.encode`; at least one message must carry loss.

    The system message and the last supervised message are kept whole; the oldest messages go first, always up to
    and including an assistant turn, so that the rest still begins as a conversation does. Nothing is cut inside a
    message. Raises UserError when even the last exchange does not fit: the row would have nothing left to learn.
    """
    head = 1 if messages and messages[0]["role"] == "system" else 0
    if train_on is None:
        train_on = [message["role"] == "assistant" for message in messages]
    last = max(index for index, learned in enumerate(train_on) if learned)
    kept = list(messages[: last + 1])  # what follows the last supervised turn teaches nothing
    flags = list(train_on[: last + 1])
    dropped = 0
    while True:
        encoded = renderer.encode(kept, flags)
        if len(encoded.input_ids) <= max_length:
            return encoded, dropped
        first_assistant = next(i for i in range(head, len(kept)) if kept[i]["role"] == "assistant")
        if first_assistant == len(kept) - 1:
            raise UserError(
                f"{where}: needs {len(encoded.input_ids)} tokens for the system prompt and one exchange, "
                f"max_length is {max_length}: nothing would be left to learn; raise data.max_length"
            )
        dropped += first_assistant + 1 - head
        kept = kept[:head] + kept[first_assistant + 1 :]
        flags = flags[:head] + flags[first_assistant + 1 :]


def preview(encoded: Encoded, renderer: ChatRenderer) -> Any:
    """A Rich Text of the decoded tokens: green carries loss, dim is only read, reversed is a control token.

    The three styles are what tells a real `<|im_end|>` from the same nine characters typed by somebody.
    """
    from rich.text import Text

    styles = [
        ("bold green" if label != IGNORED else "dim") + (" reverse" if token in renderer.control_ids else "")
        for token, label in zip(encoded.input_ids, encoded.labels, strict=True)
    ]
    text = Text()
    for style, run in groupby(zip(styles, encoded.input_ids, strict=True), key=itemgetter(0)):
        text.append(renderer.tokenizer.decode([token for _, token in run]), style=style)
    return text
