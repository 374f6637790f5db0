"""What cleaning does to one text: entities, invisible characters, whitespace, masks. Each counts what it did.

A text in which there is nothing to do comes back as it was, to the character.
"""

import html
import re
from collections import Counter
from html.entities import html5

from data_prep.masking_pii import mask_pii

Counts = Counter[str]

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
BREAK = re.compile(r"<\s*br\s*/?\s*>", re.IGNORECASE)
# `&amp;amp;amp;lt;`, escaped many times over, is undone in one go.
AMPERSANDS = re.compile(r"&(?:(?:amp|#0{0,5}38|#[xX]0{0,4}26);)+")
# Joiners belong to emoji and to scripts other than these; beside Latin and Chinese letters they say nothing.
BESIDE = r"[\x00-\x7f\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"
ZERO_WIDTH = re.compile(
    r"[\u200b\u2060\ufeff\u180e\u00ad]"
    rf"|(?:(?<={BESIDE})|\A)[\u200c\u200d]+|[\u200c\u200d]+(?={BESIDE}|\Z)"
)
LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
SPACES = re.compile("[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
AROUND_LINE = re.compile(" ?\n ?")
BLANK_LINES = re.compile("\n{3,}")
# What is looked for first, in all texts of a dialogue joined, begun and ended by NUL: where none of the strings and not
# the pattern is found, the step has nothing to do. Searching plain strings is many times faster than a pattern.
ESCAPED = ("&", "<")
INVISIBLE = ("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u180e", "\u00ad")
UNTIDY = (
    *("\r", "\t", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"),
    *map(chr, range(0x2000, 0x200B)),
    *("  ", " \n", "\n ", "\n\n\n", " \0", "\n\0", "\0 ", "\0\n"),
)
# Where neither of these is found in the same joined texts, the three steps above have nothing to do, and no text is
# blank (the separators \x1c to \x1f are blank to Python, though no step above knows them).
UNUSUAL = re.compile(
    "[&<\r\t\v\f\x1c-\x1f\x85\xa0\xad\u1680\u180e\u2000-\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff]"
)
UNUSUAL_EDGE = re.compile("[ \n\0](?:(?<= )[ \n\0]|(?<=\n)(?:[ \0]|\n\n)|(?<=\0)[ \n\0])")
PERSONAL = ("@", "u/", "微信号", "qq号", "QQ号", "Qq号", "qQ号")
PERSONAL_TOO = re.compile(r"[0-9]{3}|[wW](?i:echat id)")


def _character(match: re.Match[str]) -> str:
    """An entity's character; names nobody defined and numbers of no character are text and stay."""
    name = match[0][1:]
    if not name.startswith("#"):
        return html5.get(name, match[0])
    found = html.unescape(match[0])
    return found if found and found != "\ufffd" else match[0]


def unescape(text: str, counts: Counts) -> str:
    """HTML entities as their characters and <br> as a line break, also where they were escaped several times."""
    found = text
    while True:
        once = BREAK.sub("\n", ENTITY.sub(_character, AMPERSANDS.sub("&", found)))
        if once == found:
            break
        found = once
    counts["texts"] += found != text
    return found


def drop_zero_width(text: str, counts: Counts) -> str:
    """Without BOMs, zero-width spaces, soft hyphens, and joiners that join nothing."""
    changed, found = ZERO_WIDTH.subn("", text)
    counts["characters removed"] += found
    return changed


def tidy(text: str, counts: Counts) -> str:
    """Line ends as \\n, one space for several of any kind, none at the edges of lines, at most one blank line."""
    changed = AROUND_LINE.sub("\n", SPACES.sub(" ", LINE_ENDS.sub("\n", text)))
    changed = BLANK_LINES.sub("\n\n", changed).strip(" \n")
    counts["texts"] += changed != text
    return changed


def mask(text: str, counts: Counts) -> str:
    """Phone numbers, e-mail addresses and handles masked; kept crisis lines are no change and are not counted."""
    changed, found = mask_pii(text)
    counts.update({kind: number for kind, number in found.items() if kind in ("phone", "email", "handle")})
    return changed
