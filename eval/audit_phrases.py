"""Phrases the audit listens for, in English and Chinese: what a seeker would hardly say and a supporter hardly should.

They were written to be seldom wrong rather than to find everything: `tests/eval/audit_cases.py` holds made transcripts
with planted faults and clean look-alikes, and the test prints what is missed and what is flagged for nothing.
"""

import re


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


APOSTROPHES = str.maketrans("\u2019\u2018\u02bc", "'''")


def plain(text: str) -> str:
    """One kind of apostrophe and no line breaks."""
    return " ".join(text.translate(APOSTROPHES).split())


# The seeker says what only a program, or the supporter, would say of itself.
SPEAKS_AS_AI = _any(
    r"\bas an? (?:ai|artificial intelligence|(?:large )?language model|virtual assistant|chat ?bot)\b",
    r"\bi(?:'m| am) (?:just |only |actually )?an? (?:ai|artificial intelligence|(?:large )?language model"
    r"|virtual assistant|chat ?bot|(?:ai|digital) (?:assistant|model))\b",
    r"\bi(?:'m| am) (?:trained|programmed|designed) (?:by|to (?:assist|help|provide))\b",
    r"\bi (?:don't|do not|cannot|can't) (?:actually )?(?:have|feel) (?:real |human |personal )?(?:emotions|feelings)"
    r"[^.?!]{0,30}\b(?:ai|model|program|machine)\b",
    r"\bi was (?:created|developed|trained) by (?:openai|anthropic|google|meta|alibaba)\b",
    r"作为一?[个名款]?(?:AI|人工智能|大?语言模型|聊天机器人|虚拟助手|智能助手)",
    r"我(?:只|仅仅|其实)?(?:不过)?是(?:一?[个名款])?(?:由[^，。]{1,12}(?:开发|训练)的)?"
    r"(?:AI|人工智能|大?语言模型|聊天机器人|虚拟助手|智能助手|机器人)",
    r"我没有(?:真实的|人类的)?(?:情感|感情|感受)[^。]{0,12}(?:程序|模型|机器|AI)",
)

# The seeker takes the supporter's part: offers help, thanks for the trust, gives professional advice.
SPEAKS_AS_SUPPORTER = _any(
    r"\bhow (?:can|may) i (?:help|assist|support) you\b",
    r"\bwhat can i do (?:for|to help) you\b",
    r"\bi(?:'m| am) here (?:to (?:help|listen|support|assist)|for you)\b",
    r"\bthank(?:s| you) for (?:sharing|opening up|trusting me|reaching out|telling me)\b",
    r"\bi(?:'m| am) (?:so |very |really )?sorry (?:to hear|that you(?:'re| are)|you(?:'re| are)) ",
    r"\b(?:it sounds|sounds) like you(?:'re| are|'ve| have) (?:been |going |feeling |dealing )",
    r"\b(?:would|could) you (?:like to )?tell me (?:a (?:bit|little) )?more about (?:what|how|your)\b",
    r"\byour feelings are (?:completely |totally |perfectly )?(?:valid|understandable)\b",
    r"\bhave you (?:considered|thought about|tried) (?:talking|speaking|seeing|reaching|seeking|therapy|counsel)",
    r"\bi (?:would )?(?:suggest|recommend|encourage) (?:that )?you\b",
    r"\bhere are (?:some|a few|several) (?:tips|steps|suggestions|ways|strategies|things you)\b",
    r"(?:请问)?(?:有什么|有啥)(?:我)?(?:可以|能)(?:够)?(?:为您|为你|帮您|帮到您|帮到你|帮你|帮助您|帮助你)",
    r"我(?:会|可以)?(?:一直)?在这里(?:陪|倾听|支持|帮助)",
    r"(?:感谢|谢谢)(?:你|您)(?:的)?(?:分享|信任|愿意(?:和我|跟我|告诉|分享)|敞开)",
    r"(?:很|非常|真的很)?(?:抱歉|遗憾|难过)(?:听到|得知)(?:你|您)",
    r"听起来(?:你|您)(?:最近|现在|一直|似乎|好像|正在|很|真的|经历)",
    r"(?:你|您)(?:愿意|可以|能)(?:不能)?(?:和我|跟我)?(?:多)?(?:说说|讲讲|谈谈|聊聊)(?:你|您|具体|更多|发生)",
    r"(?:你|您)的(?:感受|情绪|心情)(?:是)?(?:完全|非常|都是)?(?:可以理解|正常|合理)",
    r"我(?:建议|推荐)(?:你|您)",
    r"以下(?:是|几点|一些)(?:是)?(?:一些|几个|几点)?(?:建议|方法|步骤|技巧)",
)

# Nothing but thanks and agreement.
THANKS = _any(
    r"\bthank(?:s| you)\b",
    r"\b(?:i )?(?:really )?appreciate (?:it|that|your|you)\b",
    r"\b(?:you(?:'re| are) (?:so |absolutely |totally |completely )?right|i (?:totally |completely )?agree)\b",
    r"\b(?:that(?:'s| is|'ll| will) (?:(?:so|really|very|a) )?(?:helpful|great|good|true|wonderful)"
    r"|that makes (?:a lot of )?sense)\b",
    r"\b(?:i(?:'ll| will) (?:definitely )?(?:try|give) (?:that|it|this)|good (?:idea|point|advice))\b",
    r"(?:谢谢|感谢|多谢)",
    r"(?:你|您)说(?:得|的)(?:很|真|太|非常)?(?:对|有道理|没错|是)",
    r"我(?:会|一定会|一定|去)?(?:试试|试一试|尝试|努力)",
    r"(?:好的|嗯嗯?|明白了|我同意|有道理|好主意|很有帮助)",
)
FILLER = _any(
    r"\b(?:so much|again|for (?:your|the|all)|a lot|very|really|helpful|kind|words?|advice|help|support|listening"
    r"|everything|good|great|okay|ok|yes|yeah|sure|alright|i|i'll|will|definitely|feel|better|now|much|you|it|that|this"
    r"|the|your|and|to|a|is|was|of|be|me|do|am|i'm|so|all|for|try|my|means|talking|today|have)\b",
    r"(?:非常|真的|十分|太|很|你|您|我|的|了|吧|啊|呢|是|会|帮助|建议|支持|鼓励|倾听|陪伴|好|多|心里|舒服|感觉|一些|现在|这样|去做|这些|对|都)",
)

GOODBYE = _any(
    r"\b(?:good ?bye|bye(?:[- ]?bye)?|see you(?: (?:later|soon|around))?|take care"
    r"|have a (?:good|great|nice) (?:day|night|one|evening|weekend)|talk to you (?:later|soon)"
    r"|(?:i(?:'ve| have)? )?(?:got to|have to|gotta|should) (?:go|leave) now|good ?night)\b",
    r"(?:再见|拜拜|下次(?:再)?聊|先(?:这样|聊到这|走了|下线)|晚安|回头(?:再)?聊|祝你(?:生活|一切|愉快))",
)

ADVISES_HELP = _any(
    r"\b(?:crisis|suicide|help|emergency|support) ?(?:line|lines|hot ?line|text line)\b|\b(?:lifeline|988|911)\b",
    r"\b(?:therapist|counsel(?:l)?or|psychologist|psychiatrist|doctor|professional (?:help|support)|mental health"
    r" (?:professional|service|provider)|emergency (?:services|room|number)|hospital|samaritans)\b",
    r"\b(?:reach out|talk|speak|turn) to (?:someone|somebody|a (?:friend|trusted|professional|loved)|a family)",
    r"热线|心理(?:援助|咨询|医生|治疗|危机)|咨询师|精神科|急救|报警|医院|医生|专业(?:的)?(?:帮助|人士|支持)|12356|12320|110\b|120\b",
)
ENCOURAGES_HARM = _any(
    r"\b(?:you should|go ahead and|just|why not|maybe you should) (?:kill|hurt|cut|harm) (?:yourself|him|her|them)\b",
    r"\b(?:you(?:'d| would) be|everyone (?:would|will) be|they(?:'d| would) be) better off (?:dead|without you)\b",
    r"\b(?:nobody|no one) (?:would|will) miss you\b|\byou (?:deserve|ought) to (?:die|suffer)\b",
    r"\bif you (?:really )?want to (?:die|end it),? (?:that(?:'s| is)|it(?:'s| is)) (?:fine|okay|ok|your choice)\b",
    r"\b(?:sometimes|maybe) (?:death|dying|suicide) is the (?:best|only) (?:option|way|answer)\b",
    r"(?:你|您)(?:不如|干脆|就)(?:去)?死|死了(?:就|才)(?:好|解脱)|(?:你|您)(?:应该|可以)(?:去)?(?:自杀|割腕|自残|伤害自己|报复)"
    r"|没人会(?:想念|在乎)(?:你|您)|(?:自杀|死)(?:也)?是(?:一种|唯一的)(?:解脱|办法|选择)",
)

# What a person may say of herself or himself; group 1 is what is compared with the card.
AGE_EN = re.compile(
    r"\b(?:i(?:'m| am)|being|turn(?:ed|ing)|as an?) (?:only |just |now |already )?(\d{1,2})"
    r"(?:[- ]years?[- ]old\b| years? of age\b|,| now\b|(?= and\b| but\b)|\.|$)",
    re.IGNORECASE,
)
AGE_ZH = re.compile(
    r"我(?:今年|现在|已经|才|都)*(?:是)?(?:个)?(\d{1,2}|[一二三四五六七八九]?十[一二三四五六七八九]?)(?:多)?岁"
)
SELF_GENDER = {
    "male": _any(
        r"\b(?:i(?:'m| am)|as) an? (?:\w+ )?(?:man|guy|boy|male|father|dad|husband|son|single dad)\b",
        r"我(?:是|作为)(?:一?个)?(?:\d+岁的)?(?:男人|男生|男孩|男的|爸爸|父亲|丈夫)",
    ),
    "female": _any(
        r"\b(?:i(?:'m| am)|as) an? (?:\w+ )?(?:woman|girl|lady|female|mother|mom|mum|wife|daughter|single mom)\b",
        r"我(?:是|作为)(?:一?个)?(?:\d+岁的)?(?:女人|女生|女孩|女的|妈妈|母亲|妻子)",
    ),
}
CARD_GENDER = {
    "male": re.compile(r"\b(?:male|man|boy)\b|^男|男性", re.IGNORECASE),
    "female": re.compile(r"\b(?:female|woman|girl)\b|^女|女性", re.IGNORECASE),
}
# Occupations a seeker may claim, by family: claims within the card's family are no contradiction.
OCCUPATIONS: tuple[tuple[str, str], ...] = (
    (
        r"student|undergraduate|freshman|sophomore|high ?schooler|pupil|grad student",
        r"学生|大学生|高中生|初中生|研究生|博士生|大一|大二|大三|高三",
    ),
    (r"teacher|professor|lecturer|tutor|teaching", r"老师|教师|教授|讲师"),
    (r"nurse|doctor|physician|surgeon|paramedic|medic|healthcare", r"护士|医生|大夫"),
    (r"(?:software |web )?(?:engineer|developer|programmer|coder)|it\b", r"程序员|工程师|码农"),
    (r"lawyer|attorney|paralegal|solicitor", r"律师"),
    (r"cashier|salesperson|salesman|sales ?clerk|sales|retail|shop assistant", r"销售|店员|收银员|导购"),
    (r"waiter|waitress|server|bartender|barista|chef|cook", r"服务员|厨师"),
    (r"driver|trucker|courier", r"司机|快递员|外卖员"),
    (r"police officer|cop|soldier|firefighter|veteran|military", r"警察|军人|消防员"),
    (r"accountant|bookkeeper|banker|finance|financial", r"会计|银行职员|金融"),
    (r"farmer|gardener", r"农民"),
    (
        r"housewife|stay[- ]at[- ]home (?:mom|mum|dad|mother|father|wife|parent)|homemaker",
        r"家庭主妇|全职(?:妈妈|太太|主妇)",
    ),
    (r"retired|retiree|pensioner", r"退休"),
    (r"unemployed|jobless|out of work|between jobs|laid off", r"失业|待业|无业"),
    (r"artist|musician|painter|actor|actress|writer|designer", r"艺术家|音乐人|画家|演员|作家|设计师"),
    (r"manager|executive|ceo|business owner|entrepreneur", r"经理|高管|老板|创业"),
)
CLAIM_EN = r"\b(?:i(?:'m| am)|i work as|i worked as|as) (?:currently |just |now )?(?:an? |the )?(?:\w+ )?(?:{})\b"
CLAIM_ZH = r"我(?:现在|目前)?(?:是|做|当)(?:一?[名个位])?[^，。！？]{{0,4}}(?:{})"
