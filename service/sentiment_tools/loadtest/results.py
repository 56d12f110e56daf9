"""The measurements of one load, and their JSON format."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from sentiment_tools.loadtest.durations import Durations

OK = "OK"
# The outcome of a call that this client cancelled on purpose. All other outcomes are names of status codes.
CANCELLED_BY_US = "cancelled_by_us"
# The classes that are judged by the objective. Explanations, slow readers and leavers are additional load with figures of their own.
JUDGED = ("interactive", "bulk")
STAGES = ("tokenize", "queue", "run", "rest")
# A worker that uses more of its core than this sends calls late.
WORKER_CPU_MAX = 0.9
# How late a call may be sent: LAG_SHARE_MAX of the objective, or LAG_S_MIN (the timers of a busy machine) if that is more, but never
# more than LAG_SHARE_OF_TIMERS_MAX of the objective, so that the client alone cannot miss it.
LAG_SHARE_MAX = 0.1
LAG_S_MIN = 0.005
LAG_SHARE_OF_TIMERS_MAX = 0.5
# The percentiles of a measurement in JSON.
SHOWN = (50.0, 90.0, 99.0, 99.9)


@dataclass(slots=True)
class Group:
    """The outcomes of the calls of one class. ``latency`` of the answers counts from when the call was due."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    in_time: int = 0
    texts_ok: int = 0
    tokens: int = 0
    latency: Durations = field(default_factory=Durations)

    def add(self, other: "Group") -> None:
        """Add all counts of another group."""
        self.sent += other.sent
        self.outcomes.update(other.outcomes)
        self.in_time += other.in_time
        self.texts_ok += other.texts_ok
        self.tokens += other.tokens
        self.latency.add(other.latency)


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a load: judged calls sent in it, and answers to judged calls that arrived in it, whenever those were sent."""

    at_s: int
    sent: int = 0
    ok: int = 0
    in_time: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0

    @property
    def late(self) -> int:
        """Answers that took longer than the objective."""
        return self.ok - self.in_time


@dataclass(frozen=True, slots=True)
class Point:
    """The measurements of one load.

    ``offered_per_s`` is the rate at which calls were due; it is 0 in a closed loop, which has ``callers`` instead. ``sent``,
    ``outcomes`` and ``texts_ok`` count all classes. ``judged`` counts the calls of JUDGED classes, ``in_time`` those of them that were
    answered OK within the objective; ``latency`` is that of the judged answers. ``answered_per_s`` counts the calls answered OK while
    the load was held, ``texts_per_s`` their texts and ``tokens_per_s`` their tokens (0 if answers do not say). ``unsent`` counts calls
    that were due but not sent, because too many were open or (estimated) because the load was over. ``messages`` has the server's first
    message by outcome. ``repeated_share`` is the share of the texts sent that had come before, in this load or its warm-up.
    """

    offered_per_s: float
    seconds: float
    objective_s: float
    sent: int
    outcomes: Mapping[str, int]
    judged: int
    in_time: int
    latency: Durations
    answered_per_s: float = 0.0
    texts_per_s: float = 0.0
    tokens_per_s: float = 0.0
    texts_ok: int = 0
    messages: Mapping[str, str] = field(default_factory=dict)
    by_class: Mapping[str, Group] = field(default_factory=dict)
    stages: Mapping[str, Durations] = field(default_factory=dict)
    series: tuple[Second, ...] = ()
    lag: Durations = field(default_factory=Durations)
    client_cpu: float = 0.0
    client_cores: float = 0.0
    client_limited: str = ""
    unsent: int = 0
    repeated_share: float = 0.0
    callers: int = 0
    interrupted: bool = False

    @property
    def ok(self) -> int:
        """Calls of all classes that were answered OK."""
        return self.outcomes.get(OK, 0)

    @property
    def goodput_per_s(self) -> float:
        """Judged calls per second that were answered within the objective."""
        return self.in_time / self.seconds if self.seconds else 0.0

    @property
    def share_in_time(self) -> float:
        """Share of the judged calls that were answered within the objective."""
        return self.in_time / self.judged if self.judged else 0.0

    @property
    def closed_loop(self) -> bool:
        """Whether each caller waited for its answer. Then the waiting time of real users is hidden (coordinated omission)."""
        return self.callers > 0

    def percentile(self, percentile: float) -> float:
        """The percentile (0 to 100) of the judged answers in seconds."""
        return self.latency.percentile(percentile)

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON. Histograms are in HdrHistogram's encoding; percentiles are added for readers without a decoder."""
        percentiles = self.latency.percentiles(SHOWN).items()
        return {
            **_json(self),
            "goodput_per_s": self.goodput_per_s,
            "percentiles_s": {f"p{percentile:g}": seconds for percentile, seconds in percentiles},
        }


def _json(measured: Any) -> Any:  # measurements, their parts and JSON
    """Measurements as JSON has them."""
    if isinstance(measured, Durations):
        return measured.encode()
    if is_dataclass(measured):
        return {field.name: _json(getattr(measured, field.name)) for field in fields(measured)}
    if isinstance(measured, Mapping):
        return {name: _json(value) for name, value in measured.items()}
    return [_json(value) for value in measured] if isinstance(measured, tuple) else measured


@dataclass(slots=True)
class Part:
    """The measurements of one worker, or of all workers together."""

    groups: dict[str, Group] = field(default_factory=dict)
    stages: dict[str, Durations] = field(default_factory=dict)
    lag: Durations = field(default_factory=Durations)
    # Counted while the load was held, whenever the calls were sent.
    answered: int = 0
    texts: int = 0
    tokens: int = 0
    unsent: int = 0
    texts_sent: int = 0
    repeated: int = 0
    cpu: float = 0.0
    held_s: float = 0.0
    messages: dict[str, str] = field(default_factory=dict)

    def add(self, other: "Part") -> None:
        """Add all counts of another part; ``cpu`` and ``held_s`` stay unchanged."""
        for name, group in other.groups.items():
            self.groups.setdefault(name, Group()).add(group)
        for name, durations in other.stages.items():
            self.stages.setdefault(name, Durations()).add(durations)
        self.lag.add(other.lag)
        self.answered += other.answered
        self.texts += other.texts
        self.tokens += other.tokens
        self.unsent += other.unsent
        self.texts_sent += other.texts_sent
        self.repeated += other.repeated
        self.messages = {**other.messages, **self.messages}


def merge(
    parts: Iterable[Part], *, offered_per_s: float, seconds: float, objective_s: float, callers: int = 0, percentile: float = 99.0
) -> Point:
    """Merge the workers' measurements of one load. ``percentile`` per cent of the calls must have been sent in time."""
    all_of_them, cpus = Part(), [0.0]
    for part in parts:
        all_of_them.add(part)
        cpus.append(part.cpu)
    whole, judged = Group(), Group()
    for name, group in all_of_them.groups.items():
        whole.add(group)
        if name in JUDGED:
            judged.add(group)
    held = max(seconds, 1e-9)
    point = Point(
        offered_per_s=offered_per_s,
        seconds=seconds,
        objective_s=objective_s,
        sent=whole.sent,
        outcomes=dict(whole.outcomes),
        judged=judged.sent,
        in_time=judged.in_time,
        latency=judged.latency,
        answered_per_s=all_of_them.answered / held,
        texts_per_s=all_of_them.texts / held,
        tokens_per_s=all_of_them.tokens / held,
        texts_ok=whole.texts_ok,
        messages=all_of_them.messages,
        by_class=all_of_them.groups,
        stages=all_of_them.stages,
        lag=all_of_them.lag,
        client_cpu=max(cpus),
        client_cores=sum(cpus),
        unsent=all_of_them.unsent,
        repeated_share=all_of_them.repeated / max(1, all_of_them.texts_sent),
        callers=callers,
    )
    return replace(point, client_limited=_why_limited(point, percentile))


def _why_limited(point: Point, percentile: float) -> str:
    """Why the client was the limit and not the server; empty if it was not."""
    lag_s_max = max(LAG_SHARE_MAX * point.objective_s, min(LAG_S_MIN, LAG_SHARE_OF_TIMERS_MAX * point.objective_s))
    lag_s = point.lag.percentile(percentile)
    if point.unsent:
        return f"{point.unsent} calls were due but not sent: too many were open, or the client was too slow"
    if not point.closed_loop and lag_s > lag_s_max:
        late = f"{100 - percentile:.4g} % of the calls were sent {lag_s * 1e3:.4g} ms late or more"
        return f"{late}; the limit is {lag_s_max * 1e3:.4g} ms"
    if point.client_cpu > WORKER_CPU_MAX:
        return f"a client process used {point.client_cpu:.0%} of a core; the limit is {WORKER_CPU_MAX:.0%}"
    return ""
