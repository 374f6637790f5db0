"""A chat model against real dialogues: how well it predicts their turns, and what a supporter says in their place."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import Speaker, sha256_of
from eval.chat_models.base import ChatModel, Sampling, refuse_if_down
from eval.chat_models.options import ModelOptions
from eval.evaluate_supporter import (
    Extras,
    Replies,
    Similarity,
    by_dialogue,
    chance,
    compare,
    evaluate_supporter,
    pairs_of,
)
from eval.metrics import vocabulary
from eval.progress import progress_bar
from eval.replies import ReferenceTurns, answer, reference_turns
from eval.replies_folder import open_replies
from train.rows import ChatFormat, LocatedRow

Say = Callable[[str], None]
GREEDY = Sampling(max_new_tokens=128, temperature=0, top_p=1)
NO_OPTIONS = ModelOptions()


@dataclass(frozen=True)
class ChatQuestion:
    """All that `esckit evaluate` was asked of chat models."""

    models: tuple[str, ...]
    """One, or two to compare."""
    on: str
    side: Speaker
    max_length: int = 2048
    batch_size: int = 4
    limit: int | None = None
    prompt: str | None = None
    by_turn: bool = False
    strategies: bool = False
    replies: bool = False
    sampling: Sampling = GREEDY
    seed: int = 0
    options: ModelOptions = NO_OPTIONS
    out: Path | None = None
    vectors: str | None = None
    bertscore: str | None = None
    g_score: float | None = None


@dataclass(frozen=True)
class ChatAnswer:
    """`result` is what JSON prints; `values` are the metrics of every dialogue, for correlations with ratings."""

    result: dict[str, Any]
    values: dict[str, dict[str, dict[str, float | None]]]
    """model -> dialogue -> metric -> value."""


def evaluate_chat(asked: ChatQuestion, say: Say) -> ChatAnswer:
    """Raises UserError for data or a model that do not fit; `say` is given remarks for the user."""
    from data_prep.prompt import load_prompt
    from train.rows import read_rows

    prompt = asked.prompt or _trained_prompt(asked.models[0], asked.side, say) or asked.side
    how = ChatFormat(asked.side, load_prompt(prompt), load_prompt("greeting"), asked.max_length)
    located = read_rows([asked.on], None, seed=0, prompt=asked.prompt)[: asked.limit]
    similarity = _similarity(asked)
    result: dict[str, Any] = {
        "on": asked.on,
        "side": asked.side,
        "prompt": how.prompt.reference(),
        "dialogues": len(located),
        "models": {},
    }
    losses: dict[str, Any] = {}
    kept: dict[str, Replies] = {}
    turns = reference_turns(located, how) if asked.replies else ReferenceTurns()
    if asked.replies and not turns.dialogues:
        raise UserError(f"{asked.on}: has no {asked.side} turn that a reply could be compared with")
    for place, name in enumerate(asked.models):
        chat = _load(name, asked, say)
        if hasattr(chat, "weights"):
            losses[name] = _predicting(name, chat, asked, how, located, result)
        else:
            say(f"note: {chat.name}: no perplexity: its weights are not on this machine")
        if asked.replies:
            folder = asked.out / "against" if asked.out and place else asked.out
            kept[name] = _replies(name, chat, asked, how, turns, folder, say)
        del chat  # before the next one is loaded
    if len(losses) == 2:
        result["ratio"] = _ratio(losses, say)
    if not asked.replies:
        return ChatAnswer(result, {})
    return _compared(result, turns, kept, asked, similarity)


def _trained_prompt(name: str, side: Speaker, say: Say) -> str | None:
    """The system prompt that a model of `esckit train` was trained with; it is named, since it changes every figure."""
    recipe = trained_with(name)
    data = recipe.get("data") if recipe.get("kind") == side else None
    prompt = data.get("prompt") if isinstance(data, dict) else None
    if not isinstance(prompt, str):
        return None
    say(f"note: system prompt {prompt}, which {name} was trained with; another one: --prompt")
    return prompt


def trained_with(name: str) -> dict[str, Any]:
    """The recipe that lies in the folder of a model or adapter; empty where there is none."""
    import yaml

    from data_prep.records import read_text

    path = name.removeprefix("hf:")
    for folder in (Path(path), Path(path.rpartition("+")[2])):
        if (file := folder / "recipe.yaml").is_file():
            try:
                found = yaml.safe_load(read_text(file))
            except yaml.YAMLError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _load(name: str, asked: ChatQuestion, say: Say) -> ChatModel:
    from eval.chat_models import kind_of, load_chat_models
    from eval.chat_models.base import notes_of

    if kind_of(name) == "human":
        raise UserError("a person at the keyboard is not evaluated so; use esckit chat, or esckit simulate")
    chat = load_chat_models([name], options=[asked.options], say=say)[0]
    for note in notes_of([chat]):
        say(f"note: {note}")
    return chat


# ---- perplexity and strategies, from one reading of the real turns


def _predicting(
    name: str, chat: Any, asked: ChatQuestion, how: ChatFormat, located: list[LocatedRow], result: dict[str, Any]
) -> list[tuple[float, int]]:
    from eval.evaluate import perplexity_interval
    from eval.strategies import strategy_choices, strategy_figures, strategy_tokens
    from train.masking import ChatRenderer
    from train.perplexity import by_turn, total, turn_losses
    from train.rows import chat_rows
    from train.templates import stabilise

    # A copy: the model itself goes on speaking by its own template.
    renderer = ChatRenderer(stabilise(copy.copy(chat.renderer.tokenizer)))
    rows, report = chat_rows(how, renderer, located)
    with chat.weights() as weights:
        with progress_bar(name, len(rows)) as advance:
            turns = turn_losses(weights, rows, asked.batch_size, advance)
        if asked.strategies:
            with progress_bar(f"{name}, strategies", len(rows)) as advance:
                choices = strategy_choices(weights, rows, strategy_tokens(renderer), asked.batch_size, advance)
            result.setdefault("strategies", {})[name] = asdict(strategy_figures(choices))
    losses = [total(each) for each in turns]
    if asked.by_turn:
        result.setdefault("by_turn", {})[name] = by_turn(turns)
    result["models"][name] = asdict(perplexity_interval(losses))
    result["tokens"] = report.supervised_tokens
    result["shortened"] = report.shortened
    return losses


def _ratio(losses: dict[str, Any], say: Say) -> dict[str, Any] | None:
    from eval.evaluate import perplexity_ratio

    first, second = losses
    try:
        return asdict(perplexity_ratio(losses[second], losses[first]))
    except ValueError as error:
        say(f"note: no ratio of perplexities: {error}")
        return None


# ---- replies


def _replies(
    name: str,
    chat: ChatModel,
    asked: ChatQuestion,
    how: ChatFormat,
    turns: ReferenceTurns,
    folder: Path | None,
    say: Say,
) -> Replies:
    """The replies of one model, those of an earlier call included. Without a folder they are kept nowhere."""
    settings = {
        "format": "esckit-replies/1",
        "model": chat.describe(),
        "sampling": asked.options.sampling(asked.sampling).model_dump(mode="json"),
        "prompt": how.prompt.reference(),
        "side": how.side,
        "seed": asked.seed,
        "batch_size": asked.batch_size,
        "data": {"sha256": sha256_of(Path(asked.on)), "limit": asked.limit},
    }
    with _folder(folder) as place, open_replies(place, settings) as kept:
        if kept.note:
            say(kept.note)
        done = kept.done()
        with progress_bar(f"{name}, replies", len(turns.all())) as advance:
            sampling = asked.options.sampling(asked.sampling)
            for records in answer(turns.dialogues, chat, sampling, asked.seed, asked.batch_size, done, advance):
                kept.add(records)
                refuse_if_down([chat])
        return kept.replies()


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def _similarity(asked: ChatQuestion) -> Similarity | None:
    """What --bertscore is; before anything long begins, it is also seen whether the vectors are there."""
    if asked.vectors and not Path(asked.vectors).is_file():
        raise UserError(f"--vectors {asked.vectors}: file not found")
    if not asked.bertscore:
        return None
    from eval.metrics_vectors import greedy_f1, load_encoder

    encode = load_encoder(asked.bertscore)
    return lambda reply, reference: greedy_f1(encode(reply), encode(reference))


def _compared(
    result: dict[str, Any],
    turns: ReferenceTurns,
    kept: dict[str, Replies],
    asked: ChatQuestion,
    similarity: Similarity | None,
) -> ChatAnswer:
    from eval.metrics_vectors import read_vectors

    everything = turns.all()
    pairs = [pair for replies in kept.values() for pair in pairs_of(everything, replies)]
    vectors = read_vectors(asked.vectors, vocabulary(pairs)) if asked.vectors else None
    extras = Extras(vectors, similarity, asked.g_score)
    result["sampling"] = asked.options.sampling(asked.sampling).model_dump(mode="json")
    result["vectors"] = vectors.sha256 if vectors else None
    result["bertscore"] = asked.bertscore
    result["replies"] = {
        name: asdict(evaluate_supporter(everything, replies, extras, turns.left_out, asked.seed))
        for name, replies in kept.items()
    }
    # Without the judge's part: nobody judged these.
    aside = Extras(vectors, similarity)
    result["chance"] = [asdict(one) for one in chance(everything, aside, asked.seed)]
    if len(kept) == 2:
        one, other = kept.values()
        found = compare(everything, one, other, extras, asked.seed)
        result["differences"] = {
            language: {name: asdict(interval) for name, interval in metrics.items()}
            for language, metrics in found.items()
        }
    return ChatAnswer(result, {name: by_dialogue(everything, replies, extras) for name, replies in kept.items()})
