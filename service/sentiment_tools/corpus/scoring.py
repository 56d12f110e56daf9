"""Classifies the rows of a part in this process, as a server does, and makes a table of the answers."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from sentiment.client import CallFailed, Classification, Effort, Sentence, TargetAnswer, Targeted, Truncation
from sentiment.client.frames import SCORE
from sentiment.files.reading import Reading
from sentiment.files.rows import Row, Unread
from sentiment.files.tables import for_pandas, json_text, valid
from sentiment.offline import OfflineClassifier
from sentiment_tools.corpus.output import CorpusFailed
from sentiment_tools.corpus.reading import Chunk, Text, read_part
from sentiment_tools.corpus.sources import Part, shown

# Columns that this command writes, and those of sentences and targets: JSON. Kept columns must have other names.
COLUMNS = (
    "file", "position", "label", "score", "abstain", "mixed", "tokens", "truncated", "language_suspect", "early", "model", "model_digest",
    "error",
)  # fmt: skip
SENTENCES, TARGETS = ("sentences", "sentences_total"), ("targets",)
# Their gaps would make floats and objects of them.
GAPS = {"abstain": bool, "mixed": bool, "tokens": int, "truncated": bool, "language_suspect": bool, "early": bool}


@dataclass(frozen=True, slots=True)
class Job:
    """The request for every part: the bundle (name/version and digest), the output's URI, and the hash of the request.

    ``targets``: of every text, or their column.
    """

    output: str
    question: str
    reading: Reading
    keep: tuple[str, ...]
    truncation: Truncation
    model: str
    digest: str
    labels: tuple[str, ...]
    bundles: tuple[Path, ...]
    sentences: bool = False
    targets: tuple[str, ...] | str = ()
    effort: Effort = ""

    @property
    def beside(self) -> dict[str, str]:
        """The columns that are read beside the texts, with the options that name them."""
        targets = {self.targets: "--targets-column"} if isinstance(self.targets, str) else {}
        return targets | dict.fromkeys(self.keep, "--keep")


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
    for chunk in read_part(part, job.reading, job.beside):
        empty = False
        yield _batch(part, chunk, list(_answers(_items(chunk, job), job, classifier)), job)
    if empty:
        yield _batch(part, Chunk([], [], {name: pyarrow.array([], pyarrow.string()) for name in job.keep}), [], job)


def _items(chunk: Chunk, job: Job) -> list[Text | Targeted]:
    """The texts with their targets."""
    if not job.targets:
        return list(chunk.texts)
    if isinstance(job.targets, tuple):
        asked: Iterable[tuple[str, ...] | Unread] = itertools.repeat(job.targets, len(chunk.texts))
    else:
        column = job.targets
        asked = (Row("", {column: value}).strings(column) for value in chunk.kept[column].to_pylist())
    return [_item(text, targets) for text, targets in zip(chunk.texts, asked, strict=True)]


def _item(text: Text, targets: tuple[str, ...] | Unread) -> Text | Targeted:
    if isinstance(text, Unread) or not targets:
        return text
    return targets if isinstance(targets, Unread) else Targeted(text, targets)


def _answers(items: Sequence[Text | Targeted], job: Job, classifier: OfflineClassifier) -> Iterator[Classification | str]:
    """For each text, its answer or the reason why it has none."""
    sent = (item for item in items if not isinstance(item, Unread))
    results = classifier.classify_all(sent, truncation=job.truncation, sentences=job.sentences, effort=job.effort)
    for item in items:
        if isinstance(item, Unread):
            yield f"UNREADABLE: {item.reason}"
        else:
            result = next(results)
            yield f"{result.code.name}: {result.message}" if isinstance(result, CallFailed) else result


def _batch(part: Part, chunk: Chunk, answers: Sequence[Classification | str], job: Job) -> pyarrow.RecordBatch:
    good = [answer if isinstance(answer, Classification) else None for answer in answers]

    columns = {
        "file": pyarrow.array([shown(part.uri)] * len(answers), pyarrow.string()),
        "position": pyarrow.array(chunk.positions, pyarrow.int64()),
        **{name: chunk.kept[name] for name in job.keep},
        "label": pyarrow.array([found and found.label for found in good], pyarrow.string()),
        "score": pyarrow.array([found and found.score for found in good], pyarrow.float32()),
        "abstain": pyarrow.array([found and found.abstain for found in good], pyarrow.bool_()),
        "mixed": pyarrow.array([found and found.mixed for found in good], pyarrow.bool_()),
        **{f"{SCORE}{label}": pyarrow.array([found and found.scores[label] for found in good], pyarrow.float32()) for label in job.labels},
        "tokens": pyarrow.array([found and found.tokens for found in good], pyarrow.int32()),
        "truncated": pyarrow.array([found and found.truncated for found in good], pyarrow.bool_()),
        "language_suspect": pyarrow.array([found and found.language_suspect for found in good], pyarrow.bool_()),
        "early": pyarrow.array([found and found.early for found in good], pyarrow.bool_()),
        **_parts(good, job),
        "model": pyarrow.array([found and job.model for found in good], pyarrow.string()),
        "model_digest": pyarrow.array([found and job.digest for found in good], pyarrow.string()),
        "error": pyarrow.array([answer if isinstance(answer, str) else None for answer in answers], pyarrow.string()),
    }
    gaps = GAPS | ({"sentences_total": int} if job.sentences else {})
    return pyarrow.RecordBatch.from_pydict(columns).replace_schema_metadata(for_pandas(gaps))


def _parts(good: Sequence[Classification | None], job: Job) -> dict[str, pyarrow.Array]:
    """The columns of sentences and targets. A cell is what ``sentiment classify --json`` has of them."""

    def column(parts: Iterable[Sequence[Sentence] | Sequence[TargetAnswer] | None]) -> pyarrow.Array:
        cells = [None if part is None else json_text(valid([one.to_json() for one in part])) for part in parts]
        return pyarrow.array(cells, pyarrow.string())

    columns = {}
    if job.sentences:
        columns["sentences"] = column(None if found is None else found.sentences for found in good)
        columns["sentences_total"] = pyarrow.array([found and found.sentences_total for found in good], pyarrow.int32())
    if job.targets:
        columns["targets"] = column((found and tuple(found.targets.values())) or None for found in good)
    return columns
