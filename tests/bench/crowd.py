"""The executor's CPU time per row at several rates: python -m tests.bench.crowd [--before FOLDER] [--rounds 3] [--seconds 3].

As many front ends, without gRPC, send rows one a message, as calls that come one at a time do, at a fixed rate whatever is answered: two
cores could not drive so many calls. ``--before`` names the folder ``service`` of another checkout, measured beside this one. The floor is
a process that does nothing of what a queue does: it reads from as many sockets, hands what it read to a thread, and writes what comes
back. Processes run side by side and are measured in turn; what is told are medians.
"""

import argparse
import asyncio
import os
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from sentiment.batching.batcher import RowResult
from sentiment.batching.row_queue import TextOutcome
from sentiment.batching.ticket import Priority
from sentiment.errors import RequestError
from sentiment.model.tokenizer import Row
from sentiment_front_ends.executor_client import Link, RemoteQueue, connect
from sentiment_front_ends.frames import Listing
from tests.bench.front_ends import EXECUTOR_US_MAX, FED_TOKENS, server
from tests.bench.processes import Worker, idle_share
from tests.tiny import make_bundle

FRONT_ENDS = 8
RATES = (1_000, 3_000, 8_000, 20_000)
WAIT_S = 5.0
ANSWER = bytes(64)


def busy_s(pid: int) -> float:
    """CPU seconds of all threads that a process has now, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


class Quiet:
    """Receives the executor's messages and ignores them."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.queues: dict[bytes, RemoteQueue] = {}

    def models(self, link: Link, listing: Listing, _copies: Mapping[bytes, bytes]) -> None:
        """One model, of which nothing is read."""
        (digest,) = listing.models
        self.queues.setdefault(digest, RemoteQueue(digest, 4096))
        link.follow(listing.revision, listing.models)
        self.ready.set()

    def state(self, _ready: bool) -> None:
        """Ignored."""

    def counts(self) -> list[Any]:  # Any: JSON
        """None."""
        return []


class Floor(asyncio.Protocol):
    """One connection of the floor, at either end."""

    def __init__(self, take: Callable[["Floor", bytes], None]) -> None:
        self.write: Callable[[bytes], None] = lambda _: None
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be able to write."""
        assert isinstance(transport, asyncio.Transport)
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        """What a message of any size is."""
        self._take(self, data)


async def floor(path: str) -> None:
    """Answer until killed: a loop that reads and writes, and a thread between them."""
    loop = asyncio.get_running_loop()
    jobs: queue.SimpleQueue[tuple[Floor, int]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            front, rows = jobs.get()
            loop.call_soon_threadsafe(front.write, ANSWER * rows)

    threading.Thread(target=work, daemon=True).start()
    size = len(ANSWER) + 4 * FED_TOKENS
    await loop.create_unix_server(lambda: Floor(lambda front, data: jobs.put((front, max(1, len(data) // size)))), path)
    print("{}", flush=True)
    await asyncio.Event().wait()


async def pour(sends: list[Callable[[], None]], rate: float, seconds: float) -> int:
    """Send at a rate, in turn; how many were sent."""
    loop, sent = asyncio.get_running_loop(), 0
    begun = loop.time()
    while (passed := loop.time() - begun) < seconds:
        if sent < int(passed * rate):
            sends[sent % len(sends)]()
            sent += 1
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(max(0.0, (sent + 1) / rate - passed))
    return sent


class Executor:
    """An executor, and the front ends that feed it."""

    def __init__(self, path: Path, pid: int) -> None:
        self.path, self.pid = path, pid
        self.seconds: list[float] = []
        self.refused = 0

    async def connect(self) -> list[Callable[[], None]]:
        """Connections, each as what sends a row over it."""
        sends: list[Callable[[], None]] = []
        for number in range(FRONT_ENDS):
            hears = Quiet()
            await connect(self.path, partial(Link, f"crowd-{number}", os.getpid(), hears.queues, hears))
            await hears.ready.wait()
            (far,) = hears.queues.values()
            sends.append(partial(self._submit, far, Row([5] * FED_TOKENS, None, False)))
        return sends

    def _submit(self, far: RemoteQueue, row: Row) -> None:
        now = time.monotonic()
        try:
            far.submit([row], now + WAIT_S, partial(self._told, now), Priority.INTERACTIVE)
        except RequestError:
            self.refused += 1

    def _told(self, sent_at: float, outcome: TextOutcome) -> None:
        if isinstance(outcome, RowResult):
            self.seconds.append(time.monotonic() - sent_at)
        else:
            self.refused += 1


class Bare(Executor):
    """The floor in an executor's place."""

    async def connect(self) -> list[Callable[[], None]]:
        """Connections, each as what sends as much as a row takes."""
        sends: list[Callable[[], None]] = []
        row = bytes(len(ANSWER) + 4 * FED_TOKENS)
        for _ in range(FRONT_ENDS):
            front = Floor(lambda _, data: self.seconds.extend([0.0] * (len(data) // len(ANSWER))))
            await asyncio.get_running_loop().create_unix_connection(lambda front=front: front, str(self.path))  # type: ignore[misc]  # binds it
            sends.append(partial(front.write, row))
        return sends


async def measure(executors: dict[str, Executor], rounds: int, seconds: float) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Microseconds of the executor's CPU a row and the median wait in ms, by name and rate, of each round."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    sends = {name: await executor.connect() for name, executor in executors.items()}
    for _ in range(rounds):
        for rate in RATES:
            for name in random.sample(list(executors), len(executors)):
                executor = executors[name]
                await pour(sends[name], rate, 0.3)
                await asyncio.sleep(0.2)
                executor.seconds.clear()
                spent = busy_s(executor.pid)
                await pour(sends[name], rate, seconds)
                await asyncio.sleep(0.2)
                spent = busy_s(executor.pid) - spent
                row = spent / len(executor.seconds) * 1e6, statistics.median(executor.seconds) * 1e3
                found.setdefault((name, rate), []).append(row)
    return found


def main() -> None:
    """Measure and print a table, or be the floor of a measurement."""
    if sys.argv[1:2] == ["floor"]:
        asyncio.run(floor(sys.argv[2]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    print(f"{idle_share():.0%} of the machine is idle; the aim is {EXECUTOR_US_MAX} us a row")
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        bare = Path(place) / "bare.sock"
        worker = Worker("crowd", "floor", str(bare))
        stack.callback(worker.close)
        executors: dict[str, Executor] = {"floor": Bare(bare, worker.process.pid)}
        make_bundle(Path(place) / "bundles")
        for name, service in {"before": options.before, "now": None}.items():
            if name == "now" or service is not None:
                folder = Path(place) / name
                folder.mkdir()
                flags = ("--batch-rows-max", "256", "--batch-tokens-max", "16384")
                _, pids = stack.enter_context(server(Path(place) / "bundles", 1, folder, *flags, service=service))
                executors[name] = Executor(next(folder.glob("sentiment-*/rows.sock")), pids["executor"])
        found = asyncio.run(measure(executors, options.rounds, options.seconds))
    refused = {name: executor.refused for name, executor in executors.items() if executor.refused}
    if refused:
        print(f"rows without an answer: {refused}; the figures are not valid")
    for rate in RATES:
        told = []
        for name in executors:
            us, ms = (statistics.median(column) for column in zip(*found[name, rate], strict=True))
            told.append(f"{name} {us:6.1f} us/row" + (f", p50 {ms:5.2f} ms" if ms else ""))
        print(f"{rate:6} rows/s  " + "   ".join(told))


if __name__ == "__main__":
    main()
