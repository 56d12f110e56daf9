"""What the supervisor and a process that it starts say to each other.

The process is told who it is by one line of JSON on its standard input, which then stays open: its end is the supervisor's end, whoever
reads it leaves at once, and nobody is orphaned. On its standard output the process says that it lives, a byte at a time.
"""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from sentiment.settings import Settings

STDIN, STDOUT = 0, 1
EXECUTOR = "executor"
# A process says so often that its event loop goes on.
BEAT_S = 1.0
# Of prctl(2).
_PR_SET_PDEATHSIG = 1


def front_ends(settings: Settings) -> list[str]:
    """Their names."""
    return [f"front-{number}" for number in range(settings.front_ends)]


@dataclass(frozen=True, slots=True)
class Start:
    """Who a process is, the folder of the sockets, and the server's settings with the port that was taken."""

    name: str
    folder: Path
    settings: Settings

    @property
    def rows_socket(self) -> Path:
        """Where front ends hand over texts."""
        return self.folder / "rows.sock"

    @property
    def calls_socket(self) -> Path:
        """Where front ends hand on calls."""
        return self.folder / "calls.sock"

    def line(self) -> bytes:
        """What ``read_start`` reads."""
        settings = self.settings.model_dump(mode="json")
        return json.dumps({"name": self.name, "folder": str(self.folder), "settings": settings}).encode() + b"\n"


def read_start() -> Start:
    """Read the line from standard input."""
    line = b""
    # Not through sys.stdin, whose lock a thread that waits in it holds when the interpreter ends.
    while not line.endswith(b"\n"):
        more = os.read(STDIN, 2**16)
        if not more:
            raise SystemExit("the supervisor has gone")
        line += more
    said = json.loads(line)
    return Start(said["name"], Path(said["folder"]), Settings.model_validate(said["settings"]))


async def beat() -> None:
    """Tell the supervisor that this process works and that its event loop goes on, until cancelled."""
    while True:
        os.write(STDOUT, b".")
        await asyncio.sleep(BEAT_S)


def leave_with_supervisor(folder: Path) -> None:
    """From now on end this process as soon as the supervisor has ended, however it did, and leave nothing of ``folder`` behind."""

    def watch() -> None:
        while os.read(STDIN, 2**16):
            pass
        # One that was killed could not.
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    if sys.platform == "linux":
        # A process that is frozen reads nothing: the kernel wakes it when its parent has ended.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    threading.Thread(target=watch, name="supervisor", daemon=True).start()
