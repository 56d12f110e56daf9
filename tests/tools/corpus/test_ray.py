"""The command on a real Ray cluster: a kill of the command, of a worker and of a machine. Each row is still answered once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow import dataset

from sentiment import Local
from sentiment.client import Classification
from tests.tools.corpus.files import KINDS, make_texts, write

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

    def start(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sentiment_tools.corpus", str(tmp_path / "in"), str(tmp_path / "out"), "--model", "tiny"]
        with (tmp_path / "err").open("a") as err:
            started.append(
                subprocess.Popen([*command, "--bundles", str(bundles), "--part-bytes", str(PART_BYTES), *arguments], stderr=err, text=True)
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(30)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two machines of one core each, from Ray's point of view."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    # A machine counts as gone after five failed health checks; they begin late, because a busy machine starts slowly.
    checks = {"health_check_period_ms": 1000, "health_check_initial_delay_ms": 20_000}
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False, "_system_config": checks}
    running = Cluster(initialize_head=True, head_node_args=node)
    running.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    yield running
    running.shutdown()


def answered(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("part-*.parquet")}


def until(folder: Path, parts: int, process: "subprocess.Popen[str]") -> None:
    """Wait until this many parts are answered, and not all."""
    give_up_at = time.monotonic() + END_S_MAX
    while len(answered(folder)) < parts:
        assert process.poll() is None, (folder.parent / "err").read_text()
        assert time.monotonic() < give_up_at, f"{len(answered(folder))} parts within {END_S_MAX} s"
        time.sleep(0.02)
    assert len(answered(folder)) < PARTS


def ended(process: "subprocess.Popen[str]", folder: Path) -> None:
    assert process.wait(END_S_MAX) == 0, (folder / "err").read_text()


def workers_of(node: Any) -> list[psutil.Process]:
    raylet = node.all_processes["raylet"][0].process.pid
    # Processes that end meanwhile are left out.
    running = psutil.process_iter(["ppid", "cmdline"])
    return [one for one in running if one.info["ppid"] == raylet and any("MapWorker" in word for word in one.info["cmdline"] or ())]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dataset.dataset(folder).to_table().to_pylist()
    return found


def report_of(folder: Path) -> tuple[int, int]:
    report = json.loads((folder / "_report.json").read_text())
    return report["rows"], report["bad"]


def labels(texts: list[str], bundles: Path) -> list[str | None]:
    with Local("tiny", bundles=(bundles,)) as local:
        return [answer.label if isinstance(answer, Classification) else None for answer in local.classify_all(texts)]


def test_a_worker_of_this_machine_answers_every_format_and_nothing_is_left_running(tmp_path: Path, bundles: Path, begin: Begin) -> None:
    texts = [*make_texts(200), " ", "good"]
    (tmp_path / "in").mkdir()
    for kind in KINDS:
        write(tmp_path / f"in/a{kind}", texts)

    process = begin("--workers", "1")
    started: set[psutil.Process] = set()
    give_up_at = time.monotonic() + END_S_MAX
    while process.poll() is None and time.monotonic() < give_up_at:
        started.update(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.05)
    ended(process, tmp_path)

    expected = labels(texts, bundles)
    rows = rows_of(tmp_path / "out")
    for kind in KINDS:
        assert [row["label"] for row in rows if row["file"] == str(tmp_path / f"in/a{kind}")] == expected
    assert len(rows) == len(KINDS) * len(texts)
    assert report_of(tmp_path / "out") == (len(rows), len(KINDS))
    assert f"{len(rows):,} rows, {len(KINDS)} of them without an answer" in (tmp_path / "err").read_text()
    # Ray's own processes and the worker.
    assert len(started) >= 3
    assert psutil.wait_procs(started, 30)[1] == []


def test_a_killed_command_resumes_and_killed_workers_and_machines_are_replaced(
    tmp_path: Path, bundles: Path, begin: Begin, cluster: Any
) -> None:
    texts = make_texts(ROWS)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.jsonl", texts)
    out = tmp_path / "out"
    lost = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)

    first = begin("--ray", cluster.address)
    until(out, 5, first)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    kept = {path: path.stat().st_ino for path in out.glob("part-*.parquet")}
    second = begin("--ray", cluster.address)
    until(out, len(kept) + 5, second)
    workers_of(cluster.head_node)[0].kill()
    until(out, len(answered(out)) + 5, second)
    cluster.remove_node(lost, allow_graceful=False)
    ended(second, tmp_path)

    assert [row["label"] for row in rows_of(out)] == labels(texts, bundles)
    assert report_of(out) == (len(texts), 0)
    # Both commands may have written the parts that were in progress when the first was killed.
    assert sum(path.stat().st_ino == number for path, number in kept.items()) >= len(kept) - 2
    assert not list(out.glob("_unfinished-*"))
