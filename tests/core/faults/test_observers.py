"""What observes calls, and what watches over the process, fails"""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.doors.grpc.health import LIVENESS, NOT_SERVING, SERVING
from tests.conftest import PLAIN
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.seen import nothing_waits, open_calls
from tests.core.observability.test_journal import rows
from tests.core.servers import Server, until

# Read by every Python at its start.
RAISING = """
import sys

if "sentiment" in " ".join(sys.orig_argv):
    from sentiment.observability.drift import Drift
    from sentiment.observability.journal import Journal

    def fail(self, *arguments):
        raise KeyError("a text that must not be logged")

    Drift.add = Journal.draws = fail
"""
DYING = """
import asyncio, pathlib, sys

if "sentiment" in " ".join(sys.orig_argv):
    from sentiment.security.secured import Secured

    async def die(self):
        while not pathlib.Path({dies!r}).exists():
            await asyncio.sleep(0.02)
        raise KeyError

    Secured.keep_fresh = die
"""
both = pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])


def changed(folder: Path, program: str) -> dict[str, str]:
    """The environment of a server that runs this program at its start."""
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": str(folder)}


@both
def test_drift_and_journal_raise(serve: Callable[..., Server], tmp_path: Path, evidence: Evidence, front_ends: str) -> None:
    """All calls are answered; failures are counted and logged once.

    Drift and journal raise for every text, under load. Every call is answered in time; the failures are counted, and logged once each,
    without what they say.
    """
    server = serve("--front-ends", front_ends, "--journal", str(tmp_path / "journal"), environment=changed(tmp_path, RAISING))
    with Callers(server.target) as callers:
        callers.wait(500)
    until(lambda: nothing_waits(server) and open_calls(server) == 0, "nothing waits, and no call is open")

    evidence.judge(callers.fates)
    answered = server.total("items_total", code="OK")
    failures = {name: server.total("observer_failures_total", observer=name) for name in ("drift", "journal", "answer")}
    assert failures == {"drift": answered, "journal": answered, "answer": 0}
    assert answered >= len(callers.fates.calls)
    lines = [line for line in server.lines if line["event"] == "observer_failed"]
    assert len(lines) == len({(line.get("process"), line["observer"]) for line in lines}) >= 2
    assert "must not be logged" not in str(server.lines) + str(server.others)
    evidence.measured |= {"exceptions counted": int(sum(failures.values())), "log lines about them": len(lines)}


def test_the_watch_of_certificates_ends(serve: Callable[..., Server], tmp_path: Path, evidence: Evidence) -> None:
    """The server drains and exits with 1.

    The task that reloads certificates and tokens ends, under load. The server says so, is neither ready nor alive, answers what it has
    accepted, and exits with 1, so that it is replaced.
    """
    dies = tmp_path / "dies"
    server = serve("--drain-wait-s", "0.5", environment=changed(tmp_path, DYING.format(dies=str(dies))))
    with Callers(server.target) as callers, grpc.insecure_channel(server.target, PLAIN) as channel:
        watches = [health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", LIVENESS)]
        told = [[next(watch).status] for watch in watches]
        callers.wait(200)
        dies.touch()
        for watch, statuses in zip(watches, told, strict=True):
            statuses.append(next(watch).status)
        assert server.finish() == 1

    evidence.judge(callers.fates, may=("UNAVAILABLE",))
    assert told == [[SERVING, NOT_SERVING]] * 2
    assert [line["event"] for line in server.lines if line["event"] in ("task_ended", "drained")] == ["task_ended", "drained"]
    evidence.measured["exit code"] = 1


@both
def test_two_servers_with_one_journal_folder(serve: Callable[..., Server], tmp_path: Path, evidence: Evidence, front_ends: str) -> None:
    """Only the first one starts, and its journal is whole.

    A server keeps a journal, under load. Two further ones, the second with front ends, are given the same folder. Neither starts: the
    exit code is 2, and the log names the setting. The first one's journal has every answer.
    """
    folder = tmp_path / "journal"
    first = serve("--journal", str(folder), "--front-ends", front_ends)
    with Callers(first.target) as callers:
        callers.wait(50)
        for other in ("0", "2"):
            second = serve("--journal", str(folder), "--front-ends", other, ready=False)
            assert second.finish() == 2
            said = second.wait_for("cannot_serve")["reason"]
            assert said == f"journal = {str(folder)!r}: another server keeps its journal there; each needs a folder of its own"
        callers.wait(50)
    first.process.terminate()
    assert first.finish() == 0

    evidence.judge(callers.fates)
    assert len(rows(folder)) == len(callers.fates.calls)
    assert not [line for line in first.lines if line["event"] == "process_ended"]
    evidence.measured["lines in the journal"] = len(rows(folder))
