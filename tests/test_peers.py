"""The table of peers: its arithmetic, and its way to measure, on two servers of ours with a tiny bundle."""

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sentiment.loadtest.durations import of
from sentiment.loadtest.results import Point
from sentiment.model.classifier import load_classifier
from tests.bench.peers import answers, rows
from tests.bench.peers import bench as turns
from tests.bench.peers.__main__ import reading_heads
from tests.bench.peers.answers import differing, quiet, ready
from tests.bench.peers.bench import Bench, Found, latency_s
from tests.bench.peers.environments import PeerFailed, find
from tests.bench.peers.figures import FIGURES
from tests.bench.peers.processes import Running, start_ours
from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.table import OURS, Figure, Row, from_json, to_json, to_markdown
from tests.tiny import make_bundle

COST, RATE = Figure("cost", "cost", "core-ms"), Figure("rate", "rate", "texts/s", higher_is_better=True)


@pytest.mark.parametrize(
    ("figure", "ours", "others", "verdict"),
    [
        (COST, [1.0], {"a": [2.0], "b": [3.0]}, "ahead"),
        (COST, [3.0], {"a": [2.0], "b": [4.0]}, "behind"),
        (RATE, [3.0], {"a": [2.0], "b": [1.0]}, "ahead"),
        (RATE, [1.0], {"a": [2.0]}, "behind"),
        (RATE, [99.0], {"a": [100.0]}, "level"),
        (COST, [0.0], {"a": [0.0]}, "level"),
        (COST, [5.0], {"a": [math.inf]}, "ahead"),
        (COST, [math.inf], {"a": [math.inf]}, "level"),
        (COST, [math.inf], {"a": [5.0]}, "behind"),
        (COST, [1.0], {}, ""),
        (COST, [1.0, 1.1, 1.2], {"a": [1.3, 1.4, 1.5]}, "ahead"),
        (COST, [1.0, 1.1, 1.4], {"a": [1.3, 1.4, 1.5]}, "level"),
        (RATE, [1.0, 1.1, 1.2], {"a": [1.3, 1.4, 1.5]}, "behind"),
        (COST, [1.0, 1.1, 2.0], {"a": [1.05, math.inf, math.inf]}, "level"),
    ],
)
def test_ours_is_ahead_only_if_its_rounds_are_better_than_those_of_the_best_other(
    figure: Figure, ours: list[float], others: dict[str, list[float]], verdict: str
) -> None:
    assert Row(figure, {OURS: ours, **others}).verdict == verdict


def test_ours_is_not_compared_with_a_library() -> None:
    row = Row(COST, {OURS: [2.0], "server": [3.0], "library": [1.0]}, ["library"])

    assert (row.best_other, row.verdict) == ("server", "ahead")


def test_the_table_marks_the_best_and_distinguishes_not_measured_from_never_answered() -> None:
    row = Row(COST, {OURS: [1.234, 1.2, 1.3], "a": [12.34], "b": [math.inf]})

    lines = to_markdown([row], [OURS, "a", "b", "c"]).splitlines()

    assert "| cost, core-ms | 1.23 (1.20 to 1.30) | 12.3 | a | ahead |" in lines
    assert "| cost, core-ms | **1.23** | 12.3 | none | - |" in lines
    each = "ahead in 1 rows, level in 0 and behind in 0"
    assert lines[:3] == [f"Ours is {each}.", "", f"Beside each server alone: a: {each}; b: {each}."]


def test_the_table_survives_a_round_trip_through_json() -> None:
    found = [Row(COST, {OURS: [1.0, 1.5], "a": [math.inf, 2.0]}, ["a"]), Row(RATE, {OURS: [2.0]}, [])]

    assert from_json(to_json(found, {"seconds": 8})) == (found, {"seconds": 8})


def test_calls_that_were_never_answered_count_as_the_slowest() -> None:
    point = Point(1.0, 1.0, 0.5, 100, Counter(OK=60), 100, 60, of(index / 1000 for index in range(1, 61)))

    assert latency_s(point, 50) == pytest.approx(0.050, rel=0.05)
    assert math.isinf(latency_s(point, 99))


def test_answers_differ_by_label_or_by_more_than_the_tolerance() -> None:
    first = [("positive", 0.9), ("positive", 0.9), ("positive", 0.9)]

    assert differing(first, [("positive", 0.90001), ("negative", 0.9), ("positive", 0.91)], 1e-3) == 2


def test_the_peers_classifier_answers_as_ours_does(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    texts = ["a good film", "awful", "the film and " * 40]
    ours = load_classifier(bundle)

    given = Classifier(str(bundle)).classify(texts)

    scored = [ours.score(logits) for logits in ours.run([ours.tokenizer.encode(text) for text in texts])]
    assert differing(given, [(each.label, each.score) for each in scored], 1e-6) == 0


def test_a_bundle_that_reads_heads_and_tails_is_measured_reading_heads_as_the_peers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.peers.__main__.FOLDER", tmp_path / "peers")
    bundle = make_bundle(tmp_path, max_tokens=8)
    manifest = bundle / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "default_truncation": "head_tail"}))

    heads = load_classifier(reading_heads(bundle)).manifest

    assert load_classifier(bundle).manifest.default_truncation == "head_tail"
    assert (heads.default_truncation, heads.name, heads.version) == ("head", "tiny", 1)


def test_a_server_is_suspended_and_ended_with_all_its_child_processes() -> None:
    child = "import time; sum(range(3_000_000)); print('up', flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    running = Running("two", "http", process, "")
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]

    running.hold()
    assert all(comes_to(each, psutil.STATUS_STOPPED) for each in tree)
    running.go_on()
    assert all(comes_to(each, psutil.STATUS_SLEEPING) for each in tree)
    core_s = running.core_s()
    running.end()

    assert running.core_s() >= core_s > 0
    assert not any(each.is_running() for each in tree)
    process.stdout.close()


def test_a_child_process_that_outlives_its_server_is_ended_too() -> None:
    # CPU time is counted in ticks of 10 ms, so the child first uses some of them.
    child = "import os, time\nwhile sum(os.times()[:2]) < 0.05: pass\nprint('up', flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    running = Running("two", "http", process, "")
    (left,) = psutil.Process(process.pid).children()
    assert running.core_s() > 0

    process.kill()
    process.wait()
    assert left.is_running()
    running.end()

    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE
    process.stdout.close()


def test_an_ended_server_is_reported_with_its_exit_status() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], text=True)
    process.wait()

    with pytest.raises(PeerFailed, match="gone ended with 3"):
        Running("gone", "http", process, "").check()


def test_the_error_of_an_unknown_peer_lists_the_known_ones() -> None:
    with pytest.raises(PeerFailed, match="'tei' is unknown; the peers are triton, "):
        find("tei")


def comes_to(process: psutil.Process, status: str) -> bool:
    """Whether a process gets a status; a signal takes effect only when the process next runs."""
    ends_at = time.monotonic() + 20
    while process.status() != status and time.monotonic() < ends_at:
        time.sleep(0.001)
    return process.status() == status


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle's folder."""
    return make_bundle(tmp_path_factory.mktemp("bundles"))


class Kept(Running):
    """A server that other tests use as well: ``end`` only lets it run again."""

    def end(self) -> None:
        self.go_on()


@pytest.fixture(scope="module")
def ours(tiny: Path) -> Iterator[Callable[[], Running]]:
    """Servers of the same process."""
    running = start_ours(tiny)
    yield lambda: Kept(running.name, running.protocol, running.process, running.target)
    running.end()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A benchmark with loads and pauses as short as can be."""
    monkeypatch.setattr(turns, "SETTLE_S", 0.01)
    monkeypatch.setattr(turns, "WARM_S", 0.05)
    monkeypatch.setattr("sentiment.loadtest.fleet.HEAD_START_S", 0.02)
    return Bench(Found(seconds=0.3))


async def test_a_peer_that_fails_loses_its_own_figures_and_no_others(bench: Bench, tiny: Path) -> None:
    try:
        for name in ("other", OURS):
            await bench.join(name, start_ours(tiny), rows.CHECKED)
        other = bench.servers["other"]
        other.process.kill()
        other.process.wait()
        assert not await quiet(other, bench.asks["other"])
        await rows.short(bench)
        with pytest.raises(PeerFailed, match="ours: gone"):
            await bench.leave_out(OURS, PeerFailed("gone"))
    finally:
        await bench.end()

    assert bench.servers.keys() == {OURS}
    assert bench.servers[OURS].process.poll() == 0
    assert bench.found.values["throughput_short"].keys() == {OURS}
    assert any("other: left out of what follows" in note for note in bench.found.notes)
    assert [row.figure for row in bench.found.rows()] == list(FIGURES)


async def test_a_peer_that_does_not_start_is_tried_once_more(bench: Bench, ours: Callable[[], Running]) -> None:
    works = ours()
    ended = subprocess.Popen(["false"], text=True)  # noqa: ASYNC220 - ends at once
    ended.wait()  # so that it is seen to have ended before the other's answer is taken for its own
    fails = Kept("other", works.protocol, ended, works.target, launch=lambda: works.process)

    try:
        await bench.join("other", fails, rows.CHECKED)
    finally:
        await bench.end()

    assert any("other: did not start, and is tried once more" in note for note in bench.found.notes)


async def test_a_server_is_quiet_when_it_answers_again(ours: Callable[[], Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "QUIET_S_MAX", 0.2)
    running = ours()

    try:
        ask = await ready(running)
        running.hold()
        assert not await quiet(running, ask)
        running.go_on()
        monkeypatch.setattr(answers, "QUIET_S_MAX", 20.0)
        assert await quiet(running, ask)
        await ask.close()
    finally:
        running.end()


async def test_two_servers_are_measured_in_turns_and_have_every_row(
    bench: Bench, ours: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SEARCH_POINTS_MAX", 2)
    monkeypatch.setattr(rows, "IDLE_S", 0.1)

    try:
        for name in (OURS, "other"):
            await bench.join(name, ours(), rows.CHECKED)
        await rows.short(bench)
        await rows.mixed(bench)
    finally:
        await bench.end()

    found = {row.figure.key: row for row in bench.found.rows()}
    # Loads as short as these seldom meet or miss the objective. The reasons of the search are noted in any case.
    del found["slo_load"]
    assert all(any(note.startswith(f"{name}: ") for note in bench.found.notes) for name in (OURS, "other"))
    assert all(row.values.keys() == {OURS, "other"} for row in found.values())
    assert found["moved"].values == {OURS: [0], "other": [0]}
    assert min(found["throughput_short"].values.values()) > [0]
