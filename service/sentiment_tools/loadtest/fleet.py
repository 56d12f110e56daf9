"""The client processes of a load test. They start once, hold one load after the other, and their counts are merged."""

import asyncio
import itertools
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.durations import Durations
from sentiment_tools.loadtest.messages import line_of, message_of
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.results import Part, Point, Second, merge
from sentiment_tools.loadtest.worker import DRAIN_GRACE_S, LINE_BYTES_MAX
from sentiment_tools.traffic.arrivals import Law

T = TypeVar("T")
# Open calls of all processes together. An open call takes about 30 KiB in the client.
OPEN_MAX = 10_000
# Time for a process to import gRPC and connect.
START_S_MAX = 30.0
# Time between a command and the first call, so that all processes have read the command.
HEAD_START_S = 0.2
# How long a process may take beyond the load, the deadlines and their grace period before it is given up.
LATE_S_MAX = 15.0


def default_processes() -> int:
    """One process for two cores. The other cores are for a server on this machine; one process makes thousands of calls a second."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(16, cores // 2))


class Fleet:
    """Client processes that load one server. An async context manager; call ``measure`` any number of times, one at a time.

    ``server`` is what the server says about itself, after the context is entered.
    """

    def __init__(
        self,
        target: Target,
        mix: Mix,
        texts: Sequence[str],
        objective_s: float,
        *,
        percentile: float = 99.0,
        processes: int | None = None,
        seed: int = 1,
        open_max: int = OPEN_MAX,
        on_second: Callable[[Second], None] = lambda _: None,
    ) -> None:
        """Create a fleet without starting processes.

        Args:
            target: the server; each process opens its own channels.
            mix: the kinds of calls to send.
            texts: the texts to choose from.
            objective_s: seconds after which an answer is late.
            percentile: percentage of calls that must meet the objective. This client must send as many in time.
            processes: number of processes; None for ``default_processes``.
            seed: the same seed gives the same calls at the same instants with any number of processes.
            open_max: the most calls open at once. Calls that are due beyond this count as unsent.
            on_second: called for each second of a load, when all processes have reported it.
        """
        self.server: dict[str, str] = {}
        self.processes = processes or default_processes()
        self._setup = {"target": target, "mix": mix, "texts": list(texts)}
        self._mix, self._objective_s, self._percentile = mix, objective_s, percentile
        self._open_max, self._on_second = open_max, on_second
        self._seeds = itertools.count(seed)
        self._workers: list[_Worker] = []
        self._stopped = False

    async def __aenter__(self) -> Self:
        """Start the processes and connect them.

        Raises:
            LoadFailed: no server answers at the target, or not by its protocol.
        """
        try:
            for number in range(self.processes):
                self._workers.append(await _Worker.start(number))
            async with asyncio.timeout(START_S_MAX):
                found = await _all(worker.connect(self._setup) for worker in self._workers)
        except TimeoutError as error:
            await self._end()
            raise LoadFailed(f"a client process did not connect within {START_S_MAX:g} s") from error
        except BaseException:
            await self._end()
            raise
        self.server = found[0]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    async def _end(self) -> None:
        await asyncio.gather(*(worker.end() for worker in self._workers))

    def stop(self) -> None:
        """End the current load early: ``measure`` returns what was measured so far. Do not call ``measure`` again."""
        self._stopped = True
        for worker in self._workers:
            worker.send(stop=True)

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped

    async def measure(self, load: Law | int, seconds: float, warm_up_s: float = 1.0) -> Point:
        """Hold a load and measure.

        Args:
            load: an arrival law (open loop: calls are sent when they are due), or a number of callers that each wait for their answer
                (closed loop: hides the waiting time of real users).
            seconds: how long the load is held and counted. For a law that changes or ends, use its whole duration or whole periods;
                otherwise the load does not have the law's mean rate.
            warm_up_s: duration of a load before that at the law's mean rate, which is not counted.

        Raises:
            LoadFailed: a client process died or does not respond. Errors of the server are counted, not raised.
        """
        begins_at = time.monotonic() + HEAD_START_S + warm_up_s
        command = {
            "begins_at": begins_at,
            "seconds": seconds,
            "warm_up_s": warm_up_s,
            "objective_s": self._objective_s,
            "seed": next(self._seeds),
            "workers": len(self._workers),
            "open_max": -(-self._open_max // len(self._workers)),
            **({"callers": load} if isinstance(load, int) else {"law": load}),
        }
        seen = _Seconds(len(self._workers), self._on_second)
        limit_s = HEAD_START_S + warm_up_s + seconds + self._mix.timeout_s_max + DRAIN_GRACE_S + LATE_S_MAX
        try:
            async with asyncio.timeout(limit_s):
                parts = await _all(worker.hold(command, seen) for worker in self._workers)
        except TimeoutError as error:
            raise LoadFailed(f"a client process did not report within {limit_s:.0f} s about a load of {seconds:g} s") from error
        point = merge(
            parts,
            offered_per_s=0.0 if isinstance(load, int) else load.rate,
            seconds=max(part.held_s for part in parts),
            objective_s=self._objective_s,
            callers=load if isinstance(load, int) else 0,
            percentile=self._percentile,
        )
        point = replace(point, series=tuple(seen.whole), interrupted=self._stopped)
        if point.interrupted and not point.closed_loop and point.seconds:
            # Only a part of the law was held, whose rate may differ from the mean.
            point = replace(point, offered_per_s=(point.sent + point.unsent) / point.seconds)
        return point


async def measure(
    target: Target, mix: Mix, texts: Sequence[str], load: Law | int, seconds: float, objective_s: float, warm_up_s: float = 1.0
) -> Point:
    """Hold one load with a new fleet; arguments as for ``Fleet`` and ``Fleet.measure``."""
    async with Fleet(target, mix, texts, objective_s) as fleet:
        return await fleet.measure(load, seconds, warm_up_s)


class _Worker:
    """A client process, with its commands and reports as ``messages``."""

    def __init__(self, number: int, process: Process) -> None:
        self._number, self._process = number, process

    @classmethod
    async def start(cls, number: int) -> Self:
        command = (sys.executable, "-m", "sentiment_tools.loadtest.worker")
        # In a session of its own, so that only the fleet handles Ctrl-C.
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES_MAX, start_new_session=True)
        return cls(number, process)

    def send(self, **message: Any) -> None:  # Any: as in ``messages``
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line_of(message))

    async def _receive(self) -> dict[str, Any]:  # Any: as above
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise LoadFailed(f"client process {self._number} ended with exit code {await self._process.wait()}")
        report = message_of(line)
        if "error" in report:
            raise LoadFailed(report["error"])
        return report

    async def connect(self, setup: dict[str, Any]) -> dict[str, str]:  # Any: as above
        """Connect the process. Returns what the server says about itself."""
        self.send(**setup)
        server: dict[str, str] = (await self._receive())["ready"]
        return server

    async def hold(self, command: dict[str, Any], seen: "_Seconds") -> Part:  # Any: as above
        self.send(**command, worker=self._number)
        while "part" not in (report := await self._receive()):
            seen.add(report["second"])
        part: Part = report["part"]
        return part

    async def end(self) -> None:
        """Let the process close its connections; kill it if it does not end within three times DRAIN_GRACE_S."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 3 * DRAIN_GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class _Seconds:
    """Adds up the processes' reports of each second. A second is complete when all processes have reported it."""

    def __init__(self, workers: int, on_second: Callable[[Second], None]) -> None:
        self._workers, self._on_second = workers, on_second
        self._reports: dict[int, list[dict[str, Any]]] = {}  # Any: as above
        self.whole: list[Second] = []

    def add(self, report: dict[str, Any]) -> None:  # Any: as above
        reports = self._reports.setdefault(report["number"], [])
        reports.append(report)
        if len(reports) < self._workers:
            return
        latency = Durations()
        for each in self._reports.pop(report["number"]):
            latency.add(each["latency"])
        counts = {name: sum(each.get(name, 0) for each in reports) for name in ("sent", "ok", "in_time", "failed")}
        found = latency.percentiles((50, 99))
        self.whole.append(Second(report["number"], **counts, p50_s=found[50], p99_s=found[99]))
        self._on_second(self.whole[-1])


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:  # Any: a coroutine's send type, which is not used
    """All results, or the first failure; then the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
