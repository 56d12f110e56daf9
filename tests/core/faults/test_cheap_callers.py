"""One cheap caller beside others: what he sends costs him little, and nobody else is harmed"""

import asyncio
import contextlib
import gzip
import struct
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from sentiment.client import CallFailed
from sentiment.doors.open_files import GRPC_SHARE
from sentiment.oip import inference_pb2 as oip
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import PLAIN
from tests.core.faults import raw
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.seen import MB, others_are_answered
from tests.core.servers import Server, until

Serve = Callable[..., Server]
HEALTH = "/grpc.health.v1.Health/Check"
STREAM = "/sentiment.v1.SentimentService/ClassifyStream"
# The transport's limit of a message.
MESSAGE_MAX = 16 * MB
# A setting of these servers, and what its bytes may take: gRPC's buffers are larger than what is in them, and a client that sends as fast
# as this machine can goes beyond for a moment.
REQUEST_BYTES, MORE_MB_MAX = 64 * MB, 400
BOUNDED = ("--request-bytes-max", str(REQUEST_BYTES))
OWN_CONNECTION = [*PLAIN, ("grpc.use_local_subchannel_pool", 1)]


class Windows:
    """How much HTTP/2 lets a peer send on each of its streams. Follows the server's frames."""

    def __init__(self, peer: raw.Peer) -> None:
        self._peer = peer
        self._connection = self.initial = 65_535
        self._streams: dict[int, int] = {}
        self.ended: set[int] = set()

    def exchange(self, left: dict[int, memoryview]) -> None:
        """Send what fits of what is left of each stream's data, and read the server's frames."""
        fitted = False
        for stream, data in left.items():
            fits = max(0, min(len(data), self._streams.setdefault(stream, self.initial), self._connection, 2**14))
            if fits and stream not in self.ended:
                self._peer.send(raw.frame(raw.DATA, 0, stream, bytes(data[:fits])))
                self._streams[stream] -= fits
                self._connection -= fits
                left[stream], fitted = data[fits:], True
        self.follow(0.0 if fitted else 0.05)

    def follow(self, seconds: float = 0.0) -> None:
        """Read the server's frames."""
        for kind, flags, stream, payload in self._peer.read(seconds):
            if kind == raw.WINDOW_UPDATE and stream:
                self._streams[stream] = self._streams.get(stream, self.initial) + int.from_bytes(payload)
            elif kind == raw.WINDOW_UPDATE:
                self._connection += int.from_bytes(payload)
            elif kind == raw.SETTINGS and not flags & raw.ACK:
                values = dict(struct.iter_unpack(">HI", payload))
                more = values.get(raw.INITIAL_WINDOW, self.initial) - self.initial
                self.initial += more
                self._streams = {one: window + more for one, window in self._streams.items()}
            elif kind == raw.RST_STREAM or (kind == raw.HEADERS and flags & raw.END_STREAM):
                self.ended.add(stream)


def never_finish(target: str, path: str, streams: int, seconds: float) -> int:
    """Announce a message of nearly 16 MiB on each stream and send all but its end; returns how many streams the server ended."""
    with raw.Peer(target) as peer:
        windows = Windows(peer)
        begun = b"\0" + struct.pack(">I", MESSAGE_MAX - 1) + b"a" * (MESSAGE_MAX - 2**16)
        left = dict.fromkeys(range(1, 2 * streams, 2), memoryview(begun))
        ends_at = time.monotonic() + seconds
        for stream in left:
            peer.call(stream, path=path)
        while time.monotonic() < ends_at and not peer.ended:
            windows.exchange(left)
        assert windows.initial <= 2**16, "a client may send more before the server reads"
        return len(windows.ended)


@contextlib.contextmanager
def beside(server: Server, attack: Callable[[], object]) -> Iterator[None]:
    """Attack in a thread as long as the context lasts, and to its end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            attack()
        except BaseException as error:  # handed to the test
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    assert not failures, failures
    assert server.process.poll() is None


def test_messages_that_open_to_a_thousand_times_their_size(serve: Serve, evidence: Evidence) -> None:
    """They are refused before they are opened.

    300 gRPC messages of 16 KB that open to 16 MB each go to Health/Check, twice. They are refused before they are opened.
    """
    server = serve(*BOUNDED)
    content = gzip.compress(b"\x0a" + b"a" * (MESSAGE_MAX - 2**10), 9)
    message = memoryview(b"\1" + struct.pack(">I", len(content)) + content)
    block = raw.request_headers(HEALTH) + raw.literal("grpc-encoding", "gzip")
    refused, answers = 0, []

    def attack() -> None:
        nonlocal refused
        for _ in range(2):
            with raw.Peer(server.target) as peer:
                windows, left = Windows(peer), dict.fromkeys(range(1, 600, 2), message)
                for stream in left:
                    peer.send(raw.frame(raw.HEADERS, raw.END_HEADERS, stream, block))
                ends_at = time.monotonic() + raw.PATIENCE_S
                while len(windows.ended) < 300 and time.monotonic() < ends_at and not peer.ended:
                    windows.exchange(left)
                refused += len(windows.ended)
                answers.append(peer.wait_for(raw.HEADERS, 1))

    with others_are_answered(server, evidence) as seen, beside(server, attack):
        pass
    evidence.measured["compressed messages refused"] = refused
    assert refused == 600
    # Later answers of a connection refer to what its first one said.
    assert all(raw.UNIMPLEMENTED in answer for answer in answers)
    assert seen.peak_mb < seen.before_mb + MORE_MB_MAX


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(raw.CLASSIFY, id="Classify"),
        pytest.param(STREAM, id="ClassifyStream", marks=pytest.mark.thorough),
        pytest.param(HEALTH, id="Health", marks=pytest.mark.thorough),
    ],
)
def test_messages_that_are_announced_and_never_finished(serve: Serve, evidence: Evidence, path: str) -> None:
    """One caller holds its share of memory at most.

    130 calls on one connection announce messages of 16 MB and send all but their last bytes: 2 GB. The server keeps what one caller may
    hold of ``request_bytes_max``, here 64 MiB, and ends the other calls.
    """
    server = serve(*BOUNDED)
    ended = 0

    def attack() -> None:
        nonlocal ended
        ended = never_finish(server.target, path, 130, 4)

    with others_are_answered(server, evidence) as seen, beside(server, attack):
        pass
    evidence.measured["calls that the server ended"] = ended
    assert ended >= 100
    assert seen.peak_mb < seen.before_mb + MORE_MB_MAX


def test_streams_of_large_texts_whose_answers_are_not_read(serve: Serve, evidence: Evidence) -> None:
    """No text is kept after it is tokenized.

    8 streams send 100 texts of a megabyte each and read no answer. A text is dropped once it is tokenized, and a refusal keeps none.
    """
    server = serve(*BOUNDED)
    text = "a good film " * (MB // 12)

    def attack() -> None:
        def items() -> Iterator[pb.ClassifyStreamRequest]:
            for number in range(100):
                yield pb.ClassifyStreamRequest(id=str(number), item=pb.Item(text=text))

        with grpc.insecure_channel(server.target, [*OWN_CONNECTION, ("grpc.http2.bdp_probe", 0)]) as channel:
            calls = [pb_grpc.SentimentServiceStub(channel).ClassifyStream(items()) for _ in range(8)]
            time.sleep(5)
            for call in calls:
                call.cancel()

    with others_are_answered(server, evidence) as seen, beside(server, attack):
        pass
    assert seen.peak_mb < seen.before_mb + MORE_MB_MAX


def test_batches_of_empty_texts(serve: Serve, evidence: Evidence) -> None:
    """Others are answered, at the median within 0.5 s.

    One connection always has 100 batches of 1,024 empty texts open, of 2 KB each. Others are answered, at the median within half a
    second.
    """
    server, codes = serve(), Counter[str]()
    request = pb.ClassifyBatchRequest(items=[pb.Item()] * 1024)

    async def attack() -> None:
        async with grpc.aio.insecure_channel(server.target, OWN_CONNECTION) as channel:
            stub: Any = pb_grpc.SentimentServiceStub(channel)
            ends_at = time.monotonic() + 5.0

            async def ask() -> None:
                while time.monotonic() < ends_at:
                    answer = await stub.ClassifyBatch(request, timeout=30)
                    codes.update({str(result.error.code) for result in answer.results})

            await asyncio.gather(*(ask() for _ in range(100)))

    with others_are_answered(server, evidence) as seen, beside(server, lambda: asyncio.run(attack())):
        pass
    assert codes
    assert seen.others.seconds(0.5) < 0.5


def test_fifty_streams_that_send_without_end(serve: Serve, evidence: Evidence) -> None:
    """Others are answered, at the median within 0.5 s.

    50 streams, on connections of their own, send short texts as fast as they can, and nobody reads the answers. Others are answered, in
    less than half a second at the median.
    """
    server = serve(*BOUNDED)

    def attack() -> None:
        def items() -> Iterator[pb.ClassifyStreamRequest]:
            while True:
                yield pb.ClassifyStreamRequest(item=pb.Item(text="a good film"))

        with contextlib.ExitStack() as stack:
            channels = [stack.enter_context(grpc.insecure_channel(server.target, OWN_CONNECTION)) for _ in range(50)]
            calls = [pb_grpc.SentimentServiceStub(channel).ClassifyStream(items()) for channel in channels]
            time.sleep(4)
            for call in calls:
                call.cancel()

    with others_are_answered(server, evidence) as seen, beside(server, attack):
        pass
    median_s = seen.others.seconds(0.5)
    evidence.measured["p50 of the others meanwhile, ms"] = round(median_s * 1e3, 1)
    assert median_s < 0.5


@pytest.mark.parametrize("kind", ["windows", pytest.param("interactive batches", marks=pytest.mark.thorough)])
def test_calls_that_cost_as_much_as_hundreds(english: Server, evidence: Evidence, kind: str) -> None:
    """Only a few of their rows go before others'.

    The default model. Four callers send texts of 18 KB in windows, each of which costs as much as 350 short texts; or two callers send
    batches of long texts that ask for priority. Only a handful of their rows go before the others'.
    """
    request = pb.ClassifyRequest(text="a good film " * 1500, truncation=pb.TRUNCATION_WINDOWS)
    items = [pb.Item(text="good bad film is not so " * 90)] * 64
    batch = pb.ClassifyBatchRequest(items=items, truncation=pb.TRUNCATION_WINDOWS, priority=pb.PRIORITY_INTERACTIVE)
    codes: Counter[str] = Counter()

    async def attack() -> None:
        ends_at = time.monotonic() + 5

        async def call() -> None:
            async with grpc.aio.insecure_channel(english.target, OWN_CONNECTION) as channel:
                stub = pb_grpc.SentimentServiceStub(channel)
                while time.monotonic() < ends_at:
                    try:
                        await (stub.Classify(request, timeout=10) if kind == "windows" else stub.ClassifyBatch(batch, timeout=10))
                        codes["OK"] += 1
                    except grpc.aio.AioRpcError as error:
                        codes[error.code().name] += 1
                        await asyncio.sleep(0.05)

        await asyncio.gather(*(call() for _ in range(4 if kind == "windows" else 2)))

    film = "a gripping, beautifully shot film"
    with english.client() as client:
        films = [(film, client.classify(film).scores["positive"])]
    with Callers(english.target, callers=1, pause_s=0.02, texts=films) as others:
        others.wait(50)
        begun = time.monotonic()
        asyncio.run(attack())
        ended = time.monotonic()
    evidence.judge(others.fates)
    meanwhile = others.fates.between(begun, ended)
    evidence.measured |= {
        "p50 of the others before, ms": round(others.fates.between(0, begun).seconds(0.5) * 1e3, 1),
        "p50 of the others meanwhile, ms": round(meanwhile.seconds(0.5) * 1e3, 1),
        "p99 of the others meanwhile, ms": round(meanwhile.seconds(0.99) * 1e3, 1),
        "dear calls": sum(codes.values()),
    }
    assert meanwhile.seconds(0.5) < 1.0
    assert codes["OK"] > 0, codes


def test_grpc_connections_beyond_the_share_of_open_files(serve: Serve, evidence: Evidence) -> None:
    """Open connections and probes are served; the surplus is closed.

    A server may open 400 files, and 400 connections come to its gRPC port. It keeps 65 % as many as files, and closes the others.
    Callers on open connections are answered, and so are probes over new HTTP connections. A new caller is
    answered once the crowd has left.
    """
    server = serve(before=("sh", "-c", 'ulimit -n 400; exec "$@"', "sh"))
    kept_max = int(400 * GRPC_SHARE)
    with others_are_answered(server, evidence) as seen, contextlib.ExitStack() as crowd:
        greeted = [crowd.enter_context(raw.Peer(server.target)).is_greeted() for _ in range(400)]
        evidence.measured["files open at most"] = seen.files
        assert not is_answered(server)
        with urllib.request.urlopen(server.url + "/readyz", timeout=20) as response:
            assert response.status == 200
        crowd.close()
        until(lambda: is_answered(server), "a new caller is answered")

    evidence.measured["connections kept"] = sum(greeted)
    evidence.measured["connections closed"] = 400 - sum(greeted)
    # The others have a connection too.
    assert sum(greeted) == kept_max - 1
    assert greeted == sorted(greeted, reverse=True)


def is_answered(server: Server) -> bool:
    """Whether a call over a new connection is."""
    with server.client() as client:
        try:
            return client.classify("good", timeout_s=1).label == "positive"
        except CallFailed as error:
            assert error.code is grpc.StatusCode.UNAVAILABLE
            return False


def test_more_calls_than_can_be_answered_are_all_counted(serve: Serve, evidence: Evidence) -> None:
    """Each call is in exactly one counter.

    150 callers with a deadline of 50 ms, and callers of the Open Inference Protocol with less time than their texts need. Each call that
    reached the event loop is in exactly one of the counters, and none counts as in time that came too late.
    """
    server = serve()
    ended: Counter[str] = Counter()
    infer = oip.ModelInferRequest(model_name="tiny")
    infer.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a good film " * 200)

    async def attack() -> None:
        channels = [grpc.aio.insecure_channel(server.target, OWN_CONNECTION) for _ in range(4)]

        async def ask(number: int) -> None:
            channel: Any = channels[number % 4]  # Any: bytes in and out, which grpc does not type
            for _ in range(20):
                method, message = (
                    ("inference.GRPCInferenceService/ModelInfer", infer.SerializeToString())
                    if number % 10 == 0
                    else ("sentiment.v1.SentimentService/Classify", pb.ClassifyRequest(text="a good film").SerializeToString())
                )
                try:
                    await channel.unary_unary(f"/{method}")(message, timeout=0.05)
                    ended["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    ended[error.code().name] += 1

        await asyncio.gather(*(ask(number) for number in range(150)))
        for channel in channels:
            await channel.close()

    asyncio.run(attack())
    until(lambda: server.total("grpc_calls_ended_total") <= server.total("requests_total"), "what has ended is counted")

    counted = server.total("requests_total")
    met = server.total("deadline_outcome_total", outcome="met")
    evidence.calls |= {"answered": ended["OK"], "wrong": 0, "hung": 0}
    evidence.measured |= {
        "calls": 3000,
        "calls that the core ended unseen": round(server.total("grpc_calls_started_total") - server.total("grpc_calls_ended_total")),
        "calls in a counter": round(counted),
        "answers that count as in time": round(met),
    }
    assert counted == server.total("grpc_calls_ended_total")
    assert met <= ended["OK"]
