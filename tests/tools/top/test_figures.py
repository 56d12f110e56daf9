"""Figures between two metrics pages: rates, quantiles, and servers that restart."""

import math
import random
import re

import pytest

from sentiment_tools.top.figures import Figures, Reading, figures
from sentiment_tools.top.lines import Frame, picture, plain
from tests.conftest import RunningServer

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def reading(at: float, start: float = 1e9, **series: dict[str, float] | float) -> Reading:
    """A page. Series are by the name without its prefix; labels are given as "name=value,name=value"."""
    samples: Samples = {"process_start_time_seconds": {frozenset(): start}}
    for name, values in series.items():
        known = values if isinstance(values, dict) else {"": values}
        full = name if name.startswith("process_") else f"sentiment_{name}"
        samples[full] = {
            frozenset(tuple(label.split("=")) for label in labels.split(",") if label): value  # type: ignore[misc]  # two parts
            for labels, value in known.items()
        }
    return Reading(at, samples)


def between(before: Reading, after: Reading) -> Figures:
    return figures(before, after, before)


def test_rates_are_of_the_time_between_two_readings() -> None:
    calls = "method=Classify,model=m/1,code="
    before = reading(10, requests_total={f"{calls}OK": 100, f"{calls}INTERNAL": 5}, items_total={f"{calls}OK": 100})
    after = reading(14, requests_total={f"{calls}OK": 140, f"{calls}INTERNAL": 7}, items_total={f"{calls}OK": 140})

    (found,) = between(before, after).calls

    assert (found.method, found.calls, found.texts, found.failed) == ("Classify", 10.5, 10.0, {"INTERNAL": 0.5})


def test_quantiles_are_those_of_the_calls_between_two_readings_to_a_bucket() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    edges = (0.001, 0.01, 0.1, 1.0, math.inf)
    values = random.Random(seed)
    times = sorted(values.uniform(0, 1) ** 3 for _ in range(1000))
    earlier = dict.fromkeys(edges, 17.0)

    def page(at: float, counts: dict[float, float]) -> Reading:
        buckets = {f"method=Classify,model=m/1,le={edge}": count for edge, count in counts.items()}
        return reading(at, request_seconds_bucket=buckets, requests_total={"method=Classify,code=OK,model=m/1": counts[math.inf]})

    (found,) = between(page(0, earlier), page(1, {edge: 17 + sum(t <= edge for t in times) for edge in edges})).calls

    for share, value in ((0.5, found.p50_s), (0.99, found.p99_s)):
        true = times[round(share * 1000) - 1]
        bucket = next(edge for edge in edges if true <= edge)
        assert max((edge for edge in edges if edge < bucket), default=0) <= value <= bucket


def test_a_quantile_past_the_last_edge_is_infinite_and_shown_as_more() -> None:
    buckets = {"method=Classify,model=m/1,le=60.0": 0.0, "method=Classify,model=m/1,le=+Inf": 3.0}
    page = reading(1, request_seconds_bucket=buckets, requests_total={"method=Classify,code=OK,model=m/1": 3.0})

    found = between(reading(0), page)

    assert found.calls[0].p99_s == math.inf
    assert "> 60 s" in plain(picture(found, "url", 0, Frame(80)))


def test_after_a_restart_counters_count_from_zero_and_nothing_is_negative() -> None:
    name = "priority=bulk,label=good,abstained=false,model=m/1"
    before = reading(0, start=1e9, predictions_total={name: 500}, process_cpu_seconds_total=40)
    # More than before, so that only the start tells.
    after = reading(2, start=1e9 + 50, predictions_total={name: 510}, process_cpu_seconds_total=1)

    found = between(before, after)

    assert found.restarted
    assert (found.classes, found.cores, found.answers[0].labels) == ({"bulk": 255.0}, 0.5, {"good": 510.0})
    assert "restarted" in plain(picture(found, "url", 1e9, Frame(80)))


def test_a_server_that_does_not_tell_its_start_is_not_taken_for_a_restarted_one() -> None:
    name = "priority=bulk,label=good,abstained=false,model=m/1"
    before, after = (reading(at, math.nan, predictions_total={name: texts}) for at, texts in ((0, 500), (2, 510)))

    found = between(before, after)

    assert not found.restarted
    assert (found.classes, found.answers[0].labels) == ({"bulk": 5.0}, {"good": 10.0})


def test_the_memory_of_all_processes_is_shown() -> None:
    memory = {"process=executor": 3e8, "process=front-end-0": 1e8, "process=front-end-1": 1e8}

    assert between(reading(0), reading(1, process_resident_memory_bytes=memory)).memory_bytes == 5e8


def test_a_counter_that_fell_was_reset() -> None:
    before = reading(0, runner_busy_seconds_total={"runner=cpu-0": 9.0, "runner=cpu-1": 3.0})
    after = reading(2, runner_busy_seconds_total={"runner=cpu-0": 1.0, "runner=cpu-1": 4.0})

    assert between(before, after).runners == {"cpu-0": 0.5, "cpu-1": 0.5}


def test_the_demand_is_shown_beside_the_queue() -> None:
    assert "demand 240 %" in plain(picture(between(reading(0), reading(1, demand_ratio=2.4)), "url", 0, Frame(80)))


def test_a_page_without_anything_has_no_figure_and_a_picture() -> None:
    found = between(Reading(0), Reading(1))

    text = plain(picture(found, "url", 0, Frame(80)))
    assert "calls\n" not in text
    assert "none" in text
    assert "no model" in text
    assert "nan" not in text.lower()


def test_a_server_at_rest_has_no_p99_and_its_trend_a_dash() -> None:
    rest = between(reading(0), reading(1))

    assert re.search(r"p99 +max -$", plain(picture(rest, "url", 0, Frame(80), [rest, rest])), re.M)


def test_shares_of_answers_are_over_the_longer_span() -> None:
    def page(at: float, good: float, bad: float) -> Reading:
        rest = "priority=bulk,abstained=false,model=m/1"
        return reading(at, predictions_total={f"label=good,{rest}": good, f"label=bad,{rest}": bad})

    found = figures(page(58, 90, 30), page(60, 90, 40), page(0, 0, 0))

    assert found.classes == {"bulk": 5.0}
    assert (found.answers_s, found.answers[0].labels) == (60.0, {"good": 90.0, "bad": 40.0})
    assert "good 69.2 %" in plain(picture(found, "url", 0, Frame(80)))


def test_gpus_have_lines_where_there_are_any() -> None:
    devices = {"device_busy_ratio": {"device=cuda:0": 0.87}, "device_memory_bytes": {"device=cuda:0": 4.2e9}}

    text = plain(picture(between(reading(0), reading(1, **devices)), "url", 0, Frame(80)))

    assert "gpu      cuda:0 87 % busy  4.2 GB in use" in text
    assert "gpu" not in plain(picture(between(reading(0), reading(1)), "url", 0, Frame(80)))


@pytest.mark.parametrize(("index", "warned"), [(0.2, False), (0.3, True), (math.nan, False)])
def test_drift_is_a_warning_where_the_alert_fires(index: float, warned: bool) -> None:
    drift = {
        "predictions_total": {"label=good,priority=bulk,abstained=false,model=m/1": 1.0},
        "drift": {"signal=score,model=m/1": index, "signal=label,model=m/1": 0.01 if index == index else math.nan},
        "drift_threshold": {"signal=score,model=m/1": 0.05, "signal=label,model=m/1": 0.05},
        "drift_texts": {"model=m/1": 1234},
    }

    lines = picture(between(reading(0), reading(1, **drift)), "url", 0, Frame(80))

    (line,) = (line for line in lines if "drift" in plain([line]))
    assert ("warn" in {style for _, style in line}) is warned
    assert ("too few texts" in plain([line])) is math.isnan(index)
    assert "1,234 texts" in plain([line])


@pytest.mark.parametrize(
    ("reason", "said", "style"),
    [("drift", "drift", "warn"), ("few_texts", "too few texts", "dim"), ("no_reference", "no reference", "dim")],
)
def test_an_expected_accuracy_that_is_withheld_is_not_shown_and_why_is(reason: str, said: str, style: str) -> None:
    reasons = {f"reason={one},model=m/1": float(one == reason) for one in ("drift", "few_texts", "no_reference")}
    page = {
        "predictions_total": {"label=good,priority=bulk,abstained=false,model=m/1": 1.0},
        "expected_accuracy": {"model=m/1": math.nan},
        "expected_accuracy_texts": {"model=m/1": 1234},
        "expected_accuracy_withheld": reasons,
    }

    lines = picture(between(reading(0), reading(1, **page)), "url", 0, Frame(80))

    (line,) = (line for line in lines if "expected accuracy" in plain([line]))
    assert plain([line]).strip() == f"expected accuracy withheld: {said}, 1,234 texts"
    assert [shown for _, shown in line[1:]] == [style]


def test_the_drift_of_hidden_states_has_a_line_with_its_own_number_of_texts() -> None:
    drift = {
        "predictions_total": {"label=good,priority=bulk,abstained=false,model=m/1": 1.0},
        "drift": {"signal=score,model=m/1": 0.1, "signal=hidden_1,model=m/1": 0.2, "signal=hidden_2,model=m/1": 0.4},
        "drift_threshold": {"signal=score,model=m/1": 0.05, "signal=hidden_1,model=m/1": 0.05, "signal=hidden_2,model=m/1": 0.05},
        "drift_texts": {"model=m/1": 2000},
        "hidden_drift_texts": {"model=m/1": 1234},
    }

    lines = picture(between(reading(0), reading(1, **drift)), "url", 0, Frame(80))

    found = [plain([line]).split() for line in lines if "drift" in plain([line])]
    assert [(line[1], line[3], line[-2]) for line in found] == [("0.10", "score", "2,000"), ("0.40", "hidden_2", "1,234")]


@pytest.fixture(scope="module")
def busy(server: RunningServer) -> Figures:
    """Figures of a real page, with every method called and all rates above zero."""
    from sentiment.security.client_credentials import Credentials
    from sentiment_tools.top.scrape import Scraper

    with server.client() as client:
        client.classify("good")
        client.classify_batch(["good", "awful"])
    page = Scraper(server.url, Credentials()).read()
    # As if each method had been called, and each fate met.
    whole = Reading(page.at, {name: {labels: value + 7 for labels, value in each.items()} for name, each in page.samples.items()})
    return figures(Reading(page.at - 2), whole, Reading(page.at - 60))


@pytest.mark.parametrize("width", [1, 4, 20, 50, 79, 80, 129, 130, 200])
@pytest.mark.parametrize("height", [1, 2, 10, 23, 24, 60])
def test_the_picture_keeps_within_the_window(busy: Figures, width: int, height: int) -> None:
    lines = picture(busy, "http://127.0.0.1:8080/metrics", 2e9, Frame(width, height), [busy, between(reading(0), reading(1))] * 150)

    assert len(lines) <= height
    assert [line for line in plain(lines).splitlines() if len(line) > width] == []
    assert height > 1 or width < 40 or "enlarge" in plain(lines)


@pytest.mark.parametrize(("width", "height"), [(80, 40), (140, 40)])
def test_with_room_every_part_is_shown(busy: Figures, width: int, height: int) -> None:
    text = plain(picture(busy, "url", 2e9, Frame(width, height), [busy]))

    parts = ["calls", "Classify", "texts/s", "interactive", "refused", "expired", "cancelled", "queue", "batches", "cpu", "memory"]
    parts += ["runners", "serves", "tiny/1", "answers", "positive", "abstain", "expected accuracy", "drift", "trend", "p99", "> 7.50 s"]
    assert [part for part in parts if part not in text] == []


def test_a_label_cannot_steer_the_terminal_and_ascii_is_enough(busy: Figures) -> None:
    evil = reading(1, model_info={"model=\x1b[2Jx,precision=\r,provider=p,digest=d": 1.0}, loop_busy_seconds_total={"process=\x07": 1.0})

    assert not set(plain(picture(between(reading(0), evil), "url", 0, Frame(80)))) & set("\x1b\r\x07")
    assert plain(picture(busy, "url", 2e9, Frame(140, 40, blocks=False), [busy])).isascii()
