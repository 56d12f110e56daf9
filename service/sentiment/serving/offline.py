"""Offline classification on one core: tokenize, sort by length, cut into batches, run and score, all in the calling thread.

Validation, batch limits and scores are those of the server. There is no queue, deadline, event loop, second thread or metric: these serve
concurrent callers, and cost a tenth of the throughput of short texts.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment.api.grpc.status import code_of
from sentiment.batching.plan import Prices
from sentiment.batching.row_queue import Reading
from sentiment.client import CallFailed
from sentiment.errors import ModelFailed, RequestError
from sentiment.model.scores import Scored
from sentiment.model.tokenizer import Row, Windows
from sentiment.observability.logs import logger
from sentiment.serving.lifecycle.loading import load
from sentiment.serving.queries import Query, QueryReader
from sentiment.settings import load_settings

# Texts that are tokenized together. Tokenizing takes several times the memory of the rows.
READ = 64
# Rows that are sorted by length together, and the most texts that are held: refused texts have no row.
ROWS = 1024

Logits = list[float]


@dataclass(frozen=True, slots=True)
class Answer:
    """A text's scores, how many of its tokens were read, and whether it has more."""

    scored: Scored
    tokens: int
    truncated: bool


class OfflineClassifier:
    """Classifies with a bundle in the calling thread."""

    def __init__(self, model: str, bundles: Sequence[Path]) -> None:
        """Load the bundle and measure what batches cost.

        Raises:
            BadBundle: the bundle cannot be run.
            BadSettings: the model's name is invalid.
        """
        settings, _ = load_settings({"model": model, "bundles": tuple(bundles), "device": "cpu", "runners": 1}, {})
        loaded = load(settings)
        # The calling thread does the work of the runner.
        loaded.runners[0].close(wait_s=1.0)
        self._classifier = loaded.classifier
        self._prices = Prices(loaded.cost, loaded.limits)
        self._reader = QueryReader(loaded.classifier, settings.text_bytes_max)

    @property
    def digest(self) -> str:
        """The bundle's digest."""
        return self._classifier.bundle.digest

    def classify_all(self, texts: Iterable[str], *, truncation: str = "") -> Iterator[Answer | CallFailed]:
        """Classify texts lazily, in order and in bounded memory; a text that fails gives a CallFailed in its place."""
        source = (Query(text, truncation=truncation or None) for text in texts)
        held: list[Reading | RequestError] = []
        rows = 0
        while queries := list(itertools.islice(source, READ)):
            readings = self._read(queries)
            held += readings
            rows += sum(len(_rows(reading)) for reading in readings)
            if max(rows, len(held)) >= ROWS:
                yield from self._answers(held)
                held, rows = [], 0
        yield from self._answers(held)

    def _read(self, queries: Sequence[Query]) -> list[Reading | RequestError]:
        refused: dict[int, RequestError] = {}
        for number, query in enumerate(queries):
            try:
                self._reader.check(query)
            except RequestError as error:
                refused[number] = error
        readings = iter(self._reader.read([query for number, query in enumerate(queries) if number not in refused]))
        return [refused[number] if number in refused else self._checked(query, next(readings)) for number, query in enumerate(queries)]

    def _checked(self, query: Query, reading: Reading) -> Reading | RequestError:
        try:
            self._reader.check_reading(query, reading)
        except RequestError as error:
            return error
        return reading

    def _answers(self, readings: Sequence[Reading | RequestError]) -> Iterator[Answer | CallFailed]:
        logits = iter(self._run_all([row for reading in readings for row in _rows(reading)]))
        for reading in readings:
            outcome = reading if isinstance(reading, RequestError) else self._score(reading, [next(logits) for _ in _rows(reading)])
            yield CallFailed(code_of(outcome), str(outcome)) if isinstance(outcome, RequestError) else outcome

    def _run_all(self, rows: Sequence[Row]) -> list[Logits | None]:
        """The logits of each row, in order; None where the model cannot compute them."""
        found: list[Logits | None] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda place: rows[place].tokens, reverse=True)
        begin = 0
        while begin < len(order):
            places = order[begin : begin + self._prices.best_rows(rows[order[begin]].tokens)]
            for place, logits in zip(places, self._run([rows[place] for place in places]), strict=True):
                found[place] = logits
            begin += len(places)
        return found

    def _run(self, rows: Sequence[Row]) -> list[Logits | None]:
        """Run the rows as a batch. If it fails, run each half, until only the row at fault has no logits."""
        try:
            logits = self._classifier.run(rows)
            if len(logits) != len(rows):
                raise ValueError(f"{len(logits)} answers for {len(rows)} rows")
            return [*logits]
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            logger().error("batch_failed", rows=len(rows), tokens=rows[0].tokens, reason=str(error))
        if len(rows) == 1:
            return [None]
        half = len(rows) // 2
        return [*self._run(rows[:half]), *self._run(rows[half:])]

    def _score(self, reading: Reading, logits: Sequence[Logits | None]) -> Answer | ModelFailed:
        computed = [row for row in logits if row is not None]
        if len(computed) == len(logits):
            try:
                if isinstance(reading, Windows):
                    return Answer(self._classifier.score_windows(computed), reading.tokens, reading.truncated)
                return Answer(self._classifier.score(computed[0]), reading.tokens, reading.truncated)
            except ValueError as error:
                logger().error("bad_logits", reason=str(error), tokens=reading.tokens)
        return ModelFailed("the model could not compute this text")


def _rows(reading: Reading | RequestError) -> Sequence[Row]:
    if isinstance(reading, RequestError):
        return ()
    return reading.rows if isinstance(reading, Windows) else (reading,)
