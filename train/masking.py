"""Messages to token ids, and which of them carry loss.

The chat template's structure and the people's words are tokenised separately:

    structure   <|im_start|>user\n        <|im_end|>\n<|im_start|>assistant\n        <|im_end|>\n
    content                       hello                                        hi!
    labels      -100 ........................................................  hi! <|im_end|> -100

The template is rendered once per sequence of roles with a place-holder for every content, so it never sees what
people wrote: a user who types `<|im_end|>` has written nine characters, not ended a turn. Training, simulation and
perplexity all come through here, so they cannot disagree about the format.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from data_prep.chat_format import Message
from data_prep.errors import UserError
from train import templates

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


@dataclass(frozen=True)
class _Piece:
    """The template's own text at one place: control tokens and what stands between them.

    `space` is what the template writes last; it is tokenised with the words that follow it.
    """

    parts: tuple[int | str, ...]
    space: str


class ChatRenderer:
    """Renders conversations for one tokenizer.

    `notes` says in a line each what a user should know of how this template is used; show them once.

    Raises UserError when the tokenizer has no chat template, when the template cannot be rendered faithfully by
    pieces (proven on probe conversations), or when an assistant turn does not end with a special token.
    """

    def __init__(self, tokenizer: Any):
        name = templates.name_of(tokenizer)
        if not templates.template_text(tokenizer):
            raise UserError(
                f"{name}: has no chat template, as base models have none; name its chat (instruct) version, or put the "
                "template you want into chat_template.jinja beside its tokenizer"
            )
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise UserError(f"{name}: has only a slow tokenizer; one with tokenizer.json is needed")
        self.tokenizer = tokenizer
        self.name = name
        self._pieces = lru_cache(maxsize=None)(self._cut_pieces)
        control = templates.control_tokens(tokenizer)
        self.control_ids = set(control)
        self.control_texts = frozenset(control.values())
        # A character that the tokenizer does not know is no control token, unless the same token is used as one.
        self._forbidden = self.control_ids - (
            {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        )
        self._text = templates.TextTokens(tokenizer, control)
        self._piece_ids = lru_cache(maxsize=None)(self._ids_of_piece)
        self._trims = {role: templates.trimmed_sides(tokenizer, role) for role in ("system", "user", "assistant")}
        self._misuse = templates.system_misuse(tokenizer)
        self._user_first = templates.wants_user_first(tokenizer)
        self.notes = self._notes()
        self._check_probes()
        self.stop_ids = self._terminators()

    def encode(self, messages: Sequence[Message], train_on: Sequence[bool] | None = None) -> Encoded:
        """Ids and labels of a whole conversation.

        `train_on[i]` says whether message i carries loss (default: every assistant message). A supervised message
        includes the special token that ends its turn, so that the model learns to stop.
        """
        if train_on is None:
            train_on = [message["role"] == "assistant" for message in messages]
        accepted = self.accepted(messages)
        flags = train_on[len(messages) - len(accepted) :]  # a system text that moved has no flag of its own
        ids: list[int] = []
        labels: list[int] = []

        def add(tokens: Sequence[int], supervised: bool) -> None:
            ids.extend(tokens)
            labels.extend(tokens if supervised else [IGNORED] * len(tokens))

        opening, *said = self._in_order(accepted, False)
        add(opening, False)
        for learn, content, following in zip(flags, said[::2], said[1::2], strict=True):
            add(content, learn)
            end = self._terminator_end(following) if learn else 0
            add(following[:end], True)
            add(following[end:], False)
        return Encoded(ids, labels)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to where the assistant is to speak."""
        return [token for tokens in self._in_order(self.accepted(messages), True) for token in tokens]

    def accepted(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as the template can take them: a system text that it cannot place begins the first user turn.

        Where the assistant speaks first and the template wants a user to, the system text becomes the user's turn.
        """
        if not messages or messages[0]["role"] != "system":
            return messages
        system, *rest = messages
        user_next = bool(rest) and rest[0]["role"] == "user"
        if self._misuse is None and (user_next or not self._user_first):
            return messages
        if user_next:
            return [{"role": "user", "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
        return [{"role": "user", "content": system["content"]}, *rest]

    def _in_order(self, messages: Sequence[Message], generation: bool) -> Iterator[Sequence[int]]:
        """Ids of the template's piece, the first content, the next piece, and so on up to the last piece."""
        pieces = self._pieces(tuple(message["role"] for message in messages), generation)
        before: templates.Before = "nothing"
        for piece, message in zip(pieces, [*messages, None], strict=True):
            tokens, before = self._piece_ids(piece.parts, before)
            yield tokens
            if message is not None:
                content = self._content_ids(message, piece.space, before)
                before = "text" if content else before
                yield content

    def _content_ids(self, message: Message, space: str, before: templates.Before) -> list[int]:
        """Ids of what somebody wrote, with special tokens in it spelled out as plain text."""
        content = message["content"]
        left, right = self._trims[message["role"]]
        content = content.lstrip() if left else content
        content = content.rstrip() if right else content
        ids = self._text.ids(space + content, before)
        if not self._forbidden.isdisjoint(ids):
            raise UserError(
                f"{self.name}: the tokenizer turns text into a control token even when told not to; use another model"
            )
        return ids

    def _cut_pieces(self, roles: tuple[str, ...], generation: bool) -> tuple[_Piece, ...]:
        """The template's text before, between and after the contents: len(roles) + 1 pieces."""
        texts = templates.pieces_of(self.tokenizer, roles, generation)
        pieces = []
        for number, text in enumerate(texts):
            parts = self._text.split(text)
            space = ""
            # A prompt that ends in a space would have the model go on after it, which no tokenizer does.
            last = parts[-1] if parts else None
            if isinstance(last, str) and (number < len(roles) or generation):
                kept = last.rstrip(" ")
                space = last[len(kept) :]
                parts[-1:] = [kept] if kept else []
            pieces.append(_Piece(tuple(parts), space))
        return tuple(pieces)

    def _ids_of_piece(
        self, parts: tuple[int | str, ...], before: templates.Before
    ) -> tuple[tuple[int, ...], templates.Before]:
        """Ids of a piece, and what then stands before the words that follow."""
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else self._text.ids(part, before)
            before = "control" if isinstance(part, int) else "text"
        return tuple(ids), before

    def _notes(self) -> list[str]:
        notes = []
        if self._misuse is not None:
            notes.append(f"{self.name}: its chat template {self._misuse}; here its text begins the first user turn")
        elif self._user_first:
            notes.append(
                f"{self.name}: its chat template wants the user to speak first; where the assistant does, the system "
                "text is the user's first turn"
            )
        if "strftime_now" in templates.template_text(self.tokenizer):
            notes.append(
                f"{self.name}: its chat template writes today's date into the system turn, so prompts differ from day "
                "to day"
            )
        if templates.template_text(self.tokenizer).startswith(templates.STABLE):
            notes.append(
                f"{self.name}: its own chat template opens earlier assistant turns differently from the one that is "
                "written next; here all open alike, and the template saved with the result does so too"
            )
        return notes

    def _check_probes(self) -> None:
        """Compares our rendering of clean text with the tokenizer's own; at least one probe must be accepted."""
        refusal: UserError | None = None
        accepted = 0
        for probe in PROBES:
            messages = self.accepted([{"role": role, "content": content} for role, content in probe])  # type: ignore[typeddict-item]
            try:
                text = templates.render(self.tokenizer, messages, False)
            except UserError as error:
                refusal = error
                continue
            accepted += 1
            expected = self.tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
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
        piece, _ = self._piece_ids(self._pieces(("user", "assistant"), False)[-1].parts, "text")
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
