"""The accept loop that replaces grpc.aio's: paths that are not UTF-8, unknown methods, and another grpcio."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from sentiment.doors.grpc import accepting
from sentiment.doors.grpc.accepting import accepting_server
from sentiment.doors.grpc.grpcio import ASKED, cygrpc, known
from tests.core.faults import raw

READ_IN = "1.85"


async def echo(_: object, context: Any) -> bytes:
    data: bytes = await context.read()
    return data


@pytest.fixture(params=[True, False], ids=["own loop", "grpc.aio's loop"])
async def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A server of one method; its target."""
    monkeypatch.setattr(accepting, "known", lambda: request.param)
    server = accepting_server([("grpc.so_reuseport", 0)], {"/a.B/Echo": grpc.stream_unary_rpc_method_handler(echo)})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


def test_grpcio_has_the_private_names_that_are_used() -> None:
    assert known(), f"grpcio is {grpc.__version__}; read its server.pyx.pxi again, as it was read in {READ_IN}"
    further = ("channelz_get_servers", "channelz_get_server", "ExecuteBatchError")
    assert all(hasattr(cygrpc, name) for name in further), f"grpcio is {grpc.__version__}; it was read in {READ_IN}"


async def test_calls_are_answered_and_unknown_methods_refused(server: str) -> None:
    async with grpc.aio.insecure_channel(server) as channel:
        answers = await asyncio.gather(*(channel.unary_unary("/a.B/Echo")(b"%d" % number) for number in range(5 * ASKED)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/a.B/Nope")(b"")

    assert answers == [b"%d" % number for number in range(5 * ASKED)]
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("server", [True], indirect=True, ids=["own loop"])
async def test_a_path_that_is_not_utf8_is_refused_and_other_calls_on_the_connection_go_on(server: str) -> None:
    def call() -> bytes:
        with raw.Peer(server) as peer:
            peer.call(1, path="/a.B/Echo")
            # Latin-1: "é" is one byte, which is not UTF-8.
            peer.send(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 3, latin("/é")))
            refused = peer.wait_for(raw.HEADERS, 3)
            peer.send(raw.frame(raw.DATA, raw.END_STREAM, 1, b"\0\0\0\0\2ab"))
            assert peer.wait_for(raw.DATA, 1) == b"\0\0\0\0\2ab"
            return refused

    assert b"grpc-status\x0212" in await asyncio.to_thread(call)


def latin(path: str) -> bytes:
    """The header block of a call to a path in Latin-1."""
    plain = raw.request_headers("/x")
    return plain.replace(b"\x05:path\x02/x", b"\x05:path" + bytes([len(path)]) + path.encode("latin-1"))
