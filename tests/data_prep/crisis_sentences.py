"""Sentences to measure the crisis flag on: 60 that should be marked and 60 harmless ones that look like them.

All were written for this file; none is of a real person. HELD_OUT was written first, before the lexicon in
data_prep/crisis.py was looked at, and must not be used to choose its patterns: a sentence that is missed there stays
missed until something learnt elsewhere finds it. Patterns may be chosen on DEVELOPMENT. One hand wrote both halves and
the patterns, so the figures flatter.
"""

from typing import NamedTuple


class Sentence(NamedTuple):
    """One turn of a seeker. `kind` is what it speaks of; "harmless" ones only sound like it."""

    language: str  # "en" | "zh"
    kind: str  # "ideation" | "plan" | "self-harm" | "home abuse" | "sexual violence" | "indirect" | "harmless"
    text: str


def _half(texts: dict[tuple[str, str], tuple[str, ...]]) -> tuple[Sentence, ...]:
    return tuple(Sentence(language, kind, text) for (language, kind), rows in texts.items() for text in rows)


HELD_OUT = _half(
    {
        ("en", "ideation"): (
            "Lately I keep thinking about ending it all and I can't switch the thought off.",
            "I've been having suicidal thoughts since the divorce papers came.",
            "Honestly I just want to die, I've felt that way for weeks now.",
        ),
        ("en", "plan"): (
            "I've saved up enough of my sleeping pills to take them all on Friday night.",
            "I wrote the letters to my kids yesterday and I know which bridge I'm going to jump off.",
        ),
        ("en", "self-harm"): (
            "I've started cutting myself again, mostly on my thighs where nobody looks.",
            "When it gets too loud in my head I burn my arm with a lighter.",
            "I punch the wall until my knuckles bleed because I deserve to hurt.",
        ),
        ("en", "home abuse"): (
            "My husband hit me again last night and the kids saw everything.",
            "Dad locks me in my room and beats me with his belt whenever my grades drop.",
        ),
        ("en", "sexual violence"): (
            "I was raped at a party two years ago and I've never told anyone.",
            "My uncle used to touch me at night when I was nine.",
        ),
        ("en", "indirect"): (
            "Everyone would be better off without me, they just don't say it.",
            "I don't see the point of waking up tomorrow anymore.",
            "I just want to go to sleep and never wake up.",
        ),
        ("zh", "ideation"): (
            "我最近总是想死，怎么都控制不住这个念头。",
            "离婚以后我一直有自杀的想法，不敢跟别人说。",
            "我真的不想活了，每天都是煎熬。",
        ),
        ("zh", "plan"): (
            "安眠药我已经攒够了，打算周末一口气全吃下去。",
            "遗书我昨晚写好了，就放在枕头底下。",
        ),
        ("zh", "self-harm"): (
            "我又开始用刀片划手臂了，看到血才觉得轻松。",
            "难受的时候我就拿烟头烫自己。",
            "我经常用头撞墙，撞到麻木为止。",
        ),
        ("zh", "home abuse"): (
            "我老公喝多了就打我，昨天当着孩子的面把我推到地上。",
            "我爸一不高兴就拿皮带抽我，身上全是淤青。",
        ),
        ("zh", "sexual violence"): (
            "大二那年我被人强奸了，到现在都没告诉家里。",
            "小时候表哥对我做过那种事，他摸我下面，还叫我别说出去。",
        ),
        ("zh", "indirect"): (
            "活着没意思，一点盼头都没有。",
            "要是没有我，他们都会过得更好吧。",
            "好想就这样睡过去，再也不要醒来。",
        ),
        ("en", "harmless"): (
            "I was dying of laughter when she told that story.",
            "This job is killing me, three deadlines in one week.",
            "I'd kill for a decent cup of coffee right now.",
            "My phone died halfway through the interview and I panicked.",
            "I'm dead tired after the night shift, but it went fine.",
            "My brother and I fight over the remote like we're still ten.",
            "I bombed the exam and wanted the ground to swallow me.",
            "My feet are killing me after all that dancing at the wedding.",
            "I cut my finger chopping onions, so he finished dinner.",
            "He beats me at chess every single Sunday.",
            "I want to end my lease early, but the landlord won't let me.",
            "My mother would die of embarrassment if she saw this kitchen.",
            "I took my blood pressure pills this morning like the doctor said.",
            "We jumped off the pier into the lake, it was freezing.",
            "I'm sick to death of hearing about the merger.",
        ),
        ("zh", "harmless"): (
            "昨天那个段子笑死我了，到现在还想笑。",
            "今天加班到十点，真的累死了。",
            "奶茶店排队的人太多，等死我了。",
            "我想死你们了，过年一定回家聚聚。",
            "这道菜好吃死了，下次还点。",
            "手机又死机了，论文差点没保存。",
            "切菜的时候不小心割到手指，贴个创可贴就好了。",
            "他打我电话的时候我正在开会，没接到。",
            "考试又考砸了，丢死人了。",
            "周末打算去跳伞，既兴奋又害怕。",
            "老板的要求多得要命，我都习惯了。",
            "儿子下棋总是赢我，我一点办法都没有。",
            "家里的绿萝快要枯死了，该换盆了。",
            "我不想活动，只想躺在沙发上看剧。",
            "辣死我了，快给我一杯冰水。",
        ),
    }
)

DEVELOPMENT = _half(
    {
        ("en", "ideation"): (
            "I'm thinking of killing myself and it scares me how calm I feel.",
            "There are nights when I would rather be dead than face my boss again.",
            "I can't go on living like this, I want out of this life.",
        ),
        ("en", "plan"): (
            "I bought a rope last week and it is hanging ready in the garage.",
            "I've hidden enough tablets in my drawer to make sure I don't survive.",
        ),
        ("en", "self-harm"): (
            "I slice my forearms with a razor blade when I can't cope.",
            "I've been stubbing out cigarettes on my skin.",
            "I bang my head against the wall until I see stars.",
        ),
        ("en", "home abuse"): (
            "My boyfriend pushed me down the stairs and said it was my fault.",
            "Mom throws things at me and calls me worthless, I'm afraid to go home.",
        ),
        ("en", "sexual violence"): (
            "He forced me to have sex with him even though I kept saying no.",
            "My stepdad came into my room and touched me when I was eleven.",
        ),
        ("en", "indirect"): (
            "My family would be happier if I were gone.",
            "I'm just a burden and nobody would miss me.",
            "I wish I could disappear and never have been born.",
        ),
        ("zh", "ideation"): (
            "我反复出现轻生的念头，越来越频繁。",
            "我好几次都不想继续活下去了。",
            "有时候真想一了百了。",
        ),
        ("zh", "plan"): (
            "我连绳子都买好了，就差哪天下决心。",
            "我查过吃多少片药会死，也写好了告别信。",
        ),
        ("zh", "self-harm"): (
            "压力一大我就用小刀在胳膊上划口子。",
            "我会狠狠地打自己耳光，掐自己的大腿。",
            "我总忍不住把自己的手咬出血。",
        ),
        ("zh", "home abuse"): (
            "男朋友吵架的时候掐住我的脖子不放。",
            "我妈小时候天天用衣架打我，打到站不起来。",
        ),
        ("zh", "sexual violence"): (
            "他强迫我跟他发生性关系，我不敢报警。",
            "邻居叔叔在我七岁的时候摸过我的身体。",
        ),
        ("zh", "indirect"): (
            "我就是大家的累赘，我消失了谁都不会在意。",
            "真希望自己从来没有出生过。",
            "活着太累了，什么时候才能解脱。",
        ),
        ("en", "harmless"): (
            "I laughed so hard I thought I'd die.",
            "My boss will kill me if I miss this deadline.",
            "I'm starving, I could murder a burger.",
            "The suspense of that show is killing me.",
            "I'd die without my morning coffee.",
            "My sister hit me with great news, she's pregnant.",
            "I wish I could disappear to a beach for two weeks.",
            "The kids beat me to the front seat again.",
            "He touched me deeply with what he said at the funeral.",
            "My back hurts so much after moving the furniture.",
            "I cut my arm on the fence while gardening.",
            "The tablets the dentist gave me make me sleepy.",
            "Nobody would miss me if I left the party early.",
            "I bought a rope for the boat last week.",
            "They forced me to work overtime again.",
        ),
        ("zh", "harmless"): (
            "这只猫可爱死了。",
            "我妈要是知道我挂科，非打死我不可。",
            "高铁晚点两小时，急死人了。",
            "最近忙得要死，连饭都没空吃。",
            "我爸天天用旧手机打我微信电话。",
            "领导在会上点名表扬，尴尬死了。",
            "今天搬家，胳膊被箱子划了一道口子。",
            "真想消失几天，去海边度个假。",
            "孩子咬自己的手指甲，怎么改？",
            "他买好了绳子和帐篷，准备去露营。",
            "老师摸了摸我的头，让我别紧张。",
            "终于考完试，彻底解脱了。",
            "夏天太热，晒死我了。",
            "这个游戏里我又死了三次。",
            "医生开的药一次吃多少片？",
        ),
    }
)
