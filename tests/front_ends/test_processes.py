"""What the processes do besides serving: exit codes and the collection of counts."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.errors import BadBundle, BadSettings, CannotServe, RunnerLost, SentimentError, TaskEnded
from sentiment.serving import event_loop
from sentiment.settings import Settings
from sentiment_front_ends import __main__ as entry
from sentiment_front_ends import executor as module
from sentiment_front_ends.executor import Executor
from sentiment_front_ends.front_end import FrontEnd
from sentiment_front_ends.handshake import EXECUTOR, Start
from sentiment_front_ends.supervisor import BAD_BUNDLE, CANNOT_SERVE, FAILED, WRONG_SETTINGS


async def test_counts_are_collected_without_a_scrape_and_a_failure_does_not_end_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTS_EVERY_S", 0.001)
    collected: list[int] = []

    async def collect() -> None:
        collected.append(1)
        if len(collected) == 1:
            raise RuntimeError("broken")

    executor: Any = SimpleNamespace(_front_ends=SimpleNamespace(collect=collect))
    with capture_logs() as logs:
        collecting = asyncio.create_task(Executor._collect(executor))
        async with asyncio.timeout(30):
            while len(collected) < 3:
                await asyncio.sleep(0.001)
        collecting.cancel()

    assert [line["event"] for line in logs] == ["collect_failed"]


@pytest.mark.parametrize(
    ("name", "error", "code", "logged"),
    [
        # ``app.serve`` logs the executor's other errors, and a task's end is logged where it ends.
        (EXECUTOR, BadBundle("broken"), BAD_BUNDLE, False),
        (EXECUTOR, CannotServe("HTTP cannot listen"), CANNOT_SERVE, False),
        (EXECUTOR, RunnerLost("lost"), FAILED, False),
        (EXECUTOR, BadSettings("no such file"), WRONG_SETTINGS, True),
        (EXECUTOR, TaskEnded("ended"), FAILED, False),
        ("front-0", TaskEnded("ended"), FAILED, False),
        ("front-0", BadSettings("no such file"), WRONG_SETTINGS, True),
        ("front-0", BadBundle("replaced"), BAD_BUNDLE, True),
        ("front-0", CannotServe("gRPC cannot listen"), CANNOT_SERVE, True),
    ],
)
def test_a_process_that_fails_exits_with_the_code_of_its_error_and_logs_it_once(
    monkeypatch: pytest.MonkeyPatch, name: str, error: SentimentError, code: int, logged: bool
) -> None:
    def fail(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise error

    monkeypatch.setattr(entry, "read_start", lambda: Start(name, Path("/nosuch"), Settings()))
    monkeypatch.setattr(entry, "leave_with_supervisor", lambda _: None)
    monkeypatch.setattr(entry.logs, "configure_server", lambda *_: None)
    monkeypatch.setattr(entry.event_loop, "run", fail)

    with capture_logs() as logs:
        assert entry.main() == code

    assert [line["reason"] for line in logs if line["event"] == "cannot_serve"] == [str(error)] * logged


def test_a_front_end_with_unusable_files_does_not_start(tmp_path: Path) -> None:
    settings = Settings(grpc_listen="127.0.0.1:0", tls_cert_file="/nosuch.crt", tls_key_file=os.devnull, front_ends=1)

    async def begin() -> None:
        FrontEnd(Start("front-0", tmp_path, settings))

    with pytest.raises(BadSettings, match=r"tls_cert_file = '/nosuch.crt': cannot be read"):
        event_loop.run(begin())
