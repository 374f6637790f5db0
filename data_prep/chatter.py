"""Task chatter: sentences about the annotation task's own buttons, survey and pay, not about the seeker's trouble.

Crowd-sourced dialogues end with one side asking the other to press "quit" and fill in the survey. The patterns are
conservative: a sentence must speak of operating the interface ("press quit", "take the survey"), of who can end the
chat, or of both being paid. Quitting a job, doing surveys for money and being a crowd worker are talk, and stay.
"""

import re

PRESS = r"(?:press|click|hit|push|select|use|tap)(?:ing|ed)?"
END = r"(?:end|close|finish|exit|quit|leave|complete)"
TALK = r"(?:(?:the|this|our) )?(?:chat|conversation|session|discussion|hit|therapy session)"
QUIT = r"[\"'(\u201c]*(?:quit|finish|finali[sz]e|exit|submit|end)\b"
SMILEY = r"(?i:[:;=]-?[)(dp](?![a-z]))"
# A sentence ends with its mark, a smiley or the line; what stands in brackets is one of its own.
SENTENCE = re.compile(
    r"(?s)\([^()\n]*(?:[:;] ?\)|\)|(?=\n)|\Z)\)?"
    rf"|(?:(?!{SMILEY}|[.!?\n(]).|\.(?=\w))+(?:{SMILEY}|[.!?]+|\n)?"
    rf"|{SMILEY}|[.!?\n]+|."
)
THE = r"(?:on |the |that |your |red |blue ){0,4}"
SURVEY = r"(?:take|do|finish|complete|fill(?: out| in)?) (?:the|a) (?:short )?(?:survey|questionn?aire?)\b"
CHATTER = re.compile(
    "|".join(
        (
            # operating the interface
            rf"\b{PRESS} {THE}{QUIT}(?! (?:smoking|drinking|my|your|his|her|the job|a job))",
            rf"\b{PRESS} {THE}(?:\w+ ){{0,4}}button\b(?=.*\b(?:survey|bottom|end|finish|quit|session|chat)\b)",
            r"\b(?:quit|finish|exit|submit|end|survey)\b[\w \"'&/]{0,20}\bbutton\b",
            r"\b(?:finish|finali[sz]e) (?:and|&) (?:quit|exit)\b",
            rf"\b(?:button|quit|finish)\b.*\b{SURVEY}|\b(?:quit|exit|leave)\b.{{0,20}}\b{SURVEY}",
            rf"^\W*(?:and |then |please |just |don't forget to |remember to )*{SURVEY}|^\W*finish survey\b",
            # who can end the chat
            rf"\byou (?:have|need|will have|would have) to (?:be the (?:one|first) to )?(?:{END} {TALK}|press quit)\b",
            r"\byou (?:have|need|will have|would have) to (?:be the (?:one|first) to )?quit (?:first|from)\b",
            rf"\b(?:you can|feel free to|please|pls|can you|could you) (?:please )?{END} (?:out )?{TALK}\b",
            rf"\b(?:i can(?:'t|not| not)|not able to|unable to) {END} (?:it|{TALK}) (?:from|at|on)? ?(?:my|this)\b",
            r"\bi (?:can't|cannot|can not|am not able to)(?: do (?:it|so)| press quit)? ?(?:at|on|from|in)? ?"
            r"(?:my|this)(?: own)? (?:end|side)\b",
            r"\b(?:done|do it|quit) (?:at|from|on|by) your (?:end|side|first)\b",
            # pay
            r"\b(?:we|you)(?: both)?(?: are| will|'ll|'re| won't| can't)?(?: not)?(?: going to)? (?:be|get) paid\b"
            r"(?=.*\b(?:quit|press|survey|submit)\b)",
            r"\b(?:quit|press|survey|submit)\b.*\b(?:be|get) paid\b",
            r"\bneither of us (?:will|would|gets?|is|are)(?: be| get)? paid\b",
            r"\b(?:wrap|finish(?:ed)?|completed?|enjoyed|end of) (?:up )?(?:this (?:hit|task|survey)|the hit)\b",
            r"\bwe\b.{0,25} completed the task\b",
            r"\b(?:bonus|pay(?:ment)?|paid) for (?:this|the) (?:task|hit)\b",
        )
    ),
    re.IGNORECASE,
)
# Words one of which occurs in every sentence of the above: most turns are done with here.
LIKELY = re.compile(
    r"(?i)\b(?:quit|survey|button|finish|end|paid|hit|task|exit|submit|questionn?aire?|close|leave|complete|side)\b"
)


def without_chatter(text: str) -> tuple[str, int]:
    """The text without its sentences of task chatter, and how many there were; unchanged where there were none.

    A text of which no letter is left (a smiley, a bracket) becomes empty.
    """
    if not LIKELY.search(text):
        return text, 0
    plain = text.replace("\u2019", "'")
    if not CHATTER.search(plain):
        return text, 0
    kept, cut = [], 0
    for sentence in SENTENCE.finditer(plain):
        if CHATTER.search(sentence[0]):
            cut += 1
        else:
            kept.append(text[sentence.start() : sentence.end()])
    if not cut:
        return text, 0
    rest = "".join(kept).strip()
    return (rest if any(char.isalnum() for char in re.sub(SMILEY, "", rest)) else ""), cut
