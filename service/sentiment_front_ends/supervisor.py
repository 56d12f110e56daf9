"""The supervisor: starts the executor and the front ends, and replaces those that die or hang, until a signal stops it.

It serves nothing itself and loads neither gRPC nor a model. If it dies, even by SIGKILL, the other processes exit (see ``handshake``).
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from sentiment.doors.listening import reserved
from sentiment.errors import BadSettings, CannotServe
from sentiment.observability.journal_files import held
from sentiment.observability.logs import logger, wait_written
from sentiment.serving import signals
from sentiment.settings import Settings
from sentiment_front_ends.handshake import BEAT_S, EXECUTOR, Start, front_ends

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "sentiment_front_ends")
# Exit codes of a process. Those in FINAL would come again from its replacement, except WRONG_SETTINGS after the process has worked: then
# a file is unusable for the moment.
FAILED, WRONG_SETTINGS, BAD_BUNDLE, CANNOT_SERVE = 1, 2, 3, 4
FINAL = (WRONG_SETTINGS, BAD_BUNDLE, CANNOT_SERVE)
# A process is not replaced after this many deaths within this many seconds, or this many in a row before it worked: the fault is
# permanent.
DEATHS_MAX = 5
DEATHS_S = 60.0
# Longer than any startup, including making graphs and measuring a grid of batches on a GPU.
START_S = 1800.0
# Delay before a replacement; doubles with each death within DEATHS_S.
REPLACE_S = 0.1
# Connections are spread over the front ends when they open, so without an age limit the load may stay uneven. Streams are cut after the
# grace.
CONNECTION_AGE_S = 300.0
CONNECTION_GRACE_S = 3600.0
# Added to the time that a drain may take, before the processes are killed.
LEAVE_S = 10.0
# Limit of the length of a Unix socket's path.
PATH_MAX = 100


def supervise(settings: Settings) -> int:
    """Run the server as several processes until SIGTERM or SIGINT has drained it; returns the exit code.

    Raises:
        CannotServe: the port is taken, or there is no folder for the sockets.
        BadSettings: another server has the journal's folder, or it cannot be used.
    """
    try:
        return asyncio.run(Supervisor(settings).run())
    except (BadSettings, CannotServe) as error:
        logger().error("cannot_serve", reason=str(error))
        raise


class Supervisor:
    """The processes of one server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = logger()
        self._stop = asyncio.Event()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        # Those that have sent a heartbeat. Before, a process may not handle signals yet, which would end it.
        self._working: set[str] = set()
        # Those that are to reload their files once they work.
        self._behind: set[str] = set()

    async def run(self) -> int:
        """Keep all processes running until a stop; returns the exit code."""
        signals.handle(self._on_stop, self._reload)
        probed = self._settings.health_listen if self._settings.tls_cert_file else ""
        with (
            held(self._settings.journal) as let_next_in,
            reserved("grpc_listen", self._settings.grpc_listen, True) as address,
            reserved("health_listen", probed, True) as health,
            _folder() as folder,
        ):
            changes: dict[str, object] = {"grpc_listen": address, "health_listen": health}
            if not self._settings.connection_age_max_s:
                changes |= {"connection_age_max_s": CONNECTION_AGE_S, "connection_age_grace_s": CONNECTION_GRACE_S}
            settings = self._settings.model_copy(update=changes)
            names = [EXECUTOR, *front_ends(settings)]
            keeping = {asyncio.create_task(self._keep(Start(name, folder, settings))) for name in names}
            stopping = asyncio.create_task(self._stop.wait())
            # If a process is given up, stop the server: it is incomplete.
            await asyncio.wait({stopping, *keeping}, return_when=asyncio.FIRST_COMPLETED)
            given_up = [task.result() for task in keeping if task.done()]
            self._stop.set()
            let_next_in()
            codes = await self._end(keeping)
        if given_up:
            return given_up[0] if given_up[0] in (WRONG_SETTINGS, BAD_BUNDLE) else FAILED
        clean = codes <= {0, -signal.SIGTERM}
        self._log.info("drained") if clean else self._log.error("drain_incomplete", codes=sorted(codes))
        return 0 if clean else FAILED

    async def _keep(self, start: Start) -> int:
        """Run a process and replace it when it ends; returns the exit code of the last one, which is not replaced."""
        deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        failed_starts, has_worked = 0, False
        while True:
            code, worked = await self._live(start)
            if self._stop.is_set():
                return code
            deaths.append(time.monotonic())
            recent = sum(at > deaths[-1] - DEATHS_S for at in deaths)
            failed_starts = 0 if worked else failed_starts + 1
            has_worked = has_worked or worked
            final = code in FINAL and not (code == WRONG_SETTINGS and has_worked)
            replaced = not final and max(recent, failed_starts) < DEATHS_MAX
            self._log.error("process_ended", ended=start.name, code=code, replaced=replaced)
            if not replaced:
                return code
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLACE_S * 2 ** (recent - 1)):
                    await self._stop.wait()
                    return 0

    async def _live(self, start: Start) -> tuple[int, bool]:
        """Start a process and wait for its end.

        Returns:
            Its exit code (negative: the signal that ended it), and whether it has ever worked.
        """
        pipe = asyncio.subprocess.PIPE
        try:
            # -P: do not import from the working directory. New session: Ctrl-C in a terminal must reach only this process, which
            # signals the others.
            process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:
            self._log.error("process_not_started", started=start.name, reason=str(error))
            return FAILED, False
        self._processes[start.name] = process
        self._log.info("process_started", started=start.name, pid=process.pid)
        if self._stop.is_set():
            _signal(process, signal.SIGTERM)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(start.line())
            await process.stdin.drain()
        worked = await self._hear(start.name, process)
        code = await process.wait()
        del self._processes[start.name]
        self._working.discard(start.name)
        return code, worked

    async def _hear(self, name: str, process: asyncio.subprocess.Process) -> bool:
        """Read a process's heartbeats until it ends; kill it if they stop. Returns whether it has worked."""
        assert process.stdout is not None
        worked, missed, limit_s = False, 0, START_S
        # Two waits of half the limit: if this process itself was stopped, the second wait reads the beats sent meanwhile.
        while missed < 2:
            try:
                async with asyncio.timeout(limit_s / 2):
                    if not await process.stdout.read(2**10):
                        return worked
                worked, missed, limit_s = True, 0, self._settings.stall_s + 2 * BEAT_S
                self._working.add(name)
                if name in self._behind:
                    self._behind.discard(name)
                    _signal(process, signal.SIGHUP)
            except TimeoutError:
                missed += 1
        self._log.error("process_unresponsive", unresponsive=name, seconds=limit_s)
        _signal(process, signal.SIGKILL)
        return worked

    async def _end(self, keeping: set["asyncio.Task[int]"]) -> set[int]:
        """Drain all processes and kill those that do not end in time; returns the exit codes."""
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
        limit_s = self._settings.drain_wait_s + self._settings.drain_grace_s + LEAVE_S
        _, late = await asyncio.wait(keeping, timeout=limit_s)
        if late:
            self._log.error("processes_killed", processes=sorted(self._processes), seconds=limit_s)
            for process in self._processes.values():
                _signal(process, signal.SIGKILL)
            await asyncio.wait(late)
        return {task.result() for task in keeping}

    def _reload(self) -> None:
        """Have the processes reload their files; those that are starting may have read them already, and do it as soon as they work."""
        for name, process in self._processes.items():
            if name in self._working:
                _signal(process, signal.SIGHUP)
            else:
                self._behind.add(name)

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            # A closed terminal may send SIGHUP twice, from the shell and from the kernel.
            if number == signal.SIGHUP:
                return
            self._log.warning("second_signal", signal=number.name)
            wait_written()
            os._exit(1)
        self._stop.set()
        self._log.info("draining", signal=number.name, wait_s=self._settings.drain_wait_s, grace_s=self._settings.drain_grace_s)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for sockets that only this user may enter.

    Raises:
        CannotServe: it cannot be created.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="sentiment-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CannotServe(f"cannot create a folder for the front ends' sockets: {error}; set TMPDIR to a writable folder") from error
    with made as name:
        if len(name) > PATH_MAX - len("/calls.sock"):
            raise CannotServe(f"the folder for the front ends' sockets, {name}, has {len(name)} characters; set TMPDIR to a shorter path")
        yield Path(name)
