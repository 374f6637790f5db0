"""Near-duplicate text: MinHash signatures and locality-sensitive hashing over character shingles.

Two texts are near duplicates when the sets of their character n-grams overlap by a Jaccard similarity of at least a
threshold. A signature holds, for each of SIZE hash functions, the smallest hash of any shingle; the share of equal
places is an unbiased estimate of the similarity (Broder 1997) with a standard error of at most 0.051, 0.041 at 0.8.
Texts that share one of BANDS bands of ROWS places are compared: a pair of similarity s meets with probability
1 - (1 - s^ROWS)^BANDS, which is 0.99 at 0.8 and 0.22 at 0.5.

Everything is seeded and done in numpy: the costly part is hashing the shingles, which is one vectorised pass over a
text here and a Python call a shingle in the libraries there are.
"""

from collections.abc import Hashable, Iterable
from functools import cache
from typing import Any

from data_prep.errors import UserError
from data_prep.normalising import CHINESE, normalised

BANDS, ROWS = 16, 6
SIZE = BANDS * ROWS
SEED = 20240622
THRESHOLD = 0.8
# Characters in a shingle. A Chinese character says about as much as half a word, so fewer of them make one.
SHINGLE, CHINESE_SHINGLE = 5, 3
# Texts of one band beyond these are not compared: keeps a pile of look-alikes from making the search quadratic.
BAND_LIMIT = 100
# Shingles hashed at once: bounds the memory of one very long text.
BLOCK = 4096


def shingle_length(text: str) -> int:
    """Characters in a shingle of a normalised text: 3 where half of it or more is Chinese, else 5."""
    return CHINESE_SHINGLE if 2 * len(CHINESE.findall(text)) >= len(text) else SHINGLE


def _shingle_hashes(text: str) -> Any:
    """64-bit hashes of the n-grams of a normalised text, shape (number of n-grams,); of the whole text if shorter."""
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    length = min(shingle_length(text), len(codes))
    count = len(codes) - length + 1
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(0x100000001B3) + codes[offset : offset + count]
    # splitmix64's finaliser: neighbouring n-grams must not get neighbouring hashes.
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


@cache
def _functions() -> tuple[Any, Any]:
    """Factors (odd) and summands of the SIZE hash functions, each of shape (SIZE, 1)."""
    import numpy as np

    drawn = np.random.default_rng(SEED).integers(0, 2**64, size=(2, SIZE, 1), dtype=np.uint64)
    return drawn[0] | np.uint64(1), drawn[1]


def signature(text: str) -> Any | None:
    """MinHash signature of a text, uint32 of shape (SIZE,); None for a text without a letter or digit.

    Case, width, punctuation and spacing do not count (`normalised`).
    """
    import numpy as np

    plain = normalised(text)
    if not plain:
        return None
    hashes = _shingle_hashes(plain)
    factors, summands = _functions()
    smallest = np.full(SIZE, np.iinfo(np.uint64).max, dtype=np.uint64)
    for start in range(0, len(hashes), BLOCK):
        smallest = np.minimum(smallest, (hashes[start : start + BLOCK] * factors + summands).min(axis=1))
    return (smallest >> np.uint64(32)).astype(np.uint32)


def similarity(first: Any, second: Any) -> float:
    """Estimated Jaccard similarity of two signatures, 0 to 1."""
    return float((first == second).mean())


class NearIndex:
    """Texts that can be asked for near duplicates; about 3 kB a distinct text, whatever its length.

    Texts that are equal once normalised share one entry, so exact copies cost a dictionary look-up.
    """

    def __init__(self, threshold: float = THRESHOLD) -> None:
        """Raises UserError unless 0.5 <= threshold <= 1: below that the bands miss most pairs."""
        if not 0.5 <= threshold <= 1:
            raise UserError(f"similarity threshold is {threshold:g}; expected a number from 0.5 to 1")
        self.threshold = threshold
        self._names: list[Hashable] = []
        self._signatures: list[Any] = []
        self._bands: list[dict[int, list[int]]] = [{} for _ in range(BANDS)]
        self._exact: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def matches(self, found: Any) -> list[Hashable]:
        """Names of the indexed texts whose similarity to a signature is at least the threshold, oldest first."""
        import numpy as np

        exact = self._exact.get(hash(found.tobytes()))
        candidates = set() if exact is None else {exact}
        for band, key in zip(self._bands, _band_keys(found), strict=True):
            candidates.update(band.get(key, ()))
        ordered = sorted(candidates)
        if not ordered:
            return []
        equal = (np.stack([self._signatures[index] for index in ordered]) == found).mean(axis=1)
        return [self._names[index] for index, share in zip(ordered, equal, strict=True) if share >= self.threshold]

    def add(self, name: Hashable, found: Any) -> None:
        """Indexes a signature under a name; a copy of one that is there already is left out."""
        index = len(self._names)
        if self._exact.setdefault(hash(found.tobytes()), index) != index:
            return
        self._names.append(name)
        self._signatures.append(found)
        for band, key in zip(self._bands, _band_keys(found), strict=True):
            members = band.setdefault(key, [])
            if len(members) < BAND_LIMIT:
                members.append(index)


def _band_keys(found: Any) -> list[int]:
    raw = found.tobytes()
    width = len(raw) // BANDS
    # hash() of bytes differs from run to run, but only equality is ever asked of it.
    return [hash(raw[start : start + width]) for start in range(0, len(raw), width)]


def near_pairs(texts: Iterable[tuple[Hashable, str]], threshold: float = THRESHOLD) -> Iterable[tuple[Hashable, ...]]:
    """Yields (earlier name, later name) for every two texts found to be near duplicates, exact copies included.

    Copies of one text are paired with the first of them only. Texts without a letter or digit have no duplicates.
    """
    index = NearIndex(threshold)
    for name, text in texts:
        found = signature(text)
        if found is None:
            continue
        for other in index.matches(found):
            yield other, name
        index.add(name, found)
