"""A front end's queues and the executor's endpoint, joined by a real Unix socket. The tests finish runs by hand."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sentiment.batching.batcher import Batcher
from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.text import Waiting
from sentiment.batching.ticket import Priority
from sentiment.errors import Expired, ModelFailed, Refused, RequestError, Unavailable
from sentiment.model.tokenizer import Row, Windows
from sentiment_front_ends.executor_client import LATE_S, Link, RemoteQueue, connect
from sentiment_front_ends.executor_endpoint import FrontEndServer, Serving
from sentiment_front_ends.frames import HEAD, Listing
from tests.core.batching.test_batcher import HandRunner, Notes
from tests.core.batching.test_cost import fixed

INTERACTIVE = Priority.INTERACTIVE
PATIENCE_S = 60
DIGEST = bytes(range(32))


@dataclass
class Heard:
    """A front end that records what it gets and holds all listed models at once."""

    models_listed: list[tuple[list[bytes], dict[bytes, bytes]]] = field(default_factory=list)
    states: list[bool] = field(default_factory=list)
    counted: list[Any] = field(default_factory=list)

    def models(self, link: Link, listing: Listing, copies: Mapping[bytes, bytes]) -> None:
        self.models_listed.append((listing.models, dict(copies)))
        link.follow(listing.revision, listing.models)

    def state(self, ready: bool) -> None:
        self.states.append(ready)

    def takes_texts(self) -> bool:
        """Whether the queues of an executor that is ready send texts."""
        return bool(self.models_listed) and self.states[-1:] == [True]

    def counts(self) -> Any:
        counted, self.counted = self.counted, []
        return counted


@dataclass
class Joined:
    """Both ends."""

    server: FrontEndServer
    queue: RemoteQueue
    heard: Heard
    link: Link
    batcher: Batcher
    runner: HandRunner
    notes: Notes
    added: list[Any]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.001)


async def join(path: Path, heard: Heard, queue: RemoteQueue, name: str = "front-0") -> Link:
    return await connect(path, lambda: Link(name, 42, {DIGEST: queue}, heard))


@pytest.fixture
async def joined(tmp_path: Path) -> AsyncIterator[Joined]:
    runner, notes, added = HandRunner(), Notes(), []
    scheduler: Scheduler[Waiting] = Scheduler(fixed(1e-3, 1e-9), BatchLimits(8, 1024, 2**26, 2), 1, 6, 32)
    batcher = Batcher(object(), scheduler, [runner], notes)
    server = FrontEndServer(tmp_path / "rows.sock", 1, added.extend)
    await server.start()
    heard, queue = Heard(), RemoteQueue(DIGEST, rows_max=100)
    link = await join(tmp_path / "rows.sock", heard, queue)
    async with asyncio.timeout(PATIENCE_S):
        await server.begin([Serving(DIGEST, "tiny/1", b"copy", batcher, lambda: 0.125)], [DIGEST])
    server.set_ready(True)
    await until(heard.takes_texts)
    yield Joined(server, queue, heard, link, batcher, runner, notes, added)
    await link.close()
    server.close()


def row(first: int, tokens: int = 4) -> Row:
    return Row([first] * tokens, None, False)


def submit(joined: Joined, reading: Row | Windows, told: list[TextOutcome], seconds: float = 60.0, **more: Any) -> Any:
    return joined.queue.submit(reading.rows, time.monotonic() + seconds, told.append, more.get("priority", INTERACTIVE))


async def answered(joined: Joined, reading: Row | Windows, outcomes: list[TextOutcome]) -> None:
    """Submit a text and run it."""
    submit(joined, reading, outcomes)
    await until(lambda: bool(joined.runner.started))
    joined.runner.finish()
    await until(lambda: bool(outcomes))


@pytest.mark.smoke
async def test_each_text_gets_its_own_answer_and_texts_of_one_turn_run_together(joined: Joined) -> None:
    told: list[list[TextOutcome]] = [[] for _ in range(4)]

    for number in range(3):
        submit(joined, row(number), told[number])
    submit(joined, Windows((row(7), row(8)), 6, False), told[3])
    await until(lambda: joined.batcher.scheduler.rows_running > 0)
    rows = 0
    while rows < 5:
        await until(lambda: bool(joined.runner.started))
        rows += len(joined.runner.started[0][0])
        joined.runner.finish()
    await until(lambda: all(told))

    assert [one[0].logits for one in told[:3] if isinstance(one[0], RowsResult)] == [[[0.0]], [[1.0]], [[2.0]]]
    assert isinstance(told[3][0], RowsResult)
    assert told[3][0].logits == [[7.0], [8.0]]
    assert [len(one) for one in told] == [1] * 4
    assert joined.notes.ran < 5
    assert joined.queue.texts == 0
    assert joined.queue.backlog_s == 0.125


async def test_a_refusal_of_the_queue_arrives_as_not_admitted_with_its_reason(joined: Joined) -> None:
    told: list[list[TextOutcome]] = [[] for _ in range(20)]

    for number in range(19):
        submit(joined, row(number), told[number])
    submit(joined, row(19), told[19], seconds=-1.0)
    await until(lambda: sum(map(bool, told)) >= 14)

    refused = [one[0] for one in told if one]
    assert not any(one.admitted for one in refused if isinstance(one, RequestError))
    full = [one for one in refused if isinstance(one, Refused)]
    assert full
    assert {error.reason for error in full} == {"queue_full"}
    assert told[19]


async def test_a_text_may_expire_in_the_queue_and_another_may_fail(joined: Joined) -> None:
    first: list[TextOutcome] = []
    second: list[TextOutcome] = []
    submit(joined, row(1), first)
    await until(lambda: bool(joined.runner.started))

    # Long enough to reach the queue on a busy machine.
    submit(joined, row(2), second, seconds=1.0)
    await until(lambda: bool(second))
    assert first == []
    joined.runner.finish(RuntimeError("kernel failed"))
    await until(lambda: bool(first))

    assert isinstance(second[0], Expired)
    assert isinstance(first[0], ModelFailed)
    assert first[0].admitted
    assert "kernel" not in str(first[0])


async def test_a_cancelled_text_is_neither_run_nor_answered(joined: Joined) -> None:
    running: list[TextOutcome] = []
    told: list[TextOutcome] = []
    submit(joined, row(1), running)
    await until(lambda: bool(joined.runner.started))
    waiting = submit(joined, row(2), told)
    await until(lambda: joined.batcher.scheduler.rows_waiting == 1)
    unsent = submit(joined, row(3), told)

    assert waiting.cancel()
    assert unsent.cancel()
    assert not waiting.cancel()
    await until(lambda: joined.batcher.scheduler.rows_waiting == 0)
    joined.runner.finish()
    await until(lambda: bool(running))

    assert told == []
    assert joined.runner.started == []
    assert joined.notes.dropped == ["cancelled"]


async def test_texts_of_a_front_end_that_disconnects_are_withdrawn_and_no_others(joined: Joined, tmp_path: Path) -> None:
    other, queue = Heard(), RemoteQueue(DIGEST, rows_max=100)
    link = await join(tmp_path / "rows.sock", other, queue, "front-1")
    await until(other.takes_texts)
    running: list[TextOutcome] = []
    mine: list[TextOutcome] = []
    theirs: list[TextOutcome] = []
    submit(joined, row(1), running)
    await until(lambda: bool(joined.runner.started))
    submit(joined, row(2), mine)
    queue.submit([row(3)], time.monotonic() + 60, theirs.append, INTERACTIVE)
    await until(lambda: joined.batcher.scheduler.rows_waiting == 2)

    await link.close()
    await until(lambda: joined.batcher.scheduler.rows_waiting == 1)
    for _ in range(2):
        await until(lambda: bool(joined.runner.started))
        joined.runner.finish()
    await until(lambda: bool(running and mine))

    assert isinstance(mine[0], RowsResult)
    assert [type(outcome) for outcome in theirs] == [Unavailable]
    assert joined.server.pids == {"front-0": 42}


async def test_when_the_executor_goes_all_texts_fail_at_once_and_new_ones_are_refused(joined: Joined) -> None:
    told: list[list[TextOutcome]] = [[], [], []]
    submit(joined, row(1), told[0])
    submit(joined, Windows((row(2), row(3)), 6, False), told[1])
    await until(lambda: bool(joined.runner.started))

    joined.server.close()
    await until(lambda: all(told[:2]))

    assert [type(one[0]) for one in told[:2]] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable, match="the executor process has ended"):
        submit(joined, row(4), told[2])
    assert joined.heard.states[-1] is False
    assert joined.queue.texts == 0


async def test_deadlines_hold_if_the_executor_hangs() -> None:
    sent: list[bytes] = []
    queue = RemoteQueue(DIGEST, rows_max=100)
    queue.attach(sent.append)
    now = time.monotonic()
    told: list[list[TextOutcome]] = [[], []]
    for one, seconds in zip(told, (1.0, 3.0), strict=True):
        queue.submit([row(1)], now + seconds, one.append, INTERACTIVE)
    await asyncio.sleep(0)

    queue.end_late(now + 1.0)
    assert told == [[], []]
    queue.end_late(now + 1.0 + 1.1 * LATE_S)
    await asyncio.sleep(0)

    assert [type(one[0]) if one else None for one in told] == [Expired, None]
    # Two frames: the texts, and the cancelled one.
    assert len(sent) == 2


async def test_the_unanswered_rows_of_a_front_end_are_limited() -> None:
    queue = RemoteQueue(DIGEST, rows_max=3)
    queue.attach(lambda _: None)
    told: list[TextOutcome] = []
    until_s = time.monotonic() + 60
    first = queue.submit([row(1), row(2)], until_s, told.append, INTERACTIVE)
    queue.submit([row(3)], until_s, told.append, INTERACTIVE)

    with pytest.raises(Refused, match="3 rows of this front end and model are unanswered; the limit is 3"):
        queue.submit([row(4)], until_s, told.append, INTERACTIVE)
    first.cancel()
    queue.submit([row(4), row(5)], until_s, told.append, INTERACTIVE)
    # No queue can hold this many rows, and the executor says so.
    queue.submit([row(6)] * 4, until_s, told.append, INTERACTIVE)

    assert told == []


async def test_readiness_and_counts_are_sent_and_the_last_counts_before_the_close(joined: Joined) -> None:
    joined.heard.counted = [["requests_total", {"code": "OK"}, 3.0]]

    await joined.server.collect()
    joined.server.set_ready(False)
    await until(lambda: joined.heard.states == [False, True, False])
    assert joined.added == [["requests_total", {"code": "OK"}, 3.0]]
    assert joined.server.pids == {"front-0": 42}
    joined.heard.counted = [["requests_total", {"code": "OK"}, 1.0]]
    await joined.link.close()
    await joined.server.wait_gone(PATIENCE_S)

    assert joined.added[1:] == [["requests_total", {"code": "OK"}, 1.0]]


async def test_a_peer_that_sends_an_invalid_frame_is_disconnected_and_no_other(joined: Joined, tmp_path: Path) -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "rows.sock"))

    writer.write(HEAD.pack(2**31, 3))
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()
    writer.close()
    outcomes: list[TextOutcome] = []
    await answered(joined, row(1), outcomes)

    assert isinstance(outcomes[0], RowsResult)
    assert len(errors) == 1
