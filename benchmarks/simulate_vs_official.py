"""Simulated dialogues: the lock-step engine beside a loop that does what the published code does.

    python -m benchmarks.simulate_vs_official [MODEL] [--cards N] [--new-tokens N] [--repeats N] [--many N]

MODEL is a name of `esckit model fetch` or a folder; a small made model unless given. The other loop holds one dialogue
at a time, reads the whole history again at every call and lets seeker and supporter take turns, each a model of its
own. Weights, prompts, greedy decoding and token budgets are the same, and so must be every word: that is checked
before anything is timed. Timed are processor seconds of one thread, the two in turn. With --many the engine's time a
card is also measured at that many cards (same batch size), beside its time a card at --cards.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from data_prep.records import RoleCard
from eval.chat_models import load_chat_models
from eval.chat_models.base import Reply, Sampling
from eval.simulate import LiveDialogue, SimulationSettings, greet, request_for, simulate, take

TEXT = "I can not sleep since I lost my job and my partner does not talk to me any more about what we do next"
WORDS = TEXT.split()
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_model(folder: Path) -> Path:
    """A Llama-shaped model with random weights (hidden size 128, 4 layers) that says words.

    Random weights alone say bytes that are no text and read back as other tokens, which no trained model does: half of
    every conversation would be read again at every turn. So the head knows the words of the tokenizer only.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # A word and the space after it are one token, so that a reply reads back as the tokens it was said in.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(" ", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    words = {fast.convert_tokens_to_ids(f"{word}Ġ") for word in set(WORDS)} - {fast.unk_token_id, None}
    silent = [token for token in range(len(fast)) if token not in words]
    model.lm_head.weight.data[silent] = 0
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_cards(count: int) -> list[RoleCard]:
    """Cards of 10 to 40 words, every fourth of the same length, whatever their number."""
    return [
        RoleCard(
            id=str(place),
            language="en",
            source="made",
            age=str(18 + place % 50),
            problem=" ".join(WORDS[(place + step) % len(WORDS)] for step in range(10 + 10 * (place % 4))),
        )
        for place in range(count)
    ]


def one_at_a_time(cards: Sequence[RoleCard], sides: dict[str, Any], settings: SimulationSettings) -> dict[str, Any]:
    """The published loop: every call reads its whole conversation and generates one reply."""
    done = {}
    for card in cards:
        dialogue = LiveDialogue(card, 0)
        greet(dialogue, settings)
        for _ in range(settings.rounds):
            for side, chat in sides.items():
                if dialogue.end is None:
                    take(dialogue, side, call(chat, dialogue, side, settings), settings)  # type: ignore[arg-type]
        done[dialogue.key] = [turn.text for turn in dialogue.turns]
    return done


def call(chat: Any, dialogue: LiveDialogue, side: Any, settings: SimulationSettings) -> Reply:
    ids = chat.renderer.prompt(request_for(dialogue, side, settings).messages)
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        out = chat._weights.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=settings.seeker_sampling.max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=list(chat.renderer.stop_ids),
            pad_token_id=ids[0],
        )[0, len(ids) :].tolist()
    text = chat.renderer.tokenizer.decode(out, skip_special_tokens=True).strip()
    return Reply(text, "stop", new_tokens=len(out))


def lock_step(cards: Sequence[RoleCard], sides: dict[str, Any], settings: SimulationSettings) -> dict[str, Any]:
    batches = simulate(cards, sides["seeker"], sides["supporter"], settings)
    return {made.key: [turn.text for turn in made.turns] for batch in batches for made in batch}


def seconds_of(cards: Sequence[RoleCard], sides: dict[str, Any], settings: SimulationSettings) -> float:
    """Processor seconds of the engine."""
    start = time.process_time()
    lock_step(cards, sides, settings)
    return time.process_time() - start


def measure(given: argparse.Namespace, model: str) -> None:
    chats = [load_chat_models([model], "float32")[0] for _ in "ab"]
    sides = dict(zip(("seeker", "supporter"), chats, strict=True))
    sampling = Sampling(max_new_tokens=given.new_tokens, temperature=0)
    settings = SimulationSettings(
        rounds=given.rounds, batch_size=given.cards, seeker_sampling=sampling, supporter_sampling=sampling
    )
    cards = make_cards(given.cards)
    ways = {"lock-step engine": lock_step, "one at a time, history read again": one_at_a_time}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    words: dict[str, dict[str, Any]] = {}
    for _ in range(given.repeats):
        for name, way in ways.items():
            start = time.process_time()
            words[name] = way(cards, sides, settings)
            spent[name].append(time.process_time() - start)
        first, second = words.values()
        same = sum(first[key] == second[key] for key in first)
        assert first == second, f"only {same} of {len(cards)} transcripts are the same"
    ours, theirs = spent.values()
    ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    said = sum(len(turns) - 1 for turns in first.values())
    print(f"{given.model or 'made model'}: {len(cards)} cards, {said} utterances of at most {given.new_tokens} tokens")
    for name, seconds in spent.items():
        print(f"{name:<36} {statistics.median(seconds):8.2f} processor seconds")
    print(
        f"all transcripts are the same; ratio {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    )
    if given.many:
        many = make_cards(given.many)
        pairs = [(seconds_of(cards, sides, settings), seconds_of(many, sides, settings)) for _ in range(given.repeats)]
        few, lots = (min(seconds) for seconds in zip(*pairs, strict=True))
        each = (few / len(cards) * 1000, lots / len(many) * 1000)
        print(
            f"a card at {len(cards)} cards {each[0]:.1f} ms, at {len(many)} cards {each[1]:.1f} ms "
            f"({each[1] / each[0] - 1:+.1%}; the least of {given.repeats} each)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    numbers = (("--cards", 32), ("--rounds", 5), ("--new-tokens", 32), ("--repeats", 3), ("--many", 0))
    for name, default in numbers:
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measure(given, given.model or str(make_model(Path(folder) / "made")))


if __name__ == "__main__":
    main()
