"""The measured server and its load clients, each in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.gpu.child import Child, Gone, started
from tests.bench.gpu.client import ramp_s
from tests.bench.gpu.spread import Rounds, slices_of
from tests.bench.gpu.wheels import with_libraries

STOP_S = 15.0
KILLED_S = 5.0
# Parts of a load whose rates, or p99, say how far they lie apart.
SLICES = 5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stop(process: "subprocess.Popen[str]") -> None:
    """End a server and all that it started, which is in its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a running process and all that descend from it, user and system. Front ends have sessions of their own."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    tree, more = set[int](), {root}
    while more:
        tree |= more
        more = {pid for pid, parent in parents.items() if parent in more} - tree
    return sum(ticks.get(pid, 0) for pid in tree) * _TICK_S


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
        self.process = started(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment))
        self._told = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        ready = None
        while not (ready := self.event("ready")) and self.process.poll() is None and time.monotonic() < until:
            self._told.wait(0.2)
            self._told.clear()
        if not ready:
            code = self.process.poll()
            stop(self.process)
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
        """Sums over all labels but ``kind`` and ``process``, which are part of the name: ``sentiment_tokens_total.real``."""
        with urllib.request.urlopen(f"http://{self.ready['http']}/metrics", timeout=10) as response:
            return read_metrics(response.read().decode())

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stop(self.process)


def read_metrics(page: str) -> dict[str, float]:
    """The series of a page of metrics; see ``Server.metrics``."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            series, _, labels = name.partition("{")
            kept = (labels.partition(f'{label}="')[2].partition('"')[0] for label in ("kind", "process"))
            key = ".".join([series, *filter(None, kept)])
            found[key] = found.get(key, 0.0) + float(value)
    return found


@dataclass(frozen=True, slots=True)
class Answered:
    """The results of all clients together.

    ``rate``: texts answered a second, with the rate of each of SLICES slices; ``p50_ms``, ``p99_ms``: latency of answered calls, the
    second with that of each slice; ``failed``: texts without an answer, by status code; ``failure``: the error of one of their calls;
    ``client_busy``: the CPU seconds a second of the busiest client, whose work is done in one thread; ``texts`` were answered in
    ``seconds``, from the first call to the last answer.
    """

    texts: int
    seconds: float
    rate: Rounds
    p50_ms: float
    p99_ms: Rounds
    failed: Mapping[str, int]
    failure: str
    client_busy: float


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
        return answered_of(_answers(asked, until), ramp_s(seconds))

    def open(self, rate: float, items: int, seconds: float, until: float) -> Answered:
        """Calls of a Poisson process: ``rate`` texts a second, ``items`` in a call.

        Raises:
            Gone: as above.
        """
        for number, client in enumerate(self._all):
            client.begin("open", rate=rate / len(self._all), items=items, seconds=seconds, seed=number)
        return answered_of(_answers(self._all, until), 0.0)

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._all:
            client.close()


def _answers(asked: Sequence[Child], until: float) -> list[Mapping[str, Any]]:  # Any: JSON
    answers: list[Mapping[str, Any]] = []
    faults: list[Gone] = []
    for client in asked:
        # All are read: an answer left behind would be taken for that of the next request.
        try:
            answers.append(client.answer(until))
        except Gone as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return answers


def answered_of(answers: Sequence[Mapping[str, Any]], begin: float) -> Answered:  # Any: JSON
    """Add up what ``Client.closed`` or ``Client.open`` returned. ``begin``: the seconds at their start that do not count for the rate.

    Raises:
        Gone: no call was answered.
    """
    ends = sorted((at, ms, items) for answer in answers for at, ms, items in answer["ends"])
    failed = sum((Counter(answer["failed"]) for answer in answers), Counter[str]())
    failure = next(filter(None, [answer["failure"] for answer in answers]), "")
    if not ends:
        raise Gone(f"none of {failed.total()} texts was answered; the first call that failed had {failure}")
    # A load that is shorter than its beginning, on a slow machine.
    begin = begin if ends[-1][0] > begin else 0.0
    counted = [(at, items) for at, _, items in ends if at >= begin]
    whole = slices_of(counted, begin, 1) or [0.0]
    size = max(1, -(-len(ends) // SLICES))
    p99s = [_quantile([ms for _, ms, _ in ends[start : start + size]], 0.99) for start in range(0, len(ends), size)]
    every = [ms for _, ms, _ in ends]
    return Answered(
        sum(items for _, _, items in ends),
        max(1e-3, *(answer["seconds"] for answer in answers)),
        Rounds(whole[0], slices_of(counted, begin, SLICES) or whole),
        _quantile(every, 0.5),
        Rounds(_quantile(every, 0.99), p99s),
        dict(failed),
        failure,
        max(answer["cpu_s"] / max(answer["seconds"], 1e-3) for answer in answers),
    )


def _quantile(ms: Sequence[float], share: float) -> float:
    return sorted(ms)[min(len(ms) - 1, int(share * len(ms)))]
