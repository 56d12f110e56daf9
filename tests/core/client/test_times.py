"""Times that callers of the clients give: an invalid one is refused before anything is sent."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from sentiment.client import AsyncClient, CallFailed, Client
from tests.conftest import RunningServer

NO_TIMES = [math.inf, math.nan, 1e10, 1e18, -1, 0]
CALLS: list[Callable[[Any, float], Any]] = [
    lambda client, time_s: client.classify("good", timeout_s=time_s),
    lambda client, time_s: client.classify(["good"], timeout_s=time_s),
    lambda client, time_s: client.classify_batch(["good"], timeout_s=time_s),
    lambda client, time_s: client.classify_all(["good"], timeout_s=time_s),
    lambda client, time_s: client.explain("good", timeout_s=time_s),
    lambda client, time_s: client.explain_all(["good"], timeout_s=time_s),
    lambda client, time_s: client.list_models(timeout_s=time_s),
    lambda client, time_s: client.get_model(timeout_s=time_s),
    lambda client, time_s: client.feedback("positive", "good", timeout_s=time_s),
]


def test_a_client_refuses_times_that_no_call_can_take() -> None:
    for time_s in NO_TIMES:
        with pytest.raises(ValueError, match=r"timeout_s must be more than 0 and at most 86400 seconds \(a day\), got"):
            Client("127.0.0.1:1", timeout_s=time_s)
        if time_s != 0:
            with pytest.raises(ValueError, match="wait_s must be at least 0 and at most 86400 seconds"):
                Client("127.0.0.1:1", wait_s=time_s)
    for other in (None, "x"):
        with pytest.raises(TypeError, match="wait_s must be a number of seconds, got "):
            Client("127.0.0.1:1", wait_s=other)  # type: ignore[arg-type]  # that is what it tests


@pytest.mark.parametrize("call", CALLS)
def test_every_method_refuses_such_times(call: Callable[[Any, float], Any]) -> None:
    with Client("127.0.0.1:1") as client:
        for time_s in NO_TIMES:
            with pytest.raises(ValueError, match="timeout_s must be more than 0"):
                call(client, time_s)


@pytest.mark.parametrize("name", ["timeout_s", "item_timeout_s"])
async def test_a_stream_refuses_such_times(name: str) -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ValueError, match=f"^{name} must be more than 0"):
            await anext(aiter(client.classify_stream(None, **{name: math.inf})))  # type: ignore[arg-type]  # it is not reached


def test_a_timeout_that_is_shorter_than_any_answer_is_called_too_short(server: RunningServer) -> None:
    said = "the timeout of 0.01 ms is too short for any answer; give the call more time"
    with server.client() as client:
        for call in CALLS[:1] + CALLS[4:5]:
            with pytest.raises(CallFailed) as of_client:
                call(client, 1e-5)
            assert of_client.value.message == said
        with pytest.raises(CallFailed) as first:
            raise next(client.classify_all(["good"], timeout_s=1e-5, attempts_max=1))  # type: ignore[misc]  # it has failed
        assert first.value.message == said
