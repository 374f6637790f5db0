"""Crisis content and personal data: hand-made sentences that must and must not be found, with misses counted."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.crisis import (
    ANCHORS,
    COMPILED,
    LETTERS,
    _first_look,
    crisis_kinds,
    may_have_crisis,
)
from data_prep.crisis_terms import FIGURES, KINDS
from data_prep.masking_pii import CRISIS_LINES, mask_pii
from tests.data_prep.crisis_sentences import DEVELOPMENT, HELD_OUT

SUICIDE = [
    "I just want to die.",
    "Sometimes I think about killing myself",
    "I’ve been feeling suicidal since March",
    "My brother committed suicide two years ago",
    "I wish I was dead",
    "Everyone would be better off dead than around me, and I'd be better off dead",
    "I don't want to live anymore",
    "I dont want to be alive",
    "I want to end my life",
    "She took her own life last spring",
    "I am thinking about ending it all",
    "I can't see any reason to live",
    "There is no reason to live and nothing to live for",
    "I took an overdose, I tried to overdose on my pills",
    "He said he would jump off a bridge",
    "I tried to hang myself",
    "some nights I hope I never wake up",
    "我不想活了",
    "我真的想死",
    "活着没有意义",
    "我想过自杀",
    "他说他要跳楼",
    "我想结束自己的生命",
    "有时候觉得死了就解脱了",
    "我总有轻生的念头",
    "想离开这个世界",
    "我活不下去了",
    "不如死了算了",
    "她吃了一瓶安眠药",
    "lately suicide has been on my mind",
    "I just wanna die already",
    "Part of me wishes I could fall asleep and never wake up",
    "I think about jumping off the bridge on my way home",
    "I don't see the point in living",
    "我觉得活着好累，不想活下去",
    "我站在楼顶想跳下去",
    "每天都在想怎么死",
]
SELF_HARM = [
    "I cut myself when it gets too much",
    "I started self-harming again",
    "I have been burning myself with cigarettes",
    "She slit her wrists",
    "I want to hurt myself",
    "我忍不住自残",
    "她昨晚割腕了",
    "我会用刀划自己",
    "我怕我会伤害自己",
    "我又拿刀划了手臂",
]
ABUSE = [
    "My husband beats me",
    "he often hits me when he is drunk",
    "I was sexually abused as a child",
    "my ex was abusive",
    "I was raped at a party",
    "She was molested by her uncle",
    "there was domestic violence at home",
    "他喝醉了就打我",
    "我从小被家暴",
    "我小时候被性侵过",
    "爸爸经常打我",
    "我被父母打骂",
    "丈夫虐待我",
    "My stepfather used to hit me with a belt",
    "My boyfriend choked me last night",
    "他动手打了我好几次",
    "被老师性骚扰",
]
NONE = [
    "I was just killing time before the train",
    "hang in there",
    "hang on, I will be right back",
    "I nearly died laughing",
    "I could die of embarrassment",
    "this commute is killing me",
    "my phone died",
    "my grandmother died last year and I miss her",
    "I am dead tired",
    "I'm dying to see that film",
    "I want to live in a bigger city",
    "I don't want to live with my parents anymore",
    "I don't want to live in this town",
    "cut yourself some slack",
    "I cut myself off from my friends",
    "I cut myself shaving",
    "he shot himself in the foot with that remark",
    "I want to take my life back",
    "it hit me that she was gone",
    "the news hit me hard",
    "she beats me at chess every time",
    "my dad hits me up about money now and then",
    "I burned myself out at work",
    "I burned myself on the stove",
    "I have a deadline tomorrow",
    "he abused the system for years",
    "Suicide Squad is my favourite film",
    "I could kill for a coffee",
    "we jumped off the couch",
    "I feel like I am drowning in work",
    "it ended my career, not my life's work",
    "let us end it all on a good note",
    "I took my life into my own hands",
    "我快笑死了",
    "今天累死了",
    "想死你了",
    "我饿死了",
    "吓死我了",
    "气死我了",
    "电脑又死机了",
    "他这个人很死板",
    "打死我也不去",
    "我的朋友打我电话了",
    "我不想活得这么累",
    "这个价格是跳楼价",
    "我对他死心了",
    "生活总要继续",
    "规划自己的人生",
    "这种想法源自伤害事件",
    "爷爷去年去世了",
    "我要打扫房间",
    "时间都浪费死了",
    "该死的闹钟",
    "活动结束了",
    "my back is killing me",
    "I would rather stay at home than go to that party",
    "he beats everyone at video games",
    "I hit rock bottom with my grades",
    "I am living paycheck to paycheck",
    "我爱死这首歌了",
    "别担心，死不了人的",
    "他打我一个措手不及",
    "我想活得开心一点",
    "我去打篮球了",
]


def outcomes():
    expected = [(text, {"suicide"}) for text in SUICIDE] + [(text, {"self-harm"}) for text in SELF_HARM]
    expected += [(text, {"abuse"}) for text in ABUSE] + [(text, set()) for text in NONE]
    return [(text, kinds, set(crisis_kinds(text))) for text, kinds in expected]


def test_misses_and_false_alarms():
    misses = [text for text, kinds, found in outcomes() if not kinds <= found]
    alarms = [text for text, kinds, found in outcomes() if found - kinds]
    print(f"{len(misses)} misses of {len(SUICIDE + SELF_HARM + ABUSE)}, {len(alarms)} false alarms of {len(NONE)}")
    assert (misses, alarms) == ([], [])


# Written after the first lexicon, which found 11 of them; its enlargement was not chosen on them either.
UNSEEN = [
    "I have been having thoughts of suicide",
    "I swallowed a bunch of pills hoping it would be over",
    "honestly I would rather die than go back there",
    "Nobody would care if I was gone for good",
    "I almost jumped from the balcony last week",
    "my daughter told me she wants to kill herself",
    "I scratch my skin until it bleeds",
    "I've been harming myself for two years",
    "my mom slaps me whenever I talk back",
    "He threatened me with a knife",
    "I grew up in a physically abusive home",
    "my coach touched me when I was twelve",
    "我已经想好怎么自杀了",
    "我不想再活下去了",
    "我妈说她要去死",
    "我想一觉睡过去再也不醒来",
    "我用烟头烫自己",
    "他把我打得鼻青脸肿",
    "我爸每天喝酒打我妈",
    "前男友强迫我发生关系",
]
UNSEEN_NONE = [
    "that joke killed me",
    "I would die for a slice of pizza",
    "my laptop is dead",
    "my plants keep dying",
    "she is living her best life",
    "I end my shift at nine",
    "we are going to hit the beach",
    "I beat myself up over small mistakes",
    "the traffic was murder",
    "he cut me off in the middle of the sentence",
    "I jumped to a conclusion",
    "I hurt his feelings",
    "this heat is killing me",
    "you should take care of your own life",
    "热死了，空调又坏了",
    "我都要忙死了",
    "他的态度让我很伤心",
    "我要好好活着",
    "活该他被骂",
    "老板骂了我一顿",
    "周末去跳舞",
    "这部电影的结局死了很多人",
]


def test_sentences_the_lexicon_was_not_made_for():
    misses = [text for text in UNSEEN if not crisis_kinds(text)]
    alarms = [text for text in UNSEEN_NONE if crisis_kinds(text)]
    print(
        f"unseen: {len(misses)} misses of {len(UNSEEN)}, {len(alarms)} false alarms of {len(UNSEEN_NONE)}",
        misses,
        alarms,
    )
    assert (len(misses), len(alarms)) == (2, 0)


def marked(half, language, harmless):
    """(sentences marked, sentences) of one language: about a crisis, or harmless."""
    asked = [s for s in half if s.language == language and (s.kind == "harmless") == harmless]
    return sum(bool(crisis_kinds(s.text)) for s in asked), len(asked)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_sentences_the_patterns_were_chosen_on(language):
    assert marked(DEVELOPMENT, language, harmless=False) == (15, 15)
    assert marked(DEVELOPMENT, language, harmless=True) == (0, 15)


# Sentences found of 15, as docs/data.md tells it: may rise, must not fall.
HELD_OUT_RECALL = {"en": 10, "zh": 14}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_held_out_sentences(language):
    found, asked = marked(HELD_OUT, language, harmless=False)
    alarms, harmless = marked(HELD_OUT, language, harmless=True)
    by_kind = {}
    for sentence in HELD_OUT:
        if sentence.language == language and sentence.kind != "harmless":
            by_kind.setdefault(sentence.kind, []).append(bool(crisis_kinds(sentence.text)))
    told = ", ".join(f"{kind} {sum(hits)} of {len(hits)}" for kind, hits in by_kind.items())
    print(f"held out, {language}: {found} of {asked} found ({told}); {alarms} of {harmless} harmless ones marked")
    assert (asked, harmless) == (15, 15)
    assert found >= HELD_OUT_RECALL[language]
    assert alarms == 0


def test_no_sentence_is_in_both_halves():
    texts = [sentence.text for sentence in (*DEVELOPMENT, *HELD_OUT)]
    assert len(set(texts)) == len(texts) == 120


@pytest.mark.parametrize(
    "text",
    [
        "I have made my peace and written the letters.",  # hinted at only
        "我把东西都分给朋友了，该安排的也安排好了",
        "I gave my dog to my neighbour, I will not need to worry about her soon",
    ],
)
def test_what_is_only_hinted_at_is_missed_and_the_docstring_says_so(text):
    assert crisis_kinds(text) == ()


def test_case_apostrophes_and_line_breaks_do_not_hide_anything():
    assert crisis_kinds("I DON\u2019T WANT TO\nLIVE") == ("suicide",)
    assert crisis_kinds("他打我，我想死，我自残") == ("suicide", "self-harm", "abuse") == KINDS


def test_every_pattern_that_finds_something_has_one_of_its_words_in_the_text():
    for text in SUICIDE + SELF_HARM + ABUSE + [sentence.text for sentence in (*DEVELOPMENT, *HELD_OUT)]:
        plain = text.lower().replace("\u2019", "'")
        for _, anchors, pattern in COMPILED:
            if pattern.search(plain):
                assert any(anchor in plain for anchor in anchors), (text, pattern.pattern)
    assert all(anchor == anchor.lower() for anchor in ANCHORS)


MASKED = [
    ("call me at 555-867-5309 tonight", "call me at [PHONE] tonight"),
    ("(415) 555 0132 is my number", "[PHONE] is my number"),
    ("+44 20 7946 0958", "[PHONE]"),
    ("+1 (415) 555-0132", "[PHONE]"),
    ("我的手机13812345678，微信同号", "我的手机[PHONE]，微信同号"),
    ("138-1234-5678", "[PHONE]"),
    ("座机010-62345678", "座机[PHONE]"),
    ("我的QQ 123456789", "我的QQ [PHONE]"),
    ("mail jane.doe+x@example.co.uk please", "mail [EMAIL] please"),
    ("邮箱是someone@example.com。", "邮箱是[EMAIL]。"),
    ("find me @jane_doe99!", "find me [HANDLE]!"),
    ("as u/some_body said", "as [HANDLE] said"),
    ("加我微信号：abc_12345", "加我微信号[HANDLE]"),
]
KEPT = [
    "call the national suicide hotline: 1-800-273-8255",
    "you can reach 1-800-273-8255 any time",
    "dial 988 now",
    "text HOME to 741741",
    "the Samaritans are at 116 123",
    "the crisis line in my county is 719-465-8365",
    "心理援助热线：010-82951332",
    "全国热线 12356",
    "希望24热线400-161-9995",
    "救助站电话13812345678，是危机热线",
    "it was 2019-2020",
    "I earn 120000 a year",
    "on 2020-03-15 at 10:30",
    "between 1500 and 2000 calories",
    "I weigh 150 lbs, 1234567 steps",
    "my exam is at 9, room 1204",
    "see you @ 5",
    "5@7",
    "there is 1.5 or 10,000,000",
    "version 1.2.3.4567",
    "3/4 of us",
    "我今年18岁，体重120",
]


def test_what_is_masked_and_what_stays():
    misses = [text for text, expected in MASKED if mask_pii(text)[0] != expected]
    alarms = [text for text in KEPT if mask_pii(text)[0] != text]
    print(f"{len(misses)} misses of {len(MASKED)}, {len(alarms)} false alarms of {len(KEPT)}")
    assert (misses, alarms) == ([], [])


def test_masks_are_counted_and_a_crisis_line_in_another_line_keeps_nothing():
    text, counts = mask_pii("the suicide hotline is there\ncall me: 555-867-5309 or a@b.org, @me_too")
    assert text == "the suicide hotline is there\ncall me: [PHONE] or [EMAIL], [HANDLE]"
    assert counts == {"phone": 1, "email": 1, "handle": 1}
    assert mask_pii("hotline 555-867-5309")[1] == {"crisis line kept": 1}
    assert mask_pii(text)[0] == text


@pytest.mark.parametrize("number", sorted(CRISIS_LINES))
def test_known_crisis_lines_stay_also_where_nothing_says_what_they_are(number):
    assert mask_pii(f"call {number} please")[0] == f"call {number} please"


def test_every_anchor_is_found_by_the_first_look():
    for anchor in ANCHORS:
        if anchor.isascii():
            assert any(sign in anchor for sign in LETTERS), anchor
        else:
            assert all(anchor in _first_look(text)[0] for text in (anchor, f"在{anchor}", f"{anchor}\U0001f600")), (
                anchor
            )
    assert all(_first_look(text)[1] for sign in LETTERS for text in (sign, f"在{sign}", f"{sign}在"))
    assert _first_look("我今天去上班。") == (set(), False)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(COMPILED).flatmap(lambda term: st.tuples(st.just(term[1]), st.from_regex(term[2]))))
def test_whatever_a_pattern_finds_holds_one_of_its_words(drawn):
    anchors, text = drawn
    assert any(anchor in text for anchor in anchors), (anchors, text)


pieces = st.one_of(
    st.sampled_from([*ANCHORS, *SUICIDE, "我想", "myself", "\u212aill", "he ", "me"]), st.text(max_size=5)
)


def kinds_without_a_first_look(text):
    for curly in "\u2019\u2018\u02bc":
        text = text.replace(curly, "'")
    lowered = text.replace("\n", " ").lower()
    literal = FIGURES.sub(" ~ ", lowered)
    found = {kind for kind, _, pattern in COMPILED if pattern.search(lowered) and pattern.search(literal)}
    return tuple(kind for kind in KINDS if kind in found)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=5), st.sampled_from(["", " "]), st.sampled_from([str, str.upper, str.title]))
def test_the_first_look_misses_nothing(parts, between, case):
    text = case(between.join(parts))
    found = kinds_without_a_first_look(text)
    assert crisis_kinds(text) == found
    if found:
        assert may_have_crisis(["", text, "x"])


def test_the_first_look_changes_nothing_in_the_sentences_of_these_tests():
    texts = [sentence.text for sentence in (*DEVELOPMENT, *HELD_OUT)]
    for text in [*texts, *SUICIDE, *SELF_HARM, *ABUSE, *NONE, *UNSEEN, *UNSEEN_NONE]:
        assert crisis_kinds(text) == kinds_without_a_first_look(text), text


def test_the_first_look_changes_nothing_in_real_dialogues(real_data):
    found = []
    for path in sorted((real_data / "smile" / "raw").glob("*.json"))[:60]:
        texts = [turn["content"] for turn in json.loads(path.read_text(encoding="utf-8"))]
        kinds = [kinds_without_a_first_look(text) for text in texts]
        assert [crisis_kinds(text) for text in texts] == kinds, path.name
        assert may_have_crisis(texts) or not any(kinds), path.name
        found += filter(None, kinds)
    assert found
