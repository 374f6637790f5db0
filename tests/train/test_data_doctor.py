"""The data doctor: every check finds what it is for, says where, and is silent about a sound file."""

import json

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from tests.conftest import CHATML
from tests.train.made import SAMPLES, dialogue, write_lines
from tests.train.made_templates import FAMILIES, made_tokenizer
from train.data_doctor import examine
from train.masking import ChatRenderer
from train.rows import ChatFormat, chat_rows, read_rows


def form(side="seeker", max_length=4096):
    return ChatFormat(side, load_prompt(side), load_prompt("greeting") if side == "seeker" else None, max_length)


def sample(identifier, *texts, system=True, **more):
    roles = ("user", "assistant")
    rows = [{"role": roles[i % 2], "content": text, "train": i % 2 == 1} for i, text in enumerate(texts)]
    head = [{"role": "system", "content": "be kind", "train": False}] if system else []
    return {"id": identifier, "side": "supporter", "messages": [*head, *rows], **more}


def check_of(file, name, tokenizer=None, **options):
    found = examine(file, tokenizer or made_tokenizer("qwen2.5"), form(**options))
    return next(check for check in found.checks if check.name == name), found


def others(found, *names):
    """Names of all other checks that are not fine."""
    return [check.name for check in found.checks if check.verdict != "ok" and check.name not in names]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_sound_file_has_no_fault_with_any_family_and_the_figures_of_training(family):
    tokenizer = made_tokenizer(family)
    for side in ("seeker", "supporter"):
        found = examine(SAMPLES / "dialogues.jsonl", tokenizer, form(side, 16384))
        rows, report = chat_rows(
            form(side, 16384), ChatRenderer(tokenizer), read_rows([str(SAMPLES / "dialogues.jsonl")], None, 0)
        )
        assert found.ok, [check.line() for check in found.checks]
        assert (found.records, found.rendered) == (report.dialogues, len(rows))
        assert (found.tokens, found.supervised_tokens) == (report.tokens, report.supervised_tokens)
        warned = others(found)
        assert warned == (["template"] if FAMILIES[family].merges_system or family in ("qwen3", "llama-2") else [])


def test_a_merged_system_text_is_a_warning_that_says_so(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", "hello")])
    check, found = check_of(file, "template", made_tokenizer("gemma"))
    assert check.verdict == "warning"
    assert "begins the first user turn" in check.text
    assert found.ok


def test_lines_that_cannot_be_read_are_counted_and_the_rest_is_looked_at(tmp_path):
    file = write_lines(
        tmp_path / "a.jsonl", [sample("a", "hi", "hello"), sample("b", "x", "y", extra=1), sample("a", "p", "q")]
    )
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"id": \n\n')
    check, found = check_of(file, "records")
    assert (check.verdict, check.count) == ("fault", 3)
    assert check.places == tuple(f"{file}:{line}" for line in (2, 3, 4))
    assert "extra" in check.text
    assert (found.records, found.rendered) == (4, 2)
    assert others(found, "records") == []


def test_unknown_roles_and_a_late_system_message(tmp_path):
    odd, late = sample("a", "hi", "hello"), sample("b", "hi", "hello")
    odd["messages"][1]["role"] = "human"
    late["messages"].insert(2, {"role": "system", "content": "x", "train": False})
    file = write_lines(tmp_path / "a.jsonl", [odd, late])
    check, found = check_of(file, "roles")
    assert (check.verdict, check.places) == ("fault", (f"{file}:1",))
    check, _ = check_of(file, "order")
    assert (check.verdict, check.places) == ("fault", (f"{file}:2",))
    assert others(found, "roles", "order") == []
    turns = dialogue("d", "a", "b")
    turns["turns"][0]["speaker"] = "therapist"
    check, _ = check_of(write_lines(tmp_path / "d.jsonl", [turns]), "roles")
    assert check.count == 1


def test_neighbours_of_one_role_are_a_warning_or_a_fault_where_the_template_refuses_them(tmp_path):
    row = sample("a", "hi", "hello", "so", "yes")
    row["messages"][3]["role"] = "assistant"
    file = write_lines(tmp_path / "a.jsonl", [row])
    check, found = check_of(file, "order")
    assert (check.verdict, check.count) == ("warning", 1)
    assert found.ok
    check, found = check_of(file, "template", made_tokenizer("gemma"))
    assert (check.verdict, check.places) == ("fault", (f"{file}:1",))
    assert "must alternate" in check.text
    assert found.rendered == 0


def test_empty_messages_are_a_fault_only_where_they_are_learned(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [sample("a", " ", "hello")])
    assert check_of(file, "empty")[0].verdict == "warning"
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hello", "\n")])
    check, found = check_of(file, "empty")
    assert (check.verdict, check.count) == ("fault", 1)
    assert not found.ok


def test_rows_without_loss_and_seekers_without_card(tmp_path):
    silent = sample("a", "hi", "hello")
    silent["messages"][2]["train"] = False
    file = write_lines(tmp_path / "a.jsonl", [silent, sample("b", "hi", "hello")])
    check, found = check_of(file, "loss")
    assert (check.verdict, check.places) == ("fault", (f"{file}:1",))
    assert others(found, "loss") == []
    alone = dialogue("a", "hello")  # of the supporter only
    file = write_lines(tmp_path / "d.jsonl", [alone, dialogue("b", "hello", "hi", card=False)])
    assert check_of(file, "loss")[0].places == (f"{file}:1",)
    check, _ = check_of(file, "card")
    assert (check.verdict, check.places) == ("fault", (f"{file}:2",))
    assert check_of(file, "card", side="supporter")[1].ok


def test_length_gives_share_and_what_training_would_refuse(tmp_path):
    long = sample("c", "hi", "word " * 300)
    turns = sample("b", *("word word word" for _ in range(20)))
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", "hello"), turns, long, sample("d", "x", "y")])
    check, found = check_of(file, "length", max_length=100)
    assert (check.verdict, check.count, check.places) == ("warning", 2, (f"{file}:2", f"{file}:3"))
    assert "(50.0%)" in check.text
    check = next(one for one in found.checks if one.name == "too long")
    assert (check.verdict, check.places) == ("fault", (f"{file}:3",))
    assert others(found, "length", "too long") == []


def test_typed_control_tokens_and_plain_marks(tmp_path):
    rows = [sample("a", "hi <|im_end|>", "hello"), sample("b", "[INST] x", "hello"), sample("c", "see </s>", "a [1] b")]
    file = write_lines(tmp_path / "a.jsonl", rows)
    check, found = check_of(file, "typed")
    assert (check.verdict, check.places) == ("warning", (f"{file}:1",))
    assert others(found, "typed") == []
    check, found = check_of(file, "typed", made_tokenizer("mistral"))
    assert check.places == (f"{file}:3",)
    check, _ = check_of(file, "marks", made_tokenizer("mistral"))
    assert (check.verdict, check.places) == ("warning", (f"{file}:2",))
    assert "[/INST], [INST]" in check.text
    assert check_of(file, "typed", made_tokenizer("mistral-v3"))[0].places == (f"{file}:2", f"{file}:3")
    assert check_of(file, "marks", made_tokenizer("mistral-v3"))[0].verdict == "ok"


def test_a_doubled_bos_and_what_other_tools_would_double(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", "hello")])
    check, _ = check_of(file, "bos", made_tokenizer("llama-3"))
    assert check.verdict == "ok"
    assert "add_special_tokens=False" in check.text
    assert "add_special_tokens" not in check_of(file, "bos", made_tokenizer("smollm2"))[0].text
    tokenizer = made_tokenizer("llama-3")
    tokenizer.chat_template = "<|begin_of_text|>" + tokenizer.chat_template
    check, found = check_of(file, "bos", tokenizer)
    assert (check.verdict, check.count) == ("fault", 1)
    assert others(found, "bos") == []


def test_a_turn_that_ends_with_what_generation_does_not_stop_on(tmp_path):
    tokenizer = made_tokenizer("qwen1.5")
    # Of the assistant's turns only the last is closed; the others are followed by the next turn's beginning, which the
    # model would learn to write.
    tokenizer.chat_template = CHATML.replace(
        "+ '<|im_end|>' + '\n' }}",
        "+ ('' if message.role == 'assistant' and not loop.last else '<|im_end|>\n') }}",
    )
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", "hello"), sample("b", "hi", "hello", "so", "yes")])
    check, found = check_of(file, "terminator", tokenizer)
    assert (check.verdict, check.places) == ("fault", (f"{file}:2",))
    assert not found.ok


def test_a_model_without_a_usable_template_is_one_fault_and_the_data_are_still_looked_at(tmp_path):
    tokenizer = made_tokenizer("qwen2.5")
    tokenizer.chat_template = None
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", " ")])
    check, found = check_of(file, "template", tokenizer)
    assert check.verdict == "fault"
    assert "no chat template" in check.text
    assert others(found) == ["empty", "template"]
    assert "terminator" not in [one.name for one in found.checks]


def test_a_file_of_something_else_is_told_as_such(tmp_path):
    with pytest.raises(UserError, match="holds role cards, expected dialogues"):
        check_of(SAMPLES / "cards.jsonl", "records")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no record"):
        check_of(empty, "records")


# --- the command


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    made_tokenizer("gemma").save_pretrained(folder)
    return folder


def run(*arguments):
    return CliRunner().invoke(esckit.app, ["data", "doctor", *map(str, arguments)])


def test_the_command_says_a_line_a_check_and_exits_1_on_a_fault(tokenizer_folder, tmp_path):
    sound = run(SAMPLES / "dialogues.jsonl", "--model", tokenizer_folder, "--side", "supporter", "--max-length", 16384)
    assert sound.exit_code == 0, sound.output
    head, *lines = sound.output.splitlines()
    assert "24 records, 24 rendered" in head
    assert {line[0] for line in lines} == {"✓", "!"}
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", " ")])
    faulty = run(file, "--model", tokenizer_folder, "--json")
    assert faulty.exit_code == 1
    content = json.loads(faulty.output)
    assert content["ok"] is False
    found = {check["name"]: check for check in content["checks"]}
    assert found["empty"]["places"] == [f"{file}:1"]
    assert found["empty"]["verdict"] == "fault"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--side is missing"),
        (("--side", "helper"), "known: seeker, supporter"),
        (("--side", "seeker", "--prompt", "nothing"), "unknown prompt"),
    ],
)
def test_mistakes_in_the_command(tokenizer_folder, options, says):
    done = run(SAMPLES / "dialogues.jsonl", "--model", tokenizer_folder, *options)
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)


def test_messages_say_their_side_themselves(tokenizer_folder, tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [sample("a", "hi", "hello")])
    done = run(file, "--model", tokenizer_folder, "--side", "seeker")
    assert "leave --side and --prompt out" in str(done.exception)


def test_a_model_is_named_as_everywhere(tokenizer_folder, tiny_model, tmp_path):
    from train.models import open_chat_tokenizer

    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tiny_model)}))
    tiny = open_chat_tokenizer(f"hf:{tiny_model}").chat_template
    assert open_chat_tokenizer(str(adapter)).chat_template == tiny
    assert open_chat_tokenizer(f"{tiny_model}+{adapter}").chat_template == tiny
    made_tokenizer("gemma").save_pretrained(adapter)
    assert "start_of_turn" in open_chat_tokenizer(f"{tiny_model}+{adapter}").chat_template
    with pytest.raises(UserError, match="known names"):
        open_chat_tokenizer("./nowhere")
