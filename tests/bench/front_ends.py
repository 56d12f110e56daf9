"""The throughput of several front ends and the cost of the executor: python -m tests.bench.front_ends [SECONDS] [JSON].

The model does next to nothing (tests/tiny.py), so that what is measured is the way of a call. Clients are Python too and cost as much as a
server: where cores are few, CPU time a call tells what the rate of calls cannot, and both are printed.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from sentiment.batching.batcher import RowResult
from sentiment.batching.row_queue import TextOutcome
from sentiment.batching.ticket import Priority
from sentiment.model.tokenizer import Row
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_front_ends.executor_client import Link, RemoteQueue, connect
from sentiment_front_ends.frames import Listing
from tests.bench.processes import Worker, cpu_s, idle_share
from tests.tiny import make_bundle

CLIENTS = 2
CHANNELS = 8
IN_FLIGHT = 64
FRONT_ENDS = (0, 1, 2)
EXECUTOR_US_MAX = 30.0
# Rows that a front end under full load has on their way, and their length.
FED_ROWS = 512
FED_TOKENS = 32
CLASSIFY = "/sentiment.v1.SentimentService/Classify"
ECHO = "/bench.Echo/Echo"


async def call_for(target: str, method: str, seconds: float) -> int:
    """Call with IN_FLIGHT calls at a time over CHANNELS connections; returns how many were answered."""
    request = pb.ClassifyRequest(text="a good film").SerializeToString()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options) for _ in range(CHANNELS)]
    until = time.monotonic() + seconds
    answered = 0

    async def caller(channel: grpc.aio.Channel) -> None:
        nonlocal answered
        call: Any = channel.unary_unary(method)  # Any: bytes in and out, which its type does not know
        while time.monotonic() < until:
            await call(request)
            answered += 1

    await asyncio.gather(*(caller(channels[number % CHANNELS]) for number in range(IN_FLIGHT)))
    for channel in channels:
        await channel.close()
    return answered


def load(target: str, method: str, seconds: float) -> float:
    """Calls a second that CLIENTS processes get answered."""
    command = [sys.executable, "-m", "tests.bench.front_ends", "call", target, method, str(seconds)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
    return sum(int(client.communicate()[0]) for client in clients) / seconds


class Feeder:
    """A front end without gRPC: it keeps FED_ROWS rows in the executor's queue."""

    def __init__(self) -> None:
        self.answered = 0
        self._queues: dict[bytes, RemoteQueue] = {}
        self._link: Link | None = None
        self._row = Row([5] * FED_TOKENS, None, False)
        self._ready = asyncio.Event()
        self._feeding = True
        self._failed: TextOutcome | None = None

    async def feed(self, path: Path, seconds: float, measure: Callable[[], float]) -> tuple[float, float]:
        """Rows a second, and what ``measure`` grew by a row."""
        self._link = await connect(path, lambda: Link("feeder", os.getpid(), self._queues, self))
        await self._ready.wait()
        for _ in range(FED_ROWS):
            self._submit()
        await asyncio.sleep(1.0)
        rows, spent, begun = self.answered, measure(), time.monotonic()
        await asyncio.sleep(seconds)
        rows, spent, took_s = self.answered - rows, measure() - spent, time.monotonic() - begun
        self._feeding = False
        await self._link.close()
        if self._failed is not None:
            raise RuntimeError(f"a row has no answer: {self._failed}")
        return rows / took_s, spent / max(1, rows)

    def models(self, link: Link, listing: Listing, _copies: Mapping[bytes, bytes]) -> None:
        """What is served: one model, of which nothing is read."""
        (digest,) = listing.models
        self._queues.setdefault(digest, RemoteQueue(digest, 2 * FED_ROWS))
        link.follow(listing.revision, listing.models)
        self._ready.set()

    def state(self, _ready: bool) -> None:
        """Of no interest: the server is ready."""

    def counts(self) -> list[Any]:  # Any: JSON
        """None."""
        return []

    def _submit(self) -> None:
        (queue,) = self._queues.values()
        queue.submit([self._row], time.monotonic() + 60, self._told, Priority.INTERACTIVE)

    def _told(self, outcome: TextOutcome) -> None:
        if not self._feeding:
            return
        if isinstance(outcome, RowResult):
            self.answered += 1
            self._submit()
        else:
            self._failed = outcome


@contextmanager
def server(bundles: Path, front_ends: int, folder: Path, *flags: str, service: Path | None = None) -> Iterator[tuple[str, dict[str, int]]]:
    """A server's target and its processes by name; ``service``: of the code in this folder."""
    own = ["--bundles", str(bundles), "--model", "tiny", "--grpc-listen", "127.0.0.1:0", "--http-listen", ""]
    more = ["--drain-wait-s", "0", "--runners", "1", "--no-explain", "--front-ends", str(front_ends), *flags]
    environment = {**os.environ, "TMPDIR": str(folder)} | ({"PYTHONPATH": str(service)} if service else {})
    command = [sys.executable, "-m", "sentiment", "serve", *own, *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    pids = {} if front_ends else {"one": process.pid}
    try:
        for line in process.stderr:
            entry = json.loads(line)
            if entry["event"] == "process_started":
                pids[entry["started"]] = entry["pid"]
            if entry["event"] == "ready":
                break
        else:
            raise RuntimeError(f"the server ended with {process.wait()}")
        # Read to the end, since a full pipe would block the server.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield str(entry["grpc"]), pids
    finally:
        process.terminate()
        process.wait()


def measure_calls(target: str, method: str, pids: dict[str, int], seconds: float) -> tuple[float, dict[str, float]]:
    """Calls a second, and CPU microseconds a call of each process."""
    load(target, method, min(1.0, seconds))
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    rate = load(target, method, seconds)
    return rate, {name: (cpu_s(pid) - before[name]) / (rate * seconds) * 1e6 for name, pid in pids.items()}


def result(name: str, value: float, unit: str, target: float | None = None, higher: bool = False) -> dict[str, Any]:
    """One figure as bench.json has it."""
    return {"name": name, "value": round(value, 2), "unit": unit, "target": target, "higher_is_better": higher}


def measure(seconds: float) -> list[dict[str, Any]]:
    """Every figure, the quickest first."""
    results = []
    with tempfile.TemporaryDirectory() as place:
        folder, bundles = Path(place), Path(place) / "bundles"
        make_bundle(bundles)
        echo = Worker("processes", "echo")
        rate, spent = measure_calls(echo.hello["target"], ECHO, {"echo": echo.process.pid}, seconds)
        echo.close()
        results += [result("echo_rate", rate, "calls/s", higher=True), result("echo_cpu", spent["echo"], "us/call")]
        for front_ends in FRONT_ENDS:
            with server(bundles, front_ends, folder) as (target, pids):
                rate, spent = measure_calls(target, CLASSIFY, pids, seconds)
            name = f"front_ends_{front_ends}"
            results.append(result(f"{name}_rate", rate, "calls/s", higher=True))
            if not front_ends:
                results.append(result(f"{name}_cpu", spent["one"], "us/call"))
                continue
            of_fronts = sum(us for process, us in spent.items() if process.startswith("front-"))
            results.append(result(f"{name}_front_cpu", of_fronts, "us/call"))
            results.append(result(f"{name}_executor_cpu", spent["executor"], "us/call", EXECUTOR_US_MAX))
            # The throughput that the processes would have with a core each.
            results.append(result(f"{name}_core_each_rate", 1e6 / max(of_fronts / front_ends, spent["executor"]), "calls/s", higher=True))
        with server(bundles, 1, folder, "--batch-rows-max", "256", "--batch-tokens-max", "16384") as (_, pids):
            (path,) = folder.glob("sentiment-*/rows.sock")
            fed = Feeder().feed(path, seconds, lambda: cpu_s(pids["executor"]))
            rate, each_s = asyncio.run(fed)
        results.append(result("executor_fed_rate", rate, "rows/s", higher=True))
        results.append(result("executor_fed_cpu", each_s * 1e6, "us/row", EXECUTOR_US_MAX))
    return results


def show(results: Sequence[dict[str, Any]]) -> None:
    """The figures as a table."""
    for one in results:
        target = "" if one["target"] is None else f"  (target {'>=' if one['higher_is_better'] else '<='} {one['target']})"
        print(f"{one['name']:<36}{one['value']:>12,.1f} {one['unit']}{target}")


def main() -> None:
    """Measure, or be a client of a measurement."""
    if sys.argv[1:2] == ["call"]:
        print(asyncio.run(call_for(sys.argv[2], sys.argv[3], float(sys.argv[4]))))
        return
    seconds = float(next(itertools.islice(sys.argv, 1, None), "5"))
    meta = {"cores": os.cpu_count(), "idle": round(idle_share(), 2), "seconds": seconds}
    results = measure(seconds)
    show(results)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps({"meta": meta, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
