"""Child processes that measure. Requests and answers are lines of JSON; a child that exceeds its time is killed.

Code that may crash, hang or use up a device runs in a child, so that the other figures are not lost.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Added to the deadline of a request, so that a child can still report an error.
GRACE_S = 3.0
# A killed process ends within this time, or never: a call into a faulty driver cannot be interrupted.
KILLED_S = 5.0
# How ONNX Runtime, PyTorch and the driver say that CUDA failed.
FAULT = re.compile(r"CUDA (failure|error|out of memory)|CUBLAS|CUDNN|cuda_call|bfc_arena", re.IGNORECASE)
# The characters of an error's text that are kept from its beginning and from its end. ONNX Runtime puts a long signature between them.
ERROR_BEGIN, ERROR_END = 300, 200
# All processes of the run, for ``end_all``.
_started: list["subprocess.Popen[str]"] = []


class Gone(Exception):
    """The process has ended, or its request failed; the message has the reason."""


class Child:
    """A process that runs ``tests/bench/gpu/MODULE.py``."""

    def __init__(self, module: str, said: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it.

        Args:
            module: the name of the module in this package.
            said: the log file, for standard error and for the output of libraries.
            arguments: of its command line.
            environment: additional environment variables.
        """
        command = [sys.executable, "-m", f"tests.bench.gpu.{module}", *arguments]
        with said.open("ab") as stream:
            pipe = subprocess.PIPE
            own = {**os.environ, **(environment or {})}
            self._process = started(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stream, text=True, env=own))
        self.module, self.said = module, said

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def begin(self, do: str, **arguments: Any) -> None:  # Any: JSON
        """Send a request; ``answer`` waits for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Gone(self._why()) from error

    def answer(self, until: float) -> dict[str, Any]:  # Any: JSON
        """Wait for the answer. The process is killed GRACE_S after the monotonic instant ``until``.

        It is also killed if its answer says that CUDA failed, since further requests might fail too.

        Raises:
            Gone: the process ended or was killed, or the request failed.
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
            self._wait()
            raise Gone(f"{self.module} was ended because its time was up" if late.is_set() else self._why())
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            if FAULT.search(found["error"]):
                self.close()
            raise Gone(found["error"])
        return found

    def ask(self, until: float, do: str, **arguments: Any) -> dict[str, Any]:  # Any: JSON
        """Send a request and wait for its answer.

        Raises:
            Gone: as for ``answer``; or ``until`` has passed, and the process is asked nothing.
        """
        if time.monotonic() > until:
            raise Gone(f"{self.module} was not asked, since its time was up")
        self.begin(do, **arguments)
        return self.answer(until)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._wait()

    def _wait(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILLED_S)
        return self._process.returncode

    def _why(self) -> str:
        code = self._wait()
        last = self.said.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self.module} ended with {code}: {''.join(last)[:300]}"


def started(process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
    """Note a process of the run, so that ``end_all`` ends it."""
    _started.append(process)
    return process


def end_all() -> None:
    """Kill all processes of the run without waiting for their end."""
    for process in _started:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                # A server leads a group of its own, with its front ends in it.
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()


def shortened(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= ERROR_BEGIN + ERROR_END else f"{text[:ERROR_BEGIN]} ... {text[-ERROR_END:]}"


def serve(commands: object) -> None:
    """Read requests from standard input and call the methods of ``commands``, until the input ends."""
    # Libraries print to standard output, some of them from native code.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = getattr(commands, asked.pop("do"))(**asked)
        except Exception as error:  # the parent waits for an answer
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {shortened(str(error).strip())}"}
        out.write(json.dumps(found) + "\n")
        out.flush()
