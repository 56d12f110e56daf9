"""The FastAPI app in uvicorn, against real servers."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunningServer
from tests.core.grpc.gate import Gate, served_by
from tests.docs.examples.conftest import running
from tests.programs import free_port

Post = Callable[..., tuple[int, Any, Any]]


@pytest.fixture(scope="module")
def backend(settings: Any) -> Iterator[RunningServer]:
    server = RunningServer(settings)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def post(backend: RunningServer, python: Path) -> Iterator[Post]:
    """Send a review to the app: status, body and headers of what comes back."""
    port = free_port()

    def send(text: str, **headers: str) -> tuple[int, Any, Any]:
        head = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/reviews", json.dumps({"text": text}).encode(), head)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), error.headers

    with running(
        [python, "-m", "uvicorn", "web_app:app", "--port", str(port), "--log-level", "warning"], port, SENTIMENT_TARGET=backend.target
    ):
        yield send


def test_an_answer_and_a_bad_text(post: Post) -> None:
    assert post("good")[:2] == (200, {"label": "positive", "score": pytest.approx(0.8808, abs=1e-4), "undecided": False})
    assert post(" ")[0] == 422


def test_the_deadline_of_the_caller_reaches_the_service(post: Post, backend: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(backend, monkeypatch)
    try:
        status, body, _ = post("good", X_Timeout_S="0.3")
    finally:
        gate.open()

    assert status == 504, body
    assert post("good", X_Timeout_S="soon")[0] == 422


def test_a_full_service_is_429_with_the_time_to_come_back(post: Post, backend: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_by(backend).batcher.scheduler, "queue_rows_max", 0)

    status, body, headers = post("good", X_Timeout_S="0.5")

    assert (status, body["detail"]) == (429, "0 rows are waiting; the limit is 0")
    assert int(headers["Retry-After"]) >= 1


def test_an_unreachable_service_is_503(post: Post, backend: RunningServer) -> None:
    backend.stop()

    assert post("good")[0] == 503
