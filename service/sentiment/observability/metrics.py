"""Every metric of the service, defined once. Base units, bounded labels; most label values are present from the start."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import permutations, product
from typing import Protocol, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Info, Metric, disable_created_metrics
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from sentiment.observability.callers import CallerMetrics
from sentiment.observability.drift import FALSE_ALARMS, TEXTS_MIN, WINDOW_TEXTS, Drift, Signal
from sentiment.observability.expected_accuracy import WITHHELD, ExpectedAccuracy
from sentiment.observability.instruments import Counter, Histogram, Instrument
from sentiment.observability.measured_accuracy import MeasuredAccuracy
from sentiment.observability.observing import OBSERVERS, Observing

# There is an edge at usual objectives: 10 ms and 100 ms for interactive calls, 500 ms at high load on a CPU.
REQUEST_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STAGE_EDGES_S = (2e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5)
ROWS_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TEXT_TOKENS_EDGES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# A winning probability is at least one in the number of labels; most are near 1. The same for all models, so that they can be added.
SCORE_EDGES = (0.2, 0.35, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1)

# An explanation takes 0.1 s for a short text and a minute for 512 tokens with all its parts.
EXPLAIN_EDGES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

STAGES = ("receive", "tokenize", "queue", "plan", "pad", "copy", "run", "score", "send")
# The client library's ..._created series double the page and add nothing to process_start_time_seconds.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped

PRIORITIES = ("interactive", "bulk")
# Label values by whether the model abstained.
ABSTAINED = {False: "false", True: "true"}
# Label values by whether an answer was right.
RIGHT = ABSTAINED
# Statuses of HTTP requests that are refused before they are a call: ambiguous length, foreign page, no route, wrong method, foreign host.
HTTP_REFUSALS = (400, 403, 404, 405, 421)
# Why a failure is its caller's own doing and in no objective: its deadline was too short when it arrived, or it asked for over its share.
OWN_FAULTS = ("deadline", "share")
REFUSALS = ("queue_full", "backlog", "deadline", "unavailable", "explanations")
# Events of a model version. "loaded": it passed its golden set here; "failed": it did not, and nothing else changed.
CHANGES = ("loaded", "failed", "used", "unloaded")
# Why a text of a sample was not compared: for shadow scoring, or the drift of hidden states.
SAMPLE_DROPS = ("queue_full", "failed")
# Methods whose series are there before their first call.
USUAL = ("Classify", "ClassifyBatch")
# Series that grow with calls of any method.
OF_CALLS = ("sentiment_requests_total", "sentiment_items_total", "sentiment_own_fault_total")
# Label value of requests that name no loaded model.
NO_MODEL = ""
# What the windows of a model's answers have counted: see ``ExpectedAccuracy.grown`` and ``Drift.grown``.
Grown = tuple[tuple[float, float, float], list[tuple[str, str, float]]]

V = TypeVar("V")


class Meter(Protocol):
    """Reads a device."""

    def memory_bytes(self) -> float:
        """Bytes of its memory in use."""

    def busy_ratio(self) -> float:
        """Share of the time in which it was busy, 0 to 1."""


class ReadCounter(Collector):
    """A counter whose values are kept elsewhere and read at each scrape."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name_and_help = f"sentiment_{name}", documentation
        self._labels = labels
        self._read: dict[tuple[str, ...], Callable[[], float]] = {}
        registry.register(self)

    def watch(self, read: Callable[[], float], *values: str) -> None:
        """Read the series with these label values from ``read``, whose result must never decrease."""
        self._read[values] = read

    def collect(self) -> Iterable[Metric]:
        """The counter's series."""
        family = CounterMetricFamily(*self._name_and_help, labels=self._labels)
        for values, read in self._read.items():
            family.add_metric(values, read())
        yield family


class Registry(CollectorRegistry):
    """The metrics of a process. A reader sees every outcome that a caller has received."""

    def __init__(self) -> None:
        super().__init__()
        # Counts the outcomes that are not counted yet.
        self.count_waiting: Callable[[], None] = lambda: None

    def collect(self) -> Iterable[Metric]:
        """All metric families."""
        self.count_waiting()
        return super().collect()


class Metrics:
    """The registry and its metrics. Incremented at the edges, from the event loop only.

    ``callers``: None where no tokens are needed.
    """

    callers: CallerMetrics | None = None

    def __init__(self, codes: Sequence[str]) -> None:
        """Define all metrics.

        Args:
            codes: values of the label ``code``, names of status codes.
        """
        self.registry = registry = Registry()
        self.codes = tuple(codes)
        self.models: dict[str, ModelMetrics] = {}
        # Called with a label and its value when all series with it are removed.
        self.on_forget: list[Callable[[str, str], None]] = []
        histogram = partial(Histogram, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, namespace="sentiment", registry=self.registry)
        info = partial(Info, namespace="sentiment", registry=self.registry)
        self.request_seconds = histogram(
            "request_seconds", "Time from a request's arrival to its answer.", ["method", "model"], buckets=REQUEST_EDGES_S
        )
        self.slow_requests = counter("slow_requests", "Calls that took longer than latency_objective_s.", ["method", "model"])
        self.stage_seconds = histogram(
            "stage_seconds",
            "Time spent in each stage; plan, pad, copy and run count once per batch.",
            ["stage", "model"],
            buckets=STAGE_EDGES_S,
        )
        self.explain_seconds = histogram(
            "explain_seconds",
            "Time to compute each part of an explanation, including the wait for a core.",
            ["method", "model"],
            buckets=EXPLAIN_EDGES_S,
        )
        self.batch_rows = histogram("batch_rows", "Rows per batch.", ["model"], buckets=ROWS_EDGES)
        self.batch_tokens = histogram("batch_tokens", "Tokens per batch, padding included.", ["model"], buckets=TOKENS_EDGES)
        self.requests = counter("requests", "Calls, by final status code.", ["method", "code", "model"])
        self.items = counter(
            "items", "Texts, by final status code: one in Classify, many in a batch or stream.", ["method", "code", "model"]
        )
        self.tokens = counter("tokens", "Tokens run: tokens of texts, and padding.", ["kind", "model"])
        self.batches = counter("batches", "Batches, by why they were not larger.", ["reason", "model"])
        self.refused = counter("refused", "Texts and explanations refused for lack of capacity or time.", ["reason", "model"])
        self.dropped = counter("dropped", "Rows dropped before they ran.", ["reason", "model"])
        self.wasted_rows = counter("wasted_rows", "Rows run whose result was not used.", ["reason", "model"])
        self.deadline_outcome = counter("deadline_outcome", "Texts, by outcome of their deadline.", ["outcome", "model"])
        self.runner_busy_seconds = counter("runner_busy_seconds", "Time each runner spent running batches, of all models.", ["runner"])
        read = partial(ReadCounter, registry=self.registry)
        self.loop_busy_seconds = read("loop_busy_seconds", "Time in which a process's event loop was busy.", ["process"])
        self.log_lines_dropped = read("log_lines_dropped", "Log lines lost to a slow reader or a failed write.")
        self.grpc_calls_started = read("grpc_calls_started", "Calls that gRPC core received, for any service.")
        self.grpc_calls_ended = read("grpc_calls_ended", "Calls that ended in gRPC core after they reached the event loop.")
        self.request_bytes = gauge("request_bytes", "Bytes of requests that are received or answered; see request_bytes_max.")
        self.memory_used_bytes = gauge("memory_used_bytes", "Memory of the container, without files that can be dropped; 0 if not known.")
        self.memory_limit_bytes = gauge(
            "memory_limit_bytes", "Memory that the container may use, beyond which the kernel ends the server; +Inf without a limit."
        )
        self.latency_objective_seconds = gauge("latency_objective_seconds", "The setting latency_objective_s.")
        # Also incremented by the thread that sends spans; the client library locks its values.
        locked = partial(prometheus_client.Counter, namespace="sentiment", registry=self.registry)
        self.spans_sent = locked("trace_spans_sent", "Trace spans exported without an error.")
        self.spans_dropped = locked("trace_spans_dropped", "Trace spans not exported.", ["reason"])
        for reason in ("queue_full", "not_exported"):
            self.spans_dropped.labels(reason)
        self.explanations = gauge("explanations", "Explanations waiting or running.", ["model"])
        self.model_info = info("model", "The loaded models.", ["model"])
        self.model_bytes = gauge("model_bytes", "Bytes of each loaded model's files, about the memory it takes.", ["model"])
        self.model_changes = counter("model_changes", "Model versions loaded, refused, put to use and unloaded.", ["change"])
        for change in CHANGES:
            self.model_changes.labels(change)
        self.build_info = info("build", "Versions of this service and its runtime.")
        self.observer_failures = counter("observer_failures", "Exceptions of what observes calls, texts and batches.", ["observer"])
        self.observing = Observing({observer: self.observer_failures.labels(observer).inc for observer in OBSERVERS})
        registry.count_waiting = self.observing.run_waiting
        self._define_queue(counter, gauge)
        self._define_security(counter)
        self._define_answers(histogram, counter, gauge)
        self._define_shadow(counter)

    def _define_queue(self, counter: partial[Counter], gauge: partial[Gauge]) -> None:
        """Define the metrics of what waits, what is asked for, and what callers lose by asking for too much."""
        self.own_fault = counter(
            "own_fault",
            "Texts, and calls of Explain or without a model, that failed for lack of time or room by their caller's own doing.",
            ["method", "reason", "model"],
        )
        self.queue_rows = gauge("queue_rows", "Rows waiting for a runner.", ["model"])
        self.backlog_seconds = gauge("backlog_seconds", "Predicted time until a row that arrives now would run.", ["model"])
        self.demand_ratio = gauge(
            "demand_ratio",
            "Work that callers ask for, refused or not, over what the runners of all models can do, or the busy share of the busiest event "
            "loop if that is more; 1 is full. A mean of about 15 s.",
        )
        self.run_over_predicted = gauge("run_over_predicted", "Measured over predicted run time, slowly averaged.", ["model"])

    def _define_security(self, counter: partial[Counter]) -> None:
        """Define the metrics of certificates, tokens and connections."""
        self.reload_failures = counter("reload_failures", "Checks that found unusable certificate, token or settings files.", ["files"])
        self.unauthenticated = counter("unauthenticated", "Calls without a valid token, of any method.", ["transport"])
        self.http_connections_closed = counter("http_connections_closed", "HTTP connections closed for lack of room.", ["reason"])
        self.http_refused = counter("http_refused", "HTTP requests that were refused before they were a call.", ["status"])
        for metric, values in (
            (self.http_refused, [str(status) for status in HTTP_REFUSALS]),
            (self.reload_failures, ["tls", "tokens", "settings"]),
            (self.unauthenticated, ["grpc", "http"]),
            (self.http_connections_closed, ["waiting", "new"]),
        ):
            for value in values:
                metric.labels(value)

    def _define_answers(self, histogram: partial[Histogram], counter: partial[Counter], gauge: partial[Gauge]) -> None:
        """Define the metrics of what the models answer."""
        self.predictions = counter(
            "predictions",
            "Answers, by winning label and whether its probability is below abstain_below.",
            ["label", "abstained", "priority", "model"],
        )
        self.score = histogram("score", "Calibrated probability of an answer's label.", ["abstained", "model"], buckets=SCORE_EDGES)
        self.text_tokens = histogram(
            "text_tokens", "Tokens of each answered text that were read, special tokens included.", ["model"], buckets=TEXT_TOKENS_EDGES
        )
        self.unknown_tokens = counter("unknown_tokens", "Tokens of answered texts that are not in the vocabulary.", ["model"])
        self.truncated_texts = counter("truncated_texts", "Answered texts that were not read to the end.", ["model"])
        self.early_texts = counter("early_texts", "Answered texts of which a part sufficed.", ["model"])
        self.effort_audits = counter(
            "effort_audits",
            "Texts of which a part sufficed, read in full too, by whether the answer differs.",
            ["differs", "model"],
        )
        self.known_rows = counter(
            "known_rows", "Rows answered without a run of their own: from kept answers, or shared with an equal row.", ["how", "model"]
        )
        self.answer_cache_bytes = gauge("answer_cache_bytes", "Memory for kept answers.", ["model"])
        self.effort_dropped = counter("effort_audits_dropped", "Texts that were to be read in full too and were not.", ["reason", "model"])
        self.effort_differs = gauge(
            "effort_differs",
            "Share of the texts with adaptive effort whose answer differs from reading in full: the ends of an interval that holds at all "
            "times with 95 %; NaN if over a fifth of the audits were dropped.",
            ["end", "model"],
        )
        self.effort_in_full = gauge("effort_in_full", "1 if texts are read in full because the bound of adaptive effort broke.", ["model"])
        self.foreign_texts = counter(
            "foreign_texts", "Answered texts with many word fragments, as in other languages; 0 without a WordPiece tokenizer.", ["model"]
        )
        self.expected_accuracy = gauge(
            "expected_accuracy",
            "Mean probability of the answers of the last 5 minutes, without those that abstain; NaN while it is withheld.",
            ["model"],
        )
        self.expected_accuracy_withheld = gauge(
            "expected_accuracy_withheld",
            "1 while expected_accuracy is withheld for this reason: whether it would hold for these texts is not known, or it would not.",
            ["reason", "model"],
        )
        self.expected_accuracy_texts = gauge("expected_accuracy_texts", "Answers that expected_accuracy is the mean of.", ["model"])
        end = "end of the 95 % interval of the share of right answers among the texts of expected_accuracy, if the probabilities are true."
        self.expected_accuracy_low = gauge("expected_accuracy_low", f"Lower {end}", ["model"])
        self.expected_accuracy_high = gauge("expected_accuracy_high", f"Upper {end}", ["model"])
        self.expected_accuracy_error = gauge(
            "expected_accuracy_error",
            "Largest distance of expected from true accuracy on the data sets in the model's manifest; NaN if none was recorded.",
            ["model"],
        )
        self.score_variance = counter(
            "score_variance", "Sum of p * (1 - p) over the answers that do not abstain, p the probability of the label.", ["model"]
        )
        read = partial(ReadCounter, registry=self.registry)
        self.journal_lines = read("journal_lines", "Lines written to the journal.")
        self.journal_lines_dropped = read(
            "journal_lines_dropped", "Lines of the journal lost to a slow, full or missing disk, or longer than a file."
        )
        self.feedback = counter(
            "feedback", "Labels from Feedback, by whether the answer was right and whether it abstained.", ["right", "abstained", "model"]
        )
        self.measured_accuracy = gauge(
            "measured_accuracy",
            "Share of right answers among the last 1,000 with feedback, without those that abstain; NaN if there are none.",
            ["model"],
        )
        self.measured_accuracy_texts = gauge("measured_accuracy_texts", "Answers that measured_accuracy is the share of.", ["model"])
        self.signal_texts = counter(
            "signal_texts", "Answered texts, by the bin of the model's references that each signal is in.", ["signal", "bin", "model"]
        )
        self.drift = gauge(
            "drift",
            f"Population stability index of the last {WINDOW_TEXTS:,} texts against the nearest of the model's references or mixture of "
            f"them; NaN below {TEXTS_MIN:,} texts.",
            ["signal", "model"],
        )
        self.drift_threshold = gauge(
            "drift_threshold",
            f"Drift that chance explains: without any, some signal exceeds it in {FALSE_ALARMS:.0%} of windows; so does one of "
            "hidden states.",
            ["signal", "model"],
        )
        self.drift_reference_share = gauge(
            "drift_reference_share",
            f"Share of a reference in what drift is measured against: 1 if it is this one alone; NaN below {TEXTS_MIN:,} texts.",
            ["reference", "model"],
        )
        self.drift_texts = gauge("drift_texts", "Texts that drift is measured on.", ["model"])
        self.hidden_drift_texts = gauge("hidden_drift_texts", "Texts that the drift of hidden states is measured on.", ["model"])
        self.hidden_drift_dropped = counter(
            "hidden_drift_dropped", "Texts of the sample whose hidden states were not compared.", ["reason", "model"]
        )

    def _define_shadow(self, counter: partial[Counter]) -> None:
        """Define the metrics of shadow scoring. A pair's series are there from its first text on."""
        pair = ["model", "shadow"]
        self.shadow_texts = counter("shadow_texts", "Texts that the version in use and the version beside it both answered.", pair)
        self.shadow_flips = counter(
            "shadow_flips", "Texts that the two gave different labels: from the used version's to the other's.", ["from", "to", *pair]
        )
        self.shadow_shift = counter(
            "shadow_shift",
            "Sum over the texts of how far the other version moves the probability of the used version's label, by direction.",
            ["direction", *pair],
        )
        self.shadow_dropped = counter("shadow_dropped", "Texts of the sample that were not compared.", ["reason", *pair])

    def watch_devices(self, meters: Mapping[str, Meter]) -> None:
        """Read each device's meter, by the device's name, at each scrape. Without meters these metrics do not exist."""
        if not meters:
            return
        gauge = partial(Gauge, namespace="sentiment", labelnames=["device"], registry=self.registry)
        memory = gauge("device_memory_bytes", "Bytes of a GPU's memory in use, by any process.")
        busy = gauge("device_busy_ratio", "Share of the driver's last sampling period in which a GPU was busy, 0 to 1.")
        for device, meter in meters.items():
            memory.labels(device).set_function(meter.memory_bytes)
            busy.labels(device).set_function(meter.busy_ratio)

    def count_callers(self, names: Collection[str]) -> None:
        """Count by caller from now on: these are the names of the valid tokens. Without tokens these metrics do not exist."""
        counter = partial(Counter, registry=self.registry)

        def forget(label: str, value: str) -> None:
            for forgets in self.on_forget:
                forgets(label, value)

        if self.callers is None:
            self.callers = CallerMetrics(
                counter("caller_requests", "Calls, by the name of their token and their final status code.", ["caller", "code"]),
                counter("caller_items", "Texts, by the name of their call's token and their final status code.", ["caller", "code"]),
                counter(
                    "caller_work_seconds",
                    "Run time by the name of the token: of a batch, the part of its rows by their tokens; and work on explanations.",
                    ["caller"],
                ),
                self.codes,
                forget,
            )
        self.callers.keep(names)

    def watch_certificate(self, expires_at: Callable[[], float]) -> None:
        """Read at each scrape when the server's certificate expires, in seconds since 1970. Without TLS this metric does not exist."""
        expiration = Gauge(
            "tls_certificate_expiration_timestamp_seconds",
            "When the server's certificate expires, in seconds since 1970.",
            namespace="sentiment",
            registry=self.registry,
        )
        expiration.set_function(expires_at)

    def model(
        self,
        model: str,
        runners: Sequence[str],
        labels: Sequence[str],
        signals: Sequence[Signal] = (),
        hidden: Sequence[Signal] = (),
    ) -> "ModelMetrics":
        """Create every series of a loaded model, at zero.

        ``labels``: those that it predicts; ``signals``: of each text, ``hidden``: of a sample of them; both empty without a reference.
        """
        for runner in runners:
            self.runner_busy_seconds.labels(runner)
        return ModelMetrics(self, model, labels, signals, hidden)

    def begin(self, name: str, labels: Mapping[str, str]) -> None:
        """Create the series of a method, at zero, if one with this name and these labels, of another process, is of its first call."""
        if name in OF_CALLS and (labels["model"] == NO_MODEL or labels["model"] in self.models):
            MethodMetrics(self, labels["method"], labels["model"])

    def grown(self) -> dict[str, Grown]:
        """What the models' windows have counted here since the last call, for ``add_grown`` in another process."""
        found = {model: metrics.grown() for model, metrics in self.models.items()}
        return {model: (expected, bins) for model, (expected, bins) in found.items() if any(expected) or bins}

    def add_grown(self, now: float, grown: Mapping[str, Grown]) -> None:
        """Add to the models' windows what another process has counted. ``now`` is an instant of ``time.monotonic``."""
        for model, counts in grown.items():
            if model in self.models:
                self.models[model].add_grown(now, counts)


class OnDemand(dict[str, V]):
    """Values by name that are made when they are first asked for."""

    def __init__(self, make: Callable[[str], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> V:
        made = self[name] = self._make(name)
        return made


class CallMetrics:
    """Metrics of calls, with the labels resolved. ``model`` is a loaded model's id or NO_MODEL.

    ``forgotten``: the series are removed; later increments are not exported.
    """

    forgotten = False

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.observing = metrics.observing
        # By method. Its series are there from its first call on, of all codes at once.
        self.of = OnDemand(lambda method: MethodMetrics(metrics, method, model))
        # Prometheus' rates do not see with what a series begins: of these methods not even the first errors are missed.
        for method in USUAL:
            _ = self.of[method]


class MethodMetrics:
    """Metrics of the calls of one method, ``requests`` and ``items`` by code."""

    def __init__(self, metrics: Metrics, method: str, model: str) -> None:
        self.requests = {code: metrics.requests.labels(method, code, model).inc for code in metrics.codes}
        self.items = {code: metrics.items.labels(method, code, model).inc for code in metrics.codes}
        self.own_fault = {reason: metrics.own_fault.labels(method, reason, model).inc for reason in OWN_FAULTS}
        self.seconds = metrics.request_seconds.labels(method, model).observe
        self.slow = metrics.slow_requests.labels(method, model).inc


class ModelMetrics(CallMetrics):
    """The metrics of one loaded model, with the labels resolved."""

    def __init__(self, metrics: Metrics, model: str, labels: Sequence[str], signals: Sequence[Signal], hidden: Sequence[Signal]) -> None:
        super().__init__(metrics, model)
        self.model = model
        self._predictions = {
            (label, abstained, priority): metrics.predictions.labels(label, ABSTAINED[abstained], priority, model).inc
            for label, abstained, priority in product(labels, ABSTAINED, PRIORITIES)
        }
        self._score = {abstained: metrics.score.labels(value, model).observe for abstained, value in ABSTAINED.items()}
        self.text_tokens = metrics.text_tokens.labels(model).observe
        self.unknown_tokens = metrics.unknown_tokens.labels(model).inc
        self.truncated_texts = metrics.truncated_texts.labels(model).inc
        self.early_texts = metrics.early_texts.labels(model).inc
        self.effort_audits = {differs: metrics.effort_audits.labels(str(differs).lower(), model).inc for differs in (False, True)}
        self.effort_dropped = {reason: metrics.effort_dropped.labels(reason, model) for reason in SAMPLE_DROPS}
        self.foreign_texts = metrics.foreign_texts.labels(model).inc
        self.drift = Drift(signals, lambda signal, name: metrics.signal_texts.labels(signal, name, model)) if signals else None
        if self.drift is not None:
            metrics.drift_texts.labels(model).set_function(self.drift.texts)
            for reference in signals[0].counts:
                metrics.drift_reference_share.labels(reference, model).set_function(partial(self.drift.share, reference))
            self._watch_drift(metrics, self.drift, signals)
        self._expected = ExpectedAccuracy(self.drift)
        self._watch_expected(metrics, self._expected)
        self._score_variance = metrics.score_variance.labels(model).inc
        self.hidden_drift = Drift(hidden, lambda signal, name: metrics.signal_texts.labels(signal, name, model)) if hidden else None
        if self.hidden_drift is not None:
            metrics.hidden_drift_texts.labels(model).set_function(self.hidden_drift.texts)
            self.hidden_dropped = {reason: metrics.hidden_drift_dropped.labels(reason, model) for reason in SAMPLE_DROPS}
            self._watch_drift(metrics, self.hidden_drift, hidden)
        self.measured = measured = MeasuredAccuracy()
        metrics.measured_accuracy.labels(model).set_function(measured.mean)
        metrics.measured_accuracy_texts.labels(model).set_function(measured.texts)
        self.feedback = {
            (right, abstained): metrics.feedback.labels(RIGHT[right], ABSTAINED[abstained], model).inc
            for right, abstained in product(RIGHT, ABSTAINED)
        }
        self.stage = {stage: metrics.stage_seconds.labels(stage, model).observe for stage in STAGES}
        self.batch_rows = metrics.batch_rows.labels(model).observe
        self.batch_tokens = metrics.batch_tokens.labels(model).observe
        self.real_tokens = metrics.tokens.labels("real", model).inc
        self.padded_tokens = metrics.tokens.labels("padded", model).inc
        reasons = ("full", "alike", "spread", "tight", "retry", "wide")
        self.batches = {reason: metrics.batches.labels(reason, model).inc for reason in reasons}
        self.refused = {reason: metrics.refused.labels(reason, model).inc for reason in REFUSALS}
        self.known = {how: metrics.known_rows.labels(how, model).inc for how in ("kept", "shared")}
        self.dropped = {reason: metrics.dropped.labels(reason, model).inc for reason in ("cancelled", "expired", "hopeless")}
        self.wasted = {reason: metrics.wasted_rows.labels(reason, model).inc for reason in ("abandoned", "failed")}
        self.outcome = {
            name: metrics.deadline_outcome.labels(name, model).inc for name in ("met", "expired", "refused", "cancelled", "failed")
        }
        self.explain_seconds = OnDemand(lambda name: metrics.explain_seconds.labels(name, model).observe)
        self._metrics = metrics
        metrics.models[model] = self

    def predicted(self, now: float, label: str, score: float, abstained: bool, priority: str) -> None:
        """Count an answer. ``now`` is an instant of ``time.monotonic``."""
        self._predictions[label, abstained, priority]()
        self._score[abstained](score)
        if abstained:
            self._expected.add(now, 0, 0.0, 0.0)
        else:
            variance = score * (1 - score)
            self._expected.add(now, 1, score, variance)
            self._score_variance(variance)

    def grown(self) -> Grown:
        """What the windows of its answers have counted since the last call."""
        return self._expected.grown(), [] if self.drift is None else self.drift.grown()

    def add_grown(self, now: float, grown: Grown) -> None:
        """Add what another process has counted. ``now`` is an instant of ``time.monotonic``."""
        expected, bins = grown
        # First, also if all answers abstain: its slot notes the texts before it.
        self._expected.add(now, *expected)
        if self.drift is not None:
            self.drift.add_counts(bins)

    def _watch_expected(self, metrics: Metrics, expected: ExpectedAccuracy) -> None:
        """Read the gauges of the expected accuracy at each scrape."""

        def watch(gauge: Gauge, read: Callable[[float], float], *values: str) -> None:
            gauge.labels(*values, self.model).set_function(lambda: read(time.monotonic()))

        def withheld(reason: str) -> Callable[[float], float]:
            return lambda now: float(expected.withheld(now) == reason)

        watch(metrics.expected_accuracy, expected.mean)
        watch(metrics.expected_accuracy_texts, expected.texts)
        watch(metrics.expected_accuracy_low, lambda now: expected.interval(now)[0])
        watch(metrics.expected_accuracy_high, lambda now: expected.interval(now)[1])
        for reason in WITHHELD:
            watch(metrics.expected_accuracy_withheld, withheld(reason), reason)

    def _watch_drift(self, metrics: Metrics, drift: Drift, signals: Sequence[Signal]) -> None:
        """Read the gauges of drift at each scrape."""
        for signal in signals:
            metrics.drift.labels(signal.name, self.model).set_function(partial(drift.index, signal.name))
            metrics.drift_threshold.labels(signal.name, self.model).set_function(partial(drift.threshold, signal.name))

    def worked(self, number: int, seconds: float) -> None:
        """Add work to the caller with this number, if callers are counted."""
        if self._metrics.callers is not None:
            self._metrics.callers.worked(number, seconds)

    def runner_busy(self, runner: str, seconds: float) -> None:
        """Add a batch's time to its runner."""
        self._metrics.runner_busy_seconds.labels(runner).inc(seconds)

    def watch_queue(self, rows: Callable[[], float], backlog_s: Callable[[], float], run_over_predicted: Callable[[], float]) -> None:
        """Read the gauges of the queue at each scrape."""
        self._metrics.queue_rows.labels(self.model).set_function(rows)
        self._metrics.backlog_seconds.labels(self.model).set_function(backlog_s)
        self._metrics.run_over_predicted.labels(self.model).set_function(run_over_predicted)

    def watch_known(self, size: Callable[[], float]) -> None:
        """Read the memory for kept answers at each scrape."""
        self._metrics.answer_cache_bytes.labels(self.model).set_function(size)

    def watch_effort(self, low: Callable[[], float], high: Callable[[], float], in_full: Callable[[], float]) -> None:
        """Read the gauges of adaptive effort at each scrape."""
        for end, read in (("low", low), ("high", high)):
            self._metrics.effort_differs.labels(end, self.model).set_function(read)
        self._metrics.effort_in_full.labels(self.model).set_function(in_full)

    def watch_explanations(self, calls: Callable[[], float]) -> None:
        """Read the number of explanations at each scrape."""
        self._metrics.explanations.labels(self.model).set_function(calls)

    def describe(self, size: int, expected_accuracy_error: float, **facts: str) -> None:
        """Set the model's facts, the bytes of its files, and its error of the expected accuracy, which may be NaN."""
        self._metrics.model_info.labels(self.model).info(facts)
        self._metrics.model_bytes.labels(self.model).set(size)
        self._metrics.expected_accuracy_error.labels(self.model).set(expected_accuracy_error)

    def forget(self) -> None:
        """Remove all series of the model, after its last calls have been counted."""
        self.observing.run_waiting()
        self.forgotten = True
        # Of calls and explanations that end later.
        gone = Metrics(self._metrics.codes)
        self.of = OnDemand(lambda method: MethodMetrics(gone, method, self.model))
        self.explain_seconds = OnDemand(lambda name: gone.explain_seconds.labels(name, self.model).observe)
        self._metrics.models.pop(self.model, None)
        for metric in vars(self._metrics).values():
            if isinstance(metric, Instrument):
                metric.remove("model", self.model)
                metric.remove("shadow", self.model)
            elif isinstance(metric, MetricWrapperBase):
                with contextlib.suppress(ValueError):  # it has no such label
                    metric.remove_by_labels({"model": self.model})
        for forget in self._metrics.on_forget:
            forget("model", self.model)


class ShadowMetrics:
    """The metrics of one comparison, with the labels resolved. They go with either version."""

    def __init__(self, metrics: Metrics, pair: tuple[str, str], labels: Sequence[str]) -> None:
        """Create every series, at zero. ``pair``: the version in use, and the one beside it. ``labels``: those of both."""
        self.texts = metrics.shadow_texts.labels(*pair)
        self.flips = {flip: metrics.shadow_flips.labels(*flip, *pair) for flip in permutations(labels, 2)}
        self.shift = {direction: metrics.shadow_shift.labels(direction, *pair) for direction in ("up", "down")}
        self.dropped = {reason: metrics.shadow_dropped.labels(reason, *pair) for reason in SAMPLE_DROPS}
