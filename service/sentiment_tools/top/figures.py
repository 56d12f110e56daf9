"""What happened between two readings of a server's metrics. Pure: knows no network, clock or terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Labels = Mapping[str, str]
Series = Mapping[frozenset[tuple[str, str]], float]

# Status codes of calls that ended as they should.
OK = "OK"
NAN = math.nan
_START = "process_start_time_seconds"
# Methods whose calls last as long as their caller likes.
STREAMS = ("ClassifyStream", "Explain")


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples of one metrics page. ``at``: an instant of the monotonic clock, in seconds."""

    at: float
    samples: Mapping[str, Series] = field(default_factory=dict)

    def each(self, name: str) -> Iterable[tuple[Labels, float]]:
        """The labels and values of a metric's series; none if the page does not have it."""
        return ((dict(labels), value) for labels, value in self.samples.get(name, {}).items())

    def one(self, name: str, **labels: str) -> float:
        """The value of the first series with these labels; NaN if there is none."""
        return next((value for found, value in self.each(name) if labels.items() <= found.items()), NAN)


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one method. Rates are per second; times are in seconds, NaN without a call, infinity past the last bucket.

    ``late``: share of the calls that took longer than the server's latency objective.
    """

    method: str
    calls: float
    texts: float
    failed: Mapping[str, float]
    p50_s: float
    p99_s: float
    late: float


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal of drift: its index and the threshold that chance explains."""

    name: str
    index: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model answers. ``labels``: texts of each label in the longer span; ``drift``: empty without a reference; ``hidden``: of
    hidden states, empty without ``hidden_drift_share``.
    """

    model: str
    labels: Mapping[str, float]
    abstained: float
    expected: float
    low: float
    high: float
    expected_texts: float
    # Why there is no expected accuracy; empty if there is one, or the server does not say.
    withheld: str
    measured: float
    measured_texts: float
    drift: Sequence[Signal]
    drift_texts: float
    hidden: Sequence[Signal]
    hidden_texts: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One picture of a server. Rates are per second over ``seconds``; answers are over ``answers_s``, which is longer.

    Maps without an entry, and NaN, say that the server does not have the metric.
    """

    version: str
    runtime: str
    started_at: float
    restarted: bool
    seconds: float
    answers_s: float
    objective_s: float
    calls: Sequence[Calls]
    classes: Mapping[str, float]
    outcomes: Mapping[str, float]
    refused: Mapping[str, float]
    unauthenticated: float
    queue_rows: float
    backlog_s: float
    # Of the work that is offered, over what the server can do.
    demand: float
    explanations: float
    batches: float
    rows: float
    tokens: float
    padding: float
    stages_s: Mapping[str, float]
    cores: float
    memory_bytes: float
    runners: Mapping[str, float]
    loops: Mapping[str, float]
    devices: Mapping[str, tuple[float, float]]
    models: Sequence[Labels]
    answers: Sequence[Answers]

    @property
    def texts(self) -> float:
        """Answered texts per second."""
        return sum(self.classes.values())

    @property
    def p99_s(self) -> float:
        """The longest 99th percentile of the methods whose calls have one answer, in seconds; NaN without a call."""
        unary = (calls.p99_s for calls in self.calls if calls.method not in STREAMS and not math.isnan(calls.p99_s))
        return max(unary, default=NAN)


def same_run(one: Reading, other: Reading) -> bool:
    """Whether two readings are of one run of the server, by its start. Without one, as on macOS, only falling counters tell."""
    starts = one.one(_START), other.one(_START)
    return starts[0] == starts[1] or any(map(math.isnan, starts))


def figures(before: Reading, after: Reading, longer: Reading) -> Figures:
    """The figures between two readings of the same server.

    Args:
        before: the earlier reading.
        after: the later one.
        longer: a reading not later than ``before``, for shares of answers, which are rough over a few seconds.
    """
    started_at = after.one(_START)
    now = _Growth(before, after)
    build = next((labels for labels, _ in after.each("sentiment_build_info")), {})
    batches = now.sum("sentiment_batch_rows_count")
    tokens = now.by("sentiment_tokens_total", "kind")
    return Figures(
        version=build.get("version", ""),
        runtime=build.get("onnxruntime", ""),
        started_at=started_at,
        restarted=not same_run(before, after),
        seconds=now.seconds,
        answers_s=after.at - longer.at,
        objective_s=after.one("sentiment_latency_objective_seconds"),
        calls=_calls(now),
        classes=now.rates("sentiment_predictions_total", "priority"),
        outcomes=now.rates("sentiment_deadline_outcome_total", "outcome"),
        refused=now.rates("sentiment_refused_total", "reason"),
        unauthenticated=now.sum("sentiment_unauthenticated_total") / now.seconds,
        queue_rows=_sum(after, "sentiment_queue_rows"),
        backlog_s=max((value for _, value in after.each("sentiment_backlog_seconds")), default=NAN),
        demand=after.one("sentiment_demand_ratio"),
        explanations=_sum(after, "sentiment_explanations"),
        batches=batches / now.seconds,
        rows=_ratio(now.sum("sentiment_batch_rows_sum"), batches),
        tokens=_ratio(now.sum("sentiment_batch_tokens_sum"), batches),
        padding=_ratio(tokens.get("padded", 0.0), sum(tokens.values())),
        stages_s={
            stage: _ratio(seconds, now.sum("sentiment_stage_seconds_count", stage=stage))
            for stage, seconds in now.by("sentiment_stage_seconds_sum", "stage").items()
        },
        cores=now.sum("process_cpu_seconds_total") / now.seconds,
        memory_bytes=_sum(after, "process_resident_memory_bytes"),
        runners=now.rates("sentiment_runner_busy_seconds_total", "runner"),
        loops=now.rates("sentiment_loop_busy_seconds_total", "process"),
        devices={
            labels["device"]: (value, after.one("sentiment_device_memory_bytes", device=labels["device"]))
            for labels, value in after.each("sentiment_device_busy_ratio")
        },
        models=[labels for labels, _ in after.each("sentiment_model_info")],
        answers=_answers(_Growth(longer, after), after),
    )


class _Growth:
    """How much counters grew. A counter that fell was reset, as all are when the server restarts."""

    def __init__(self, before: Reading, after: Reading) -> None:
        self.seconds = max(after.at - before.at, 1e-9)
        self._before = before if same_run(before, after) else Reading(before.at)
        self._after = after

    def each(self, name: str) -> Iterable[tuple[Labels, float]]:
        known = self._before.samples.get(name, {})
        for labels, value in self._after.samples.get(name, {}).items():
            old = known.get(labels, 0.0)
            yield dict(labels), value - old if value >= old else value

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The growth of the series with these labels, added up by one label. Without the metric there is no entry."""
        found: dict[str, float] = {}
        for each, growth in self.each(name):
            if labels.items() <= each.items():
                found[each.get(label, "")] = found.get(each.get(label, ""), 0.0) + growth
        return found

    def rates(self, name: str, label: str) -> dict[str, float]:
        return {value: growth / self.seconds for value, growth in self.by(name, label).items()}

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.by(name, "", **labels).values())

    def quantiles(self, name: str, shares: Sequence[float], **labels: str) -> list[float]:
        """Quantiles of a histogram, straight within a bucket, as Prometheus computes them; infinity past the last edge."""
        edges = sorted((float(edge.replace("Inf", "inf")), count) for edge, count in self.by(f"{name}_bucket", "le", **labels).items())
        total = edges[-1][1] if edges else 0.0
        return [_quantile(edges, share * total) if total else NAN for share in shares]


def _quantile(edges: Sequence[tuple[float, float]], rank: float) -> float:
    low, below = 0.0, 0.0
    for edge, count in edges:
        if count >= rank:
            return edge if math.isinf(edge) else low + (edge - low) * _ratio(rank - below, count - below)
        low, below = edge, count
    return math.inf


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else NAN


def _sum(reading: Reading, name: str) -> float:
    values = [value for _, value in reading.each(name)]
    return sum(values) if values else NAN


def _calls(now: _Growth) -> list[Calls]:
    """The methods that were called, the busiest first."""
    found = []
    for method, calls in now.by("sentiment_requests_total", "method").items():
        texts = now.by("sentiment_items_total", "code", method=method)
        if not calls and not any(texts.values()):
            continue
        failed = {code: count / now.seconds for code, count in now.by("sentiment_requests_total", "code", method=method).items()}
        p50_s, p99_s = now.quantiles("sentiment_request_seconds", (0.5, 0.99), method=method)
        found.append(
            Calls(
                method=method,
                calls=calls / now.seconds,
                texts=texts.get(OK, 0.0) / now.seconds,
                failed={code: rate for code, rate in failed.items() if code != OK and rate},
                p50_s=p50_s,
                p99_s=p99_s,
                late=_ratio(now.sum("sentiment_slow_requests_total", method=method), calls),
            )
        )
    return sorted(found, key=lambda calls: (-calls.calls, calls.method))


def _answers(growth: _Growth, after: Reading) -> list[Answers]:
    models = sorted({labels["model"] for labels, _ in after.each("sentiment_predictions_total")})

    def withheld(model: str) -> str:
        reasons = after.each("sentiment_expected_accuracy_withheld")
        return next((labels["reason"] for labels, value in reasons if labels.get("model") == model and value), "")

    def drift(model: str, hidden: bool) -> list[Signal]:
        return [
            Signal(labels["signal"], value, after.one("sentiment_drift_threshold", signal=labels["signal"], model=model))
            for labels, value in after.each("sentiment_drift")
            if labels["model"] == model and labels["signal"].startswith("hidden_") == hidden
        ]

    return [
        Answers(
            model=model,
            labels=growth.by("sentiment_predictions_total", "label", model=model),
            abstained=growth.sum("sentiment_predictions_total", model=model, abstained="true"),
            expected=after.one("sentiment_expected_accuracy", model=model),
            low=after.one("sentiment_expected_accuracy_low", model=model),
            high=after.one("sentiment_expected_accuracy_high", model=model),
            expected_texts=after.one("sentiment_expected_accuracy_texts", model=model),
            withheld=withheld(model),
            measured=after.one("sentiment_measured_accuracy", model=model),
            measured_texts=after.one("sentiment_measured_accuracy_texts", model=model),
            drift=drift(model, hidden=False),
            drift_texts=after.one("sentiment_drift_texts", model=model),
            hidden=drift(model, hidden=True),
            hidden_texts=after.one("sentiment_hidden_drift_texts", model=model),
        )
        for model in models
    ]
