"""What is asked of the pods, and what must come of it."""

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from sentiment.client import CallFailed, Client
from sentiment.model.cores import cores_granted
from tests.deploy.chart.footprint import EVERYTHING, LONG
from tests.deploy.image.pod import MIB, POLL_S, Pod, chart_pod
from tests.deploy.image.store import Store

# Less than the chart asks, so that what fits here fits there.
CPU, MEMORY = "500m", "512Mi"
UID = 65532
TEXTS = {"a gripping, beautifully shot film": "positive", "two hours of my life I will never get back": "negative"}
# The root file system, the code, the bundles; and the two volumes of the chart.
LOCKED, OPEN = ("/", "/etc", "/opt/sentiment", "/models", "/run", "/var/tmp"), ("/tmp", "/var/cache/sentiment")
LONG_TEXTS = 64
LAST_TEXTS = 16
CALL_S = 55.0


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    what: str
    ok: bool
    found: str
    wanted: str


class PodFailed(Exception):
    """The server in a pod did not start or did not answer."""


def equal(what: str, found: object, wanted: object) -> Check:
    return Check(what, found == wanted, str(found), str(wanted))


Outcome = tuple[list[Check], dict[str, object]]


def in_half_a_core(store: Store) -> Outcome:
    """The pod with the least that it must run in."""
    with running(store, CPU, MEMORY) as (pod, ready, seconds):
        figures: dict[str, object] = {
            f"seconds to ready, {CPU} and {MEMORY}": f"{seconds:.1f}",
            f"peak memory after the start, {CPU}": f"{pod.memory_peak() / MIB:.0f} MiB",
        }
        checks = [*_locked_in(pod), *_answers(pod), *_runners(pod, ready, 1)]
        figures[f"threads, {CPU}"] = pod.status()["Threads"]
        checks += _many(pod)
        figures[f"peak memory after {LONG_TEXTS} texts of 512 tokens"] = f"{pod.memory_peak() / MIB:.0f} MiB"
        checks += _end(pod)
    return checks, figures


def without_limits(store: Store) -> Outcome:
    """The same pod with no limits: what the quota changes, and what explanations would take."""
    cores = cores_granted()
    with running(store) as (pod, ready, seconds):
        checks = _runners(pod, ready, cores)
        figures: dict[str, object] = {"seconds to ready, no limits": f"{seconds:.1f}", "threads, no limits": pod.status()["Threads"]}
        figures["cores that this machine grants"] = cores
        figures |= {f"peak memory after {what}, no limits": peak for what, peak in _explanations(pod)}
        checks.append(equal("no limits: exit code after SIGTERM", pod.terminate(), 0))
    return checks, figures


@contextmanager
def running(store: Store, cpu: str = "", memory: str = "") -> Iterator[tuple[Pod, dict[str, object], float]]:
    """A pod, the line with which it was ready, and the seconds until then.

    Raises:
        PodFailed: something was not as it must be for the checks to go on; with what the server has said.
    """
    pod = Pod(store, chart_pod(cpu, memory))
    begun = time.monotonic()
    try:
        ready = pod.start()
        yield pod, ready, time.monotonic() - begun
    except (RuntimeError, AssertionError, CallFailed, grpc.RpcError, OSError) as error:
        raise PodFailed("\n".join([*pod.log(), f"{type(error).__name__}: {error}"])) from error
    finally:
        pod.remove()


def _locked_in(pod: Pod) -> list[Check]:
    status = pod.status()
    names = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")
    # Real, effective, saved, of the file system.
    checks = [equal(f"{name} of the server", status[name], " ".join([str(UID)] * 4)) for name in ("Uid", "Gid")]
    checks += [
        equal("capabilities it has or could get", sorted({int(status[name], 16) for name in names}), [0]),
        equal("no new privileges", status["NoNewPrivs"], "1"),
        equal("filter of system calls (2: there is one)", status["Seccomp"], "2"),
        equal("quota in force, cores", pod.cores(), 0.5),
        equal("memory limit in force, MiB", pod.memory_max() / MIB, 512.0),
    ]
    written = pod.try_to_write(*LOCKED, *OPEN)
    checks += [equal(f"writing to {folder}", written[folder], "EROFS") for folder in LOCKED]
    return checks + [equal(f"writing to {folder}", written[folder], "written") for folder in OPEN]


def _answers(pod: Pod) -> list[Check]:
    checks = []
    with grpc.insecure_channel(pod.grpc) as channel:
        for service in ("", "liveness"):
            request = health_pb2.HealthCheckRequest(service=service)
            stub = cast(Any, health_pb2_grpc.HealthStub(channel))  # typed for both kinds of channel
            answer = stub.Check(request, timeout=10)
            name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            checks.append(equal(f"grpc.health.v1 of {service!r}", name, "SERVING"))
    with Client(pod.grpc) as client:
        checks += [equal(f"answer to {text!r}", client.classify(text).label, label) for text, label in TEXTS.items()]
    return checks


def _runners(pod: Pod, ready: dict[str, object], wanted: int) -> list[Check]:
    shown = {labels["runner"] for labels, _ in _samples(pod, "sentiment_runner_busy_seconds_total")}
    quota = f"{pod.cores():g} cores" if pod.cores() else "no quota"
    return [
        equal(f"{quota}: runners that the log tells", ready["runners"], wanted),
        equal(f"{quota}: runners in /metrics", len(shown), wanted),
    ]


def _many(pod: Pod) -> list[Check]:
    with Client(pod.grpc) as client:
        answers = client.classify_batch([LONG] * LONG_TEXTS, timeout_s=CALL_S)
    answered = sum(hasattr(answer, "label") for answer in answers)
    return [
        equal(f"of {LONG_TEXTS} texts of 512 tokens answered", answered, LONG_TEXTS),
        equal("killed for lack of memory", pod.killed(), 0),
    ]


def _explanations(pod: Pod) -> Iterator[tuple[str, str]]:
    short = next(iter(TEXTS))
    asked = {"an explanation of 6 words": (short, None), "one of 512 tokens": (LONG, None), "all of Explain on them": (LONG, EVERYTHING)}
    with Client(pod.grpc) as client:
        for what, (text, options) in asked.items():
            try:
                client.explain(text, options=options, timeout_s=CALL_S)
            except CallFailed as error:
                # Without the time for a whole one it has still taken the memory.
                if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
            yield what, f"{pod.memory_peak() / MIB:.0f} MiB"


def _end(pod: Pod) -> list[Check]:
    """SIGTERM while it has work."""
    with Client(pod.grpc) as client, ThreadPoolExecutor(1) as thread:
        call = thread.submit(client.classify_batch, [LONG] * LAST_TEXTS, timeout_s=CALL_S)
        _until_it_works(pod)
        begun = time.monotonic()
        code = pod.terminate()
        seconds = time.monotonic() - begun
        answered = sum(hasattr(answer, "label") for answer in call.result())
    return [
        equal("texts under way at SIGTERM that were answered", answered, LAST_TEXTS),
        equal("exit code after SIGTERM", code, 0),
        Check("seconds from SIGTERM to the end", seconds <= pod.drain_s, f"{seconds:.1f}", f"at most {pod.drain_s:g}"),
    ]


def _until_it_works(pod: Pod) -> None:
    """Until texts wait: those before them run."""
    until = time.monotonic() + CALL_S
    while not sum(value for _, value in _samples(pod, "sentiment_queue_rows")):
        assert time.monotonic() < until, "the server never had a queue"
        time.sleep(POLL_S)


def _samples(pod: Pod, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and values that /metrics has under a name."""
    with urllib.request.urlopen(f"http://{pod.http}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == name]
