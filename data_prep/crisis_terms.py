"""The lexicon of crisis content: patterns, the words one of which each of them needs, and figures of speech."""

import re
from typing import Literal

Kind = Literal["suicide", "self-harm", "abuse"]
KINDS: tuple[Kind, ...] = ("suicide", "self-harm", "abuse")

MYSELF = r"(?:my|him|her|your|them|our|one)sel(?:f|ves)"
NOT_WANT = r"(?:do not|don't|dont|did not|didn't|no longer|not) (?:even )?(?:want|wanna|wish)(?: to)?"
WANT = (
    r"(?:want(?:ed|s)? to|wanna|wish(?:ed)? (?:i could|to)|ready to|rather|hope i|plan(?:ned|ning)? to|tr(?:y|ied) to)"
)
HURTING = (
    r"(?:beats?|beating|hits?|hitting|punch(?:es|ed|ing)?|chok(?:es?|ed|ing)|slap(?:s|ped|ping)?|kick(?:s|ed|ing)?)"
)
SOMEBODY = (
    r"(?:he|she|they|husband|wife|boyfriend|girlfriend|dad|father|mom|mum|mother|partner|ex|brother"
    r"|step(?:dad|father|mom))"
)
BODY = r"(?:(?:fore)?arms?|wrists?|thighs?|legs?|hands?|skin|stomach)"
HARMING = (
    r"(?:cut(?:s|ting)?|slic(?:e[ds]?|ing)|slash(?:es|ed|ing)?|slit(?:s|ting)?|burn(?:s|ed|t|ing)?"
    r"|scratch(?:es|ed|ing)?)"
)
YOUNG = (
    r"(?:a (?:child|kid|boy|girl)|little|small|young|\d+|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen)"
)

# Figures of speech and everyday uses, taken out of the text first.
FIGURES = re.compile(
    "|".join(
        (
            r"suicide squad|suicide doors?|die[ -]hard",
            rf"(?:kill(?:ed|ing)?|hurt(?:ing)?) {MYSELF} (?:laughing|at the gym|working out|playing|running|falling)",
            r"(?:die[ds]?|dying|dead) (?:of|from) (?:laughter|laughing|embarrassment|boredom|old age)",
            r"die[ds]? laughing",
            rf"cut(?:ting)? {MYSELF} (?:off|some|a|out|short|shaving|loose|down|while|cooking|on)",
            rf"{HARMING} (?:my|his|her) {BODY} (?:on (?:a|an|the|some)\b|while|cooking|shaving|gardening|by accident)",
            r"(?:like|as if) \w*(?: \w+){0,2} ?(?:bang|hit)ting my head|like (?:banging|hitting) my head",
            rf"burn(?:ed|t|ing)? {MYSELF} (?:out|on|cooking|while)|sho(?:t|ot|oting) {MYSELF} in the foot",
            r"(?:end|tak(?:e|ing)|took) (?:my|his|her|their) life (?:back|into|to the|in|for granted|serious\w*)\b",
            rf"{HURTING} me (?:up about|at|to (?:it|the)|back|with (?:a|the) (?:question|news|bill)|out|that|off|down)",
            r"abus(?:e|ed|ing) (?:of )?(?:alcohol|drugs|substances|the system|privileges?)",
            r"(?:trying|want(?:ed)?|going) to live (?:here|there|with|in|at|together|on|alone|near)",
            # 笑死我了, 累死了, 急死人, 想死你了: "to death" as "very"
            r"[笑累饿困热冷气急烦吓忙痛疼渴撑聊尬慕馋吵丑帅美爱乐羞堵晒闷苦难怕恨背愁]死(?:[我人你他她]|个人)?(?:了|啦|掉)?",
            r"想死[你他她][们]?了?|打死我?也|死[机板党心记磕守扛角结脑贵缠活线]|死循环|死皮赖脸|死对头|死胡同|该死|半死|跳楼[价机大]",
            r"不想活[得成在动跃]|活不下去了?的(?:植物|花|鱼)|自杀式|自杀小队|烧炭烤|虐待狂",
            r"[得的]要死|要死[要不]活",
            r"打我的?(?:电话|手机|微信|语音|视频|主意|招呼|气|喊)|打我(?:这个电话|一个措手不及)|侵犯(?:了)?(?:隐私|版权|专利)",
        )
    )
)
# Per kind: words of which one must occur for the pattern to be tried (a plain search is many times faster), pattern.
TERMS: tuple[tuple[Kind, tuple[str, ...], str], ...] = (
    ("suicide", ("suicid", "kms"), r"\bsuicid(?:e|es|al|ality|ally)\b|\bkms\b"),
    (
        "suicide",
        ("kill", "hang", "shoot", "shot"),
        rf"\b(?:kill(?:ed|ing)?|hang(?:ed|ing)?|shoot(?:ing)?|shot) {MYSELF}\b",
    ),
    (
        "suicide",
        ("my life", "own life", "his life", "her life", "eir life"),
        r"\b(?:end(?:ed|ing)?|tak(?:e|ing)|took) (?:my|his|her|their)(?: own)? life\b",
    ),
    ("suicide", ("it all",), r"\b(?:want(?:ed)? to|just|could|going to|about|of|wanna) end(?:ing)? it all\b"),
    ("suicide", ("die",), rf"\b{WANT}(?: just)? die\b"),
    (
        "suicide",
        ("dead",),
        r"\b(?:wish(?:ed)? (?:that )?i (?:was|were)|better off|rather be|want(?:ed)? to be)(?: all)? dead\b",
    ),
    (
        "suicide",
        ("live", "living", "alive", "exist"),
        rf"\b{NOT_WANT} (?:live|be alive|exist|go on living)\b(?! \w+ (?:my|the|a)\b)",
    ),
    (
        "suicide",
        ("live", "living"),
        r"\b(?:tired of living|(?:no|any|the) (?:point|reason)(?: in| to| for)? (?:living|live)|"
        r"nothing (?:left )?to live for)\b",
    ),
    (
        "suicide",
        ("living", "wake up", "waking up", "be here any"),
        rf"\b(?:not worth living|{NOT_WANT} (?:wake up|be here any ?more)|never wak(?:e|ing) up)\b",
    ),
    (
        "suicide",
        ("life", "living", "alive"),
        r"\b(?:(?:sick|tired) of (?:living|life|being alive)|give up on (?:my )?life"
        r"|(?:done with|want out of) (?:my|this) life|life (?:is not|isn't) worth"
        r"|can(?:'t|not) go on living)\b",
    ),
    (
        "suicide",
        ("without me", " gone", "dead", "die", "disappear", "burden", "miss me"),
        r"\b(?:better(?: off)?|happier|easier)(?: \w+){0,2} without me\b"
        r"|\b(?:better(?: off)?|happier|easier)(?: \w+){0,2} (?:if|once) i(?:'m| am| was| were) (?:gone|dead)\b"
        r"|\b(?:nobody|no one|no-one) (?:would|will) (?:even |really )?(?:miss me(?! (?:if|when) i (?:le|sk|we|di|go))"
        r"|(?:care|notice) if i (?:died|disappeared|(?:was|were) (?:gone|dead)))"
        r"|\bi(?:'m| am) (?:just|only|such|nothing but) a burden\b"
        r"|\bburden (?:to|on) (?:every(?:one|body)|my family)\b",
    ),
    (
        "suicide",
        ("born", "disappear", "exist"),
        r"\b(?:never|not) (?:have )?been born\b|\bwish i (?:was|were) never born\b"
        r"|\b(?:want(?:ed)? to|wanna|wish i could) (?:just )?(?:disappear|stop existing)"
        r"(?: forever)?(?= and\b|[.,;!?~]|$)",
    ),
    (
        "suicide",
        ("rope", "noose", "goodbye"),
        r"\bnoose\b|\brope\b.{0,30}\b(?:hang|neck|beam|ceiling)|\bgoodbye (?:letter|note)s?\b",
    ),
    (
        "suicide",
        ("pills", "tablets", "kill"),
        r"\b(?:hid(?:den)?|sav(?:ed|ing)(?: up)?|stockpil\w+|hoard\w+|swallow(?:ed|ing)?"
        r"|tak(?:e|en|ing) (?:all|too many)|took (?:all|too many)|bottle of"
        r"|handful of|bunch of)(?: \w+){0,4} (?:pills|tablets|painkillers)\b",
    ),
    ("suicide", ("overdos",), r"\b(?:to|about|i|by|an|of) overdos(?:e|ed|ing)\b"),
    (
        "suicide",
        ("jump",),
        r"\bjump(?:ing|ed)? (?:off|from) (?:a|the|this|my) (?:bridge|roof|building|balcony|cliff)\b",
    ),
    ("suicide", ("自杀", "自殺", "轻生", "輕生"), r"自[杀殺]|[轻輕]生"),
    (
        "suicide",
        ("寻死", "短见", "自尽", "了断", "一死了", "算了"),
        r"寻死|寻短见|自尽|自我了断|一死了之|死(?:了|掉)算了",
    ),
    (
        "suicide",
        ("死",),
        r"(?:[想要]|宁愿|不如|准备|打算|恨不得)(?:去)?死(?![了]?[你他她])|死的?(?:念头|想法)|(?:怎么|如何|怎样)(?:去)?死(?!记|扛|撑)|死了(?:就|更|最|才|也)(?:好|解脱|轻松)",
    ),
    (
        "suicide",
        ("想活", "愿活", "气活", "再活", "续活", "活不", "活够", "活着", "活下去"),
        r"(?:不想|不愿|没勇气|没有勇气)(?:再|继续)?活|活(?:不下去|够了)|活(?:着|下去)(?:真|也|还|就)?(?:没|无|有什么)(?:有|什么|啥)?意[思义]",
    ),
    (
        "suicide",
        ("个世界", "这世界", "开世界", "别世界", "个人世", "这人世", "开人世", "别人世"),
        r"(?:[想要]|准备|打算)(?:就此|彻底)?(?:离开|告别)(?:这个|这)?(?:世界|人世)",
    ),
    ("suicide", ("生命", "性命"), r"(?:结束|了结|放弃)(?:掉|了)?(?:我|自己|他|她)?的?(?:生命|性命)"),
    (
        "suicide",
        ("一了百了", "解脱", "不醒", "要醒", "想醒", "用醒", "会醒", "再醒", "出生", "生下来"),
        r"一了百了|(?:才能|求|想|想要|早点|快点)解脱|(?:再也|永远)不(?:要|想|用|会)?再?醒|不[要想]再?醒(?:过)?来"
        r"|(?:希望|宁愿|要是|如果).{0,8}没有?被?(?:出生|生下来)|不(?:应)?该(?:被)?(?:出生|生下来)",
    ),
    (
        "suicide",
        ("活着", "活下去"),
        r"活着(?:太|好|真|很|这么|那么)(?:累|苦|痛苦|煎熬|难|没劲)|没有?活(?:着|下去)的?(?:意义|动力|勇气|必要|理由)",
    ),
    (
        "suicide",
        ("累赘", "负担", "拖累", "没有我", "没了我", "少了我", "消失", "不在了", "死了"),
        r"我(?:就|只|真|简直)*是.{0,6}(?:累赘|负担|拖累)|(?:没有|没了|少了)我(?![想们]).{0,8}(?:更好|更幸福|更轻松|更开心)"
        r"|我(?:要是|如果|就算)?(?:消失|不在|死)了.{0,4}(?:谁|没人|没有人).{0,4}(?:在意|在乎|关心|难过|发现|更)",
    ),
    (
        "suicide",
        ("绳", "遗书", "告别信", "代后事", "排后事", "好后事", "了后事", "药"),
        r"绳子?(?:都|也|已经)*(?:买|准备|挂|系|绑)好|遗书|告别信|[交安](?:代|排)好?了?后事"
        r"|[多几][少几]?[片颗粒瓶].{0,4}药.{0,4}死|(?:藏|攒|囤)了?(?:很多|好多|不少|够).{0,4}药",
    ),
    (
        "suicide",
        ("跳", "上吊", "吞药", "安眠药", "烧炭"),
        r"跳楼|[想要去]跳(?:[河桥海江]|下去)|上吊|吞药|烧炭|吃(?:了|下)?(?:很多|大量|一瓶|整瓶)安眠药",
    ),
    ("self-harm", ("harm", "injur"), rf"\bself[- ]?(?:harm|injur)\w*|\b(?:harm|injur)(?:e|ed|ing)? {MYSELF}\b"),
    (
        "self-harm",
        ("cut", "hurt", "burn", "starv"),
        r"\b(?:cut(?:ting)?|hurt(?:ing)?|burn(?:ed|ing|t)?|starv(?:e|ed|ing)) (?:my|him|her|them)sel(?:f|ves)\b",
    ),
    (
        "self-harm",
        ("cut", "sli", "slash", "burn", "scratch"),
        rf"\b{HARMING} (?:my|her|his)(?: own)? {BODY}\b",
    ),
    (
        "self-harm",
        ("my head", "my own head", "cigarette", "bleed", "myself"),
        r"\b(?:bang|hit|smash|slam|bash)(?:s|es|ed|ing|ting)? my (?:own )?head (?:against|on|into)\b"
        r"|\b(?:stub\w*|put(?:ting)?) (?:out )?(?:\w+ )?cigarettes? (?:out )?on (?:my|her|his)\b"
        r"|\b(?:scratch|bit|pick)\w* .{0,25}(?:until|till) (?:it|they|i|my \w+) bleeds?\b"
        r"|\b(?:punch|hit|slap|scratch|bite|pinch)(?:es|ing|ting)? myself\b",
    ),
    ("self-harm", ("自残", "自殘", "自伤", "自傷", "自虐", "割腕"), r"自[残殘虐]|(?<!源)自[伤傷](?!害)|割腕"),
    (
        "self-harm",
        ("害自己", "害我自己", "害到", "害了", "害过", "割", "划自己", "划伤", "划了", "划破", "划我", "划手"),
        r"[伤傷]害(?:到|了|过)?(?:我)?自己(?!的)|划(?:了|伤|破)?(?:我的?|自己的?)?手[臂腕]|(?<![规计策谋])[割划](?:伤)?自己",
    ),
    (
        "self-harm",
        ("刀", "烟头", "用针", "拿针", "小针", "工针", "圆规", "打火机", "烫自己", "往自己", "在自己"),
        r"[用拿](?:小|美工)?(?:刀片?|烟头|针|圆规|打火机).{0,6}(?:胳膊|手[臂腕]|大腿|腿上|皮肤|自己)(?!的?(?:头发|衣))"
        r"|烫自己|[往在]自己.{0,6}[划割烫]",
    ),
    (
        "self-harm",
        ("打自己", "扇自己", "掐自己", "抽自己", "撞", "出血"),
        r"[打扇掐抽]自己的?(?:耳光|巴掌|脸|头|大腿|胳膊|嘴)|掐自己|自己.{0,6}[咬抓抠掐打]出血|头.{0,2}撞[墙桌地]",
    ),
    (
        "abuse",
        ("abus",),
        r"\b(?:sexual|physical|emotional|verbal|mental|domestic|child|childhood)(?:ly)? abus\w+|\babus(?:ive|ers?)\b",
    ),
    (
        "abuse",
        ("abus",),
        r"\b(?:was|were|being|been|gets?|got) (?:\w+ly )?abused\b|\babus(?:es?|ed|ing) (?:me|her|him|us|them|my)\b",
    ),
    (
        "abuse",
        ("rape", "raping", "rapist", "molest", "assault"),
        r"\brap(?:ed|es?|ist|ing) ?\b(?! seed)|\bmolest\w*|\bsexual(?:ly)? assault\w*",
    ),
    (
        "abuse",
        ("beat", "hit", "punch", "chok", "slap", "kick"),
        rf"\b{SOMEBODY}(?: \w+){{0,3}} {HURTING} (?:me|us|my (?:mom|mother|sister|kids|son|daughter))\b",
    ),
    (
        "abuse",
        ("push", "shov", "throw", "threw", " home"),
        rf"\b{SOMEBODY}(?: \w+){{0,3}} (?:push|shov|thr[eo]w)\w* me"
        r" (?:down|against|across|to the (?:floor|ground))\b"
        rf"|\b{SOMEBODY}(?: \w+){{0,3}} thr(?:ow(?:s|ing)?|ew) (?:things|stuff|\w+ ?\w*) at me\b"
        r"|\b(?:afraid|scared|terrified) (?:to go|of going) home\b",
    ),
    (
        "abuse",
        ("forc", "touch", "grop", "consent", "my will"),
        r"\bforc(?:ed?|es|ing) (?:me|her|him) (?:to have|into(?: having)?) sex\b"
        r"|\bforc(?:ed|es|ing) (?:him|her)self on\b"
        r"|\b(?:touch(?:ed|es|ing)?|groped?) me"
        rf"(?: \w+){{0,3}} (?:when i was {YOUNG}|inappropriately|sexually)\b"
        r"|\bgroped me\b|\bwithout my consent\b|\bagainst my will\b",
    ),
    ("abuse", ("violen",), r"\bdomestic violence\b|\bviolent (?:with|towards?|to) (?:me|us|her|my)\b"),
    ("abuse", ("虐待", "家暴", "庭暴力", "施暴"), r"虐待|家暴|家庭暴力|施暴"),
    (
        "abuse",
        ("性侵", "强奸", "強奸", "强姦", "強姦", "强暴", "強暴", "猥", "骚扰", "侵犯"),
        r"性侵|[强強][奸姦暴]|猥[亵褻]|性骚扰|被\w{0,4}侵犯",
    ),
    (
        "abuse",
        ("强迫", "摸", "非礼", "动手动脚"),
        r"强迫.{0,8}(?:性关系|性行为|发生关系|上床)|摸[过了我她]{0,2}的?(?:身体|下面|下体|下身|私处|隐私|胸|大腿|屁股)|非礼|动手动脚",
    ),
    (
        "abuse",
        (
            "脖子",
            "喉咙",
            "皮带",
            "衣架",
            "棍",
            "扫把",
            "扫帚",
            "鞭",
            "藤条",
            "拖鞋",
            "棒子",
            "把我",
            "敢回家",
            "怕回家",
        ),
        r"掐[住着]?我的?(?:脖子|喉咙)|[用拿](?:衣架|皮带|棍子|木棍|扫[把帚]|鞭子|藤条|拖鞋|棒子)[打抽揍][我她他孩]"
        r"|把我[推摔踹按](?:倒|下楼|[到在](?:地|墙|床))|(?:不敢|害怕)回家",
    ),
    (
        "abuse",
        ("毒打", "殴打", "手打", "打骂", "暴打", *(f"{hurt}{done}我" for hurt in "打掐踢揍" for done in ("", "了"))),
        r"毒打|殴打|动手打|被\w{0,6}(?:打骂|暴打)|[爸妈亲母公夫友婆妻他她](?:[就又会还总老常喝醉酒了后动手一直经常每天从小曾]{0,8})[打掐踢揍](?:了)?我",
    ),
)
