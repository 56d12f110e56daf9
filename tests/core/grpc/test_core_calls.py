"""Calls that gRPC's core ends are counted, though nothing of Python sees them."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.doors.grpc import grpcio
from sentiment.doors.grpc.core_calls import CoreCalls
from sentiment.doors.grpc.grpcio import ASKED
from sentiment.errors import CannotServe
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import NO_RETRIES
from tests.core.grpc.gate import Start
from tests.core.servers import until

CALLS = 60
PATIENCE_S = 30


def counted(value: Callable[[str], float | None]) -> tuple[float | None, float | None]:
    """Calls that started and that ended, by the core. ``value`` reads a metric."""
    return value("sentiment_grpc_calls_started_total"), value("sentiment_grpc_calls_ended_total")


def test_calls_beyond_the_pending_limit_are_ended_unseen_and_count_as_started_and_probes_are_answered(start: Start) -> None:
    server = start(calls_pending_max=4)
    # Without the server's loop, which is blocked.
    value = server.app._metrics.registry.get_sample_value
    let_go = threading.Event()
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        call: Any = channel.unary_unary("/sentiment.v1.SentimentService/Classify")  # bytes in and out
        request = pb.ClassifyRequest(text="good").SerializeToString()
        call(request, timeout=PATIENCE_S)
        server.loop.call_soon_threadsafe(let_go.wait, PATIENCE_S)
        made = [call.future(request, timeout=PATIENCE_S) for _ in range(CALLS)]
        until(lambda: counted(value)[0] == CALLS + 1)
        probe = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        live = oip_grpc.GRPCInferenceServiceStub(channel).ServerLive.future(oip.ServerLiveRequest(), timeout=PATIENCE_S)
        until(lambda: counted(value)[0] == CALLS + 3)
        let_go.set()
        codes = Counter(one.code() for one in made)
        assert probe.result().status == health_pb2.HealthCheckResponse.SERVING
        assert live.result().live

    lost = codes[grpc.StatusCode.CANCELLED]
    # The event loop takes those that it had asked for; calls below half of the limit are never ended.
    assert CALLS - ASKED - 8 <= lost <= CALLS - ASKED - 2
    assert codes[grpc.StatusCode.OK] == CALLS - lost
    until(lambda: counted(server.metric) == (CALLS + 3, CALLS + 3 - lost))
    assert server.metric("sentiment_requests_total", method="Classify", code="OK", model="tiny/1") == CALLS + 1 - lost
    assert server.metric("sentiment_requests_total", method="Classify", code="CANCELLED", model="tiny/1") == 0


def test_failed_calls_end_too_and_a_server_counts_only_its_own(start: Start) -> None:
    server, other = start(), start()
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        for method in ("/sentiment.v1.SentimentService/Classify", "/sentiment.v1.SentimentService/NoSuch", "/no.Such/Method"):
            call: Any = channel.unary_unary(method)
            for timeout in (PATIENCE_S, 1e-9):
                assert call.future(b"\xff", timeout=timeout).code() is not grpc.StatusCode.OK

    until(lambda: counted(server.metric)[0] >= 3)
    until(lambda: counted(server.metric)[0] == counted(server.metric)[1])
    assert counted(other.metric) == (0, 0)


@pytest.mark.parametrize("page", [b"{}", b'{"end": true, "server": []}', b'{"servers": [{"ref": {"serverId": "1"}}]}'])
def test_a_grpcio_that_lists_no_server_is_refused(page: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpcio, "cygrpc", SimpleNamespace(channelz_get_servers=lambda _: page))

    with pytest.raises(CannotServe, match="lists no server"):
        CoreCalls()


def test_the_server_that_was_made_last_is_found_behind_a_full_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages as the core gives them: servers in order from a number on."""

    def page(first: int) -> bytes:
        return json.dumps({"server": [{"ref": {"serverId": str(number)}} for number in (3, 5, 9, 12, 13) if number >= first][:2]}).encode()

    asked: list[int] = []
    counts = b'{"server": {"data": {"callsStarted": "7"}}}'
    core = SimpleNamespace(channelz_get_servers=page, channelz_get_server=lambda number: asked.append(number) or counts)
    monkeypatch.setattr(grpcio, "cygrpc", core)

    assert CoreCalls().started == 7
    assert asked == [13]


def test_a_server_that_is_gone_keeps_its_counts_and_another_format_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [b'{"server": {"data": {"callsStarted": "7"}}}', None, b"Server: 7 calls"]

    def get_server(_: int) -> bytes:
        if (answer := told.pop(0)) is None:
            raise ValueError("Failed to get the server")
        return answer

    pages = [b'{"server": [{"ref": {"serverId": "1"}}]}', b"{}"]
    core = SimpleNamespace(channelz_get_servers=lambda _: pages.pop(0), channelz_get_server=get_server)
    monkeypatch.setattr(grpcio, "cygrpc", core)
    calls = CoreCalls()

    assert (calls.started, calls.started) == (7, 7)
    with pytest.raises(ValueError, match="Expecting value"):
        _ = calls.started
