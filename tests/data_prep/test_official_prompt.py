"""The official prompts, read from a made clone whose score.py has the shape of the published one."""

import pytest

from data_prep.errors import UserError
from data_prep.official_prompt import official_parser, read_official_prompt
from data_prep.records import Dialogue
from data_prep.rubric import load_rubric

KEYS = ["fluency", "diversity", "empathic", "suggestion", "human", "tech", "overall"]
CALLED = ["fluecy", "diversity", "empathy", "advice worth", "humanoid", "knowledge", "liking"]
# Made rules; what matters of the published ones: long literals, typographic quotes, a stray quote, trailing newlines.
RULES = {
    "prompt_EN": [f"Rate the {key} as a rater’s helper:\n0: bad 'so'\n4: good\n" for key in KEYS],
    "prompt_ZH": [f"请给{key}打分：\n0: 差\n4: 好\n'" for key in KEYS],
}
LOOP = """
if __name__=="__main__":
    open({ran!r}, "w").close()
    dimention_list={called}
    key_list={keys}
    label_list=["0","1","2","3","4"]
    for file in os.listdir('./result/'):
        prompt_list=prompt_ZH
        for _,tem in enumerate(data.items()):
            index,item=tem
            for index_d,dimention in enumerate(dimention_list):
                tem_dict=dict()
                dialogue='\\n\\n'.join(item).replace("AI assistant","**AA**").replace("ESC-Role：","**BB**")
                prompt1=prompt_list[index_d]+"The talk: \\n"+dialogue.strip()+"\\n"
                prompt1+='By the rules, your '+dimention+' score (a number).'
"""


def script(ran, **changes):
    lists = {**RULES, **changes}
    head = "import torch\nopen('ran', 'w')\nraise SystemExit('never run')\n"
    body = "\n".join(f"{name}={value!r}" for name, value in lists.items() if name.startswith("prompt"))
    rest = LOOP.format(ran=str(ran), called=changes.get("called", CALLED), keys=changes.get("keys", KEYS))
    return head + body + rest


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "ESC-Eval"
    folder.mkdir()
    (folder / "score.py").write_text(script(tmp_path / "ran"), encoding="utf-8")
    return folder


def dialogue(language="en"):
    said = [
        ("supporter", "Hi, I am your AI assistant."),
        ("seeker", "I said ESC-Role：to him.  "),
        ("supporter", " ok "),
    ]
    turns = [{"speaker": who, "text": text} for who, text in said]
    return Dialogue.model_validate({"id": "d", "language": language, "source": "made", "turns": turns})


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_scoring_prompt_is_that_of_the_script_byte_for_byte(clone, tmp_path, language):
    prompt = read_official_prompt(clone)
    rules = RULES["prompt_EN" if language == "en" else "prompt_ZH"]
    # Inside what people said too, as the script does; only the ends of the whole dialogue are stripped.
    said = "**AA**：Hi, I am your **AA**.\n\n**BB**I said **BB**to him.  \n\n**AA**： ok"
    for dimension in load_rubric("esc_eval").dimensions:
        place = KEYS.index(dimension.official_key)
        expected = f"{rules[place]}The talk: \n{said}\nBy the rules, your {CALLED[place]} score (a number)."
        assert prompt.text(dialogue(language), dimension) == expected
    assert not (tmp_path / "ran").exists()
    assert not (clone / "ran").exists()
    assert prompt.labels() == ("0", "1", "2", "3", "4")


def test_another_wording_has_another_sha(clone, tmp_path):
    before = read_official_prompt(clone).reference()
    text = (clone / "score.py").read_text(encoding="utf-8")
    (clone / "score.py").write_text(text.replace("The talk", "The chat"), encoding="utf-8")
    assert read_official_prompt(clone / "score.py").reference() != before


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("dialogue.strip()", "eval('1')", r"score.py:\d+: the prompt is put together in a way"),
        ("dialogue.strip()", "dialogue.encode()", r"score.py:\d+: the prompt is put together in a way"),
        ("dialogue.strip()", "dialogue.strip(*item)", r"score.py:\d+: the prompt is put together in a way"),
        ("'\\n\\n'.join(item)", "'\\n\\n'.join()", r"score.py:\d+: join is called in a way"),
        ("prompt1+=", "prompt1*=", r"score.py:\d+: prompt1 is changed in a way"),
        ("prompt_EN=", "prompt_XX=", r"does not define prompt_EN"),
        ("key_list=['fluency', ", "key_list=['fluid', ", r"key_list holds 'fluid'"),
        ("key_list=['fluency', ", "key_list=[", r"prompt_EN has 7 entries and key_list 6"),
        ("import torch", "import (", r"score.py:\d+: is no Python file"),
        ('label_list=["0",', "label_list=[0,", r"score.py:\d+: label_list is no list of texts"),
    ],
)
def test_a_script_of_another_shape_is_one_line(clone, old, new, told):
    text = (clone / "score.py").read_text(encoding="utf-8")
    assert old in text
    (clone / "score.py").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=told) as raised:
        read_official_prompt(clone)
    assert "\n" not in str(raised.value)


def test_no_clone_and_no_prompt_are_one_line(clone, tmp_path):
    with pytest.raises(UserError, match=r"score.py: file not found; name your clone"):
        read_official_prompt(tmp_path)
    survey = load_rubric("esconv_survey").dimensions[0]
    with pytest.raises(UserError, match="has no prompt for the dimension"):
        read_official_prompt(clone).text(dialogue(), survey)


@pytest.mark.parametrize(
    ("reply", "level"),
    [
        ("3", 3),
        ("4 out of 10", 0),
        ("3, because two of 4 points hold", 3),
        ("15", 1),
        ("none", -1),
        ("", -1),
        ("9", -1),
    ],
)
def test_the_official_parser_has_its_faults(reply, level):
    assert official_parser(reply) == level
