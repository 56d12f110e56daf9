"""Node's client, which knows us by the proto files and the service config alone."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from sentiment.call.names import SERVICE
from sentiment.client.policy import ATTEMPTS_MAX
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer
from tests.core.grpc.test_oip import positive
from tests.core.interop.foreign import PROTO, run

CALLS = Path(__file__).parent / "node_calls.js"
PUSHBACK_MS = 20
ASK_ONCE = """
const [protos, target] = process.argv.slice(1), fs = require('fs'), grpc = require('@grpc/grpc-js'), loader = require('@grpc/proto-loader');
const definition = loader.loadSync('sentiment/v1/sentiment.proto', {includeDirs: [protos]});
const config = fs.readFileSync(`${protos}/sentiment/v1/service_config.json`, 'utf8');
const {SentimentService} = grpc.loadPackageDefinition(definition).sentiment.v1;
const client = new SentimentService(target, grpc.credentials.createInsecure(), {'grpc.service_config': config});
client.Classify({text: 'good'}, {deadline: Date.now() + 20000}, (error) => { console.log(error ? error.code : 0); client.close(); });
"""


def answered(server: RunningServer, method: str) -> float:
    return server.metric("sentiment_requests_total", method=method, code="OK", model="tiny/1")


@pytest.mark.needs_tool("node")
@pytest.mark.needs_tool("proto-loader-gen-types")
def test_node_calls_everything_in_turn_over_two_servers(start: Callable[..., RunningServer]) -> None:
    servers = [start(), start()]

    found = json.loads(run(["node", CALLS, PROTO, "ipv4:" + ",".join(server.target for server in servers)]))

    assert found["labels"] == ["positive"] * 60
    # In turn from when the second is connected.
    assert sum(answered(server, "Classify") for server in servers) == 60
    assert min(answered(server, "Classify") for server in servers) > 0
    assert found["batch"] == ["negative", 3]
    assert found["stream"] == {"0": "positive", "1": 3, "2": "negative"}
    assert found["scores"] == pytest.approx([positive(1), positive(1)], abs=1e-6)
    assert found["ready"] is True
    code, message, details = found["wrong"]
    assert (code, details) == (3, 1)
    assert message.startswith("text: has 0 characters")
    assert found["late"][0] == 4


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """A server that is full, says when to come back, and answers the last attempt; and the attempts that it saw."""
    seen: list[str] = []

    def classify(_request: bytes, context: grpc.ServicerContext) -> bytes:
        attempt = dict(context.invocation_metadata()).get("grpc-previous-rpc-attempts", "0")
        seen.append(str(attempt))
        if len(seen) < ATTEMPTS_MAX:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(PUSHBACK_MS)),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        return pb.ClassifyResponse().SerializeToString()

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Classify": grpc.unary_unary_rpc_method_handler(classify)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", seen
    server.stop(0)


@pytest.mark.needs_tool("node")
@pytest.mark.needs_tool("proto-loader-gen-types")
def test_node_retries_when_the_server_says(refusing: tuple[str, list[str]]) -> None:
    target, seen = refusing

    code = run(["node", "-e", ASK_ONCE, PROTO, target]).strip()

    assert code == "0"
    assert seen == ["0", "1", "2", "3"]
