"""The command from its arguments to its exit code, with workers in this process."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyarrow import dataset

from sentiment.errors import BadSettings
from sentiment_tools.commands import batch
from sentiment_tools.corpus.output import REPORT, REQUEST, CorpusFailed, Count, Output
from sentiment_tools.corpus.scoring import Job
from sentiment_tools.corpus.sources import Part, find_sources
from sentiment_tools.corpus.workers import NOTHING, Scorer
from tests.conftest import leave_out
from tests.tools.corpus.files import write

Run = Callable[..., tuple[int, str]]
TIME = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00:00"


@pytest.fixture
def run(tmp_path: Path, bundles: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command; returns its exit code and standard error."""

    def command(folder: str, output: str, *arguments: str) -> tuple[int, str]:
        code = batch.main([str(tmp_path / folder), str(tmp_path / output), "--bundles", str(bundles), "--model", "tiny", *arguments])
        return code, capsys.readouterr().err

    return command


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Score in this process. Before each part, the next function of the list is called, if there is one."""
    steps: list[Callable[[], object]] = []

    class InProcess:
        def __init__(self, job: Job) -> None:
            self.so_far = NOTHING
            self._scorer = Scorer(job)

        def score(self, part: Part | None) -> Count | str:
            if part and steps:
                steps.pop(0)()
            return self._scorer.score(part, lambda so_far: None)

        def kill(self) -> None:
            pass

    monkeypatch.setattr("sentiment_tools.corpus.workers.LocalWorker", InProcess)
    return steps


def rows_of(folder: Path) -> list[tuple[str, str]]:
    return [(row["file"], row["label"]) for row in dataset.dataset(folder).to_table().to_pylist()]


def test_bad_paths_and_columns_are_refused_before_a_worker_starts(tmp_path: Path, run: Run) -> None:
    for folder in ("in", "other"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "in/a.csv", ["good"])
    (tmp_path / "other/mine.txt").write_text("x")

    assert run("in", "other")[0] == 1
    assert (tmp_path / "other/mine.txt").read_text() == "x"
    assert run("nowhere", "out")[0] == 1
    assert run("in", "out", "--keep", "label")[0] == 2
    assert run("in", "out", "--column", "review")[0] == 1
    for inside in ("in", "in/out"):
        assert "the input includes this output" in run("in", inside)[1]
    assert run("in", "out", "--model", "none")[0] == 3
    assert not (tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("column", "review", "column = 'review'"),
        ("digest", "0" * 64, "digest = '000"),
        ("files", {"other": [1, "2"]}, "/a.csv = not given; now it is '15 bytes, 20"),
    ],
)
def test_an_output_of_another_run_is_not_continued(name: str, value: object, message: str, tmp_path: Path, job: Job, run: Run) -> None:
    source = find_sources(str(write(tmp_path / "a.csv", ["good"])))[0]
    begun = {
        "version": 4, "column": "text", "delimiter": "", "encoding": "", "header": True, "quotes": True, "sheet": "",
        "keep": [], "truncation": "", "sentences": False, "targets": [], "model": job.model, "digest": job.digest,
        "files": {source.shown: [source.bytes, source.mark]}, "part_bytes": 65536,
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / REQUEST).write_text(json.dumps({**begun, name: value}))

    code, error = run("a.csv", "out")

    assert code == 2
    assert message in error


def test_one_command_at_a_time_writes_to_an_output_folder(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.csv", ["good"])

    with Output(str(tmp_path / "out")).locked():
        code, error = run("a.csv", "out")

    assert code == 1
    assert f"{tmp_path}/out: another command is writing to it" in error
    assert not list((tmp_path / "out").iterdir())


def test_files_that_change_while_they_are_scored_end_in_no_report(tmp_path: Path, run: Run, steps: list[Callable[[], object]]) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.txt", ["good"])
    steps.append(lambda: write(tmp_path / "in/a.txt", ["good", "awful"]))

    changed, again = run("in", "out"), run("in", "out")

    assert (changed[0], again[0]) == (1, 2)
    assert "files changed while they were scored; use --restart to start over" in changed[1]
    assert re.search(
        rf"was begun with bytes and time of {tmp_path}/in/a\.txt = '5 bytes, {TIME}'; now it is '11 bytes, {TIME}'; use --restart", again[1]
    )
    assert not (tmp_path / "out" / REPORT).exists()
    assert run("in", "out", "--restart")[0] == 0
    assert [label for _, label in rows_of(tmp_path / "out")] == ["positive", "negative"]
    assert json.loads((tmp_path / "out" / REPORT).read_text())["rows"] == 2


def test_an_interrupted_command_resumes_and_files_that_arrive_are_not_scored(
    tmp_path: Path, run: Run, steps: list[Callable[[], object]]
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        write(tmp_path / f"in/{name}.txt", ["good"])

    def fail() -> None:
        raise CorpusFailed("a worker failed")

    steps += [lambda: None, fail]
    failed = run("in", "out", "--processes", "1")
    kept = next((tmp_path / "out").glob("part-*")).stat().st_ino
    steps += [lambda: write(tmp_path / "in/d.txt", ["bad"])]
    done = run("in", "out")

    assert (failed[0], done[0]) == (1, 0)
    assert "arrived during the run and are not scored: 1\n" in done[1]
    assert "3 rows, in" in done[1]
    assert [Path(file).name for file, _ in rows_of(tmp_path / "out")] == ["a.txt", "b.txt", "c.txt"]
    assert min((tmp_path / "out").glob("part-*")).stat().st_ino == kept


def test_a_damaged_file_stops_the_command_and_is_named_once(tmp_path: Path, run: Run, steps: list[Callable[[], object]]) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.txt", ["good"])
    (tmp_path / "in/b.csv.gz").write_bytes(gzip.compress(b"text\n" + os.urandom(100_000).hex().encode())[:-1000])

    code, error = run("in", "out", "--processes", "1")

    assert code == 1
    assert error.startswith(f"error: {tmp_path}/in/b.csv.gz: cannot be decompressed: ")
    assert [Path(file).name for file, _ in rows_of(tmp_path / "out")] == ["a.txt"]
    (tmp_path / "in/b.csv.gz").unlink()
    assert run("in", "out", "--restart") == (0, f"1 row, in {tmp_path}/out\n")


@pytest.mark.parametrize(
    ("module", "arguments", "extra"), [("fsspec", [], "files"), ("ray", ["--ray", "auto"], "ray"), ("fsspec", ["--ray", "auto"], "ray")]
)
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, module: str, arguments: list[str], extra: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}

    command = [sys.executable, "-m", "sentiment_tools.corpus", "in", "out", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)

    assert done.returncode == 2
    assert done.stderr == f"error: module {module} is missing: run pip install 'sentiment-service[cpu,{extra}]'\n"


@pytest.mark.parametrize(("text", "told"), [("", "ConnectionError"), ("\nnobody is there\nReport", "nobody is there")])
def test_a_cluster_that_cannot_be_joined_is_an_error_also_if_ray_says_nothing(
    monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    if not find_spec("ray"):
        leave_out("a Ray cluster", "needs the extra ray")
    from sentiment_tools.corpus.cluster import cluster

    def init(**_: object) -> None:
        raise ConnectionError(text)

    monkeypatch.setattr("ray.init", init)

    with pytest.raises(BadSettings) as caught, cluster("10.0.0.1:1"):
        pass
    assert str(caught.value) == f"--ray 10.0.0.1:1: {told}"


def test_one_machine_needs_no_ray(tmp_path: Path, bundles: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}
    write(tmp_path / "a.txt", ["good", "awful"])

    arguments = [str(tmp_path / "a.txt"), str(tmp_path / "out"), "--model", "tiny", "--bundles", str(bundles)]
    command = [sys.executable, "-m", "sentiment_tools.corpus", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)

    assert done.returncode == 0, done.stderr
    assert [label for _, label in rows_of(tmp_path / "out")] == ["positive", "negative"]
