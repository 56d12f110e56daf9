"""Triton's own client and load generator against our server."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentiment_tools.loadtest.drivers import Answer, Target
from sentiment_tools.loadtest.mix import Call
from sentiment_tools.loadtest.oip_driver import OipDriver
from sentiment_tools.loadtest.results import OK
from tests.conftest import RunningServer
from tests.core.grpc.test_oip import positive
from tests.core.lifecycle.conftest import TOKEN, Exchanging, exchanging, hasty, make_version, root

__all__ = ["exchanging", "hasty", "root"]

CALLS = Path(__file__).parent / "triton_calls.py"
EXCHANGES = Path(__file__).parent / "triton_admin.py"


@pytest.mark.usefixtures("hasty")
def test_tritonclient_exchanges_models_at_the_admin_port(exchanging: Callable[..., Exchanging], root: Path, tritonclient: Path) -> None:
    server = exchanging()
    make_version(root, 2)

    command = [tritonclient, EXCHANGES, f"127.0.0.1:{server.app._exchange.port}", TOKEN]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["stranger"] == "StatusCode.UNAUTHENTICATED"
    assert (found["before"]["tiny/1"], found["loaded"]["tiny/2"]) == ("READY", "READY")
    assert found["unloaded"]["tiny/1"] != "READY"
    with server.client() as client:
        assert client.classify("good").model.version == 2


def asked_of(tritonclient: Path, protocol: str, target: str) -> dict[str, Any]:
    """What both protocols answer alike; the rest is returned."""
    ran = subprocess.run([tritonclient, CALLS, protocol, target], capture_output=True, text=True, timeout=120, check=False)

    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["ready"] == [True, True, True, False]
    assert (found["model"]["versions"], [one["name"] for one in found["model"]["outputs"]]) == (["1"], ["label", "score", "scores"])
    assert found["infer"]["label"] == found["asynchronous"]["label"] == ["positive", "negative", "positive"]
    assert found["infer"]["score"] == pytest.approx([positive(1), positive(1), positive(2)], abs=1e-6)
    assert [row[1] for row in found["infer"]["scores"]] == pytest.approx([positive(1), positive(-1), positive(2)], abs=1e-6)
    assert found["in_time"] == "OK"
    return found


def test_tritonclient_finds_what_it_looks_for(server: RunningServer, tritonclient: Path) -> None:
    found = asked_of(tritonclient, "grpc", server.target)

    assert found["server"]["name"] == "sentiment"
    described = found["config"]["config"]["input"]
    assert [(one["name"], one["data_type"], one["dims"]) for one in described] == [("text", "TYPE_STRING", ["-1"])]
    assert found["unknown"].startswith("StatusCode.NOT_FOUND")
    assert found["classification"].startswith("StatusCode.INVALID_ARGUMENT")


def test_tritonclient_finds_the_same_over_http(server: RunningServer, tritonclient: Path) -> None:
    found = asked_of(tritonclient, "http", server.url.removeprefix("http://"))

    assert found["server"]["extensions"] == ["binary_tensor_data", "model_configuration"]
    assert found["config"]["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}]
    for form in ("json", "mixed", "pooled"):
        assert found[form]["label"] == found["infer"]["label"], form
        assert found[form].get("scores", found["infer"]["scores"]) == pytest.approx(np.array(found["infer"]["scores"]), abs=1e-6)
    assert found["id"] == "7"
    assert found["late"] == "504"
    assert found["unknown"] == "404: model 'nosuch' is not loaded; loaded are tiny/1"
    assert found["classification"] == "400: outputs[0].parameters: has classification, which this server does not support"


async def test_our_own_load_tester_drives_us_as_it_drives_others(server: RunningServer) -> None:
    driver = OipDriver(Target(server.target, "oip", "tiny"))
    try:
        assert await driver.connect() == {"model": "tiny/1", "platform": "onnxruntime_onnx"}
        assert await driver.call(Call(("good", "bad"), "interactive", 20.0), 20.0) == Answer(OK, texts_ok=2)
    finally:
        await driver.close()
