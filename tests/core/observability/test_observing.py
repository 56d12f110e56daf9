"""What observes comes after the callers, and what it raises reaches nobody."""

import asyncio
from collections.abc import Callable

import pytest
import structlog

from sentiment.observability.metrics import Metrics
from sentiment.observability.observing import Observing
from sentiment.observability.tracing.start import NeverRaises
from sentiment.observability.tracing.trace import Begin, Headers, Place, Span, Tracer

SECRET = "a text of a user"


def fail(*_: object) -> None:
    raise KeyError(SECRET)


def failures(metrics: Metrics, observer: str) -> float:
    return metrics.registry.get_sample_value("sentiment_observer_failures_total", {"observer": observer}) or 0.0


async def test_every_caller_told_in_a_turn_has_its_turn_before_what_observes() -> None:
    observing, order = Metrics(()).observing, list[str]()
    loop = asyncio.get_running_loop()

    async def wait(told: "asyncio.Future[None]") -> None:
        await told
        order.append("caller")

    futures = [loop.create_future() for _ in range(3)]
    callers = [asyncio.create_task(wait(told)) for told in futures]
    await asyncio.sleep(0)

    def tell_all() -> None:
        for told in futures:
            told.set_result(None)
            observing.later("answer", order.append, "observer")

    loop.call_soon(tell_all)
    await asyncio.gather(*callers)
    await asyncio.sleep(0)

    assert order == ["caller"] * 3 + ["observer"] * 3


async def test_what_one_raises_is_counted_and_the_others_run() -> None:
    metrics, seen = Metrics(()), list[str]()
    for observe in (fail, seen.append, fail, seen.append):
        metrics.observing.later("drift", observe, "seen")
    assert metrics.observing.run("journal", fail) is None
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert seen == ["seen", "seen"]
    assert (failures(metrics, "drift"), failures(metrics, "journal"), failures(metrics, "answer")) == (2, 1, 0)


async def test_each_kind_is_logged_once_with_its_place_and_without_what_it_says() -> None:
    observing = Metrics(()).observing

    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            observing.run("drift", fail)
        observing.run("journal", fail)

    assert [(line["event"], line["observer"], line["error"]) for line in logs] == [
        ("observer_failed", "drift", "KeyError"),
        ("observer_failed", "journal", "KeyError"),
    ]
    assert all("test_observing.py" in line["where"] and SECRET not in str(line) for line in logs)


async def test_a_reader_of_the_metrics_sees_every_answer_that_was_sent() -> None:
    metrics = Metrics(("OK",))

    metrics.observing.later("call", metrics.requests.labels("Classify", "OK", "").inc)

    assert metrics.registry.get_sample_value("sentiment_requests_total", {"method": "Classify", "code": "OK", "model": ""}) == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_held_up(end: type[BaseException]) -> None:
    def stop() -> None:
        raise end

    with pytest.raises(end):
        Observing({}).run("answer", stop)


class Broken:
    """An outlet that raises."""

    def __init__(self) -> None:
        self.sample: Callable[[Headers, bool], Begin | None] = fail  # type: ignore[assignment]  # as a bug would
        self.put: Callable[[Span], None] = fail

    def new_place(self) -> Place:
        return Place(1, 2)

    def close(self) -> None:
        pass


def test_an_outlet_that_raises_costs_traces_and_nothing_else() -> None:
    metrics = Metrics(())
    tracer = Tracer(NeverRaises(Broken(), metrics.observing))

    assert tracer.request(()) is None
    tracer.join(Place(1, 2)).stage("run", 0.0, 1.0, {})

    assert failures(metrics, "trace") == 2
