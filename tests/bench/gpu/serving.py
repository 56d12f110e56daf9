"""The measured server and its load clients, each in a process of its own."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.gpu.child import Child, Gone
from tests.bench.gpu.wheels import with_libraries

STOP_S = 15.0


class Server:
    """``sentiment serve`` on free ports. A context manager that stops the server at its end."""

    def __init__(self, flags: Sequence[str], program: str, said: Path, until: float) -> None:
        """Start it and wait until it is ready.

        Args:
            flags: of ``serve``.
            program: the module to run.
            said: the log file.
            until: the deadline of the start, a monotonic instant.

        Raises:
            Gone: the server did not become ready.
        """
        own = ["--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0", "--no-explain"]
        command = [sys.executable, "-m", program, "serve", *own, *flags]
        begun = time.monotonic()
        self.said = said
        self.events: list[dict[str, Any]] = []
        environment = {**os.environ, **with_libraries()}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)
        self._told = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        ready = None
        while not (ready := self.event("ready")) and self.process.poll() is None and time.monotonic() < until:
            self._told.wait(0.2)
            self._told.clear()
        if not ready:
            code = self.process.poll()
            self._end()
            last = "; ".join(str(entry.get("reason", entry["event"])) for entry in self.events[-2:])
            raise Gone("the server was not ready when its time was up" if code is None else f"the server ended with {code}: {last}")
        self.ready: dict[str, Any] = ready
        self.start_s = time.monotonic() - begun

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.said.open("a") as stream:
            for line in self.process.stderr:
                stream.write(line)
                stream.flush()
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                    self._told.set()

    def event(self, name: str) -> dict[str, Any] | None:
        """The first line of the log with this event."""
        return next((entry for entry in self.events if entry["event"] == name), None)

    def metrics(self) -> dict[str, float]:
        """Sums over all labels but ``kind``, which is part of the name: ``sentiment_tokens_total.real``."""
        with urllib.request.urlopen(f"http://{self.ready['http']}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                series, _, labels = name.partition("{")
                kind = labels.partition('kind="')[2].partition('"')[0]
                key = f"{series}.{kind}" if kind else series
                found[key] = found.get(key, 0.0) + float(value)
        return found

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Answered:
    """The results of all clients together.

    ``failed``: texts without an answer; ``failure``: what one of their calls was told; ``p50_ms`` and ``p99_ms``: latency of a call.
    """

    texts_per_s: float
    failed: int
    p50_ms: float
    p99_ms: float
    failure: str


class Clients:
    """Several client processes that do the same at once. A context manager that ends them at its end."""

    def __init__(self, count: int, target: str, texts: Sequence[str], folder: Path) -> None:
        file = folder / "texts.json"
        file.write_text(json.dumps(list(texts)))
        self._all = [Child("client", folder / "client.log", target, str(file)) for _ in range(count)]

    def closed(self, kind: str, in_flight: int, items: int, seconds: float, until: float) -> Answered:
        """Calls that follow one another, ``in_flight`` at a time over all clients; see ``Client.closed``.

        Raises:
            Gone: a client's time was up, or no call was answered.
        """
        asked = self._all[: min(len(self._all), in_flight)]
        for number, client in enumerate(asked):
            share = in_flight // len(asked) + (number < in_flight % len(asked))
            client.begin("closed", kind=kind, in_flight=share, items=items, seconds=seconds, seed=number)
        answered = self._answers(asked, until)
        if not answered.texts_per_s:
            raise Gone(f"none of {answered.failed} texts was answered; the first call that failed had {answered.failure}")
        return answered

    def open(self, rate: float, items: int, seconds: float, until: float) -> Answered:
        """Calls of a Poisson process: ``rate`` texts a second, ``items`` in a call."""
        for number, client in enumerate(self._all):
            client.begin("open", rate=rate / len(self._all), items=items, seconds=seconds, seed=number)
        return self._answers(self._all, until)

    def highest(self, rate: float, items: int, p99_ms: float, seconds: float, until: float) -> Answered | None:
        """Try a few open-loop rates below ``rate``, highest first. Returns the first whose p99 is within ``p99_ms``, or None."""
        for share in (0.95, 0.9, 0.8, 0.65, 0.5, 0.3):
            if time.monotonic() + 1.5 * seconds > until:
                return None
            found = self.open(share * rate, items, seconds, until)
            if found.p99_ms <= p99_ms and not found.failed:
                return found
        return None

    def _answers(self, asked: Sequence[Child], until: float) -> Answered:
        answers = [client.answer(until) for client in asked]
        ms = sorted(each for answer in answers for each in answer["ms"])
        failed = sum(answer["failed"] for answer in answers)

        def quantile(share: float) -> float:
            # A failed call counts as infinitely slow.
            place = int(share * (len(ms) + failed))
            return ms[place] if place < len(ms) else math.inf

        rate = sum(answer["answered"] / answer["seconds"] for answer in answers)
        failure = next(filter(None, [answer["failure"] for answer in answers]), "")
        return Answered(rate, failed, quantile(0.5), quantile(0.99), failure)

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._all:
            client.close()
