"""Servers in turns: while one is measured the others are held still, and each row is measured of all before the next."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from sentiment.loadtest.drivers import LoadFailed, Target
from sentiment.loadtest.fleet import Fleet
from sentiment.loadtest.mix import Mix
from sentiment.loadtest.results import Point
from sentiment.traffic.arrivals import Law
from tests.bench.peers.answers import MODEL, Answer, Ask, answers, ask_alone, differing, ready
from tests.bench.peers.environments import PeerFailed
from tests.bench.peers.figures import FIGURES, OBJECTIVE_S
from tests.bench.peers.processes import Running
from tests.bench.peers.table import OURS, Row

# Another graph or tokenizer would be off by more; fp32 and other kernels are off by less.
SAME = 1e-3
CHECKED_TEXTS = 20
# Until a server that was held still has run its timers and closed the connections that were idle for too long.
SETTLE_S = 0.3
# Each server's connections, of each client process.
CHANNELS = 4
WARM_S = 1.0


@dataclass(slots=True)
class Found:
    """What was found so far, by figure and peer, with ``seconds`` for each load."""

    seconds: float
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # Ours to the first CHECKED_TEXTS short texts.
    right: list[Answer] = field(default_factory=list)

    def put(self, key: str, name: str, value: float) -> None:
        """Record a figure, and show it."""
        self.values.setdefault(key, {})[name] = value
        print(f"  {key}: {name} {value:.4g}", flush=True)

    def rows(self) -> list[Row]:
        """The table's rows, in order; those that nobody has are left out."""
        return [Row(figure, self.values[figure.key]) for figure in FIGURES if figure.key in self.values]


@dataclass(slots=True)
class Bench:
    """The running servers, ours first."""

    found: Found
    servers: dict[str, Running] = field(default_factory=dict)
    asks: dict[str, Ask] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[Running]:
        """While this lasts, this server runs and the others are held still. If it has ended at the end, it is started again."""
        for other, running in self.servers.items():
            if other != name:
                running.hold()
        running = self.servers[name]
        running.go_on()
        await asyncio.sleep(SETTLE_S)
        yield running
        if running.process.poll() is not None:
            await self.again(name, f"ended with {running.process.returncode}")

    async def again(self, name: str, why: str) -> None:
        """Start a server again that has failed, and note it.

        Raises:
            PeerFailed: it does not come back, or is ours.
        """
        self.found.notes.append(f"{name}: {why}; started again")
        print(f"  {self.found.notes[-1]}", flush=True)
        self.servers[name].again()
        await self.asks[name].close()
        self.asks[name] = await ready(self.servers[name])

    async def join(self, name: str, running: Running, texts: Sequence[str]) -> None:
        """Wait until a started server answers, and see that it answers as the first one did. One after the other: starting together
        they are so slow that some give up.

        Raises:
            PeerFailed: it does not.
        """
        self.servers[name] = running
        self.asks[name] = await ready(running)
        given = await ask_alone(self.asks[name], texts[:CHECKED_TEXTS])
        if not self.found.right:
            self.found.right.extend(given)
        if wrong := differing(self.found.right, given, SAME):
            raise PeerFailed(f"{name} answers {wrong} of {len(given)} texts otherwise than {OURS}, by label or by more than {SAME:g}")

    @contextlib.asynccontextmanager
    async def fleets(self, texts: Sequence[str], mix: Mix) -> AsyncIterator[dict[str, Fleet]]:
        """Clients of each server, connected and with a second of warm-up behind them."""
        async with contextlib.AsyncExitStack() as stack:
            fleets = {}
            for name, running in self.servers.items():
                async with self.alone(name):
                    target = Target(running.target, running.protocol, MODEL if running.protocol == "oip" else "", CHANNELS)
                    try:
                        fleets[name] = await stack.enter_async_context(Fleet(target, mix, texts, OBJECTIVE_S))
                    except LoadFailed:
                        # Busy still with calls that nobody waits for, or hung.
                        if not await answers(self.asks[name]):
                            await self.again(name, "does not answer any more")
                        fleets[name] = await stack.enter_async_context(Fleet(target, mix, texts, OBJECTIVE_S))
                    await fleets[name].measure(CHANNELS, WARM_S, warm_up_s=0.0)
            yield fleets

    async def hold(self, fleet: Fleet, name: str, load: Law | int) -> tuple[Point, float]:
        """Hold a load on one server.

        Returns:
            What was seen, and the CPU seconds of all the server's processes from the first call to the last answer.
        """
        async with self.alone(name) as running:
            core_s = running.core_s()
            point = await fleet.measure(load, self.found.seconds, warm_up_s=0.0)
            core_s = running.core_s() - core_s
        if point.client_limited:
            what = f"{load} callers" if isinstance(load, int) else f"{load.rate:.0f} texts/s"
            self.found.notes.append(f"{name} at {what}: the client was the limit: {point.client_limited}")
        return point, core_s

    async def end(self) -> None:
        """Close the connections and end the servers."""
        for ask in self.asks.values():
            await ask.close()
        for running in self.servers.values():
            running.end()


def latency_s(point: Point, percentile: float) -> float:
    """Seconds within which so many per cent of the calls were answered; infinite if fewer were answered at all."""
    wanted = percentile / 100 * point.judged
    answered = len(point.latency)
    return point.percentile(100 * wanted / answered) if 0 < wanted <= answered else math.inf
