"""The protocol between the supervisor and its processes.

A process reads its name and settings from one line of JSON on standard input, which then stays open. When it closes, the supervisor has
ended, and the process exits at once, so no process is orphaned. On standard output the process sends a byte at a time as a heartbeat.
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

from sentiment.settings import Settings, Source

STDIN, STDOUT = 0, 1
EXECUTOR = "executor"
# Interval of the heartbeats of an event loop.
BEAT_S = 1.0
# From prctl(2).
_PR_SET_PDEATHSIG = 1


def front_ends(settings: Settings) -> list[str]:
    """Names of the front ends."""
    return [f"front-{number}" for number in range(settings.front_ends)]


@dataclass(frozen=True, slots=True)
class Start:
    """A process's name, the folder of the sockets, and the server's settings with the reserved port."""

    name: str
    folder: Path
    settings: Settings

    @property
    def rows_socket(self) -> Path:
        """The socket for texts."""
        return self.folder / "rows.sock"

    @property
    def calls_socket(self) -> Path:
        """The socket for forwarded calls."""
        return self.folder / "calls.sock"

    def line(self) -> bytes:
        """The line that ``read_start`` reads."""
        settings, source = self.settings.model_dump(mode="json"), self.settings.source
        read = {"file": source.file and str(source.file), "given": sorted(source.given)}
        return json.dumps({"name": self.name, "folder": str(self.folder), "settings": settings, "read": read}).encode() + b"\n"


def read_start() -> Start:
    """Read the line from standard input."""
    line = b""
    # Not through sys.stdin: a thread that waits in it holds its lock when the interpreter exits.
    while not line.endswith(b"\n"):
        more = os.read(STDIN, 2**16)
        if not more:
            raise SystemExit("the supervisor has ended")
        line += more
    start = json.loads(line)
    read = start["read"]
    source = Source(read["file"] and Path(read["file"]), frozenset(read["given"]))
    settings = Settings.model_validate(start["settings"]).read_from(source)
    return Start(start["name"], Path(start["folder"]), settings)


async def beat() -> None:
    """Send heartbeats to the supervisor until cancelled."""
    while True:
        os.write(STDOUT, b".")
        await asyncio.sleep(BEAT_S)


def leave_with_supervisor(folder: Path) -> None:
    """Exit this process, and remove ``folder``, as soon as the supervisor has ended, even if it was killed."""

    def watch() -> None:
        while os.read(STDIN, 2**16):
            pass
        # A supervisor that was killed could not remove it.
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    if sys.platform == "linux":
        # A stopped process reads nothing, so the kernel must continue it when its parent ends.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    threading.Thread(target=watch, name="supervisor", daemon=True).start()
