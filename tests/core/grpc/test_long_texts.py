"""Texts that do not fit, through a real server: read at both ends or in windows, by every method, counted as one text each."""

import asyncio
import json
import math
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment import Local
from sentiment.client import AsyncClient, CallFailed, Classification, Client
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import (
    MODEL,
    Busy,
    FixedCost,
    Hold,
    Start,
    ask,
    assert_nothing_left,
    bounded,
    code_of,
    every_method,
    id_of,
    queued,
    send,
    served_by,
    set_cost,
    total,
    until,
)
from tests.tiny import WEIGHTS, make_bundle, read_manifest

Code = grpc.StatusCode
# 90 tokens: the tiny model reads 30 of a text, and 5 windows of 30 every 16 reach 94.
WORDS = ["w3"] * 25 + ["w-9", "film"] * 20 + ["w8"] * 25
TEXT = " ".join(WORDS)


def positive(words: Sequence[str]) -> float:
    """What the model answers to these words."""
    return 1 / (1 + math.exp(-2 * sum(WEIGHTS[word] for word in words)))


def in_windows(words: Sequence[str], windows: int = 16) -> float:
    """The surest of windows of 30 words every 16."""
    starts = range(0, max(1, len(words) - 14), 16)[:windows]
    return max((positive(words[start : start + 30]) for start in starts), key=lambda score: abs(score - 0.5))


def expected(truncation: str) -> tuple[float, int, bool]:
    if truncation == "windows":
        return in_windows(WORDS), 92, False
    kept = WORDS[:30] if truncation == "head" else WORDS[:8] + WORDS[-22:]
    return positive(kept), 32, True


def found(answer: Classification) -> tuple[Any, int, bool]:
    return pytest.approx(answer.scores["positive"], abs=1e-6), answer.tokens, answer.truncated


async def streamed(server: RunningServer, texts: Sequence[str], truncation: str) -> list[Any]:
    """The results of a stream, in the order of the texts."""

    async def items() -> AsyncIterator[tuple[str, str]]:
        for number, text in enumerate(texts):
            yield str(number), text

    async with AsyncClient(server.target) as client:
        results = {int(item_id): result async for item_id, result in client.classify_stream(items(), truncation=truncation)}
    return [results[number] for number in range(len(texts))]


@pytest.mark.parametrize("truncation", ["head", "head_tail", "windows"])
def test_every_path_reads_a_long_text_alike(truncation: str, bundles: Path, server: RunningServer, client: Client) -> None:
    body = json.dumps({"text": TEXT, "truncation": f"TRUNCATION_{truncation.upper()}"}).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url + "/v1/classify", body), timeout=10) as response:
        web = json.load(response)
    with Local("tiny", bundles=[bundles]) as local:
        (inside,) = local.classify_all([TEXT], truncation=truncation)

    answers = [
        client.classify(TEXT, truncation=truncation),
        *client.classify_batch([TEXT], truncation=truncation),
        *asyncio.run(streamed(server, [TEXT], truncation)),
        inside,
    ]

    for answer in answers:
        assert isinstance(answer, Classification)
        assert expected(truncation) == found(answer)
    assert web["prediction"]["scores"][1]["score"] == pytest.approx(expected(truncation)[0], abs=1e-6)
    assert (web["tokens"], web["truncated"]) == expected(truncation)[1:]


@pytest.mark.parametrize("truncation", ["head_tail", "windows"])
def test_a_text_that_fits_is_read_whole_whatever_is_asked(client: Client, truncation: str) -> None:
    text = " ".join(["w5"] * 30)

    answer = client.classify(text, truncation=truncation)

    assert found(answer) == found(client.classify(text))
    assert (answer.tokens, answer.truncated) == (32, False)


def test_text_after_the_last_window_is_not_read_and_the_answer_says_so(client: Client) -> None:
    words = ["w1"] * 270 + ["awful"] * 200

    answer = client.classify(" ".join(words), truncation="windows")

    assert (answer.tokens, answer.truncated) == (30 + 15 * 16 + 2, True)
    assert answer.scores["positive"] == pytest.approx(in_windows(words), abs=1e-6)


def test_a_text_too_long_for_the_event_loop_is_read_in_a_thread(client: Client) -> None:
    text = "film " * 200_000 + "great"

    assert client.classify(text, truncation="head_tail").label == "positive"
    assert client.classify(text, truncation="windows").tokens == 272


def test_the_manifest_says_how_and_by_default(start: Start, tmp_path: Path) -> None:
    path = make_bundle(tmp_path)
    windows = {"size": 22, "stride": 20, "combine": "mean_probability", "count_max": 4}
    manifest = {**read_manifest(path), "default_truncation": "windows", "windows": windows, "head_tail": {"head": 20}}
    (path / "manifest.json").write_text(json.dumps(manifest))

    with start(bundles=(tmp_path,)).client() as client:
        default, tail, model = client.classify(TEXT), client.classify(TEXT, truncation="head_tail"), client.get_model()

    pieces = [positive(WORDS[start : start + 20]) for start in (0, 20, 40, 60)]
    assert (sum(pieces) / 4, 82, True) == found(default)
    assert (positive(WORDS[:20] + WORDS[-10:]), 32, True) == found(tail)
    assert model.default_truncation == pb.TRUNCATION_WINDOWS


def test_a_pair_that_does_not_fit_is_refused_unless_only_the_model_wants_windows(start: Start, tmp_path: Path) -> None:
    path = make_bundle(tmp_path, "paired", pairs=True)
    (path / "manifest.json").write_text(json.dumps({**read_manifest(path), "default_truncation": "windows"}))

    with start(bundles=(tmp_path,), model="paired").client() as client:
        for truncation in ("head_tail", "windows"):
            assert client.classify("good", "great film", truncation=truncation).tokens == 6
            with pytest.raises(CallFailed, match=f"the limit is 32 and truncation {truncation} is for single texts") as caught:
                client.classify("good", TEXT, truncation=truncation)
            assert caught.value.code is Code.INVALID_ARGUMENT
        assert client.classify("good", TEXT).truncated


# Long and short ones together


@pytest.mark.parametrize("method", ["ClassifyBatch", "ClassifyStream"])
@pytest.mark.parametrize("call_rows_max", [3, 7, 256])
async def test_long_and_short_texts_are_answered_in_order_however_few_rows_a_call_may_have(
    start: Start, call_rows_max: int, method: str
) -> None:
    server = start(call_rows_max=call_rows_max)
    texts = [TEXT if number % 3 == 0 else f"w{number % 30} film" for number in range(40)] + ["", TEXT]

    if method == "ClassifyBatch":
        with server.client() as client:
            results = await asyncio.to_thread(client.classify_batch, texts, truncation="windows")
    else:
        results = await streamed(server, texts, "windows")

    assert isinstance(results.pop(40), CallFailed)
    scores = [result.scores["positive"] for result in results]
    assert scores == pytest.approx([in_windows(text.split()) for text in texts if text], abs=1e-6)
    assert total(server, "items", method=method, code="OK") == total(server, "deadline_outcome", outcome="met") == 41
    await until(lambda: server.calls.open == 0, "the call has ended")
    assert_nothing_left(server)


async def test_the_windows_of_a_client_that_does_not_read_take_places_too(start: Start, hold: Hold) -> None:
    server = start(runners=1, call_rows_max=8)
    gate = hold(server)

    async def endless() -> AsyncIterator[pb.ClassifyStreamRequest]:
        while True:
            yield pb.ClassifyStreamRequest(item=pb.Item(text=TEXT), options=pb.StreamOptions(truncation=pb.TRUNCATION_WINDOWS))

    scheduler = served_by(server).batcher.scheduler
    async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
        call = pb_grpc.SentimentServiceStub(channel).ClassifyStream(endless())
        await gate.begun()
        await until(lambda: scheduler.rows_waiting + scheduler.rows_running == 10, "two texts are admitted")
        await asyncio.sleep(0.1)
        # Five places, then three more for the second text's five windows; the third text waits.
        assert scheduler.rows_waiting + scheduler.rows_running == 10
        call.cancel()
        await until(lambda: server.calls.open == 0, "the stream is closed")
        gate.open()

    # Of rows that have left, the batch still runs.
    await until(lambda: not served_by(server).batcher.stalled_s(), "no batch runs")
    assert total(server, "items", method="ClassifyStream", code="CANCELLED") == 2
    assert_nothing_left(server)


# Ends before the answer


@pytest.fixture
async def busy(start: Start, hold: Hold, connect: Callable[[RunningServer], Any], request: pytest.FixtureRequest) -> Busy:
    server = start(runners=1, **getattr(request, "param", {}))
    set_cost(server, FixedCost(1e-3))
    busy = Busy(server, hold(server), connect(server))
    await busy.begin()
    return busy


def long(method: str, busy: Busy, timeout_s: float | None = None) -> Any:
    """A call with one long text in windows."""
    return ask(busy.stub, method, pb.ClassifyRequest(text=TEXT, truncation=pb.TRUNCATION_WINDOWS), timeout_s)


@every_method
async def test_leaving_withdraws_every_window(busy: Busy, method: str) -> None:
    call = long(method, busy)
    reading = asyncio.create_task(bounded(code_of(call)))
    await queued(busy.server, 5)

    call.cancel()

    await queued(busy.server, 0)
    await asyncio.wait({reading})
    await busy.assert_in_order(texts=2)
    assert total(busy.server, "dropped", reason="cancelled") == 5
    assert total(busy.server, "deadline_outcome", outcome="cancelled") == 1
    # The plug alone.
    assert len(busy.gate.batches) == 1


@every_method
async def test_a_deadline_ends_every_window_with_one_error(busy: Busy, method: str) -> None:
    # Of a run that lasts, as much again is expected: a text that comes later than this after its start is refused.
    code = await bounded(code_of(long(method, busy, 2.0)))

    assert code == Code.DEADLINE_EXCEEDED.value[0]
    await busy.assert_in_order(texts=2)
    assert total(busy.server, "deadline_outcome", outcome="expired") == 1


@every_method
@pytest.mark.parametrize("busy", [{"queue_rows_max": 3}], indirect=True)
async def test_a_text_whose_windows_do_not_all_fit_is_refused_and_none_is_left(busy: Busy, method: str) -> None:
    code = await bounded(code_of(long(method, busy)))

    assert code == Code.RESOURCE_EXHAUSTED.value[0]
    assert busy.server.metric("sentiment_queue_rows", model=MODEL) == 0
    assert total(busy.server, "refused") == total(busy.server, "refused", reason="queue_full") == 1
    short = send(busy.stub.Classify(pb.ClassifyRequest(text="bad"), timeout=60))
    await queued(busy.server, 1)
    await busy.assert_in_order(texts=3)
    assert (await short).prediction.label == "negative"


@every_method
async def test_one_window_that_fails_fails_its_text_and_no_other(busy: Busy, method: str) -> None:
    busy.gate.poison = id_of("w8")
    reading = asyncio.create_task(bounded(code_of(long(method, busy))))
    await queued(busy.server, 5)
    others = [send(busy.stub.Classify(pb.ClassifyRequest(text="bad " * 25), timeout=60)) for _ in range(3)]
    await queued(busy.server, 8)

    busy.gate.open()

    assert await reading == Code.INTERNAL.value[0]
    assert [(await other).prediction.label for other in others] == ["negative"] * 3
    await busy.assert_in_order(texts=5)
    assert total(busy.server, "deadline_outcome", outcome="failed") == 1
