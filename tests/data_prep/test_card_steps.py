"""What happens to cards after extraction: rules, verdicts, categories, duplicates, counts."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.card_dedupe import dedupe, duplicate_groups, shingles
from data_prep.card_llm import Asking
from data_prep.card_rules import RULES, apply_rules
from data_prep.card_stats import PUBLISHED, contents, funnel
from data_prep.card_taxonomy import categorize, load_taxonomy
from data_prep.card_verdict import judge_cards
from data_prep.cards import read_card_file, read_card_files, with_fields
from data_prep.endpoint_terms import Endpoint
from data_prep.errors import UserError
from data_prep.official import write_cards
from data_prep.records import RoleCard, write_records
from tests.openai_server import OpenAIServer, asked, card_replies

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "data_prep" / "samples"
OFFICIAL_SOURCES = {
    "PsyQA (zh)": 252,
    "ESconv (en)": 158,
    "MHP (en)": 73,
    "smile (zh)": 72,
    "ExTES (en)": 70,
    "Psych (en)": 25,
    "EPITOME (en)": 5,
}
OFFICIAL_CATEGORIES = {
    "family (zh)": 215,
    "family (en)": 172,
    "work_study (en)": 87,
    "social_other (en)": 72,
    "work_study (zh)": 72,
    "social_other (zh)": 37,
}
PROBLEM = "She lost her job in spring and has not dared to tell her parents about it since then."


def card(identifier="c", problem=PROBLEM, language="en", **changes):
    return RoleCard(**{"id": identifier, "language": language, "problem": problem, "source": "made", **changes})


def how(server, tmp_path, **changes):
    endpoint = {"url": server.url, "model": "m", "first_wait": 0.01, "timeout": 5, "concurrency": 4}
    asking = {name: changes.pop(name) for name in ("sampling", "tries", "say", "progress") if name in changes}
    return Asking(endpoint=Endpoint(**{**endpoint, **changes}), cache=tmp_path / "cache.jsonl", **asking)


# ---- rules and verdicts


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("no_problem", {"problem": None}),
        ("no_problem", {"problem": "…"}),
        ("short_problem", {"problem": "feels very bad"}),
        ("short_problem", {"problem": "压力很大", "language": "zh"}),
        ("placeholder", {"problem": "[NAME] has left him after twelve long years together"}),
        ("placeholder", {"occupation": "{{ occupation }}"}),
        ("placeholder", {"age": "???"}),
        ("leaked_reply", {"problem": "I’m sorry to hear that. Have you tried to talk with her about it?"}),
        ("leaked_reply", {"problem": "As an AI language model I cannot say what happened to him there"}),
        ("leaked_reply", {"problem": "我理解你的感受，建议你和父母好好谈一谈，说出自己的想法", "language": "zh"}),
        ("nested_labels", {"age": "30. Problem: cannot sleep"}),
        ("nested_labels", {"problem": "年龄：30；问题：和丈夫总是吵架，不知道该不该离婚", "language": "zh"}),
        ("wrong_language", {"language": "zh"}),
        ("wrong_language", {"problem": "和丈夫总是吵架，不知道该不该离婚，孩子还小"}),
    ],
)
def test_a_rule_fires_and_can_be_switched_off(rule, changes):
    ruling = apply_rules([card("good"), card("bad", **changes)])
    assert [kept.id for kept in ruling.kept] == ["good"]
    assert rule in ruling.broken["bad"]
    assert ruling.report()["rules"][rule] == 1
    others = [name for name in RULES if name != rule]
    assert len(apply_rules([card("bad", **changes)], [rule, *others]).kept) == 1
    assert list(apply_rules([card("bad", **changes)], others).broken) == ["bad"]
    assert rule not in apply_rules([], [rule]).report()["rules"]


def test_no_rule_fires_on_the_samples_or_the_official_cards(real_data):
    files = [SAMPLES / "cards.jsonl", *(real_data / "esceval" / f"card_high_{name}.json" for name in ("en", "zh"))]
    assert [apply_rules(read_card_file(file)).broken for file in files] == [{}] * 3


@settings(max_examples=50)
@given(st.text(), st.text(), st.sampled_from(["en", "zh"]))
def test_rules_take_any_text(problem, age, language):
    ruling = apply_rules([card(problem=problem, age=age, language=language)])
    assert len(ruling.kept) + len(ruling.broken) == 1


def test_unknown_rules_are_told():
    with pytest.raises(UserError, match="did you mean 'short_problem'"):
        apply_rules([], ["short_problm"])


def test_a_verdict_keeps_drops_or_is_missing(tmp_path):
    replies = {
        "keep me": '{"reason": "enough", "keep": true}',
        "drop me": '{"reason": "a question of fact", "keep": false}',
        "no reason": '{"reason": " ", "keep": true}',
        "a word": '{"reason": "fine", "keep": "yes"}',
    }

    def reply(body):
        return next(text for name, text in replies.items() if name in asked(body))

    cards = [card(name.replace(" ", "-"), problem=f"{name}: {PROBLEM}") for name in replies]
    with OpenAIServer(reply) as server:
        found = judge_cards(cards, how(server, tmp_path))
    assert [kept.id for kept in found.kept] == ["keep-me"]
    assert found.kept[0].meta["verdict"]["reason"] == "enough"
    assert found.dropped == {"drop-me": "a question of fact"}
    assert set(found.answers.missing) == {"no-reason", "a-word"}


# ---- categories


def test_the_shipped_taxonomy():
    taxonomy = load_taxonomy()
    assert [entry.official for entry in taxonomy.classes] == ["家庭生活", "工作学习", "社会与其他"]
    assert {len(path) for path in taxonomy.paths()} == {3}
    assert taxonomy.canonical(["家庭生活"]) == ("family",)
    assert taxonomy.canonical(["Family life", "parents"]) == ("family", "parents")
    assert taxonomy.canonical(["job crisis"]) is None


def test_categories_are_chosen_among_those_listed(tmp_path):
    taxonomy = load_taxonomy()
    full = card("full", category=("family", "parents", "conflict"))
    known = card("known", category=("工作学习",))
    own_words = card("own", category=("job crisis",))
    with OpenAIServer(card_replies) as server:
        found = categorize([full, known, own_words], taxonomy, how(server, tmp_path))
    assert [made.category for made in found.cards] == [
        full.category,
        ("work_study", "work", "load"),
        ("family", "partnership", "conflict"),
    ]
    assert found.had_one == 1
    offered = server.calls[0].body["response_format"]["json_schema"]["schema"]["properties"]["category"]["enum"]
    assert len(offered) in (8, 30)
    assert found.cards[1].meta["categorised"]["taxonomy"] == {"name": "esckit", "version": 1}


@pytest.mark.parametrize("chosen", ["family", "family/parents/nothing", "work_study/work/load ", "", "Family life"])
def test_a_category_that_was_not_offered_is_missing(tmp_path, chosen):
    known = card("known", category=("family",))
    with OpenAIServer(lambda body: json.dumps({"category": chosen})) as server:
        found = categorize([known], load_taxonomy(), how(server, tmp_path))
    assert found.cards == [known]
    assert list(found.answers.missing) == ["known"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "a: [",
        "name: x",
        "name: x\nversion: 1\nclasses: [{id: a/b, en: a, zh: a}]",
        "name: x\nversion: 1\nclasses: [{id: a, en: a, zh: a}, {id: a, en: b, zh: b}]",
        "name: x\nversion: 1\nclasses: [{id: a, en: a, zh: a, below: [{id: b, en: b, zh: b, "
        "below: [{id: c, en: c, zh: c, below: [{id: d, en: d, zh: d}]}]}]}]",
        "name: x\nversion: 1\nclasses: [{id: a, en: a, zh: a, blow: []}]",
        "!!python/object/apply:os.system ['true']",
    ],
)
def test_a_taxonomy_that_is_none(tmp_path, content):
    path = tmp_path / "t.yaml"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=r"t\.yaml") as told:
        load_taxonomy(path)
    assert "\n" not in str(told.value)


# ---- duplicates


def test_duplicates_are_the_pairs_that_a_full_comparison_finds():
    import random

    generator = random.Random(0)
    words = [f"w{number}" for number in range(12)]
    texts = [" ".join(generator.choices(words, k=generator.randint(3, 9))) for _ in range(150)]
    texts += [text.upper() + "!" for text in texts[:10]]
    for threshold in (0.3, 0.6, 1.0):
        pairs = set()
        sets = [shingles(text) for text in texts]
        for one in range(len(texts)):
            for two in range(one):
                if len(sets[one] & sets[two]) / len(sets[one] | sets[two]) >= threshold:
                    pairs.add((two, one))
        groups = duplicate_groups(texts, threshold)
        together = {(a, b) for group in groups for a in group for b in group if a < b}
        assert pairs <= together
        assert all(any({one, other} & {a, b} for a, b in pairs) for group in groups for one, other in [group[:2]])


def test_the_best_of_alike_cards_is_kept():
    cards = [
        card("a", source="one"),
        card("b", source="two", problem=PROBLEM.upper(), age="30", quality="middle"),
        card("c", source="three", problem=PROBLEM + "!", quality="high"),
        card("d", problem="Something else altogether happened to him on a long journey"),
        card("e", problem=None),
        card("f", problem=None),
        card("g", problem="她春天丢了工作，一直不敢告诉父母", language="zh"),
        card("h", problem="她春天丢了工作，一直不敢告诉父母。", language="zh"),
    ]
    found = dedupe(cards)
    assert [kept.id for kept in found.kept] == ["c", "d", "e", "f", "g"]
    assert found.groups == [["c", "b", "a"], ["g", "h"]]
    assert found.across == {"one + three + two": 1, "made": 1}
    with pytest.raises(UserError):
        dedupe(cards, 0)


# ---- counts and files


def test_the_official_cards_give_the_published_counts(real_data):
    files = [real_data / "esceval" / f"card_high_{language}.json" for language in ("en", "zh")]
    cards = [one for file in files for one in read_card_file(file)]
    found = contents(cards, load_taxonomy())
    assert found["cards"] == 655
    assert found["language"] == {"en": PUBLISHED["en"]["high"], "zh": PUBLISHED["zh"]["high"]}
    assert found["source"] == OFFICIAL_SOURCES
    assert found["category_level_1"] == OFFICIAL_CATEGORIES
    graded = [one.model_copy(update={"quality": "high"}) for one in cards]
    table = funnel({"after_human_filter": graded})
    assert {language: row["high"] for language, row in table.items()} == {"en": 331, "zh": 324}
    assert table["en"]["extracted"] is None


def test_the_official_cards_round_trip_through_our_files(real_data, tmp_path):
    for language in ("en", "zh"):
        file = real_data / "esceval" / f"card_high_{language}.json"
        cards = read_card_file(file)
        write_records(tmp_path / "ours.jsonl", cards)
        assert read_card_file(tmp_path / "ours.jsonl") == cards
        write_cards(tmp_path / "theirs.json", read_card_file(tmp_path / "ours.jsonl"))
        assert json.loads((tmp_path / "theirs.json").read_text("utf-8")) == json.loads(file.read_text("utf-8"))


def test_the_published_funnel_is_told_as_printed():
    assert PUBLISHED["en"] == {
        "extracted": 3673,
        "after_llm_filter": 2792,
        "after_human_filter": 1708,
        "high": 331,
        "middle": 1455,
    }
    assert sum(PUBLISHED["zh"][stage] for stage in ("high", "middle")) == PUBLISHED["zh"]["after_human_filter"]


def test_funnel_counts_by_language_and_says_what_is_unknown():
    cards = [card("a", quality="high"), card("b", quality="low"), card("c", language="zh", quality="middle")]
    table = funnel({"extracted": [*cards, card("d")], "after_llm_filter": None, "after_human_filter": cards})
    assert table["en"] == {"extracted": 3, "after_llm_filter": None, "after_human_filter": 2, "high": 1, "middle": 0}
    assert table["zh"] == {"extracted": 1, "after_llm_filter": None, "after_human_filter": 1, "high": 0, "middle": 1}
    assert funnel({"after_human_filter": [card()]})["en"]["high"] is None


def test_a_changed_card_no_longer_shows_its_published_text():
    published = card(text="Age: 3\nProblem: x", age="3")
    changed = with_fields(published, {"age": "4"})
    assert changed.as_text().startswith("Age: 4\n")
    assert changed.meta["published_text"] == published.text


def test_one_id_in_two_files_is_told(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write_records(tmp_path / name, [card()])
    with pytest.raises(UserError, match=r"b\.jsonl: card id 'c' is also in .*a\.jsonl"):
        read_card_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
