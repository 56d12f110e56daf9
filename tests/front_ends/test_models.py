"""Models as front ends and the executor agree on them, over a real Unix socket."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.errors import BadBundle, Unavailable
from sentiment.model.classifier import load_classifier
from sentiment.pipeline.queries import Query, QueryReader, TextLimits
from sentiment_front_ends import executor_endpoint as endpoint
from sentiment_front_ends.executor_client import Link, RemoteQueue, connect
from sentiment_front_ends.executor_endpoint import FrontEndServer, Serving
from sentiment_front_ends.frames import Listing
from sentiment_front_ends.model_copy import classifier_of, copy_of
from tests.front_ends.test_queue import INTERACTIVE, PATIENCE_S, row, until
from tests.tiny import make_bundle

ONE, TWO = b"1" * 32, b"2" * 32


@dataclass
class Answering:
    """A model's queue; it answers every text with these logits."""

    logits: list[float]

    def submit(self, _reading: object, _deadline_at: float, tell: Any, *_more: object) -> Any:
        asyncio.get_running_loop().call_soon(tell, RowsResult([self.logits], 0.0, 0.001, 1))


@dataclass
class Follower:
    """A front end that follows a list, and drops a model, when the test says so."""

    heard: list[Listing] = field(default_factory=list)
    copies: dict[bytes, bytes] = field(default_factory=dict)
    queues: dict[bytes, RemoteQueue] = field(default_factory=dict)
    link: Link | None = None

    def models(self, link: Link, listing: Listing, copies: Mapping[bytes, bytes]) -> None:
        self.link = link
        self.heard.append(listing)
        self.copies |= copies

    def state(self, ready: bool) -> None:
        """Of no interest."""

    def counts(self) -> list[Any]:
        return []

    def follow(self) -> None:
        assert self.link is not None
        for digest in self.heard[-1].models:
            self.queues.setdefault(digest, RemoteQueue(digest, 10))
        self.link.follow(self.heard[-1].revision, self.queues)

    def drop(self, digest: bytes) -> None:
        assert self.link is not None
        del self.queues[digest]
        self.link.hold(self.queues)


@dataclass
class Server:
    server: FrontEndServer
    folder: Path

    async def join(self, name: str) -> Follower:
        follower = Follower()
        await connect(self.folder / "rows.sock", lambda: Link(name, 1, follower.queues, follower))
        await until(lambda: name in self.server.pids)
        return follower

    async def begin(self, change: Any, *followers: Follower) -> "asyncio.Task[None]":
        """Begin a change; returns once the followers have heard of it."""
        before = [len(follower.heard) for follower in followers]
        task = asyncio.create_task(change)
        await until(lambda: all(len(one.heard) > count for one, count in zip(followers, before, strict=True)))
        return task


def serving(digest: bytes, version: int, logits: list[float]) -> Serving:
    queue: Any = Answering(logits)
    return Serving(digest, f"tiny/{version}", b"copy of " + digest, queue, lambda: 0.5 * version)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = FrontEndServer(tmp_path / "rows.sock", 0, list[Any]().extend)
    await made.start()
    made.set_ready(True)
    yield Server(made, tmp_path)
    made.close()


async def test_a_change_waits_for_every_connected_front_end_and_for_none_that_has_gone(server: Server) -> None:
    one, two = await server.join("front-0"), await server.join("front-1")

    adding = await server.begin(server.server.add(serving(ONE, 1, [0.0])), one, two)
    one.follow()
    await until(lambda: any(front.revision for front in server.server._fronts))
    assert not adding.done()
    two.follow()
    await adding
    using = await server.begin(server.server.use(ONE), one, two)
    one.follow()
    assert two.link is not None
    await two.link.close()
    await using

    assert one.heard == [Listing(1, [ONE], [ONE]), Listing(2, [ONE], [ONE])]
    assert one.copies == {ONE: b"copy of " + ONE}


async def test_all_models_of_the_start_are_in_the_first_list_and_it_waits_for_all_front_ends(tmp_path: Path) -> None:
    """A list without one of them would have the calls for it refused as unknown."""
    made = FrontEndServer(tmp_path / "rows.sock", 2, list[Any]().extend)
    await made.start()
    server = Server(made, tmp_path)
    one = await server.join("front-0")

    beginning = await server.begin(made.begin([serving(ONE, 1, [0.0]), serving(TWO, 2, [0.0])], [TWO]), one)
    one.follow()
    await until(lambda: all(front.revision for front in made._fronts))
    assert not beginning.done()
    two = await server.join("front-1")
    await until(lambda: bool(two.heard))
    two.follow()
    await beginning

    assert one.heard == two.heard == [Listing(1, [ONE, TWO], [TWO])]
    made.close()


async def test_a_front_end_that_connects_gets_the_current_list_first(server: Server) -> None:
    await server.server.add(serving(ONE, 1, [0.0]))
    await server.server.add(serving(TWO, 2, [0.0]))
    await server.server.use(TWO)

    late = await server.join("front-0")
    await until(lambda: bool(late.heard))

    assert late.heard == [Listing(3, [ONE, TWO], [TWO])]
    assert set(late.copies) == {ONE, TWO}


async def test_a_change_waits_for_a_limited_time_and_names_what_it_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FOLLOW_S", 0.01)
    one = await server.join("front-0")

    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            await server.server.add(serving(ONE, 1, [0.0]))
        one.follow()
        await server.begin(server.server.remove(ONE, 0.01), one)
        await until(lambda: len(logs) == 2)

    said = [(line["event"], line["change"], line["model"], line["front_ends"]) for line in logs]
    assert said == [("front_ends_late", change, "tiny/1", ["front-0"]) for change in ("added", "removed")]


async def test_a_removed_model_takes_texts_until_no_front_end_holds_it(server: Server) -> None:
    one = await server.join("front-0")
    for made in (serving(ONE, 1, [1.0]), serving(TWO, 2, [2.0])):
        adding = await server.begin(server.server.add(made), one)
        one.follow()
        await adding
    outcomes: list[TextOutcome] = []

    removing = await server.begin(server.server.remove(ONE, 60.0), one)
    one.follow()
    queue = one.queues[ONE]
    queue.submit([row(1)], time.monotonic() + 60, outcomes.append, INTERACTIVE)
    await until(lambda: len(outcomes) == 1)
    assert not removing.done()
    one.drop(ONE)
    await removing
    one.queues[ONE] = queue
    queue.submit([row(1)], time.monotonic() + 60, outcomes.append, INTERACTIVE)
    await until(lambda: len(outcomes) == 2)

    assert isinstance(outcomes[0], RowsResult)
    assert isinstance(outcomes[1], Unavailable)
    assert not outcomes[1].admitted
    assert one.heard[-1] == Listing(3, [TWO], [])


async def test_models_with_different_labels_answer_texts_of_one_turn_each_by_its_own_queue(server: Server) -> None:
    one = await server.join("front-0")
    for made in (serving(ONE, 1, [1.0, -1.0]), serving(TWO, 2, [2.0, 0.0, -2.0])):
        adding = await server.begin(server.server.add(made), one)
        one.follow()
        await adding
    outcomes: dict[bytes, list[Any]] = {ONE: [], TWO: []}

    for digest in (ONE, TWO) * 3:
        one.queues[digest].submit([row(1)], time.monotonic() + 60, outcomes[digest].append, INTERACTIVE)
    await until(lambda: sum(map(len, outcomes.values())) == 6)

    assert [[one.logits for one in outcomes[digest]] for digest in (ONE, TWO)] == [[[[1.0, -1.0]]] * 3, [[[2.0, 0.0, -2.0]]] * 3]
    assert [one.queues[digest].backlog_s for digest in (ONE, TWO)] == [0.5, 1.0]


def test_a_copy_tokenizes_and_scores_as_the_model_and_needs_no_file(tmp_path: Path) -> None:
    path = make_bundle(tmp_path, three=True)
    classifier = load_classifier(path)
    copy = copy_of(classifier)
    (path / "tokenizer.json").unlink()

    made = classifier_of(copy)

    assert (made.bundle.id, made.bundle.digest, made.manifest) == (classifier.bundle.id, classifier.bundle.digest, classifier.manifest)
    assert made.graph == classifier.graph
    assert made.tokenizer.encode("a great film") == classifier.tokenizer.encode("a great film")
    reader, text = QueryReader(made, TextLimits(2**20, 64, 16)), "a great film. awful and bad."
    (reading,) = reader.read([Query(text, sentences=True, targets=("film", "food"))])
    assert made.answer(reading, classifier.run(reading.rows)) == classifier.answer(reading, classifier.run(reading.rows))
    with pytest.raises(AssertionError):
        made.run([made.tokenizer.encode("good")])


def test_a_model_whose_tokenizer_was_replaced_is_not_copied(tmp_path: Path) -> None:
    path = make_bundle(tmp_path)
    classifier = load_classifier(path)
    (path / "tokenizer.json").write_text("{}")

    with pytest.raises(BadBundle, match=r"tokenizer\.json: has 2 bytes"):
        copy_of(classifier)
