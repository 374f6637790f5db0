"""`esckit chat`: talk to a model in the terminal, as the seeker's or the supporter's other side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.chat_format import chat_messages, seeker_system
from data_prep.errors import UserError
from data_prep.records import Dialogue, RoleCard, Speaker, Turn, write_records

if TYPE_CHECKING:
    from eval.chat_models.base import ChatModel, Sampling

HELP = "/again takes the last exchange back, /save FILE keeps the dialogue, /new begins anew, /quit ends (or Ctrl-D)"
NOTICE = "This is a research model, not a person and no crisis service. In danger, call your local emergency number."


def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="hf:PATH, hf:BASE+ADAPTER or openai:MODEL@URL.")],
    card: Annotated[
        Path | None, typer.Option(help="Role cards: the model plays one of them and you are the supporter.")
    ] = None,
    card_number: Annotated[int, typer.Option(min=1, help="Which card of the file.")] = 1,
    language: Annotated[str, typer.Option(help="Prompt language without a card: en or zh.")] = "en",
    prompt: Annotated[str | None, typer.Option(help="System prompt: a name or a .yaml file.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Above 0, up to 1.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
) -> None:
    """Talk to a supporter model, or with --card to a seeker that plays a role card.

    Example: esckit chat hf:smollm2-135m-instruct+runs/quickstart/esc_role --card data_prep/samples/cards.jsonl
    """
    from data_prep.prompt import load_prompt
    from eval.chat_models import load_chat_model
    from eval.chat_models.base import Sampling, notes_of

    if not 0 < top_p <= 1:
        raise UserError(f"--top-p is {top_p:g}; it must lie above 0 and be at most 1")
    if language not in ("en", "zh"):
        raise UserError(f"--language is {language!r}; known: en, zh")
    played = _card(card, card_number) if card else None
    side: Speaker = "seeker" if played else "supporter"
    template = load_prompt(prompt or side)
    system = seeker_system(played, template) if played else template.render(language)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p)
    loaded = load_chat_model(model, say=lambda remark: typer.echo(f"note: {remark}", err=True))
    for note in notes_of([loaded]):
        typer.echo(f"note: {note}", err=True)
    talk = Talk(loaded, side, system, sampling, seed, played, language)
    typer.secho(HELP, dim=True)
    if side == "supporter":
        typer.secho(NOTICE, dim=True)
    else:
        typer.secho("You are the supporter; the model plays the card. What it tells is invented.", dim=True)
    while talk.exchange():
        pass


def _card(path: Path, number: int) -> RoleCard:
    from eval.cli_simulate import read_cards

    cards = read_cards(path, None, None)
    if number > len(cards):
        raise UserError(f"--card-number is {number}, but {path} holds {len(cards)} cards")
    return cards[number - 1]


class Talk:
    """One conversation and where it stands."""

    def __init__(
        self,
        model: "ChatModel",
        side: Speaker,
        system: str,
        sampling: "Sampling",
        seed: int,
        card: RoleCard | None = None,
        language: str = "en",
    ):
        self.model, self.side, self.system, self.sampling, self.seed = model, side, system, sampling, seed
        self.card, self.language = card, card.language if card else language
        self.turns: list[Turn] = []

    def exchange(self) -> bool:
        """Reads one line and answers it; False when the talk is over."""
        try:
            line = input("you: ").strip()
        except EOFError:
            typer.echo()
            return False
        if line.startswith("/"):
            return self.command(line)
        if line:
            self.answer(line)
        return True

    def answer(self, said: str) -> None:
        """Puts the model's reply after what was said; a reply that failed takes nothing into the history."""
        from eval.chat_models.base import Request
        from eval.chat_models.human import printable

        other: Speaker = "supporter" if self.side == "seeker" else "seeker"
        turns = [*self.turns, Turn(speaker=other, text=said)]
        messages = chat_messages(turns, self.side, self.system)
        [reply] = self.model.reply([Request("chat", messages, self.seed + len(turns))], self.sampling)
        if reply.failure:
            typer.secho(f"no reply: {reply.detail or reply.failure}", fg="red")
        elif not reply.text:
            typer.secho("the model said nothing", fg="red")
        else:
            self.turns = [*turns, Turn(speaker=self.side, text=reply.text)]
            typer.echo(f"{self.side}: {printable(reply.text)}" + (" …" if reply.finish == "length" else ""))

    def command(self, line: str) -> bool:
        """A line that begins with a slash."""
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return False
        if word == "/new":
            self.turns = []
            self.model.forget()
        elif word == "/again":
            self.turns = self.turns[:-2]
        elif word == "/save" and rest:
            self.save(Path(rest.strip()))
        else:
            typer.secho(HELP, dim=True)
        return True

    def save(self, path: Path) -> None:
        """Writes the dialogue so far as one record of our format; an existing file is left alone."""
        if not self.turns:
            typer.echo("nothing was said yet")
        elif path.exists():
            typer.echo(f"{path} exists; name another file")
        else:
            record = Dialogue.model_validate(
                {
                    "id": path.stem or "chat",
                    "language": self.language,
                    "source": "chat",
                    "turns": [turn.model_dump() for turn in self.turns],
                    "card": self.card.model_dump() if self.card else None,
                    "meta": {"model": self.model.name, "side": self.side},
                }
            )
            write_records(path, [record])
            typer.echo(f"saved in {path}")
