"""The paper's way to score: probabilities of the levels against plain forwards, adapters, missing, resume, memory."""

import gc
import json

import pytest
import torch
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.rubric import Rubric, load_rubric
from eval import generative_scorer
from eval.chat_models.base import Reply
from eval.generative_labels import label_forms
from eval.generative_scorer import GenerativeJudge, GenerativeSettings, find_adapters, load_generative_judge
from eval.judge import score_run
from eval.runs import append_to_run, load_run
from tests.data_prep.test_official_prompt import script
from tests.eval.made_run import make_run, make_transcript
from tests.train.made import SAMPLES, chat_content, read_lines, recipe_of
from train.masking import ChatRenderer
from train.models import load_chat_model

RUBRIC = load_rubric("esc_eval")
NAMES = RUBRIC.names()


def transcripts(count=5, language="en"):
    words = ["Hello.", "I cannot sleep.", "That sounds hard.", "It is.", "我在这里。"]
    return [
        make_transcript(f"{language}{n}", language=language, texts=[*words[:4], words[4] * (n * n + 1)])
        for n in range(count)
    ]


def judged(judge, found, batch_size=2):
    return {(one.dialogue_key, one.dimension): one for batch in judge.judge(found, batch_size) for one in batch}


@torch.no_grad()
def plain(model, renderer, text, levels):
    """Probability of every level: the whole prompt again for every spelling, nothing shared."""
    prompt = renderer.prompt([{"role": "user", "content": text}])
    found = []
    for level in levels:
        spelled = set()
        for form in (f"{level}", f" {level}"):
            ids = tuple(renderer.tokenizer(form, add_special_tokens=False)["input_ids"])
            longer = [other for other in levels if other != level and str(other).startswith(str(level))]
            spelled |= {(*ids, stop) for stop in renderer.stop_ids} if longer else {ids}
        total = 0.0
        for ids in spelled:
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
            total += float(sum(logits[len(prompt) - 1 + n, token] for n, token in enumerate(ids)).exp())
        found.append(total)
    return found


def assert_plain(judge, folder, names, adapters=None):
    found = transcripts(2) + transcripts(2, "zh")
    results = judged(judge, found)
    assert len(results) == len(found) * len(judge.rubric.dimensions)
    for dimension in map(judge.rubric.dimension, names):
        for language in ("en", "zh"):
            adapter = str(adapters / f"{dimension.name}_{language}") if adapters else None
            model, tokenizer = load_chat_model(str(folder), adapter)
            renderer = ChatRenderer(tokenizer)
            for one in found:
                if one.card.language == language:
                    text = judge.how.prompt.text(one.to_dialogue(), dimension)
                    expected = plain(model, renderer, text, dimension.levels())
                    judgment = results[one.key, dimension.name]
                    assert judgment.label_mass == pytest.approx(sum(expected), rel=1e-4)
                    assert judgment.probabilities == pytest.approx([p / sum(expected) for p in expected], rel=1e-4)
                    weighted = sum(n * p for n, p in zip(dimension.levels(), judgment.probabilities, strict=True))
                    assert judgment.expected == pytest.approx(weighted)


def wide_rubric():
    """Levels 0 to 10: one begins another, and ten is two tokens to the made tokenizer."""
    one = RUBRIC.dimensions[0].model_dump()
    wide = one | {"name": "wide", "scale": (0, 10), "anchors": {n: one["anchors"][n % 5] for n in range(11)}}
    return Rubric.model_validate({"name": "wide", "version": 1, "description": "made", "dimensions": [wide, one]})


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, tiny_model):
    """One adapter a dimension and language, of weights that change the answer a little."""
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(f"{name}_{language}" for name in NAMES for language in ("en", "zh")):
        torch.manual_seed(number)
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        model = get_peft_model(load_chat_model(str(tiny_model))[0], config)
        model.save_pretrained(folder / name)
    return folder


def test_probabilities_are_those_of_plain_forwards(tiny_model):
    assert_plain(load_generative_judge(str(tiny_model), {"en", "zh"}, min_mass=0), tiny_model, ["fluency", "overall"])


def test_levels_of_several_tokens_that_begin_each_other(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(generative_scorer, "load_rubric", lambda name: wide_rubric())
    judge = load_generative_judge(str(tiny_model), {"en", "zh"}, min_mass=0)
    labels = label_forms(judge._models["wide", "en"].renderer, range(11))
    assert len(labels.chains) > 1
    assert_plain(judge, tiny_model, ["wide"])


def test_every_dimension_and_language_has_its_adapter(tiny_model, adapters):
    judge = load_generative_judge(str(tiny_model), {"en", "zh"}, adapters=str(adapters), min_mass=0)
    assert_plain(judge, tiny_model, ["empathy"], adapters)
    assert len(set(judge.identity()["adapters"].values())) == 2 * len(NAMES)
    assert str(adapters) not in json.dumps(judge.identity())


def test_neither_batch_size_nor_order_nor_company_changes_a_score(tiny_model):
    judge = load_generative_judge(str(tiny_model), {"en"}, min_mass=0)
    found = transcripts()
    wanted = judged(judge, found, 5)
    for others in (judged(judge, found, 1), judged(judge, found[::-1], 3), judged(judge, found[2:3], 2)):
        for key, one in others.items():
            assert one.probabilities == pytest.approx(wanted[key].probabilities, abs=1e-5)


def forwards(model, work):
    """The shapes [rows, tokens] of every forward of the model while `work` runs."""
    shapes = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    work()
    handle.remove()
    return shapes


def test_one_forward_a_batch_and_adapter_and_a_dialogue_read_once_without(tiny_model, adapters):
    found = transcripts(4)
    one_each = load_generative_judge(str(tiny_model), {"en"}, adapters=str(adapters), min_mass=0)
    shapes = forwards(one_each._models["empathy", "en"]._weights.model, lambda: judged(one_each, found, 4))
    assert len(shapes) == len(NAMES)
    together = load_generative_judge(str(tiny_model), {"en"}, min_mass=0)
    shared = forwards(together._models["empathy", "en"]._weights.model, lambda: judged(together, found, 4))
    assert len(shared) == 1 + len(NAMES)
    longest = max(len(turn.text) for one in found for turn in one.turns)
    assert shared[0][1] > longest > 0
    assert sum(tokens for _, tokens in shared) < sum(tokens for _, tokens in shapes)


def test_memory_does_not_grow_with_the_number_of_dialogues(tiny_model):
    judge = load_generative_judge(str(tiny_model), {"en"}, min_mass=0)

    def held(count):
        for _ in judge.judge([make_transcript(f"c{n}") for n in range(count)], 2):
            pass
        gc.collect()
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    held(2)
    assert held(16) == held(4)


def test_little_label_mass_is_missing_and_the_mass_is_told(tiny_model):
    judge = load_generative_judge(str(tiny_model), {"en"})
    for one in judged(judge, transcripts(2)).values():
        assert one.expected is None
        assert one.probabilities is None
        assert 0 < one.label_mass < 0.5
        assert one.reason.startswith("label mass below 0.5")


@pytest.mark.parametrize("reading", ["labels", "generate"])
def test_a_dialogue_longer_than_the_context_is_missing_and_the_others_are_not(tiny_model, reading):
    judge = load_generative_judge(str(tiny_model), {"en"}, reading=reading, min_mass=0)
    long = make_transcript("long", texts=["word " * 3000, "x"])
    found = judged(judge, [long, *transcripts(2)], 3)
    assert all("context of 2048" in found["long#0", name].reason for name in NAMES)
    assert all("context" not in (one.reason or "") for key, one in found.items() if key[0] != "long#0")


def test_replies_are_read_strictly(tiny_model, monkeypatch):
    judge = load_generative_judge(str(tiny_model), {"en"}, reading="generate")
    model = judge._models["empathy", "en"]
    raw = judged(judge, transcripts(2))
    assert {one.raw for one in raw.values() if one.expected is None} - {None}
    assert model._held == {}
    said = {"en0#0": "3.", "en1#0": "4 out of 10"}
    monkeypatch.setattr(model, "reply", lambda asked, how: [Reply(said[one.conversation], "stop") for one in asked])
    found = judged(judge, transcripts(2))
    assert {(found["en0#0", name].level, found["en0#0", name].expected) for name in NAMES} == {(3, 3.0)}
    assert {found["en1#0", name].reason for name in NAMES} == {"no level could be read from the reply"}
    assert {found["en1#0", name].raw for name in NAMES} == {"4 out of 10"}


def test_a_stopped_scoring_goes_on_and_judges_nothing_twice(tiny_model, adapters, tmp_path):
    judge = load_generative_judge(str(tiny_model), {"en"}, adapters=str(adapters), min_mass=0)
    folder = make_run(tmp_path / "run", transcripts=transcripts(3))
    model = judge._models["empathy", "en"]._weights.model

    class StoppedError(Exception):
        pass

    def stop_after(count):
        seen = []

        def advance(share):
            seen.append(share)
            if len(seen) == count:
                raise StoppedError

        return advance

    with append_to_run(folder) as run, pytest.raises(StoppedError):
        score_run(run, judge, 3, stop_after(2))
    progress = []
    with append_to_run(folder) as run:
        shapes = forwards(model, lambda: score_run(run, judge, 3, progress.append))
    assert len(shapes) == len(NAMES) - 2
    found = load_run(folder).judgments()
    assert len(found) == len({(one.dialogue_key, one.dimension) for one in found}) == 3 * len(NAMES)
    assert sum(progress) == pytest.approx(3)


def test_the_official_prompt_with_the_system_text_of_the_published_code(tiny_model, tmp_path):
    clone = tmp_path / "ESC-Eval"
    clone.mkdir()
    (clone / "score.py").write_text(script(tmp_path / "ran"), encoding="utf-8")
    judge = load_generative_judge(str(tiny_model), {"en"}, official=str(clone), min_mass=0)
    (one,) = transcripts(1)
    messages = judge.how.messages(one.to_dialogue(), RUBRIC.dimension("information"))
    assert [message["role"] for message in messages] == ["user"]
    assert messages[0]["content"].startswith("Rate the suggestion")
    assert judge.identity()["prompt"]["name"] == "official"
    with_system = GenerativeSettings(judge.how.prompt, "You are InternLM")
    assert GenerativeJudge(RUBRIC, judge._models, with_system).identity() != judge.identity()
    assert with_system.messages(one.to_dialogue(), RUBRIC.dimensions[0])[0]["content"] == "You are InternLM"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"adapters": "."}, "holds no adapter folder fluency_en"),
        ({"reading": "guess"}, "--reading 'guess': expected labels or generate"),
        ({"rubric": "esconv_survey", "official": "CLONE"}, "not for rubric esconv_survey"),
        ({"official": "."}, "name your clone"),
    ],
)
def test_wrong_options_are_one_line(tiny_model, tmp_path, options, told):
    (tmp_path / "score.py").write_text(script(tmp_path / "ran"), encoding="utf-8")
    options = {key: str(tmp_path) if value == "CLONE" else value for key, value in options.items()}
    with pytest.raises(UserError, match=told) as raised:
        load_generative_judge(str(tiny_model), {"en"}, **options)
    assert "\n" not in str(raised.value)


def test_published_names_of_adapters_are_found(tmp_path):
    for key in ("fluency", "diversity", "empathic", "suggestion", "human", "tech", "overall"):
        for name in (key, f"{key}_en"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "adapter_config.json").write_text("{}", encoding="utf-8")
    found = find_adapters(tmp_path, RUBRIC, {"en", "zh"})
    assert found["skillful", "en"] == str(tmp_path / "tech_en")
    assert found["skillful", "zh"] == str(tmp_path / "tech")
    assert len(found) == 14


def test_the_command_scores_and_the_report_reads_it(tiny_model, tmp_path):
    folder = make_run(tmp_path / "run", transcripts=transcripts(3))
    command = ["score", str(folder), "--judge", f"hf:{tiny_model}", "--min-mass", "0"]
    done = CliRunner().invoke(esckit.app, command)
    assert done.exit_code == 0, done.output
    assert "3 dialogues scored by tiny-chat-labels@" in done.output
    assert CliRunner().invoke(esckit.app, ["report", str(folder)]).exit_code == 0
    for extra in (["--scorer", "x"], []):
        wrong = CliRunner().invoke(esckit.app, ["score", str(folder), *extra, *(command[2:4] if extra else [])])
        assert isinstance(wrong.exception, UserError)


def test_from_ratings_to_an_adapter_that_answers_as_the_raters_did(tiny_model, tmp_path):
    from train.sft import train_chat

    dialogues = [
        {"id": f"d{n}", "language": "en", "source": "made", "turns": [{"speaker": "supporter", "text": f"Well {n}."}]}
        for n in range(8)
    ]
    ratings = [
        {"dialogue_id": f"d{n}", "rater": "a", "rubric": "esc_eval", "dimension": "empathy", "value": 4}
        for n in range(8)
    ]
    for name, values in (("d.jsonl", dialogues), ("r.jsonl", ratings)):
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in values), encoding="utf-8")
    out = tmp_path / "set"
    command = ["data", "build", "rank", str(tmp_path / "d.jsonl"), str(tmp_path / "r.jsonl"), "--generative"]
    done = CliRunner().invoke(esckit.app, [*command, "--out", str(out), "--licence", "made=none"])
    assert done.exit_code == 0, done.output
    rows = read_lines(out / "train.empathy_en.messages.jsonl")
    assert len(rows) == 8
    assert [(message["role"], message["train"]) for message in rows[0]["messages"]] == [
        ("user", False),
        ("assistant", True),
    ]
    content = chat_content(
        tiny_model, tmp_path / "empathy_en", out / "train.empathy_en.messages.jsonl", max_steps=25, learning_rate=3e-2
    ) | {"kind": "supporter"}
    train_chat(recipe_of(tmp_path, content))
    chosen = RUBRIC.model_copy(update={"dimensions": (RUBRIC.dimension("empathy"),)})
    paths = find_adapters(tmp_path, chosen, {"en"})
    judge = load_generative_judge(f"{tiny_model}+{paths['empathy', 'en']}", {"en"})
    judge = GenerativeJudge(chosen, {("empathy", "en"): judge._models["empathy", "en"]}, judge.how)
    for one in judged(judge, transcripts(2)).values():
        assert one.level == 4
        assert one.label_mass > 0.9


def test_the_bundled_ratings_become_rows_of_both_languages(tmp_path):
    command = ["data", "build", "rank", str(SAMPLES / "rated_dialogues.jsonl"), str(SAMPLES / "ratings.jsonl")]
    done = CliRunner().invoke(esckit.app, [*command, "--generative", "--out", str(tmp_path / "set")])
    assert done.exit_code == 0, done.output
    found = {path.name.split(".")[1] for path in (tmp_path / "set").glob("train.*_*.messages.jsonl")}
    assert found >= {"empathy_en", "empathy_zh"}
