"""A plan is corrected by what a load test measured, and says which file cannot correct it and why."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentiment.errors import BadSettings
from sentiment_tools.loadtest.results import Point
from sentiment_tools.planning.calibration import Calibration, Measured, calibrate, read_measured
from sentiment_tools.planning.closed_loop import capacity_per_s
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.outcome import Fate
from sentiment_tools.planning.simulation import Fleet, draw_traffic, simulate
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.lengths import parse_lengths
from tests.tools.loadtest.test_search import held
from tests.tools.planning.test_search import outcome

KEY = {"digest": "a" * 64, "device": "CPUExecutionProvider AMD EPYC, 2 cores"}
MACHINE = Machine({(1, 8): 5e-3, (8, 8): 30e-3, (1, 32): 10e-3, (8, 32): 60e-3}, key=KEY)
SERVER = {"model": "english/2", "digest": "a" * 64, "provider": "CPUExecutionProvider"}
LOAD = {"law": "poisson:1", "texts": "32", "column": "text", "timeout_s": [5.0, 5.0], "bulk": 0.0, "per_call": 1, "stream": False}
LOAD |= {"cancel": 0.0, "explain": 0.0, "slow_readers": 0.0, "zipf": 0.0}


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Path]:
    """Writes the JSON of a load test, with changed parts."""

    def write(*points: Point, changed: Any = None, server: Any = SERVER, **parts: Any) -> Path:  # Any: JSON
        path = tmp_path / "report.json"
        kept = {
            "meta": server,
            "slo": {"objective_s": 0.5},
            "load": LOAD | (changed or {}),
            "points": [point.to_json() for point in points],
        }
        path.write_text(json.dumps(kept | parts))
        return path

    return write


def calibrated(path: Path, machine: Machine = MACHINE) -> Calibration:
    return calibrate(machine, read_measured(path), 4096, seed=1)


def test_a_machine_that_was_measured_as_it_is_simulated_needs_no_correction(report: Callable[..., Path]) -> None:
    traffic = draw_traffic(Poisson(20), parse_lengths("32"), 1000, seed=7)
    found = simulate(traffic, Fleet(MACHINE, 1), seed=7)
    p50_s, p99_s = (found.percentile_s(percentile) for percentile in (50, 99))
    path = report(held(20.0))
    kept = json.loads(path.read_text())
    kept["points"][0]["percentiles_s"] = {"p50": p50_s, "p99": p99_s}
    path.write_text(json.dumps(kept))

    calibration = calibrated(path)

    assert calibration.p50 == pytest.approx(1.0, abs=0.15) and calibration.p99 == pytest.approx(1.0, abs=0.25)
    assert calibration.cost == 1.0 and calibration.doubts == ()
    assert calibration.says.startswith(f"p99 there {1e3 * p99_s:.4g} ms, forecast ") and " at 20 calls/s " in calibration.says


def test_a_measured_tail_corrects_latencies_by_their_rank() -> None:
    fleet = outcome(1, in_time=True)
    fleet.latency_s[:] = np.linspace(1.0, 2.0, 100)
    fleet.latency_s[99] = np.nan

    found = Calibration(p50=1.5, p99=3.0).of(fleet, timeout_s=9.0)

    factors = found.latency_s / fleet.latency_s
    assert factors[:50] == pytest.approx(1.5) and factors[98] == pytest.approx(3.0, rel=0.02)
    # A tenth is above: log(5) of the log(50) from the half to the hundredth.
    assert factors[89] == pytest.approx(1.5 * 2 ** (np.log(5) / np.log(50)), rel=0.02)
    assert np.all(np.diff(factors[49:99]) > 0) and np.isnan(factors[99])


def test_an_answer_that_is_corrected_beyond_its_deadline_has_expired() -> None:
    fleet = outcome(1, in_time=True)
    fleet.latency_s[:] = np.linspace(1.0, 2.0, 100)
    fleet.latency_s[0], fleet.fates[0] = np.nan, Fate.REFUSED

    found = Calibration(p50=2.0, p99=2.0).of(fleet, timeout_s=3.0)

    assert found.share(Fate.EXPIRED) == 0.5 and found.share(Fate.REFUSED) == 0.01
    assert np.nanmax(found.latency_s) <= 3.0 and np.isnan(found.latency_s[50:]).all()


def test_a_closed_loop_corrects_the_run_times(report: Callable[..., Path]) -> None:
    forecast = capacity_per_s(MACHINE, parse_lengths("32"), 1, 16)
    slower = replace(held(50.0), callers=16, answered_per_s=forecast / 2)
    fewer = replace(slower, callers=2, answered_per_s=1.0)

    calibration = calibrated(report(fewer, slower))

    assert calibration.cost == pytest.approx(2.0, rel=0.1)
    assert calibration.says == f"16 callers got {forecast / 2:.4g} answers/s there, forecast {forecast:.4g}"
    assert calibration.p50 == calibration.p99 == 1.0


def test_of_several_loads_the_highest_that_the_server_kept_up_with_counts(report: Callable[..., Path]) -> None:
    measured = read_measured(report(held(20.0), held(60.0), held(90.0, refused=0.02)))

    assert measured.open is not None and measured.open.offered_per_s == 60.0 and measured.closed is None


def test_a_search_is_read_with_its_capacity(report: Callable[..., Path]) -> None:
    path = report()
    kept = json.loads(path.read_text())
    del kept["points"]
    found = {"capacity": replace(held(50.0), callers=16).to_json(), "search": {"points": [held(40.0).to_json()]}}
    path.write_text(json.dumps(kept | found))

    measured = read_measured(path)

    assert measured.open is not None and measured.open.offered_per_s == 40.0
    assert measured.closed is not None and measured.closed.callers == 16


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([held(60.0, refused=0.012)], "12 of 1000 calls at 60 calls/s had no answer (12 RESOURCE_EXHAUSTED), more than 1%"),
        ([replace(held(60.0), callers=8, outcomes={"UNAVAILABLE": 1000})], "calls with 8 callers had no answer (1000 UNAVAILABLE)"),
        ([held(60.0, calls=99)], "99 calls at 60 calls/s are too few for a p99, which takes 100"),
        ([held(60.0, limited="5 calls were due but not sent")], "the client was the limit at 60 calls/s: 5 calls were due but not sent"),
        ([held(60.0, interrupted=True)], "the load at 60 calls/s was interrupted"),
    ],
)
def test_a_load_that_the_server_or_the_client_did_not_keep_up_with_is_refused(
    report: Callable[..., Path], points: list[Point], expected: str
) -> None:
    with pytest.raises(BadSettings) as refused:
        read_measured(report(*points))

    assert expected in str(refused.value) and str(refused.value).endswith("calibrate by a load that the server and the client keep up with")


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({"per_call": 4, "explain": 0.1}, "measured with --per-call 4, --explain 0.1, which the plan does not simulate"),
        ({"stream": True}, "measured with --stream True"),
        ({"timeout_s": [0.1, 5.0]}, "measured with --timeout 0.1..5 s"),
        ({"law": "sometimes"}, "unknown law 'sometimes'"),
        ({"texts": "no-such-file"}, "unknown lengths 'no-such-file'"),
    ],
)
def test_a_load_that_cannot_be_simulated_is_refused(report: Callable[..., Path], load: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadSettings) as refused:
        read_measured(report(held(60.0), changed=load))

    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "parts",
    [
        {"points": []},
        {"points": [{}]},
        {"points": [5]},
        {"points": None},
        {"load": None},
        {"meta": 5},
        {"slo": {"objective_s": "NaN"}},
        {"load": LOAD | {"timeout_s": [0, 0]}},
        {"load": LOAD | {"timeout_s": [5]}},
        {"load": LOAD | {"bulk": 2}},
    ],
)
def test_a_broken_report_is_refused(report: Callable[..., Path], parts: dict[str, Any]) -> None:
    with pytest.raises(BadSettings, match=r"report\.json: not what sentiment loadtest --json writes: "):
        read_measured(report(held(60.0), **parts))


@pytest.mark.parametrize("change", [{"judged": float("nan")}, {"percentiles_s": {"p50": 0.1, "p99": 0}}, {"offered_per_s": -1}])
def test_a_figure_out_of_range_is_refused(report: Callable[..., Path], change: dict[str, Any]) -> None:
    with pytest.raises(BadSettings, match="not what sentiment loadtest --json writes: expected a number from"):
        read_measured(report(points=[held(60.0).to_json() | change]))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"points": [[1, 8, 0.001]]}', "\xff"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(BadSettings, match="not what sentiment loadtest --json writes"):
        read_measured(path)
    with pytest.raises(BadSettings, match="No such file"):
        read_measured(tmp_path / "none.json")


def test_another_model_and_another_device_are_refused_and_an_unknown_one_is_doubted(report: Callable[..., Path]) -> None:
    def measured(**changed: str) -> Measured:
        return read_measured(report(held(60.0), server=SERVER | changed))

    with pytest.raises(BadSettings, match=r"measured with another model, english/2 \(bbbbbbbbbbbb\); the costs are of aaaaaaaaaaaa"):
        calibrate(MACHINE, measured(digest="b" * 64), 4096, 1)
    with pytest.raises(
        BadSettings, match=r"another device, CUDAExecutionProvider; the costs are of CPUExecutionProvider AMD EPYC, 2 cores"
    ):
        calibrate(MACHINE, measured(provider="CUDAExecutionProvider"), 4096, 1)
    assert calibrate(MACHINE, measured(), 4096, 1).doubts == ()
    (unnamed,) = calibrated(report(held(60.0), server={})).doubts
    assert "does not say which model answered" in unnamed
    (unknown,) = calibrated(report(held(60.0)), replace(MACHINE, key={})).doubts
    assert "the costs do not say of which model they are" in unknown


def test_a_forecast_that_is_far_off_is_doubted_and_one_without_answers_refused(report: Callable[..., Path]) -> None:
    path = report(held(20.0))

    calibration = calibrated(path, MACHINE.scaled(0.05))

    (doubt,) = calibration.doubts
    assert (
        calibration.p99 > 4
        and f"{path} may be of another machine, or one of the two was busy, with p99 there {calibration.p99:.3g} times" in doubt
    )
    with pytest.raises(BadSettings, match=r"forecast nan ms .*: the costs are of a slower machine"):
        calibrated(path, MACHINE.scaled(1e4))
