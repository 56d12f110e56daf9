"""One client process of a load test: ``python -m sentiment_tools.loadtest.worker``. ``fleet`` sends it commands as ``messages``.

It ends when its standard input ends, so that no process is left when a load test is killed.
"""

import asyncio
import gc
import itertools
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from sentiment_tools.loadtest.drivers import Answer, Driver, LoadFailed
from sentiment_tools.loadtest.durations import Durations
from sentiment_tools.loadtest.messages import line_of, message_of
from sentiment_tools.loadtest.mix import SLOW_READER, Call, Mix
from sentiment_tools.loadtest.precise_timer import new_event_loop
from sentiment_tools.loadtest.protocols import open_driver
from sentiment_tools.loadtest.results import CANCELLED_BY_US, JUDGED, OK, STAGES, Group, Part
from sentiment_tools.traffic.arrivals import Law, Poisson

# An answer may still arrive this long after the last deadline.
DRAIN_GRACE_S = 1.0
# A call that is not sent this long after the end of the load is not sent any more: the client is too slow.
OVERDUE_S_MAX = 1.0
REFUSED_PAUSE_S = 0.1
UNFINISHED = "unfinished"
LINE_BYTES_MAX = 2**28
MESSAGE_CHARACTERS_MAX = 300


class Run:
    """Holds one load and counts. All instants are on the machine's monotonic clock, which all its processes share."""

    def __init__(
        self,
        driver: Driver,
        mix: Mix,
        command: dict[str, Any],  # Any: as in ``messages``
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._driver, self._mix = driver, mix
        self._begins_at: float = command["begins_at"]
        self._ends_at: float = self._begins_at + command["seconds"]
        self._warm_up_s: float = command["warm_up_s"]
        self._objective_s: float = command["objective_s"]
        self._open_max: int = command["open_max"]
        self._command = command
        self._open: set[asyncio.Task[str]] = set()
        self._awaited = 0
        self._failed: BaseException | None = None
        self._part = Part(stages={name: Durations() for name in STAGES})
        self._cpu_s_at_begin = time.process_time()
        self._number = 0
        self._second = Counter[str]()
        self._second_latency = Durations()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Send no more calls; open calls are waited for as at the end."""
        self._ends_at = min(self._ends_at, self._clock())
        self._stopped.set()

    async def hold(self, calls: Iterator[Call]) -> Part:
        """Hold the load until its end.

        Raises:
            LoadFailed: the driver has a bug. Errors of servers are counted, not raised.
        """
        ticking = asyncio.create_task(self._tick())
        cpu = asyncio.get_running_loop().call_at(self._begins_at, self._read_cpu)
        callers: list[asyncio.Task[None]] = []
        try:
            if "callers" in self._command:
                callers = self._callers(calls)
                await self._until_due(self._ends_at)
            else:
                await self._open_loop(calls)
            self._part.held_s = max(0.0, self._ends_at - self._begins_at)
            if self._part.held_s:
                self._part.cpu = (time.process_time() - self._cpu_s_at_begin) / self._part.held_s
            await self._drain()
        finally:
            cpu.cancel()
            for task in (ticking, *callers):
                task.cancel()
        if self._failed is not None:
            raise LoadFailed(f"{type(self._failed).__name__} in a call: {self._failed}") from self._failed
        while self._begins_at + self._number < self._ends_at:
            self._report()
        return self._part

    def _read_cpu(self) -> None:
        self._cpu_s_at_begin = time.process_time()

    async def _until(self, at: float) -> None:
        """Sleep until ``at``. Return at once if that is past or the load is stopped, but let other tasks run."""
        delay_s = at - self._clock()
        if delay_s <= 0 or self._stopped.is_set():
            await asyncio.sleep(0)
            return
        await asyncio.sleep(delay_s)

    async def _open_loop(self, calls: Iterator[Call]) -> None:
        """Send each call when it is due, whether or not earlier ones are answered."""
        command = self._command
        law: Law = command["law"]
        mine = itertools.islice(zip(self._due(law), calls, strict=False), command["worker"], None, command["workers"])
        for due_at, call in mine:
            await self._until_due(due_at)
            if due_at >= self._ends_at:
                break
            if self._clock() > self._ends_at + OVERDUE_S_MAX:
                # Estimated by the mean rate, because drawing the remaining calls would take too long.
                self._part.unsent += max(1, round((self._ends_at - max(due_at, self._begins_at)) * law.rate / command["workers"]))
                break
            if len(self._open) >= self._open_max:
                self._part.unsent += due_at >= self._begins_at
                continue
            self._begin(call, due_at)
        await self._until_due(self._ends_at)

    async def _until_due(self, at: float) -> None:
        """As ``_until``, but a stop ends it early."""
        while (left_s := at - self._clock()) > 1 and not self._stopped.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), left_s - 0.5)
        await self._until(at)

    def _due(self, law: Law) -> Iterator[float]:
        """The due times of all workers' calls: a warm-up at the mean rate, then the law."""
        seed = self._command["seed"]
        warm_up = Poisson(law.rate).times(seed + 1)
        yield from (self._begins_at - self._warm_up_s + at for at in itertools.takewhile(lambda at: at < self._warm_up_s, warm_up))
        yield from (self._begins_at + at for at in law.times(seed))

    def _callers(self, calls: Iterator[Call]) -> list[asyncio.Task[None]]:
        """Start callers that each wait for their answer before they send again."""
        command = self._command
        mine = itertools.islice(calls, command["worker"], None, command["workers"])

        async def caller() -> None:
            await self._until(self._begins_at - self._warm_up_s)
            while self._clock() < self._ends_at:
                begun_at = self._clock()
                call = self._begin(next(mine), None)
                await asyncio.wait({call})
                # A caller that is refused at once and sends again at once would spin.
                if not call.cancelled() and call.exception() is None and call.result() not in (OK, CANCELLED_BY_US):
                    await asyncio.sleep(max(0.0, begun_at + REFUSED_PAUSE_S - self._clock()))

        return [asyncio.create_task(caller()) for _ in range(command["worker"], command["callers"], command["workers"])]

    def _begin(self, call: Call, due_at: float | None) -> asyncio.Task[str]:
        task = asyncio.create_task(self._make(call, due_at))
        self._open.add(task)
        self._awaited += call.kind != SLOW_READER
        task.add_done_callback(lambda done: self._end(done, call))
        return task

    def _end(self, task: asyncio.Task[str], call: Call) -> None:
        self._open.discard(task)
        self._awaited -= call.kind != SLOW_READER
        if not task.cancelled() and task.exception() is not None:
            self._failed = self._failed or task.exception()
            self.stop()

    async def _make(self, call: Call, due_at: float | None) -> str:
        """Make a call, and count it if it is due while the load is held. Its latency counts from when it was due.

        Returns:
            The outcome.
        """
        sent_at = self._clock()
        begun_at = sent_at if due_at is None else due_at
        counted = self._begins_at <= begun_at < self._ends_at
        self._count_sent(call, sent_at, sent_at - begun_at, counted and due_at is not None, counted)
        answer = Answer(UNFINISHED)
        try:
            answer = await self._answer(call, begun_at)
        finally:
            self._count(call, answer, begun_at, self._clock(), counted)
        return answer.code

    async def _answer(self, call: Call, begun_at: float) -> Answer:
        left_s = max(1e-3, begun_at + call.timeout_s - self._clock())
        if call.cancel_after_s is None:
            return await self._driver.call(call, left_s)
        try:
            async with asyncio.timeout(call.cancel_after_s):
                return await self._driver.call(call, left_s)
        except TimeoutError:
            return Answer(CANCELLED_BY_US)

    def _count_sent(self, call: Call, sent_at: float, lag_s: float, lags: bool, counted: bool) -> None:
        if lags:
            self._part.lag.record(lag_s)
        if counted:
            self._part.groups.setdefault(call.group, Group()).sent += 1
            self._part.texts_sent += len(call.texts)
            self._part.repeated += call.repeated
        self._second["sent"] += call.group in JUDGED and sent_at >= self._begins_at

    def _count(self, call: Call, answer: Answer, begun_at: float, done_at: float, counted: bool) -> None:
        part, latency_s = self._part, done_at - begun_at
        ok = answer.code == OK
        in_time = ok and latency_s <= self._objective_s
        if self._begins_at <= done_at < self._ends_at:
            part.answered += ok
            part.texts += answer.texts_ok
            part.tokens += answer.tokens
            if call.group in JUDGED:
                self._second["ok" if ok else "failed"] += 1
                self._second["in_time"] += in_time
                if ok:
                    self._second_latency.record(latency_s)
        if not counted:
            return
        group = part.groups[call.group]
        group.outcomes[answer.code] += 1
        if answer.message:
            part.messages.setdefault(answer.code, answer.message[:MESSAGE_CHARACTERS_MAX])
        group.texts_ok += answer.texts_ok
        group.tokens += answer.tokens
        group.in_time += in_time
        if not ok:
            return
        group.latency.record(latency_s)
        if known := answer.stages_s:
            for name, seconds in zip(STAGES, (*known, latency_s - sum(known)), strict=True):
                part.stages[name].record(seconds)

    async def _tick(self) -> None:
        # The last second is reported after the end, because calls that are sent late belong to it.
        while self._number + 1 < self._command["seconds"]:
            await asyncio.sleep(self._begins_at + self._number + 1 - self._clock())
            self._report()

    def _report(self) -> None:
        """Report this second and begin the next."""
        report(second={"number": self._number, **self._second, "latency": self._second_latency})
        self._number += 1
        self._second, self._second_latency = Counter(), Durations()

    async def _drain(self) -> None:
        """Wait until all classifications have reached their deadlines, then cancel the rest: slow readers and long explanations."""
        ends_at = self._clock() + self._mix.timeout_s_max + DRAIN_GRACE_S
        while self._awaited and self._failed is None and self._clock() < ends_at:
            await asyncio.wait(self._open, timeout=ends_at - self._clock(), return_when=asyncio.FIRST_COMPLETED)
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)


def report(**message: Any) -> None:  # Any: as in ``messages``
    """Send a message to the fleet. If that has ended, end this process too."""
    try:
        sys.stdout.buffer.write(line_of(message))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # At once: the rest of the buffer cannot be written either.
        os._exit(1)


async def serve() -> None:
    """Connect as the first line says, then hold the load of each further line."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    setup = message_of(await lines.readline())
    mix: Mix = setup["mix"]
    try:
        driver = open_driver(setup["target"], mix.stream)
        try:
            report(ready=await driver.connect())
            # Objects that exist now stay, so garbage collections can skip them.
            gc.freeze()
            while line := await lines.readline():
                command = message_of(line)
                if "stop" in command:
                    continue  # the load had already ended
                await _hold_one(Run(driver, mix, command), mix.calls(setup["texts"], command["seed"]), lines)
        finally:
            await driver.close()
    except LoadFailed as error:
        report(error=str(error))


async def _hold_one(run: Run, calls: Iterator[Call], lines: asyncio.StreamReader) -> None:
    """Hold a load. A line that arrives meanwhile, or the end of the input, stops it."""
    held, stopping = asyncio.create_task(run.hold(calls)), asyncio.create_task(lines.readline())
    await asyncio.wait({held, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        run.stop()
    else:
        # The reader has no partial line that cancelling could lose.
        stopping.cancel()
        await asyncio.wait({stopping})
    report(part=await held)


def main() -> None:
    """Run until standard input ends."""
    # Ctrl-C at the terminal reaches every process of the group; only the fleet handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
