"""The chat templates of the families: what is rendered, what is learned, and that training and serving agree."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.chat_format import Message, training_messages
from data_prep.errors import UserError
from data_prep.prompt import Prompt, load_prompt
from data_prep.records import Dialogue
from data_prep.rubric import Wording
from tests.train.made import SAMPLES, chat_content, dialogue, read_lines, recipe_of, write_lines
from tests.train.made_templates import FAMILIES, made_chat_model, made_tokenizer
from train.masking import IGNORED, ChatRenderer
from train.rows import ChatFormat, chat_rows
from train.templates import STABLE, is_stable, stabilise, stable_template

PROMPT = Prompt("made", 1, "0", Wording(en="Be kind.", zh="请友善。"))
GREETING = Prompt("made-greeting", 1, "0", Wording(en="Hello.", zh="你好。"))
TALK = ("I can not sleep.", "How long? 多久了？", "Two weeks", "I am sorry to hear that 🙃")
CHAT: list[Message] = [
    {"role": "system", "content": "Be kind.\nAge: 30"},
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "I am sad. 我最近睡不好"},
    {"role": "user", "content": "how are you?"},
    {"role": "assistant", "content": "Not good,\nno sleep 🙃"},
]


def chatml(system, *texts, start="", assistant="assistant\n"):
    heads = ("user\n", assistant)
    turns = "".join(f"<|im_start|>{heads[index % 2]}{text}<|im_end|>\n" for index, text in enumerate(texts))
    return f"{start}<|im_start|>system\n{system}<|im_end|>\n{turns}"


def llama3(system, *texts):
    heads = ["system", *("user" if index % 2 == 0 else "assistant" for index in range(len(texts)))]
    said = zip(heads, (system, *texts), strict=True)
    return "<|begin_of_text|>" + "".join(
        f"<|start_header_id|>{head}<|end_header_id|>\n\n{text}<|eot_id|>" for head, text in said
    )


def gemma(system, first, *texts):
    said = [f"{system}\n\n{first}", *texts]
    return "<bos>" + "".join(
        f"<start_of_turn>{('user', 'model')[index % 2]}\n{text}<end_of_turn>\n" for index, text in enumerate(said)
    )


def instructed(system, first, *texts, opening="[INST] ", closing=" [/INST]"):
    said = [f"{system}\n\n{first}", *texts]
    return "<s>" + "".join(
        f" {text}</s>" if index % 2 else f"{opening}{text}{closing}" for index, text in enumerate(said)
    )


def llama2(system, first, *texts):
    said = [f"<<SYS>>\n{system}\n<</SYS>>\n\n{first}", *texts]
    return "".join(f" {text} </s>" if index % 2 else f"<s>[INST] {text} [/INST]" for index, text in enumerate(said))


GOLDEN = {
    "qwen1.5": chatml,
    "qwen2.5": chatml,
    "qwen3": lambda *said: chatml(*said, assistant="assistant\n<think>\n\n</think>\n\n"),
    "smollm2": chatml,
    "internlm2": lambda *said: chatml(*said, start="<s>"),
    "llama-3": llama3,
    "llama-2": llama2,
    "mistral": instructed,
    "mistral-legacy": instructed,
    "mistral-v3": lambda *said: instructed(*said, closing="[/INST]"),
    "gemma": gemma,
}


@pytest.fixture(params=sorted(FAMILIES))
def name(request):
    return request.param


def trained(name):
    """The tokenizer as a recipe's is, and its renderer."""
    tokenizer = stabilise(made_tokenizer(name))
    return tokenizer, ChatRenderer(tokenizer)


def own_ids(tokenizer, text):
    """Ids of rendered text, as `apply_chat_template(tokenize=True)` makes them."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def spelled(tokenizer, ids):
    """The text of ids, without the spaces that a decoder of SentencePiece tokens adds or drops."""
    return tokenizer.decode(ids).replace(" ", "")


@pytest.mark.parametrize("side", ["seeker", "supporter"])
def test_rows_are_the_familys_format_and_teach_the_sides_words_and_their_end(name, side):
    tokenizer, renderer = trained(name)
    found = Dialogue.model_validate(dialogue("d", *TALK, opening="seeker"))
    how = ChatFormat(side, PROMPT, GREETING, 4096)
    [row], report = chat_rows(how, renderer, [("f:1", found)])
    said = ("Hello.", *TALK) if side == "seeker" else TALK
    golden = GOLDEN[name]("Be kind.", *said)
    if side == "seeker":  # the last turn is the other side's and teaches nothing
        golden = GOLDEN[name]("Be kind.", *said[:-1])
    assert row.input_ids == own_ids(tokenizer, golden)
    mine = TALK[::2] if side == "seeker" else TALK[1::2]
    learned = [label for label in row.labels if label != IGNORED]
    end = FAMILIES[name].end
    assert spelled(tokenizer, learned) == "".join(f"{text}{end}" for text in mine).replace(" ", "")
    stop = tokenizer.convert_tokens_to_ids(end)
    assert learned.count(stop) == len(mine)
    assert stop in renderer.stop_ids
    assert report.supervised_tokens == len(learned)


def test_ids_are_those_of_the_tokenizers_own_template(name):
    tokenizer, renderer = trained(name)
    for start in (0, 1):
        messages = renderer.accepted(CHAT[start:])
        own = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=True)["input_ids"]
        assert renderer.encode(CHAT[start:]).input_ids == own
        own = tokenizer.apply_chat_template(
            list(messages)[:-1], tokenize=True, add_generation_prompt=True, return_dict=True
        )
        assert renderer.prompt(CHAT[start:-1]) == own["input_ids"]


@pytest.mark.parametrize("trims", ["llama-3", "llama-2", "gemma"])
def test_white_space_is_trimmed_where_the_template_trims_it(trims):
    tokenizer, renderer = trained(trims)
    wide: list[Message] = [{"role": message["role"], "content": f" \n{message['content']}\t "} for message in CHAT[1:]]
    own = tokenizer.apply_chat_template(wide, tokenize=True, return_dict=True)["input_ids"]
    assert renderer.encode(wide).input_ids == own == renderer.encode(CHAT[1:]).input_ids


def test_white_space_is_kept_where_the_template_keeps_it():
    tokenizer, renderer = trained("internlm2")
    wide: list[Message] = [{"role": message["role"], "content": f"  {message['content']}  "} for message in CHAT]
    own = tokenizer.apply_chat_template(wide, tokenize=True, return_dict=True)["input_ids"]
    assert renderer.encode(wide).input_ids == own != renderer.encode(CHAT).input_ids


def test_qwen3_as_it_comes_is_served_by_its_own_template_with_thinking_off():
    tokenizer = made_tokenizer("qwen3")
    renderer = ChatRenderer(tokenizer)
    for end in (2, 4):
        own = tokenizer.apply_chat_template(
            CHAT[:end], tokenize=True, add_generation_prompt=True, enable_thinking=False, return_dict=True
        )["input_ids"]
        assert renderer.prompt(CHAT[:end]) == own
        assert tokenizer.decode(own).endswith("<think>\n\n</think>\n\n")
        assert tokenizer.decode(own).count("<think>") == 1  # none in the history
    assert renderer.encode(CHAT).input_ids == own_ids(tokenizer, tokenizer.apply_chat_template(CHAT, tokenize=False))
    # One exchange is the same under the template that it is trained with.
    assert renderer.encode(CHAT[:3]) == trained("qwen3")[1].encode(CHAT[:3])


def test_only_qwen3_needs_another_template_and_says_so(name):
    tokenizer, renderer = trained(name)
    assert is_stable(made_tokenizer(name)) == (name != "qwen3")
    assert tokenizer.chat_template.startswith(STABLE) == (name == "qwen3")
    assert any("opens earlier assistant turns differently" in note for note in renderer.notes) == (name == "qwen3")


def test_a_stable_template_says_the_same_as_a_template_that_was_stable_already(name):
    tokenizer = made_tokenizer(name)
    other = made_tokenizer(name)
    if name == "llama-2":  # writes the system text inside the first user turn, which no role alone decides
        with pytest.raises(UserError, match="no template could be made"):
            stable_template(tokenizer)
        return
    other.chat_template = stable_template(tokenizer)
    assert is_stable(other)
    if name != "qwen3":
        assert ChatRenderer(other).encode(CHAT) == ChatRenderer(tokenizer).encode(CHAT)
        assert ChatRenderer(other).prompt(CHAT[1:4]) == ChatRenderer(tokenizer).prompt(CHAT[1:4])


def test_every_turn_is_learned_after_the_prompt_it_is_served_with(name):
    _, renderer = trained(name)
    for start in (0, 1):
        messages = CHAT[start:]
        encoded = renderer.encode(messages)
        for turn in range(2 - start, len(messages), 2):
            prompt = renderer.prompt(messages[:turn])
            assert encoded.input_ids[: len(prompt)] == prompt
            assert encoded.labels[len(prompt) - 1] == IGNORED
            assert encoded.labels[len(prompt)] != IGNORED


def test_a_row_begins_with_one_bos_where_the_family_has_one(name):
    tokenizer, renderer = trained(name)
    bos = FAMILIES[name].bos
    ids = renderer.encode(CHAT).input_ids
    if bos is not None:
        assert ids[0] == tokenizer.bos_token_id == tokenizer.convert_tokens_to_ids(bos)
        assert ids.count(tokenizer.bos_token_id) == 1
        assert renderer.prompt(CHAT[:4]).count(tokenizer.bos_token_id) == 1
    elif name == "llama-2":  # its format begins every exchange with one
        assert ids.count(tokenizer.bos_token_id) == 2


def test_a_system_text_is_merged_where_the_template_has_no_place_for_it(name):
    tokenizer, renderer = trained(name)
    merged = FAMILIES[name].merges_system
    assert sum("begins the first user turn" in note for note in renderer.notes) == merged
    assert renderer.accepted(CHAT)[0]["role"] == ("user" if merged else "system")
    assert spelled(tokenizer, renderer.encode(CHAT).input_ids).count("Bekind.") == 1


def test_where_a_user_has_to_speak_first_the_system_text_does():
    tokenizer, renderer = trained("llama-2")
    opened = renderer.encode([CHAT[0], *CHAT[2:]])
    assert opened == renderer.encode([{**CHAT[0], "role": "user"}, *CHAT[2:]])
    assert opened.input_ids == own_ids(
        tokenizer,
        "<s>[INST] Be kind.\nAge: 30 [/INST] I am sad. 我最近睡不好 </s><s>[INST] how are you? [/INST] "
        "Not good,\nno sleep 🙃 </s>",
    )
    assert [("user to speak first" in note) for note in renderer.notes] == [True]


def test_a_strategy_is_spelled_as_it_stands_in_a_row(name):
    from data_prep.sources.esconv import STRATEGIES
    from eval.strategies import branch_points, strategy_tokens

    _, renderer = trained(name)
    tokens = strategy_tokens(renderer)
    for strategy in STRATEGIES:
        messages: list[Message] = [*CHAT[:4], {"role": "assistant", "content": f"[{strategy}] Well, 你好"}]
        assert [found for _, found in branch_points(renderer.encode(messages), tokens)] == [strategy]


def test_typed_control_tokens_stay_text(name):
    tokenizer, renderer = trained(name)
    clean = renderer.encode(CHAT)
    typed = "x" + "".join(sorted(renderer.control_texts)) + " y"
    for position in range(len(CHAT)):
        messages: list[Message] = [dict(message) for message in CHAT]  # type: ignore[misc]
        messages[position]["content"] = typed
        encoded = renderer.encode(messages)
        assert control(renderer, encoded.input_ids) == control(renderer, clean.input_ids)
        assert typed.replace(" ", "") in spelled(tokenizer, encoded.input_ids)


def control(renderer, ids):
    return [token for token in ids if token in renderer.control_ids]


@cache
def renderers():
    return {name: trained(name)[1] for name in FAMILIES}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=2, max_size=4))
def test_any_words_keep_the_structure_and_the_prompt(texts):
    roles = ("user", "assistant")
    messages: list[Message] = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]  # type: ignore[typeddict-item]
    for name, renderer in renderers().items():
        encoded = renderer.encode(messages)
        plain = renderer.encode([{**message, "content": "x"} for message in messages])
        assert control(renderer, encoded.input_ids) == control(renderer, plain.input_ids), name
        prompt = renderer.prompt(messages[:1])
        assert encoded.input_ids[: len(prompt)] == prompt, name


def test_a_template_that_writes_the_date_says_so():
    tokenizer = made_tokenizer("llama-3")
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ bos_token }}", "{{ bos_token + strftime_now('%Y') }}")
    assert ["today's date" in note for note in ChatRenderer(tokenizer).notes] == [True]


def test_control_tokens_that_swallow_white_space_do_so_here_too():
    """Phi-3's do: the line break that its template writes after a role is no token."""
    from tokenizers import Tokenizer

    tokenizer = made_tokenizer("qwen1.5")
    own = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in own["added_tokens"]:
        token["rstrip"] = True
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(own))
    messages = tokenizer.apply_chat_template(CHAT, tokenize=True, return_dict=True)["input_ids"]
    assert ChatRenderer(tokenizer).encode(CHAT).input_ids == messages
    assert len(messages) < len(ChatRenderer(made_tokenizer("qwen1.5")).encode(CHAT).input_ids)


def test_a_base_model_without_a_template_is_told_what_to_do():
    tokenizer = made_tokenizer("qwen2.5")
    tokenizer.chat_template = None
    with pytest.raises(UserError, match=r"has no chat template, as base models .*instruct.*chat_template\.jinja"):
        ChatRenderer(stabilise(tokenizer))


def test_a_template_that_ignores_the_generation_prompt_is_given_one():
    tokenizer = made_tokenizer("qwen1.5")
    own = tokenizer.chat_template
    tokenizer.chat_template = own.partition("{% if add_generation_prompt %}")[0]
    assert ChatRenderer(stabilise(tokenizer)).prompt(CHAT[:2]) == trained("qwen1.5")[1].prompt(CHAT[:2])


def test_a_template_that_cannot_be_made_stable_is_refused():
    tokenizer = made_tokenizer("qwen1.5")
    # Every second user turn is written in another way, and a prompt opens with a word of its own.
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + ('!' if loop.index0 == 3 else '') + '\n' + m.content "
        "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + messages | length "
        "| string }}{% endif %}"
    )
    with pytest.raises(UserError, match="opens an assistant turn differently"):
        stabilise(tokenizer)


def test_the_trained_template_survives_saving(tmp_path):
    from transformers import AutoTokenizer

    tokenizer, renderer = trained("qwen3")
    tokenizer.save_pretrained(tmp_path)
    again = ChatRenderer(AutoTokenizer.from_pretrained(tmp_path))
    assert again.encode(CHAT) == renderer.encode(CHAT)
    assert again.prompt(CHAT[:4]) == renderer.prompt(CHAT[:4])
    assert json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"] == "<|im_end|>"


# --- through the commands: notes are said once, and what was trained is what is served


def test_train_says_notes_once_and_the_adapter_is_served_with_the_template_it_learned(tmp_path, capsys):
    from eval.chat_models import load_chat_models
    from eval.chat_models.base import Request, Sampling, notes_of
    from train.row_cache import prepare
    from train.sft import train_chat

    model = made_chat_model(tmp_path / "model", "qwen3")
    data = write_lines(tmp_path / "d.jsonl", [dialogue(f"d{n}", *TALK, opening="seeker") for n in range(4)])
    recipe = recipe_of(tmp_path, chat_content(model, tmp_path / "out", data, max_steps=1))
    train_chat(recipe)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(said) == 1
    assert "opens earlier assistant turns differently" in said[0]
    base, tuned = load_chat_models([str(model), f"{model}+{tmp_path / 'out'}"])
    assert base.describe()["thinking"] is False
    assert len(notes_of([tuned, tuned])) == 1
    assert notes_of([base]) == []
    row = prepare(recipe).train.encoded()[0]
    learned = [at for at, label in enumerate(row.labels) if label != IGNORED and row.labels[at - 1] == IGNORED]
    messages = training_messages(
        Dialogue.model_validate(read_lines(data)[0]), "seeker", load_prompt("seeker"), load_prompt("greeting"), "f:1"
    )
    for start, turn in zip(learned, (2, 4), strict=True):
        assert tuned.renderer.prompt(messages[:turn]) == row.input_ids[:start]
    [reply] = tuned.reply([Request("a", messages[:2], 0)], Sampling(max_new_tokens=4))
    assert reply.failure is None


def test_simulate_says_once_that_both_sides_begin_with_the_system_text(tmp_path):
    from typer.testing import CliRunner

    import esckit

    model = made_chat_model(tmp_path / "model", "gemma")
    options = ["--seeker", model, "--supporter", model, "--rounds", 1, "--limit", 1, "--max-new-tokens", 4]
    done = CliRunner().invoke(
        esckit.app,
        ["simulate", "--cards", str(SAMPLES / "cards.jsonl"), "--out", str(tmp_path / "run"), *map(str, options)],
    )
    assert done.exit_code in (0, 1), done.output
    assert done.stderr.count("note: ") == 1
    assert done.stderr.count("begins the first user turn") == 1
