"""TLS, tokens and plaintext health of front ends (gRPC) and the executor (HTTP) are those of one process."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from sentiment.client import Client, Credentials
from tests.conftest import PLAIN
from tests.core.security.authorities import A_DAY, Authority, Mounted, mounted_pair
from tests.core.security.test_doors import OTHER, TOKEN, code_of, fetch, health
from tests.core.servers import Server, until

AUTHORITY = Authority()


@pytest.fixture
def tls(tmp_path: Path) -> Mounted:
    return mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)


@pytest.fixture
def secured(bundles: Path, tmp_path: Path, tls: Mounted) -> Iterator[Server]:
    (tmp_path / "tokens").write_text(f"shop:{TOKEN}")
    files = ("--tls-cert-file", str(tls / "tls.crt"), "--tls-key-file", str(tls / "tls.key"), "--auth-tokens", str(tmp_path / "tokens"))
    server = Server(bundles, "--front-ends", "2", *files, "--health-listen", "127.0.0.1:0", "--reload-s", "0.05")
    yield server.wait_ready()
    server.end()


def shown(server: Server, name: str) -> Any:
    return next(line for line in server.lines if line["event"] == "ready")[name]


def test_front_ends_need_tls_and_a_token_and_reload_both(secured: Server, tls: Mounted, tmp_path: Path) -> None:
    ca = tmp_path / "trusted.crt"
    ca.write_bytes(AUTHORITY.certificate)

    def code(**credentials: Any) -> grpc.StatusCode:
        return code_of(Client(secured.target, credentials=Credentials(**credentials), options=PLAIN, timeout_s=10))

    def explained() -> bool:
        # Forwarded to the executor, without the token.
        with Client(secured.target, credentials=Credentials(ca_file=str(ca), token=TOKEN), options=PLAIN, timeout_s=10) as client:
            return client.get_model().id.name == "tiny"

    assert code(ca_file=str(ca), token=TOKEN) is grpc.StatusCode.OK
    assert explained()
    assert code(ca_file=str(ca), token=OTHER) is grpc.StatusCode.UNAUTHENTICATED
    assert code() is grpc.StatusCode.UNAVAILABLE
    assert health(shown(secured, "health")) == health_pb2.HealthCheckResponse.SERVING
    https = "https://" + shown(secured, "http")
    trusted = Credentials(ca_file=str(ca))
    assert fetch(https + "/v1/models", trusted)[0] == 401
    assert fetch(https + "/v1/models", trusted, authorization=f"Bearer {TOKEN}")[0] == 200
    # One call, and one try at HTTP: front ends count for all.
    assert b'sentiment_unauthenticated_total{transport="grpc"} 1.0' in fetch(https + "/metrics", trusted)[1]

    # Whichever process answers: a front end, the executor for it, or its HTTP.
    assert fetch(https + "/v1/classify", trusted, b'{"text": "a good film"}', authorization=f"Bearer {TOKEN}")[0] == 200
    with Client(secured.target, credentials=Credentials(ca_file=str(ca), token=TOKEN), options=PLAIN, timeout_s=10) as client:
        client.classify("a good film")
    assert until(lambda: b'sentiment_caller_items_total{caller="shop",code="OK"} 3.0' in fetch(https + "/metrics", trusted)[1])
    assert re.search(rb'sentiment_caller_work_seconds_total{caller="shop"} 0\.0*[1-9]', fetch(https + "/metrics", trusted)[1])
    assert b'sentiment_caller_requests_total{caller="unnamed",code="OK"} 0.0' in fetch(https + "/metrics", trusted)[1]

    pair = AUTHORITY.sign(lasts=2 * A_DAY)
    tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate)
    (tmp_path / "next").write_text(OTHER)
    (tmp_path / "next").rename(tmp_path / "tokens")
    for name in ("executor", "front-0", "front-1"):
        for files in ("tls", "tokens"):
            secured.wait_for("reloaded", process=name, files=files)

    assert code(ca_file=str(ca), token=OTHER) is grpc.StatusCode.OK
    assert code(ca_file=str(ca), token=TOKEN) is grpc.StatusCode.UNAUTHENTICATED

    secured.process.terminate()
    assert secured.finish() == 0
    assert all("drained" in secured.events(name) for name in (None, "executor", "front-0", "front-1"))
