"""Checks of a judge on judges that are made to be fair, or to be bought by length, lists and order."""

import numpy as np
import pytest
from statsmodels.api import OLS, add_constant

from data_prep.judge_prompt import OwnPrompt
from data_prep.records import Dialogue, RoleCard, Turn
from data_prep.rubric import Rubric, load_rubric
from eval.judge import scorer_label
from eval.judge_checks import Material, comparisons, length_slope, over_pairs, supporter_words
from eval.judge_input import LINES, JudgmentStore, as_transcript, open_store
from eval.judge_probe import probe
from eval.judge_variants import VARIANTS, listed, padded, repeated_advice, sentences
from eval.run_records import Judgment

RUBRIC = Rubric.model_validate(
    load_rubric("esc_eval").model_dump() | {"name": "one", "dimensions": [load_rubric("esc_eval").dimensions[2]]}
)
NAME = RUBRIC.names()[0]
ADVICE = "You could take a short walk."


def talk(number, words=6, language="en", supporter=None, extra=""):
    chinese = language == "zh"
    says = "我在听你说。你可以出去走走。" * 2 if chinese else f"{'I hear you. ' * (words // 3)}{ADVICE}{extra}"
    turns = [("seeker", "我睡不好" if chinese else "I cannot sleep"), ("supporter", says)]
    turns += [
        ("seeker", "是的" if chinese else "yes"),
        ("supporter", "好的。谢谢。" if chinese else "Tell me more. Please."),
    ]
    return Dialogue(
        id=f"{language}{number}{supporter or ''}",
        language=language,
        source="made",
        turns=tuple(Turn(speaker=side, text=text) for side, text in turns),
        card=RoleCard(id=f"card{number}", language=language, source="made"),
        meta={"supporter": supporter} if supporter else {},
    )


class MadeJudge:
    """`level(transcript)` is its expected level. Counts what it is asked."""

    def __init__(self, level, **identity):
        self.rubric, self.level, self.asked = RUBRIC, level, []
        self._identity = {"name": "made", **identity}

    def identity(self):
        return self._identity

    def shortened(self, transcripts):
        return 0

    def judge(self, transcripts, batch_size, have=()):
        self.asked += [one.key for one in transcripts]
        for one in transcripts:
            value = self.level(one)
            judged = {"reason": "made to be missing"} if value is None else {"expected": value, "level": round(value)}
            yield [Judgment(dialogue_key=one.key, scorer=scorer_label(self), rubric="one", dimension=NAME, **judged)]


def words_of(transcript):
    return supporter_words(transcript.to_dialogue())


def quality(transcript):
    """0..3, by the card alone."""
    return int(transcript.card.id.removeprefix("card")) % 4


DIALOGUES = [talk(n, words=3 * (1 + n * 7 % 11)) for n in range(40)]
HUMAN = [{NAME: float(n % 4)} for n in range(40)]


def material(dialogues=DIALOGUES, human=HUMAN):
    return Material(dialogues, np.arange(len(dialogues)), human, [NAME])


def checks(judge, dialogues=DIALOGUES, human=HUMAN):
    store = JudgmentStore(None)
    judged = store.judge(judge, dialogues, 4)
    return {one.name: one for one in probe(judge, store, judged, material(dialogues, human), 4)}


# ---- variants


def test_variants_change_only_what_they_say():
    dialogue = DIALOGUES[0]
    for name, make in VARIANTS.items():
        for one in (dialogue, talk(1, language="zh")):
            variant = make(one)
            assert variant.id == f"{one.id}~{name}"
            assert [turn for turn in variant.turns if turn.speaker == "seeker"] == [
                turn for turn in one.turns if turn.speaker == "seeker"
            ]
            assert variant.turns != one.turns
    assert padded(dialogue).turns[1].text.startswith(dialogue.turns[1].text + " That is what I wanted")
    assert listed(dialogue).turns[3].text == "1. Tell me more.\n2. Please."
    assert repeated_advice(dialogue).turns[1] == dialogue.turns[1]  # said there for the first time
    assert repeated_advice(dialogue).turns[3].text == f"Tell me more. Please. To say it once more: {ADVICE}"
    assert repeated_advice(talk(1, language="zh")).turns[3].text == "好的。谢谢。再说一遍：你可以出去走走。"


def test_a_variant_that_would_change_nothing_is_none():
    plain = Dialogue(id="a", language="en", source="made", turns=(Turn(speaker="supporter", text="I see."),))
    assert listed(plain) is None
    assert repeated_advice(plain) is None
    assert padded(plain.model_copy(update={"turns": (Turn(speaker="seeker", text="hi. ho."),)})) is None


@pytest.mark.parametrize("text", ["", "...", "<script>x</script>", "。。。", "a" * 100_000, "a.b " * 30_000, "\u202e."])
def test_sentences_of_any_text_lose_no_letter(text):
    letters = [c for c in text if c.isalnum()]
    assert [c for c in "".join(sentences(text)) if c.isalnum()] == letters


# ---- judges that are fair or not


def test_a_judge_of_quality_alone_passes_everything():
    found = checks(MadeJudge(quality))
    assert found["retest"].rows[0].verdict == "the same judgments"
    for name in VARIANTS:
        assert found[name].rows[0].figures["shift"].mean == 0
        assert found[name].rows[0].verdict.startswith("not told from no change")
    length = found["length"].rows[0]
    assert length.figures["held"].mean == pytest.approx(0, abs=1e-9)
    assert length.figures["matched"].mean == 0
    assert "no length slope" in length.verdict
    assert "esckit compare" in found["order_flips"].reason
    assert "in no words" in found["wording"].reason
    assert "fewer than two supporters" in found["comparison"].reason
    assert set(found) == {
        *("retest", "order_flips", "length", *VARIANTS, "rubric_order", "wording", "language", "comparison")
    }


def test_a_judge_that_pays_for_length_is_told():
    found = checks(MadeJudge(lambda one: quality(one) * 0.5 + 0.3 * np.log2(words_of(one))))
    length = found["length"].rows[0]
    assert length.figures["held"].mean == pytest.approx(0.3, abs=1e-6)
    assert length.figures["matched"].low > 0
    assert "longer replies score higher" in length.verdict
    assert found["padded"].rows[0].figures["shift"].low > 0
    assert "gives more for it" in found["padded"].rows[0].verdict
    assert found["padded"].rows[0].figures["rises"].mean == 1


def test_a_judge_that_pays_for_lists_is_told():
    found = checks(MadeJudge(lambda one: quality(one) + ("1. " in one.turns[1].text)))
    assert "gives more for it" in found["listed"].rows[0].verdict
    assert found["listed"].rows[0].figures["shift"].mean == pytest.approx(1)
    spread = np.std([n % 4 for n in range(40)], ddof=1)
    assert found["listed"].rows[0].spread == pytest.approx(spread)
    assert f"{1 / spread:.2f} of its own spread" in found["listed"].rows[0].verdict
    assert found["padded"].rows[0].figures["shift"].mean == 0


def test_a_judge_that_answers_otherwise_each_time_is_told():
    draws = np.random.default_rng(0)
    found = checks(MadeJudge(lambda one: float(np.clip(quality(one) + draws.normal(), 0, 4))))
    row = found["retest"].rows[0]
    assert row.figures["other_level"].mean > 0.3
    assert "another level in" in row.verdict
    assert "no shift" in row.verdict


def test_missing_judgments_are_in_no_figure():
    found = checks(MadeJudge(lambda one: None if quality(one) == 3 else quality(one)))
    assert found["retest"].rows[0].dialogues == 30
    assert found["padded"].rows[0].dialogues == 30
    silent = MadeJudge(lambda one: None)
    nothing = checks(silent)
    assert set(nothing) == set(found)
    assert all("no level at all" in one.reason for one in nothing.values())
    assert len(silent.asked) == len(DIALOGUES)  # and nothing was asked in vain
    unrated = checks(MadeJudge(quality), human=[{}] * len(DIALOGUES))
    assert "cannot be told" in unrated["length"].rows[0].verdict
    assert unrated["length"].rows[0].figures["matched"].reason == "there are no such pairs"
    later = checks(MadeJudge(lambda one: None if "~" in one.key else quality(one)))
    assert "cannot be told" in later["padded"].rows[0].verdict


# ---- length


def test_the_slope_with_rating_held_is_that_of_least_squares():
    draws = np.random.default_rng(1)
    judge = MadeJudge(
        lambda one: float(np.clip(quality(one) + 0.2 * np.log2(words_of(one)) + draws.normal() * 0.3, 0, 4))
    )
    judged = JudgmentStore(None).judge(judge, DIALOGUES, 4)
    (row,) = length_slope(judged, material()).rows
    said = np.array([one[NAME].expected for one in judged])
    held = np.stack([[one[NAME] for one in HUMAN], material().log_lengths()], axis=1)
    assert row.figures["held"].mean == pytest.approx(OLS(said, add_constant(held)).fit().params[2])
    assert row.figures["judge"].mean == pytest.approx(OLS(said, add_constant(held[:, 1])).fit().params[1])
    assert row.figures["people"].mean == pytest.approx(OLS(held[:, 0], add_constant(held[:, 1])).fit().params[1])


def test_an_interval_over_pairs_has_the_error_rate_it_states():
    """Every group gives its pairs a common part: pairs are far from independent, groups are."""
    draws = np.random.default_rng(0)
    one, other = (grid.ravel() for grid in np.triu_indices(16, 1))
    hits = 0
    for _ in range(120):
        part = draws.normal(size=16)
        interval = over_pairs(part[one] + part[other], one, other, 0)
        hits += interval.low <= 0 <= interval.high
    assert 0.86 <= hits / 120 <= 0.99
    inside = over_pairs(np.array([1.0, 3.0]), np.array([0, 1]), np.array([0, 1]), 0)
    assert inside.mean == 2
    assert over_pairs(np.zeros(0), np.zeros(0, int), np.zeros(0, int), 0).reason == "there are no such pairs"


def test_supporters_are_compared_plain_and_at_like_length():
    """One supporter is longer, half of the time; the judge pays for length alone, people see no difference."""
    pairs = [(n, 6, 6 if n % 2 else 30) for n in range(40)]
    dialogues = [talk(n, short, supporter="short") for n, short, _ in pairs]
    dialogues += [talk(n, other, supporter="wordy") for n, _, other in pairs]
    human = [{NAME: 2.0} for _ in dialogues]
    judge = MadeJudge(lambda one: min(4.0, 0.5 * np.log2(words_of(one))))
    group = np.array([int(one.card.id[4:]) for one in dialogues])
    given = Material(dialogues, group, human, [NAME])
    (row,) = comparisons(JudgmentStore(None).judge(judge, dialogues, 4), given).rows
    assert row.dimension == f"{NAME}: short - wordy"
    assert row.figures["judge_plain"].high < 0
    assert row.figures["judge_matched"].mean == pytest.approx(0)
    assert row.figures["people_plain"].mean == 0
    assert row.verdict == "plain: second higher; at like length: not told apart"
    assert row.figures["judge_plain"].n_cards == 40


# ---- judgments that are kept


def test_kept_judgments_are_of_this_text_and_this_judge_only(tmp_path):
    judge = MadeJudge(quality)
    with open_store(tmp_path) as store:
        store.judge(judge, DIALOGUES[:5], 2)
    with open(tmp_path / LINES, "ab") as torn:
        torn.write(b'{"dialogue_key')
    changed = DIALOGUES[0].model_copy(update={"turns": DIALOGUES[0].turns[:2]})
    again = MadeJudge(quality)
    with open_store(tmp_path) as store:
        found = store.judge(again, [changed, *DIALOGUES[1:6]], 2)
    assert again.asked == [as_transcript(changed).key, as_transcript(DIALOGUES[5]).key]
    assert [one[NAME].expected for one in found] == [0, 1, 2, 3, 0, 1]
    other = MadeJudge(quality, temperature=1)
    with open_store(tmp_path) as store:
        store.judge(other, DIALOGUES[:5], 2)
    assert len(other.asked) == 5


def test_a_prompt_in_another_order_and_language_says_so_and_keeps_every_anchor():
    dimension = RUBRIC.dimensions[0]
    down = OwnPrompt.load()
    turned = type(down)(down.prompt, order="descending")
    plain, changed = down.text(DIALOGUES[0], dimension), turned.text(DIALOGUES[0], dimension)
    assert sorted(plain.splitlines()) == sorted(changed.splitlines())
    assert changed.index(dimension.anchors[4].en) < changed.index(dimension.anchors[0].en)
    chinese = type(down)(down.prompt, language="zh").text(DIALOGUES[0], dimension)
    assert dimension.anchors[4].zh in chinese
    assert "I cannot sleep" in chinese
    assert turned.reference() != down.reference()
    reworded = OwnPrompt.load("judge_reworded")
    for language in ("en", "zh"):
        text = reworded.text(talk(1, language=language), dimension)
        for level in dimension.levels():
            assert getattr(dimension.anchors[level], language) in text
        assert getattr(dimension.question, language) in text
