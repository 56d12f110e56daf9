"""The command with workers in processes of their own. Whatever is killed, each row is answered once."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow import dataset

from sentiment import Local
from sentiment.client import Classification
from tests.english import ENGLISH, NAME
from tests.programs import until
from tests.tools.corpus.files import KINDS, make_texts, write
from tests.tools.corpus.pools import LOCAL, RAY, pool_of, workers_of

# A busy machine takes a minute to start Ray and two workers.
END_S_MAX = 180
# A few hundred rows.
PART_BYTES = 15_000
# Enough parts for the kills to happen in the middle.
ROWS, PARTS = 20_000, 70
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(tmp_path: Path, bundles: Path) -> Iterator[Begin]:
    """Start the command on tmp_path/in; its standard error goes to tmp_path/err. Commands that still run at the end are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **how: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sentiment_tools.corpus", str(tmp_path / "in"), str(tmp_path / "out"), "--model", "tiny"]
        command += ["--bundles", str(bundles), "--part-bytes", str(PART_BYTES), *arguments]
        with (tmp_path / "err").open("a") as err:
            started.append(subprocess.Popen(command, stderr=err, text=True, start_new_session=True, **how))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(30)


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Those of tmp_path/in, one file in many parts."""
    texts = make_texts(ROWS)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.jsonl", texts)
    return texts


def answered(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("part-*.parquet")}


def wait_parts(folder: Path, parts: int, process: "subprocess.Popen[str]") -> None:
    """Wait until this many parts are answered, and not all."""

    def enough() -> bool:
        assert process.poll() is None, (folder.parent / "err").read_text()
        return len(answered(folder)) >= parts

    until(enough, f"{parts} parts", END_S_MAX)
    assert len(answered(folder)) < PARTS


def ended(process: "subprocess.Popen[str]", folder: Path) -> None:
    assert process.wait(END_S_MAX) == 0, (folder / "err").read_text()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dataset.dataset(folder).to_table().to_pylist()
    return found


def report_of(folder: Path) -> tuple[int, int]:
    report = json.loads((folder / "_report.json").read_text())
    return report["rows"], report["bad"]


def labels(texts: list[str], bundles: Path) -> list[str | None]:
    with Local("tiny", bundles=(bundles,)) as local:
        return [answer.label if isinstance(answer, Classification) else None for answer in local.classify_all(texts)]


def test_workers_of_this_machine_answer_every_format_and_nothing_is_left_running(tmp_path: Path, bundles: Path, begin: Begin) -> None:
    texts = [*make_texts(200), " ", "good"]
    (tmp_path / "in").mkdir()
    for kind in KINDS:
        write(tmp_path / f"in/a{kind}", texts)

    process = begin()
    started: set[psutil.Process] = set()

    def over() -> bool:
        started.update(psutil.Process(process.pid).children(recursive=True))
        return process.poll() is not None

    until(over, "the end", END_S_MAX)
    ended(process, tmp_path)

    expected = labels(texts, bundles)
    rows = rows_of(tmp_path / "out")
    for kind in KINDS:
        assert [row["label"] for row in rows if row["file"] == str(tmp_path / f"in/a{kind}")] == expected
    assert len(rows) == len(KINDS) * len(texts)
    assert report_of(tmp_path / "out") == (len(rows), len(KINDS))
    assert f"{len(rows):,} rows, {len(KINDS)} of them without an answer" in (tmp_path / "err").read_text()
    assert started
    assert psutil.wait_procs(started, 30)[1] == []


@pytest.mark.parametrize("kind", [LOCAL, RAY])
def test_a_killed_command_resumes_and_killed_workers_and_machines_are_replaced(
    tmp_path: Path, bundles: Path, begin: Begin, texts: list[str], kind: str
) -> None:
    out = tmp_path / "out"

    with pool_of(kind) as pool:
        first = begin(*pool.arguments)
        wait_parts(out, 5, first)
        orphans = workers_of(psutil.Process(first.pid))
        first.send_signal(signal.SIGKILL)
        first.wait(30)
        assert psutil.wait_procs(orphans, 10)[1] == []
        kept = {path: path.stat().st_ino for path in out.glob("part-*.parquet")}
        second = begin(*pool.arguments)
        wait_parts(out, len(kept) + 5, second)
        pool.kill_worker(psutil.Process(second.pid))
        wait_parts(out, len(answered(out)) + 5, second)
        pool.kill_half(psutil.Process(second.pid))
        ended(second, tmp_path)

    assert [row["label"] for row in rows_of(out)] == labels(texts, bundles)
    assert report_of(out) == (len(texts), 0)
    # Both commands may have written the parts that were in progress when the first was killed.
    assert sum(path.stat().st_ino == number for path, number in kept.items()) >= len(kept) - 2
    assert not list(out.glob("_unfinished-*"))


def test_a_worker_in_the_middle_of_long_texts_ends_with_the_command_that_is_killed(tmp_path: Path, begin: Begin) -> None:
    (tmp_path / "in").mkdir()
    # Read and scored together, which takes this bundle 20 s.
    write(tmp_path / "in/a.txt", ["a good film " * 200] * 1000)

    process = begin("--model", NAME, "--bundles", str(ENGLISH.parents[1]), "--part-bytes", "10000000")
    until(lambda: list(tmp_path.glob("out/_unfinished-*")), "the part is begun", END_S_MAX)
    workers = workers_of(psutil.Process(process.pid))
    process.kill()

    assert psutil.wait_procs(workers, 3)[1] == []


@pytest.mark.parametrize("parts", [0, 5], ids=["as the workers start", "between the parts"])
def test_ctrl_c_ends_the_command_and_its_workers_and_says_how_to_go_on(tmp_path: Path, begin: Begin, texts: list[str], parts: int) -> None:
    process = begin("--processes", "2")
    command = psutil.Process(process.pid)
    until(lambda: workers_of(command), "a worker starts", END_S_MAX)
    wait_parts(tmp_path / "out", parts, process)
    workers = workers_of(command)

    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(30) == 130
    assert psutil.wait_procs(workers, 10)[1] == []
    *progress, last = (tmp_path / "err").read_text().splitlines()
    assert last == "repeat the command to go on"
    assert all(" rows, " in line for line in progress)
    assert len(answered(tmp_path / "out")) < PARTS
    assert not (tmp_path / "out/_report.json").exists()


def test_ctrl_c_at_the_terminal_ends_no_worker_by_itself(tmp_path: Path, begin: Begin, texts: list[str]) -> None:
    process = begin("--processes", "1")
    command = psutil.Process(process.pid)
    until(lambda: workers_of(command), "a worker starts", END_S_MAX)
    workers = workers_of(command)

    workers[0].send_signal(signal.SIGINT)
    wait_parts(tmp_path / "out", 2, process)
    workers[0].send_signal(signal.SIGINT)
    wait_parts(tmp_path / "out", 5, process)

    assert workers_of(command) == workers


def test_workers_that_die_as_they_start_end_the_command(tmp_path: Path, begin: Begin, texts: list[str]) -> None:
    process = begin("--processes", "1")

    def over() -> bool:
        for worker in workers_of(psutil.Process(process.pid)):
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        return process.poll() is not None

    until(over, "the end", END_S_MAX)

    assert process.returncode == 1
    assert (tmp_path / "err").read_text() == "error: 4 workers died while they started, one after the other: exit code -9\n"
    assert not answered(tmp_path / "out")


def test_workers_for_which_there_are_no_descriptors_end_the_command(tmp_path: Path, begin: Begin, texts: list[str]) -> None:
    process = begin("--processes", "60", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))

    assert process.wait(END_S_MAX) == 1
    assert (tmp_path / "err").read_text() == "error: a worker cannot be started: Too many open files\n"
