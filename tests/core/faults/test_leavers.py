"""Callers that leave"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sentiment.client import AsyncClient, CallFailed
from tests.core.faults.english import ENGLISH, texts_with_scores
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.seen import nothing_waits, open_calls
from tests.core.servers import Server, until

SEED = 7
SECONDS = 2.0
# About as long as answers take, so that some leave while their rows wait, some while they run, and some are answered.
LEAVE_S_MAX = {"Classify": 0.15, "ClassifyBatch": 1.0, "ClassifyStream": 1.0}
ROWS = {"Classify": 1, "ClassifyBatch": 16, "ClassifyStream": 16}


async def ask(client: AsyncClient, method: str, texts: list[str]) -> None:
    """Make one call and read all its answers."""

    async def items() -> AsyncIterator[tuple[str, str]]:
        for number, text in enumerate(texts):
            yield str(number), text

    if method == "Classify":
        await client.classify(texts[0])
    elif method == "ClassifyBatch":
        await client.classify_batch(texts)
    else:
        async for _ in client.classify_stream(items()):
            pass


async def leave(target: str, method: str, texts: list[str], callers: int) -> tuple[int, int]:
    """``callers`` call and leave at random moments for SECONDS. Returns how many calls they left, and how many were answered before."""
    rng = random.Random(SEED)
    left = answered = 0

    async def come_and_go() -> None:
        nonlocal left, answered
        async with AsyncClient(target, options=[("grpc.use_local_subchannel_pool", 1)]) as client:
            while time.monotonic() < ends_at:
                try:
                    await asyncio.wait_for(ask(client, method, rng.choices(texts, k=ROWS[method])), rng.uniform(0.0, LEAVE_S_MAX[method]))
                    answered += 1
                except TimeoutError:
                    left += 1
                except CallFailed:
                    await asyncio.sleep(0.01)

    ends_at = time.monotonic() + SECONDS
    await asyncio.gather(*(come_and_go() for _ in range(callers)))
    return left, answered


@pytest.fixture(scope="module")
def one_runner(bundles: Path) -> Iterator[Server]:
    server = Server(bundles, "--front-ends", "0", *ENGLISH, "--runners", "1").wait_ready()
    yield server
    server.end()


@pytest.fixture(scope="module")
def checked(one_runner: Server) -> list[tuple[str, float]]:
    return texts_with_scores(one_runner.target, 32)


def counted(server: Server) -> Counter[str]:
    """Rows that the server has queued, dropped because their callers left or the time was over, run, run without a caller, and counted
    with an outcome; and the calls it has begun.
    """
    return Counter(
        queued=int(server.total("stage_seconds_count", stage="tokenize") - server.total("deadline_outcome_total", outcome="refused")),
        dropped=int(server.total("dropped_total", reason="cancelled")),
        late=sum(int(server.total("dropped_total", reason=reason)) for reason in ("expired", "hopeless")),
        wasted=int(server.total("wasted_rows_total", reason="abandoned")),
        ran=int(server.total("batch_rows_sum")),
        ended=sum(int(server.total("deadline_outcome_total", outcome=name)) for name in ("met", "expired", "failed", "cancelled")),
        calls=int(server.total("grpc_calls_started_total")),
    )


@pytest.mark.parametrize("method", ["Classify", "ClassifyBatch", "ClassifyStream"])
def test_half_of_the_callers_leave(one_runner: Server, checked: list[tuple[str, float]], evidence: Evidence, method: str) -> None:
    """The others are answered; waiting rows of leavers never run.

    The default bundle on one core has 16 callers that wait for their answers, and 16 that leave after a random time of up to 0.15 s.
    With batches and streams of 16 texts it has 4 of each, and up to 1 s. The first half is answered; the leavers' waiting rows are not
    run; no row and no call stays open.
    """
    server, half = one_runner, 16 if method == "Classify" else 4
    # Before anybody leaves, so that sums can be compared.
    calls, before = open_calls(server), counted(server)
    with Callers(server.target, callers=half, texts=checked, timeout_s=60) as callers, ThreadPoolExecutor(1) as thread:
        callers.wait(5)
        leaving = thread.submit(lambda: asyncio.run(leave(server.target, method, [text for text, _ in checked], half)))
        left, answered = leaving.result(SECONDS + 60)
        callers.wait(5)
    until(lambda: nothing_waits(server) and open_calls(server) <= calls, "nothing waits, and no call is open")

    now = counted(server)
    now.subtract(before)
    evidence.judge(callers.fates)
    evidence.measured |= {
        "calls of leavers: left": left,
        "calls of leavers: answered before": answered,
        "rows that waited and were not run": now["dropped"],
        "rows that ran to their end without a caller": now["wasted"],
        "p99 of those who stayed, ms": round(callers.fates.seconds(0.99) * 1e3),
    }
    assert left > 10
    assert now["dropped"] > 0
    # Every row that was queued ran or was dropped. Every row has one outcome; those whose callers left before have one too.
    assert now["ran"] + now["dropped"] + now["late"] == now["queued"] > 0, now
    assert now["queued"] <= now["ended"] <= now["queued"] + left * ROWS[method], now
    assert now["calls"] > left
