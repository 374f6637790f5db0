"""How many calls may be on their way at once: a number that shrinks when the server is overrun and grows slowly."""

import asyncio
from collections import deque
from types import TracebackType


class Places:
    """At most `limit` calls at a time, in order of asking; `limit` moves between 1 and `most`.

    Additive increase, multiplicative decrease (Chiu and Jain 1989): `shrink` halves the limit, and as many calls
    as fill all places must succeed before it grows by one. Calls that had begun before the last shrink do not
    shrink it again: a burst of refusals is one sign, not thirty. Use `async with`; it belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = most
        self.generation = 0
        self._taken = 0
        self._good = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> int:
        """Takes a place; gives the generation that `shrink` wants to be told."""
        # Who comes while others wait queues behind them, even where a place is free that one of them was given.
        if self._taken >= self.limit or self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._taken -= 1  # the place was given in the moment of giving up
                elif turn in self._waiting:
                    self._waiting.remove(turn)
                self._hand_out()
                raise
        else:
            self._taken += 1
        return self.generation

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken -= 1
        self._hand_out()

    def shrink(self, generation: int) -> None:
        """Halves the limit, if the refused call began after the last halving."""
        if generation == self.generation:
            self.generation += 1
            self._good = 0
            self.limit = max(1, self.limit // 2)

    def grow(self) -> None:
        """Counts a call that succeeded."""
        self._good += 1
        if self.limit < self.most and self._good >= self.limit:
            self._good = 0
            self.limit += 1
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._taken < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
