"""What a server says of the load that it is offered: a server and a load tester, in processes of their own.

Runs of the model are stretched to a fixed time a row, so that what the server can do is known, whatever else the machine does.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sentiment_tools.reports.html_report import plain
from tests.core.servers import Server, serving
from tests.tiny import make_bundle

RUNNERS, ROW_S = 2, 0.04
PER_S = RUNNERS / ROW_S
SECONDS, READ_S = 45, 5.0
STRETCHED = f"""
import time
from sentiment.model.session import Session

logits = Session._logits

def stretched(self, session, feeds, stop):
    time.sleep({ROW_S} * len(feeds["input_ids"]))
    return logits(self, session, feeds, stop)

Session._logits = stretched
"""
LOADS = {
    **{f"{load:g} of the capacity": ("--rate", f"{load * PER_S:g}", "--timeout", "1s") for load in (0.5, 1.0, 3.0)},
    "150 callers, each with a deadline of 50 ms": ("--concurrency", "150", "--timeout", "50ms"),
}
HEAD = ("load", "calls/s", "answered/s", "backlog s", "event loop", "demand")


def read(server: Server, flags: Sequence[str]) -> list[str]:
    """Load a server, and read its metrics as Prometheus would."""
    command = [sys.executable, "-m", "sentiment", "loadtest", "--target", server.target, "--texts", "8", "--seconds", f"{SECONDS}s", *flags]
    began_at, before = time.monotonic(), counts(server)
    backlog_s, demand, after = [], 0.0, before
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as load:
        while time.monotonic() < began_at + SECONDS:
            time.sleep(READ_S)
            demand, after = server.total("demand_ratio"), counts(server)
            backlog_s.append(server.total("backlog_seconds"))
        seconds = time.monotonic() - began_at
        load.wait()
    calls, answered, busy_s = ((new - old) / seconds for new, old in zip(after, before, strict=True))
    return [f"{calls:.1f}", f"{answered:.1f}", f"{max(backlog_s):.3f}", f"{busy_s:.2f}", f"{demand:.2f}"]


def counts(server: Server) -> tuple[float, float, float]:
    """Calls that came, texts that were answered, and seconds in which the event loop was busy."""
    answered = server.total("items_total", method="Classify", code="OK")
    return server.total("grpc_calls_started_total"), answered, server.total("loop_busy_seconds_total")


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        make_bundle(Path(folder))
        (Path(folder) / "sitecustomize.py").write_text(STRETCHED)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        with serving(Path(folder), "--runners", str(RUNNERS)) as start:
            rows = [[name, *read(start(), flags)] for name, flags in LOADS.items()]
    print(f"{RUNNERS} runners, {ROW_S:g} s a row: {PER_S:g} texts/s; {SECONDS} s each; load average {os.getloadavg()[0]:.1f}\n")
    print(plain(HEAD, rows))


if __name__ == "__main__":
    main()
