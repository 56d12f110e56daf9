"""The command on a real Ray: two workers, a kill of the command, of a worker and of a machine; each row is answered once all the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from pyarrow import dataset

from sentiment.client import Classification
from sentiment.corpus.output import Output
from sentiment.corpus.parts import cut
from sentiment.corpus.scoring import Job
from sentiment.corpus.sources import find_sources
from sentiment.model.bundle import load_bundle
from sentiment.serving.local import LocalClassifier
from tests.corpus.files import KINDS, make_texts, write

# A busy machine takes a minute to start Ray and two workers.
END_S_MAX = 180
# Some hundred rows each: enough of them for a kill in the middle.
PART_BYTES = 15_000
# At least so many parts of the corpora that something dies in.
ROWS, PARTS = 40_000, 140


@pytest.fixture
def begin(tmp_path: Path, bundles: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the command on tmp_path/in; its standard error goes to tmp_path/err. What still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sentiment.corpus", str(tmp_path / "in"), str(tmp_path / "out"), "--model", "tiny"]
        with (tmp_path / "err").open("a") as err:
            started.append(subprocess.Popen([*command, "--bundles", str(bundles), *arguments], stderr=err, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines of one core each, as far as Ray can tell."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    # That a machine is gone is known after five looks at it.
    looks = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 500}
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False, "_system_config": looks}
    running = Cluster(initialize_head=True, head_node_args=node)
    running.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    yield running
    running.shutdown()


def answered(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("part-*.parquet")}


def until(folder: Path, parts: int, process: "subprocess.Popen[str]") -> None:
    """Wait until so many parts are answered; there are more."""
    give_up_at = time.monotonic() + END_S_MAX
    while len(answered(folder)) < parts:
        assert process.poll() is None, (folder.parent / "err").read_text()
        assert time.monotonic() < give_up_at, f"{len(answered(folder))} parts within {END_S_MAX} s"
        time.sleep(0.02)


def ended(process: "subprocess.Popen[str]", folder: Path) -> None:
    assert process.wait(END_S_MAX) == 0, (folder / "err").read_text()


def workers_of(node: Any) -> list[psutil.Process]:
    raylet = node.all_processes["raylet"][0].process.pid
    # What has gone meanwhile is passed over.
    running = psutil.process_iter(["ppid", "cmdline"])
    return [one for one in running if one.info["ppid"] == raylet and any("MapWorker" in word for word in one.info["cmdline"] or ())]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dataset.dataset(folder).to_table().to_pylist()
    return found


def report_of(folder: Path) -> tuple[int, int]:
    report = json.loads((folder / "_report.json").read_text())
    return report["rows"], report["bad"]


def labels(texts: list[str], bundles: Path) -> list[str | None]:
    with LocalClassifier("tiny", (bundles,)) as local:
        return [answer.label if isinstance(answer, Classification) else None for answer in local.classify_all(texts)]


def test_two_workers_of_this_machine_answer_every_format(tmp_path: Path, bundles: Path, begin: Callable[..., Any]) -> None:
    texts = [*make_texts(2000), " ", "good"]
    (tmp_path / "in").mkdir()
    for kind in KINDS:
        write(tmp_path / f"in/a{kind}", texts)

    process = begin("--workers", "2", "--part-bytes", str(PART_BYTES))
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
    # Ray's own processes and two workers at the least.
    assert len(started) >= 4
    assert psutil.wait_procs(started, 30)[1] == []


def test_a_killed_command_goes_on_where_it_was_and_a_killed_worker_is_replaced(
    tmp_path: Path, bundles: Path, begin: Callable[..., Any], cluster: Any
) -> None:
    texts = make_texts(ROWS)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.jsonl", texts)
    arguments = ("--ray", cluster.address, "--part-bytes", str(PART_BYTES))
    out = tmp_path / "out"

    first = begin(*arguments)
    until(out, 5, first)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    kept = {path: path.stat().st_ino for path in out.glob("part-*.parquet")}
    assert 5 <= len(kept) < PARTS - 15
    second = begin(*arguments)
    until(out, len(kept) + 5, second)
    assert len(answered(out)) < PARTS
    victim = next(worker for node in cluster.list_all_nodes() for worker in workers_of(node))
    victim.kill()
    ended(second, tmp_path)

    assert [row["label"] for row in rows_of(out)] == labels(texts, bundles)
    assert report_of(out) == (len(texts), 0)
    # One that was being written when the command was killed may be written by both.
    assert sum(path.stat().st_ino == number for path, number in kept.items()) >= len(kept) - 2
    assert not list(out.glob("_unfinished-*"))


def test_files_that_change_while_they_are_scored_end_in_no_report(
    tmp_path: Path, bundles: Path, begin: Callable[..., Any], cluster: Any
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.txt", make_texts(ROWS))
    arguments = ("--ray", cluster.address, "--part-bytes", str(PART_BYTES))
    out = tmp_path / "out"

    first = begin(*arguments)
    until(out, 2, first)
    with (tmp_path / "in/a.txt").open("a") as stream:
        stream.write("good\n")
    codes = [first.wait(END_S_MAX), begin(*arguments).wait(END_S_MAX)]
    told = (tmp_path / "err").read_text()

    assert codes == [1, 2]
    assert "files changed while they were scored; use --restart to start over" in told
    assert f"was begun with [bytes, time] of {tmp_path}/in/a.txt = [" in told
    assert not (out / "_report.json").exists()
    write(tmp_path / "in/a.txt", ["good", "awful"])
    ended(begin(*arguments, "--restart"), tmp_path)
    assert [row["label"] for row in rows_of(out)] == ["positive", "negative"]
    assert report_of(out) == (2, 0)


def test_a_part_of_which_four_workers_died_is_refused_and_named(tmp_path: Path, bundles: Path, cluster: Any) -> None:
    import ray

    from sentiment.corpus.workers import ATTEMPTS_MAX, Ledger, Scorer

    (part,) = cut(find_sources(str(write(tmp_path / "a.txt", ["good"]))), "text", (), 100)
    job = Job(str(tmp_path / "out"), "", "text", (), "", "tiny/1", "", (), (bundles,))
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        ledger = ray.remote(Ledger).options(num_cpus=0).remote()
        for _ in range(ATTEMPTS_MAX):
            ray.get(ledger.begin.remote(part.name), timeout=60)
        answer = Scorer(job, ledger)({name: [value] for name, value in asdict(part).items()})
    finally:
        ray.shutdown()

    assert answer["failure"] == [f"{tmp_path}/a.txt, bytes 0 to 5: {ATTEMPTS_MAX} workers died while they scored it"]


def test_a_part_whose_beginning_is_not_counted_in_time_is_scored_all_the_same(
    tmp_path: Path, bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from sentiment.corpus.workers import Scorer

    (part,) = cut(find_sources(str(write(tmp_path / "a.txt", ["good"]))), "text", (), 100)
    bundle = load_bundle(bundles / "tiny/1")
    job = Job(str(tmp_path / "out"), "", "text", (), "", bundle.id, bundle.digest, bundle.manifest.labels, (bundles,))
    Output(job.output).ask({})
    monkeypatch.setattr("ray.get", Mock(side_effect=ray.exceptions.GetTimeoutError("slow")))

    answer = Scorer(job, Mock())({name: [value] for name, value in asdict(part).items()})

    assert answer == {"rows": [1], "bad": [0], "failure": [""]}


def test_a_machine_that_dies_takes_nothing_with_it(tmp_path: Path, bundles: Path, begin: Callable[..., Any], cluster: Any) -> None:
    texts = make_texts(ROWS, seed=2)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.jsonl", texts)
    out = tmp_path / "out"
    lost = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)

    process = begin("--ray", cluster.address, "--part-bytes", str(PART_BYTES))
    until(out, 5, process)
    assert len(answered(out)) < PARTS
    cluster.remove_node(lost, allow_graceful=False)
    ended(process, tmp_path)

    assert [row["label"] for row in rows_of(out)] == labels(texts, bundles)
    assert report_of(out) == (len(texts), 0)
    assert not list(out.glob("_unfinished-*"))
