"""How the search for near duplicates grows: N and 10 N made texts in two languages, timed side by side.

    python benchmarks/near_duplicates.py [N]

A third of the texts are reworded copies of earlier ones. Prints time, memory, recall and false pairs; ten times the
texts may take at most fifteen times the time.
"""

import random
import resource
import sys
import time

from data_prep.duplicates import near_pairs

LETTERS = "etaoinshrdlucmfwypvbgk"
CHARACTERS = [chr(code) for code in range(0x4E00, 0x4E00 + 2000)]
GREATEST_RATIO = 15


def made_texts(count: int, seed: int) -> tuple[list[str], set[tuple[int, int]]]:
    """Texts of 60 made words (odd places) or 120 Chinese characters (even), and (original, copy) pairs."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 9))) for _ in range(5000)]
    texts: list[list[str]] = []
    copies: set[tuple[int, int]] = set()
    for number in range(count):
        if number % 3 == 2:
            original = number - 2 if number < 6 or draw.random() < 0.5 else number - 5
            text = list(texts[original])
            # One unit in sixty or more exchanged: 0.83 to 0.95 in character n-grams.
            for _ in range(len(text) // 60):
                text[draw.randrange(len(text))] = draw.choice(words if number % 2 else CHARACTERS)
            copies.add((original, number))
        elif number % 2:
            text = draw.choices(words, k=60)
        else:
            text = draw.choices(CHARACTERS, k=120)
        texts.append(text)
    return [("" if ord(text[0][0]) > 0x3000 else " ").join(text) for text in texts], copies


def measure(count: int) -> float:
    """Seconds for one search among `count` texts; prints the row."""
    texts, copies = made_texts(count, seed=1)
    start = time.perf_counter()
    found = set(near_pairs(enumerate(texts)))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    recall = len(found & copies) / len(copies)
    # Two copies of one text are near duplicates as well, and not counted as false.
    of = {other: one for one, other in copies}
    false = sum(of.get(one, one) != of.get(other, other) for one, other in found)
    print(f"{count:>8,} texts: {seconds:7.2f} s, {peak:6.0f} MB peak, recall {recall:.3f}, {false} false pairs")
    return seconds


if __name__ == "__main__":
    few = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    measure(100)
    first = measure(few)
    ratio = measure(10 * few) / first
    print(f"10 times the texts take {ratio:.1f} times the time (at most {GREATEST_RATIO})")
    sys.exit(ratio > GREATEST_RATIO)
