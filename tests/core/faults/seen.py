"""A process observed from outside: memory, files, threads. And whether a server still has open calls."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers, Fates
from tests.core.servers import Server, until

MB = 2**20


class Seen:
    """A process. ``before_mb``: its memory at first; ``others``: the calls of ``others_are_answered`` during its fault, afterwards."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before_mb = self.rss_mb
        self.others = Fates()

    @property
    def rss_mb(self) -> float:
        return float(self._process.memory_info().rss / MB)

    @property
    def files(self) -> int:
        return int(self._process.num_fds())

    @property
    def threads(self) -> int:
        return int(self._process.num_threads())

    @property
    def cpu_s(self) -> float:
        """User and system."""
        return float(sum(self._process.cpu_times()[:2]))

    def begin_peak(self) -> None:
        """Reset ``peak_mb``."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    @property
    def peak_mb(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def open_calls(server: Server) -> float:
    """Calls that gRPC's core has started and not ended."""
    return server.total("grpc_calls_started_total") - server.total("grpc_calls_ended_total")


def nothing_waits(server: Server) -> bool:
    """Whether no row and no explanation is waiting."""
    return server.total("queue_rows") == 0 and server.total("explanations") == 0


@contextmanager
def others_are_answered(server: Server, evidence: Evidence, callers: int = 4, may: tuple[str, ...] = ()) -> Iterator[Seen]:
    """Call the server during a fault. Each call must be answered correctly or end with a code of ``may``; afterwards nothing stays open.

    Records the callers' latency and the server's memory.
    """
    with Callers(server.target, callers=callers, pause_s=0.005) as others:
        others.wait(50)
        seen = Seen(server.process.pid)
        files, begun = seen.files, time.monotonic()
        seen.begin_peak()
        yield seen
        others.wait(20)
        ended = time.monotonic()
        until(lambda: seen.files <= files, f"at most {files} files are open")
    evidence.judge(others.fates, may=may)
    seen.others = others.fates.between(begun, ended)
    evidence.measured["p99 of the others before, ms"] = round(others.fates.between(0, begun).seconds(0.99) * 1e3, 1)
    evidence.measured["p99 of the others meanwhile, ms"] = round(seen.others.seconds(0.99) * 1e3, 1)
    evidence.measured["longest of the others meanwhile, ms"] = round(seen.others.seconds(1) * 1e3, 1)
    evidence.measured["memory before, MB"] = round(seen.before_mb)
    evidence.measured["memory at most, MB"] = round(seen.peak_mb)
    evidence.measured["memory afterwards, MB"] = round(seen.rss_mb)
    assert nothing_waits(server)
