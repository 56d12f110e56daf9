"""Callers by the names of their tokens: what is counted of each, in one process and with front ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from sentiment.client import AsyncClient, CallFailed, Client, Credentials
from sentiment.observability.callers import number_of
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import Start
from tests.core.observability.test_metrics import scrape
from tests.core.security.test_doors import fetch
from tests.core.servers import until

SHOP, SHOP_NEXT, WEB, PLAIN = "shop-token-0123456789", "next-token-0123456789", "web-token-0123456789", "plain-token-0123456789"
RELOAD_S = 0.05
WAIT_S = 20.0


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"shop:{SHOP}\nshop:{SHOP_NEXT}\nweb:{WEB}\n{PLAIN}\n")
    return file


def client(server: RunningServer, token: str) -> Client:
    return Client(server.target, credentials=Credentials(token=token), options=NO_RETRIES, timeout_s=10)


def callers(server: RunningServer) -> set[str]:
    families = text_string_to_metric_families(scrape(server)[0])
    return {one.labels["caller"] for family in families for one in family.samples if one.name == "sentiment_caller_work_seconds_total"}


def counts(server: RunningServer, metric: str) -> dict[tuple[str, ...], float]:
    """The series of a metric by caller, and by code if it has one; those at zero are left out."""
    families = text_string_to_metric_families(scrape(server)[0])
    samples = [one for family in families for one in family.samples if one.name == f"sentiment_{metric}_total"]
    return {tuple(one.labels[label] for label in ("caller", "code") if label in one.labels): one.value for one in samples if one.value}


def test_calls_texts_and_work_are_counted_by_the_name_of_the_token(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens))
    for token in (SHOP, SHOP_NEXT, PLAIN):
        with client(server, token) as ours:
            ours.classify("a good film")
    with client(server, WEB) as web:
        web.classify_batch(["a good film", "a bad film"])
        with pytest.raises(CallFailed):
            web.classify("a good film", model="another")
        code, _ = fetch(server.url + "/v1/classify", data=b'{"text": "a good film"}', authorization=f"Bearer {WEB}")

    assert code == 200
    until(lambda: counts(server, "caller_requests").get(("web", "OK")) == 2)
    assert counts(server, "caller_requests") == {("shop", "OK"): 2, ("unnamed", "OK"): 1, ("web", "OK"): 2, ("web", "NOT_FOUND"): 1}
    assert counts(server, "caller_items") == {("shop", "OK"): 2, ("unnamed", "OK"): 1, ("web", "OK"): 3}
    assert counts(server, "caller_work_seconds").keys() == {("shop",), ("unnamed",), ("web",)}


def test_the_texts_of_a_stream_are_counted_by_the_name_of_the_token(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens))

    async def ask() -> int:
        async def items() -> AsyncIterator[tuple[str, str]]:
            for number in range(3):
                yield str(number), "a good film"

        async with AsyncClient(server.target, credentials=Credentials(token=WEB), options=NO_RETRIES) as ours:
            return len([one async for one in ours.classify_stream(items())])

    assert asyncio.run(ask()) == 3
    until(lambda: counts(server, "caller_items") == {("web", "OK"): 3})


def test_the_series_of_a_name_come_and_go_with_its_tokens(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens), reload_s=RELOAD_S)
    with client(server, WEB) as web:
        web.classify("a good film")

    tokens.write_text(f"shop:{SHOP}\nnew:{PLAIN}\n")

    until(lambda: callers(server) == {"shop", "new", "unnamed"})
    tokens.write_text(f"shop:{SHOP}\nweb:{WEB}\n")
    until(lambda: callers(server) == {"shop", "web", "unnamed"})
    assert counts(server, "caller_requests") == {}


def test_the_weights_of_the_names_reach_the_queue_and_change_with_the_file(start: Start, tokens: Path) -> None:
    tokens.write_text(f"shop*2:{SHOP}\nshop*2:{SHOP_NEXT}\nweb:{WEB}\n")
    server = start(auth_tokens=str(tokens), reload_s=RELOAD_S)
    shares = server.lifecycle.running[0].batcher.scheduler._shares

    def weights() -> list[float]:
        return [shares.weight_of(number_of(name)) for name in ("shop", "web")]

    assert weights() == [2.0, 1.0]
    with client(server, SHOP) as shop:
        assert shop.classify("good").label == "positive"

    tokens.write_text(f"shop:{SHOP}\nweb*0.5:{WEB}\n")

    until(lambda: weights() == [1.0, 0.5])


def test_without_tokens_nothing_is_counted_by_caller(server: RunningServer) -> None:
    with Client(server.target, options=NO_RETRIES) as ours:
        ours.classify("a good film")

    assert "sentiment_caller" not in scrape(server)[0]


def test_no_more_calls_of_a_name_are_open_than_stay_free_whatever_its_connections(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens), calls_max=4)
    held, code = [silent(server, token) for token in (SHOP, SHOP, SHOP_NEXT)], grpc.StatusCode
    try:
        until(lambda: [call.code() for call in held if call.done()] == [code.RESOURCE_EXHAUSTED])
        with client(server, WEB) as web:
            web.list_models()
    finally:
        for call in held:
            call.cancel()


def silent(server: RunningServer, token: str) -> Any:
    """A call on a connection of its own whose message does not come."""
    channel = grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)])
    method = channel.stream_stream("/sentiment.v1.SentimentService/ClassifyStream")
    stop = threading.Event()
    call = method(iter(lambda: stop.wait(WAIT_S) and b"", b""), metadata=[("authorization", f"Bearer {token}")])
    call.add_done_callback(lambda _: stop.set())
    return call


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_the_access_log_has_a_line_for_each_call_and_no_text(start: Start, tokens: Path, on: bool) -> None:
    server = start(auth_tokens=str(tokens), access_log=on)

    with structlog.testing.capture_logs() as logged, client(server, WEB) as web:
        web.classify("good")
        web.classify_batch(["good", "good"])
        with pytest.raises(CallFailed):
            web.classify("good", model="another")
        until(lambda: sum(counts(server, "caller_requests").values()) == 3)

    lines = [line for line in logged if line["event"] == "access"]
    found = [(line["method"], line["code"], line["model"], line["texts"], line["tokens"]) for line in lines]
    expected = [("Classify", "OK", "tiny/1", 1, 3), ("ClassifyBatch", "OK", "tiny/1", 2, 6), ("Classify", "NOT_FOUND", "", 0, 0)]
    assert found == (expected if on else [])
    assert {line["caller"] for line in lines} <= {"web"}
    assert all(line["seconds"] > 0 and line["log_level"] == "info" for line in lines)
    assert "good" not in str(lines)
    assert WEB not in str(lines)
