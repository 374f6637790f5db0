"""`esckit simulate`: role cards and two chat models in, a run folder of dialogues out."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, first_json_line, read_records, read_text, sha256_of
from eval.progress import progress_bar

if TYPE_CHECKING:
    from eval.chat_models.base import ChatModel
    from eval.runs import RunWriter, Transcript
    from eval.simulate import SimulationSettings


def simulate(
    cards: Annotated[
        Path, typer.Option(help="Role cards: our JSON Lines, an official JSON list, or dialogues with cards.")
    ],
    seeker: Annotated[
        str, typer.Option(help="Who plays the cards: hf:PATH, hf:BASE+ADAPTER, openai:MODEL@URL, replay:FILE, human.")
    ],
    supporter: Annotated[str, typer.Option(help="The model under test, named in the same way.")],
    out: Annotated[Path, typer.Option(help="Run folder; one of the same settings is gone on with.")],
    protocol: Annotated[
        str, typer.Option(help="recommended (ours), or official: the published loop with the published prompts.")
    ] = "recommended",
    official_repo: Annotated[
        Path | None, typer.Option(help="Your clone of the ESC-Eval repository; its prompts are read for official.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Most exchanges a dialogue; default 5.")] = None,
    end: Annotated[
        str | None, typer.Option(help="rounds: always all of them (default); natural: also at a goodbye or a loop.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Dialogues a card.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Dialogues side by side.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply, both sides.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="Both sides; 0 always takes the likeliest token.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Both sides; above 0, up to 1.")] = 0.9,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only this part of the dialogues; join the parts: esckit runs merge.")
    ] = "1/1",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N cards.")] = None,
    language: Annotated[str | None, typer.Option(help="Only cards in this language: en or zh.")] = None,
    supporter_prompt: Annotated[
        str | None, typer.Option(help="System prompt: a name or a .yaml file; default: supporter.")
    ] = None,
    seeker_prompt: Annotated[
        str | None, typer.Option(help="Template around the card, named likewise; default: seeker.")
    ] = None,
    greeting: Annotated[
        str | None, typer.Option(help="The supporter's fixed opening, named likewise; default: greeting.")
    ] = None,
    greeting_shown: Annotated[
        bool | None,
        typer.Option(
            "--greeting-shown/--greeting-hidden",
            help="Whether the supporter sees it; default: yes. The published code: no.",
        ),
    ] = None,
    supporter_name: Annotated[str | None, typer.Option(help="Label in reports; default: the model's name.")] = None,
    seeker_config: Annotated[Path | None, typer.Option(help="YAML file of the seeker model's own options.")] = None,
    supporter_config: Annotated[
        Path | None, typer.Option(help="YAML file of the supporter model's own options.")
    ] = None,
    seeker_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="One such option of the seeker; may be repeated.")
    ] = None,
    supporter_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="One such option of the supporter; may be repeated.")
    ] = None,
    retry_errors: Annotated[
        bool,
        typer.Option("--retry-errors", help="Make dialogues that a fault ended again; the old ones are kept aside."),
    ] = False,
    dtype: Annotated[str, typer.Option(help="auto (bfloat16 on a GPU, else float32), float32, bfloat16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Let a seeker model play role cards against a supporter model. Stop it at any time; the same command goes on.

    Options of one model: prompt, max_new_tokens, temperature, top_p, stop; for openai: also reasoning (apart, off),
    key_variable, concurrency, timeout, attempts, context_length, extra. They go before those for both sides.

    Example: esckit simulate --cards cards.jsonl --seeker smollm2-135m-instruct+outputs/esc_role
    --supporter smollm2-135m-instruct --out runs/first --limit 20
    """
    from eval.chat_models import kind_of, load_chat_models
    from eval.chat_models.base import Sampling, notes_of
    from eval.chat_models.options import check_fits, read_options
    from eval.protocols import protocol_settings, write_beside
    from eval.run_records import Plan, parse_shard
    from eval.runs import open_run
    from eval.simulate import SimulationSettings

    if not 0 < top_p <= 1:
        raise UserError(f"--top-p is {top_p:g}; it must lie above 0 and be at most 1")
    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise UserError(f"--dtype is {dtype!r}; known: auto, float32, bfloat16, float16")
    parse_shard(shard)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p)
    options = [
        read_options(seeker_config, seeker_set or (), "--seeker-set"),
        read_options(supporter_config, supporter_set or (), "--supporter-set"),
    ]
    check_fits(options[0], seeker, "options of the seeker")
    check_fits(options[1], supporter, "options of the supporter")
    if "human" in (kind_of(seeker), kind_of(supporter)):
        batch_size = 1  # a person has one conversation at a time
    settings = SimulationSettings(
        samples=samples,
        seed=seed,
        batch_size=batch_size,
        seeker_sampling=options[0].sampling(sampling),
        supporter_sampling=options[1].sampling(sampling),
        shard=shard,
        **protocol_settings(
            protocol,
            official_repo,
            rounds=rounds,
            end=end,
            greeting=greeting,
            seeker_prompt=options[0].prompt or seeker_prompt,
            supporter_prompt=options[1].prompt or supporter_prompt,
            greeting_shown_to_supporter=greeting_shown,
        ),
    )
    chosen = read_cards(cards, language, limit)
    described = settings.describe()  # an unknown prompt is told before a model is loaded
    models = load_chat_models([seeker, supporter], dtype, options, _say_once())
    for note in notes_of(models):
        typer.echo(f"note: {note}", err=True)
    labels = (seeker.removeprefix("hf:"), supporter_name or supporter.removeprefix("hf:"))
    manifest = {
        "cards": {"sha256": sha256_of(cards), "used": len(chosen), "language": language, "limit": limit},
        "simulation": described,
        "seeker": {"label": labels[0], "model": models[0].describe()},
        "supporter": {"label": labels[1], "model": models[1].describe()},
    }
    plan = Plan(cards=tuple(card.id for card in chosen), samples=samples, shard=shard)
    with open_run(out, manifest, plan) as run:
        if retry_errors and (again := run.set_aside_faulty()):
            typer.echo(f"note: {len(again)} faulty dialogues are made again; the old ones: *.failed.jsonl", err=True)
        _simulate_into(run, chosen, models, labels, settings)
        transcripts = run.transcripts()
        beside = write_beside(run) if protocol == "official" else []
    summary = {**summarise(out, transcripts, models), "budgets": _budgets(settings), "written": beside}
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False, indent=2))
    else:
        _show(summary)
    if any(transcript.end_reason.is_fault for transcript in transcripts):
        raise typer.Exit(1)


def _say_once() -> Callable[[str], None]:
    """Shows each remark of a model once, on stderr."""
    said: set[str] = set()

    def say(remark: str) -> None:
        if remark not in said:
            said.add(remark)
            typer.echo(f"note: {remark}", err=True)

    return say


def read_cards(path: Path, language: str | None, limit: int | None) -> list[RoleCard]:
    """The cards of one file that are asked for. Raises UserError when none is left."""
    if language not in (None, "en", "zh"):
        raise UserError(f"--language is {language!r}; known: en, zh")
    if read_text(path).lstrip()[:1] == "[":
        from data_prep.official import read_cards as read_official

        found = read_official(path)
    else:
        found = _own_cards(path)
    found = [card for card in found if language in (None, card.language)]
    if not found:
        raise UserError(f"{path}: holds no card in language {language!r}; leave --language out")
    empty = [card.id for card in found[:limit] if not (card.problem or "").strip()]
    if empty:
        more = f" ({len(empty)} cards in all)" if len(empty) > 1 else ""
        raise UserError(
            f"{path}: card {empty[0]!r} has no problem{more}; a seeker cannot play it, so write one or remove it"
        )
    return found[:limit]


def _own_cards(path: Path) -> list[RoleCard]:
    """Cards of a JSON Lines file of them, or those of a file of dialogues, each card once."""
    first = first_json_line(path)
    if not (isinstance(first, dict) and "turns" in first):
        return read_records(path, RoleCard)
    cards = {one.card.id: one.card for one in read_records(path, Dialogue) if one.card is not None}
    if not cards:
        raise UserError(f"{path}: holds dialogues without role cards; make some: esckit cards extract {path}")
    return list(cards.values())


def _simulate_into(
    run: "RunWriter",
    cards: Sequence[RoleCard],
    models: Sequence["ChatModel"],
    labels: tuple[str, str],
    settings: "SimulationSettings",
) -> None:
    from eval.chat_models.base import answers_one_by_one, refuse_if_down
    from eval.simulate import dialogue_key, plan_batches
    from eval.simulate import simulate as simulate_batches
    from eval.simulate_async import simulate_one_by_one

    console = Console(stderr=True, markup=False, highlight=False)
    done = {transcript.key for transcript in run.transcripts()}
    for note in run.notes:
        console.print(note)
    pairs = [pair for [pair] in plan_batches(cards, settings.samples, 1, settings.shard)]
    left = [pair for pair in pairs if dialogue_key(*pair) not in done]
    if done:
        console.print(f"{run.folder}: {len(done)} dialogues are done, {len(left)} are left")
    if not left:
        return
    seeker, supporter = models
    with progress_bar("utterances", len(left) * 2 * settings.rounds, console) as advance:
        if answers_one_by_one(seeker) and answers_one_by_one(supporter):
            simulate_one_by_one(
                cards, seeker, supporter, settings, lambda made: run.add_transcripts([made]), done, *labels, advance
            )
            return
        for batch in simulate_batches(cards, seeker, supporter, settings, done, *labels, advance):
            run.add_transcripts(batch)
            refuse_if_down(models)


def summarise(out: Path, transcripts: Sequence["Transcript"], models: Sequence["ChatModel"]) -> dict[str, Any]:
    """Counts over the whole run folder; tokens read and reused are this process's own."""
    stats = [model.stats for model in models]
    turns = [turn for transcript in transcripts for turn in transcript.turns]
    return {
        "run": str(out),
        "dialogues": len(transcripts),
        "end_reasons": dict(Counter(transcript.end_reason.value for transcript in transcripts)),
        "utterances": len(turns),
        "cut_by_budget": sum(turn.finish == "length" for turn in turns),
        "tokens_generated": sum(turn.new_tokens for turn in turns),
        "this_time": {
            "tokens_generated": sum(stat.generated for stat in stats),
            "prompt_tokens_read": sum(stat.prompt_read for stat in stats),
            "prompt_tokens_reused": sum(stat.prompt_reused for stat in stats),
            "turns_read_again": sum(stat.reread for stat in stats),
            "batches_halved": sum(stat.halved for stat in stats),
        },
    }


def _budgets(settings: "SimulationSettings") -> dict[str, int]:
    """The most tokens of a reply, by side: unequal ones make a comparison of lengths meaningless."""
    return {
        "seeker": settings.seeker_sampling.max_new_tokens,
        "supporter": settings.supporter_sampling.max_new_tokens,
    }


def _show(summary: dict[str, Any]) -> None:
    now = summary["this_time"]
    reasons = ", ".join(f"{reason} {count}" for reason, count in summary["end_reasons"].items())
    typer.echo(f"{summary['run']}: {summary['dialogues']} dialogues ({reasons})")
    typer.echo(
        f"{summary['utterances']} utterances, {summary['tokens_generated']} tokens generated, "
        f"{summary['cut_by_budget']} cut by --max-new-tokens"
    )
    budgets = summary["budgets"]
    equal = "equal" if budgets["seeker"] == budgets["supporter"] else "NOT equal"
    typer.echo(f"token budgets a reply: seeker {budgets['seeker']}, supporter {budgets['supporter']} ({equal})")
    typer.echo(
        f"this time: {now['tokens_generated']} tokens generated, {now['prompt_tokens_read']} prompt tokens read, "
        f"{now['prompt_tokens_reused']} reused from earlier turns"
        + (f", {now['turns_read_again']} turns read again" if now["turns_read_again"] else "")
        + (f", batch halved {now['batches_halved']} times for memory" if now["batches_halved"] else "")
    )
    for path in summary["written"]:
        typer.echo(f"written: {path}")
