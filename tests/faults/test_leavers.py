"""Callers who leave"""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from sentiment.client import AsyncClient, CallFailed
from tests.faults.english import ENGLISH, texts_with_scores
from tests.faults.evidence import Evidence
from tests.faults.fates import Callers
from tests.faults.seen import nothing_waits, open_calls, until
from tests.front_ends.servers import Server

Serve = Callable[..., Server]
SEED = 7
SECONDS = 3.0
# As long as answers take, so that some leave before, some while, and some after they are answered.
LEAVE_S_MAX = {"Classify": 0.15, "ClassifyBatch": 1.0, "ClassifyStream": 1.0}
ROWS = {"Classify": 1, "ClassifyBatch": 16, "ClassifyStream": 16}


async def ask(client: AsyncClient, method: str, texts: list[str]) -> None:
    """One call of this method with all its answers."""

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
    """For a while ``callers`` call and leave at random moments; returns how many calls were left and how many answered before."""
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


@pytest.mark.parametrize("method", ["Classify", "ClassifyBatch", "ClassifyStream"])
def test_half_of_the_callers_leave(serve: Serve, evidence: Evidence, method: str) -> None:
    """The default bundle on one core, 16 callers who wait for their answers and 16 (with batches and streams of 16 texts: 4) who leave
    after a random time of up to 0.15 s (1 s). Nobody else is touched; rows of theirs that waited are not run; no row and no call is left.
    """
    server = serve(*ENGLISH, "--runners", "1")
    checked = texts_with_scores(server.target, 32)
    texts = [text for text, _ in checked]
    found: list[tuple[int, int]] = []
    # Before anybody leaves, so that sums can be compared.
    calls = open_calls(server)
    with Callers(server.target, callers=16 if method == "Classify" else 4, texts=checked) as callers:
        callers.wait(5)
        leavers = 16 if method == "Classify" else 4
        thread = threading.Thread(target=lambda: found.append(asyncio.run(leave(server.target, method, texts, leavers))))
        thread.start()
        thread.join(SECONDS + 60)
        assert found
        callers.wait(5)
    until(lambda: nothing_waits(server), "nothing waits")
    with suppress(AssertionError):
        until(lambda: open_calls(server) <= calls, "no call is open", 5)

    left, answered = found[0]
    dropped = server.total("dropped_total", reason="cancelled")
    wasted = server.total("wasted_rows_total", reason="abandoned")
    evidence.count(callers.fates)
    evidence.measured |= {
        "calls of leavers: left": left,
        "calls of leavers: answered before": answered,
        "rows that waited and were not run": int(dropped),
        "rows that were running and ran on for nobody": int(wasted),
        "p99 of those who stayed, ms": round(callers.fates.seconds(0.99) * 1e3),
    }
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}, evidence.calls
    assert left > 10
    assert dropped > 0
    ran = server.total("batch_rows_sum")
    told = sum(server.total("deadline_outcome_total", outcome=name) for name in ("met", "expired", "failed"))
    # Whoever ran was told, or left while it ran; none of them had left before.
    assert 0 < ran <= told + wasted, (ran, told, wasted)
    assert server.total("grpc_calls_started_total") > left
    assert open_calls(server) <= calls
