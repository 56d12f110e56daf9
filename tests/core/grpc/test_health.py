"""grpc.health.v1 and reflection through a real server."""

import asyncio
import base64
import json
import subprocess
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from sentiment.call.names import OIP_SERVICE, SERVICE
from sentiment.doors.grpc import health
from sentiment.doors.grpc.health import LIVENESS
from sentiment.doors.grpc.server import REFLECTION_V1
from tests.conftest import RunningServer
from tests.core.grpc.gate import PATIENCE_S, Start

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def check(server: RunningServer, service: str) -> int:
    with grpc.insecure_channel(server.target) as channel:
        return int(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service)).status)


def test_a_ready_server_serves_under_every_name_and_no_other(server: RunningServer) -> None:
    assert [check(server, service) for service in ("", SERVICE, OIP_SERVICE, LIVENESS)] == [SERVING] * 4
    with pytest.raises(grpc.RpcError) as caught:
        check(server, "nosuch")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_sees_the_drain_and_is_ended_by_it(start: Start) -> None:
    server = start(drain_wait_s=0.2, drain_grace_s=20.0)
    async with grpc.aio.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        seen = [(await watch.read()).status]

        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        while (response := await watch.read()) is not grpc.aio.EOF:
            seen.append(response.status)
        await asyncio.wait_for(stopping, 10)

    # The grace is 20 s: that the server is gone shows that the open Watch did not keep it.
    assert seen == [SERVING, NOT_SERVING]
    assert await watch.code() is grpc.StatusCode.OK


async def first_status(watch: Any) -> int | None:
    """What a watch tells first; None if it is refused."""
    try:
        return int((await watch.read()).status)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return None


async def test_a_watch_too_many_is_refused_and_its_place_is_free_again_when_another_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of one caller: it gets at most as many as stay free.
    monkeypatch.setattr(health, "WATCHERS_MAX", 3)
    server = start(deadline_max_s=59.0)
    request = health_pb2.HealthCheckRequest(service="")
    async with grpc.aio.insecure_channel(server.target) as channel, asyncio.timeout(PATIENCE_S):
        stub = health_pb2_grpc.HealthStub(channel)
        first = stub.Watch(request)
        assert (await first.read()).status == SERVING

        second = stub.Watch(request)
        code, said = await second.code(), await second.details()
        first.cancel()
        while not (status := await first_status(stub.Watch(request))):
            await asyncio.sleep(0.01)

    assert status == SERVING
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert said == "1 watches are open; the limit is 3, and a caller gets at most as many as stay free"


async def test_not_ready_but_alive_while_nothing_moves(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may still end: what is not replaced can recover."""
    monkeypatch.setattr("sentiment.serving.app.WATCHDOG_S", 0.02)
    server = start(stall_s=1.0)
    batcher = server.models.find("").batcher
    async with grpc.aio.insecure_channel(server.target) as channel, asyncio.timeout(PATIENCE_S):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == SERVING

        monkeypatch.setattr(batcher, "stalled_s", lambda: 2.0)
        assert (await watch.read()).status == NOT_SERVING
        assert check(server, LIVENESS) == SERVING

        monkeypatch.undo()
        assert (await watch.read()).status == SERVING


@pytest.mark.parametrize("name", ["grpc.reflection.v1alpha.ServerReflection", REFLECTION_V1])
def test_reflection_tells_the_services_and_their_messages(server: RunningServer, name: str) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    with grpc.insecure_channel(server.target) as channel:
        method = channel.stream_stream(
            f"/{name}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        listed, described = method(iter(requests))

    names = [service.name for service in listed.list_services_response.service]
    assert {SERVICE, OIP_SERVICE, "grpc.health.v1.Health"} <= set(names)
    assert described.file_descriptor_response.file_descriptor_proto


def buf_curl(*arguments: str) -> str:
    command = ["buf", "curl", "--http2-prior-knowledge", "--protocol", "grpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.mark.needs_tool("buf")
@pytest.mark.parametrize("version", ["grpc-v1", "grpc-v1alpha"])
def test_a_foreign_client_calls_both_services_through_reflection(server: RunningServer, version: str) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [base64.b64encode(b"good").decode()]}}
    request = json.dumps({"model_name": "tiny", "inputs": [tensor], "outputs": [{"name": "label"}]})
    reflect = ("--reflect", "--reflect-protocol", version)

    classified = buf_curl(*reflect, "--data", '{"text": "a good film"}', f"{server.url_of_grpc}/{SERVICE}/Classify")
    inferred = buf_curl(*reflect, "--data", request, f"{server.url_of_grpc}/{OIP_SERVICE}/ModelInfer")

    assert json.loads(classified)["prediction"]["label"] == "positive"
    assert base64.b64decode(json.loads(inferred)["rawOutputContents"][0])[4:] == b"positive"


def test_reflection_can_be_switched_off(start: Start) -> None:
    server = start(reflection=False)
    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(f"/{REFLECTION_V1}/ServerReflectionInfo")(iter([b""])))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_calls_that_send_no_message_are_few_and_leave_room_for_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "UNREAD_MAX", 8)
    server = start(receive_s_max=PATIENCE_S)

    async def silent() -> Any:
        await asyncio.Event().wait()
        yield health_pb2.HealthCheckRequest()

    async with grpc.aio.insecure_channel(server.target) as channel, asyncio.timeout(PATIENCE_S):
        # As a stream, whose message may come later.
        call = channel.stream_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        calls = [call(silent()) for _ in range(9)]
        # Of this connection: it gets at most as many as stay free.
        while len(refused := [each for each in calls if each.done()]) < 5:
            await asyncio.sleep(0.01)
        codes = {await each.code() for each in refused}
        others = await asyncio.to_thread(check, server, "")
        still_open = sum(not each.done() for each in calls)
        for each in calls:
            each.cancel()

    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert (others, still_open) == (SERVING, 4)
