"""A server of several processes, seen from outside: its answers and metrics are those of one process."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sentiment.client import Client, ExplainOptions
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_front_ends.executor import COUNTS_EVERY_S
from tests.conftest import PLAIN, RunningServer
from tests.core.client.test_local import CALLS, outcome
from tests.core.grpc.test_oip import asked, labels_of
from tests.core.servers import PATIENCE_S, Server, serving


@pytest.fixture(scope="module")
def several(bundles: Path) -> Iterator[Server]:
    with serving(bundles, "--front-ends", "2", "--runners", "2") as begin:
        yield begin()


@pytest.mark.parametrize("call", [*CALLS.values(), Client.list_models, Client.get_model], ids=[*CALLS, "models", "model"])
def test_a_call_has_the_result_or_the_error_that_one_process_gives(call: Callable[[Any], Any], several: Server, client: Client) -> None:
    with several.client() as far:
        assert outcome(call, far) == outcome(call, client)


def test_health_and_reflection_are_served_by_front_ends(several: Server) -> None:
    with grpc.insecure_channel(several.target, PLAIN) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "liveness", "sentiment.v1.SentimentService"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status == 1
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]), timeout=10))

    assert "sentiment.v1.SentimentService" in {service.name for service in answer.list_services_response.service}


def test_an_invalid_message_is_refused_and_counted_as_by_one_process(several: Server) -> None:
    before = several.total("requests_total", method="Classify", code="INVALID_ARGUMENT")

    with grpc.insecure_channel(several.target, PLAIN) as channel:
        call = channel.unary_unary("/sentiment.v1.SentimentService/Classify")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff nonsense", timeout=10)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert several.total("requests_total", method="Classify", code="INVALID_ARGUMENT") == before + 1


def test_the_open_inference_protocol_is_served_and_counted_once(several: Server) -> None:
    def counts() -> tuple[float, float]:
        return several.total("requests_total", method="ModelInfer", code="OK"), several.total("items_total", method="ModelInfer", code="OK")

    requests, items = counts()
    with grpc.insecure_channel(several.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)

        one = stub.ModelInfer(asked("good"), timeout=PATIENCE_S)
        many = stub.ModelInfer(asked("bad", "great film", "awful"), timeout=PATIENCE_S)
        config = stub.ModelConfig(oip.ModelConfigRequest(name="tiny"), timeout=PATIENCE_S).config

        assert labels_of(one.raw_output_contents[0]) == ["positive"]
        assert labels_of(many.raw_output_contents[0]) == ["negative", "positive", "negative"]
        assert config.name == "tiny"
        assert stub.ServerLive(oip.ServerLiveRequest(), timeout=PATIENCE_S).live
        assert stub.ServerReady(oip.ServerReadyRequest(), timeout=PATIENCE_S).ready
        assert stub.ModelReady(oip.ModelReadyRequest(name="tiny"), timeout=PATIENCE_S).ready
    assert counts() == (requests + 2, items + 4)


@pytest.mark.smoke
def test_each_call_is_counted_once_whichever_process_answered_it(several: Server) -> None:
    texts = ("deadline_outcome_total", "batch_rows_sum", "predictions_total", "score_count")
    names = ("requests_total", "request_seconds_count", "items_total", *texts)
    before = {name: several.total(name) for name in names}
    explained = several.total("requests_total", method="Explain")

    def call(_: int) -> None:
        with several.client() as client:
            client.classify("a good film")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(16)))
    with several.client() as client:
        client.list_models()
        client.explain("good", options=ExplainOptions(methods=["occlusion"]))
        client.classify_batch(["good", "", "bad"])
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}
    for path, body in (("/v1/classify", {"text": "good"}), ("/v2/models/tiny/infer", {"inputs": [tensor]})):
        urllib.request.urlopen(urllib.request.Request(several.url + path, json.dumps(body).encode()), timeout=10).read()

    grown = {name: several.total(name) - before[name] for name in names}
    # 16 texts, a list of models, an explanation, a batch, two over HTTP; the explanation runs rows of its own beside the batcher.
    assert grown == dict(zip(names, (21, 21, 21, 20, 20, 20, 20), strict=True))
    # Front ends and the executor answered them.
    assert several.total("expected_accuracy_texts") >= 19
    assert several.total("drift_texts") == several.total("signal_texts_total", signal="tokens") >= 19
    assert several.total("requests_total", method="Explain") == explained + 1
    assert several.total("latency_objective_seconds") == 0.5


def test_process_metrics_name_their_process(several: Server) -> None:
    found = {sample.labels["process"]: sample.value for sample in several.metrics() if sample.name == "process_resident_memory_bytes"}

    assert set(found) == {"supervisor", "executor", "front-0", "front-1"}
    assert all(found.values())
    # It serves nothing and loads no serving code.
    assert found["supervisor"] < found["front-0"] / 2


def test_the_busy_time_of_each_event_loop_is_shown(several: Server) -> None:
    def busy_s() -> dict[str, float]:
        shown = [sample for sample in several.metrics() if sample.name == "sentiment_loop_busy_seconds_total"]
        return {sample.labels["process"]: sample.value for sample in shown}

    def grown() -> dict[str, float]:
        return {name: after - before[name] for name, after in busy_s().items()}

    begun, before = time.monotonic(), busy_s()
    with several.client() as client:
        while not all(grown().values()):
            client.classify("good")
            assert time.monotonic() - begun < PATIENCE_S

    assert set(before) == {"executor", "front-0", "front-1"}
    assert all(before.values())
    # A scrape leaves out a front end that answers too late; the next scrape includes its counts.
    most_s = time.monotonic() - begun + COUNTS_EVERY_S
    assert all(0 < more <= most_s for more in grown().values())


def test_the_series_are_those_of_one_process(several: Server, server: RunningServer) -> None:
    def series(url: str) -> set[str]:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            names = {line.split(" ")[0] for line in response.read().decode().splitlines() if line.startswith("sentiment_")}
        # Without series that name processes, describe the model, or begin with the first call of a method.
        names = {name for name in names if 'method="' not in name or 'method="Classify"' in name}
        return {name for name in names if "_info{" not in name and not name.startswith("sentiment_loop_busy_")}

    assert series(several.url) == series(server.url)


def test_both_front_ends_take_connections(several: Server) -> None:
    """The kernel spreads connections by a hash of their ports: 32 practically never all reach the same process."""
    channels = [grpc.insecure_channel(several.target, [*PLAIN, ("grpc.channel", number)]) for number in range(32)]
    for channel in channels:
        channel.unary_unary("/sentiment.v1.SentimentService/Classify")(pb.ClassifyRequest(text="good").SerializeToString(), timeout=10)

    listening = {several.pid(name): connections(several.pid(name), several.target) for name in ("front-0", "front-1")}

    for channel in channels:
        channel.close()
    assert sum(listening.values()) == 32
    assert all(listening.values())


def connections(pid: int, target: str) -> int:
    """Established connections to the target that the process holds."""
    port = f":{int(target.rpartition(':')[2]):04X}"
    inodes = {
        line.split()[9]
        for file in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]
        if line.split()[1].endswith(port) and line.split()[3] == "01"
    }
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return sum(f"socket:[{inode}]" in held for inode in inodes)
