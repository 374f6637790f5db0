"""The bundled samples keep the promises of their README: counts, languages, scales, spread, no repeated texts."""

import re
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import pytest

import data_prep
from data_prep.records import Dialogue, Rating, Record, RoleCard, dump_line, iter_json_lines, read_records
from data_prep.rubric import check_ratings, load_rubric

FOLDER = Path(data_prep.__file__).parent / "samples"
CATEGORIES = {
    "en": {"family", "work_study", "social_other"},
    "zh": {"家庭生活", "工作学习", "社会与其他"},
}
STRATEGIES = {
    "Question",
    "Restatement or Paraphrasing",
    "Reflection of feelings",
    "Self-disclosure",
    "Affirmation and Reassurance",
    "Providing Suggestions",
    "Information",
    "Others",
}
RATERS = {"sample-a", "sample-b"}
# English dialogue, Chinese replies: written so, to show a low fluency score.
ANSWERED_IN_CHINESE = "rated-en-10"


@pytest.fixture(scope="module")
def cards() -> list[RoleCard]:
    return read_records(FOLDER / "cards.jsonl", RoleCard)


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    return read_records(FOLDER / "dialogues.jsonl", Dialogue)


@pytest.fixture(scope="module")
def rated() -> list[Dialogue]:
    return read_records(FOLDER / "rated_dialogues.jsonl", Dialogue)


@pytest.fixture(scope="module")
def ratings() -> list[Rating]:
    return read_records(FOLDER / "ratings.jsonl", Rating)


def trigrams(text: str) -> set[str]:
    letters = re.sub(r"\W+", "", text.lower())
    return {letters[start : start + 3] for start in range(max(1, len(letters) - 2))}


def similarity(left: str, right: str) -> float:
    """Jaccard similarity of character trigrams, 0..1; works without word borders, so for Chinese too."""
    one, other = trigrams(left), trigrams(right)
    return len(one & other) / len(one | other)


def is_chinese(text: str) -> bool:
    return re.search(r"[\u4e00-\u9fff]", text) is not None


def pairs(ratings: list[Rating]) -> dict[tuple[str, str], dict[str, float | None]]:
    """(dialogue, dimension) -> {rater: value}."""
    found: dict[tuple[str, str], dict[str, float | None]] = {}
    for rating in ratings:
        by_rater = found.setdefault((rating.dialogue_id, rating.dimension), {})
        assert rating.rater not in by_rater, "one rater rated one item twice"
        by_rater[rating.rater] = rating.value
    return found


@pytest.mark.parametrize("name", ["cards", "dialogues", "rated_dialogues", "ratings"])
def test_lines_are_exactly_what_we_would_write(name: str) -> None:
    kinds: dict[str, type[Record]] = {"cards": RoleCard, "ratings": Rating}
    kind = kinds.get(name, Dialogue)
    path = FOLDER / f"{name}.jsonl"
    written = "".join(dump_line(record) for record in read_records(path, kind))
    assert path.read_text(encoding="utf-8") == written


def test_counts_match_the_readme(cards, dialogues, rated, ratings) -> None:
    language = {dialogue.id: dialogue.language for dialogue in rated}
    found = {
        "cards.jsonl": Counter(card.language for card in cards),
        "dialogues.jsonl": Counter(dialogue.language for dialogue in dialogues),
        "rated_dialogues.jsonl": Counter(language.values()),
        "ratings.jsonl": Counter(language[rating.dialogue_id] for rating in ratings),
    }
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \|.*\| (\d+) \| (\d+) \|$", readme, flags=re.M)
    assert {name: {"en": int(en), "zh": int(zh)} for name, en, zh in rows} == found
    assert f"so {len(ratings)} records" in readme


def test_no_id_stands_for_two_things(cards, dialogues, rated) -> None:
    ids = [record.id for record in (*cards, *dialogues, *rated)]
    assert len(ids) == len(set(ids))


def test_cards_are_complete_enough_to_play(cards) -> None:
    for card in cards:
        assert card.id.startswith(f"sample-{card.language}-")
        assert (card.source, card.quality) == ("sample", "high")
        assert len(card.category) == 1
        assert card.category[0] in CATEGORIES[card.language]
        assert card.problem
        assert is_chinese(card.problem) == (card.language == "zh")
    for language, categories in CATEGORIES.items():
        assert {card.category[0] for card in cards if card.language == language} == categories
    assert any(None in (card.age, card.gender, card.occupation) for card in cards)
    assert sum(card.meta == {"crisis": True} for card in cards) == 2


def test_every_card_has_the_dialogue_that_embeds_it(cards, dialogues) -> None:
    assert [dialogue.card for dialogue in dialogues] == cards


def test_dialogues_alternate_and_keep_their_length(dialogues, rated) -> None:
    for group, shortest, longest in ((dialogues, 8, 14), (rated, 4, 8)):
        for dialogue in group:
            speakers = [turn.speaker for turn in dialogue.turns]
            assert shortest <= len(speakers) <= longest, dialogue.id
            assert all(left != right for left, right in pairwise(speakers)), dialogue.id
            assert dialogue.situation, dialogue.id
    opened = sum(dialogue.turns[0].speaker == "supporter" for dialogue in dialogues)
    assert 0.25 <= opened / len(dialogues) <= 0.45


def test_every_supporter_turn_of_the_dialogues_has_a_known_strategy(dialogues) -> None:
    used = Counter(turn.strategy for d in dialogues for turn in d.turns if turn.speaker == "supporter")
    assert set(used) == STRATEGIES
    assert all(turn.strategy is None for d in dialogues for turn in d.turns if turn.speaker == "seeker")


def test_texts_are_in_the_language_of_their_dialogue(dialogues, rated) -> None:
    for dialogue in (*dialogues, *rated):
        for turn in dialogue.turns:
            in_chinese = dialogue.language == "zh" or (
                dialogue.id == ANSWERED_IN_CHINESE and turn.speaker == "supporter"
            )
            # A turn may be nothing but an ellipsis; then it has no language.
            assert is_chinese(turn.text) == in_chinese or not re.search(r"\w", turn.text), dialogue.id


def test_no_two_dialogues_share_a_text_or_nearly_an_opening(dialogues, rated) -> None:
    everything = [*dialogues, *rated]
    owner: dict[str, str] = {}
    for dialogue in everything:
        for text in {turn.text for turn in dialogue.turns}:
            assert owner.setdefault(text, dialogue.id) == dialogue.id, "two dialogues contain the same turn"
    for left, right in combinations(everything, 2):
        for part in ("situation", "opening", "whole"):
            one, other = (
                {
                    "situation": dialogue.situation or "",
                    "opening": dialogue.turns[0].text,
                    "whole": " ".join(turn.text for turn in dialogue.turns),
                }[part]
                for dialogue in (left, right)
            )
            assert similarity(one, other) < 0.35, f"{part} of {left.id} and {right.id} nearly the same"


def test_ratings_are_on_the_scale_and_complete(rated, ratings) -> None:
    rubric = load_rubric("esc_eval")
    lines = [where for where, _ in iter_json_lines(FOLDER / "ratings.jsonl")]
    check_ratings(zip(lines, ratings, strict=True), rubric)
    expected = {(dialogue.id, name) for dialogue in rated for name in rubric.names()}
    found = pairs(ratings)
    assert set(found) == expected
    assert all(set(by_rater) == RATERS for by_rater in found.values())
    assert all(dialogue.meta == {"illustrative": True} for dialogue in rated)


def test_missing_values_say_why(ratings) -> None:
    missing = [rating for rating in ratings if rating.value is None]
    assert len(missing) == 4
    assert all((rating.reason is not None) == (rating.value is None) for rating in ratings)


@pytest.mark.parametrize("dimension", load_rubric("esc_eval").names())
def test_scores_spread_over_the_scale(dimension: str, ratings) -> None:
    values = [rating.value for rating in ratings if rating.dimension == dimension and rating.value is not None]
    assert len(set(values)) >= 4
    assert min(values) <= 1
    # No level is so common that a constant answer would look good.
    assert max(Counter(values).values()) / len(values) <= 0.5


def test_raters_agree_mostly_but_not_always(ratings) -> None:
    gaps = []
    for values in pairs(ratings).values():
        first, second = values["sample-a"], values["sample-b"]
        if first is not None and second is not None:
            gaps.append(abs(first - second))
    differ = [gap for gap in gaps if gap > 0]
    assert 0.25 <= len(differ) / len(gaps) <= 0.35
    assert sum(gap == 1 for gap in differ) / len(differ) > 0.9
