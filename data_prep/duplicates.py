"""Near-duplicate text: MinHash signatures and locality-sensitive hashing over character shingles.

Two texts are near duplicates when the sets of their character n-grams overlap by a Jaccard similarity of at least a
threshold. A signature holds, for each of SIZE hash functions, the smallest hash of any shingle; the share of equal
places is an unbiased estimate of the similarity (Broder 1997) with a standard error of at most 0.051, 0.041 at 0.8.
Texts that share one of BANDS bands of ROWS places are compared: a pair of similarity s meets with probability
1 - (1 - s^ROWS)^BANDS, which is 0.99 at 0.8 and 0.22 at 0.5.

Everything is seeded and done in numpy: the costly part is hashing the shingles, which is one vectorised pass over a
text here and a Python call a shingle in the libraries there are.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from struct import Struct
from typing import Any

from data_prep.errors import UserError
from data_prep.normalising import chinese_count, normalised

BANDS, ROWS = 16, 6
SIZE = BANDS * ROWS
SEED = 20240622
THRESHOLD = 0.8
OF_BANDS = Struct(f"{4 * ROWS}s" * BANDS)
# Characters in a shingle. A Chinese character says about as much as half a word, so fewer of them make one.
SHINGLE, CHINESE_SHINGLE = 5, 3
# Texts of one band beyond these are not compared: keeps a pile of look-alikes from making the search quadratic.
BAND_LIMIT = 100
# Shingles hashed at once: what stays in the processor's cache, and bounds the memory of one very long text.
BLOCK = 512


def shingle_length(text: str) -> int:
    """Characters in a shingle of a normalised text: 3 where half of it or more is Chinese, else 5."""
    return CHINESE_SHINGLE if 2 * chinese_count(text) >= len(text) else SHINGLE


def _shingle_hashes(texts: Sequence[str], length: int) -> Any:
    """64-bit hashes of the n-grams of normalised texts, one text after the other, shape (number of n-grams,).

    No text is shorter than an n-gram; none runs from one text into the next.
    """
    import numpy as np

    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    count = len(codes) - length + 1
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(0x100000001B3) + codes[offset : offset + count]
    # splitmix64's finaliser: neighbouring n-grams must not get neighbouring hashes.
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    if len(texts) == 1:
        return hashes
    within = np.ones(count, dtype=bool)
    ends = np.cumsum([len(text) for text in texts[:-1]])
    for offset in range(1, length):
        within[ends - offset] = False
    return hashes[within]


@cache
def _functions() -> tuple[Any, Any]:
    """Factors (odd) and summands of the SIZE hash functions, each of shape (SIZE,)."""
    import numpy as np

    drawn = np.random.default_rng(SEED).integers(0, 2**64, size=(2, SIZE), dtype=np.uint64)
    return drawn[0] | np.uint64(1), drawn[1]


def signature(text: str) -> Any | None:
    """MinHash signature of a text, uint32 of shape (SIZE,); None for a text without a letter or digit.

    Case, width, punctuation and spacing do not count (`normalised`).
    """
    return signatures([text])[0]


def signatures(texts: Sequence[str]) -> list[Any | None]:
    """`signature` of each text; many short texts together cost a fraction of what they cost one by one."""
    import numpy as np

    found: list[Any | None] = [None] * len(texts)
    alike: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for place, text in enumerate(texts):
        plain = normalised(text)
        if plain:
            alike[min(shingle_length(plain), len(plain))].append((place, plain))
    longest = max((min(BLOCK, sum(len(text) for _, text in group)) for group in alike.values()), default=0)
    space = np.empty((longest, SIZE), dtype=np.uint64)
    for length, group in alike.items():
        for together in _batches(group):
            hashes = _shingle_hashes([text for _, text in together], length)
            if len(together) == 1:
                rows = [_smallest(hashes[start : start + BLOCK], [0], space) for start in range(0, len(hashes), BLOCK)]
                smallest = np.min(rows, axis=0)
            else:
                starts = np.cumsum([0, *(len(text) - length + 1 for _, text in together[:-1])])
                smallest = _smallest(hashes, starts, space)
            upper = (smallest >> np.uint64(32)).astype(np.uint32)
            for (place, _), row in zip(together, upper, strict=True):
                # A copy: a view would keep the whole batch in memory.
                found[place] = row.copy()
    return found


def _batches(texts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """The texts in batches of at most BLOCK characters; a longer text is a batch of its own."""
    batch: list[tuple[int, str]] = []
    size = 0
    for place, text in texts:
        if batch and size + len(text) > BLOCK:
            yield batch
            batch, size = [], 0
        batch.append((place, text))
        size += len(text)
    if batch:
        yield batch


def _smallest(hashes: Any, starts: Any, space: Any) -> Any:
    """The smallest value of each hash function in each stretch of shingle hashes, shape (len(starts), SIZE).

    `space`, uint64 of shape (at least len(hashes), SIZE), is overwritten: new memory for every batch costs as much as
    the hashing.
    """
    import numpy as np

    factors, summands = _functions()
    values = np.multiply(hashes[:, None], factors, out=space[: len(hashes)])
    values += summands
    return np.minimum.reduceat(values, starts, axis=0)


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
        self._bands: list[dict[int, tuple[int, ...]]] = [{} for _ in range(BANDS)]
        self._exact: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def matches(self, found: Any) -> list[Hashable]:
        """Names of the indexed texts whose similarity to a signature is at least the threshold, oldest first."""
        import numpy as np

        raw = found.tobytes()
        exact = self._exact.get(hash(raw))
        candidates = set() if exact is None else {exact}
        for band, key in zip(self._bands, _band_keys(raw), strict=True):
            if key in band:
                candidates.update(band[key])
        ordered = sorted(candidates)
        if not ordered:
            return []
        equal = (np.stack([self._signatures[index] for index in ordered]) == found).mean(axis=1)
        return [self._names[index] for index, share in zip(ordered, equal, strict=True) if share >= self.threshold]

    def add(self, name: Hashable, found: Any) -> None:
        """Indexes a signature under a name; a copy of one that is there already is left out."""
        index = len(self._names)
        raw = found.tobytes()
        if self._exact.setdefault(hash(raw), index) != index:
            return
        self._names.append(name)
        self._signatures.append(found)
        alone = (index,)
        for band, key in zip(self._bands, _band_keys(raw), strict=True):
            # Nearly all bands have one member, and one tuple serves all bands of a text.
            members = band.setdefault(key, alone)
            if members is not alone and len(members) < BAND_LIMIT:
                band[key] = members + alone


@lru_cache(maxsize=1)  # a text is looked for, then added
def _band_keys(raw: bytes) -> list[int]:
    # hash() of bytes differs from run to run, but only equality is ever asked of it.
    return list(map(hash, OF_BANDS.unpack(raw)))


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
