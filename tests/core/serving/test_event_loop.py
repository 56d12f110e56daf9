"""The measured busy time of the event loop."""

import asyncio
import time
from collections.abc import Callable

import pytest

from sentiment.serving import event_loop
from sentiment.serving.app import App
from sentiment.settings import Settings
from tests.conftest import RunningServer

# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 30
WORK_S = 0.1


def busy_while(what: Callable[[], object]) -> tuple[float, float]:
    """Busy seconds of the loop, and seconds that passed."""

    async def measure() -> tuple[float, float]:
        loop = event_loop.running()
        begun, busy_s = time.monotonic(), loop.busy_s
        if asyncio.iscoroutine(done := what()):
            await done
        return loop.busy_s - busy_s, time.monotonic() - begun

    return event_loop.run(measure())


def test_a_loop_that_waits_is_not_busy() -> None:
    busy_s, passed_s = busy_while(lambda: asyncio.sleep(WORK_S))

    assert passed_s >= WORK_S
    assert 0 <= busy_s <= passed_s - 0.9 * WORK_S


def test_a_blocked_loop_is_busy_although_it_uses_no_cpu() -> None:
    busy_s, passed_s = busy_while(lambda: time.sleep(WORK_S))

    assert WORK_S <= busy_s <= passed_s


def test_a_loop_that_never_waits_is_busy() -> None:
    async def hurry() -> None:
        until = time.monotonic() + WORK_S
        while time.monotonic() < until:
            await asyncio.sleep(0)

    busy_s, passed_s = busy_while(hurry)

    assert WORK_S <= busy_s <= passed_s


def test_the_busy_share_is_that_of_the_last_tenth_of_a_second() -> None:
    async def measure() -> list[float]:
        loop, shares = event_loop.running(), []
        for busy in (True, False, True):
            loop.busy_share()
            if busy:
                time.sleep(1.1 * event_loop.SHARE_WINDOW_S)  # noqa: ASYNC251  # blocks the loop on purpose
            else:
                await asyncio.sleep(1.1 * event_loop.SHARE_WINDOW_S)
            shares.append(loop.busy_share())
        return shares

    first, second, third = event_loop.run(measure())

    assert first > 0.95
    assert second < 0.5
    assert third > 0.95


def test_a_server_counts_the_time_in_which_its_loop_was_blocked(server: RunningServer) -> None:
    def busy_s() -> float:
        async def read() -> float:
            return server.metric("sentiment_loop_busy_seconds_total", process="server")

        return asyncio.run_coroutine_threadsafe(read(), server.loop).result(PATIENCE_S)

    before = busy_s()
    server.loop.call_soon_threadsafe(time.sleep, WORK_S)

    assert busy_s() - before >= WORK_S


async def test_a_server_on_a_loop_that_is_not_measured_does_not_start(settings: Settings) -> None:
    with pytest.raises(AssertionError, match=r"not started by event_loop\.run"):
        App(settings)
