"""`human`: a person at the keyboard, as either side of a simulation."""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from data_prep.errors import UserError
from eval.chat_models.base import Reply, Request, Sampling, Stats

HELP = "type a reply and press Enter; /quit or Ctrl-D stops (finished dialogues are kept)"


class HumanChatModel:
    """Asks for every reply on the terminal. Raises UserError when the person leaves, so that nothing is made up."""

    context_length = 10**9
    name = "human"

    def __init__(self) -> None:
        self.stats = Stats()
        self._shown: set[str] = set()

    def describe(self) -> dict[str, Any]:
        return {"kind": "human"}

    def forget(self) -> None:
        """A person is not told to forget."""

    def reply(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        return [Reply(self._ask(request), "stop") for request in requests]

    def _ask(self, request: Request) -> str:
        # On stderr, so that --json on stdout stays clean.
        if request.conversation not in self._shown:
            self._shown.add(request.conversation)
            typer.secho(f"\n--- {request.conversation} ({HELP})", dim=True, err=True)
            for message in request.messages[:-1]:
                if message["role"] == "system":
                    typer.secho(printable(message["content"]), dim=True, err=True)
        typer.echo(f"other: {printable(request.messages[-1]['content'])}", err=True)
        while True:
            typer.echo("you: ", nl=False, err=True)
            line = sys.stdin.readline()
            said = line.strip()
            if not line or said == "/quit":
                raise UserError("human: the input ended; finished dialogues are kept, the same command goes on")
            if said:
                # What the terminal could not decode must not break the record.
                return said.encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    """Without control characters: a reply must not move the cursor or colour the terminal."""
    return "".join(sign for sign in text if sign in "\n\t" or sign.isprintable())
