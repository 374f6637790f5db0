"""What a generative scorer is asked, in our own words, and how its reply is read strictly."""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from data_prep.prompt import Prompt, load_prompt
from data_prep.records import Dialogue, Language, Speaker
from data_prep.rubric import Dimension

SPEAKERS: dict[Language, dict[Speaker, str]] = {
    "en": {"seeker": "Seeker: ", "supporter": "Supporter: "},
    "zh": {"seeker": "求助者：", "supporter": "支持者："},
}

# A whole number that stands alone: no sign, decimal, fraction or percentage belongs to it.
ALONE = re.compile(r"(?<![\d.,/+\-−–])(?:0|[1-9][0-9]*)(?![\d/%％])(?![.,]\d)")
ANY_NUMBER = re.compile(r"[+\-−]?\d+(?:[.,/]\d+)*")
BEFORE = re.compile(r"[\s*_`\"'“”「（(【\[]*")
AFTER = re.compile(r"\s*分?[\s*_`\"'“”」）)】\].。!！]*")
FIRST = re.compile(r"\s*分?[*_`\"'”」）)】\]]*\s*(?:[.。,，:：;；\n].*)", re.DOTALL)


class JudgePrompt(Protocol):
    """How a dialogue is asked about: in our words, or in the official ones."""

    def text(self, dialogue: Dialogue, dimension: Dimension) -> str: ...

    def reference(self) -> dict[str, Any]: ...


def quoted(dialogue: Dialogue, language: Language) -> str:
    """One line an utterance, as a JSON string, so that none can pass for a line of another speaker."""
    names = SPEAKERS[language]
    return "\n".join(names[turn.speaker] + json.dumps(turn.text, ensure_ascii=False) for turn in dialogue.turns)


def quoted_card(dialogue: Dialogue, language: Language) -> str:
    """The role card as a JSON string, or that nothing is known."""
    if dialogue.card is None:
        return "未知" if language == "zh" else "not known"
    return json.dumps(dialogue.card.as_text(), ensure_ascii=False)


@dataclass(frozen=True)
class OwnPrompt:
    """Dialogue, rubric, request, from a template that has both languages; the dialogue's language is used.

    `order` of the anchors and another `language` of the words around the dialogue are for checks of a judge.
    """

    prompt: Prompt
    order: Literal["ascending", "descending"] = "ascending"
    language: Language | None = None

    @classmethod
    def load(cls, name: str = "judge") -> "OwnPrompt":
        return cls(load_prompt(name))

    def text(self, dialogue: Dialogue, dimension: Dimension) -> str:
        """Utterances are quoted as JSON strings, so that none can pass for a line of another speaker."""
        language = self.language or dialogue.language
        low, high = dimension.scale
        colon = "：" if language == "zh" else ": "
        return self.prompt.render(
            language,
            card=quoted_card(dialogue, language),
            dialogue=quoted(dialogue, language),
            title=getattr(dimension.title, language),
            question=getattr(dimension.question, language),
            anchors="\n".join(
                f"{level}{colon}{getattr(dimension.anchors[level], language)}"
                for level in (dimension.levels() if self.order == "ascending" else reversed(dimension.levels()))
            ),
            low=str(low),
            high=str(high),
        )

    def reference(self) -> dict[str, Any]:
        changed = {"order": self.order} if self.order != "ascending" else {}
        return {**self.prompt.reference(), **changed, **({"language": self.language} if self.language else {})}


def parse_level(reply: str, levels: range) -> int | None:
    """The level a reply names, or None: strict, so that a reply which must be guessed at is missing.

    The reply must hold one number and no other; it is a whole number of the scale; and it stands at the beginning,
    followed by a full stop, comma, colon or line end, or at the end. "3", "**3**", "3分。", "3. It is fluent." and
    "I give it a 3." are 3. "4 out of 10", "3/4", "3.5", "-1", "2 suggestions" and "7" on a scale to 4 are None.
    """
    found = ANY_NUMBER.findall(reply)
    alone = list(ALONE.finditer(reply))
    if len(found) != 1 or len(alone) != 1:
        return None
    before, after = reply[: alone[0].start()], reply[alone[0].end() :]
    last = AFTER.fullmatch(after) is not None
    first = BEFORE.fullmatch(before) is not None and FIRST.fullmatch(after) is not None
    level = int(alone[0].group())
    return level if (last or first) and level in levels else None
