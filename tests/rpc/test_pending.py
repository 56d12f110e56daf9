"""More calls than the event loop can look at."""

import asyncio
import time
from collections import Counter

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.api.grpc.health import LIVENESS, Health
from sentiment.api.grpc.names import SERVICE
from sentiment.api.grpc.server import ServerOptions, make_server

PENDING_MAX = 100
CALLS = 500
OPTIONS = ServerOptions(
    2**20, 10.0, connection_age_max_s=0, connection_age_grace_s=0, pending_max=PENDING_MAX, calls_max=CALLS, reflection=False
)


async def test_calls_that_a_busy_loop_never_looked_at_are_ended_at_once_and_probes_are_not() -> None:
    async def slow(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        time.sleep(0.002)  # noqa: ASYNC251 - the loop itself is what is busy
        return b""

    health = Health((SERVICE,))
    server = make_server(OPTIONS, {SERVICE: {"Classify": grpc.unary_unary_rpc_method_handler(slow)}}, health)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    fates: Counter[str] = Counter()
    probes: list[int] = []

    def ask() -> None:
        # From a thread of its own: a client in the loop would wait for its turn, too.
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            classify = channel.unary_unary(f"/{SERVICE}/Classify")
            calls = [classify.future(b"", timeout=30) for _ in range(CALLS)]
            stub = health_pb2_grpc.HealthStub(channel)
            while not all(call.done() for call in calls):
                probes.append(stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS), timeout=30).status)
            fates.update(call.code().name for call in calls)

    try:
        await asyncio.to_thread(ask)
    finally:
        await server.stop(0)

    assert set(fates) == {"OK", "CANCELLED"}
    # What waited below half of the limit, and what was looked at meanwhile, was never in danger.
    assert fates["OK"] >= PENDING_MAX // 2
    assert len(probes) > 3
    assert set(probes) == {health_pb2.HealthCheckResponse.SERVING}
