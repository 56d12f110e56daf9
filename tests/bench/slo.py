"""The highest load that meets an objective, and what is answered in time under three times the load.

Open loop: texts are sent when a Poisson process says so, whether or not earlier ones were answered, and a text's time counts from
when it should have been sent.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.bench.processes import start_server

OBJECTIVE_S = 0.5
IN_TIME_MIN = 0.99
SEARCH_STEPS = 6


class OpenLoop:
    """Sends texts to one server at a rate, each with OBJECTIVE_S to be answered."""

    def __init__(self, target: str) -> None:
        # Refusals are answers here: a client that retries would hide them.
        self._channel = grpc.aio.insecure_channel(target, [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)])
        self._stub: Any = pb_grpc.SentimentServiceStub(self._channel)

    async def in_time(self, texts: Sequence[str], rate: float, seconds: float, seed: int) -> tuple[float, float]:
        """Send texts at ``rate`` a second for so many seconds.

        Returns:
            The share that was answered within the objective, and how many that were a second.
        """
        rng = random.Random(seed)
        begun = time.perf_counter() + 0.05
        at, calls = 0.0, []
        while at < seconds:
            calls.append(asyncio.create_task(self._call(rng.choice(texts), begun + at)))
            at += rng.expovariate(rate)
        answered = sum(await asyncio.gather(*calls))
        return answered / len(calls), answered / seconds

    async def _call(self, text: str, at: float) -> bool:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        left_s = OBJECTIVE_S - (time.perf_counter() - at)
        try:
            await self._stub.Classify(pb.ClassifyRequest(text=text), timeout=max(0.001, left_s))
        except grpc.aio.AioRpcError:
            return False
        return time.perf_counter() - at <= OBJECTIVE_S

    async def capacity(self, texts: Sequence[str], seconds: float) -> float:
        """Texts a second that it answers when 64 callers wait all the time."""
        ends_at, answered = time.perf_counter() + seconds, 0

        async def caller(seed: int) -> None:
            nonlocal answered
            rng = random.Random(seed)
            while time.perf_counter() < ends_at:
                await self._stub.Classify(pb.ClassifyRequest(text=rng.choice(texts)), timeout=60)
                answered += time.perf_counter() < ends_at

        await asyncio.gather(*(caller(seed) for seed in range(64)))
        return answered / seconds

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


POLICIES = {"ours": "", "single": "single", "fifo-8": "fifo-8", "fifo-32": "fifo-32"}
OVERLOAD = 3.0


async def measure_objective(model: str, texts: Sequence[str], seconds: float) -> dict[str, float]:
    """Start our server and one for each policy to compare with, and load them in turn.

    Returns:
        ``capacity`` (texts a second, callers waiting all the time), ``load_<policy>`` (highest load that meets the objective) and
        ``overload_<policy>`` (texts a second that are answered in time at OVERLOAD times the capacity).
    """
    processes, loops = [], {}
    try:
        for name, policy in POLICIES.items():
            process, target = start_server(model, policy)
            processes.append(process)
            loops[name] = OpenLoop(target)
        for loop in loops.values():
            await loop.capacity(texts, 1.0)
        found = {"capacity": await loops["ours"].capacity(texts, seconds)}
        for name, load in (await highest_load(loops, texts, found["capacity"], seconds)).items():
            found[f"load_{name}"] = load
        for name, loop in loops.items():
            _, found[f"overload_{name}"] = await loop.in_time(texts, OVERLOAD * found["capacity"], seconds, seed=99)
            await loop.close()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
    return found


async def highest_load(loops: dict[str, OpenLoop], texts: Sequence[str], capacity: float, seconds: float) -> dict[str, float]:
    """The highest rate, by bisection up to 1.3 times ``capacity``, at which each server answers IN_TIME_MIN of the texts in time.

    The servers take turns within each step, so that what else the machine does meets all of them, and all get the same arrivals.
    """
    bounds = dict.fromkeys(loops, (0.1 * capacity, 1.3 * capacity))
    for _ in range(SEARCH_STEPS):
        for name, loop in loops.items():
            low, high = bounds[name]
            rate = (low + high) / 2
            share, _ = await loop.in_time(texts, rate, seconds, seed=7)
            bounds[name] = (rate, high) if share >= IN_TIME_MIN else (low, rate)
            print(f"  {name}: {rate:.1f} texts/s, {share:.1%} within {OBJECTIVE_S * 1e3:.0f} ms", flush=True)
    return {name: low for name, (low, _) in bounds.items()}
