"""Made tokenizers in the shape of the families people train: their kind of tokens, and templates in their format.

The vocabularies are tiny and trained here. The templates are written from the documented formats; only the control
tokens are the families' own, and the default system texts are ours.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import save_tiny_llama

TEXTS = [
    "hello, how are you feeling today? I am sad and I can not sleep. system user assistant model [INST] [/INST]"
] * 4
TEXTS += [
    "Age: 30 Problem: Be kind.\nYou are kind. 我最近睡不好，工作压力很大。你好，很高兴你来。",
    "听起来很辛苦。\n想说说吗？\n\n",
] * 4
OPEN_CHATML = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

QWEN1_5 = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}" + OPEN_CHATML
)
# Says the same as the older one for our roles, by other means: the system message is written before the loop.
QWEN2_5 = (
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou are Qwen-like and kind.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or message.role == 'assistant' %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    + OPEN_CHATML
)
# An empty thought stands before the last assistant turn and, when thinking is off, at the end of a prompt; thoughts in
# a history are cut away.
QWEN3 = (
    "{%- set ns = namespace(asked=-1) %}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- set ns.asked = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}{%- if message.role == 'assistant' %}"
    "{%- if loop.last and loop.index0 > ns.asked %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- message.content.split('</think>')[-1].lstrip('\n') }}{%- else %}{{- message.content }}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' "
    "+ message.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INTERNLM2 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}" + OPEN_CHATML
)
LLAMA2 = (
    "{% set shift = 1 if messages[0].role == 'system' else 0 %}{% for message in messages[shift:] %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate, user first') }}{% endif %}"
    "{% if message.role == 'user' %}{{ bos_token + '[INST] ' }}{% if loop.first and shift %}"
    "{{ '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' }}{% endif %}{{ message.content.strip() + ' [/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# The first Mistral: plain-text marks, roles that have to alternate from a user on.
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate, user first') }}{% endif %}"
    "{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"
)
# The later one: marks are control tokens, and the template puts the system text into the last user turn.
MISTRAL3 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set turns = messages %}{% endif %}{{ bos_token }}{% for message in turns %}"
    "{% if message.role == 'user' %}{{ '[INST] ' }}{% if loop.last and system is defined %}{{ system + '\n\n' }}"
    "{% endif %}{{ message.content + '[/INST]' }}{% else %}{{ ' ' + message.content + eos_token }}{% endif %}"
    "{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate, user first') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' "
    "+ message.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SMOLLM2 = QWEN1_5.replace("You are kind.", "You are small and kind.")


# Line breaks stay together, as these families have it; after punctuation they belong to it.
WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(
    template: str, specials: list[str], eos: str, pad: str, bos: str | None = None, plain: tuple[str, ...] = ()
) -> Any:
    """Byte-level BPE, as Qwen, Llama-3 and SmolLM2 have it. `plain` tokens are added, but not special.

    With a `bos` that is a token of its own, the tokenizer puts it before every text, as Llama-3's does.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
    if bos is not None and bos not in template:
        number = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad, chat_template=template
    )


def sentence_piece(template: str, specials: list[str], prefix: str, bos: str, eos: str) -> Any:
    """BPE over words that carry their space, bytes for what it does not know, as SentencePiece models are converted.

    `prefix` is who gets a space in front: "each" segment after a control token too (a Prepend normalizer, Llama-2 and
    InternLM2), only the "first" of a text (Metaspace, Mistral), or "none" (Gemma).
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    names = ["<unk>", bos, eos, *specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    names += sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [tuple(pair) for pair in learned["merges"]]
    model = models.BPE(
        {name: index for index, name in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    space = normalizers.Replace(" ", "▁")
    if prefix == "each":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
    elif prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = space
    ends = [] if prefix == "none" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    tokenizer.add_special_tokens(["<unk>", bos, eos, *specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        unk_token="<unk>",
        pad_token=eos,
        chat_template=template,
    )


QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHATML_MARKS = ["<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Family:
    """A maker of the tokenizer, and what is true of the family: the token that ends a turn, and its first token."""

    make: Callable[[], Any]
    end: str
    bos: str | None = None
    merges_system: bool = False


FAMILIES: dict[str, Family] = {
    "qwen1.5": Family(lambda: byte_level(QWEN1_5, QWEN, "<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    "qwen2.5": Family(lambda: byte_level(QWEN2_5, QWEN, "<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    "qwen3": Family(
        lambda: byte_level(QWEN3, QWEN, "<|im_end|>", "<|endoftext|>", plain=("<think>", "</think>")), "<|im_end|>"
    ),
    "llama-3": Family(
        lambda: byte_level(LLAMA3, HEADERS, "<|eot_id|>", "<|end_of_text|>", "<|begin_of_text|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    "smollm2": Family(lambda: byte_level(SMOLLM2, QWEN, "<|im_end|>", "<|im_end|>", "<|im_start|>"), "<|im_end|>"),
    "internlm2": Family(lambda: sentence_piece(INTERNLM2, CHATML_MARKS, "each", "<s>", "</s>"), "<|im_end|>", "<s>"),
    "llama-2": Family(lambda: sentence_piece(LLAMA2, [], "each", "<s>", "</s>"), "</s>", None),
    "mistral": Family(lambda: sentence_piece(MISTRAL, [], "first", "<s>", "</s>"), "</s>", "<s>", True),
    "mistral-legacy": Family(lambda: sentence_piece(MISTRAL, [], "each", "<s>", "</s>"), "</s>", "<s>", True),
    "mistral-v3": Family(
        lambda: sentence_piece(MISTRAL3, ["[INST]", "[/INST]"], "first", "<s>", "</s>"), "</s>", "<s>", True
    ),
    "gemma": Family(
        lambda: sentence_piece(GEMMA, ["<start_of_turn>", "<end_of_turn>"], "none", "<bos>", "<eos>"),
        "<end_of_turn>",
        "<bos>",
        True,
    ),
}


@cache
def _serialised(name: str) -> tuple[str, dict[str, Any]]:
    made = FAMILIES[name].make()
    tokens = {key: getattr(made, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    return made.backend_tokenizer.to_str(), {**tokens, "chat_template": made.chat_template}


def made_tokenizer(name: str) -> Any:
    """A fresh tokenizer of a family; the training of its vocabulary is done once."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    serialised, options = _serialised(name)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(serialised), model_max_length=4096, **options)


def made_chat_model(folder: Path, name: str) -> Path:
    """A folder with a tiny Llama-shaped model of random weights under a family's tokenizer."""
    tokenizer = made_tokenizer(name)
    return save_tiny_llama(folder, tokenizer, max_position_embeddings=4096, bos_token_id=tokenizer.bos_token_id)
