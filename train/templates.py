"""What a chat template and its tokenizer do to text, found out by asking them.

SentencePiece tokenizers write a space (▁) before text that begins a segment, some of them after every control token,
and make one token of a word and the space before it:

    whole        user\\nHi      ->  ▁user  \\n  Hi           [INST] Hi     ->  ▁[  INST  ]  ▁Hi
    by pieces    user\\n | Hi   ->  ▁user  \\n  ▁Hi          [INST] | Hi   ->  ▁[  INST  ]  ▁  ▁Hi

So a piece of text is tokenised by what stands before it, and a space that the template writes before somebody's words
goes with the words.
"""

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from jinja2 import TemplateError

from data_prep.errors import UserError

Before = Literal["nothing", "control", "text"]
MARK = "\ue000"
"""A private-use character: no template trims, splits or matches on it."""


def render(tokenizer: Any, messages: Sequence[Any], generation: bool) -> str:
    """The template's text for messages. A model that can think is asked not to: a dialogue has no use for it.

    Raises UserError when the template refuses the roles.
    """
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generation, enable_thinking=False
            )
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise UserError(
            f"{name_of(tokenizer)}: its chat template refuses the roles ({roles}): {' '.join(str(error).split())}"
        ) from None


def name_of(tokenizer: Any) -> str:
    return getattr(tokenizer, "name_or_path", "") or "the tokenizer"


def template_text(tokenizer: Any) -> str:
    """The source of the chat template; empty without one."""
    template = getattr(tokenizer, "chat_template", None) or ""
    return template if isinstance(template, str) else str(template.get("default", ""))


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """id -> text of the tokens that no text may become: the special ones, and added ones that the template writes.

    Qwen3's `<think>` is no special token, yet it switches the model's thinking as one would.
    """
    template = template_text(tokenizer)
    found = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    for index, token in tokenizer.added_tokens_decoder.items():
        if token.special or (token.content.strip() and token.content in template):
            found[index] = token.content
    return found


class TextTokens:
    """Text to ids for one tokenizer, the same as where it stands in a conversation."""

    def __init__(self, tokenizer: Any, control: dict[int, str]):
        self._tokenizer = tokenizer
        self._control = control
        self._backends = _backends(tokenizer.backend_tokenizer.to_str(), frozenset(control.values()))

    def split(self, text: str) -> list[int | str]:
        """The template's own text as control tokens and what stands between them."""
        found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=False, return_offsets_mapping=True)
        parts: list[int | str] = []
        done = 0
        for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            if token in self._control:
                parts += [text[done:start], token]  # the offsets hold the white space that a token swallows
                done = end
        return [part for part in (*parts, text[done:]) if part != ""]

    def ids(self, text: str, before: Before) -> list[int]:
        """Ids of plain text; a control token that is spelled out in it stays text."""
        return list(self._backends[before].encode(text, add_special_tokens=False).ids) if text else []


@lru_cache(maxsize=4)
def _backends(serialised: str, control: frozenset[str]) -> dict[Before, Any]:
    """The tokenizer as it treats text after nothing, a control token, or text; one object where it is all the same."""
    from tokenizers import Tokenizer

    content = json.loads(serialised)
    content |= {"truncation": None, "padding": None}
    for token in content["added_tokens"]:
        token["special"] = token["special"] or token["content"] in control
    made: list[tuple[Any, Any]] = []
    found: dict[Before, Any] = {}
    order: tuple[Before, ...] = ("nothing", "control", "text")
    for before in order:
        parts = {name: _without_prefix(content[name], before) for name in ("normalizer", "pre_tokenizer")}
        backend = next((backend for known, backend in made if known == parts), None)
        if backend is None:
            backend = Tokenizer.from_str(json.dumps({**content, **parts}, ensure_ascii=False))
            backend.encode_special_tokens = True
            made.append((parts, backend))
        found[before] = backend
    return found


def _without_prefix(part: dict[str, Any] | None, before: Before) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer (as in tokenizer.json) without the space it would not write there."""
    if part is None or before == "nothing":
        return part
    if part["type"] == "Sequence":
        key = "normalizers" if "normalizers" in part else "pretokenizers"
        kept = [_without_prefix(one, before) for one in part[key]]
        return {**part, key: [one for one in kept if one is not None]}
    if part["type"] == "Metaspace" and (before == "text" or part["prepend_scheme"] == "first"):
        return {**part, "prepend_scheme": "never"}
    if part["type"] == "Prepend" and before == "text":
        return None
    if part["type"] == "ByteLevel" and before == "text":
        return {**part, "add_prefix_space": False}
    return part


def trimmed_sides(tokenizer: Any, role: str) -> tuple[bool, bool]:
    """Whether the template strips white space on the left and on the right of a message of this role."""
    words = f"\t{MARK}\t"  # a tab: the template may write spaces and line breaks of its own there
    roles = {"system": ("system", "user"), "user": ("user",), "assistant": ("user", "assistant")}[role]
    messages = [{"role": one, "content": words if one == role else "x"} for one in roles]
    try:
        text = render(tokenizer, messages, False)
    except UserError:
        return False, False
    return f"\t{MARK}" not in text, f"{MARK}\t" not in text


def system_misuse(tokenizer: Any) -> str | None:
    """Why a system message cannot be left to the template; None when it can, or when it is not the template's fault.

    Gemma's template refuses one, Mistral's newer ones put it into the last user turn, so that it would wander from
    turn to turn, and some leave it out without a word.
    """
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": f"{MARK}{index}{MARK}"} for index, role in enumerate(roles)]
    try:
        text = render(tokenizer, messages, False)
    except UserError:
        try:
            render(tokenizer, messages[1:], False)
        except UserError:
            return None
        return "refuses a system message"
    system, user = (text.find(message["content"]) for message in messages[:2])
    if system < 0:
        return "leaves a system message out"
    return "does not put the system message first" if system > user else None


def wants_user_first(tokenizer: Any) -> bool:
    """Whether the template cannot say a system message and an assistant turn after it (Llama-2's refuses that)."""
    try:
        pieces_of(tokenizer, ("system", "assistant"))
    except UserError:
        return True
    return False


# ---- templates that open an assistant turn differently in a prompt and in a history

STABLE = "{#- esckit: assistant turns in a history open as they do in a prompt; no other change for our roles #}"


def pieces_of(tokenizer: Any, roles: Sequence[str], generation: bool = False) -> list[str]:
    """The template's own text before, between and after the contents: len(roles) + 1 pieces.

    Raises UserError when it does not keep every message once and in order.
    """
    marks = [f"{MARK}{index}{MARK}" for index in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    text = render(tokenizer, messages, generation)
    pieces = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise UserError(
                f"{name_of(tokenizer)}: its chat template does not keep every message once and in order "
                f"(roles: {', '.join(roles)}); it cannot be rendered faithfully"
            )
        pieces.append(before)
    return [*pieces, text]


def is_stable(tokenizer: Any) -> bool:
    """Whether every turn of a dialogue stands in the same text as when it is generated.

    Where not (Qwen3 writes an empty thought before the last turn only), one pass over a dialogue would train all
    turns but the last after a text that the model never sees when it speaks. Raises UserError like `render`.
    """
    system = () if system_misuse(tokenizer) else ("system",)
    whole = pieces_of(tokenizer, (*system, "user", "assistant", "user", "assistant"))
    for turns in (1, 3):
        roles = (*system, *("user", "assistant", "user")[:turns])
        prompt = pieces_of(tokenizer, roles, generation=True)
        if [piece.rstrip(" ") for piece in prompt] != [piece.rstrip(" ") for piece in whole[: len(prompt)]]:
            return False
    return True


def stable_template(tokenizer: Any) -> str:
    """A template that opens every assistant turn as a prompt does, and else says what the tokenizer's own says.

    Raises UserError where that cannot be proven: the template treats messages by their place in yet another way.
    """
    system = () if system_misuse(tokenizer) else ("system",)
    whole = pieces_of(tokenizer, (*system, "user", "assistant", "user"), generation=True)
    after_user = pieces_of(tokenizer, (*system, "user"))[-1]
    after_assistant = pieces_of(tokenizer, (*system, "user", "assistant"))[-1]
    before_user = whole[-2].removeprefix(after_assistant)
    # A template without a generation prompt leaves the opening to the model, which is never trained to write it.
    opening = whole[-1].removeprefix(after_user) or whole[-3].removeprefix(after_user)
    first = pieces_of(tokenizer, ("user",))[0].removesuffix(before_user)
    said = {"user": (before_user, after_user), "assistant": (opening, after_assistant)}
    if system:
        said["system"] = (whole[0], whole[1].removesuffix(before_user))
    template = STABLE + f"{{% if messages[0].role != 'system' %}}{_literal(first)}{{% endif %}}"
    template += "{% for message in messages %}"
    for role, (before, after) in said.items():
        left, right = trimmed_sides(tokenizer, role)
        words = "{{ message.content" + " | string | trim" * (left and right) + " }}"
        template += f"{{% if message.role == '{role}' %}}{_literal(before)}{words}{_literal(after)}{{% endif %}}"
    template += f"{{% endfor %}}{{% if add_generation_prompt %}}{_literal(opening)}{{% endif %}}"
    _prove(tokenizer, template, (("user",), (*system, "user")))
    return template


def _literal(text: str) -> str:
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""


def _prove(tokenizer: Any, template: str, prompts: Sequence[tuple[str, ...]]) -> None:
    """Raises UserError unless both templates say the same in `prompts`, which have no assistant turn behind them."""
    other = copy.copy(tokenizer)
    other.chat_template = template
    own, ours = ([pieces_of(one, roles, generation=True) for roles in prompts] for one in (tokenizer, other))
    same = all(a[:-1] == b[:-1] and b[-1].startswith(a[-1]) for a, b in zip(own, ours, strict=True))
    if not same or not is_stable(other):
        raise UserError(
            f"{name_of(tokenizer)}: its chat template opens an assistant turn differently in a prompt and in a "
            "history, and no template could be made that does not; use a model with another template"
        )


def stabilise(tokenizer: Any) -> Any:
    """The tokenizer, its template replaced by a stable one where it has to be (it is then saved with what is trained).

    A tokenizer without a template, or with one that refuses even plain dialogues, is left for ChatRenderer to refuse.
    """
    if template_text(tokenizer):
        try:
            stable = is_stable(tokenizer)
        except UserError:
            return tokenizer
        if not stable:
            tokenizer.chat_template = stable_template(tokenizer)
    return tokenizer
