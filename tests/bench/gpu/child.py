"""Processes that measure: each does what it is asked, a line of JSON each way, and is ended when its time is up.

What may crash, hang or take the whole of a device is in a process of its own: the rest of the figures do not go with it.
"""

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A child that was asked for something short of its end is given so long to say so.
GRACE_S = 3.0


class Gone(Exception):
    """The process has ended, or could not do what it was asked; the message says why."""


class Child:
    """A process of ``tests/bench/gpu/MODULE.py``."""

    def __init__(self, module: str, said: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it.

        Args:
            module: what it runs, by its name in this package.
            said: a file for its standard error, and for what libraries print.
            arguments: of its command line.
            environment: variables beside this process's own.
        """
        command = [sys.executable, "-m", f"tests.bench.gpu.{module}", *arguments]
        with said.open("ab") as stream:
            pipe = subprocess.PIPE
            own = {**os.environ, **(environment or {})}
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stream, text=True, env=own)
        self.module, self.said = module, said

    @property
    def alive(self) -> bool:
        """It can be asked."""
        return self._process.poll() is None

    def begin(self, do: str, **arguments: Any) -> None:  # Any: JSON
        """Ask for something; ``answer`` waits for it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Gone(self._why()) from error

    def answer(self, until: float) -> dict[str, Any]:  # Any: JSON
        """What it says; it is killed if that takes longer than until the monotonic instant ``until``, and some seconds.

        Raises:
            Gone: it ended, was killed, or failed.
        """
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(max(0.0, until - time.monotonic()) + GRACE_S, end)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._process.wait()
            raise Gone(f"{self.module} was ended because its time was up" if late.is_set() else self._why())
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Gone(found["error"])
        return found

    def ask(self, until: float, do: str, **arguments: Any) -> dict[str, Any]:  # Any: JSON
        """``begin`` and ``answer``."""
        self.begin(do, **arguments)
        return self.answer(until)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _why(self) -> str:
        code = self._process.wait()
        last = self.said.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self.module} ended with {code}: {''.join(last)[:300]}"


def serve(commands: object) -> None:
    """Do as standard input says, by the methods of ``commands``, until it ends."""
    # Libraries print to standard output, some of them behind Python's back.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = getattr(commands, asked.pop("do"))(**asked)
        except Exception as error:  # whatever it is, somebody waits for an answer
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        out.write(json.dumps(found) + "\n")
        out.flush()
