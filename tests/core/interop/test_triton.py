"""Triton's own client and load generator against our server."""

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment_tools.loadtest.drivers import Answer, Target
from sentiment_tools.loadtest.mix import Call
from sentiment_tools.loadtest.oip_driver import OipDriver
from sentiment_tools.loadtest.results import OK
from tests.conftest import RunningServer
from tests.core.lifecycle.conftest import TOKEN, Exchanging, exchanging, hasty, make_version, root

__all__ = ["exchanging", "hasty", "root"]

CALLS = Path(__file__).parent / "triton_calls.py"
HTTP_CALLS = Path(__file__).parent / "triton_http_calls.py"
EXCHANGES = Path(__file__).parent / "triton_admin.py"


def positive(weight: float) -> float:
    return 1 / (1 + math.exp(-2 * weight))


def test_tritonclient_finds_what_it_looks_for(server: RunningServer, tritonclient: Path) -> None:
    ran = subprocess.run([tritonclient, CALLS, server.target], capture_output=True, text=True, timeout=120, check=False)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["ready"] == [True, True, True, False]
    assert found["server"]["name"] == "sentiment"
    assert (found["model"]["versions"], [one["name"] for one in found["model"]["outputs"]]) == (["1"], ["label", "score", "scores"])
    assert [(one["name"], one["data_type"], one["dims"]) for one in found["config"]["input"]] == [("text", "TYPE_STRING", ["-1"])]
    assert found["infer"]["label"] == found["asynchronous"]["label"] == ["positive", "negative", "positive"]
    assert found["infer"]["score"] == pytest.approx([positive(1), positive(1), positive(2)], abs=1e-6)
    assert [row[1] for row in found["infer"]["scores"]] == pytest.approx([positive(1), positive(-1), positive(2)], abs=1e-6)
    assert found["in_time"] == "OK"
    assert found["unknown"] == "StatusCode.NOT_FOUND"
    assert found["classification"] == "StatusCode.INVALID_ARGUMENT"


def test_tritonclient_finds_the_same_over_http(server: RunningServer, tritonclient: Path) -> None:
    target = server.url.removeprefix("http://")

    ran = subprocess.run([tritonclient, HTTP_CALLS, target], capture_output=True, text=True, timeout=120, check=False)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["ready"] == [True, True, True, False]
    assert found["server"]["extensions"] == ["binary_tensor_data", "model_configuration"]
    assert (found["model"]["versions"], [one["name"] for one in found["model"]["outputs"]]) == (["1"], ["label", "score", "scores"])
    assert found["config"]["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}]
    for form in ("binary", "json", "mixed", "pooled", "asynchronous"):
        assert found[form]["label"] == ["positive", "negative", "positive"], form
        if "scores" in found[form]:
            assert [row[1] for row in found[form]["scores"]] == pytest.approx([positive(1), positive(-1), positive(2)], abs=1e-6)
    assert found["id"] == "7"
    assert found["in_time"] == "OK"
    assert found["late"] == "504"
    assert found["unknown"] == "404: model 'nosuch' is not loaded; loaded are tiny/1"
    assert found["classification"] == "400: outputs[0].parameters: has classification, which this server does not support"


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


async def test_our_own_load_tester_drives_us_as_it_drives_others(server: RunningServer) -> None:
    driver = OipDriver(Target(server.target, "oip", "tiny"))
    try:
        assert await driver.connect() == {"model": "tiny/1", "platform": "onnxruntime_onnx"}
        assert await driver.call(Call(("good", "bad"), "interactive", 20.0), 20.0) == Answer(OK, texts_ok=2)
    finally:
        await driver.close()
