"""Measures servers in turns. The others are suspended meanwhile, and each row is measured for all servers before the next row."""

import asyncio
import contextlib
import math
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc

from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.results import Point
from sentiment_tools.traffic.arrivals import Law
from tests.bench.peers.answers import ANSWER_FAILED, MODEL, QUIET_S_MAX, Answer, Ask, ask_alone, differing, quiet, ready
from tests.bench.peers.environments import LIBRARIES, PeerFailed
from tests.bench.peers.figures import FIGURES, KEYS, OBJECTIVE_S
from tests.bench.peers.processes import Running
from tests.bench.peers.table import OURS, Row
from tests.bench.peers.texts import Texts

# The greatest difference of a probability. Another graph or tokenizer differs by more; fp32 and other kernels differ by less.
SAME = 1e-3
# A resumed server needs this long to run its timers and close idle connections.
SETTLE_S = 0.3
# The clients' channels need this long to reconnect to a restarted server: they back off for a second at most.
RECONNECT_S = 1.5
# Connections to a server, per client process.
CHANNELS = 4
WARM_S, WARM_CALLERS = 1.0, 4
# The errors of a server, or of its load clients.
FAILED = (PeerFailed, LoadFailed, *ANSWER_FAILED)


@dataclass(slots=True)
class Found:
    """The results so far, by figure and peer, one a round.

    ``seconds``: the length of each load; ``texts``: what is asked; ``keys``: the figures to measure.
    """

    seconds: float
    texts: Texts
    keys: frozenset[str] = KEYS
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # Our answers to the texts that all servers are checked with.
    right: list[Answer] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Record a note for the reader of the figures, and print it."""
        self.notes.append(line)
        print(f"  {line}", flush=True)

    def wants(self, *keys: str) -> bool:
        """Whether any of these figures is to be measured."""
        return not self.keys.isdisjoint(keys)

    def note_labels(self, name: str, differs: str, given: Sequence[Answer]) -> None:
        """Note how many labels differ from ours; once, since they are the same in every round."""
        wrong = sum(one[0] != other[0] for one, other in zip(self.right, given, strict=True))
        line = f"{name}: {differs}; of {len(given)} texts {wrong} have another label than ours"
        if line not in self.notes:
            self.note(line)

    def put(self, key: str, name: str, value: float) -> None:
        """Record a figure, and print it."""
        self.values.setdefault(key, {}).setdefault(name, []).append(value)
        print(f"  {key}: {name} {value:.4g}", flush=True)

    def last(self, key: str) -> dict[str, float]:
        """A figure of each peer as measured last."""
        return {name: rounds[-1] for name, rounds in self.values[key].items()}

    def rows(self) -> list[Row]:
        """The rows of the table, in order, including empty ones."""
        return [Row(figure, self.values.get(figure.key, {}), LIBRARIES) for figure in FIGURES if figure.key in self.keys]


@dataclass(slots=True)
class Bench:
    """The running servers, ours first."""

    found: Found
    servers: dict[str, Running] = field(default_factory=dict)
    asks: dict[str, Ask] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[Running]:
        """Suspend the other servers for the duration of the block. At its end, restart this server if it has ended."""
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
        """Restart a failed server, and record it.

        Raises:
            PeerFailed: the server does not restart, or it is ours.
        """
        self.found.note(f"{name}: {why}; started again")
        self.servers[name].again()
        await self.asks[name].close()
        self.asks[name] = await ready(self.servers[name])
        await asyncio.sleep(RECONNECT_S)

    async def in_turn(self, measure: Callable[[str], Awaitable[None]]) -> None:
        """Measure one server after the other. A server that fails is ended; its further figures are missing.

        Raises:
            PeerFailed: it is ours.
        """
        for name in list(self.servers):
            try:
                await measure(name)
            except FAILED as error:
                await self.leave_out(name, error)

    async def leave_out(self, name: str, error: Exception) -> None:
        """End a failed server and record it.

        Raises:
            PeerFailed: it is ours.
        """
        # Printed, since it may be an error in this benchmark.
        traceback.print_exception(error)
        if name == OURS:
            raise PeerFailed(f"{OURS}: {_words(error)}") from error
        self.found.note(f"{name}: left out of what follows with this tuning: {_words(error)}")
        if running := self.servers.pop(name, None):
            running.end()
        if ask := self.asks.pop(name, None):
            await ask.close()

    async def join(self, name: str, running: Running, texts: Sequence[str], differs: str = "") -> None:
        """Wait until a started server answers, and check that its answers are those of the first server.

        Servers join one after the other: if they start together, they are so slow that some give up.

        Args:
            name: the server's.
            running: the server.
            texts: to check it with.
            differs: why its answers may differ from the first one's; how many do is noted. Empty: they may not.

        Raises:
            PeerFailed: the server does not answer, or its answers differ although it computes with the same graph.
        """
        self.servers[name] = running
        try:
            self.asks[name] = await ready(running)
        except PeerFailed as error:
            # Triton's workers sometimes find their own socket closed.
            self.found.note(f"{name}: did not start, and is tried once more: {_words(error)}")
            running.again()
            self.asks[name] = await ready(running)
        given = await ask_alone(self.asks[name], texts)
        if not self.found.right:
            self.found.right.extend(given)
        if differs:
            self.found.note_labels(name, differs, given)
        elif wrong := differing(self.found.right, given, SAME):
            raise PeerFailed(f"{name}: {wrong} of {len(given)} answers differ from those of {OURS} by label or by more than {SAME:g}")

    @contextlib.asynccontextmanager
    async def fleets(self, texts: Sequence[str], mix: Mix) -> AsyncIterator[dict[str, Fleet]]:
        """Load clients for each server, connected and warmed up."""
        async with contextlib.AsyncExitStack() as stack:
            fleets: dict[str, Fleet] = {}

            async def connect(name: str) -> None:
                async with self.alone(name) as running:
                    if not await quiet(running, self.asks[name]):
                        await self.again(name, "no longer answers")
                    target = Target(running.target, running.protocol, MODEL if running.protocol == "oip" else "", CHANNELS)
                    fleets[name] = await stack.enter_async_context(Fleet(target, mix, texts, OBJECTIVE_S))
                    await fleets[name].measure(WARM_CALLERS, WARM_S, warm_up_s=0.0)

            await self.in_turn(connect)
            yield fleets

    async def hold(self, fleet: Fleet, name: str, load: Law | int, times: float = 1.0) -> tuple[Point, float]:
        """Hold a load on one server for ``times`` the usual length, and wait until the server has finished all of it.

        Work that it still does for calls that have ended counts as this load's cost, and must not disturb the next load.

        Returns:
            The results, and the CPU seconds of all processes of the server from the first call until it was idle.
        """
        async with self.alone(name) as running:
            core_s = running.core_s()
            point = await fleet.measure(load, times * self.found.seconds, warm_up_s=0.0)
            done = await quiet(running, self.asks[name])
            core_s = running.core_s() - core_s
            if not done and running.process.poll() is None:
                await self.again(name, f"hung, or busy {QUIET_S_MAX:g} s after a load of {times * self.found.seconds:g} s")
        if point.client_limited:
            what = f"{load} callers" if isinstance(load, int) else f"{load.rate:.0f} texts/s"
            self.found.note(f"{name} at {what}: the client was the limit: {point.client_limited}")
        return point, core_s

    async def end(self) -> None:
        """End the servers and close the connections."""
        for running in self.servers.values():
            running.end()
        for ask in self.asks.values():
            await ask.close()


def _words(error: Exception) -> str:
    """The message of an exception, or its type if it has none. For a failed call, only the code and the details."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def latency_s(point: Point, percentile: float) -> float:
    """The latency percentile over all calls, in seconds; infinite if fewer calls were answered."""
    wanted = percentile / 100 * point.judged
    answered = len(point.latency)
    return point.percentile(100 * wanted / answered) if 0 < wanted <= answered else math.inf
