"""The supervisor, with stand-ins for the executor and a front end that die, hang or ignore signals."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.settings import Settings
from sentiment_front_ends import supervisor as module
from sentiment_front_ends.handshake import EXECUTOR, Start
from sentiment_front_ends.supervisor import (
    BAD_BUNDLE,
    CANNOT_SERVE,
    COMMAND,
    DEATHS_MAX,
    FAILED,
    WRONG_SETTINGS,
    Supervisor,
)

PATIENCE_S = 30
# Sends one heartbeat.
BEATS_ONCE = "import os, time; os.write(1, b'.'); time.sleep(600)"
DEAF = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(f'{folder}/{{os.getpid()}}', 'w'); time.sleep(600)"
DIES = "raise SystemExit(1)"
WORKS_AND_DIES = "import os; os.write(1, b'.'); raise SystemExit(1)"


def settings(**more: Any) -> Settings:
    return Settings(grpc_listen="127.0.0.1:0", drain_wait_s=0, drain_grace_s=0, front_ends=1, **more)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervisor]:
    def make(code: str, **more: Any) -> Supervisor:
        monkeypatch.setattr(module, "COMMAND", (sys.executable, "-S", "-c", code))
        monkeypatch.setattr(module, "REPLACE_S", 0.001)
        return Supervisor(settings(**more))

    return make


async def run(supervisor: Supervisor) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return await supervisor.run()


async def started(logs: list[Any], processes: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while sum(line["event"] == "process_started" for line in logs) < processes:
            await asyncio.sleep(0.005)


async def test_a_process_without_heartbeats_is_killed_and_replaced(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    supervisor = stand_in(BEATS_ONCE, stall_s=0.1)

    with capture_logs() as logs:
        code = await run(supervisor)

    silent = [line for line in logs if line["event"] == "process_unresponsive"]
    assert code == FAILED
    # One of them was replaced until it was given up.
    assert len(silent) >= DEATHS_MAX
    assert {line["code"] for line in logs if line["event"] == "process_ended"} == {-signal.SIGKILL}


async def test_a_process_that_ignores_the_signal_is_killed_after_the_grace(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.2)
    supervisor = stand_in(DEAF.format(folder=tmp_path))

    with capture_logs() as logs:
        running = asyncio.create_task(run(supervisor))
        async with asyncio.timeout(PATIENCE_S):
            while len(os.listdir(tmp_path)) < 2:
                await asyncio.sleep(0.005)
        signal.raise_signal(signal.SIGTERM)
        code = await running

    assert code == FAILED
    assert {"processes_killed", "drain_incomplete"} <= {line["event"] for line in logs}


@pytest.mark.parametrize(("code", "deaths"), [(DIES, DEATHS_MAX), (WORKS_AND_DIES, 3 * DEATHS_MAX)])
async def test_failed_starts_in_a_row_end_the_server_however_far_apart(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, code: str, deaths: int
) -> None:
    monkeypatch.setattr(module, "DEATHS_S", -1.0)
    supervisor = stand_in(code)

    with capture_logs() as logs:
        running = asyncio.create_task(run(supervisor))
        await started(logs, deaths)
        if code is WORKS_AND_DIES:
            assert not running.done()
            signal.raise_signal(signal.SIGTERM)
        ended = await running

    given_up = [line for line in logs if line["event"] == "process_ended" and not line["replaced"]]
    assert bool(given_up) is (code is DIES)
    assert code is WORKS_AND_DIES or ended == FAILED


@pytest.mark.parametrize(("first", "lives"), [((WRONG_SETTINGS, False), 1), ((-signal.SIGKILL, True), DEATHS_MAX)])
async def test_wrong_settings_end_a_server_at_once_only_if_its_process_has_never_worked(
    monkeypatch: pytest.MonkeyPatch, first: tuple[int, bool], lives: int
) -> None:
    """Afterwards, files may be unusable only for the moment in which they are replaced."""
    lived: list[str] = []

    async def live(supervisor: Supervisor, start: Start) -> tuple[int, bool]:
        if start.name == EXECUTOR:
            await supervisor._stop.wait()
            return 0, True
        lived.append(start.name)
        return first if len(lived) == 1 else (WRONG_SETTINGS, False)

    monkeypatch.setattr(Supervisor, "_live", live)
    monkeypatch.setattr(module, "REPLACE_S", 0.001)

    assert await run(Supervisor(settings())) == WRONG_SETTINGS
    assert len(lived) == lives


async def test_a_process_that_works_but_dies_too_often_ends_the_server(stand_in: Callable[..., Supervisor]) -> None:
    with capture_logs() as logs:
        code = await run(stand_in(WORKS_AND_DIES))

    deaths = [line for line in logs if line["event"] == "process_ended"]
    assert code == FAILED
    assert max(sum(line["ended"] == name for line in deaths) for name in (EXECUTOR, "front-0")) == DEATHS_MAX


async def test_a_process_that_cannot_be_started_is_retried(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = stand_in("")
    monkeypatch.setattr(module, "COMMAND", ("/nonexistent",))

    with capture_logs() as logs:
        code = await run(supervisor)

    assert code == FAILED
    assert sum(line["event"] == "process_not_started" for line in logs) >= DEATHS_MAX
    # Not necessarily the last line: the other process may have been tried once more.
    assert sum(line["event"] == "process_ended" and not line["replaced"] for line in logs) >= 1


@pytest.mark.parametrize(
    ("code", "of_server"), [(WRONG_SETTINGS, WRONG_SETTINGS), (BAD_BUNDLE, BAD_BUNDLE), (CANNOT_SERVE, FAILED), (FAILED, FAILED)]
)
async def test_the_server_ends_with_the_code_of_a_process_that_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, code: int, of_server: int
) -> None:
    async def live(_supervisor: Supervisor, _start: Start) -> tuple[int, bool]:
        return code, False

    monkeypatch.setattr(Supervisor, "_live", live)
    monkeypatch.setattr(module, "REPLACE_S", 0.001)

    assert await run(Supervisor(settings())) == of_server


@pytest.mark.parametrize(("age_s", "expected"), [(0.0, (300.0, 3600.0)), (7.0, (7.0, 2.0))])
async def test_connections_are_renewed_so_that_front_ends_share_them(
    monkeypatch: pytest.MonkeyPatch, age_s: float, expected: tuple[float, float]
) -> None:
    seen: list[Settings] = []

    async def live(_: Supervisor, start: Start) -> tuple[int, bool]:
        seen.append(start.settings)
        return BAD_BUNDLE, False

    monkeypatch.setattr(Supervisor, "_live", live)

    assert await run(Supervisor(settings(connection_age_max_s=age_s, connection_age_grace_s=2.0))) == BAD_BUNDLE
    assert {(one.connection_age_max_s, one.connection_age_grace_s) for one in seen} == {expected}


def test_code_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    package = tmp_path / "sentiment" / "front_ends"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py", package / "__main__.py"):
        file.write_text("print('run')\n")

    found = subprocess.run(COMMAND, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert found.stdout == ""
    assert "the supervisor has ended" in found.stderr
