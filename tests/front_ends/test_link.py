"""Each end of the socket with a peer that does not read, is slow, or sends too early."""

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentiment.batching.row_queue import TextOutcome
from sentiment.errors import Broken, Refused, RequestError, Unavailable
from sentiment.model.tokenizer import Row
from sentiment.pipeline.queries import Query
from sentiment.serving import event_loop
from sentiment.settings import Settings
from sentiment_front_ends import executor_client as links
from sentiment_front_ends import executor_endpoint as endpoint
from sentiment_front_ends.executor_client import RemoteQueue
from sentiment_front_ends.executor_endpoint import FrontEndServer, Serving
from sentiment_front_ends.frames import (
    Frames,
    Kind,
    Listing,
    Sampled,
    Text,
    frame,
    frame_of,
    model_frame,
    model_of,
    pack_listing,
    pack_texts,
    unpack_failures,
    unpack_numbers,
    unpack_texts,
)
from sentiment_front_ends.front_end import FrontEnd
from sentiment_front_ends.handshake import Start
from tests.front_ends.test_queue import DIGEST, INTERACTIVE, PATIENCE_S, Heard, Joined, join, joined, row, submit, until

__all__ = ["joined"]
LISTED = frame(Kind.MODELS, pack_listing(Listing(1, [DIGEST], [DIGEST])))


@pytest.fixture
async def silent(tmp_path: Path) -> AsyncIterator[socket.socket]:
    """An executor that accepts and never reads; it said at once that it has a model and is ready."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "rows.sock"))
        listening.listen()
        yield listening


async def test_an_executor_that_does_not_read_gets_a_bounded_amount_and_does_not_delay_the_close(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "UNREAD_BYTES_MAX", 2**20)
    monkeypatch.setattr(links, "CLOSE_S", 0.05)
    queue, heard = RemoteQueue(DIGEST, rows_max=10**6), Heard()
    link = await join(tmp_path / "rows.sock", heard, queue)
    peer, _ = silent.accept()
    peer.sendall(LISTED + frame_of(Kind.STATE, {"ready": True}))
    await until(heard.takes_texts)
    told: list[TextOutcome] = []
    sent = 0

    with pytest.raises(Refused, match="does not read"):
        for _ in range(1000):
            # 64 KiB each; what its deadline ends leaves room for others and nothing in the buffer.
            queue.submit([row(1, tokens=2**14)], time.monotonic() - 10, told.append, INTERACTIVE)
            await asyncio.sleep(0)
            queue.end_late(time.monotonic())
            sent += 1
    async with asyncio.timeout(PATIENCE_S):
        await link.close()

    assert 16 <= sent < 64
    assert not queue.paused
    peer.close()


async def test_texts_to_read_once_more_never_fill_the_buffer_of_live_ones(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CLOSE_S", 0.05)
    queue, heard = RemoteQueue(DIGEST, rows_max=100), Heard()
    link = await join(tmp_path / "rows.sock", heard, queue)
    peer, _ = silent.accept()
    peer.sendall(LISTED + frame_of(Kind.STATE, {"ready": True}))
    await until(heard.takes_texts)

    def sampled(characters: int) -> Sampled:
        return Sampled("a" * characters, None, None, "positive", 0.9, shadow=True, drift=False, missed=0)

    assert not link.sample(DIGEST, sampled(2**16))
    sent = 0
    while link.sample(DIGEST, sampled(2**15)):
        sent += 1
        assert sent < 1000
    assert link._transport is not None
    assert link._transport.get_write_buffer_size() < 2**19
    queue.submit([row(1)], time.monotonic() + 60, lambda _: None, INTERACTIVE)

    await link.close()
    peer.close()


async def test_texts_are_sent_once_the_executor_has_been_ready_even_if_it_no_longer_is(silent: socket.socket, tmp_path: Path) -> None:
    queue, heard = RemoteQueue(DIGEST, rows_max=10), Heard()
    link = await join(tmp_path / "rows.sock", heard, queue)
    peer, _ = silent.accept()

    peer.sendall(frame_of(Kind.STATE, {"ready": False}) + LISTED)
    await until(lambda: bool(heard.models_listed))
    with pytest.raises(Unavailable):
        queue.submit([row(1)], time.monotonic() + 60, lambda _: None, INTERACTIVE)
    peer.sendall(frame_of(Kind.STATE, {"ready": True}) + frame_of(Kind.STATE, {"ready": False}))
    await until(lambda: heard.states == [False, True, False])

    queue.submit([row(1)], time.monotonic() + 60, lambda _: None, INTERACTIVE)
    assert queue.texts == 1
    peer.close()
    await link.lost.wait()


async def test_a_model_that_is_read_late_promises_nothing_to_the_next_executor(joined: Joined, tmp_path: Path) -> None:
    joined.server.close()
    await joined.link.lost.wait()
    server = FrontEndServer(tmp_path / "next.sock", 1, joined.added.extend)
    await server.start()
    await join(tmp_path / "next.sock", joined.heard, joined.queue)
    server.set_ready(True)
    await until(lambda: joined.heard.states[-1])

    joined.link.follow(1, [DIGEST])

    with pytest.raises(Unavailable):
        submit(joined, row(1), [])
    server.close()


async def test_texts_that_cannot_be_packed_fail_at_once(joined: Joined) -> None:
    told: list[TextOutcome] = []

    submit(joined, Row([2**40], None, False), told)
    await until(lambda: bool(told))

    assert isinstance(told[0], Broken)
    assert joined.queue.texts == 0


async def test_late_counts_do_not_end_the_next_collection(joined: Joined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, asked = Frames(), list[int]()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "rows.sock"))

    async def ask() -> None:
        while not (found := [unpack_numbers(body) for kind, body in frames.feed(await reader.read(2**16)) if kind is Kind.ASK]):
            pass
        asked.extend(number for numbers in found for number in numbers)

    writer.write(frame_of(Kind.HELLO, {"name": "late", "pid": 7}))
    await until(lambda: "late" in joined.server.pids)
    monkeypatch.setattr(endpoint, "COUNTS_S", 0.01)
    await joined.server.collect()
    monkeypatch.setattr(endpoint, "COUNTS_S", PATIENCE_S)
    collecting = asyncio.create_task(joined.server.collect())
    async with asyncio.timeout(PATIENCE_S):
        while len(asked) < 2:
            await ask()
    writer.write(frame_of(Kind.COUNTS, (asked[0], ["earlier"])))
    await until(lambda: "earlier" in joined.added)

    assert not collecting.done()
    writer.write(frame_of(Kind.COUNTS, (asked[1], ["now"])))
    await collecting
    assert joined.added[-1] == "now"
    writer.close()


async def test_texts_that_arrive_before_the_model_is_loaded_are_refused(tmp_path: Path) -> None:
    server = FrontEndServer(tmp_path / "rows.sock", 1, list[Any]().extend)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "rows.sock"))

    writer.write(model_frame(Kind.ROWS, DIGEST, pack_texts([Text(7, time.monotonic() + 60, INTERACTIVE, [row(1)])])))
    frames, failed = Frames(), list[Any]()
    async with asyncio.timeout(PATIENCE_S):
        while not failed:
            failed += [
                unpack_failures(model_of(body)[1])[0] for kind, body in frames.feed(await reader.read(2**16)) if kind is Kind.FAILURES
            ]

    ((number, error),) = failed[0]
    assert (number, type(error), error.admitted) == (7, Unavailable, False)
    writer.close()
    server.close()


async def test_a_text_that_cannot_be_withdrawn_does_not_keep_its_front_end_connected(joined: Joined) -> None:
    class Queue:
        cancelled = 0

        def submit(self, *_: Any) -> Any:
            return self

        def cancel(self) -> bool:
            self.cancelled += 1
            raise RuntimeError("broken")

    queue: Any = Queue()
    joined.server.models[DIGEST] = Serving(DIGEST, "tiny/1", b"", queue, lambda: 0.0)
    told: list[TextOutcome] = []
    submit(joined, row(1), told)
    submit(joined, row(2), told)
    await joined.server.collect()

    await joined.link.close()
    await joined.server.wait_gone(PATIENCE_S)

    assert joined.server.pids == {}
    assert queue.cancelled == 2
    assert all(one.admitted for one in told if isinstance(one, RequestError))


def test_a_front_end_accepts_no_connection_before_it_can_answer(tmp_path: Path) -> None:
    event_loop.run(_takes_no_connection_before_it_can_answer(tmp_path))


async def _takes_no_connection_before_it_can_answer(tmp_path: Path) -> None:
    with socket.socket() as held:
        # As the supervisor does.
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = held.getsockname()[1]
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "rows.sock"))
        listening.listen()
        front = FrontEnd(Start("front-0", tmp_path, Settings(grpc_listen=f"127.0.0.1:{port}", drain_wait_s=0, front_ends=1)))
        running = asyncio.create_task(front.run())
        peer, _ = await asyncio.to_thread(listening.accept)
        said = await asyncio.to_thread(peer.recv, 2**16)

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        front._stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await running

    ((kind, body),) = Frames().feed(said)
    assert (kind, json.loads(body)["name"]) == (Kind.HELLO, "front-0")
    peer.close()
    listening.close()


@dataclass
class Sampling:
    """A front end that samples texts. ``full``: its link takes none; ``beside``: another model scores them too."""

    settings: Settings
    full: bool = True
    beside: bool = True
    sent: list[tuple[bytes, Sampled]] = field(default_factory=list)

    def __post_init__(self) -> None:
        models = SimpleNamespace(beside=lambda _: object() if self.beside else None)
        link = SimpleNamespace(sample=self._sample)
        self._front: Any = SimpleNamespace(_settings=self.settings, _models=models, _missed=Counter(), _link=link)

    def _sample(self, digest: bytes, sampled: Sampled) -> bool:
        if not self.full:
            self.sent.append((digest, sampled))
        return not self.full

    def answer(self, digest: bytes = DIGEST) -> None:
        """A model has answered a text."""
        classifier = SimpleNamespace(bundle=SimpleNamespace(digest=digest.hex()), manifest=SimpleNamespace(hidden_layer=2))
        served: Any = SimpleNamespace(classifier=classifier)
        scored: Any = SimpleNamespace(label="positive", score=0.9)
        told: Any = SimpleNamespace(query=Query("good", None, None), scored=scored, early=False)
        FrontEnd._sample(self._front, served, told)


def test_texts_that_were_not_sent_are_counted_for_the_model_that_answered_them() -> None:
    one, two = bytes(32), DIGEST
    front = Sampling(Settings(shadow_share=1.0))
    for digest in (one, one, two):
        front.answer(digest)

    front.full = False
    for digest in (two, one, one, two):
        front.answer(digest)

    assert [(digest, sampled.missed) for digest, sampled in front.sent] == [(two, 1), (one, 2), (one, 0), (two, 0)]


def test_a_text_goes_to_both_samples_and_only_shadow_scoring_counts_what_was_not_sent() -> None:
    front = Sampling(Settings(shadow_share=1.0, hidden_drift_share=1.0))

    for front.full, front.beside in ((True, True), (True, False), (False, False), (False, True)):
        front.answer()

    assert [(one.shadow, one.drift, one.missed) for _, one in front.sent] == [(False, True, 0), (True, True, 1)]


async def test_many_texts_of_one_turn_are_sent_as_several_frames() -> None:
    sent: list[bytes] = []
    queue = RemoteQueue(DIGEST, rows_max=1000)
    queue.attach(sent.append)
    for number in range(20):
        queue.submit([row(number, tokens=2**16)], time.monotonic() + 60, lambda _: None, INTERACTIVE)
    await asyncio.sleep(0)

    numbers = [text.number for one in sent for _, body in Frames().feed(one) for text in unpack_texts(model_of(body)[1])]
    assert len(sent) > 1
    assert numbers == list(range(numbers[0], numbers[0] + 20))
