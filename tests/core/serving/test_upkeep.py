"""The tasks that a process needs: one that ends by itself ends the process, and one that is stopped is awaited."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import structlog

from sentiment.errors import CannotServe, TaskEnded
from sentiment.serving.upkeep import Upkeep
from tests.programs import PATIENCE_S


async def returns() -> None:
    pass


async def raises() -> None:
    raise RuntimeError("broken")


async def is_cancelled_within() -> None:
    raise asyncio.CancelledError


async def cannot_serve() -> None:
    raise CannotServe("the port is taken")


@pytest.mark.parametrize(
    ("work", "error"),
    [(returns, TaskEnded), (raises, TaskEnded), (is_cancelled_within, TaskEnded), (cannot_serve, CannotServe)],
    ids=["returns", "raises", "is cancelled within", "says why"],
)
async def test_a_task_that_ends_by_itself_breaks_the_process_and_is_logged(
    work: Callable[[], Coroutine[Any, Any, None]], error: type[Exception]
) -> None:
    broken = asyncio.Event()
    upkeep = Upkeep(broken)
    with structlog.testing.capture_logs() as logs:
        upkeep.start("watch", work())
        async with asyncio.timeout(PATIENCE_S):
            await broken.wait()

    assert [(line["event"], line["task"]) for line in logs] == [("task_ended", "watch")]
    with pytest.raises(error):
        upkeep.check()


async def test_a_stopped_task_is_awaited_and_breaks_nothing() -> None:
    broken, ended = asyncio.Event(), []

    async def watch(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    upkeep = Upkeep(broken)
    one = upkeep.start("one", watch("one"))
    upkeep.start("two", watch("two"))
    upkeep.start("three", watch("three"))
    await asyncio.sleep(0)
    await upkeep.stop(one)
    assert ended == ["one"]

    await upkeep.stop()

    assert sorted(ended) == ["one", "three", "two"]
    assert not broken.is_set()
    upkeep.check()
