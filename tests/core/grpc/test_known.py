"""Known answers through a real server: the same bits as without them, counted like any others, and nobody's but the caller's."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from sentiment.client import AsyncClient, Client, Credentials, ExplainOptions
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import MODEL, Hold, Start, code_of, queued, send, total
from tests.core.http.http import call
from tests.core.http.test_open_inference import infer, tensors_of
from tests.core.lifecycle.conftest import Exchanging, exchanging, hasty, make_version, root, score_of_good

__all__ = ["exchanging", "hasty", "root"]

TEXTS = ["a good film", "w7 and w3", "awful", "good " * 40]
BYTES = 2**20


def rows_run(server: RunningServer) -> float:
    return server.metric("sentiment_batch_rows_sum", model=MODEL)


def known(server: RunningServer) -> tuple[float, float]:
    """Rows answered from kept answers, and shared with others."""
    return tuple(server.metric("sentiment_known_rows_total", how=how, model=MODEL) for how in ("kept", "shared"))  # type: ignore[return-value]  # two


async def streamed(server: RunningServer, no_cache: bool) -> list[Any]:
    async def items() -> AsyncIterator[tuple[str, str]]:
        for text in TEXTS:
            yield text, text

    async with AsyncClient(server.target) as client:
        found = {item_id: result async for item_id, result in client.classify_stream(items(), no_cache=no_cache)}
    return [found[text] for text in TEXTS]


def over_http(server: RunningServer, no_cache: bool) -> list[Any]:
    bodies = [json.dumps({"text": text, "no_cache": no_cache}).encode() for text in TEXTS]
    return [json_format.Parse(call(server, "/v1/classify", body).body, pb.ClassifyResponse()).prediction for body in bodies]


def scores(answers: list[Any]) -> list[dict[str, float]]:
    return [
        {one.label: one.score for one in answer.scores} if isinstance(answer, pb.Prediction) else dict(answer.scores) for answer in answers
    ]


WAYS: dict[str, Callable[[RunningServer, Client, bool], list[Any]]] = {
    "one": lambda _server, client, no_cache: [client.classify(text, no_cache=no_cache) for text in TEXTS],
    "batch": lambda _server, client, no_cache: list(client.classify_batch(TEXTS, no_cache=no_cache)),
    "stream": lambda server, _client, no_cache: asyncio.run(streamed(server, no_cache)),
    "http": lambda server, _client, no_cache: over_http(server, no_cache),
}


def test_every_way_gets_the_same_bits_from_kept_answers_and_no_cache_runs_the_model(start: Start, server: RunningServer) -> None:
    caching = start(answer_cache_bytes=BYTES)
    with caching.client() as client, server.client() as other:
        plain = scores([other.classify(text) for text in TEXTS])
        assert scores(WAYS["one"](caching, client, False)) == plain
        ran = rows_run(caching)

        for way in WAYS.values():
            assert scores(way(caching, client, False)) == plain
        assert tensors_of(infer(caching, *TEXTS)) == tensors_of(infer(server, *TEXTS))
        assert rows_run(caching) == ran
        for way in WAYS.values():
            assert scores(way(caching, client, True)) == plain

    assert rows_run(caching) == ran + len(WAYS) * len(TEXTS)
    assert known(caching) == ((len(WAYS) + 1) * len(TEXTS), 0)
    assert 0 < caching.metric("sentiment_answer_cache_bytes", model=MODEL) < BYTES


def test_nothing_is_kept_unless_the_setting_says_so(start: Start) -> None:
    server = start()
    with server.client() as client:
        answers = [client.classify("good") for _ in range(2)]

    assert [answer.timing.batch_rows for answer in answers] == [1, 1]
    assert known(server) == (0, 0)


def test_each_answer_is_counted_journaled_and_in_drift(start: Start, tmp_path: Path) -> None:
    server = start(answer_cache_bytes=BYTES, journal=str(tmp_path))
    with server.client() as client:
        answers = [client.classify("good", request_id=f"number-{number}") for number in range(5)]
    server.stop()

    assert [answer.timing.batch_rows for answer in answers] == [1, 0, 0, 0, 0]
    assert total(server, "predictions", label="positive") == 5
    assert total(server, "deadline_outcome") == total(server, "items", code="OK") == 5
    assert server.metric("sentiment_drift_texts", model=MODEL) == 5
    lines = [json.loads(line) for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]
    asked = [line["request_id"] for line in lines if line["journal"] == "answer"]
    assert asked == [f"number-{number}" for number in range(5)]


async def test_equal_texts_under_way_run_once_and_end_each_on_their_own(start: Start, hold: Hold, connect: Callable[..., Any]) -> None:
    server = start(answer_cache_bytes=BYTES)
    gate, stub = hold(server), connect(server)
    first = stub.Classify(pb.ClassifyRequest(text="good"), timeout=60)
    await gate.begun()
    ways = [send(stub.Classify(pb.ClassifyRequest(text="good"), timeout=60)) for _ in range(2)]
    own = send(stub.Classify(pb.ClassifyRequest(text="good", no_cache=True), timeout=60))
    await gate.begun()
    await queued(server, 2)

    first.cancel()
    hasty = await code_of(stub.Classify(pb.ClassifyRequest(text="good"), timeout=0.05))
    gate.open()
    answers = [await one for one in (*ways, own)]

    assert hasty == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert len({json_format.MessageToJson(one.prediction) for one in answers}) == 1
    # The row of the first, and that of the one with no_cache.
    assert len(gate.batches) == 2
    assert known(server) == (0, 2)
    assert total(server, "wasted_rows") == 0


def test_what_one_token_asked_about_is_not_known_to_another(start: Start, tmp_path: Path) -> None:
    tokens = ["first-token-0123456789", "other-token-0123456789"]
    (tmp_path / "tokens").mkdir()
    for number, token in enumerate(tokens):
        (tmp_path / "tokens" / f"caller-{number}").write_text(token)
    server = start(answer_cache_bytes=BYTES, auth_tokens=str(tmp_path / "tokens"))
    body = json.dumps({"text": "good"}).encode()

    runs = []
    for token in tokens:
        with Client(server.target, credentials=Credentials(token=token), options=NO_RETRIES) as client:
            runs.append([client.classify("good").timing.batch_rows for _ in range(2)])
        # Its own, whatever the port.
        assert call(server, "/v1/classify", body, Authorization=f"Bearer {token}").json["timing"].get("batch_rows", 0) == 0

    assert runs == [[1, 0], [1, 0]]


@pytest.mark.usefixtures("hasty")
def test_kept_answers_go_with_their_model(exchanging: Callable[..., Exchanging], root: Path) -> None:
    server = exchanging(answer_cache_bytes=BYTES)
    make_version(root, 2)
    with server.client() as client, server.admin() as admin:
        client.classify("good")
        admin.load("tiny/2")
        new = client.classify("good")
        admin.unload("tiny/1")
        admin.load("tiny/1")
        old = client.classify("good", model="tiny/1")

    assert [new.timing.batch_rows, old.timing.batch_rows] == [1, 1]
    assert [new.score, old.score] == pytest.approx([score_of_good(2), score_of_good(1)], abs=1e-4)


def test_explained_answers_are_neither_kept_nor_given(start: Start) -> None:
    server = start(answer_cache_bytes=BYTES)
    options = ExplainOptions(methods=("occlusion",), evidence=False)
    with server.client() as client:
        rows = [client.classify("good", explain=explain).timing.batch_rows for explain in (options, None, options)]

    assert 0 not in rows
    assert known(server) == (0, 0)
