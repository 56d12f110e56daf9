"""Servers in processes of their own, for tests from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from sentiment.client import CallFailed, Client
from tests.conftest import PLAIN
from tests.programs import PATIENCE_S, until


class Server:
    """``sentiment serve``, in one process unless flags say otherwise: its log lines and its processes by name."""

    def __init__(
        self,
        bundles: Path,
        *flags: str,
        before: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        program: Path | None = None,
        **how: Any,
    ) -> None:
        """``before``: a command that runs the command which follows it; ``environment``: besides that of this process; ``program``: in
        Python, instead of ``sentiment``; ``how``: arguments of subprocess.Popen.
        """
        # A later flag of the same name overrides one of these.
        own = ("--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0")
        begin = [sys.executable, *(("-m", "sentiment") if program is None else (str(program),))]
        command = [*before, *begin, "serve", "--bundles", str(bundles), "--model", "tiny", *own, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}, **how)
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
                    self.others.append(line.rstrip("\n"))
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

    def wait_not_ready(self) -> None:
        until(lambda: self._ready_code() == 503, "the server is not ready")

    def _ready_code(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=PATIENCE_S) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def finish(self, within_s: float = PATIENCE_S) -> int:
        code = self.process.wait(within_s)
        self._reader.join(PATIENCE_S)
        return code

    def events(self, name: str | None = None) -> list[str]:
        """Log events of one of several processes; None: of the only one, or of the supervisor."""
        return [line["event"] for line in self.lines if line.get("process") == name]

    def end(self) -> None:
        """Kill it; its processes exit with it."""
        self.process.kill()
        self.process.wait()
        wait_gone(self.pids())
        self._reader.join(PATIENCE_S)
        assert not self._reader.is_alive(), "a process keeps its standard error"
        assert self.process.stderr is not None
        self.process.stderr.close()
        # Shown if the test fails.
        print(*(line for line in self.lines if line["level"] in ("error", "critical")), *self.others, sep="\n")


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: list[int]) -> None:
    until(lambda: not any(map(alive, pids)), "all processes have ended")


def eventually_answers(client: Client) -> None:
    """Call until one call succeeds. Any failure except UNAVAILABLE fails the test."""

    def answers() -> bool:
        try:
            return client.classify("good").label == "positive"
        except CallFailed as error:
            assert error.code is grpc.StatusCode.UNAVAILABLE, error
            return False

    until(answers, "a call is answered")


@contextlib.contextmanager
def serving(bundles: Path, *own: str) -> Iterator[Callable[..., Server]]:
    """Start servers with these flags and more, ready unless ``ready`` is False; all are killed afterwards."""
    with contextlib.ExitStack() as started:

        def begin(*flags: str, root: Path = bundles, ready: bool = True, **arguments: Any) -> Server:
            server = Server(root, *own, *flags, **arguments)
            started.callback(server.end)
            return server.wait_ready() if ready else server

        yield begin
