"""Near-duplicate text: MinHash signatures and locality-sensitive hashing over character shingles.

Two texts are near duplicates when the sets of their character n-grams overlap by a Jaccard similarity of at least a
threshold. A shingle's hash says in which of SIZE bins it falls and what its value is there, and a signature holds the
smallest value of each bin (one-permutation hashing, Li, Owen and Zhang 2012). Bins that stay empty are filled by
hashing the shingles again, up to ROUNDS times in all (Dahlgaard, Knudsen and Thorup 2017); one that is empty even
then takes over the value of another bin, and of which is the same for all texts (Shrivastava 2017). The share of
equal places estimates the similarity, with a standard error of at most 0.051, 0.041 at 0.8, as SIZE hashes of every
shingle would. Texts that share one of BANDS bands of ROWS places are compared: a pair of similarity s meets with a
probability of about 1 - (1 - s^ROWS)^BANDS, which is 0.99 at 0.8 and 0.22 at 0.5.

Everything is seeded and done in numpy, many short texts at once: the libraries there are hash a shingle SIZE times,
in a Python call each.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice
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
# Characters hashed at once: bounds the memory of many texts, and is soon enough to make numpy's calls cost little.
BLOCK = 1 << 15
# Texts hashed at once.
TOGETHER = 64
# Times a shingle is hashed as long as there are empty bins.
ROUNDS = 4
LARGEST = (1 << 32) - 1
# The value of a bin into which nothing fell: more than that of any round.
EMPTY = ROUNDS << 32


def shingle_length(text: str) -> int:
    """Characters in a shingle of a normalised text: 3 where half of it or more is Chinese, else 5."""
    return CHINESE_SHINGLE if 2 * chinese_count(text) >= len(text) else SHINGLE


def _mixed(hashes: Any) -> Any:
    """splitmix64's finaliser: neighbouring n-grams must not get neighbouring hashes."""
    import numpy as np

    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


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
    hashes = _mixed(hashes)
    if len(texts) == 1:
        return hashes
    within = np.ones(count, dtype=bool)
    ends = np.cumsum([len(text) for text in texts[:-1]])
    for offset in range(1, length):
        within[ends - offset] = False
    return hashes[within]


@cache
def _lenders() -> Any:
    """For each bin the other bins in the order in which it asks them for a value, shape (SIZE, SIZE - 1)."""
    import numpy as np

    draw = np.random.default_rng(SEED)
    others = [np.delete(np.arange(SIZE), place) for place in range(SIZE)]
    return np.stack([draw.permutation(found) for found in others])


def signature(text: str) -> Any | None:
    """MinHash signature of a text, uint32 of shape (SIZE,); None for a text without a letter or digit.

    Case, width, punctuation and spacing do not count (`normalised`).
    """
    return signatures([text])[0]


def signatures(texts: Sequence[str]) -> list[Any | None]:
    """`signature` of each text; many short texts together cost a fraction of what they cost one by one."""
    plain = [normalised(text) for text in texts]
    found = iter(signatures_of_normalised([text for text in plain if text]))
    return [next(found) if text else None for text in plain]


def signatures_of_normalised(texts: Sequence[str]) -> list[Any]:
    """Signatures of texts that are `normalised` already, none of them empty."""
    found: list[Any] = [None] * len(texts)
    alike: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for place, text in enumerate(texts):
        alike[min(shingle_length(text), len(text))].append((place, text))
    for length, group in alike.items():
        for together in _batches(group):
            rows = _smallest([text for _, text in together], length)
            for (place, _), row in zip(together, rows, strict=True):
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


def _smallest(texts: Sequence[str], length: int) -> Any:
    """The smallest value in each bin of normalised texts, uint32 of shape (len(texts), SIZE); none is shorter than an
    n-gram."""
    import numpy as np

    hashes = _shingle_hashes(texts, length)
    first_bins = np.arange(len(texts)) * SIZE
    text_of = np.repeat(first_bins, [len(text) - length + 1 for text in texts])
    filled = np.full(len(texts) * SIZE, EMPTY, dtype=np.uint64)
    for number in range(ROUNDS):
        bins = ((hashes >> np.uint64(32)) * np.uint64(SIZE) >> np.uint64(32)).astype(np.intp)
        # What an earlier round put into a bin is smaller than anything of a later one.
        np.minimum.at(filled, text_of + bins, (hashes & np.uint64(LARGEST)) + np.uint64(number << 32))
        if (filled < EMPTY).all():
            break
        hashes = _mixed(hashes)
    # Bins are lent only what fell into others, not what those have borrowed.
    smallest = filled.copy()
    empty = np.flatnonzero(filled == EMPTY)
    for asked in range(SIZE - 1):
        if not len(empty):
            break
        bin_of = empty % SIZE
        smallest[empty] = filled[empty - bin_of + _lenders()[bin_of, asked]]
        empty = empty[smallest[empty] == EMPTY]
    return smallest.astype(np.uint32).reshape(len(texts), SIZE)


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
        # By hash of a band's values, whichever band it is: what meets by chance is told apart by its signature.
        self._members: dict[int, tuple[int, ...]] = {}
        self._exact: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def matches(self, found: Any) -> list[Hashable]:
        """Names of the indexed texts whose similarity to a signature is at least the threshold, oldest first."""
        import numpy as np

        raw = found.tobytes()
        exact = self._exact.get(hash(raw))
        candidates = set() if exact is None else {exact}
        for key in self._members.keys() & _band_keys(raw):
            candidates.update(self._members[key])
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
        # Nearly all bands have one member, and one tuple serves all bands of a text.
        alone = (index,)
        keys = _band_keys(raw)
        met = {key: self._members[key] for key in self._members.keys() & keys}
        self._members.update(dict.fromkeys(keys, alone))
        for key, members in met.items():
            self._members[key] = members + alone if len(members) < BAND_LIMIT else members


@lru_cache(maxsize=1)  # a text is looked for, then added
def _band_keys(raw: bytes) -> set[int]:
    # hash() of bytes differs from run to run, but only equality is ever asked of it.
    return set(map(hash, OF_BANDS.unpack(raw)))


def near_pairs(texts: Iterable[tuple[Hashable, str]], threshold: float = THRESHOLD) -> Iterable[tuple[Hashable, ...]]:
    """Yields (earlier name, later name) for every two texts found to be near duplicates, exact copies included.

    Copies of one text are paired with the first of them only. Texts without a letter or digit have no duplicates.
    """
    index = NearIndex(threshold)
    read = iter(texts)
    while batch := list(islice(read, TOGETHER)):
        for (name, _), found in zip(batch, signatures([text for _, text in batch]), strict=True):
            if found is None:
                continue
            for other in index.matches(found):
                yield other, name
            index.add(name, found)
