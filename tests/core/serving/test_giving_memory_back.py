"""When freed memory is given back to the system, in virtual time."""

import asyncio
import contextlib

import pytest

from sentiment.serving.memory import LOOK_S, LOOK_S_MAX, WORTH_BYTES, keep_near_least
from tests.virtual_time import VirtualClock, VirtualTimeLoop

LEAST = 3 * 2**28


def trims(seconds: float, extra: int, freed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often memory is given back in some seconds, if the process has ``extra`` bytes more from the second look on.

    ``freed``: what giving back frees of them, the first time.
    """
    calls, looks = 0, 0

    def used() -> int:
        nonlocal looks
        looks += 1
        return LEAST if looks == 1 else LEAST + extra - (freed if calls else 0)

    def trim() -> None:
        nonlocal calls
        calls += 1

    async def at_once(act: object) -> None:
        act()  # type: ignore[operator]  # in place of a thread, which knows no virtual time

    async def run() -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await keep_near_least(used, trim)
        return calls

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(VirtualClock())) as runner:
        return runner.run(run())


def test_memory_is_given_back_once_if_that_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trims(100 * LOOK_S, extra=4 * WORTH_BYTES, freed=4 * WORTH_BYTES, monkeypatch=monkeypatch) == 1
    assert trims(100 * LOOK_S, extra=WORTH_BYTES - 1, freed=0, monkeypatch=monkeypatch) == 0


def test_what_stays_in_use_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # After 20 s and then after 20, 40, 80, 160, 320, 640 and 640 s.
    assert trims(2 * LOOK_S + 126 * LOOK_S + LOOK_S_MAX + 1, extra=4 * WORTH_BYTES, freed=0, monkeypatch=monkeypatch) == 8
