"""Programs beside the tests: what they print, their ports, and ``sentiment serve``."""

import itertools
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 120.0
RUN_S_MAX = 600


def run(*command: str | Path, **arguments: Any) -> str:  # of subprocess
    """The command's standard output; a command that fails fails the test with what it printed."""
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=RUN_S_MAX, **arguments)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


def until(true: Callable[[], Any], what: str = "what the test waits for", patience_s: float = PATIENCE_S) -> float:
    """Poll until a condition without an event of its own is true; returns the seconds it took."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() < begun + patience_s, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - begun


# Each process that runs tests begins elsewhere, also that of another checkout.
_PORTS = itertools.count(1009 * os.getpid())


def free_port() -> int:
    """A free port. It is outside the range from which the system picks ports, so that no one else takes it before a server does."""
    for number in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", 20_000 + number % 12_000))
            return int(probe.getsockname()[1])
    raise AssertionError("itertools.count never ends")


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving(command: Sequence[str | Path], *flags: str | Path) -> Iterator[dict[str, Any]]:
    """Run the server on free ports, but for those of ``flags``; gives its line ``ready``. Afterwards it must have ended with 0."""
    own = ("--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0")
    server = subprocess.Popen(list(map(str, [*command, "serve", *own, *flags])), stderr=subprocess.PIPE, text=True)
    late = threading.Timer(PATIENCE_S, server.kill)
    late.start()
    try:
        assert server.stderr is not None
        lines = map(json.loads, server.stderr)
        ready = next((line for line in lines if line["event"] in ("ready", "cannot_serve")), {"event": "ended before it was ready"})
        assert ready["event"] == "ready", ready
        late.cancel()
        yield ready
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    finally:
        late.cancel()
        server.kill()
        server.communicate()
