"""How busy `esckit simulate` keeps a server that takes 50 ms a call and answers 32 calls at a time.

    python -m benchmarks.simulate_endpoint [--latency 0.05] [--slots 32] [--dialogues 400]

The server is a process of its own that does nothing but wait, so what is measured is the engine and the client. Busy
is the share of slot-seconds in use, by the server's own account, between the first and the last call.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from typing import Any

from data_prep.records import RoleCard
from eval.chat_models import load_chat_model
from eval.chat_models.options import ModelOptions
from eval.simulate import SimulationSettings
from eval.simulate_async import simulate_one_by_one
from tests.openai_server import completion


class Slots:
    """A server of few lines: HTTP/1.1 with Content-Length, any path, one answer; counts its busy slot-seconds."""

    def __init__(self, latency: float, slots: int) -> None:
        self.latency = latency
        self.free = asyncio.Semaphore(slots)
        self.busy, self.first, self.last, self.calls = 0.0, 0.0, 0.0, 0
        self.answer = completion("I see. Go on, what happened then?", usage=(300, 12))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                content = await self.call() if head.startswith(b"POST") else self.account()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def call(self) -> bytes:
        self.first = self.first or time.monotonic()
        self.calls += 1
        async with self.free:
            # The nominal latency is counted: what a late timer adds is not the client's doing.
            await asyncio.sleep(self.latency)
            self.busy += self.latency
        self.last = time.monotonic()
        return self.answer

    def account(self) -> bytes:
        return json.dumps({"data": [], "busy": self.busy, "span": self.last - self.first, "calls": self.calls}).encode()


def server(port: Any, latency: float, slots: int) -> None:
    """Runs until it is ended; tells its port."""

    async def run() -> None:
        made = await asyncio.start_server(Slots(latency, slots).serve, "127.0.0.1", 0)
        port.send(made.sockets[0].getsockname()[1])
        await made.serve_forever()

    asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--dialogues", type=int, default=400)
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=server, args=(there, asked.latency, asked.slots), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    seeker, supporter = (
        load_chat_model(f"openai:made@{url}", options=ModelOptions(concurrency=asked.slots)) for _ in range(2)
    )
    cards = [RoleCard(id=f"c{n}", language="en", source="made", problem="exams") for n in range(asked.dialogues)]
    ended: list[str] = []
    cpu, wall = time.process_time(), time.perf_counter()
    simulate_one_by_one(
        cards, seeker, supporter, SimulationSettings(), lambda made: ended.append(made.end_reason.value)
    )  # type: ignore[arg-type]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    import httpx

    told = httpx.get(url + "/models", trust_env=False).json()
    process.terminate()
    share = told["busy"] / (told["span"] * asked.slots)
    print(
        f"{told['calls']} calls, {len(ended)} dialogues ({ended.count('rounds')} whole), load {os.getloadavg()[0]:.1f}"
    )
    print(f"{wall:.2f} s, {told['calls'] / wall:.0f} calls/s, {1000 * cpu / told['calls']:.2f} ms of CPU time a call")
    ideal = told["calls"] * asked.latency / asked.slots
    print(f"server busy {share:.1%} (ideal {ideal:.2f} s); load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
