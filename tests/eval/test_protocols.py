"""The official protocol: prompts from a clone that is parsed and never run, the published loop, the official file."""

import json

import pytest
from typer.testing import CliRunner

from data_prep.chat_format import seeker_system
from data_prep.errors import UserError
from data_prep.official import read_transcripts
from data_prep.official_dialogue_prompts import read_dialogue_prompts
from data_prep.records import write_records
from eval.protocols import protocol_settings, write_official
from eval.run_records import EndReason, Plan
from eval.runs import load_run, open_run
from eval.simulate import SimulationSettings, model_messages
from tests.eval.made_run import make_transcript
from tests.eval.test_simulate import Scripted, app, arguments, card, invoke, run, some_cards

# The shape of the published script, with made words.
SCRIPT = """
import torch
raise SystemExit("this file is never run")
class Model():
    def __call__(self, message):
        if(message[0]['role']!="system"):
            message.insert(0,{"role": "system", "content": 'Made "system" {{ card }} words'})
def run(args):
    for index, item in enumerate(data):
        if(args.language=="zh"):
            prompt="请扮演：“"+item['base']+\\
            "\\n 像真人一样。😞"
            message_ill=[{"role": "system", "content": prompt}]
            message_ill.append({"role": "user", "content": "你好！"})
        else:
            prompt="Play {% this %}:'"+item['base']+"\\n' Be human.\\\\"
            message_ill=[{"role": "system", "content": prompt}]
            message_ill.append({"role": "user", "content": "Hello, it's me!"})
"""


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "evaluate.py").write_text(SCRIPT, encoding="utf-8")
    return folder


def test_the_texts_come_out_byte_for_byte(clone):
    found = read_dialogue_prompts(clone)
    english, chinese = card("a", "x {{ y }}"), card("b", "睡不好", "zh")
    assert seeker_system(english, found.seeker) == f"Play {{% this %}}:'{english.as_text()}\n' Be human.\\"
    assert seeker_system(chinese, found.seeker) == f"请扮演：“{chinese.as_text()}\n 像真人一样。😞"
    assert found.greeting.render("en") == "Hello, it's me!"
    assert found.greeting.render("zh") == "你好！"
    assert found.supporter.render("en") == found.supporter.render("zh") == 'Made "system" {{ card }} words'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('=="zh"', '=="de"', "evaluate.py:10: the language is chosen"),
        ("item['base']+\"", 'str(item)+"', "evaluate.py:16: the prompt is put together"),
        ("+item['base']+\"", '+"', "evaluate.py:16: the prompt does not hold the role card exactly once"),
        ('"Hello, it\'s me!"', "words()", "expected one text for the user message, found 0"),
        ("import torch", "import", "evaluate.py:2: is no Python file"),
        ("prompt=", "other=", "does not choose a prompt by language"),
    ],
)
def test_a_script_of_another_shape_is_refused_with_its_line(clone, old, new, told):
    (clone / "evaluate.py").write_text(SCRIPT.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_dialogue_prompts(clone)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_supporter_never_sees_the_greeting_and_there_are_five_rounds(clone):
    settings = SimulationSettings(**protocol_settings("official", clone))
    supporter = Scripted("helper")
    [made] = run([card("a")], Scripted("role"), supporter, settings)
    assert [turn.speaker for turn in made.turns] == ["supporter", *["seeker", "supporter"] * 5]
    assert made.turns[0].text == "Hello, it's me!"
    assert model_messages(card("a"), made.turns, "supporter", settings)[:2] == [
        {"role": "system", "content": 'Made "system" {{ card }} words'},
        {"role": "user", "content": made.turns[1].text},
    ]
    assert "Hello" not in str(supporter.batches)
    described = settings.describe()
    assert described["protocol"] == "official"
    assert described["greeting"]["name"] == "official_greeting"
    assert "it's me" not in json.dumps(described)  # the words themselves stay in the clone


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"protocol": "other"}, "known: recommended, official"),
        ({"protocol": "official", "official_repo": None}, "clone https://github.com/haidequanbu/ESC-Eval"),
        ({"protocol": "official", "rounds": 3}, "fixes --rounds"),
        ({"protocol": "official", "end": "natural", "greeting": "greeting"}, "fixes --end, --greeting"),
        ({"protocol": "official", "greeting_shown_to_supporter": True}, "fixes --greeting-shown"),
        ({"end": "never"}, "known: rounds, natural"),
        ({}, "--official-repo is read for --protocol official only"),
    ],
)
def test_what_the_protocol_fixes_is_not_to_be_changed(clone, given, told):
    with pytest.raises(UserError, match=told):
        protocol_settings(**{"protocol": "recommended", "official_repo": clone, **given})


def test_the_official_file_has_the_positions_of_the_cards_and_no_faults(tmp_path):
    plan = Plan(cards=("z", "y", "x"), samples=2)
    made = [make_transcript("x"), make_transcript("y", end_reason=EndReason.supporter_error), make_transcript("z")]
    with open_run(tmp_path / "run", {"seed": 1}, plan) as writer:
        writer.add_transcripts([*made, make_transcript("y", 1)])
    files = write_official(load_run(tmp_path / "run"), tmp_path / "o.json")
    assert files == [str(tmp_path / "o-0.json"), str(tmp_path / "o-1.json")]
    found = json.loads((tmp_path / "o-0.json").read_text(encoding="utf-8"))
    assert list(found) == ["0", "2"]
    assert found["0"][:2] == ["AI assistant：Hello.", "ESC-Role：I cannot sleep."]
    assert list(json.loads((tmp_path / "o-1.json").read_text(encoding="utf-8"))) == ["1"]


def test_the_command_writes_the_official_file_beside_and_shards_and_merges(clone, tmp_path, tiny_model):
    write_records(tmp_path / "cards.jsonl", some_cards(4))
    options = {"protocol": "official", "official-repo": clone, "max-new-tokens": 4, "seed": 7}

    def command(out, **more):
        words = arguments(tmp_path, tiny_model, **options, out=tmp_path / out, **more)
        place = words.index("--rounds")
        return [*words[:place], *words[place + 2 :]]

    whole = json.loads(invoke(*command("whole"), "--json").stdout)
    assert whole["written"] == [str(tmp_path / "whole" / "official.json")]
    assert whole["budgets"] == {"seeker": 4, "supporter": 4}
    cards = some_cards(4)
    faults = {one.card.id for one in load_run(tmp_path / "whole").transcripts() if one.end_reason.is_fault}
    written = read_transcripts(tmp_path / "whole" / "official.json", "en", cards)
    assert [one.card.id for one in written] == [one.id for one in cards if one.id not in faults]
    assert all(len(one.turns) == 11 for one in written)
    for part in ("1/2", "2/2"):
        shown = CliRunner().invoke(app, command(f"part{part[0]}", shard=part))
        assert "(equal)" in shown.stdout
    from eval.runs_merge import merge_runs

    merged = merge_runs([tmp_path / "part1", tmp_path / "part2"], tmp_path / "merged")
    words = {one.key: [turn.text for turn in one.turns] for one in load_run(tmp_path / "whole").transcripts()}
    assert {one.key: [turn.text for turn in one.turns] for one in merged.transcripts()} == words
    refused = CliRunner().invoke(app, command("part1", shard="2/2"))
    assert "shard" in str(refused.exception)


def test_a_card_without_a_problem_is_one_line(tmp_path, tiny_model):
    write_records(tmp_path / "cards.jsonl", [card("a"), card("b", " ").model_copy(update={"problem": None})])
    refused = CliRunner().invoke(app, arguments(tmp_path, tiny_model))
    assert "cards.jsonl: card 'b' has no problem" in str(refused.exception)
    assert "\n" not in str(refused.exception)
