"""Classifies the rows of a part in this process, as a server does, and makes a table of the answers. Does not know Ray."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from sentiment.client import CallFailed, Classification
from sentiment.client.frames import SCORE
from sentiment.corpus.output import CorpusFailed
from sentiment.corpus.reading import Chunk, Text, read_part
from sentiment.corpus.sources import Part, shown
from sentiment.files.reading import Reading
from sentiment.files.rows import Unread
from sentiment.files.tables import for_pandas
from sentiment.serving.offline import OfflineClassifier

# Columns that this command writes. Kept columns must have other names.
COLUMNS = ("file", "position", "label", "score", "abstain", "tokens", "truncated", "model", "model_digest", "error")


# Their gaps would make floats and objects of them.
FOR_PANDAS = for_pandas({"abstain": bool, "tokens": int, "truncated": bool})


@dataclass(frozen=True, slots=True)
class Job:
    """The request for every part: the bundle (name/version and digest), the output's URI, and the hash of the request."""

    output: str
    question: str
    reading: Reading
    keep: tuple[str, ...]
    truncation: str
    model: str
    digest: str
    labels: tuple[str, ...]
    bundles: tuple[Path, ...]


def load(job: Job) -> OfflineClassifier:
    """Load the bundle, to run on one core.

    Raises:
        BadBundle: it is missing or cannot be served.
        CorpusFailed: its digest differs from the request's.
    """
    classifier = OfflineClassifier(job.model, job.bundles, threads=1)
    if classifier.model.digest != job.digest:
        raise CorpusFailed(f"{job.model} has digest {classifier.model.digest[:12]} on this machine; expected {job.digest[:12]}")
    return classifier


def score_part(part: Part, job: Job, classifier: OfflineClassifier) -> Iterator[pyarrow.RecordBatch]:
    """Yield the answers to all rows of a part, in order. A part without rows gives one batch without rows.

    Raises:
        BadFile: the part cannot be read.
    """
    empty = True
    for chunk in read_part(part, job.reading, job.keep):
        empty = False
        yield _batch(part, chunk, list(_answers(chunk.texts, job, classifier)), job)
    if empty:
        yield _batch(part, Chunk([], [], {name: pyarrow.array([], pyarrow.string()) for name in job.keep}), [], job)


def _answers(texts: Sequence[Text], job: Job, classifier: OfflineClassifier) -> Iterator[Classification | str]:
    """For each text, its answer or the reason why it has none."""
    results = classifier.classify_all((text for text in texts if isinstance(text, str)), truncation=job.truncation)
    for text in texts:
        if isinstance(text, Unread):
            yield f"UNREADABLE: {text.reason}"
        else:
            result = next(results)
            yield f"{result.code.name}: {result.message}" if isinstance(result, CallFailed) else result


def _batch(part: Part, chunk: Chunk, answers: Sequence[Classification | str], job: Job) -> pyarrow.RecordBatch:
    good = [answer if isinstance(answer, Classification) else None for answer in answers]
    scores = {
        f"{SCORE}{label}": pyarrow.array([found and found.scores[label] for found in good], pyarrow.float32()) for label in job.labels
    }
    columns = {
        "file": pyarrow.array([shown(part.uri)] * len(answers), pyarrow.string()),
        "position": pyarrow.array(chunk.positions, pyarrow.int64()),
        **chunk.kept,
        "label": pyarrow.array([found and found.label for found in good], pyarrow.string()),
        "score": pyarrow.array([found and found.score for found in good], pyarrow.float32()),
        "abstain": pyarrow.array([None if found is None else found.abstain for found in good], pyarrow.bool_()),
        **scores,
        "tokens": pyarrow.array([found and found.tokens for found in good], pyarrow.int32()),
        "truncated": pyarrow.array([None if found is None else found.truncated for found in good], pyarrow.bool_()),
        "model": pyarrow.array([found and job.model for found in good], pyarrow.string()),
        "model_digest": pyarrow.array([found and job.digest for found in good], pyarrow.string()),
        "error": pyarrow.array([answer if isinstance(answer, str) else None for answer in answers], pyarrow.string()),
    }
    return pyarrow.RecordBatch.from_pydict(columns).replace_schema_metadata(FOR_PANDAS)
