"""Client processes against real servers, by every protocol, and what happens when a process or the server goes away."""

import asyncio
import itertools
import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sentiment.oip import inference_pb2 as oip
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.fleet import Fleet, _Worker, measure
from sentiment_tools.loadtest.grpc_driver import GrpcDriver
from sentiment_tools.loadtest.mix import EXPLAIN, SLOW_READER, Call, Mix
from sentiment_tools.loadtest.oip_driver import OipDriver
from sentiment_tools.loadtest.results import JUDGED, Point, Second
from sentiment_tools.traffic.arrivals import Law, Poisson, Schedule
from tests.conftest import RunningServer
from tests.core.grpc.test_effort import CLEAR
from tests.tiny import EFFORT, make_bundle
from tests.tools.loadtest.servers import Oip, serving

TEXTS = ["a good film", "awful", "good good film"]
CALLS = 60
SEED = 1
# All are due at the start: of calls that are due later, a busy machine sends some too late, which are not counted as sent.
LAW = Schedule(tuple(number / 1e5 for number in range(CALLS)))
STEADY = Poisson(150.0)
HELD_S = 0.4
# No test judges latency: a busy machine may take its time.
PATIENT = (20.0, 20.0)


async def held(target: Target, mix: Mix, processes: int = 1, texts: Sequence[str] = TEXTS) -> tuple[Point, dict[str, str]]:
    """Hold the load until all its calls have been sent, however long that takes here."""
    # A second counts those that are judged.
    judged = sum(call.group in JUDGED for call in itertools.islice(mix.calls(texts, SEED), CALLS))
    sent = 0

    def count(second: Second) -> None:
        nonlocal sent
        sent += second.sent
        if sent >= judged:
            fleet.stop()

    async with Fleet(target, mix, texts, 20.0, processes=processes, seed=SEED, on_second=count) as fleet:
        return await fleet.measure(LAW, 600.0, warm_up_s=0), fleet.server


def children() -> set[int]:
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(pid))
    return found


@pytest.mark.parametrize(
    ("mix", "processes"),
    [(Mix(PATIENT, bulk=0.5), 2), (Mix(PATIENT, per_call=3), 1), (Mix(PATIENT, stream=True), 1)],
    ids=["classify", "batch", "stream"],
)
async def test_processes_send_every_due_call_to_our_server_and_read_its_answers(server: RunningServer, mix: Mix, processes: int) -> None:
    point, says = await held(Target(server.target, channels=2), mix, processes)

    assert point.sent == point.in_time == CALLS
    assert point.outcomes == {"OK": CALLS}
    assert point.texts_ok == CALLS * mix.per_call
    assert point.tokens_per_s > 0
    assert all(len(durations) == CALLS for durations in point.stages.values())
    # The stages and the rest sum to the latency.
    assert sum(durations.mean_s for durations in point.stages.values()) == pytest.approx(point.latency.mean_s, rel=0.05)
    assert sum(second.sent for second in point.series) == CALLS
    assert says["model"] == "tiny/1"
    assert len(says["digest"]) == 64


async def test_explanations_and_slow_readers_are_counted_separately(server: RunningServer, awake: None) -> None:
    mix = Mix(PATIENT, explain=0.2, slow_readers=0.05)
    point, _ = await held(Target(server.target), mix)

    kinds = {name: group.sent for name, group in point.by_class.items()}
    assert kinds[EXPLAIN] > 0
    assert kinds[SLOW_READER] > 0
    assert point.judged == kinds["interactive"] == point.in_time
    assert point.by_class[EXPLAIN].outcomes["OK"] == kinds[EXPLAIN]


async def test_http_sends_and_reads_our_json(server: RunningServer) -> None:
    point, _ = await held(Target(server.url, "http"), Mix(PATIENT, bulk=0.5))

    assert point.outcomes == {"OK": CALLS}
    assert point.tokens_per_s > 0
    assert len(point.stages["run"]) == CALLS


@pytest.mark.parametrize(("shape", "sent"), [([-1], [2]), ([-1, 1], [2, 1])], ids=["row", "column"])
async def test_open_inference_takes_the_inputs_name_and_shape_from_metadata(shape: list[int], sent: list[int]) -> None:
    servicer = Oip(shape)
    async with serving(servicer) as target:
        point, says = await held(Target(target, "oip", "words"), Mix(PATIENT, per_call=2))

    assert point.outcomes == {"OK": CALLS}
    assert says == {"model": "words/3", "platform": "tests"}
    assert {(tuple(shape), len(texts)) for shape, texts in servicer.asked} == {(tuple(sent), 2)}
    assert {text for _, texts in servicer.asked for text in texts} == set(TEXTS)


@pytest.mark.parametrize("mix", [Mix(PATIENT), Mix(PATIENT, per_call=2), Mix(PATIENT, stream=True)], ids=["classify", "batch", "stream"])
async def test_a_refused_call_is_an_outcome_with_the_servers_message(server: RunningServer, mix: Mix) -> None:
    # Only a control character, which the tokenizer drops.
    point, _ = await held(Target(server.target), mix, texts=["\1"])

    assert point.outcomes == {"INVALID_ARGUMENT": CALLS}
    assert point.judged == CALLS
    assert point.in_time == 0
    assert "text" in point.messages["INVALID_ARGUMENT"]


async def test_one_fleet_holds_several_loads_of_other_calls(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[Second] = []
    seeds: list[int] = []
    hold = _Worker.hold
    monkeypatch.setattr(_Worker, "hold", lambda self, command, seen: (seeds.append(command["seed"]), hold(self, command, seen))[1])

    def begun() -> int:
        return sum(second.at_s == 0 for second in seconds)

    def count(second: Second) -> None:
        seconds.append(second)
        if sum(each.sent for each in seconds) == CALLS * begun():
            # All calls of this load; ``stop`` would end the next one too.
            for worker in fleet._workers:
                worker.send(stop=True)

    async with Fleet(Target(server.target), Mix(PATIENT), TEXTS, 20.0, processes=2, on_second=count) as fleet:
        points = [await fleet.measure(LAW, 600.0, warm_up_s=0) for _ in range(2)]

    assert [point.sent for point in points] == [CALLS, CALLS]
    assert [sum(second.sent for second in point.series) for point in points] == [CALLS, CALLS]
    assert begun() == 2
    assert seeds == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ("grpc", "no gRPC server answers at {}"),
        ("oip", "no gRPC server answers at {}"),
        ("http", "http://{}/v1/classify does not answer: UNAVAILABLE"),
    ],
)
async def test_a_target_without_a_server_fails_before_anything_is_sent(protocol: str, reason: str) -> None:
    before = children()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = Target(f"127.0.0.1:{taken.getsockname()[1]}", protocol, "words")

        with pytest.raises(LoadFailed, match=re.escape(reason.format(target.address))):
            await measure(target, Mix(PATIENT), TEXTS, LAW, HELD_S, 0.5)

    assert children() == before


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ("grpc", "GetModel fails at .*: NOT_FOUND: model 'other' is not loaded"),
        ("http", "does not answer: NOT_FOUND: "),
        ("oip", "ModelMetadata of 'other' fails at .*: NOT_FOUND: model 'other' is not loaded"),
    ],
)
async def test_an_unknown_model_fails_before_anything_is_sent(server: RunningServer, protocol: str, reason: str) -> None:
    address = server.url if protocol == "http" else server.target

    with pytest.raises(LoadFailed, match=reason):
        await measure(Target(address, protocol, "other"), Mix(PATIENT), TEXTS, LAW, HELD_S, 0.5)


async def test_a_redirect_is_a_failure() -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LoadFailed, match="does not answer: HTTP_302"):
            await measure(Target(f"127.0.0.1:{port}", "http"), Mix(PATIENT), TEXTS, LAW, HELD_S, 0.5)


async def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(LoadFailed, match=r"target 'http://\[::1' is not a valid address"):
        await measure(Target("http://[::1", "http"), Mix(PATIENT), TEXTS, LAW, HELD_S, 0.5)


async def test_a_response_for_fewer_texts_than_were_sent_is_a_failure() -> None:
    class Short:
        async def ClassifyBatch(self, request: pb.ClassifyBatchRequest, **_: float) -> pb.ClassifyBatchResponse:  # noqa: N802  # gRPC's
            return pb.ClassifyBatchResponse(results=[pb.ClassifyResult(response=pb.ClassifyResponse()) for _ in request.items[1:]])

    class ShortOip(Oip):
        async def ModelInfer(self, request: oip.ModelInferRequest, context: object) -> oip.ModelInferResponse:  # noqa: N802  # gRPC's
            answered = await super().ModelInfer(request, context)
            answered.outputs[0].shape[0] -= 1
            return answered

    ours = GrpcDriver(Target("127.0.0.1:1"), stream=False)
    ours._stubs = itertools.cycle([Short()])
    async with serving(ShortOip([-1])) as target:
        theirs = OipDriver(Target(target, "oip", "words"))
        await theirs.connect()
        answers = [await driver.call(Call(tuple(TEXTS), "interactive", 20.0), 20.0) for driver in (ours, theirs)]
        await theirs.close()
    await ours.close()

    assert [answer.code for answer in answers] == ["UNKNOWN", "UNKNOWN"]
    assert answers[0].message == "the response has results for 2 of 3 texts"


async def test_a_client_process_that_dies_ends_the_measurement_at_once(server: RunningServer) -> None:
    before = children()
    async with Fleet(Target(server.target), Mix(PATIENT), TEXTS, 20.0, processes=2) as fleet:
        measuring = asyncio.create_task(fleet.measure(LAW, 60.0))
        os.kill(max(children() - before), signal.SIGKILL)

        with pytest.raises(LoadFailed, match="client process 1 ended with exit code -9"):
            await asyncio.wait_for(measuring, 50)

    assert children() == before


@pytest.mark.parametrize("load", [STEADY, 3], ids=["open", "closed"])
async def test_a_stopped_load_returns_its_measurements(server: RunningServer, load: Law | int) -> None:
    first_second = asyncio.Event()
    async with Fleet(Target(server.target), Mix(PATIENT), TEXTS, 20.0, processes=2, on_second=lambda _: first_second.set()) as fleet:
        measuring = asyncio.create_task(fleet.measure(load, 600.0, warm_up_s=0))
        await first_second.wait()

        fleet.stop()
        point = await asyncio.wait_for(measuring, 60)

    assert point.interrupted
    assert 0.9 < point.seconds < 100
    assert point.sent == point.ok > 0
    assert point.offered_per_s == pytest.approx(0 if point.closed_loop else (point.sent + point.unsent) / point.seconds)


async def test_a_server_that_goes_away_causes_failures_without_waiting(settings: Settings) -> None:
    server = RunningServer(settings)
    first_second = asyncio.Event()
    async with Fleet(Target(server.target), Mix((2.0, 2.0)), TEXTS, 2.0, processes=1, on_second=lambda _: first_second.set()) as fleet:
        measuring = asyncio.create_task(fleet.measure(STEADY, 2.5, warm_up_s=0))
        await first_second.wait()
        await asyncio.to_thread(server.stop)
        point = await asyncio.wait_for(measuring, 60)

    assert point.sent == sum(point.outcomes.values())
    assert point.outcomes["OK"] > 0
    assert point.outcomes["UNAVAILABLE"] > 0
    assert "UNAVAILABLE" in point.messages


@pytest.mark.parametrize(
    ("protocol", "mix"),
    [("grpc", {}), ("grpc", {"per_call": 4}), ("grpc", {"stream": True}), ("http", {})],
    ids=["calls", "batches", "streams", "http"],
)
async def test_loads_may_ask_for_adaptive_effort(
    protocol: str, mix: dict[str, Any], start: Callable[..., RunningServer], tmp_path: Path
) -> None:
    make_bundle(tmp_path, effort=EFFORT)
    server = start(bundles=(tmp_path,))
    target = Target(server.target if protocol == "grpc" else server.url, protocol, effort="adaptive")

    point, _ = await held(target, Mix(PATIENT, **mix), texts=[CLEAR])

    texts = point.texts_ok
    assert texts >= CALLS
    assert server.metric("sentiment_early_texts_total", model="tiny/1") == texts
