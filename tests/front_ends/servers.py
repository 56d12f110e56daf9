"""Servers of several processes, for tests from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from sentiment.client import CallFailed, Client
from tests.conftest import PLAIN
from tests.programs import until

# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 60
HELD = "w7"
# The most rows of the batch that is held.
BATCH_ROWS_HELD = 7
# Read by every Python at its start.
HOLDING = """
import pathlib, sys, time

if "sentiment_front_ends" in sys.orig_argv:
    from sentiment.model.session import Session

    run, folder = Session.run, pathlib.Path({folder!r})

    def hold(self, feeds, stop=None):
        if (feeds["input_ids"] == {word}).any():
            (folder / "held").touch()
            while not (folder / "released").exists():
                time.sleep(0.005)
        return run(self, feeds, stop)

    Session.run = hold
"""


class Server:
    """``sentiment serve`` with front ends: its log lines and its processes by name."""

    def __init__(self, bundles: Path, *flags: str, before: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        """``before``: a command that runs the command which follows it; ``environment``: besides that of this process."""
        # A later flag of the same name overrides one of these.
        own = ("--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0", "--front-ends", "2")
        command = [*before, sys.executable, "-m", "sentiment", "serve", "--bundles", str(bundles), "--model", "tiny", *own, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self.lines: list[dict[str, Any]] = []
        self.others: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                else:
                    self.others.append(line)
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def wait_for(self, event: str, times: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait for ``times`` log lines of an event with these fields; returns the last of them."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines if line["event"] == event and fields.items() <= line.items()]

        with self._grown:
            ended = self._grown.wait_for(lambda: len(found()) >= times or not self._reader.is_alive(), PATIENCE_S)
            assert ended and len(found()) >= times, f"no {event} {fields}: {self.lines} {self.others}"
            return found()[times - 1]

    def wait_ready(self) -> "Server":
        ready = self.wait_for("ready")
        self.target, self.url = ready["grpc"], f"http://{ready['http']}"
        return self

    def pid(self, name: str) -> int:
        """Process id of the current process of this name."""
        return [line["pid"] for line in self.lines if line["event"] == "process_started" and line["started"] == name][-1]

    def pids(self) -> list[int]:
        return [line["pid"] for line in self.lines if line["event"] == "process_started"]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(name), number)

    def client(self) -> Client:
        """A client with its own connection."""
        return Client(self.target, options=PLAIN)

    def metrics(self) -> list[Any]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_S) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        return [sample for family in families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        return sum(one.value for one in self.metrics() if one.name == f"sentiment_{name}" and labels.items() <= one.labels.items())

    def finish(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def events(self, name: str | None) -> list[str]:
        """Log events of one process; None: the supervisor."""
        return [line["event"] for line in self.lines if line.get("process") == name]

    def end(self) -> None:
        """Kill it; its processes exit with it."""
        self.process.kill()
        self.process.wait()
        wait_gone(self.pids())


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: list[int]) -> None:
    until(lambda: not any(map(alive, pids)))


class Held:
    """Batches that are held in the executor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, true: Callable[[], bool] = lambda: True) -> None:
        """Wait until a batch is held and ``true`` holds."""
        until(lambda: (self._folder / "held").exists() and true())

    def release(self) -> None:
        """Release all batches, also later ones."""
        (self._folder / "released").touch()


def eventually_answers(client: Client) -> None:
    """Call until one call succeeds. Any failure except UNAVAILABLE fails the test."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert client.classify("good").label == "positive"
            return
        except CallFailed as error:
            assert error.code is grpc.StatusCode.UNAVAILABLE, error
            assert time.monotonic() < end
            time.sleep(0.05)
