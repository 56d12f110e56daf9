"""A wall clock that jumps"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import Client, Credentials
from tests.conftest import PLAIN
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.wall_clock import WallClock
from tests.core.security.authorities import Authority, mounted_pair
from tests.core.servers import PATIENCE_S, Server
from tests.tiny import make_bundle

# How many hours the server's wall clock is off, in turn.
OFF_H = (5, -5, 0)
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.mark.needs_tool("gcc")
def test_the_wall_clock_jumps_five_hours_ahead_and_ten_back(serve: Callable[..., Server], evidence: Evidence, tmp_path: Path) -> None:
    """All calls, model changes and valid certificates work.

    Under load, the wall clock of a server with TLS and a watched model folder is set 5 h ahead, then 10 h back, then right again (by a
    preloaded library). Callers have deadlines of 5 s, a health watch has 10 min. After each jump there is a new version of the model and a
    new caller; after the first two also a new certificate. By the clock that is behind, the second certificate is not valid yet: the
    previous one stays in use until the clock is right.
    """
    clock, authority, bundles = WallClock(tmp_path), Authority(), tmp_path / "bundles"
    make_bundle(bundles)
    tls = mounted_pair(tmp_path / "tls", authority.sign(), authority)
    (tmp_path / "ca").write_bytes(authority.certificate)
    credentials = Credentials(ca_file=str(tmp_path / "ca"))
    secured = ("--tls-cert-file", str(tls / "tls.crt"), "--tls-key-file", str(tls / "tls.key"), "--reload-s", "0.1")
    watched = ("--bundles", str(bundles), "--models-watch-s", "0.1")
    server = serve(*secured, *watched, "--health-listen", "127.0.0.1:0", environment=clock.environment)
    reason = f"tls_cert_file = '{tls / 'tls.crt'}': a client would not accept it: certificate is not yet valid"
    statuses: list[int | grpc.StatusCode] = []
    off_h = []
    health = grpc.insecure_channel(server.wait_for("ready")["health"], PLAIN)
    with health, Callers(server.target, credentials=credentials, channels=4, pause_s=0.005) as callers:
        watch = health_pb2_grpc.HealthStub(health).Watch(health_pb2.HealthCheckRequest(), timeout=600)
        watch.add_done_callback(lambda ended: statuses.append(ended.code()))
        statuses.append(next(watch).status)
        callers.wait(100)
        for version, hours in enumerate(OFF_H, 2):
            clock.set(hours)
            callers.wait(100)
            if hours:
                pair = authority.sign()
                tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=authority.certificate)
            if hours < 0:
                server.wait_for("not_reloaded", reason=reason)
            else:
                server.wait_for("reloaded", 1 if hours else 2)
            make_bundle(bundles, version=version)
            line = server.wait_for("model_in_use", model=f"tiny/{version}")
            off_h.append((datetime.fromisoformat(line["timestamp"]) - datetime.now(UTC)) / timedelta(hours=1))
            callers.wait(100)
            with Client(server.target, credentials=credentials) as newcomer:
                assert newcomer.classify("good", timeout_s=PATIENCE_S).model.version == version
            check = health_pb2_grpc.HealthStub(health).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            assert check.status == SERVING
        assert statuses == [SERVING]

    evidence.judge(callers.fates)
    evidence.measured["longest call, ms"] = round(callers.fates.seconds(1) * 1e3, 1)
    # The timestamps in the log show that the clock did jump.
    assert [round(hours) for hours in off_h] == list(OFF_H)
