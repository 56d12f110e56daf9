"""The counts of several registries are added."""

import json
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sentiment.batching.offered import WINDOW_S, OfferedLoad
from sentiment.observability.drift import Signal
from sentiment.observability.expected_accuracy import interval
from sentiment.observability.metrics import Metrics, ModelMetrics
from sentiment_front_ends.executor import Executor
from sentiment_front_ends.front_end import FrontEnd
from sentiment_front_ends.metric_totals import Counted, Totals
from tests.tiny import LABELS
from tests.virtual_time import VirtualClock


class Registry:
    """A process's registry, with a metric of each type."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("calls", "Calls.", ["code"], registry=self.registry)
        self.seconds = Histogram("seconds", "Seconds.", buckets=(1, 2), registry=self.registry)
        self.rows = Gauge("rows", "Rows.", registry=self.registry)
        self.calls.labels("OK")


def shown(totals: Totals) -> dict[str, float]:
    return {
        sample.name + "".join(f",{value}" for value in sample.labels.values()): sample.value
        for family in totals.collect()
        for sample in family.samples
    }


def test_counters_and_histograms_are_summed_and_gauges_are_the_executors() -> None:
    here, fronts = Registry(), [Registry(), Registry()]
    totals = Totals(here.registry, dict)
    counted = [Counted(front.registry) for front in fronts]
    here.rows.set(5)
    here.seconds.observe(0.5)
    for front in fronts:
        front.rows.set(7)
        front.calls.labels("OK").inc(2)
        front.seconds.observe(1.5)

    for _ in range(2):
        for one in counted:
            totals.add(one.take())
    fronts[0].calls.labels("OK").inc()
    totals.add(counted[0].take())

    found = shown(totals)
    assert found["calls_total,OK"] == 5
    assert found["rows"] == 5
    assert (found["seconds_count"], found["seconds_sum"]) == (3, 3.5)
    assert [found[f"seconds_bucket,{edge}"] for edge in ("1.0", "2.0", "+Inf")] == [1, 3, 3]
    assert counted[1].take() == []


REFERENCE = Signal.of_values("label", {label: label for label in LABELS}, {"usual": [500, 500]})


def answer(model: ModelMetrics, label: str, score: float) -> None:
    model.predicted(time.monotonic(), label, score, score < 0.6, "bulk")
    assert model.drift is not None
    model.drift.add([label])


def sending(front: Metrics, executor: Metrics, offered: OfferedLoad | None = None) -> Callable[[], dict[str, float]]:
    """Sends the executor what a front end has counted; returns what is shown then."""
    counted, totals = Counted(front.registry), Totals(executor.registry, dict)
    theirs: Any = SimpleNamespace(_counted=counted, _metrics=front)
    own: Any = SimpleNamespace(_totals=totals, _metrics=executor, _lifecycle=SimpleNamespace(offered=offered))

    def send() -> dict[str, float]:
        Executor._add_counts(own, json.loads(json.dumps(FrontEnd.counts(theirs))))
        return shown(totals)

    return send


def test_the_expected_accuracy_is_of_the_answers_of_all_processes() -> None:
    here, front = Metrics(()), Metrics(())
    own, theirs = (metrics.model("tiny/1", [], LABELS, [REFERENCE]) for metrics in (here, front))
    send = sending(front, here)
    for _ in range(50):
        answer(own, "positive", 0.9)
        for score in (0.7, 0.8, 0.8, 0.5):
            answer(theirs, "negative" if score < 0.8 else "positive", score)

    found = send()
    assert found["sentiment_expected_accuracy_texts,tiny/1"] == found["sentiment_score_count,false,tiny/1"] == 200
    assert found["sentiment_expected_accuracy,tiny/1"] == pytest.approx(0.8)
    assert found["sentiment_score_variance_total,tiny/1"] == pytest.approx(50 * (0.09 + 0.21 + 0.16 + 0.16))
    low, high = interval(200, 160.0, 31.0)
    assert found["sentiment_expected_accuracy_low,tiny/1"] == pytest.approx(low)
    assert found["sentiment_expected_accuracy_high,tiny/1"] == pytest.approx(high)
    for _ in range(1000):
        answer(theirs, "negative", 0.9)
    found = send()
    assert found["sentiment_expected_accuracy_withheld,drift,tiny/1"] == 1
    assert math.isnan(found["sentiment_expected_accuracy,tiny/1"])


def test_the_demand_is_that_of_the_busiest_event_loop_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, offered, here = VirtualClock(), OfferedLoad(), Metrics(())
    monkeypatch.setattr("sentiment_front_ends.executor.time", SimpleNamespace(monotonic=clock))
    sends = []
    for name, share in (("front-0", 0.2), ("front-1", 0.8)):
        front = Metrics(())
        front.loop_busy_seconds.watch(lambda share=share: 1.0 + share * clock.now, name)
        sends.append(sending(front, here, offered))
    for _ in range(20):
        for send in sends:
            send()
        clock.now += WINDOW_S

    assert offered.ratio(clock.now) == pytest.approx(0.8, rel=0.01)


def exemplars(totals: Totals) -> list[tuple[str, str, float]]:
    samples = [sample for family in totals.collect() for sample in family.samples if sample.exemplar]
    return [(one.labels["le"], one.exemplar.labels["trace_id"], one.exemplar.value) for one in samples]


def test_a_bucket_has_the_last_exemplar_of_any_process_in_whatever_order_they_are_collected() -> None:
    here, fronts = Registry(), [Registry(), Registry()]
    totals, counted = Totals(here.registry, dict), [Counted(front.registry) for front in fronts]
    here.seconds.observe(0.5, {"trace_id": "a"})
    fronts[1].seconds.observe(1.2, {"trace_id": "early"})
    for value, trace in ((1.4, "b"), (1.5, "c"), (5.0, "")):
        fronts[0].seconds.observe(value, {"trace_id": trace} if trace else None)

    for one in counted:
        # As it comes over the link.
        totals.add(json.loads(json.dumps(one.take())))

    assert exemplars(totals) == [("1.0", "a", 0.5), ("2.0", "c", 1.5)]


def test_counts_that_arrive_before_their_series_exists_are_shown_with_it() -> None:
    here, front = Registry(), Registry()
    totals = Totals(here.registry, dict)
    front.calls.labels("late").inc()

    totals.add(Counted(front.registry).take())
    assert "calls_total,late" not in shown(totals)
    here.calls.labels("late")

    assert shown(totals)["calls_total,late"] == 1


def test_a_model_that_is_forgotten_and_loaded_again_counts_from_zero() -> None:
    here, front = CollectorRegistry(), CollectorRegistry()
    calls, theirs = (Counter("calls", "Calls.", ["model"], registry=registry) for registry in (here, front))
    totals, counted = Totals(here, dict), Counted(front)
    for model in ("a/1", "b/1"):
        calls.labels(model)
        theirs.labels(model).inc(3)
    totals.add(counted.take())

    theirs.remove("a/1")
    counted.forget("model", "a/1")
    totals.forget("model", "a/1")
    theirs.labels("a/1").inc(2)
    totals.add(counted.take())

    found = shown(totals)
    assert (found["calls_total,a/1"], found["calls_total,b/1"]) == (2, 3)


def test_a_process_that_has_ended_is_left_out() -> None:
    here = Registry()

    assert shown(Totals(here.registry, lambda: {"front-0": 2**22 + 1})) == shown(Totals(here.registry, dict))
