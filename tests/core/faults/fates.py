"""Callers that record how each of their calls ends: answered correctly or wrongly, with a status code, or not at all (hung)."""

import asyncio
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from sentiment.client import AsyncClient, CallFailed, Credentials
from tests.core.grpc.gate import positive

# For the tiny bundle: each text has its own score for positive, so an answer shows which text it belongs to.
TEXTS = [(f"a film w{weight} and the film", positive(weight)) for weight in range(-32, 33)]
ANSWERED, WRONG, HUNG = "answered", "wrong", "hung"
# A call without answer or status this long after its deadline counts as hung.
PATIENCE_S = 5.0
SCORE_OFF_MAX = 1e-3


@dataclass
class Fates:
    """How calls ended: begin and end of each (s, monotonic clock), and its fate: a status code's name or one of the above."""

    calls: list[tuple[float, float, str]] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Calls by fate. The three fates above are always there."""
        found = Counter(fate for _, _, fate in self.calls)
        return {name: found.pop(name, 0) for name in (ANSWERED, WRONG, HUNG)} | dict(sorted(found.items()))

    def of(self, *fates: str) -> int:
        return sum(fate in fates for _, _, fate in self.calls)

    def lost(self) -> int:
        """Calls that were not answered correctly."""
        return len(self.calls) - self.of(ANSWERED)

    def seconds(self, quantile: float, *fates: str) -> float:
        """A quantile of the duration of calls with these fates (default: answered); nan if there are none."""
        times = sorted(ended - begun for begun, ended, fate in self.calls if fate in (fates or (ANSWERED,)))
        return times[min(len(times) - 1, math.ceil(quantile * len(times)) - 1)] if times else math.nan

    def between(self, begin: float, end: float) -> "Fates":
        """The calls that began in [begin, end)."""
        return Fates([call for call in self.calls if begin <= call[0] < end])


class Callers:
    """``callers`` of one target, in a thread and event loop of their own. Each sends its next call as soon as the last one has ended.

    ``options`` are channel options; the default is our client's behaviour (retries, balancing, health checks, keepalive). ``texts`` are
    pairs of text and expected score for positive. The callers share ``channels`` connections, which no other client uses.
    """

    def __init__(
        self,
        target: str,
        *,
        callers: int = 16,
        channels: int = 1,
        timeout_s: float = 5.0,
        options: Sequence[tuple[str, Any]] = (),
        texts: Sequence[tuple[str, float]] = TEXTS,
        pause_s: float = 0.0,
        credentials: Credentials | None = None,
    ) -> None:
        self.fates = Fates()
        self._credentials = credentials
        self._target, self._callers, self._channels, self._pause_s = target, callers, channels, pause_s
        self._timeout_s, self._options, self._texts = timeout_s, options, itertools.cycle(texts)
        self._going = True
        self._grown = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="callers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join(self._timeout_s + PATIENCE_S + 20)
        assert not self._thread.is_alive(), "the callers did not end"
        if self._failure is not None:
            raise self._failure

    def wait(self, more: int = 1, fate: str = ANSWERED, patience_s: float = 60.0) -> None:
        """Wait until ``more`` further calls have had this fate."""
        with self._grown:
            before = self.fates.of(fate)
            assert self._grown.wait_for(lambda: self.fates.of(fate) >= before + more, patience_s), self.fates.counts()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # handed to the test
            self._failure = error

    async def _run(self) -> None:
        # Without this option, clients of one process share connections.
        apart = [("grpc.use_local_subchannel_pool", 1)]
        given: dict[str, Any] = {"options": [*self._options, *apart], "timeout_s": self._timeout_s, "credentials": self._credentials}
        clients = [AsyncClient(self._target, **given) for _ in range(self._channels)]
        await asyncio.gather(*(self._ask(clients[number % len(clients)]) for number in range(self._callers)))
        for client in clients:
            await client.close()

    async def _ask(self, client: AsyncClient) -> None:
        while self._going:
            text, score = next(self._texts)
            begun = time.monotonic()
            fate = await fate_of(client, text, score, self._timeout_s)
            with self._grown:
                self.fates.calls.append((begun, time.monotonic(), fate))
                self._grown.notify_all()
            # A caller that is refused at once must not take all of the CPU.
            await asyncio.sleep(self._pause_s if fate == ANSWERED else max(self._pause_s, 0.01))


async def fate_of(client: AsyncClient, text: str, score: float, timeout_s: float) -> str:
    """The fate of one call; ``score`` is the expected score for positive."""
    try:
        answer = await asyncio.wait_for(client.classify(text, timeout_s=timeout_s), timeout_s + PATIENCE_S)
    except CallFailed as error:
        return error.code.name
    except TimeoutError:
        return HUNG
    return ANSWERED if abs(answer.scores["positive"] - score) < SCORE_OFF_MAX else WRONG
