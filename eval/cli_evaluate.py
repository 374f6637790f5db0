"""`esckit evaluate`: a trained thing against held-out data."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import UserError

JUDGES, CHAT = "Scorers and judges", "Chat models"
SIDES = ("seeker", "supporter")
LEVELS = ("median", "mode")
OF_ASKED = ("adapters", "official", "reading", "min_mass")
OF_JUDGE = ("baselines_from", "group_by", "level", "probe", *OF_ASKED)
OF_CHAT = (
    *("side", "prompt", "max_length", "against", "by_turn", "strategies", "replies", "max_new_tokens", "temperature"),
    *("top_p", "seed", "model_set", "vectors", "bertscore", "g_score", "beside"),
)
OF_REPLIES = (
    *("max_new_tokens", "temperature", "top_p", "seed", "vectors", "bertscore", "g_score", "out", "ratings", "beside"),
    "rubric",
)


def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A scorer folder, or a chat model: hf:BASE+ADAPTER, openai:MODEL@URL, replay:FILE."
        ),
    ],
    on: Annotated[
        str,
        typer.Option("--on", metavar="DIALOGUES", help="Held-out dialogues (JSONL); for a judge also a run folder."),
    ],
    ratings: Annotated[
        list[str] | None,
        typer.Option(
            help="People's ratings of those dialogues (JSONL), may be repeated: MODEL is a judge, measured against "
            "them. With --side supporter: ratings of its replies there, which the text metrics are correlated with."
        ),
    ] = None,
    rubric: Annotated[
        str | None,
        typer.Option(help="Of the ratings: a name or .yaml path; for a scorer that was trained on several: which."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Also write the figures there; replies are kept and gone on with."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Dialogues read at once.")] = 4,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N dialogues.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    baselines_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIALOGUES",
            help="Training dialogues that the baselines are fitted on, their ratings among --ratings; may be "
            "repeated. Default: cross-validation over groups of the dialogues of --on.",
            rich_help_panel=JUDGES,
        ),
    ] = None,
    group_by: Annotated[
        str,
        typer.Option(
            help="What dialogues of one group share, as in data split; intervals resample groups.",
            rich_help_panel=JUDGES,
        ),
    ] = "card,situation,opening,text",
    level: Annotated[
        str,
        typer.Option(
            help="Which level a distribution stands for: median, as in scoring, or mode.", rich_help_panel=JUDGES
        ),
    ] = "median",
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also what its levels depend on: asking again, length, padding, lists, repeated advice, order of the "
            "rubric, wording, language. Judges everything seven times more.",
            rich_help_panel=JUDGES,
        ),
    ] = False,
    adapters: Annotated[
        str | None,
        typer.Option(
            help="Of a chat model as a judge: folder of one LoRA adapter a dimension and language.",
            rich_help_panel=JUDGES,
        ),
    ] = None,
    official: Annotated[
        str | None,
        typer.Option(help="Likewise: a clone of the official repository, to ask in its words.", rich_help_panel=JUDGES),
    ] = None,
    reading: Annotated[
        str,
        typer.Option(
            help="Likewise: labels (their probabilities), or generate (and read the reply strictly).",
            rich_help_panel=JUDGES,
        ),
    ] = "labels",
    min_mass: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Likewise: no score where all labels have less probability.", rich_help_panel=JUDGES
        ),
    ] = 0.5,
    side: Annotated[
        str | None,
        typer.Option(
            help="Whose turns a chat model is measured on: seeker or supporter. Default: what it was trained as, else "
            "seeker; supporter for a model on a server.",
            rich_help_panel=CHAT,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Its system prompt: a name or a .yaml file; default: what it was trained with, else that of the side.",
            rich_help_panel=CHAT,
        ),
    ] = None,
    max_length: Annotated[
        int,
        typer.Option(
            help="Tokens a dialogue, for perplexity; older turns of longer ones are dropped.", rich_help_panel=CHAT
        ),
    ] = 2048,
    against: Annotated[
        str | None,
        typer.Option(help="A second chat model to compare with, such as the base.", rich_help_panel=CHAT),
    ] = None,
    by_turn: Annotated[
        bool, typer.Option("--by-turn", help="Also show perplexity at each turn position.", rich_help_panel=CHAT)
    ] = False,
    strategies: Annotated[
        bool,
        typer.Option(
            "--strategies",
            help="Also how often a supporter picks the real strategy of a turn, by its probabilities.",
            rich_help_panel=CHAT,
        ),
    ] = False,
    replies: Annotated[
        bool,
        typer.Option(
            "--replies/--no-replies",
            help="Whether a supporter also replies to every real history, for text metrics.",
            rich_help_panel=CHAT,
        ),
    ] = True,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.", rich_help_panel=CHAT)] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Of replies; 0 always takes the likeliest token.", rich_help_panel=CHAT)
    ] = 0.0,
    top_p: Annotated[float, typer.Option(help="Of replies; above 0, up to 1.", rich_help_panel=CHAT)] = 1.0,
    seed: Annotated[
        int, typer.Option(help="Decides the draws of replies and of resampling.", rich_help_panel=CHAT)
    ] = 0,
    model_set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of an openai: model, as in simulate --supporter-set; may be repeated.",
            rich_help_panel=CHAT,
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Word vectors as text (GloVe, word2vec), for Vector Extrema.", rich_help_panel=CHAT
        ),
    ] = None,
    bertscore: Annotated[
        str | None,
        typer.Option(
            metavar="ENCODER",
            help="Also F1 of this encoder's token vectors (as BERTScore, without idf and rescaling). Default: off.",
            rich_help_panel=CHAT,
        ),
    ] = None,
    g_score: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="The LLM judge's part of NLPCC 2025 task 8 (mean of 1 to 5, / 5 x 100), for its overall score.",
            rich_help_panel=CHAT,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="--out of another supporter's evaluation with --ratings: correlations within and between models.",
            rich_help_panel=CHAT,
        ),
    ] = None,
) -> None:
    """Measure a scorer's or judge's agreement with raters, or how well a chat model predicts and replaces real turns.

    Example: esckit evaluate hf:smollm2-135m-instruct+runs/role --on valid.jsonl --against hf:smollm2-135m-instruct

    Example: esckit evaluate runs/rank --on valid.jsonl --ratings ratings.jsonl --probe

    Example: esckit evaluate openai:qwen3@http://localhost:8000/v1 --on valid.jsonl --side supporter --out runs/replies
    """
    from eval.evaluate_judge import JudgeQuestion, evaluate_judge, is_scorer

    given = Given(context)
    scorer = is_scorer(model)
    if scorer or (side is None and (ratings or adapters or official or probe)):
        if scorer:
            given.refuse((*OF_CHAT, *OF_ASKED), f"{model} is a scorer", "a chat model")
        else:
            given.refuse(OF_CHAT, f"{model} is asked for its judgment", "a seeker or supporter (--side)")
        if level not in LEVELS:
            raise UserError(f"--level {level!r}: expected {' or '.join(LEVELS)}")
        how = {"adapters": adapters, "official": official, "reading": reading, "min_mass": min_mass}
        asked = JudgeQuestion(
            *(model, on, ratings or [], rubric, baselines_from or [], group_by, level, batch_size, limit),
            out=Path(out) if out else None,
            probe=probe,
            asked=None if scorer else how,
        )
        result = evaluate_judge(asked)
        if out is not None:
            _write_judge(result, Path(out))
        _print(result, as_json)
        return
    given.refuse(OF_JUDGE, f"{model} is no scorer folder (no scorer_config.json)", "a scorer or judge (with --ratings)")
    chosen = _side(side, model)
    talks = replies and chosen == "supporter"
    if not talks:
        given.refuse(OF_REPLIES, f"{model} replies to nothing here", "a supporter's replies (--side supporter)")
    if beside and not ratings:
        raise UserError("--beside compares with ratings of this model too; give them with --ratings")
    if not 0 < top_p <= 1:
        raise UserError(f"--top-p is {top_p:g}; it must lie above 0 and be at most 1")
    models = (model, *([against] if against else []))
    settings = {
        **{"max_length": max_length, "batch_size": batch_size, "limit": limit, "prompt": prompt, "by_turn": by_turn},
        **{"strategies": strategies, "replies": talks, "seed": seed, "out": Path(out) if out else None},
        **{"vectors": vectors, "bertscore": bertscore, "g_score": g_score},
    }
    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    found = _chat(models, on, chosen, settings, sampling, model_set or [], (ratings or [], rubric, beside or []))
    _print(found, as_json)
    if any(one["missing"] for one in found.get("replies", {}).values()):
        raise typer.Exit(1)


def _chat(
    models: tuple[str, ...],
    on: str,
    side: Any,
    settings: dict[str, Any],
    sampling: dict[str, Any],
    model_set: list[str],
    rated: tuple[list[str], str | None, list[str]],
) -> dict[str, Any]:
    from eval.chat_models.base import Sampling
    from eval.chat_models.options import check_fits, read_options
    from eval.evaluate_chat import ChatQuestion, evaluate_chat
    from eval.supporter_files import finish, read_rated

    options = read_options(None, model_set, "--set")
    for name in models:
        check_fits(options, name, "--set")
    question = ChatQuestion(models, on, side, sampling=Sampling(**sampling), options=options, **settings)
    people = read_rated(models[0], *rated)
    found = evaluate_chat(question, lambda remark: typer.echo(remark, err=True))
    if question.replies:
        finish(found, question, people)
    return found.result


class Given:
    """Which options stand on the command line."""

    def __init__(self, context: typer.Context):
        self._context = context

    def refuse(self, names: tuple[str, ...], because: str, only_for: str) -> None:
        """Raises UserError when one of these options is given: it would change nothing."""
        for parameter in self._context.command.params:
            source = self._context.get_parameter_source(parameter.name or "")
            if parameter.name in names and source is not None and source.name == "COMMANDLINE":
                raise UserError(f"{parameter.opts[0]} is for {only_for}, and {because}; leave it out")


def _side(side: str | None, model: str) -> str:
    """What was asked for, else what the model was trained as, else what it can be measured on at all."""
    from eval.chat_models import kind_of
    from eval.evaluate_chat import trained_with

    if side is not None:
        if side not in SIDES:
            raise UserError(f"--side {side!r}: expected seeker or supporter")
        return side
    if kind_of(model) != "hf":
        return "supporter"
    kind = trained_with(model).get("kind")
    return kind if kind in SIDES else "seeker"


def _write_judge(result: dict[str, Any], folder: Path) -> None:
    from data_prep.records import write_text
    from eval import judge_check_tables
    from eval.scorer_tables import markdown, tidy

    folder.mkdir(parents=True, exist_ok=True)
    head = f"# {result['scorer']['name']} on {result['on']}\n\n"
    checks = judge_check_tables.markdown(result["checks"]) if "checks" in result else ""
    write_text(folder / "agreement.md", head + markdown(result) + checks)
    write_text(folder / "agreement.csv", tidy(result))
    write_text(folder / "agreement.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _print(result: dict[str, Any], as_json: bool) -> None:
    from eval import judge_check_tables, scorer_tables, supporter_tables

    if as_json:
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    elif "scorer" in result:
        scorer_tables.show(result)
        if "checks" in result:
            judge_check_tables.show(result["checks"])
    else:
        supporter_tables.show(result)
