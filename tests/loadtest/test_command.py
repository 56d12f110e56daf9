"""``sentiment loadtest`` as a user meets it: table, files, exit codes, progress, Ctrl-C."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentiment.cli.main import main
from sentiment.files import svg_plots
from sentiment.loadtest import report
from sentiment.loadtest.drivers import LoadFailed
from sentiment.loadtest.fleet import Fleet
from sentiment.loadtest.progress import QUIET_EVERY_S, Progress
from sentiment.loadtest.results import Point, Second
from sentiment.traffic.arrivals import Law
from tests.conftest import RunningServer
from tests.loadtest.servers import one_at_a_time

Captured = pytest.CaptureFixture[str]
# A busy machine is no failure: what is late or fast is not asked here.
PATIENT = ("--slo", "20s", "--processes", "1", "--warm-up", "0", "--texts", "sst2")
# Few calls say something of it.
FEW = ("--slo-percentile", "90", "--require")


def run(*arguments: object) -> int:
    return main(["loadtest", *map(str, arguments)])


def why_not(capsys: Captured, *arguments: object, code: int) -> str:
    """The one line of a command that ends so before it has measured anything."""
    try:
        ended = run(*arguments)
    except SystemExit as error:
        ended = int(str(error))
    assert ended == code
    out, errors = capsys.readouterr()
    assert out == ""
    assert len(re.findall(r"error: ", errors)) == 1
    return errors.splitlines()[-1].partition("error: ")[2]


def test_two_rates_are_held_and_tabulated_and_written(server: RunningServer, tmp_path: Path, capsys: Captured) -> None:
    written, page = tmp_path / "found.json", tmp_path / "found.html"

    code = run("--target", server.target, "--rate", "30,60", "--seconds", "1", *PATIENT, *FEW, "--json", written, "--html", page)

    out, errors = capsys.readouterr()
    assert code == 0
    assert re.search(r"^ *30/s .* 100\.00% ", out, re.MULTILINE)
    assert re.search(r"^ *60/s .* 100\.00% ", out, re.MULTILINE)
    assert "tiny/1" in out
    assert "holding 60 calls/s for 1 s" in errors
    values = json.loads(written.read_text())
    points = [Point.from_json(values) for values in values["points"]]
    assert [point.offered_per_s for point in points] == [30, 60]
    assert all(point.outcomes == {"OK": point.sent} for point in points)
    assert values["meta"]["model"] == "tiny/1"
    assert values["slo"] == {"objective_s": 20.0, "percentile": float(FEW[1])}
    assert "<svg" in page.read_text()


def test_a_closed_loop_says_what_it_hides(server: RunningServer, capsys: Captured) -> None:
    assert run("--target", server.target, "--concurrency", "2", "--seconds", "1", *PATIENT) == 0

    assert "note: closed loop: " in capsys.readouterr().out


def test_the_highest_rate_is_found(capsys: Captured, tmp_path: Path) -> None:
    """Of a server that answers one call after the other, 200 a second: loads are short, so that it is known by a factor only."""
    written = tmp_path / "found.json"
    slo = ("--slo", "100ms", "--slo-percentile", "90", "--timeout", "5s", "--seconds", "0.4", "--warm-up", "0")

    with one_at_a_time(0.005) as target:
        code = run("--target", target, "--protocol", "oip", "--model", "m", "--processes", "1", "--find-slo", *slo, "--json", written)

    out = capsys.readouterr().out
    found = json.loads(written.read_text())["search"]
    assert code == 0
    assert 100 < found["capacity_per_s"] <= 200
    assert 20 < found["slo_rate_per_s"] < 500
    assert f"highest rate with p90 within 100 ms: {found['slo_rate_per_s']:.4g} calls/s" in out
    assert all(why in out for why in found["why"])
    assert any("may pass" in why for why in found["why"])


def test_an_objective_that_is_not_met_fails_only_where_it_is_required(server: RunningServer, tmp_path: Path, capsys: Captured) -> None:
    texts = tmp_path / "texts.txt"
    # Half of them the server refuses.
    texts.write_text("good\n\1\n")
    arguments = ("--target", server.target, "--rate", "30", "--seconds", "1", *PATIENT, "--texts", texts)

    assert run(*arguments) == 0
    assert run(*arguments, *FEW) == 1
    assert capsys.readouterr().err.endswith("error: p90 within 20000 ms is not met\n")


def test_too_few_calls_do_not_meet_what_is_required(server: RunningServer, capsys: Captured) -> None:
    assert run("--target", server.target, "--rate", "30", "--seconds", "1", *PATIENT, "--require") == 1
    assert capsys.readouterr().err.endswith("error: p99 within 20000 ms is not shown to be met: too few calls\n")


def test_an_objective_that_the_client_itself_misses_is_not_the_servers(server: RunningServer, capsys: Captured) -> None:
    arguments = ("--target", server.target, "--rate", "30", "--seconds", "1", *PATIENT, "--slo", "1us", "--timeout", "20s", *FEW)

    assert run(*arguments) == 1
    assert capsys.readouterr().err.endswith("error: p90 within 0.001 ms is not shown to be met: client limited\n")


def test_a_schedule_is_sent_whole_and_a_law_that_changes_is_held_whole(server: RunningServer, tmp_path: Path, capsys: Captured) -> None:
    recorded, written = tmp_path / "recorded", tmp_path / "found.json"
    recorded.write_text("0\n0.3\n0.6\n0.6\n0.6\n0.6\n")

    assert run("--target", server.target, "--law", f"schedule:{recorded}", *PATIENT, "--json", written) == 0

    (point,) = json.loads(written.read_text())["points"]
    assert point["sent"] == 6
    assert point["seconds"] == pytest.approx(6 / point["offered_per_s"])
    capsys.readouterr()
    for law in (f"schedule:{recorded}", "steps:10x2,200x2"):
        assert "but the law has an end, after" in why_not(capsys, "--law", law, "--seconds", "2", code=2)
        assert "but the law has an end, after" in why_not(capsys, "--find-slo", law, "--seconds", "2", code=2)
    assert "wanted are whole periods of the bursts, 10 s each" in why_not(
        capsys, "--law", "bursts:50,factor=20,on=1,every=10", "--seconds", "3", code=2
    )


def test_a_client_that_fails_loses_no_load_that_was_held(
    server: RunningServer, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "found.json"
    measure = Fleet.measure

    async def measure_once(fleet: Fleet, load: Law | int, seconds: float, warm_up_s: float = 1.0) -> Point:
        monkeypatch.setattr(Fleet, "measure", fail)
        return await measure(fleet, load, seconds, warm_up_s)

    async def fail(*_: object) -> Point:
        raise LoadFailed("client process 0 ended with -9")

    monkeypatch.setattr(Fleet, "measure", measure_once)

    assert run("--target", server.target, "--rate", "30,60", "--seconds", "1", *PATIENT, "--json", written) == 1

    out, errors = capsys.readouterr()
    assert re.search(r"^ *30/s ", out, re.MULTILINE)
    assert errors.endswith("error: client process 0 ended with -9\n")
    values = json.loads(written.read_text())
    assert [point["offered_per_s"] for point in values["points"]] == [30]
    assert values["lost"] == "client process 0 ended with -9"


def test_figures_stay_where_the_report_fails_and_hold_a_name_that_is_no_unicode(
    server: RunningServer, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, page = tmp_path / "found.json", tmp_path / "r\udcff.html"

    def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(report, "compose", fail)
    monkeypatch.setattr(sys, "argv", ["sentiment", "loadtest", "--html", str(page)])

    with pytest.raises(ZeroDivisionError):
        run("--target", server.target, "--rate", "30", "--seconds", "1", *PATIENT, "--json", written, "--html", page)

    assert json.loads(written.read_text())["meta"]["command"].endswith("r\\udcff.html'")
    assert list(tmp_path.iterdir()) == [written]
    assert re.search(r"^ *30/s ", capsys.readouterr().out, re.MULTILINE)


def test_nothing_answered_is_a_failure(server: RunningServer, tmp_path: Path, capsys: Captured) -> None:
    texts = tmp_path / "texts.txt"
    # Only a control character, which the tokenizer drops.
    texts.write_text("\1\n")

    assert run("--target", server.target, "--rate", "30", "--seconds", "1", *PATIENT, "--texts", texts) == 1

    out, errors = capsys.readouterr()
    assert re.search(r"^INVALID_ARGUMENT, for one: text", out, re.MULTILINE)
    assert re.search(r"error: nothing was answered: \d+ INVALID_ARGUMENT\n$", errors)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "one of the arguments --rate --law --concurrency --find-slo is required"),
        (("--rate", "5", "--concurrency", "3"), "argument --concurrency: not allowed with argument --rate"),
        (("--rate", "5,0"), "argument --rate: is '0'; must be a number above 0"),
        (("--rate", "5", "--slo", "0ms"), "argument --slo: is '0ms'; must be a time"),
        (("--rate", "5", "--timeout", "2s..1s"), "argument --timeout: is '2s..1s'; the shortest must come first"),
        (("--rate", "5", "--cancel", "120%"), "argument --cancel: is '120%'; must be a share"),
        (("--rate", "5", "--processes", "0"), "argument --processes: is '0'; must be a whole number from 1 to 64"),
        (("--law", "often"), "law 'often' is unknown"),
        (("--rate", "5", "--texts", "nothing.txt"), "texts 'nothing.txt' are unknown"),
        (("--rate", "5", "--protocol", "oip"), "--protocol oip needs --model NAME"),
        (("--rate", "5", "--protocol", "http", "--per-call", "4", "--explain", "1%"), "--protocol http cannot send --explain, --per-call"),
        (("--rate", "5", "--stream", "--cancel", "0.1"), "--stream sends single texts, which cannot be cancelled"),
        (("--rate", "5", "--bulk", "0.6", "--explain", "0.6"), "together are more than all calls"),
        (("--rate", "5", "--protocol", "http", "--channels", "2"), "--channels does not go with --protocol http"),
        (("--concurrency", "5", "--open-max", "2"), "--open-max does not go with --concurrency"),
        (("--find-slo", "--explain", "1"), "of them this mix has none"),
        (("--rate", "5", "--cancel", "1", "--require"), "of them this mix has none"),
        (("--rate", "5", "--json", "x", "--html", "./x"), "--json and --html are both x"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(arguments: tuple[str, ...], reason: str, capsys: Captured) -> None:
    assert reason in why_not(capsys, *arguments, code=2)


def test_outputs_that_cannot_be_written_are_known_before_anything_runs(tmp_path: Path, capsys: Captured) -> None:
    assert "cannot be written" in why_not(capsys, "--rate", "5", "--json", tmp_path / "no" / "x.json", code=1)
    assert "is a folder" in why_not(capsys, "--rate", "5", "--html", tmp_path, code=1)


def test_a_report_without_what_draws_its_plots_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured) -> None:
    monkeypatch.setattr(svg_plots.importlib.util, "find_spec", lambda _name: None)

    assert "pip install 'sentiment-service[plots]'" in why_not(capsys, "--rate", "5", "--html", tmp_path / "x.html", code=2)
    assert list(tmp_path.iterdir()) == []


def test_nobody_at_the_target_is_a_failure(capsys: Captured) -> None:
    # Nothing listens there: it is the port of a service of the first days of the Internet.
    assert "no gRPC server answers at 127.0.0.1:1" in why_not(capsys, "--rate", "5", "--target", "127.0.0.1:1", code=1)


def test_ctrl_c_ends_in_order_with_what_was_seen(server: RunningServer, tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    command = [sys.executable, "-m", "sentiment", "loadtest", "--target", server.target, "--rate", "30", "--seconds", "600", *PATIENT]
    with subprocess.Popen(
        [*command, "--json", written], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as tester:
        assert tester.stderr is not None
        # The load has begun; the whole terminal's group gets the signal.
        assert tester.stderr.readline().startswith("holding 30 calls/s")
        os.killpg(tester.pid, signal.SIGINT)
        out, errors = tester.communicate(timeout=30)

    assert tester.returncode in (0, 1), errors
    assert "stopping: what was seen so far comes" in errors
    assert "note: interrupted" in out
    assert json.loads(written.read_text())["points"][0]["interrupted"] is True


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_nobody_who_reads_the_progress_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    Progress(Gone()).begin("30 calls/s", 12)
    # What Python makes of a standard error that was closed.
    monkeypatch.setattr(sys, "stderr", None)
    Progress().begin("30 calls/s", 12)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_line_a_second_and_a_log_one_for_ten() -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress(stream)
        progress.begin("30 calls/s", 12)
        for number in range(12):
            progress.second(Second(number, sent=30, ok=28, in_time=27, failed=2, p50_s=0.01, p99_s=0.1 + number / 1000))
        progress.end(Point(30, 12, 0.5, 360, {}, 360, 324, None))  # type: ignore[arg-type]  # nobody asks for the latency

    assert len(terminal.getvalue().splitlines()) == 13
    begin, *lines = log.getvalue().splitlines()
    assert begin == "holding 30 calls/s for 12 s"
    # The worst second's p99 stands for all ten.
    assert [line.split()[0] for line in lines] == [str(QUIET_EVERY_S), "12"]
    assert re.search(r"30/s sent +27 in time +1 late +2 failed +p50 +10 ms +p99 +109 ms$", lines[0])
