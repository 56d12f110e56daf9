"""A server whose standard error, environment and files the test provides. Nobody reads its log unless the test does."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.core.servers import PATIENCE_S, Server, until, wait_gone
from tests.programs import free_port


class OwnProcess(Server):
    """``sentiment serve`` in one process. ``how`` are arguments of subprocess.Popen, such as ``stderr``."""

    def __init__(self, bundles: Path, *flags: str, model: str = "tiny", **how: Any) -> None:
        self.target, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.url = f"http://{http}"
        own = ("--grpc-listen", self.target, "--http-listen", http, "--drain-wait-s", "0")
        command = [sys.executable, "-m", "sentiment", "serve", "--bundles", str(bundles), "--model", model, *own, *flags]
        self.process = subprocess.Popen(command, **how)
        self.lines = []
        self.others = []

    def wait_ready(self) -> "OwnProcess":
        def ready() -> bool:
            assert self.process.poll() is None, self.process.returncode
            with contextlib.suppress(OSError):
                return self._ready_code() == 200
            return False

        until(ready, "it is ready")
        return self

    def rss_bytes(self) -> int:
        """Resident memory of all its processes."""
        process = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))

    def connections(self) -> int:
        """Open connections to its ports."""
        return sum(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(self.process.pid).net_connections("tcp"))

    def finish(self, within_s: float = PATIENCE_S) -> int:
        return self.process.wait(within_s)

    def end(self) -> None:
        children = [one.pid for one in psutil.Process(self.process.pid).children()] if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        wait_gone(children)
