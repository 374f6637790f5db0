"""Similarity of meaning by vectors that the user brings: Vector Extrema of word vectors, and a BERTScore-like figure of
an encoder's token vectors.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.records import sha256_of

Extreme = Literal["farthest", "largest"]


@dataclass(frozen=True)
class Vectors:
    """Word vectors of one length. `mean` is that of the whole file, also of the words that were not kept."""

    known: dict[str, NDArray[np.float32]]
    mean: NDArray[np.float32]
    sha256: str


def read_vectors(path: str | Path, wanted: Collection[str]) -> Vectors:
    """The vectors of the wanted words, from a text file: a word and its numbers a line, as GloVe and word2vec write.

    A first line of two whole numbers (word2vec) is skipped. Raises UserError with file and line for a line that is
    none, or of another length, and when there is no vector at all.
    """
    known: dict[str, NDArray[np.float32]] = {}
    size, count = 0, 0
    total: Any = 0.0
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(stream, start=1):
                parts = line.rstrip().split(" ")
                if number == 1 and len(parts) == 2:
                    continue
                if not size:
                    size = len(parts) - 1
                # A few words of GloVe's largest file hold spaces: the numbers are counted from the end.
                word, numbers = " ".join(parts[:-size]), parts[-size:]
                vector = _numbers(numbers) if size and word else None
                if vector is None:
                    raise UserError(f"{path}:{number}: is no word with {size or 'its'} numbers after it")
                total, count = total + vector, count + 1
                if word in wanted and word not in known:
                    known[word] = vector.astype(np.float32)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not count:
        raise UserError(f"{path}: holds no word vectors; expected a word and its numbers on every line")
    return Vectors(known, (total / count).astype(np.float32), sha256_of(Path(path)))


def _numbers(parts: Sequence[str]) -> NDArray[np.float64] | None:
    try:
        found = np.array(parts, dtype=float)
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None


def extrema(
    reply: Sequence[str], reference: Sequence[str], vectors: Vectors, rule: Extreme, unknown: Literal["skip", "mean"]
) -> float | None:
    """Vector Extrema (Forgues et al. 2014), -1..1: cosine of the two texts' extreme vectors; None where it has none.

    The extreme of a dimension is the value farthest from 0 of all the text's words, or merely the `largest`. Words
    without a vector are skipped, or stand at the `mean` of all vectors.
    """
    one, other = (_extreme(tokens, vectors, rule, unknown) for tokens in (reply, reference))
    if one is None or other is None:
        return None
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths > 0 else None


def _extreme(tokens: Sequence[str], vectors: Vectors, rule: Extreme, unknown: str) -> NDArray[np.float64] | None:
    fallback = vectors.mean if unknown == "mean" else None
    found = [vector for token in tokens if (vector := vectors.known.get(token, fallback)) is not None]
    if not found:
        return None
    rows = np.array(found, dtype=float)
    largest, smallest = rows.max(axis=0), rows.min(axis=0)
    return largest if rule == "largest" else np.where(largest > -smallest, largest, smallest)


# ---- an encoder's vectors


def load_encoder(folder: str) -> Callable[[str], Any]:
    """Text -> its token vectors [tokens, size] of the last layer, of length 1, without special tokens.

    Texts are cut at 512 tokens. Raises UserError where the folder holds no encoder.
    """
    import torch
    from transformers import AutoModel

    from train.models import open_tokenizer, resolve_base

    base = resolve_base(folder)
    tokenizer = open_tokenizer(base)
    try:
        model = AutoModel.from_pretrained(base, dtype=torch.float32, trust_remote_code=False).eval()
    except (OSError, ValueError) as error:
        raise UserError(f"--bertscore {folder}: is no encoder ({str(error).splitlines()[0]})") from None
    positions = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length

    def vectors(text: str) -> Any:
        found = tokenizer(
            text,
            return_tensors="pt",
            truncation=True,
            max_length=min(positions, 512),
            return_special_tokens_mask=True,
            split_special_tokens=True,
        )
        special = found.pop("special_tokens_mask")[0].bool()
        with torch.inference_mode():
            states = model(input_ids=found["input_ids"], attention_mask=found["attention_mask"]).last_hidden_state[0]
        return torch.nn.functional.normalize(states[~special], dim=-1)

    return vectors


def greedy_f1(reply: Any, reference: Any) -> float | None:
    """BERTScore's F1 (Zhang et al. 2020) of token vectors [tokens, size], without idf weights and rescaling.

    Every token is matched to the most similar one of the other text. None where a text has no token.
    """
    if not len(reply) or not len(reference):
        return None
    similar = reply @ reference.T
    precision, recall = float(similar.max(dim=1).values.mean()), float(similar.max(dim=0).values.mean())
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
