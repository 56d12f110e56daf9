"""Programs beside the tests: what they print, their ports, and ``sentiment serve``."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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


def until(true: Callable[[], bool]) -> None:
    """Wait for what has no event to wait for."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up_at, f"not within {PATIENCE_S} s"
        time.sleep(0.01)


def free_ports(number: int) -> list[int]:
    """Different ones: all are held until the last is found."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for listening in sockets:
            listening.bind(("127.0.0.1", 0))
        return [int(listening.getsockname()[1]) for listening in sockets]


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
        yield ready
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    finally:
        late.cancel()
        server.kill()
        server.communicate()
