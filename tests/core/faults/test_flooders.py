"""One caller that floods, by what it floods with, beside others: each has the name of its token"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment.client import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_tools.loadtest.drivers import Target
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.results import OK, Point
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.texts import read_pool
from tests.core.faults.english import ENGLISH, PATIENT
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import ANSWERED, HUNG, WRONG
from tests.core.servers import Server

Stub = Any  # grpc's stubs of asyncio have no types
# What the others ask for, of what the server answers to 64 callers; for how long, alone and beside the flood; and by when they need it.
SHARE, SECONDS, OTHERS_S = 0.3, 10.0, 20.0
# By when the flood needs it: a batch soon, so that the caller asks again at once.
TIMEOUT_S, BATCH_S = 5.0, 1.0
OTHER, FLOOD = "other-token-0123456789", "flood-token-0123456789"
POOL = read_pool("mixed")
LONG = "the plot was not really good but the actors were fine and I liked it " * 260
WINDOWS = pb.ClassifyRequest(text=LONG, truncation=pb.TRUNCATION_WINDOWS)
EXPLAINED = pb.ExplainRequest(text=LONG[:2800])

pytestmark = pytest.mark.thorough


@pytest.fixture
def server(serve: Callable[..., Server], tmp_path: Path) -> Iterator[Server]:
    """With tokens of two names, on half of the cores. The callers have the other half, so that it meets no limit but its own."""
    (tmp_path / "tokens").write_text(f"other:{OTHER}\nflood:{FLOOD}\n")
    flags = (*ENGLISH, "--auth-tokens", str(tmp_path / "tokens"))
    cores = sorted(os.sched_getaffinity(0))
    middle = len(cores) // 2
    # What this process starts from now on inherits it.
    os.sched_setaffinity(0, cores[middle:])
    yield serve(*flags, before=("taskset", "-c", ",".join(map(str, cores[:middle] or cores))))
    os.sched_setaffinity(0, cores)


async def single(stub: Stub, number: int) -> None:
    await stub.Classify(pb.ClassifyRequest(text=POOL[number % len(POOL)]), timeout=TIMEOUT_S)


async def batch(stub: Stub, number: int) -> None:
    items = [pb.Item(text=POOL[(number + place) % len(POOL)]) for place in range(128)]
    await stub.ClassifyBatch(pb.ClassifyBatchRequest(items=items), timeout=BATCH_S)


async def unread(stub: Stub, number: int) -> None:
    async def texts() -> AsyncIterator[pb.ClassifyStreamRequest]:
        for place in range(100_000):
            yield pb.ClassifyStreamRequest(item=pb.Item(text=POOL[(number + place) % len(POOL)]))

    call = stub.ClassifyStream(texts())
    # Until the answers that nobody reads fill what HTTP/2 lets the server send.
    await asyncio.sleep(1.0)
    call.cancel()


async def windows(stub: Stub, _: int) -> None:
    await stub.Classify(WINDOWS, timeout=TIMEOUT_S)


async def explanation(stub: Stub, _: int) -> None:
    async for _part in stub.Explain(EXPLAINED, timeout=TIMEOUT_S):
        pass


@contextlib.asynccontextmanager
async def flooding(server: Server, ask: Callable[[Stub, int], Awaitable[object]], at_once: int) -> AsyncIterator[Counter[str]]:
    """A caller on four connections that always has ``at_once`` calls open. Yields how they end."""
    ended: Counter[str] = Counter()
    credentials = Credentials(token=FLOOD).for_grpc()
    assert credentials is not None
    apart = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    channels = [grpc.aio.secure_channel(server.target, credentials, apart) for _ in range(4)]

    async def go_on(place: int) -> None:
        stub = pb_grpc.SentimentServiceStub(channels[place % 4])
        number = 1000 * place
        while True:
            number += 7
            try:
                await ask(stub, number)
                ended[OK] += 1
            except grpc.aio.AioRpcError as error:
                ended[error.code().name] += 1

    going = [asyncio.create_task(go_on(place)) for place in range(at_once)]
    yield ended
    for task in going:
        task.cancel()
    await asyncio.gather(*going, return_exceptions=True)
    for channel in channels:
        await channel.close()


def runs(server: Server) -> dict[float, float]:
    """How many texts have run, by the time of their batch at most."""
    samples = [one for one in server.metrics() if one.name == "sentiment_stage_seconds_bucket" and one.labels["stage"] == "run"]
    return {float(one.labels["le"]): one.value for one in samples}


def longest_s(before: dict[float, float], after: dict[float, float]) -> float:
    """The time of the longest run, rounded up to an edge of the histogram."""
    grown = {edge: after[edge] - before[edge] for edge in after}
    return min(edge for edge, texts in grown.items() if texts == max(grown.values()))


def beside(server: Server, evidence: Evidence, ask: Callable[[Stub, int], Awaitable[object]], at_once: int) -> None:
    target = Target(server.target, credentials=Credentials(token=OTHER))

    async def measured() -> tuple[float, Point, Point, Counter[str]]:
        async with Fleet(target, Mix(PATIENT), POOL, TIMEOUT_S, processes=1) as fleet:
            can = (await fleet.measure(64, 4.0)).answered_per_s
        async with Fleet(target, Mix((OTHERS_S, OTHERS_S)), POOL, OTHERS_S, processes=1) as fleet:
            alone = await fleet.measure(Poisson(SHARE * can), SECONDS)
            async with flooding(server, ask, at_once) as ended:
                await asyncio.sleep(1.0)
                before = runs(server)
                with_flood = await fleet.measure(Poisson(SHARE * can), SECONDS)
                evidence.measured["longest batch, at most, ms"] = round(longest_s(before, runs(server)) * 1e3)
        return can, alone, with_flood, ended

    can, alone, with_flood, ended = asyncio.run(measured())
    answered = with_flood.ok / with_flood.sent
    evidence.calls |= {ANSWERED: with_flood.ok, WRONG: 0, HUNG: 0, **{code: n for code, n in with_flood.outcomes.items() if code != OK}}
    evidence.measured |= {
        "capacity, texts/s": round(can, 1),
        "texts of the others, per s": round(SHARE * can, 1),
        "p50 of the others alone, ms": round(alone.percentile(50) * 1e3, 1),
        "p50 of the others beside it, ms": round(with_flood.percentile(50) * 1e3, 1),
        "p99 of the others alone, ms": round(alone.percentile(99) * 1e3, 1),
        "p99 of the others beside it, ms": round(with_flood.percentile(99) * 1e3, 1),
        "share of the others answered": round(answered, 4),
        "seconds of run time for the others": round(server.total("caller_work_seconds_total", caller="other"), 1),
        "seconds of run time for it": round(server.total("caller_work_seconds_total", caller="flood"), 1),
        **{f"its calls that ended with {code}": number for code, number in sorted(ended.items())},
    }
    assert alone.ok == alone.sent
    assert answered >= 0.99, (with_flood.outcomes, with_flood.messages)
    assert ended.total() > 0


def test_a_flood_of_single_calls(server: Server, evidence: Evidence) -> None:
    """At least 99 % of the calls of others are answered.

    The default bundle. Others ask for 0.3 of what the server answers, in an open loop, with deadlines of 20 s, alone and beside a caller
    of another name that always has 256 calls with deadlines of 5 s open.
    """
    beside(server, evidence, single, 256)


def test_a_flood_of_batches(server: Server, evidence: Evidence) -> None:
    """At least 99 % of the calls of others are answered.

    As above, beside a caller that always has 32 batches of 128 texts with deadlines of 1 s open.
    """
    beside(server, evidence, batch, 32)


def test_a_flood_of_streams_whose_answers_are_not_read(server: Server, evidence: Evidence) -> None:
    """At least 99 % of the calls of others are answered.

    As above, beside a caller that always has 16 streams open, sends texts as fast as it can and reads no answer. It opens each again
    after a second, since a stream whose answers are not read soon takes no more texts.
    """
    beside(server, evidence, unread, 16)


def test_a_flood_of_windows(server: Server, evidence: Evidence) -> None:
    """At least 99 % of the calls of others are answered.

    As above, beside a caller that always has 8 texts of 18 KB open, which are read in windows.
    """
    beside(server, evidence, windows, 8)


def test_a_flood_of_explanations(server: Server, evidence: Evidence) -> None:
    """At least 99 % of the calls of others are answered.

    As above, beside a caller that always has 8 explanations of texts of 2.8 KB open.
    """
    beside(server, evidence, explanation, 8)
