"""``sentiment loadtest`` from its command line: table, files, exit codes, progress, Ctrl-C. Most tests use canned measurements."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sentiment.cli.main import main
from sentiment.files.progress import LOG_EVERY_S
from sentiment_tools.loadtest import report
from sentiment_tools.loadtest.drivers import LoadFailed
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.progress import Progress
from sentiment_tools.loadtest.results import Point, Second
from sentiment_tools.loadtest.search import CURVE, find_slo
from sentiment_tools.reports import svg_plots
from sentiment_tools.traffic.arrivals import Law, Poisson
from tests.conftest import RunningServer
from tests.tools.loadtest.test_search import CAPACITY, TRUE_RATE, held

Captured = pytest.CaptureFixture[str]
# A busy machine is not a failure: these tests do not judge latency.
PATIENT = ("--slo", "20s", "--processes", "1", "--warm-up", "0", "--texts", "sst2")


class Canned:
    """Replaces the fleet: no process is started, and each load has the next of ``points``, or else what an M/M/1 server answers."""

    def __init__(self) -> None:
        self.points: list[Point | LoadFailed] = []
        self.loads: list[tuple[Law | int, float]] = []

    def measure(self, load: Law | int, seconds: float) -> Point:
        number = len(self.loads)
        self.loads.append((load, seconds))
        if self.points:
            point = self.points[number % len(self.points)]
            if isinstance(point, LoadFailed):
                raise point
            return point
        return replace(held(CAPACITY / 2), callers=load, answered_per_s=CAPACITY) if isinstance(load, int) else held(load.rate)


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Canned:
    canned = Canned()

    async def enter(fleet: Fleet) -> Fleet:
        return fleet

    async def measure(_fleet: Fleet, load: Law | int, seconds: float, _warm_up_s: float = 1.0) -> Point:
        return canned.measure(load, seconds)

    monkeypatch.setattr(Fleet, "__aenter__", enter)
    monkeypatch.setattr(Fleet, "measure", measure)
    return canned


def run(*arguments: object) -> int:
    return main(["loadtest", *map(str, arguments)])


def why_not(capsys: Captured, *arguments: object, code: int) -> str:
    """The error line of a command that fails before it measures anything."""
    try:
        ended = run(*arguments)
    except SystemExit as error:
        ended = int(str(error))
    assert ended == code
    out, errors = capsys.readouterr()
    assert out == ""
    assert len(re.findall(r"error: ", errors)) == 1
    return errors.splitlines()[-1].partition("error: ")[2]


@pytest.mark.smoke
def test_two_rates_are_held_and_reported_as_table_json_and_html(server: RunningServer, tmp_path: Path, capsys: Captured) -> None:
    written, page = tmp_path / "found.json", tmp_path / "found.html"
    # 0.5 s have too few calls for the 99th percentile.
    few = ("--slo-percentile", "90", "--require")

    code = run("--target", server.target, "--rate", "60,90", "--seconds", "0.5", *PATIENT, *few, "--json", written, "--html", page)

    out, errors = capsys.readouterr()
    assert code == 0
    assert re.search(r"^ *60/s .* 100\.00% ", out, re.MULTILINE)
    assert re.search(r"^ *90/s .* 100\.00% ", out, re.MULTILINE)
    assert "tiny/1" in out
    assert "holding 90 calls/s for 0.5 s" in errors
    values = json.loads(written.read_text())
    assert [point["offered_per_s"] for point in values["points"]] == [60, 90]
    assert all(point["outcomes"] == {"OK": point["sent"]} for point in values["points"])
    assert values["meta"]["model"] == "tiny/1"
    assert values["slo"] == {"objective_s": 20.0, "percentile": 90.0}
    assert values["load"].items() >= {"law": "poisson:1", "texts": "sst2", "timeout_s": [20.0, 20.0], "bulk": 0.0, "per_call": 1}.items()
    assert "<svg" in page.read_text()


def test_without_a_load_a_light_one_is_held_for_a_few_seconds_and_said(canned: Canned, capsys: Captured) -> None:
    assert run() == 0

    out, errors = capsys.readouterr()
    assert errors.startswith("no load is given: 10 calls/s for 5 s; the highest rate that it can take: --find-slo\n")
    assert re.search(r"^ *10/s ", out, re.MULTILINE)
    assert canned.loads == [(Poisson(10.0), 5.0)]


def test_the_share_of_repeated_texts_is_in_the_table_and_in_json(server: RunningServer, tmp_path: Path, capsys: Captured) -> None:
    written, texts = tmp_path / "found.json", tmp_path / "texts.txt"
    texts.write_text("a good film\nawful\n")
    load = ("--target", server.target, "--concurrency", "2", "--seconds", "0.5", *PATIENT, "--texts", texts)

    assert run(*load, "--zipf", "1.5", "--json", written) == 0

    values = json.loads(written.read_text())
    (point,) = values["points"]
    # Of few calls all may have the commoner text.
    assert point["repeated_share"] in [pytest.approx(1 - different / point["sent"]) for different in (1, 2)]
    assert values["meta"]["texts"].endswith("1 a call, by Zipf's law with exponent 1.5")
    out = capsys.readouterr().out
    assert re.search(r"  sent  repeated  not answered$", out, re.MULTILINE)
    assert f"{point['sent']}  {point['repeated_share']:>8.1%}  none" in out


def test_figures_on_standard_output_are_alone_there(canned: Canned, capsys: Captured) -> None:
    canned.points = [held(30)]

    assert run("--rate", "30", *PATIENT, "--json", "-") == 0

    out, errors = capsys.readouterr()
    assert json.loads(out)["points"]
    assert "answered/s" in errors


def test_a_closed_loop_has_a_note_about_hidden_waiting(canned: Canned, capsys: Captured) -> None:
    canned.points = [replace(held(30), offered_per_s=0.0, callers=2)]

    assert run("--concurrency", "2", *PATIENT) == 0

    assert canned.loads == [(2, 10.0)]
    assert "note: closed loop: " in capsys.readouterr().out


def test_the_highest_rate_is_found(canned: Canned, capsys: Captured, tmp_path: Path) -> None:
    written = tmp_path / "found.json"

    code = run("--find-slo", "--slo", "500ms", "--seconds", "5", "--json", written)

    out = capsys.readouterr().out
    found = json.loads(written.read_text())["search"]
    assert code == 0
    # The first load is a closed loop for the capacity, the second a fifth of the capacity.
    (callers, _), (law, _), *_ = canned.loads
    assert callers == 16
    assert not isinstance(law, int) and law.rate == pytest.approx(0.2 * CAPACITY)
    assert found["capacity_per_s"] == CAPACITY
    assert found["slo_rate_per_s"] <= TRUE_RATE < found["missed_rate_per_s"]
    assert f"highest rate with p99 within 500 ms: {found['slo_rate_per_s']:.4g} calls/s" in out
    assert all(why in out for why in found["why"])


def test_a_search_holds_its_loads_against_a_real_server(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "found.json"
    monkeypatch.setattr("sentiment_tools.loadtest.run.find_slo", partial(find_slo, points_max=2))

    code = run("--find-slo", "--target", server.target, "--seconds", "1", *PATIENT, "--json", written)

    values = json.loads(written.read_text())
    capacity, points = values["capacity"], values["search"]["points"]
    assert code == 0
    assert capacity["callers"] == 16
    assert values["search"]["capacity_per_s"] == capacity["answered_per_s"] > 0
    assert [point["offered_per_s"] for point in points] == pytest.approx([share * capacity["answered_per_s"] for share in CURVE[:2]])
    assert all(point["outcomes"]["OK"] for point in (capacity, *points))


@pytest.mark.parametrize(
    ("point", "error"),
    [
        (held(30, refused=0.5), "p99 within 20000 ms is not met"),
        (held(30, calls=30), "p99 within 20000 ms is not shown to be met: too few calls"),
        (held(30, limited="a slow client"), "p99 within 20000 ms is not shown to be met: client limited"),
    ],
    ids=["missed", "too few calls", "client limited"],
)
def test_an_objective_that_is_not_met_fails_only_with_require(canned: Canned, point: Point, error: str, capsys: Captured) -> None:
    canned.points = [point]

    assert run("--rate", "30", *PATIENT) == 0
    assert run("--rate", "30", *PATIENT, "--require") == 1
    assert capsys.readouterr().err.endswith(f"error: {error}\n")


def test_a_law_that_changes_or_ends_is_held_as_a_whole(canned: Canned, tmp_path: Path, capsys: Captured) -> None:
    recorded = tmp_path / "recorded"
    recorded.write_text("0\n0.3\n0.6\n0.6\n0.6\n0.6\n")
    ends, bursts = (f"schedule:{recorded}", "steps:10x2,200x2"), "bursts:50,factor=20,on=1,every=8"

    for law in (*ends, bursts):
        assert run("--law", law, *PATIENT) == 0

    assert [seconds for _, seconds in canned.loads] == pytest.approx([6 / (5 / 0.6), 4.0, 16.0])
    capsys.readouterr()
    for law in ends:
        assert "--seconds cannot be used with a law that ends" in why_not(capsys, "--law", law, "--seconds", "2", code=2)
        assert "--seconds cannot be used with a law that ends" in why_not(capsys, "--find-slo", law, "--seconds", "2", code=2)
    assert "--seconds must be whole periods of the bursts, 8 s each, got 3" in why_not(capsys, "--law", bursts, "--seconds", "3", code=2)


def test_a_client_that_fails_loses_no_earlier_load(canned: Canned, tmp_path: Path, capsys: Captured) -> None:
    written = tmp_path / "found.json"
    canned.points = [held(30), LoadFailed("client process 0 ended")]

    assert run("--rate", "30,60", *PATIENT, "--json", written) == 1

    out, errors = capsys.readouterr()
    assert re.search(r"^ *30/s ", out, re.MULTILINE)
    assert errors.endswith("error: client process 0 ended\n")
    values = json.loads(written.read_text())
    assert [point["offered_per_s"] for point in values["points"]] == [30]
    assert values["lost"] == "client process 0 ended"


def test_figures_are_kept_if_the_report_fails_and_may_have_a_name_that_is_not_unicode(
    canned: Canned, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, page = tmp_path / "found.json", tmp_path / "r\udcff.html"

    def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(report, "compose", fail)
    monkeypatch.setattr(sys, "argv", ["sentiment", "loadtest", "--html", str(page)])

    with pytest.raises(ZeroDivisionError):
        run("--rate", "30", *PATIENT, "--json", written, "--html", page)

    assert json.loads(written.read_text())["meta"]["command"].endswith("r\\udcff.html'")
    assert list(tmp_path.iterdir()) == [written]
    assert re.search(r"^ *30/s ", capsys.readouterr().out, re.MULTILINE)


def test_a_load_without_an_answer_is_a_failure(canned: Canned, capsys: Captured) -> None:
    refused = {"outcomes": {"INVALID_ARGUMENT": 1000}, "messages": {"INVALID_ARGUMENT": "text: is empty"}}
    canned.points = [replace(held(30), in_time=0, **refused)]  # type: ignore[arg-type]  # values by name

    assert run("--rate", "30", *PATIENT) == 1

    out, errors = capsys.readouterr()
    assert re.search(r"^INVALID_ARGUMENT, for example: text: is empty", out, re.MULTILINE)
    assert errors.endswith("error: no call was answered OK: 1000 INVALID_ARGUMENT\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--rate", "5", "--concurrency", "3"), "argument --concurrency: not allowed with argument --rate"),
        (("--rate", "5,0"), "argument --rate: is '0'; must be a number above 0"),
        (("--rate", "5", "--slo", "0ms"), "argument --slo: is '0ms'; must be a time"),
        (("--rate", "5", "--timeout", "2s..1s"), "argument --timeout: is '2s..1s'; the shortest must come first"),
        (("--rate", "5", "--cancel", "120%"), "argument --cancel: is '120%'; must be a share"),
        (("--rate", "5", "--processes", "0"), "argument --processes: is '0'; must be a whole number from 1 to 64"),
        (("--rate", "5", "--zipf", "nan"), "argument --zipf: is 'nan'; must be a number from 0 to 10"),
        (("--law", "often"), "unknown law 'often'"),
        (("--rate", "5", "--texts", "nothing.txt"), "unknown texts 'nothing.txt'"),
        (("--rate", "5", "--protocol", "oip"), "--protocol oip needs --model NAME"),
        (("--rate", "5", "--protocol", "http", "--per-call", "4", "--explain", "1%"), "--protocol http cannot send --explain, --per-call"),
        (("--rate", "5", "--protocol", "oip", "--effort", "adaptive"), "--protocol oip cannot send --effort"),
        (("--rate", "5", "--stream", "--cancel", "0.1"), "--stream cannot be used with --cancel or --per-call"),
        (("--rate", "5", "--bulk", "0.6", "--explain", "0.6"), "must sum to at most 1, got 1.2"),
        (("--rate", "5", "--protocol", "http", "--channels", "2"), "--channels cannot be used with --protocol http"),
        (("--concurrency", "5", "--open-max", "2"), "--open-max cannot be used with --concurrency"),
        (("--find-slo", "--explain", "1"), "this mix has none"),
        (("--rate", "5", "--cancel", "1", "--require"), "this mix has none"),
        (("--rate", "5", "--json", "x", "--html", "./x"), "--json and --html are the same file, x"),
    ],
)
def test_contradicting_options_are_refused_before_anything_runs(arguments: tuple[str, ...], reason: str, capsys: Captured) -> None:
    assert reason in why_not(capsys, *arguments, code=2)


def test_outputs_that_cannot_be_written_are_refused_before_anything_runs(tmp_path: Path, capsys: Captured) -> None:
    assert "cannot be written" in why_not(capsys, "--rate", "5", "--json", tmp_path / "no" / "x.json", code=1)
    assert "expected a file, got a folder" in why_not(capsys, "--rate", "5", "--html", tmp_path, code=1)


def test_without_matplotlib_html_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured) -> None:
    monkeypatch.setattr(svg_plots.importlib.util, "find_spec", lambda _name: None)

    assert "pip install 'sentiment-service[plots]'" in why_not(capsys, "--rate", "5", "--html", tmp_path / "x.html", code=2)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_load_and_prints_the_result(server: RunningServer, tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    command = [sys.executable, "-m", "sentiment", "loadtest", "--target", server.target, "--rate", "30", "--seconds", "600", *PATIENT]
    with subprocess.Popen(
        [*command, "--json", written], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as tester:
        assert tester.stderr is not None
        # As at a terminal, the whole process group gets the signal.
        assert tester.stderr.readline().startswith("holding 30 calls/s")
        os.killpg(tester.pid, signal.SIGINT)
        out, errors = tester.communicate(timeout=30)

    assert tester.returncode in (0, 1), errors
    assert "stopping: the result follows" in errors
    assert "note: interrupted" in out
    assert json.loads(written.read_text())["points"][0]["interrupted"] is True


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_progress_without_a_reader_does_not_fail_the_command() -> None:
    Progress(Gone()).begin("30 calls/s", 12)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_line_each_second_and_a_log_one_in_ten() -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress(stream)
        progress.begin("30 calls/s", 12)
        for number in range(12):
            progress.second(Second(number, sent=30, ok=28, in_time=27, failed=2, p50_s=0.01, p99_s=0.1 + number / 1000))
        progress.end(Point(30, 12, 0.5, 360, {}, 360, 324, None))  # type: ignore[arg-type]  # latency is not read

    assert len(terminal.getvalue().splitlines()) == 13
    begin, *lines = log.getvalue().splitlines()
    assert begin == "holding 30 calls/s for 12 s"
    # The p99 shown is that of the worst second.
    assert [line.split()[0] for line in lines] == [str(LOG_EVERY_S), "12"]
    assert re.search(r"30/s sent +27 in time +1 late +2 failed +p50 +10 ms +p99 +109 ms$", lines[0])
