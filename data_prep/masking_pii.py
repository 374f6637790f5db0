"""Masks phone numbers, e-mail addresses and handles in a text; crisis lines stay: they are help, not a leak.

[PHONE], [EMAIL] and [HANDLE] take their place. A number is a phone number when it is written like one: eleven digits
of a Chinese mobile, an area code and a number, a North American or an international number. Years, sums, dates and
short numbers are left alone. A number is kept when it is a known crisis line or stands near a word for one in the
same line.
"""

import re
from collections import Counter

# Digits of known crisis lines and emergency numbers, without country code. Short codes are never masked in any case.
# Looked up, with the public page that gives the number; those without a page are from memory.
CRISIS_LINES = frozenset(
    {
        # United States and Canada: 988 and the former lifeline (stayanotherday.com), crisis text line and SAMHSA
        # (internationalmentalhealth.org), domestic violence (ovc.ojp.gov), Trevor Project (theodysseyonline.com, its
        # article on it), Canada's former line (news reports), sexual assault (rainn.org; in digits span.state.gov)
        *("988", "8002738255", "741741", "8006624357", "8007997233", "8664887386", "8334564566", "8006564673"),
        # United Kingdom and Ireland: Samaritans (samaritans.org), Childline (kshsafety.com, after the NHS), Shout
        # (giveusashout.org); Australia: Lifeline and Beyond Blue (tandemcarers.org.au)
        *("116123", "08001111", "85258", "131114", "1300224636"),
        # China: psychological aid 12356 (People's Daily, 25 December 2024), youth 12355 (tellerreport.com), Beijing's
        # line from mobiles and from land lines (bhlgh.com, the hospital that runs it), Hope 24 (xinlizaixian.com, after
        # China National Radio), Lifeline (britishchambershanghai.org), women 12338 (lg.gov.cn), legal aid 12348
        # (plnmw.com)
        *("12356", "12355", "01082951332", "8008101117", "4001619995", "4008211215", "12338", "12348"),
        # Hong Kong: Samaritan Befrienders, two numbers, The Samaritans, Suicide Prevention Services (csrp.hku.hk)
        *("23892222", "23892223", "28960000", "23820000"),
        # Taiwan: 1925 and Lifeline 1995 (udn.com, kch.org.tw)
        *("1925", "1995"),
        # Emergency: 911 (internationalmentalhealth.org), 999 (csrp.hku.hk, giveusashout.org), 110 and 120
        # (sz12333.net.cn, on Suzhou's 12356); from memory: 112 and 000
        *("911", "999", "110", "120", "112", "000"),
    }
)
HOTLINE_WORDS = re.compile(
    r"(?i)\b(?:hot ?lines?|help ?lines?|life ?lines?|crisis|suicide|samaritans|child ?line|emergency|text ?line|"
    r"warm ?lines?)\b|热线|熱線|援助|危机|危機|求助电话|救助|咨询电话|心理援助|自杀|生命线|紧急"
)
# Characters on each side of a number in which a word for a hotline keeps it.
NEAR = 60
PHONE = re.compile(
    r"(?<![A-Za-z0-9_.+/#-])(?:"
    r"\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}"  # international
    r"|(?:\+?1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[.-]|\d{3} (?=\d{3}[ .-]\d{4}))\d{3}[ .-]?\d{4}"  # North American
    r"|(?:\+?86[ -]?)?1[3-9]\d[ -]?\d{4}[ -]?\d{4}"  # Chinese mobile
    r"|0\d{2,3}[ -]\d{7,8}"  # Chinese land line
    r"|0\d{3,4} \d{3} ?\d{3,4}|07\d{3} ?\d{6}"  # United Kingdom
    r"|[48]00[ -]\d{3,4}[ -]\d{3,4}"  # Chinese toll-free
    r"|(?:(?<=[话机号信Qq])|(?<=[话机号信Qq][:：是为 ]))\d{7,12}"  # said to be a number by the word before it
    r")(?![A-Za-z0-9_/-]|\.\d)"
)
EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9][\w.+-]*@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b",
    re.ASCII,
)
HANDLE = re.compile(
    r"(?<![A-Za-z0-9_@./])@(?=\w*[A-Za-z\u3400-\u9fff])(?:[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])+|\w{2,30})(?!@)"
    r"|(?<![\w/])/?u/[A-Za-z0-9_-]{3,20}\b"
    r"|(?i:(?<=微信号)|(?<=wechat id)|(?<=qq号))[是为:： ]{1,3}[A-Za-z0-9][A-Za-z0-9_-]{4,19}"
)
# Countries' codes in front of a crisis line.
COUNTRY = re.compile(r"^(?:1(?=8\d{9}$)|86(?=\d{8,})|44(?=\d{6,})|61(?=\d{6,}))")


def _is_crisis_line(number: str, line: str, start: int, end: int) -> bool:
    digits = re.sub(r"\D", "", number)
    if (
        digits in CRISIS_LINES
        or COUNTRY.sub("", digits) in CRISIS_LINES
        or f"0{COUNTRY.sub('', digits)}" in CRISIS_LINES
    ):
        return True
    return HOTLINE_WORDS.search(line[max(0, start - NEAR) : end + NEAR]) is not None


def _mask_line(line: str, counts: Counter[str]) -> str:
    def replaced(kind: str, match: re.Match[str]) -> str:
        counts[kind] += 1
        return f"[{kind.upper()}]"

    def phone(match: re.Match[str]) -> str:
        if _is_crisis_line(match[0], match.string, match.start(), match.end()):
            counts["crisis line kept"] += 1
            return match[0]
        return replaced("phone", match)

    line = EMAIL.sub(lambda match: replaced("email", match), line)
    line = PHONE.sub(phone, line)
    return HANDLE.sub(lambda match: replaced("handle", match), line)


def mask_pii(text: str) -> tuple[str, Counter[str]]:
    """The text with phone numbers, e-mail addresses and handles masked, and how many of each (and of kept lines).

    Looks at each line by itself, so joining turns by line breaks changes nothing.
    """
    counts: Counter[str] = Counter()
    return "\n".join(_mask_line(line, counts) for line in text.split("\n")), counts
