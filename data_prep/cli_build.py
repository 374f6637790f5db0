"""`esckit data build …`: training sets for seekers, supporters and scorers, each with a datasheet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from data_prep.errors import UserError

if TYPE_CHECKING:
    from data_prep.build import Part, Split
    from data_prep.build_files import Inputs, Made
    from data_prep.datasheet import Datasheet
    from data_prep.prompt import Prompt
    from data_prep.sample import Sample

app = typer.Typer(
    help="Training sets from dialogues (and ratings): data that the recipes read, split, with a datasheet.",
    no_args_is_help=True,
)
SHOWN = 20

Dialogues = Annotated[
    list[Path], typer.Argument(help="JSON Lines files of dialogues (or NLPCC 2025 task 8 files as published).")
]
Out = Annotated[Path, typer.Option(help="Folder for the data and datasheet.md / datasheet.json.")]
SplitOption = Annotated[
    str | None, typer.Option("--split", help="Parts and their shares, e.g. train=0.9,valid=0.1; whole groups only.")
]
Near = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Likeness from which dialogues are kept on one side; 0: equality only.")
]
Seed = Annotated[int, typer.Option(help="Another seed gives another split and another draw.")]
PerTurn = Annotated[
    bool, typer.Option("--per-turn", help="One sample for each learned turn, with the history before it.")
]
Greeting = Annotated[
    str, typer.Option(help="Opening line before a dialogue that the trained side opens, by name or path; or: none.")
]
Licences = Annotated[list[str] | None, typer.Option("--licence", help="NAME=TEXT for a source we do not know.")]
Reports = Annotated[
    list[Path] | None, typer.Option("--report", help="Report of `esckit data convert --json`, for the datasheet.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the datasheet as JSON.")]


def parse_split(text: str | None, seed: int, near: float) -> "Split":
    from data_prep.build import Split
    from data_prep.cli import parse_fractions
    from data_prep.splits import check_fractions

    if text is None:
        return Split(seed=seed, near=near or None)
    fractions = parse_fractions(text, "--split")
    check_fractions(fractions)
    return Split(fractions, seed, near or None)


def parse_pairs(option: str, items: Sequence[str]) -> dict[str, str]:
    """NAME=TEXT options as a mapping. Raises UserError for anything else and for a name given twice."""
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, text = item.rpartition("=") if option == "--mix" else item.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise UserError(f"{option}: {item!r} is not NAME=VALUE")
        if name in pairs:
            raise UserError(f"{option}: {name!r} is given twice")
        pairs[name] = text.strip()
    return pairs


def load_greeting(name: str) -> "Prompt | None":
    from data_prep.prompt import load_prompt

    return None if name == "none" else load_prompt(name)


def command_line(kind: str, files: Sequence[Path], options: Mapping[str, Any]) -> str:
    """The command without folders: files by name in a fixed order, then the options that are set."""
    import shlex

    from data_prep.datasheet import plain_name

    words = ["esckit", "data", "build", kind, *sorted(map(plain_name, files)), "--out", "DIR"]
    for option, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                words.append(option)
            elif item is not None and item is not False:
                words += [option, str(item)]
    return " ".join(word if word == "DIR" else shlex.quote(word) for word in words)


def sample_lengths(samples: Sequence["Sample"]) -> dict[str, Any]:
    from data_prep.datasheet import spread

    learned = [len(message.content) for sample in samples for message in sample.messages if message.train]
    return {
        "messages a sample": spread(len(sample.messages) for sample in samples),
        "characters a sample": spread(sum(len(message.content) for message in s.messages) for s in samples),
        "characters a learned message": spread(learned),
    }


def chat_set(kind: str, parts: Sequence["Part"], command: str, settings: Mapping[str, Any], mixed: bool) -> "Made":
    """Files, parts and notes of a set of chat samples."""
    from data_prep.build_files import Made
    from data_prep.datasheet import PartEntry, dialogue_lengths
    from data_prep.records import Record

    files: dict[str, Sequence[Record]] = {}
    entries = []
    for part in parts:
        files[f"{part.name}.jsonl"] = part.dialogues
        files[f"{part.name}.messages.jsonl"] = part.samples
        counts = {
            "dialogues": len(part.dialogues),
            "samples": len(part.samples),
            "learned messages": sum(sum(sample.train_on()) for sample in part.samples),
        }
        if mixed:
            counts["general samples among them"] = sum(sample.side is None for sample in part.samples)
        lengths = dialogue_lengths(part.dialogues) | sample_lengths(part.samples)
        entries.append(PartEntry(part=part.name, counts=counts, lengths=lengths))
    # A general conversation counts once, however many samples it became.
    general = {s.id.partition("#")[0]: str(s.meta["source"]) for part in parts for s in part.samples if s.side is None}
    notes = [
        "PART.messages.jsonl holds the rendered samples (role, content, train); PART.jsonl the same dialogues as "
        "records, without system prompt, prefix or general data. data.train of a recipe takes either.",
    ]
    if mixed:
        notes.append(
            "General conversations are in the messages file of the first part only; they are not in PART.jsonl, and "
            "they are not compared with the other parts."
        )
    dialogues = {part.name: part.dialogues for part in parts}
    sources = [dialogue.source for found in dialogues.values() for dialogue in found] + list(general.values())
    what = f"{kind} training set"
    return Made(what, command, settings, files, dialogues, entries, sources, notes)


def finish(
    out: Path,
    made: "Made",
    inputs: "Inputs",
    tally: Any,
    split: "Split",
    licences: Sequence[str],
    reports: Sequence[Path],
    as_json: bool,
) -> None:
    """Writes the set, prints what came of it; exit code 1 when something was refused."""
    from data_prep.build_files import read_conversion_report, write_set
    from data_prep.cli import print_json

    for report in reports:
        inputs.conversions.append(read_conversion_report(report))
        inputs.took(report, 1)
    sheet = write_set(out, made, inputs, tally, split, parse_pairs("--licence", licences))
    if as_json:
        print_json(sheet.model_dump(mode="json"))
    else:
        print_sheet(out, sheet)
    refused = [*inputs.refused, *tally.refused]
    for refusal in refused[:SHOWN]:
        typer.echo(f"refused {refusal}", err=True)
    if len(refused) > SHOWN:
        typer.echo(f"… and {len(refused) - SHOWN} more refused records; datasheet.json lists all", err=True)
    if refused:
        raise typer.Exit(1)


def print_sheet(out: Path, sheet: "Datasheet") -> None:
    from data_prep.cli import print_table

    rows: list[tuple[str, str, int]] = []
    for part in sheet.parts:
        rows += [(part.part, name, count) for name, count in part.counts.items()]
    for kind in ("figures", "repairs", "missing", "refused"):
        rows += [(kind, name, count) for name, count in getattr(sheet, kind).items()]
    rows += [("leaks", f"{leak.a} and {leak.b}: {leak.kind}", leak.shared) for leak in sheet.leaks if leak.shared]
    if sheet.leaks:
        rows.append(("leaks", "shared by any two parts, all kinds", sum(leak.shared for leak in sheet.leaks)))
    print_table(f"{sheet.what}: {out}", ("", "what", "count"), rows)


@app.command(epilog="Example: esckit data build role esconv.jsonl --out sets/role --split train=0.9,valid=0.1")
def role(
    dialogues: Dialogues,
    out: Out,
    cards: Annotated[
        Path | None, typer.Option(help="Role cards to use instead of those in the dialogues, joined by id.")
    ] = None,
    per_turn: PerTurn = False,
    mix: Annotated[
        list[str] | None,
        typer.Option("--mix", help="FILE=RATIO: so many general conversations for every training dialogue."),
    ] = None,
    prompt: Annotated[str, typer.Option(help="Seeker prompt by name or path.")] = "seeker",
    greeting: Greeting = "greeting",
    split: SplitOption = None,
    near: Near = 0.8,
    seed: Seed = 0,
    licence: Licences = None,
    report: Reports = None,
    as_json: JsonFlag = False,
) -> None:
    """A seeker's training set: the card as system prompt, the seeker as assistant, the supporter as user.

    Dialogues without a role card are refused and counted; the exit code is then 1.
    """
    from data_prep.build import build_role
    from data_prep.build_files import Inputs, read_card_file, read_dialogue_files, read_mixes
    from data_prep.datasheet import plain_name
    from data_prep.prompt import load_prompt

    parted = parse_split(split, seed, near)
    seeker, opening = load_prompt(prompt), load_greeting(greeting)
    inputs = Inputs()
    read_dialogue_files(dialogues, inputs)
    found = read_card_file(cards, inputs) if cards else None
    mixes = read_mixes(parse_pairs("--mix", mix or []), inputs)
    expansion: Literal["whole", "turns"] = "turns" if per_turn else "whole"
    parts, tally = build_role(inputs.dialogues, seeker, opening, expansion, parted, found, mixes)
    settings = {
        "prompt": seeker.reference(),
        "greeting": opening.reference() if opening else None,
        "samples": "one a learned turn" if per_turn else "one a dialogue",
        "cards": plain_name(cards) if cards else "those in the dialogues",
        "mix (general conversations for every dialogue of the first part)": {m.name: str(m.ratio) for m in mixes},
        "split": dict(parted.fractions) or None,
        "near": parted.near,
        "seed": seed,
    }
    options = {
        "--cards": plain_name(cards) if cards else None,
        "--per-turn": per_turn,
        "--mix": [f"{m.name}={m.ratio}" for m in mixes],
        "--prompt": plain_name(prompt),
        "--greeting": plain_name(greeting),
        "--split": split,
        "--near": near,
        "--seed": seed,
        "--licence": sorted(licence or []),
        "--report": sorted(map(plain_name, report or [])),
    }
    made = chat_set("role", parts, command_line("role", dialogues, options), settings, bool(mixes))
    finish(out, made, inputs, tally, parted, licence or [], report or [], as_json)


@app.command(epilog="Example: esckit data build supporter esconv.jsonl --out sets/supporter --strategy prefix")
def supporter(
    dialogues: Dialogues,
    out: Out,
    strategy: Annotated[
        Literal["none", "prompt", "prefix"],
        typer.Option(help="ESConv's strategies: not used, listed in the system prompt, or [Name] before each reply."),
    ] = "none",
    situation: Annotated[bool, typer.Option("--situation", help="Put the situation into the system prompt.")] = False,
    persona: Annotated[bool, typer.Option("--persona", help="Put the card's persona into the system prompt.")] = False,
    per_turn: PerTurn = False,
    prompt: Annotated[str, typer.Option(help="Supporter prompt by name or path.")] = "supporter",
    split: SplitOption = None,
    near: Near = 0.8,
    seed: Seed = 0,
    licence: Licences = None,
    report: Reports = None,
    as_json: JsonFlag = False,
) -> None:
    """A supporter's training set: the supporter as assistant, the seeker as user.

    What cannot be used is refused and counted; the exit code is then 1.
    """
    from data_prep.build import SupporterFormat, build_supporter
    from data_prep.build_files import Inputs, read_dialogue_files
    from data_prep.datasheet import plain_name
    from data_prep.prompt import load_prompt

    parted = parse_split(split, seed, near)
    how = SupporterFormat(load_prompt(prompt), load_prompt("supporter_context"), strategy, situation, persona)
    inputs = Inputs()
    read_dialogue_files(dialogues, inputs)
    parts, tally = build_supporter(inputs.dialogues, how, "turns" if per_turn else "whole", parted)
    settings = {
        "prompt": how.prompt.reference(),
        "context": how.context.reference(),
        "strategy": strategy,
        "situation": situation,
        "persona": persona,
        "samples": "one a learned turn" if per_turn else "one a dialogue",
        "split": dict(parted.fractions) or None,
        "near": parted.near,
        "seed": seed,
    }
    options = {
        "--strategy": strategy,
        "--situation": situation,
        "--persona": persona,
        "--per-turn": per_turn,
        "--prompt": plain_name(prompt),
        "--split": split,
        "--near": near,
        "--seed": seed,
        "--licence": sorted(licence or []),
        "--report": sorted(map(plain_name, report or [])),
    }
    made = chat_set("supporter", parts, command_line("supporter", dialogues, options), settings, False)
    finish(out, made, inputs, tally, parted, licence or [], report or [], as_json)


@app.command(epilog="Example: esckit data build rank esconv.jsonl survey.jsonl --out sets/rank --rubric esconv_survey")
def rank(
    files: Annotated[list[Path], typer.Argument(metavar="DIALOGUES RATINGS...", help="JSON Lines of both kinds.")],
    out: Out,
    rubric: Annotated[str, typer.Option(help="Rubric of the ratings, by name or .yaml path.")] = "esc_eval",
    generative: Annotated[
        bool,
        typer.Option("--generative", help="Also rows for the paper's way: a file a dimension and language."),
    ] = False,
    official: Annotated[
        Path | None, typer.Option(help="With --generative: a clone of the official repository, to ask in its words.")
    ] = None,
    split: SplitOption = None,
    near: Near = 0.8,
    seed: Seed = 0,
    licence: Licences = None,
    report: Reports = None,
    as_json: JsonFlag = False,
) -> None:
    """A scorer's training set: one row a dialogue with all dimensions, every rater kept.

    Ratings off the scale or contradicting each other are refused with file and line; the exit code is then 1.
    """
    from data_prep.build_files import Inputs, Made, read_dialogues_and_ratings
    from data_prep.build_generative import file_names, generative_rows
    from data_prep.build_rank import build_rank
    from data_prep.datasheet import PartEntry, dialogue_lengths, plain_name
    from data_prep.judge_prompt import JudgePrompt, OwnPrompt
    from data_prep.official_prompt import read_official_prompt
    from data_prep.records import Record
    from data_prep.rubric import load_rubric

    parted = parse_split(split, seed, near)
    chosen = load_rubric(rubric)
    if official and not generative:
        raise UserError("--official says how the rows of --generative ask; give both or none")
    prompt: JudgePrompt = read_official_prompt(official) if official else OwnPrompt.load()
    inputs = Inputs()
    read_dialogues_and_ratings(files, inputs)
    parts, tally = build_rank(inputs.dialogues, inputs.ratings, chosen, parted)
    made_files: dict[str, Sequence[Record]] = {}
    entries = []
    for part in parts:
        made_files[f"{part.name}.jsonl"] = part.dialogues
        made_files[f"{part.name}.ratings.jsonl"] = part.ratings
        made_files[f"{part.name}.rank.jsonl"] = part.rows
        if generative:
            made_files |= file_names(part.name, generative_rows(part, chosen, prompt))
        counts = {"dialogues": len(part.dialogues), "ratings": len(part.ratings)}
        entries.append(PartEntry(part=part.name, counts=counts, lengths=dialogue_lengths(part.dialogues)))
    settings = {
        "rubric": {"name": chosen.name, "sha": chosen.sha},
        **({"judge_prompt": prompt.reference()} if generative else {}),
        "split": dict(parted.fractions) or None,
        "near": parted.near,
        "seed": seed,
    }
    options = {
        "--rubric": plain_name(rubric),
        "--generative": generative,
        "--official": plain_name(official) if official else None,
        "--split": split,
        "--near": near,
        "--seed": seed,
        "--licence": sorted(licence or []),
        "--report": sorted(map(plain_name, report or [])),
    }
    notes = [
        "data.train of a scorer recipe takes PART.jsonl, data.ratings takes PART.ratings.jsonl; PART.rank.jsonl holds "
        "both in one row a dialogue, for other tools.",
    ]
    dialogues = {part.name: part.dialogues for part in parts}
    sources = [dialogue.source for found in dialogues.values() for dialogue in found]
    command = command_line("rank", files, options)
    made = Made("rank training set", command, settings, made_files, dialogues, entries, sources, notes)
    finish(out, made, inputs, tally, parted, licence or [], report or [], as_json)
