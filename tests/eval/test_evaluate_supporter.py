"""A supporter over real dialogues: histories, resuming, a server, figures, correlations with ratings, and mistakes."""

import json

import pytest
from typer.testing import CliRunner

import esckit
from data_prep.errors import UserError
from data_prep.prompt import load_prompt
from data_prep.records import Dialogue, Turn
from eval.chat_models import load_chat_model
from eval.chat_models.base import Reply, Request, Sampling, Stats
from eval.evaluate_supporter import chance, compare, evaluate_supporter, named_strategies
from eval.metrics import Pair, figures, measure
from eval.replies import ReplyRecord, answer, reference_turns, split_strategy
from eval.replies_folder import LINES, open_replies
from tests.openai_server import SERVER_ERROR, OpenAIServer
from tests.train.made import dialogue, read_lines, write_lines
from train.rows import ChatFormat

HOW = ChatFormat("supporter", load_prompt("supporter"), load_prompt("greeting"), 2048)
GREEDY = Sampling(max_new_tokens=6, temperature=0, top_p=1)


def made(count=3, opening="seeker", language="en"):
    says = ["I feel sad", "Why are you sad?", "my job", "What happened at your job?", "I lost it", "I am sorry to hear"]
    return [
        dialogue(f"d{n}", *says[: 2 + 2 * (n % 3)], card=False, opening=opening) | {"language": language}
        for n in range(count)
    ]


def located(rows):
    return [(f"made.jsonl:{n}", Dialogue.model_validate(row)) for n, row in enumerate(rows, start=1)]


def evaluate(*arguments, code=0):
    done = CliRunner().invoke(esckit.app, ["evaluate", *map(str, arguments)], env={"COLUMNS": "200"})
    if isinstance(done.exception, UserError):
        assert code == 2, done.exception
        return str(done.exception)
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


# ---- turns


def test_a_history_is_the_real_one_up_to_the_turn():
    (turns,) = reference_turns(located(made()[2:]), HOW).dialogues
    assert [turn.reference for turn in turns] == [
        "Why are you sad?",
        "What happened at your job?",
        "I am sorry to hear",
    ]
    assert [message["role"] for message in turns[1].history] == ["system", "user", "assistant", "user"]
    assert turns[1].history[2]["content"] == "Why are you sad?"
    assert [turn.key for turn in turns] == [("d2", 1), ("d2", 2), ("d2", 3)]


def test_what_cannot_be_compared_is_left_out_and_counted():
    opens = dialogue("a", "Hello", "I am sad", "Why?", card=False)
    empty = dialogue("b", "I am sad", "", card=False, opening="seeker")
    found = reference_turns(located([opens, empty]), HOW)
    assert [turn.key for turn in found.all()] == [("a", 2)]
    assert found.left_out == {
        "turns that open a dialogue: nothing to reply to": 1,
        "turns that are empty: no reference": 1,
        "dialogues without a turn that is left": 1,
    }


def test_strategies_come_from_the_prefix_or_from_the_turn():
    assert split_strategy("[Question] Why?") == ("Question", "Why?")
    assert split_strategy("[Questions] Why?") == (None, "[Questions] Why?")
    said = Dialogue(
        id="a",
        language="en",
        source="made",
        turns=(
            Turn(speaker="seeker", text="x"),
            Turn(speaker="supporter", text="Why?", strategy="Question"),
            Turn(speaker="seeker", text="y"),
            Turn(speaker="supporter", text="[Information] There is help."),
        ),
    )
    (turns,) = reference_turns([("a:1", said)], HOW).dialogues
    assert [(turn.strategy, turn.reference) for turn in turns] == [
        ("Question", "Why?"),
        ("Information", "There is help."),
    ]


# ---- asking


def test_replies_are_those_of_each_history_alone_and_a_prefix_is_read_once(tiny_model):
    turns = reference_turns(located(made()), HOW)
    model = load_chat_model(f"hf:{tiny_model}")
    found = {one.key: one for step in answer(turns.dialogues, model, GREEDY, batch_size=2) for one in step}
    assert set(found) == {turn.key for turn in turns.all()}
    alone = load_chat_model(f"hf:{tiny_model}")
    prompts = 0
    for turn in turns.all():
        (reply,) = alone.reply([Request("x", turn.history, 0)], GREEDY)
        alone.forget()
        assert found[turn.key].reply == (reply.text or None)
        prompts += reply.prompt_tokens
    assert model.stats.prompt_read + model.stats.prompt_reused == prompts
    assert model.stats.prompt_reused > 0.4 * prompts


def test_resuming_asks_what_is_missing_and_what_failed_in_passing(tmp_path):
    class Counting:
        name, context_length, stats = "made", 10**6, Stats()
        fails = True

        def __init__(self):
            self.asked = []

        def describe(self):
            return {"kind": "made"}

        def forget(self):
            pass

        def reply(self, requests, sampling):
            self.asked += [(one.conversation, sum(m["role"] == "user" for m in one.messages)) for one in requests]
            return [
                Reply("", failure="timeout") if self.fails and "d1" in one.conversation else Reply("ok", "stop")
                for one in requests
            ]

    model = Counting()
    turns = reference_turns(located(made()), HOW)
    with open_replies(tmp_path / "out", {"a": 1}) as folder:
        steps = answer(turns.dialogues, model, GREEDY, batch_size=2, done=folder.done())
        folder.add(next(steps))  # then stopped
    with open(tmp_path / "out" / LINES, "ab") as torn:
        torn.write(b'{"dialogue": "d')
    first = list(model.asked)
    assert first == [("d2/supporter", 1), ("d1/supporter", 1)]
    model.fails = False
    with open_replies(tmp_path / "out", {"a": 1}) as folder:
        assert "incomplete" in folder.note
        for records in answer(turns.dialogues, model, GREEDY, batch_size=2, done=folder.done()):
            folder.add(records)
        assert all(record.reply == "ok" for record in folder.replies().values())
        assert len(folder.replies()) == 6
    again = model.asked[2:]
    assert ("d2/supporter", 1) not in again
    assert ("d1/supporter", 1) in again
    assert len(again) == 5
    with pytest.raises(UserError, match="begun with other settings"):
        open_replies(tmp_path / "out", {"a": 2})


# ---- figures


def records(turns, text):
    return {
        turn.key: ReplyRecord(dialogue=turn.dialogue, turn=turn.turn, reply=text(turn), finish="stop")
        for turn in turns
        if text(turn) is not None
    }


def test_a_perfect_supporter_has_full_marks_and_missing_replies_are_in_no_figure():
    turns = reference_turns(located(made(6)), HOW).all()
    perfect = records(turns, lambda turn: None if turn.key == ("d2", 3) else f"[Question] {turn.reference}")
    found = evaluate_supporter(turns, perfect)
    assert (found.turns, found.replies, found.missing) == (12, 11, {"not asked": 1})
    (english,) = found.languages
    for name in ("esckit", "esconv", "nlpcc2025"):
        assert english.definitions[name]["bleu4"].mean == pytest.approx(100)
        assert english.definitions[name]["rouge_l"].mean == pytest.approx(100)
    assert english.task8 is None
    assert english.task8_lacks == ["extrema", "g_score"]
    assert found.strategies is None  # the references have none
    with pytest.raises(UserError, match="no reply at all \\(12 not asked\\)"):
        evaluate_supporter(turns, {})


def test_two_languages_are_measured_apart():
    rows = made(2) + [row | {"id": row["id"] + "z"} for row in made(2, language="zh")]
    turns = reference_turns(located(rows), HOW).all()
    found = evaluate_supporter(turns, records(turns, lambda turn: "I am sorry"))
    assert [part.language for part in found.languages] == ["en", "zh"]
    assert set(found.languages[1].definitions) == {"esckit", "esconv"}


def test_strategies_that_replies_name():
    rows = made(6)
    for row in rows:
        for number, turn in enumerate(turn for turn in row["turns"] if turn["speaker"] == "supporter"):
            turn["strategy"] = ("Question", "Question", "Others")[number]
    turns = reference_turns(located(rows), HOW).all()
    said = records(turns, lambda turn: "hm" if turn.turn == 2 else f"[{turn.strategy}] hm")
    found = named_strategies(turns, said)
    assert (found.turns, found.unnamed) == (12, 4)
    assert found.accuracy.mean == pytest.approx(8 / 12)
    # Question: 6 of 10 named; Others: 2 of 2: F1 2·6/(6+10) and 1.
    assert found.macro_f1.mean == pytest.approx((12 / 16 + 1) / 2)
    assert named_strategies(turns, records(turns, lambda turn: "hm")) is None


def test_two_supporters_are_compared_on_the_turns_that_both_replied_to():
    turns = reference_turns(located(made(30)), HOW).all()
    good = records(turns, lambda turn: turn.reference if turn.dialogue != "d3" else None)
    bad = records(turns, lambda turn: "I am sorry to hear" if turn.turn == 1 else "my job")
    found = compare(turns, good, bad)["en"]
    both = [turn for turn in turns if turn.dialogue != "d3"]
    means = [
        figures(measure([Pair(t.dialogue, "en", said[t.key].reply, t.reference) for t in both]))["rouge_l"].mean
        for said in (good, bad)
    ]
    assert found["rouge_l"].mean == pytest.approx(means[0] - means[1])
    assert found["rouge_l"].low > 0
    assert "distinct2" not in found


def test_chance_is_real_replies_of_other_dialogues():
    rows = [dialogue(f"d{n}", "hi", f"only {n}", card=False, opening="seeker") for n in range(9)]
    turns = reference_turns(located(rows), HOW).all()
    (found,) = chance(turns)
    assert found.replies == 9
    assert found.definitions["esckit"]["distinct1"].mean == pytest.approx(100 * 10 / 18)  # every reply once
    assert found.definitions["esckit"]["rouge_l"].mean == pytest.approx(50)  # "only", never the number
    assert chance(turns[:1]) == []


# ---- the command


def test_the_command_prints_both_tables_keeps_replies_and_goes_on(tiny_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", made(5))
    command = [
        f"hf:{tiny_model}",
        "--on",
        data,
        "--side",
        "supporter",
        "--max-new-tokens",
        5,
        "--out",
        tmp_path / "out",
    ]
    found = evaluate(*command, "--json")
    (name,) = found["models"]
    assert found["models"][name]["mean"] > 1
    assert found["replies"][name]["turns"] == 9
    lines = (tmp_path / "out" / LINES).read_bytes()
    shown = evaluate(*command)
    assert (tmp_path / "out" / LINES).read_bytes() == lines  # nothing was asked again
    for words in (
        "Perplexity of supporter turns",
        "nlpcc2025",
        "METEOR (exact, stem)",
        "chance",
        "no NLPCC 2025 task 8 overall",
    ):
        assert words in " ".join(shown.split())
    assert json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8")) == found
    assert "| BLEU-2 |" in (tmp_path / "out" / "figures.md").read_text(encoding="utf-8")
    assert "begun with other settings" in evaluate(
        *command[:-4], "--max-new-tokens", 6, "--out", tmp_path / "out", code=2
    )


def test_a_supporter_on_a_server_and_its_faults(tmp_path):
    rows = made(4)
    data = write_lines(tmp_path / "d.jsonl", rows)
    replies = {"I feel sad": "Why are you sad?", "my job": "What happened?", "I lost it": "<b>sorry</b> | 你好"}

    def fails(body):
        return SERVER_ERROR if body["messages"][-1]["content"] == "my job" and server.broken else None

    with OpenAIServer(lambda body: replies[body["messages"][-1]["content"]], fault_when=fails) as server:
        server.broken = True
        url = f"openai:made@{server.url}"
        command = [url, "--on", data, "--out", tmp_path / "out", "--set", "attempts=1"]
        found = evaluate(*command, "--json", code=1)
        (said,) = found["replies"].values()
        assert said["missing"] == {"error": 2}
        assert said["replies"] == 5
        assert found["models"] == {}
        calls = len(server.calls)
        server.broken = False
        found = evaluate(*command, "--json")
        (said,) = found["replies"].values()
        assert (said["replies"], said["missing"]) == (7, {})
        assert len(server.calls) - calls == 2  # only what had failed
        system = load_prompt("supporter").render("en")
        assert all(call.body["messages"][0] == {"role": "system", "content": system} for call in server.calls)
        page = (tmp_path / "out" / "figures.md").read_text(encoding="utf-8")
        assert "replies in 4 dialogues (en)" in page


def test_replies_of_a_file_are_measured_beside_ratings_within_and_between_models(tmp_path):
    rows = made(9)
    data = write_lines(tmp_path / "d.jsonl", rows)
    texts = ["Why are you sad?", "Why sad", "okay then", "I am here to help you now"]

    def replayed(model):
        found = []
        for n, row in enumerate(rows):
            turns = [
                turn | {"text": texts[(n + model) % 4]} if turn["speaker"] == "supporter" else turn
                for turn in row["turns"]
            ]
            found.append(row | {"turns": turns})
        return write_lines(tmp_path / f"said{model}.jsonl", found)

    def rated(model):
        return write_lines(
            tmp_path / f"ratings{model}.jsonl",
            [
                {
                    "dialogue_id": f"d{n}",
                    "rater": "a",
                    "rubric": "esc_eval",
                    "dimension": "overall",
                    "value": (n + model) % 4,
                }
                for n in range(9)
            ],
        )

    def command(model):
        return [f"replay:{replayed(model)}", "--on", data, "--side", "supporter", "--ratings", rated(model)]

    first = evaluate(*command(0), "--out", tmp_path / "a", "--json")
    one = first["correlations"]["overall"]["rouge_l"]
    assert (one["replies"], one["models"]) == (9, 1)
    assert one["overall"]["mean"] < 0  # the higher its number, the less of the reference is in it
    assert "needs at least 3 models" in one["between"]["reason"]
    evaluate(*command(1), "--out", tmp_path / "b")
    found = evaluate(*command(2), "--beside", tmp_path / "a", "--beside", tmp_path / "b", "--json")
    one = found["correlations"]["overall"]["rouge_l"]
    assert (one["replies"], one["models"]) == (27, 3)
    assert one["between"]["mean"] is not None
    assert "length held constant" in " ".join(evaluate(*command(2)).split())
    assert "is the one that is evaluated" in evaluate(*command(0), "--beside", tmp_path / "a", code=2)
    assert "holds no by_dialogue" in evaluate(*command(0), "--beside", tmp_path, code=2)


def test_vectors_and_an_encoder_give_their_figures(tiny_model, tiny_encoder, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", made(3))
    said = write_lines(tmp_path / "said.jsonl", made(3))
    vectors = tmp_path / "v.txt"
    vectors.write_text("why 1 0\nare 0 1\nsad 1 1\nsorry 0 2\njob 2 0\n", encoding="utf-8")
    command = [f"replay:{said}", "--on", data, "--json"]
    found = evaluate(*command, "--vectors", vectors, "--bertscore", tiny_encoder, "--g-score", 80)
    (part,) = next(iter(found["replies"].values()))["languages"]
    assert part["definitions"]["esckit"]["extrema"]["mean"] == pytest.approx(100)
    assert part["definitions"]["esckit"]["bertscore"]["mean"] == pytest.approx(100, abs=1e-3)
    assert part["task8_lacks"] == []
    assert 0 < part["task8"] < 100
    plain = evaluate(*command)
    (part,) = next(iter(plain["replies"].values()))["languages"]
    assert not {"extrema", "bertscore"} & set(part["definitions"]["esckit"])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--side", "seeker", "--vectors", "v.txt"], "--vectors is for a supporter's replies"),
        (["--side", "supporter", "--no-replies", "--out", "x"], "--out is for a supporter's replies"),
        (["--side", "both"], "expected seeker or supporter"),
        (["--level", "mode"], "--level is for a scorer"),
        (["--side", "supporter", "--beside", "x"], "give them with --ratings"),
        (["--side", "supporter", "--top-p", "0"], "--top-p is 0"),
        (["--side", "supporter", "--set", "attempts=2"], "'attempts' is an option of openai: models"),
        (["--side", "supporter", "--vectors", "none.txt"], "none.txt: file not found"),
    ],
)
def test_mistakes_are_one_line(more, says, tiny_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", made(1))
    line = evaluate(f"hf:{tiny_model}", "--on", data, *more, code=2)
    assert says in line
    assert "\n" not in line


def test_what_a_model_was_trained_as_is_what_it_is_measured_as(tiny_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", made(1))
    (folder := tmp_path / "model").mkdir()
    for file in tiny_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    recipe = "kind: supporter\ndata: {prompt: supporter_plain}\n"
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    done = CliRunner().invoke(esckit.app, ["evaluate", str(folder), "--on", str(data), "--no-replies", "--json"])
    found = json.loads(done.stdout)
    assert found["side"] == "supporter"
    assert "replies" not in found
    assert "system prompt supporter_plain" in done.stderr
    given = evaluate(folder, "--on", data, "--no-replies", "--prompt", "supporter", "--json")
    assert given["tokens"] == found["tokens"]
    assert given["models"] != found["models"]  # the prompt counts
    assert read_lines(data)[0]["id"] == "d0"
