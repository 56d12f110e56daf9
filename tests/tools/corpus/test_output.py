"""Scoring parts and storing the answers, in this process: the answers, and what an interruption leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import fsspec
import pandas
import pytest
from pyarrow import dataset, parquet

from sentiment import Local
from sentiment.client import Classification
from sentiment.errors import SentimentError
from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading
from sentiment.model.bundle import load_bundle
from sentiment.offline import OfflineClassifier
from sentiment_tools.corpus.output import REQUEST, UNFINISHED, Count, Output
from sentiment_tools.corpus.parts import cut
from sentiment_tools.corpus.scoring import Job, load, score_part
from sentiment_tools.corpus.sources import Part, find_sources
from tests.tiny import make_bundle
from tests.tools.corpus.files import KINDS, make_texts, write


def scored(parts: list[Part], job: Job, classifier: OfflineClassifier, output: Output) -> None:
    output.record({})
    for part in parts:
        output.write_part(part.name, score_part(part, job, classifier))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != ".txt"])
def test_a_row_has_the_answer_that_the_engine_gives_its_text(kind: str, tmp_path: Path, job: Job, classifier: OfflineClassifier) -> None:
    texts = [*make_texts(3000, words=60), " ", "good"]
    parts = cut(find_sources(str(write(tmp_path / f"in{kind}", texts))), Reading(), {"id": "--keep"}, 50_000)
    output = Output(str(tmp_path / "out"))

    scored(parts, job, classifier, output)

    rows = dataset.dataset(tmp_path / "out").to_table().to_pylist()
    assert len(parts) > 3
    assert [int(row["id"]) for row in rows] == list(range(len(texts)))
    with Local(job.model, bundles=job.bundles) as local:
        answers = list(local.classify_all(texts))
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, Classification):
            assert (row["label"], row["abstain"], row["tokens"], row["truncated"], row["error"]) == (
                answer.label, answer.abstain, answer.tokens, answer.truncated, None,
            )  # fmt: skip
            assert row["score"] == pytest.approx(answer.score, abs=1e-4)
            assert {label: row[f"score_{label}"] for label in job.labels} == pytest.approx(dict(answer.scores), abs=1e-4)
            assert (row["model"], row["model_digest"]) == (job.model, job.digest)
        else:
            assert row["error"].startswith("INVALID_ARGUMENT: text: has 1 characters")
            assert row["label"] is row["score"] is row["score_positive"] is row["tokens"] is row["model_digest"] is None
        assert row["file"] == str(tmp_path / f"in{kind}")
    assert any(row["truncated"] for row in rows)
    assert sum(output.done(parts).values(), Count()) == Count(len(texts), 1)


def test_incomplete_parts_are_scored_again(tmp_path: Path, job: Job, classifier: OfflineClassifier) -> None:
    parts = cut(find_sources(str(write(tmp_path / "in.csv", make_texts(1000)))), Reading(), {"id": "--keep"}, 10_000)
    output = Output(str(tmp_path / "out"))
    scored(parts, job, classifier, output)
    missing, torn = parts[1].name, parts[2].name
    (tmp_path / "out" / missing).unlink()
    (tmp_path / "out" / torn).write_bytes((tmp_path / "out" / torn).read_bytes()[:100])
    (tmp_path / "out" / f"{UNFINISHED}1").write_bytes(b"x")

    done = output.done(parts)

    assert set(done) == {part.name for part in parts} - {missing, torn}
    assert not list((tmp_path / "out").glob(f"{UNFINISHED}*"))


def test_answers_that_cannot_be_written_leave_no_file_under_the_parts_name(tmp_path: Path, job: Job, classifier: OfflineClassifier) -> None:
    (part,) = cut(find_sources(str(write(tmp_path / "in.csv", make_texts(3000)))), Reading(), {"id": "--keep"}, 2**30)
    output = Output(str(tmp_path / "out"))
    output.record({})

    def ends_early() -> Iterator[object]:
        yield next(score_part(part, job, classifier))
        raise OSError("no space left")

    with pytest.raises(BadFile, match=f"{part.name}: cannot be written: no space left"):
        output.write_part(part.name, ends_early())

    assert not (tmp_path / "out" / part.name).exists()
    assert output.done([part]) == {}


def test_a_file_with_a_header_and_no_rows_has_an_empty_part(tmp_path: Path, job: Job, classifier: OfflineClassifier) -> None:
    parts = cut(find_sources(str(write(tmp_path / "in.csv", []))), Reading(), {"id": "--keep"}, 100)
    output = Output(str(tmp_path / "out"))

    scored(parts, job, classifier, output)

    assert [parquet.read_table(tmp_path / "out" / part.name).num_rows for part in parts] == [0]
    assert output.done(parts) == {parts[0].name: Count(0, 0)}


def test_another_file_system_is_read_and_written_as_this_one(job: Job, classifier: OfflineClassifier) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/corpus/a.csv", b"id,text\n1,good\n2,awful film\n")
    parts = cut(find_sources("memory://corpus/*.csv"), Reading(), {"id": "--keep"}, 100)
    output = Output("memory://answers")

    scored(parts, job, classifier, output)

    with fs.open(f"/answers/{parts[0].name}") as stream:
        rows = parquet.read_table(stream).to_pylist()
    assert [(row["id"], row["label"], row["file"]) for row in rows] == [
        ("1", "positive", "memory:///corpus/a.csv"),
        ("2", "negative", "memory:///corpus/a.csv"),
    ]
    assert output.done(parts) == {parts[0].name: Count(2, 0)}
    fs.rm("/answers", recursive=True)


def test_a_bundle_of_another_digest_scores_nothing(job: Job) -> None:
    with pytest.raises(SentimentError, match=r"tiny/1 has digest .* expected 000"):
        load(Job(**{**{name: getattr(job, name) for name in Job.__slots__}, "digest": "0" * 64}))


def test_the_request_is_recorded_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(str(tmp_path / "out"))
    with monkeypatch.context() as patched:
        patched.setattr("fsspec.implementations.local.LocalFileSystem.mv", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            output.record({"a": 1})

    (left,) = (tmp_path / "out").iterdir()
    assert left.name.startswith(UNFINISHED)
    assert output.recorded() is None
    output.record({"files": {}})
    assert output.recorded() == {"files": {}}
    assert output.done([]) == {}
    assert [path.name for path in (tmp_path / "out").iterdir()] == [REQUEST]


def test_unfinished_files_do_not_make_a_folder_someone_elses(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{UNFINISHED}1").write_bytes(b"{")
    assert Output(str(tmp_path / "out")).recorded() is None

    (tmp_path / "out/mine").write_bytes(b"")
    with pytest.raises(BadFile, match="is not an output of this command"):
        Output(str(tmp_path / "out")).recorded()


@pytest.mark.parametrize(
    ("pattern", "out", "overlap"),
    [
        ("*/*.csv", "data/scores", False), ("data/*", "data/scores", False), ("data/*/*.parquet", "other/scores", False),
        ("data/*/*.parquet", "data/scores", True), ("**", "data/scores", True), ("data/*/part-000001*", "data/scores", True),
        ("*/_*", "scores", True),
    ],
)  # fmt: skip
def test_a_pattern_that_would_match_the_output_overlaps_it(pattern: str, out: str, overlap: bool, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        write(tmp_path / f"data/{name}.csv", ["good"])

    found = Output(str(tmp_path / out)).overlaps(f"{tmp_path}/{pattern}", find_sources(str(tmp_path / "data")))

    assert found is overlap


def test_a_part_of_another_request_counts_as_missing(tmp_path: Path, job: Job, classifier: OfflineClassifier) -> None:
    parts = cut(find_sources(str(write(tmp_path / "in.csv", make_texts(100)))), Reading(), {"id": "--keep"}, 1000)
    here, other = Output(str(tmp_path / "out"), "this"), Output(str(tmp_path / "out"), "that")
    scored(parts, job, classifier, here)
    other.write_part(parts[1].name, score_part(parts[1], job, classifier))

    assert set(here.done(parts)) == {part.name for part in parts} - {parts[1].name}
    assert set(other.done(parts)) == {parts[1].name}


def test_a_restart_deletes_only_files_of_the_command(tmp_path: Path, job: Job, classifier: OfflineClassifier) -> None:
    parts = cut(find_sources(str(write(tmp_path / "in.csv", make_texts(100)))), Reading(), {"id": "--keep"}, 1000)
    output = Output(str(tmp_path / "out"))
    scored(parts, job, classifier, output)
    output.report(Count(1), 1, 1.0)
    for name in ("mine.txt", "part-of-mine.parquet"):
        (tmp_path / "out" / name).write_text("x")

    output.clear()

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine.txt", "part-of-mine.parquet"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"files": 1}', b"\xff"])
def test_a_damaged_record_of_the_request_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / REQUEST).write_bytes(content)

    with pytest.raises(BadFile, match=f"{tmp_path}/out: cannot be read: "):
        Output(str(tmp_path / "out")).recorded()


def test_without_attributes_of_the_file_system_content_identifies_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    monkeypatch.setattr("sentiment_tools.corpus.sources.MARKS", ())
    marks = []
    for content in (b"good\n", b"best\n", b"good\n"):
        fs.pipe_file("/marked/a.txt", content)
        marks += [source.mark for source in find_sources("memory://marked/a.txt")]
    fs.rm("/marked", recursive=True)

    assert marks[0] == marks[2] != marks[1]


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_sentences_and_targets_stand_in_columns_of_json_beside_the_answer_of_their_row(kind: str, tmp_path: Path) -> None:
    bundle = load_bundle(make_bundle(tmp_path, three=True))
    texts = ["A great film. Awful.", "the film", " ", "good"]
    topics = ["film;good", "", "film", "[1]"]
    rows = [{"text": text, "topics": topic} for text, topic in zip(texts, topics, strict=True)]
    source = tmp_path / f"in{kind}"
    frame = pandas.DataFrame(rows)
    {".csv": frame.to_csv, ".jsonl": lambda path, **_: frame.to_json(path, orient="records", lines=True), ".parquet": frame.to_parquet}[
        kind
    ](source, index=False)
    job = Job(
        "unused", "", Reading(), (), "", bundle.id, bundle.digest, bundle.manifest.labels, (tmp_path,), sentences=True, targets="topics"
    )
    classifier, output = load(job), Output(str(tmp_path / "out"))

    scored(cut(find_sources(str(source)), Reading(), job.beside, 10_000), job, classifier, output)

    found = dataset.dataset(tmp_path / "out").to_table().to_pylist()
    with Local("tiny", bundles=tmp_path) as local:
        first, second = local.classify_all(texts[:2], sentences=True, targets=[["film", "good"], []])
    assert isinstance(first, Classification)
    assert isinstance(second, Classification)
    assert [json.loads(found[0][name]) for name in ("sentences", "targets")] == [
        [one.to_json() for one in first.sentences], [one.to_json() for one in first.targets.values()]
    ]  # fmt: skip
    assert [(row["sentences_total"], row["mixed"], row["language_suspect"]) for row in found[:2]] == [
        (one.sentences_total, one.mixed, one.language_suspect) for one in (first, second)
    ]
    # As in ``sentiment classify``.
    assert found[1]["targets"] is None
    assert found[2]["sentences"] is found[2]["targets"] is found[2]["sentences_total"] is None
    assert found[3]["error"] == "UNREADABLE: 'topics' must be names between ';', or a list of strings"
    assert "topics" not in found[0]
