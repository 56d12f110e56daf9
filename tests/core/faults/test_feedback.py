"""Callers who give feedback for answers of others"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sentiment.client import AsyncClient, CallFailed
from sentiment.observability.feedback import WAITING_MAX_OF_ONE
from sentiment.observability.journal import Answered, entry_line
from sentiment.observability.journal_files import JournalFiles
from tests.conftest import PLAIN
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.servers import PATIENCE_S, Server

APART = [*PLAIN, ("grpc.use_local_subchannel_pool", 1)]
LINES, LABELLED, GUESSES = 100_000, 40, 256


def write_journal(folder: Path, lines: int) -> None:
    """A journal of an earlier server, 35 MiB for 100,000 lines."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    scores = {"negative": 0.1, "positive": 0.9}

    def line(number: int) -> bytes:
        at, request_id = begun.timestamp() + number, f"{number:032x}"
        answered = Answered(at, "tiny/1", "0" * 64, request_id, 0, "", "bulk", 5, False, "positive", False, scores, None, None)
        return entry_line(answered, with_text=False)

    files = JournalFiles(folder, "server", 1, 2**30, 2**22, lambda: begun)
    for first in range(0, lines, 1000):
        # Another name for each file.
        begun = datetime.fromtimestamp(begun.timestamp() + 1, UTC)
        files.append([line(number) for number in range(first, first + 1000)])
    files.close()


async def guess(client: AsyncClient, request_id: str) -> str:
    """The code of feedback for an answer that somebody else may have got."""
    try:
        await client.feedback("negative", request_id=request_id, timeout_s=PATIENCE_S)
    except CallFailed as error:
        return error.code.name
    return "OK"


async def label_own(client: AsyncClient) -> list[float]:
    """Get answers and label each as soon as it is there; returns how long that took. None may fail."""
    seconds = []
    for number in range(LABELLED):
        await client.classify("a good film", request_id=f"own-{number}")
        begun = time.monotonic()
        assert (await client.feedback("positive", request_id=f"own-{number}", timeout_s=PATIENCE_S)).right
        seconds.append(time.monotonic() - begun)
    return sorted(seconds)


def test_a_flood_of_unknown_request_ids(tmp_path: Path, serve: Callable[..., Server], evidence: Evidence) -> None:
    """No call or label of others fails.

    A journal has 100,000 answers of an earlier server. One connection sends feedback for unknown request ids without a pause, as many at
    once as one may have waiting and one more. Beside it 16 callers classify, and another one labels each of its answers at once: none of
    these fails. Of the flood each is NOT_FOUND or refused.
    """
    write_journal(tmp_path / "journal", LINES)
    server = serve("--journal", str(tmp_path / "journal"))
    codes: Counter[str] = Counter()

    async def run() -> list[float]:
        async with AsyncClient(server.target, options=APART) as flooder, AsyncClient(server.target, options=APART) as polite:

            async def flood() -> None:
                while True:
                    codes[await guess(flooder, os.urandom(16).hex())] += 1

            floods = [asyncio.create_task(flood()) for _ in range(WAITING_MAX_OF_ONE + 1)]
            try:
                return await label_own(polite)
            finally:
                for task in floods:
                    task.cancel()
                await asyncio.wait(floods)

    with Callers(server.target) as callers:
        seconds = asyncio.run(run())
        callers.wait(50)

    evidence.judge(callers.fates)
    assert set(codes) <= {"NOT_FOUND", "RESOURCE_EXHAUSTED"}
    assert codes["NOT_FOUND"] > 0
    evidence.measured |= {
        "feedback for unknown ids": codes.total(),
        "feedback for own answers, median, ms": round(seconds[len(seconds) // 2] * 1e3, 1),
        "feedback for own answers, slowest, ms": round(seconds[-1] * 1e3, 1),
        "99 % of calls within, ms": round(callers.fates.seconds(0.99) * 1e3, 1),
    }
