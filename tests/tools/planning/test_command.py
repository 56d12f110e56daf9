"""``sentiment plan`` from its command line."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sentiment.cli.main import main
from sentiment_tools.planning.machine import Machine, read_machine
from sentiment_tools.reports import svg_plots
from sentiment_tools.traffic.arrivals import Poisson
from tests.tools.loadtest import test_command as loadtest

canned = loadtest.canned


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    points = {(1, 8): 1e-3, (16, 8): 9e-3, (1, 32): 3e-3, (16, 32): 40e-3, (1, 512): 64e-3}
    path.write_text(Machine(points, runners=2, noise=0.1, crowding=1.05).to_json())
    return path


@pytest.mark.smoke
def test_the_fewest_replicas_are_found_and_reported_as_text_json_and_html(
    costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, page = tmp_path / "plan.json", tmp_path / "plan.html"

    load = ["--law", "poisson:300", "--requests", "4000", "--bulk", "20%"]

    code = main(["plan", "--costs", str(costs), *load, "--json", str(found), "--html", str(page)])

    said = json.loads(found.read_text())
    fleets = {fleet["replicas"]: fleet for fleet in said["tried"]}
    fewest = said["replicas"]
    assert code == 0
    assert fleets[fewest]["in_time_share"] >= 0.99 > fleets[fewest - 1]["in_time_share"]
    printed = capsys.readouterr()
    assert f"{fewest} replicas answer 99 % within 500 ms; fewer do not" in printed.out
    assert "in time" in printed.err
    (low_ms, high_ms), (least, most) = said["ranges"]["p99_ms"], said["ranges"]["replicas"]
    assert low_ms <= fleets[fewest]["p99_ms"] <= high_ms and low_ms < high_ms
    assert least <= fewest <= most and said["ranges"]["cores"] == [2 * least, 2 * most]
    ranges = f"Ranges of 95 %: p99 {fleets[fewest]['p99_ms']:.1f} ms ({low_ms:.1f} to {high_ms:.1f}), in time "
    assert ranges in printed.out and said["calibration"] == {"run_times": 1.0, "p50": 1.0, "p99": 1.0}
    html = page.read_text()
    assert ranges in html
    assert html.count("<svg") == 3 and "bulk" in html
    assert "<script" not in html and "http-equiv" in html and not any(f"{kind}http" in html for kind in ('src="', 'href="', "url("))


def test_front_ends_and_their_executor_are_in_the_result_and_the_first_limit_is_named(
    costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "plan.json"
    load = ["--law", "poisson:20", "--lengths", "8", "--requests", "500", "--replicas", "1", "--json", str(found)]
    costs.write_text(replace(read_machine(costs), front_end_s=0.04, row_s=8e-3).to_json())

    assert main(["plan", "--costs", str(costs), "--cores", "8", "--front-ends", "2", "--loop", "0", *load]) == 0

    printed = capsys.readouterr().out
    assert "; 2 front ends, 40.00 ms per call and 1.0 us per token; executor 8000.0 us per text and 0.00 ms per batch; " in printed
    assert "calls/s with 128 callers in a closed loop" in printed
    assert re.search(r"First limit: the front ends, (9\d|100) % busy at the capacity of a replica: use more of them, send batches", printed)
    said = json.loads(found.read_text())
    assert said["capacity"]["first_limit"] == "front ends" and said["capacity"]["busy_share"]["executor"] < 0.9
    (fleet,) = said["tried"]
    assert set(fleet["busy_share"]) == {"front ends", "executor", "cores", "runners"}
    assert fleet["busy_share"]["executor"] == pytest.approx(20 * 8e-3, rel=0.15)


def test_a_share_of_known_answers_makes_a_replica_answer_more(costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "plan.json"
    load = ["--law", "poisson:20", "--texts", "512", "--requests", "500", "--replicas", "1", "--json", str(found)]

    capacities = []
    for known in ("0", "50%"):
        main(["plan", "--costs", str(costs), *load, "--known", known])
        capacities.append(json.loads(found.read_text())["capacity"]["per_s"])

    assert capacities[1] == pytest.approx(2 * capacities[0], rel=0.15)
    assert capsys.readouterr().out.count("; the answers to 50% of the texts are known") == 1


def test_replicas_that_miss_the_objective_are_exit_1(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--costs", str(costs), "--law", "poisson:300", "--requests", "2000", "--replicas"]

    assert main([*arguments, "1"]) == 1
    assert "1 replica misses 99 % within 500 ms" in capsys.readouterr().out
    assert main([*arguments, "12"]) == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["--costs", "no-such-file"], "no-such-file: not a cost file"),
        (["--law", "sometimes:3"], "unknown law 'sometimes:3'"),
        (["--lengths", "no-such-file"], "unknown lengths 'no-such-file'"),
        (["--save", "x.json"], "--save needs --measure"),
        (["--measured", "costs.json"], "--costs and --measured are the same file"),
        (["--measured", "instants"], "instants: not what sentiment loadtest --json writes: "),
        (["--measured", "x.json", "--json", "x.json"], "--measured and --json are the same file"),
        (["--json", "x.out", "--html", "./x.out"], "--json and --html are the same file"),
        (["--requests", "100", "--loop", "1s", "--capacity", "1e7"], "cannot be scaled to a capacity of 1e+07 calls/s, only to"),
        (["--requests", "100", "--capacity", "1e-9"], "fewer calls cannot be counted within 60 s"),
        (["--law", "schedule:instants", "--requests", "2"], "its first 2 requests all arrive at the start"),
    ],
)
def test_invalid_options_exit_with_2(
    costs: Path, changed: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(costs.parent)
    Path("instants").write_text("0\n0\n5\n")

    assert main(["plan", "--costs", str(costs), "--law", "poisson:300", *changed]) == 2

    assert expected in capsys.readouterr().err


def test_the_cost_file_is_not_overwritten(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = costs.read_text()

    assert main(["plan", "--costs", str(costs), "--law", "poisson:300", "--json", str(costs)]) == 2

    assert "--costs and --json are the same file" in capsys.readouterr().err
    assert costs.read_text() == kept


def test_the_measurement_is_saved_even_if_the_simulation_fails(
    costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = read_machine(costs)
    monkeypatch.setattr("sentiment_tools.planning.measuring.measure", lambda *_: machine)
    saved = tmp_path / "saved.json"

    assert main(["plan", "--measure", "--save", str(saved), "--law", "poisson:300", "--loop", "1s", "--capacity", "1e7"]) == 2

    assert "cannot be scaled" in capsys.readouterr().err
    assert read_machine(saved) == machine


def test_cautions_are_in_every_output(costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, page = tmp_path / "plan.json", tmp_path / "plan.html"
    asked = ["--law", "steps:40x30,400x30", "--requests", "50", "--seed", "-1", "--replicas", "1"]

    assert main(["plan", "--costs", str(costs), *asked, "--json", str(found), "--html", str(page)]) == 0

    printed = capsys.readouterr()
    assert "1 replica answers 99 % within 500 ms. First limit: " in printed.out and "1 replica: " in printed.err
    said = json.loads(found.read_text())["cautions"]
    assert len(said) == 3 and all(f"caution: {caution}\n" in printed.out for caution in said)
    assert page.read_text().count('class="notice"') == 3


def test_costs_are_scaled_to_the_measured_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slow.json"
    path.write_text(Machine({(1, 8): 2.0, (1, 512): 10.0}).to_json())

    load = ["--law", "poisson:0.05", "--requests", "50", "--slo", "60", "--replicas", "1"]
    for capacity, found in (([], r" 0\.[1-3] calls/s with"), (["--capacity", "2"], r" [12]\.[901] calls/s with 64 callers")):
        assert main(["plan", "--costs", str(path), *load, *capacity]) == 0
        assert re.search(found, capsys.readouterr().out)


def test_without_matplotlib_html_is_refused_before_the_simulation(
    costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(svg_plots.importlib.util, "find_spec", lambda name: None)
    page = tmp_path / "plan.html"

    code = main(["plan", "--costs", str(costs), "--law", "poisson:300", "--html", str(page)])

    printed = capsys.readouterr()
    assert code == 2 and "[plots]" in printed.err
    assert "replicas" not in printed.err and not page.exists()


def test_the_parser_loads_neither_numpy_nor_grpc() -> None:
    import subprocess

    program = "import sys, sentiment_tools.commands.plan; print(sorted({'numpy', 'grpc', 'onnxruntime'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout.strip() == "[]"


def test_the_more_a_machines_speed_varied_the_wider_are_the_ranges(costs: Path, tmp_path: Path) -> None:
    found = tmp_path / "plan.json"
    machine, widths, cores = read_machine(costs), [], []
    load = ["--law", "poisson:300", "--requests", "2000", "--json", str(found)]

    for pace in ((), (0.6, 1.6, 0.7, 1.5)):
        costs.write_text(replace(machine, pace=pace).to_json())
        main(["plan", "--costs", str(costs), *load])
        ranges = json.loads(found.read_text())["ranges"]
        widths.append(ranges["in_time_share"][1] - ranges["in_time_share"][0])
        cores.append(ranges["cores"][1] / ranges["cores"][0])

    assert widths[1] > 3 * widths[0] and cores[1] > 2 > cores[0]


def test_a_busy_machine_is_a_caution_unless_a_load_test_calibrates(
    costs: Path, canned: loadtest.Canned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs.write_text(replace(read_machine(costs), noise=0.5).to_json())
    plan = ["plan", "--costs", str(costs), "--law", "poisson:20", "--texts", "8", "--requests", "1000", "--replicas", "1"]
    found, report = tmp_path / "plan.json", tmp_path / "report.json"
    assert main(["loadtest", "--rate", "20", "--texts", "8", "--json", str(report)]) == 0
    capsys.readouterr()

    p99_ms = []
    for given in ([], ["--measured", str(report)]):
        assert main([*plan, "--json", str(found), *given]) == 0
        p99_ms.append(json.loads(found.read_text())["tried"][0]["p99_ms"])
    printed = capsys.readouterr().out

    assert printed.count("caution: the machine was busy while it was measured, with run times of equal batches that vary by 50%") == 1
    there_ms = 1e3 * canned.measure(Poisson(20.0), 1.0).percentile(99)
    assert f"\ncalibrated by {report}: p99 there {there_ms:.4g} ms, forecast " in printed
    assert p99_ms[0] < 0.5 * there_ms and p99_ms[1] == pytest.approx(there_ms, rel=0.4)
    assert printed.count(f"caution: {report} does not say which model answered") == 1


def test_a_closed_loop_that_calibrates_excludes_capacity(
    costs: Path, canned: loadtest.Canned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["loadtest", "--concurrency", "16", "--texts", "8", "--json", str(report)]) == 0
    plan = ["plan", "--costs", str(costs), "--law", "poisson:20", "--texts", "8", "--requests", "500", "--replicas", "1"]

    assert main([*plan, "--measured", str(report), "--capacity", "50"]) == 2
    assert f"--capacity cannot be used with {report}, whose closed loop gives the capacity" in capsys.readouterr().err
    assert main([*plan, "--measured", str(report)]) == 0
    assert f"calibrated by {report}: 16 callers got 100 answers/s there, forecast " in capsys.readouterr().out
    assert canned.loads[0][0] == 16


@pytest.mark.usefixtures("canned")
def test_a_report_whose_name_is_not_valid_unicode_is_named_in_every_output(
    costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, found, page = tmp_path / os.fsdecode(b"report\xff.json"), tmp_path / "plan.json", tmp_path / "plan.html"
    assert main(["loadtest", "--rate", "20", "--texts", "8", "--json", str(report)]) == 0
    plan = ["plan", "--costs", str(costs), "--law", "poisson:20", "--texts", "8", "--requests", "500", "--replicas", "1"]
    plan += ["--measured", str(report), "--json", str(found), "--html", str(page)]
    monkeypatch.setattr(sys, "argv", ["sentiment", *plan])

    assert main(plan) == 0

    for text in (capsys.readouterr().out, page.read_text(), json.loads(found.read_text())["meta"]["command"]):
        assert r"report\udcff.json" in text
