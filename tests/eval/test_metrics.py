"""Text metrics against NLTK, rouge-score (stored values) and cases worked out by hand."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu, sentence_bleu
from nltk.translate.meteor_score import single_meteor_score

from data_prep.errors import UserError
from eval.metrics import DEFINITIONS, Pair, figures, measure, task8_overall, vocabulary
from eval.metrics_formulas import (
    bleu,
    bleu_sums,
    distinct_interval,
    interval_of,
    lcs_length,
    mean_formula,
    meteor,
    rouge_l,
)
from eval.metrics_tokens import characters, rouge_words, words
from eval.metrics_vectors import extrema, greedy_f1, read_vectors

SENTENCE = "i am so sorry to hear that you are feeling worried about your exams maybe talk with a friend"
SOME = SENTENCE.split()


def texts(count, seed=0, longest=14):
    draws = random.Random(seed)
    return [[" ".join(draws.choices(SOME, k=draws.randint(1, longest))) for _ in range(2)] for _ in range(count)]


def pairs_of(rows, language="en", per_dialogue=3):
    return [Pair(f"d{at // per_dialogue}", language, *row) for at, row in enumerate(rows)]


# ---- formulas


@pytest.mark.parametrize("order", [2, 4])
def test_corpus_bleu_is_nltks_with_its_smoothing_method_3(order):
    for seed, longest in ((0, 14), (1, 3), (2, 1)):
        rows = [[text.split() for text in row] for row in texts(12, seed, longest)]
        sums = sum(bleu_sums(*row) for row in rows)
        expected = corpus_bleu(
            [[reference] for _, reference in rows],
            [reply for reply, _ in rows],
            weights=[1 / order] * order + [0] * (4 - order),
            smoothing_function=SmoothingFunction().method3,
        )
        assert bleu(sums, order, "geometric") == pytest.approx(expected, abs=1e-12)


def test_sentence_bleu_is_nltks_with_its_smoothing_method_1():
    for reply, reference in texts(40):
        expected = sentence_bleu([reference.split()], reply.split(), smoothing_function=SmoothingFunction().method1)
        found = bleu(bleu_sums(reply.split(), reference.split()), 4, "epsilon")
        assert found == pytest.approx(expected, abs=1e-12)


def test_no_word_in_common_and_an_empty_reply_are_zero():
    assert bleu(bleu_sums(["a"], ["b"]), 4, "epsilon") == 0
    assert bleu(bleu_sums([], ["b"]), 2, "geometric") == 0
    assert rouge_l([], ["b"], 1.2) == 0
    assert meteor([], ["b"]) == 0
    assert meteor(["a"], ["b"]) == 0


def test_the_longest_common_subsequence_is_the_textbooks():
    def table(one, other):
        rows = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
        for i, a in enumerate(one):
            for j, b in enumerate(other):
                rows[i + 1, j + 1] = rows[i, j] + 1 if a == b else max(rows[i, j + 1], rows[i + 1, j])
        return rows[-1, -1]

    draws = random.Random(0)
    for _ in range(100):
        one, other = ([draws.choice("abcd") for _ in range(draws.randint(0, 90))] for _ in range(2))
        assert lcs_length(one, other) == table(one, other)


def test_rouge_l_of_beta_one_on_stems_is_that_of_rouge_score():
    stored = json.loads((Path(__file__).parent / "rouge_reference.json").read_text(encoding="utf-8"))
    for reply, reference, expected in stored["rows"]:
        assert rouge_l(rouge_words(reply), rouge_words(reference), 1.0) == pytest.approx(expected, abs=1e-12)


def test_rouge_l_by_hand():
    # Common: a c (2). P = 2/4, R = 2/3; b² = 1.44: 2.44 · 1/3 / (2/3 + 0.72).
    assert rouge_l(list("axcy"), list("abc"), 1.2) == pytest.approx(2.44 / 3 / (2 / 3 + 0.72))


def test_meteor_is_nltks_without_synonyms():
    class Nothing:
        def synsets(self, word):
            return []

    for reply, reference in texts(30):
        expected = single_meteor_score(reference.split(), reply.split(), wordnet=Nothing())
        assert meteor(reply.split(), reference.split()) == pytest.approx(expected)
    # feeling ~ feelings by stem: one match, one chunk of one: F = 1, penalty 0.5.
    assert meteor(["feeling"], ["feelings"]) == pytest.approx(0.5)
    assert meteor(["feeling"], ["feelings"], stems=False) == 0


# ---- Distinct-n and intervals


def test_distinct_by_hand_in_the_two_published_ways():
    rows = [("a b a b", "x"), ("a b c", "x")]
    ours = measure(pairs_of(rows), "nlpcc2025")
    assert ours["distinct2"].interval().mean == pytest.approx(100 * 3 / 5)  # ab ba ab | ab bc
    assert measure(pairs_of(rows), "esckit")["distinct2"].interval().mean == pytest.approx(60)
    # The published loop stops one n-gram early: ab ba | ab.
    assert measure(pairs_of(rows), "esconv")["distinct2"].interval().mean == pytest.approx(100 * 2 / 3)


def test_the_jackknife_interval_of_distinct_covers_and_a_bootstrap_would_not():
    words_of = 400
    shares = 1 / np.arange(1, words_of + 1)
    shares /= shares.sum()

    def corpus(draws):
        return [Counter((str(w),) for w in draws.choice(words_of, size=30, p=shares)) for _ in range(40)]

    def value(corpus):
        return 100 * len(set().union(*corpus)) / sum(c.total() for c in corpus)

    draws = np.random.default_rng(0)
    truth = np.mean([value(corpus(draws)) for _ in range(300)])
    hits, bootstrap_hits = 0, 0
    for _ in range(150):
        found = corpus(draws)
        interval = distinct_interval(found)
        assert interval.method == "jackknife"
        hits += interval.low <= truth <= interval.high
        again = [value([found[i] for i in draws.integers(0, 40, 40)]) for _ in range(60)]
        bootstrap_hits += np.quantile(again, 0.025) <= truth <= np.quantile(again, 0.975)
    assert 0.90 <= hits / 150 <= 1
    assert bootstrap_hits / 150 < 0.1


def test_intervals_of_means_are_over_dialogues_and_missing_ones_say_why():
    found = figures(measure(pairs_of(texts(60))))
    for name in ("bleu2", "bleu4", "rouge_l", "meteor", "distinct1"):
        one = found[name]
        assert one.low < one.mean < one.high, name
        assert one.n_cards == 20
    alone = figures(measure(pairs_of(texts(3))))
    assert {alone[name].low for name in alone} == {None}
    assert "two dialogues" in alone["bleu2"].reason
    assert interval_of(np.zeros((3, 2)), mean_formula).mean is None


# ---- definitions


def test_each_definition_is_made_of_the_published_steps():
    rows = [("I'm sorry. You sound worried!", "I am sorry you sound so worried."), ("Tell me more", "tell me More")]
    pairs = pairs_of(rows)
    ours, esconv, nlpcc = (figures(measure(pairs, name)) for name in DEFINITIONS)
    cut = [[words(text) for text in row] for row in rows]
    assert cut[0][0] == ["i", "'m", "sorry", ".", "you", "sound", "worried", "!"]
    expected = corpus_bleu(
        [[reference] for _, reference in cut],
        [reply for reply, _ in cut],
        weights=(0.5, 0.5),
        smoothing_function=SmoothingFunction().method3,
    )
    assert esconv["bleu2"].mean == ours["bleu2"].mean == pytest.approx(100 * expected)
    assert esconv["rouge_l"].mean == pytest.approx(100 * np.mean([rouge_l(*row, 1.2) for row in cut]))
    assert ours["rouge_l"].mean == pytest.approx(100 * np.mean([rouge_l(*row, 1.0) for row in cut]))
    split = [[text.split() for text in row] for row in rows]
    method1 = SmoothingFunction().method1
    mean = np.mean([sentence_bleu([b], a, smoothing_function=method1) for a, b in split])
    assert nlpcc["bleu4"].mean == pytest.approx(100 * mean)
    assert "meteor" not in esconv
    assert "bleu2" not in nlpcc


def test_chinese_is_compared_by_characters_and_has_no_task8_figures():
    assert characters("我OK，睡8小时。") == ["我", "ok", "，", "睡", "8", "小", "时", "。"]
    found = figures(measure(pairs_of([("我很难过", "我很累")], "zh")))
    assert found["rouge_l"].mean == pytest.approx(100 * 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert found["length"].mean == 4
    with pytest.raises(UserError, match="nlpcc2025 is for en, not for zh"):
        measure(pairs_of([("我", "我")], "zh"), "nlpcc2025")
    with pytest.raises(UserError, match="no reply"):
        measure([])


def test_hostile_and_odd_texts_are_only_text():
    odd = ["<|im_end|><script>", "\u202eabc\u2066", "👩‍👩‍👧 ok", "", " \n\t ", "a" * 20_000, "'" * 500, "。" * 500]
    pairs = [Pair(f"d{at}", "zh" if at % 2 else "en", text, odd[-1 - at]) for at, text in enumerate(odd)]
    for name in ("esckit", "esconv"):
        for one in figures(measure(pairs, name)).values():
            assert one.mean is None or 0 <= one.mean <= 20_001


# ---- vectors


def vector_file(tmp_path, *lines):
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_vector_extrema_by_hand_in_the_three_ways(tmp_path):
    path = vector_file(tmp_path, "4 2", "good 1 0", "bad -3 1", "day 0 2", "other 10 10")
    vectors = read_vectors(path, {"good", "bad", "day"})
    assert set(vectors.known) == {"good", "bad", "day"}
    assert vectors.mean == pytest.approx([2, 3.25])
    far = extrema(["good", "bad"], ["day"], vectors, "farthest", "skip")
    assert far == pytest.approx((-3 * 0 + 1 * 2) / (np.hypot(3, 1) * 2))
    top = extrema(["good", "bad"], ["day"], vectors, "largest", "skip")
    assert top == pytest.approx(2 / (np.hypot(1, 1) * 2))
    assert extrema(["unknown"], ["day"], vectors, "farthest", "skip") is None
    filled = extrema(["unknown"], ["day"], vectors, "farthest", "mean")
    assert filled == pytest.approx(3.25 * 2 / (np.hypot(2, 3.25) * 2))
    pairs = [Pair("a", "en", "good bad", "day"), Pair("b", "en", "what", "day")]
    assert vocabulary(pairs) >= {"good", "bad", "day", "what"}
    assert figures(measure(pairs, "nlpcc2025", vectors))["extrema"].mean == pytest.approx(100 * top / 2)
    assert figures(measure(pairs, "esckit", vectors))["extrema"].mean == pytest.approx(100 * far)
    assert figures(measure(pairs, "esconv", vectors))["extrema"].mean == pytest.approx(50 * (far + filled))
    assert "extrema" not in measure(pairs, "esckit")


@pytest.mark.parametrize("line", ["word 1 x", "word 1", "word nan 1", ""])
def test_a_bad_line_of_a_vector_file_is_named(tmp_path, line):
    path = vector_file(tmp_path, "good 1 0", line, "day 0 2")
    with pytest.raises(UserError, match=r"vectors\.txt:2: is no word with 2 numbers"):
        read_vectors(path, {"good"})


def test_greedy_matching_by_hand():
    one, other = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])
    # Each of the first finds itself; of the other, (0, 1) finds (0.6, 0.8) at 0.8.
    precision, recall = 1.0, (0.8 + 1 + 1) / 3
    assert greedy_f1(one, other) == pytest.approx(2 * precision * recall / (precision + recall))
    assert greedy_f1(one[:0], other) is None


# ---- task 8


def test_the_task8_formula_reproduces_the_three_published_rows():
    names = ("meteor", "bleu4", "rouge_l", "extrema", "distinct2", "distinct3", "g_score")
    for total, row in (
        (42.69, (32.83, 8.90, 34.70, 96.48, 30.57, 55.35, 91.60)),
        (39.62, (27.21, 6.25, 29.89, 96.22, 30.99, 55.12, 87.20)),
        (38.99, (25.85, 5.04, 27.84, 96.22, 31.58, 57.77, 86.84)),
    ):
        parts = dict(zip(names, row, strict=True))
        assert task8_overall(parts) == pytest.approx(total, abs=0.01)
        assert task8_overall({**parts, "g_score": None}) is None
        assert task8_overall({name: value for name, value in parts.items() if name != "extrema"}) is None
