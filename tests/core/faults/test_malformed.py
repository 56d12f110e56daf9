"""Thousands of malformed inputs from a seed"""

import asyncio
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from sentiment.call.names import METHODS, path_of
from sentiment.oip import inference_pb2 as oip
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import NO_RETRIES
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import HUNG, PATIENCE_S, Callers
from tests.core.faults.malformed import call_headers, conversation, message, web_request
from tests.core.faults.own_process import OwnProcess
from tests.core.servers import until

INPUTS = int(os.environ.get("INPUTS", "300"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(2**31)
AT_ONCE = 32
MIB = 2**20
# Codes for a caller's mistake, or for a lack of room or time. UNKNOWN and INTERNAL are neither.
CODES = {
    *("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"),
    *("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
}
VALID = [
    *(
        one.SerializeToString()
        for one in (
            pb.ClassifyRequest(
                text="a good film", model="tiny/1", truncation=2, priority=1, explain=pb.ExplainOptions(methods=["occlusion"])
            ),
            pb.ClassifyBatchRequest(items=[pb.Item(text="good"), pb.Item(text="bad", text_pair="film")]),
            pb.ClassifyStreamRequest(id="a", item=pb.Item(text="w7"), options=pb.StreamOptions(model="tiny")),
            pb.ExplainRequest(text="a good film", label="positive"),
            pb.GetModelRequest(model="tiny/1"),
            oip.ModelReadyRequest(name="tiny", version="1"),
            oip.ModelInferRequest(
                model_name="tiny",
                inputs=[oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])],
                raw_input_contents=[b"\x04\x00\x00\x00good"],
            ),
        )
    )
]
JSON = [
    b'{"text": "a good film"}',
    b'{"text": "good", "model": "tiny/1", "truncation": "HEAD", "priority": "BULK", "explain": {"methods": ["occlusion"]}}',
    b'{"text": "\\ud800", "text_pair": null, "x": [[[[{}]]]], "priority": 1e400}',
    b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}], "parameters": {"binary_data_output": true}}',
]  # fmt: skip


@pytest.fixture
def attacked(spawn: Callable[..., OwnProcess], tmp_path: Path) -> OwnProcess:
    """A server whose log is ``tmp_path/log``."""
    with (tmp_path / "log").open("wb") as log:
        return spawn(stderr=log)


def assert_unharmed(server: OwnProcess, log: Path, before: int, evidence: Evidence) -> None:
    """No connection is left open, memory has not grown much, and the log has no error."""
    until(lambda: server.connections() <= 1, f"seed {SEED}: connections are closed")
    grown = server.rss_bytes() - before
    logged = log.read_text()
    evidence.measured |= {"inputs": INPUTS, "seed": SEED, "memory grown by, MiB": round(grown / MIB, 1)}
    assert grown < 256 * MIB, f"seed {SEED}"
    assert "Traceback" not in logged and '"error"' not in logged, f"seed {SEED}: {logged[:2000]}"


async def sent(target: str, dice: random.Random, inputs: int) -> Counter[str]:
    """Send this many malformed bodies to random methods; returns how the calls ended."""
    found: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(target, NO_RETRIES) as channel:
        # Every method is called as a stream; on the wire there is no difference.
        calls = [channel.stream_stream(f"/{path_of(method)}") for method in METHODS]

        async def ask() -> None:
            call = dice.choice(calls)(iter([message(dice, VALID)]), timeout=10)
            try:
                async with asyncio.timeout(10 + PATIENCE_S):
                    async for _ in call:
                        pass
                    found[(await call.code()).name] += 1
            except grpc.aio.AioRpcError as error:
                found[error.code().name] += 1
            except TimeoutError:
                found[HUNG] += 1

        async def worker() -> None:
            nonlocal inputs
            while inputs > 0:
                inputs -= 1
                await ask()

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return found


def test_malformed_messages(attacked: OwnProcess, tmp_path: Path, evidence: Evidence) -> None:
    """Each gets a code that says what is wrong.

    Every method of sentiment.v1 and of the Open Inference Protocol gets malformed bodies: random bytes, valid messages with flipped,
    removed or doubled bits, unknown and repeated fields, wrong wire types, nesting, wrong lengths, bad UTF-8, NaN, extreme numbers. Each
    call ends with a code that says what is wrong, none with UNKNOWN or INTERNAL. Valid calls beside them are answered.
    """
    with Callers(attacked.target, callers=2, timeout_s=10, pause_s=0.05) as callers:
        callers.wait(5)
        before, begun = attacked.rss_bytes(), time.monotonic()
        codes = asyncio.run(sent(attacked.target, random.Random(SEED), INPUTS))
        seconds = time.monotonic() - begun
        callers.wait(5)

    assert set(codes) <= CODES, f"seed {SEED}: {codes}"
    assert codes["INVALID_ARGUMENT"] > 0
    evidence.judge(callers.fates)
    evidence.measured |= {f"ended with {code}": number for code, number in sorted(codes.items())}
    evidence.measured["inputs a second"] = round(INPUTS / seconds)
    assert_unharmed(attacked, tmp_path / "log", before, evidence)


def send_all(address: tuple[str, int], content: bytes) -> bytes:
    """Send, and return the first bytes of the answer if they come soon. The server may close the connection at any time."""
    with socket.create_connection(address, 20) as connection:
        connection.settimeout(0.05)
        try:
            connection.sendall(content)
            return connection.recv(2**16)
        except OSError:
            return b""


@pytest.mark.parametrize("port", ["HTTP 2", "HTTP 1"])
def test_connections_with_malformed_frames(attacked: OwnProcess, tmp_path: Path, evidence: Evidence, port: str) -> None:
    """Valid calls beside them are answered.

    The gRPC port gets, over raw sockets, mostly a preface and then 10 frames of any type, flags, length and stream, with HPACK garbage
    and out of order. The HTTP port gets requests and JSON bodies with flipped, removed or doubled bits. Valid calls beside them are
    answered.
    """
    dice = random.Random(SEED)
    paths = [call_headers(f"/{path_of(method)}".encode()) for method in METHODS if len(path_of(method)) < 120]
    url = attacked.target if port == "HTTP 2" else attacked.url.removeprefix("http://")
    host, _, number = url.partition(":")
    statuses: Counter[str] = Counter()
    with Callers(attacked.target, callers=2, timeout_s=10, pause_s=0.05) as callers:
        callers.wait(5)
        before, begun, done = attacked.rss_bytes(), time.monotonic(), 0
        while done < INPUTS:
            if port == "HTTP 2":
                done += 10
                send_all((host, int(number)), conversation(dice, dice.choice(paths), 10))
            else:
                done += 1
                answer = send_all((host, int(number)), web_request(dice, JSON))
                statuses[answer[9:12].decode() if answer.startswith(b"HTTP/1.") else "nothing"] += 1
        seconds = time.monotonic() - begun
        callers.wait(5)

    assert not {status for status in statuses if status.startswith("5") and status not in ("501", "503", "504")}, f"seed {SEED}: {statuses}"
    evidence.judge(callers.fates)
    evidence.measured |= {f"answered with {status}": number for status, number in sorted(statuses.items())}
    evidence.measured["inputs a second"] = round(INPUTS / seconds)
    assert_unharmed(attacked, tmp_path / "log", before, evidence)
