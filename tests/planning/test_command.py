"""``sentiment plan`` as it is typed."""

import json
import re
import sys
from pathlib import Path

import pytest

from sentiment.cli.main import main
from sentiment.files import svg_plots
from sentiment.planning.machine import Machine, read_machine


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    points = {(1, 8): 1e-3, (16, 8): 9e-3, (1, 32): 3e-3, (16, 32): 40e-3, (1, 512): 64e-3}
    path.write_text(Machine(points, runners=2, noise=0.1, crowding=1.05).to_json())
    return path


def test_the_fewest_replicas_are_found_and_told_in_words_json_and_pictures(
    costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, page = tmp_path / "plan.json", tmp_path / "plan.html"

    load = ["--law", "poisson:300", "--requests", "4000", "--bulk", "20%"]

    code = main(["plan", "--costs", str(costs), *load, "--capacity", "110", "--json", str(found), "--html", str(page)])

    said = json.loads(found.read_text())
    fleets = {fleet["replicas"]: fleet for fleet in said["tried"]}
    fewest = said["replicas"]
    assert code == 0
    assert fleets[fewest]["in_time_share"] >= 0.99 > fleets[fewest - 1]["in_time_share"]
    printed = capsys.readouterr()
    assert f"{fewest} replicas answer 99 % within 500 ms; fewer do not" in printed.out
    assert re.search(r"1(09|10)\.\d calls/s to 64 callers", printed.out) and "in time" in printed.err
    html = page.read_text()
    assert html.count("<svg") == 3 and "bulk" in html
    assert "<script" not in html and "http-equiv" in html and not any(f"{kind}http" in html for kind in ('src="', 'href="', "url("))


def test_replicas_that_miss_the_objective_are_exit_1(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--costs", str(costs), "--law", "poisson:300", "--requests", "2000", "--replicas"]

    assert main([*arguments, "1"]) == 1
    assert "1 replica misses 99 % within 500 ms" in capsys.readouterr().out
    assert main([*arguments, "12"]) == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--costs", "no-such-file"], "no-such-file is no file of costs"),
        (["--law", "sometimes:3"], "law 'sometimes:3' is unknown"),
        (["--lengths", "no-such-file"], "lengths 'no-such-file' are unknown"),
        (["--save", "x.json"], "--save goes with --measure"),
        (["--json", "x.out", "--html", "./x.out"], "--json and --html are the same file"),
        (["--requests", "100", "--capacity", "1e7"], "cannot be scaled to a capacity of 1e+07 calls/s"),
        (["--requests", "100", "--capacity", "1e-9"], "too short to count fewer"),
        (["--law", "schedule:instants", "--requests", "2"], "no arrivals over time among its first 2 requests"),
    ],
)
def test_what_cannot_be_simulated_is_exit_2(
    costs: Path, changed: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(costs.parent)
    Path("instants").write_text("0\n0\n5\n")

    assert main(["plan", "--costs", str(costs), "--law", "poisson:300", *changed]) == 2

    assert told in capsys.readouterr().err


def test_costs_are_not_written_over(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = costs.read_text()

    assert main(["plan", "--costs", str(costs), "--law", "poisson:300", "--json", str(costs)]) == 2

    assert "--costs and --json are the same file" in capsys.readouterr().err
    assert costs.read_text() == kept


def test_what_was_measured_is_kept_whatever_becomes_of_the_simulation(
    costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = read_machine(costs)
    monkeypatch.setattr("sentiment.planning.measuring.measure", lambda *_: machine)
    saved = tmp_path / "saved.json"

    assert main(["plan", "--measure", "--save", str(saved), "--law", "poisson:300", "--capacity", "1e7"]) == 2

    assert "cannot be scaled" in capsys.readouterr().err
    assert read_machine(saved) == machine


def test_a_simulation_that_is_too_short_says_so_everywhere(costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, page = tmp_path / "plan.json", tmp_path / "plan.html"
    asked = ["--law", "steps:40x30,400x30", "--requests", "50", "--seed", "-1", "--replicas", "1"]

    assert main(["plan", "--costs", str(costs), *asked, "--json", str(found), "--html", str(page)]) == 0

    printed = capsys.readouterr()
    assert "1 replica answers 99 % within 500 ms\ncaution: " in printed.out and "1 replica: " in printed.err
    said = json.loads(found.read_text())["cautions"]
    assert len(said) == 3 and all(f"caution: {caution}\n" in printed.out for caution in said)
    assert page.read_text().count('class="notice"') == 3


def test_costs_of_seconds_are_simulated_like_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slow.json"
    path.write_text(Machine({(1, 8): 2.0, (1, 512): 10.0}).to_json())

    assert main(["plan", "--costs", str(path), "--law", "poisson:0.05", "--requests", "50", "--slo", "60", "--replicas", "1"]) == 0

    assert re.search(r"0\.\d calls/s to 64 callers", capsys.readouterr().out)


def test_without_matplotlib_a_report_is_refused_before_anything_runs(
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

    program = "import sys, sentiment.cli.plan; print(sorted({'numpy', 'grpc', 'onnxruntime'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout.strip() == "[]"
