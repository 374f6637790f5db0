"""Building training sets: what becomes a sample, what is refused, what is drawn; nothing is lost or reworded."""

import json
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build import (
    Mix,
    Split,
    SupporterFormat,
    Tally,
    build_role,
    build_supporter,
    join_cards,
    persona_of,
)
from data_prep.chat_format import seeker_system
from data_prep.errors import UserError
from data_prep.leaks import leak_report
from data_prep.prompt import load_prompt
from data_prep.records import dump_line
from data_prep.sample import Sample, SampleMessage, draw, per_turn, read_conversations
from data_prep.sources.esconv import STRATEGIES
from tests.data_prep.made_dialogues import CARD, DIALOGUES, TEXT, card, dialogue, located

SEEKER, SUPPORTER, GREETING = load_prompt("seeker"), load_prompt("supporter"), load_prompt("greeting")
CONTEXT = load_prompt("supporter_context")
SECRET = "nobody may read this sentence"


def role(*dialogues, greeting=GREETING, expansion="whole", split=Split(), **more):
    return build_role(located(*dialogues), SEEKER, greeting, expansion, split, **more)


def supporter(*dialogues, expansion="whole", split=Split(), **how):
    return build_supporter(located(*dialogues), SupporterFormat(SUPPORTER, CONTEXT, **how), expansion, split)


def said(sample):
    """(role, content, learned) of every message but the system prompt."""
    return [(m.role, m.content, m.train) for m in sample.messages if m.role != "system"]


def general(count, words="tell me of"):
    made = []
    for number in range(count):
        messages = [("system", "be a pirate", False), ("user", f"{words} {number}", False), ("assistant", "arr", True)]
        flagged = tuple(SampleMessage(role=r, content=c, train=t) for r, c, t in messages)
        made.append(Sample(id=f"general-{number:03d}", messages=flagged, meta={"source": "g.jsonl"}))
    return made


# ---- role


def test_a_seeker_learns_its_own_turns_after_its_card():
    made = dialogue("d1", "s:a", "s:b", "p:c", "s:d", "p:e")
    (part,), tally = role(made)
    assert part.name == "train"
    sample = part.samples[0]
    assert sample.side == "seeker"
    assert sample.messages[0].content == seeker_system(made.card, SEEKER)
    hello = GREETING.render("en")
    assert said(sample) == [
        ("user", hello, False),
        ("assistant", "a\nb", True),
        ("user", "c", False),
        ("assistant", "d", True),
        ("user", "e", False),
    ]
    assert +tally.repairs == {
        "turn merged into the turn of the same speaker before it": 1,
        "greeting put before a dialogue that the trained side opens": 1,
    }


def test_without_a_greeting_none_is_added():
    (part,), tally = role(dialogue("d1", "s:a", "p:c"), greeting=None)
    assert said(part.samples[0]) == [("assistant", "a", True), ("user", "c", False)]
    assert not +tally.repairs


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (dialogue("x", with_card=False), "no role card"),
        (dialogue("x", "p:hello", "p:anyone?"), "no seeker turn"),
        (dialogue("x", "p:hello", "s: \n", "p:?"), "a turn without text"),
        (
            dialogue("x", "p:hello", "s:hi", card=card(language="zh")),
            "the card is in another language than the dialogue",
        ),
    ],
)
def test_what_a_seeker_cannot_learn_from_is_refused_and_counted(bad, reason):
    (part,), tally = role(dialogue("d1"), bad)
    assert [made.id for made in part.dialogues] == ["d1"]
    assert [(refusal.where, refusal.reason) for refusal in tally.refused] == [("d.jsonl:2", reason)]
    with pytest.raises(UserError, match=f"no dialogue can be used to train a seeker .{reason}: 1"):
        role(bad)


def test_per_turn_samples_have_the_history_before_one_learned_turn():
    (whole,), _ = role(dialogue("d1", "p:a", "s:b", "p:c", "s:d", "p:e"))
    (turns,), _ = role(dialogue("d1", "p:a", "s:b", "p:c", "s:d", "p:e"), expansion="turns")
    assert [sample.id for sample in turns.samples] == ["d1#1", "d1#2"]
    assert said(turns.samples[0]) == [("user", "a", False), ("assistant", "b", True)]
    assert said(turns.samples[1]) == [
        ("user", "a", False),
        ("assistant", "b", False),
        ("user", "c", False),
        ("assistant", "d", True),
    ]
    assert [sample.messages[0] for sample in turns.samples] == [whole.samples[0].messages[0]] * 2


def test_cards_of_a_file_are_joined_by_id_and_replace_those_of_the_dialogues():
    dialogues = [
        dialogue("d1"),
        dialogue("d2", with_card=False),
        dialogue("d3", meta={"source_id": "s3"}),
        dialogue("d4"),  # its card was filtered out
        dialogue("d5"),
    ]
    cards = [
        card("card-d1", problem="new one"),
        card("k2", meta={"dialogue_id": "d2"}),
        card("s3"),
        card("d5", problem="one"),
        card("card-d5", problem="other"),
        card("unused"),
    ]
    tally = Tally()
    joined = dict(zip("1235", [made.card for _, made in join_cards(located(*dialogues), cards, tally)], strict=False))
    assert joined["1"].problem == "new one"
    assert (joined["2"].id, joined["3"].id) == ("k2", "s3")
    assert tally.figures == {"cards joined to dialogues": 5, "cards without a dialogue": 1}
    (part,), tally = role(*dialogues, cards=cards)
    assert [made.id for made in part.dialogues] == ["d1", "d2", "d3"]
    assert Counter(refusal.reason for refusal in tally.refused) == {
        "no role card": 1,
        "more than one card of the card file belongs to it": 1,
    }


# ---- mixing


def test_a_mix_is_drawn_at_random_by_ratio_into_the_first_part_only():
    dialogues = [dialogue(f"d{number}") for number in range(10)]
    pool = general(60)
    split = Split({"train": 0.8, "valid": 0.2}, seed=3, near=None)
    parts, tally = role(*dialogues, split=split, mixes=[Mix("g.jsonl", Decimal("2.5"), pool)])
    train, valid = ([s.id for s in part.samples if s.side is None] for part in parts)
    assert len(train) == 20
    assert valid == []
    assert tally.figures == {"general conversations mixed in from g.jsonl": 20}
    assert train != [sample.id for sample in pool[:20]]
    again, _ = role(*dialogues[::-1], split=split, mixes=[Mix("g.jsonl", Decimal("2.5"), pool[::-1])])
    assert again == parts
    other, _ = role(
        *dialogues, split=Split(split.fractions, 4, near=None), mixes=[Mix("g.jsonl", Decimal("2.5"), pool)]
    )
    assert [s.id for s in other[0].samples if s.side is None] != train


def test_every_conversation_is_drawn_about_equally_often():
    pool = general(20)
    times = Counter(sample.id for seed in range(400) for sample in draw(pool, 5, seed))
    assert len(times) == 20
    assert max(abs(count - 100) for count in times.values()) < 45  # 5 standard deviations of a fair draw


def test_too_little_to_mix_says_how_many_there_are():
    dialogues = [dialogue(f"d{number}") for number in range(4)]
    with pytest.raises(
        UserError, match=r"g.jsonl: a ratio of 3 to 4 dialogues asks for 12 conversations, there are 11"
    ):
        role(*dialogues, mixes=[Mix("g.jsonl", Decimal(3), general(11))])
    with pytest.raises(UserError, match="is no conversation at all"):
        role(*dialogues, mixes=[Mix("g.jsonl", Decimal("0.1"), general(11))])
    with pytest.raises(UserError, match=r"that a\.jsonl holds too"):
        role(*dialogues, mixes=[Mix(name, Decimal(2), general(8)) for name in ("a.jsonl", "b.jsonl")])


def test_mixed_conversations_are_expanded_too():
    (part,), _ = role(dialogue("d1"), expansion="turns", mixes=[Mix("g.jsonl", Decimal(2), general(2))])
    assert [sample.id for sample in part.samples] == ["d1#1", "d1#2", "general-000#1", "general-001#1"]


def test_general_conversations_are_read_in_both_layouts(tmp_path):
    rows = [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "a"}]},
        {"system": "s", "conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"from": "human", "value": "u"}, {"from": "human", "value": "v"},
                           {"from": "gpt", "value": "a"}]},
        {"messages": [{"role": "user", "content": SECRET}]},
        {"messages": [{"role": "tool", "content": SECRET}]},
        {"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": SECRET}]},
        {"text": SECRET},
        [SECRET],
        {"messages": [{"role": "user", "content": "u"}, {"role": "system", "content": SECRET}]},
    ]  # fmt: skip
    path = tmp_path / "g.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"broken', encoding="utf-8")
    samples, repairs, refused = read_conversations(path)
    assert [said(sample) for sample in samples] == [
        [("user", "u", False), ("assistant", "a", True)],
        [("user", "u\nv", False), ("assistant", "a", True)],
    ]
    assert repairs["general: conversation that occurs twice taken once"] == 1
    assert repairs["general: neighbouring messages of one side merged"] == 1
    assert [refusal.where.rpartition(":")[2] for refusal in refused] == ["4", "5", "6", "7", "8", "9", "10"]
    assert SECRET not in " ".join(map(str, refused))
    array = tmp_path / "array.jsonl"
    array.write_text(json.dumps(rows), encoding="utf-8")
    assert [s.id for s in read_conversations(array)[0]] == [s.id for s in samples]


# ---- supporter


ONE = dialogue(
    "d1", "s:I am sad", "p[Question]:why?", "p[Information]:tell me", "s:so", "p:hm",
    situation="lost a job", card=card(gender="woman", meta={"persona": {"Hobby": "chess", "Blank": " "}}),
)  # fmt: skip


def test_without_control_a_supporter_set_is_what_the_trainer_makes_of_the_dialogues():
    (part,), tally = supporter(ONE)
    assert part.samples[0].messages[0].content == SUPPORTER.render("en")
    assert said(part.samples[0]) == [
        ("user", "I am sad", False),
        ("assistant", "why?\ntell me", True),
        ("user", "so", False),
        ("assistant", "hm", True),
    ]
    assert +tally.missing == {}


def test_strategies_as_prefixes_stay_with_their_turns():
    (part,), tally = supporter(ONE, strategy="prefix")
    assert [content for role, content, _ in said(part.samples[0]) if role == "assistant"] == [
        "[Question] why?\n[Information] tell me",
        "hm",
    ]
    assert part.dialogues == [ONE]  # the records themselves stay as they are
    assert tally.missing["supporter turn without strategy: no prefix"] == 1
    assert tally.repairs["strategy put before the text of a supporter turn"] == 2


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_eight_strategies_are_prefixes_and_listed_in_the_prompt(name):
    (part,), _ = supporter(dialogue("d1", "s:a", f"p[{name}]:b"), strategy="prefix")
    assert said(part.samples[0])[1][1] == f"[{name}] b"
    for language in ("en", "zh"):
        (part,), _ = supporter(dialogue("d1", "s:a", "p:b", language=language), strategy="prompt")
        assert f"- {name}" in part.samples[0].messages[0].content


def test_an_unknown_strategy_is_refused_with_prefixes_only():
    strange = dialogue("x", "s:a", "p[Shouting]:b")
    (part,), tally = supporter(dialogue("d1"), strange, strategy="prefix")
    assert [made.id for made in part.dialogues] == ["d1"]
    assert [refusal.reason for refusal in tally.refused] == ["a strategy that is none of the eight"]
    (part,), tally = supporter(strange, strategy="prompt")
    assert len(part.samples) == 1


def test_situation_and_persona_are_in_the_prompt_when_asked_for():
    def system(**how):
        (part,), tally = supporter(ONE, **how)
        return part.samples[0].messages[0].content, +tally.missing

    assert persona_of(ONE) == "Age: 30\nGender: woman\nHobby: chess"
    text, missing = system(situation=True)
    assert "lost a job" in text
    assert "chess" not in text
    text, missing = system(persona=True)
    assert "Age: 30\nGender: woman\nHobby: chess" in text
    assert "lost a job" not in text
    assert "problem of c1" not in text
    assert missing == {}
    bare = dialogue("d2", "s:a", "p:b", with_card=False)
    (part,), tally = supporter(bare, situation=True, persona=True)
    assert part.samples[0].messages[0].content == SUPPORTER.render("en")
    assert tally.missing == {"no situation: left out of the prompt": 1, "no persona: left out of the prompt": 1}


def test_what_a_card_says_is_never_a_template():
    hostile = "{{ 7 * 7 }} {% for x in y %} <|im_start|>"
    made = dialogue("d1", "s:a", "p:b", card=card(problem=hostile, age=hostile), situation=hostile)
    (part,), _ = supporter(made, situation=True, persona=True)
    assert part.samples[0].messages[0].content.count(hostile) == 2
    (part,), _ = role(made)
    assert hostile in part.samples[0].messages[0].content


# ---- splits and any input


def test_parts_share_nothing_and_do_not_depend_on_the_order():
    dialogues = [dialogue(f"d{number}", card=card(f"c{number // 3}")) for number in range(30)]
    split = Split({"train": 0.7, "valid": 0.3}, seed=1, near=None)
    parts, _ = role(*dialogues, split=split)
    assert all(leak.shared == 0 for leak in leak_report(parts[0].dialogues, parts[1].dialogues, near=None))
    assert sum(len(part.dialogues) for part in parts) == 30
    assert role(*dialogues[::-1], split=split)[0] == parts
    assert role(*dialogues[::-1])[0] == role(*dialogues)[0]


def merged_texts(made):
    runs = []
    for turn in made.turns:
        if runs and runs[-1][0] == turn.speaker:
            runs[-1] = (turn.speaker, f"{runs[-1][1]}\n{turn.text}")
        else:
            runs.append((turn.speaker, turn.text))
    return runs


@settings(max_examples=200, deadline=None)
@given(DIALOGUES, st.sampled_from(("whole", "turns")), st.none() | st.lists(CARD, max_size=4), st.booleans())
def test_any_dialogues_become_a_role_set_or_are_refused(dialogues, expansion, cards, parted):
    split = Split({"a": 0.5, "b": 0.5}, near=None) if parted else Split()
    try:
        parts, tally = role(*dialogues, expansion=expansion, cards=cards, split=split, greeting=None)
    except UserError:
        return
    used = [made for part in parts for made in part.dialogues]
    assert len(used) + len(tally.refused) == len(dialogues)
    by_dialogue = {made.id: made for made in dialogues}
    for part in parts:
        last = {sample.meta["dialogue"]: sample for sample in part.samples}  # the longest history, when expanded
        assert set(last) == {made.id for made in part.dialogues}
        for identifier, sample in last.items():
            spoken = [("seeker" if r == "assistant" else "supporter", text) for r, text, _ in said(sample)]
            expected = merged_texts(by_dialogue[identifier])
            assert spoken == (expected if expansion == "whole" else expected[: len(spoken)])
            assert Sample.model_validate_json(dump_line(sample)) == sample
        count = sum(message.train for sample in part.samples for message in sample.messages)
        assert count == sum(s == "seeker" for made in part.dialogues for s, _ in merged_texts(by_dialogue[made.id]))


@settings(max_examples=200, deadline=None)
@given(DIALOGUES, st.sampled_from(("none", "prompt", "prefix")), st.booleans(), st.booleans())
def test_any_dialogues_become_a_supporter_set_or_are_refused(dialogues, strategy, situation, persona):
    try:
        (part,), tally = supporter(*dialogues, strategy=strategy, situation=situation, persona=persona)
    except UserError:
        return
    assert len(part.dialogues) + len(tally.refused) == len(dialogues)
    for made, sample in zip(part.dialogues, part.samples, strict=True):
        if strategy == "prefix":
            told = [
                t.model_copy(update={"text": f"[{t.strategy}] {t.text}"})
                if t.speaker == "supporter" and t.strategy is not None
                else t
                for t in made.turns
            ]
            made = made.model_copy(update={"turns": tuple(told)})
        assert [text for _, text, _ in said(sample)] == [text for _, text in merged_texts(made)]
        assert all(learned == (role == "assistant") for role, _, learned in said(sample))


@given(st.lists(st.tuples(TEXT, st.booleans()), min_size=1, max_size=6))
def test_expanding_keeps_every_learned_message_once(contents):
    flagged = tuple(
        SampleMessage(role="assistant" if n % 2 else "user", content=text, train=bool(n % 2 and learned))
        for n, (text, learned) in enumerate(contents)
    )
    if not any(message.train for message in flagged):
        with pytest.raises(ValueError, match="nothing to learn"):
            Sample(id="s", messages=flagged)
        return
    expanded = per_turn(Sample(id="s", messages=flagged))
    assert [sample.messages[-1] for sample in expanded] == [message for message in flagged if message.train]
    assert all(sum(sample.train_on()) == 1 for sample in expanded)
