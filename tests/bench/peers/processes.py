"""Running servers with all their child processes: start, CPU time, memory, suspend and resume, end."""

import contextlib
import json
import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

import psutil

from tests.bench.peers.environments import ROOT, Peer, PeerFailed
from tests.bench.peers.servers.options import VARIABLE, Options
from tests.bench.processes import start_server

END_S_MAX = 20.0
LEFT_S_MAX = 5.0
# Lines of a framework's output that are shown after a failure.
LAST_LINES = 15


class Running:
    """A server with all its child processes. ``launch`` restarts it at the same address; None if that is not possible."""

    def __init__(
        self,
        name: str,
        protocol: str,
        process: "subprocess.Popen[str]",
        target: str,
        launch: Callable[[], "subprocess.Popen[str]"] | None = None,
        log: IO[str] | None = None,
    ) -> None:
        self.name, self.protocol, self.target, self.process = name, protocol, target, process
        self._launch, self._log = launch, log
        self._known: list[psutil.Process] = []
        self._core_s: dict[int, float] = {}

    def core_s(self) -> float:
        """CPU seconds of all its processes so far, user and system. An ended process counts with its last reading."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._core_s[process.pid] = times.user + times.system
        return sum(self._core_s.values())

    def memory_bytes(self) -> int:
        """Memory of all its processes; shared memory counts once (PSS)."""
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    def hold(self) -> None:
        """Suspend all its processes, so that an idle server that polls does not disturb the measured one."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def go_on(self) -> None:
        """Resume its processes, the last started first."""
        for process in reversed(self._tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            PeerFailed: it has ended; the message has its last output.
        """
        if self.process.poll() is not None:
            raise PeerFailed(f"{self.name} ended with {self.process.returncode}\n{self.last_words()}")

    def again(self) -> None:
        """Restart it.

        Raises:
            PeerFailed: it cannot be restarted.
        """
        if self._launch is None:
            raise PeerFailed(f"{self.name} no longer answers")
        self.end()
        self.process = self._launch()

    def last_words(self) -> str:
        """The last lines of its output."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return "".join(self._log.readlines()[-LAST_LINES:])

    def end(self) -> None:
        """Terminate it, then the processes that it left behind. Never raises, so that the other servers are ended too."""
        self.go_on()
        self._tree()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S_MAX)
        left = self._tree()
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
            _, left = psutil.wait_procs(left, timeout=LEFT_S_MAX)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEFT_S_MAX)

    def _tree(self) -> list[psutil.Process]:
        """All its running processes in the order of their start, including those whose parent has ended."""
        if self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(self.process.pid)
                self._known.extend(each for each in (root, *root.children(recursive=True)) if each not in self._known)
        self._known = [each for each in self._known if each.is_running()]
        return self._known.copy()


def start_ours(name: str, bundle: Path, *flags: str) -> Running:
    """Start our server with a bundle's folder, as ``sentiment serve`` does by default, or with ``flags``.

    Raises:
        PeerFailed: it ends before it is ready.
    """
    try:
        process, target, _ = start_server(f"{bundle.parent.name}/{bundle.name}", "", "--bundles", str(bundle.parents[1]), *flags)
    except RuntimeError as error:
        raise PeerFailed(str(error)) from error
    return Running(name, "grpc", process, target)


def start(peer: Peer, rows: int, bundle: str, instances: int) -> Running:
    """Start a peer. It is not ready yet."""
    ports = _free_ports(1 + peer.ports)
    options = Options(bundle, ports[0], tuple(ports[1:]), instances, rows)
    environment = {
        **os.environ,
        VARIABLE: json.dumps(asdict(options)),
        "PYTHONPATH": str(ROOT),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(instances) if peer.protocol == "in-process" else "1",
    }
    in_process = peer.protocol == "in-process"
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # Running keeps it

    def launch() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(peer.interpreter), "-m", f"tests.bench.peers.servers.{peer.name}"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE if in_process else subprocess.DEVNULL,
            stdout=subprocess.PIPE if in_process else log,
            stderr=log,
            text=True,
        )

    return Running(peer.name, peer.protocol, launch(), f"127.0.0.1:{ports[0]}", launch, log)


def _free_ports(count: int) -> list[int]:
    """Free ports, since some peers do not support port 0.

    They are outside the ephemeral range: otherwise another program could get one of them before the peer does.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 20_000)  # a port
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found
