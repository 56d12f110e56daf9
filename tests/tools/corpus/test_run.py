"""The command from its arguments to its exit code, with workers in this process instead of Ray's."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from pyarrow import dataset

from sentiment.files.reading import Reading
from sentiment.offline import OfflineClassifier
from sentiment_tools.commands import batch
from sentiment_tools.corpus.output import REPORT, REQUEST, CorpusFailed, Count, Output
from sentiment_tools.corpus.parts import cut
from sentiment_tools.corpus.scoring import Job, score_part
from sentiment_tools.corpus.sources import Part, find_sources
from sentiment_tools.corpus.workers import ATTEMPTS_MAX, Ledger, Scorer, Show
from tests.tools.corpus.files import write

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, bundles: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command; returns its exit code and standard error."""

    def command(folder: str, output: str, *arguments: str) -> tuple[int, str]:
        code = batch.main([str(tmp_path / folder), str(tmp_path / output), "--bundles", str(bundles), "--model", "tiny", *arguments])
        return code, capsys.readouterr().err

    return command


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, classifier: OfflineClassifier) -> list[Callable[[], object]]:
    """Score in this process. Before each part, the next function of the list is called, if there is one."""
    steps: list[Callable[[], object]] = []

    def score_all(parts: Sequence[Part], job: Job, workers: int, show: Show) -> Count:
        for part in parts:
            if steps:
                steps.pop(0)()
            Output(job.output, job.question).write_part(part.name, score_part(part, job, classifier))
            show(Count(1), part.bytes)
        return Count()

    monkeypatch.setattr("sentiment_tools.corpus.run.cluster", lambda address, workers: nullcontext(1))
    monkeypatch.setattr("sentiment_tools.corpus.run.score_all", score_all)
    return steps


def rows_of(folder: Path) -> list[tuple[str, str]]:
    return [(row["file"], row["label"]) for row in dataset.dataset(folder).to_table().to_pylist()]


def test_bad_paths_and_columns_are_refused_before_ray_starts(tmp_path: Path, run: Run) -> None:
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
        ("files", {"other": [1, "2"]}, "/a.csv = not given; now it is [15, '"),
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


def test_files_that_change_while_they_are_scored_end_in_no_report(tmp_path: Path, run: Run, workers: list[Callable[[], object]]) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.txt", ["good"])
    workers.append(lambda: write(tmp_path / "in/a.txt", ["good", "awful"]))

    changed, again = run("in", "out"), run("in", "out")

    assert (changed[0], again[0]) == (1, 2)
    assert "files changed while they were scored; use --restart to start over" in changed[1]
    assert f"was begun with [bytes, time] of {tmp_path}/in/a.txt = [" in again[1]
    assert not (tmp_path / "out" / REPORT).exists()
    assert run("in", "out", "--restart")[0] == 0
    assert [label for _, label in rows_of(tmp_path / "out")] == ["positive", "negative"]
    assert json.loads((tmp_path / "out" / REPORT).read_text())["rows"] == 2


def test_an_interrupted_command_resumes_and_files_that_arrive_are_not_scored(
    tmp_path: Path, run: Run, workers: list[Callable[[], object]]
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        write(tmp_path / f"in/{name}.txt", ["good"])

    def fail() -> None:
        raise CorpusFailed("a worker failed")

    workers += [lambda: None, fail]
    failed = run("in", "out")
    kept = next((tmp_path / "out").glob("part-*")).stat().st_ino
    workers += [lambda: write(tmp_path / "in/d.txt", ["bad"])]
    done = run("in", "out")

    assert (failed[0], done[0]) == (1, 0)
    assert "1 new files in" in done[1]
    assert "3 rows, in" in done[1]
    assert [Path(file).name for file, _ in rows_of(tmp_path / "out")] == ["a.txt", "b.txt", "c.txt"]
    assert min((tmp_path / "out").glob("part-*")).stat().st_ino == kept


class LocalLedger:
    """Ray's handle of the ledger, without Ray."""

    def __init__(self) -> None:
        ledger = Ledger()
        self.begin, self.advance = SimpleNamespace(remote=ledger.begin), SimpleNamespace(remote=ledger.advance)


@pytest.fixture
def scored(tmp_path: Path, bundles: Path, job: Job) -> Callable[[Any], dict[str, Any]]:
    """Score a part with one text as a worker does, with this handle of the ledger."""
    (part,) = cut(find_sources(str(write(tmp_path / "a.txt", ["good"]))), Reading(), {}, 100)
    its = replace(job, output=str(tmp_path / "out"), keep=())
    Output(its.output).record({})
    row = {name: [value] for name, value in asdict(part).items()}
    return lambda ledger: Scorer(its, ledger)(row)


def test_a_part_that_four_workers_died_of_is_refused_and_named(
    tmp_path: Path, scored: Callable[[Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.get", lambda found, timeout: found)
    ledger = LocalLedger()

    answers = [scored(ledger) for _ in range(ATTEMPTS_MAX + 1)]

    assert answers[:-1] == [{"rows": [1], "bad": [0], "failure": [""]}] * ATTEMPTS_MAX
    assert answers[-1]["failure"] == [f"{tmp_path}/a.txt, bytes 0 to 5: {ATTEMPTS_MAX} workers died while they scored it"]


def test_a_part_whose_start_is_not_counted_in_time_is_still_scored(
    scored: Callable[[Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.get", Mock(side_effect=ray.exceptions.GetTimeoutError("slow")))

    assert scored(LocalLedger()) == {"rows": [1], "bad": [0], "failure": [""]}
