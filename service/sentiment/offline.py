"""Classification without a server: tokenize, sort by length, cut into batches, run them on all cores granted, and score.

Validation and scores are those of the server. There is no queue, deadline, event loop or metric: these serve concurrent callers, and cost
a tenth of the throughput of short texts.
"""

import itertools
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sentiment.batch_limits import ON_CPU_OFFLINE
from sentiment.batching.plan import BatchLimits
from sentiment.call.convert import set_response
from sentiment.call.status import status_of
from sentiment.client import Classification, Effort, ModelId, Result, Truncation
from sentiment.client.columns import Item, Targeted, TextOrPair, Unusable
from sentiment.client.results import classification_of, failure_of_status
from sentiment.errors import Expired, InvalidInput, ModelFailed, OutOfMemory, RequestError, RunnerLost, Unavailable
from sentiment.lifecycle.loading import checked, load
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.cores import cores_granted
from sentiment.model.effort import ADAPTIVE
from sentiment.model.gpu.device_session import prove
from sentiment.model.gpu.devices import CPU, find_devices
from sentiment.model.parts import Reading, whole_of
from sentiment.model.runner import Outcome, Ran, Runner, run_batch
from sentiment.model.tokenizer import Row, Windows
from sentiment.observability.logs import logger
from sentiment.pipeline.answer import Answer
from sentiment.pipeline.queries import Query, QueryReader, TextLimits
from sentiment.settings import Settings, load_settings
from sentiment.v1 import sentiment_pb2 as pb

# Texts that are tokenized together. Tokenizing takes several times the memory of the rows.
READ = 64
# Rows that are sorted by length together. At most two times as many texts are held; refused texts have no row.
ROWS = 1024


class Closed(ValueError):
    """The classifier is used after ``close``, like a closed file."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A text that was tokenized, or refused. ``begun``: instant at which its reading began. ``part``: what may suffice of its row."""

    reading: Reading | RequestError
    begun: float
    tokenize_s: float
    part: Row | None

    @property
    def rows(self) -> Sequence[Row]:
        """What is run first."""
        if isinstance(self.reading, RequestError):
            return ()
        if self.part is not None:
            return (self.part,)
        return self.reading.rows


@dataclass(frozen=True, slots=True)
class _Run:
    """A row's logits, None where the model cannot compute them, and its batch: when it ended, how long it ran, how many rows it had."""

    logits: list[float] | None
    ended: float
    run_s: float
    rows: int


_Batches = list[tuple[list[int], Future[list[_Run]]]]
"""For each batch the places of its rows among all, and its outcome."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Texts whose batches are under way."""

    texts: list[_Read]
    batches: _Batches


class OfflineClassifier:
    """Classifies with a bundle in this process. For any thread. Close it at the end.

    ``classifier``: the loaded bundle. ``explained``: the same on the CPU, for explanations.
    """

    def __init__(
        self, model: str = "", bundles: Sequence[Path] = (), *, folder: Path | None = None, device: str = "cpu", threads: int = 0
    ) -> None:
        """Load the bundle and check its answers to its golden set.

        Args:
            model: name or name/version; empty: the service's default.
            bundles: folders to search before those that a server searches too.
            folder: the bundle's, instead of ``model`` and ``bundles``.
            device: as in the server's settings.
            threads: that run batches on the CPU at a time, those of callers included; 0: one for each core granted.

        Raises:
            BadBundle: the bundle cannot be run.
            BadSettings: the model's name is invalid, or there is no such device.
        """
        settings, _ = load_settings({**({"model": model} if model else {}), "bundles": tuple(bundles), "device": device}, {})
        self.classifier, self.explained, self._limits, self._runners = _load(settings, folder)
        self.text_limits = TextLimits(settings.text_bytes_max, settings.sentences_max, settings.targets_max)
        self._reader = QueryReader(self.classifier, self.text_limits)
        self.batch_items_max = settings.batch_items_max
        self.threads = threads or cores_granted()
        manifest = self.classifier.manifest
        self.model = ModelId(manifest.name, manifest.version, self.classifier.bundle.digest)
        self._closed = False
        self._forked = False
        self._begin_threads()
        _OPENED.add(self)

    def _begin_threads(self) -> None:
        # Each entry is the right to run one batch. A device lays out a second batch while one runs.
        rights: list[Runner | None] = [*self._runners, *self._runners] or [None] * self.threads
        self._rights: queue.SimpleQueue[Runner | None] = queue.SimpleQueue()
        for right in rights:
            self._rights.put(right)
        self._pool = ThreadPoolExecutor(len(rights), "sentiment") if len(rights) > 1 else None
        # Each explanation needs memory of its own.
        self._turns = threading.BoundedSemaphore(self.threads)

    def forked(self) -> None:
        """Reset in a forked process, which has neither the threads nor the devices of its parent."""
        self._forked = bool(self._runners)
        if not self._forked:
            self._begin_threads()

    def close(self) -> None:
        """Wait for the batches and turns that run, and release the memory. Waiting callers get Closed. May be called again."""
        if self._closed:
            return
        self._closed = True
        taken = [self._rights.get() for _ in range(len(self._runners) * 2 or self.threads)]
        for _ in range(self.threads):
            self._turns.acquire()
        for runner in self._runners:
            runner.close()
        own = [runner.classifier for runner in self._runners if runner.classifier is not None]
        for session in {classifier.session for classifier in (self.classifier, self.explained, *own)}:
            session.close()
        # Waiting callers then see that this is closed.
        for right in taken:
            self._rights.put(right)
        self._turns.release(self.threads)
        if self._pool is not None:
            self._pool.shutdown()

    def check_open(self) -> None:
        """Refuse to go on after ``close``.

        Raises:
            Closed: always then.
            RuntimeError: in a process forked after a GPU was opened.
        """
        if self._forked:
            raise RuntimeError("this process was forked after a GPU was opened, which works in no other process: start processes by spawn")
        if self._closed:
            raise Closed(f"the classifier of {self.classifier.bundle.id} is closed")

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[Classifier]:
        """The right to run ``explained``, after a wait of at most ``timeout_s`` seconds. There are as many as threads.

        Raises:
            Closed: after ``close``.
            Expired: others had the right all the time.
        """
        if not self._turns.acquire(timeout=max(0.0, timeout_s)):
            raise Expired(f"{self.threads} explanations run already, and none ended before the deadline")
        try:
            self.check_open()
            yield self.explained
        finally:
            self._turns.release()

    def check(self, query: Query) -> None:
        """Refuse a query that can never be answered.

        Raises:
            InvalidInput, Unsupported: the message names the field and the limit.
        """
        self._reader.check(query)

    def readings(self, items: Iterable[TextOrPair], *, truncation: Truncation = "") -> list[Row | Windows]:
        """What the model reads of texts and pairs that it has answered, with the same truncation."""
        return [whole_of(reading) for reading in self._reader.read([_query_of(item, truncation or None) for item in items])]

    def classify_all(
        self, items: Iterable[Item], *, truncation: Truncation = "", sentences: bool = False, effort: Effort = ""
    ) -> Generator[Result, None, None]:
        """Classify texts and pairs lazily, in order and in bounded memory. The result of one that fails is a CallFailed.

        Raises:
            CallFailed: the device is lost (UNAVAILABLE).
            Closed: after ``close``.
        """
        # Of answers to come: a sentence has only its place in the text.
        texts: deque[str] = deque()

        def asked() -> Iterator[Query | RequestError]:
            for item in items:
                if isinstance(item, Unusable):
                    texts.append("")
                    yield InvalidInput(item.field, item.reason)
                    continue
                query = _query_of(item, truncation or None, sentences, effort == ADAPTIVE)
                texts.append(query.text if sentences else "")
                yield query

        for outcome in self.answer_all(asked()):
            text = texts.popleft()
            yield self._classification(outcome, text) if isinstance(outcome, Answer) else failure_of_status(status_of(outcome))

    def answer_all(self, queries: Iterable[Query | RequestError]) -> Generator[Answer | RequestError, None, None]:
        """Answer queries as ``classify_all`` does, with their sentences and targets. The outcome of one that fails is its error.

        Raises: as ``classify_all``.
        """
        self.check_open()
        under_way: deque[_Block] = deque()
        # While a block runs, this thread reads the next one.
        ahead = 0 if self._pool is None else 1
        try:
            for texts in self._blocks(iter(queries)):
                under_way.append(self._begin(texts))
                if len(under_way) > ahead:
                    yield from self._results(under_way.popleft())
            while under_way:
                yield from self._results(under_way.popleft())
        finally:
            # The caller may close the iterator early.
            for block in under_way:
                for _, future in block.batches:
                    future.cancel()

    def _blocks(self, queries: Iterator[Query | RequestError]) -> Iterator[list[_Read]]:
        """The texts, read, in lists of about ROWS rows. No list is empty."""
        block: list[_Read] = []
        rows = 0
        while taken := list(itertools.islice(queries, READ)):
            texts = self._read(taken)
            block += texts
            rows += sum(len(text.rows) for text in texts)
            if max(rows, len(block)) >= ROWS:
                yield block
                block, rows = [], 0
        if block:
            yield block

    def _read(self, asked: Sequence[Query | RequestError]) -> list[_Read]:
        begun = time.perf_counter()
        found = [one if isinstance(one, RequestError) else _refusal(self._reader.check, one) or one for one in asked]
        queries = [query for query in found if isinstance(query, Query)]
        read = zip(queries, self._reader.read(queries), strict=True)
        each_s = (time.perf_counter() - begun) / len(asked)
        texts = iter([_Read(_refusal(self._reader.check_reading, *one) or one[1], begun, each_s, self._part(*one)) for one in read])
        return [_Read(one, begun, each_s, None) if isinstance(one, RequestError) else next(texts) for one in found]

    def _part(self, query: Query, reading: Reading) -> Row | None:
        return self.classifier.part_of(reading) if isinstance(reading, Row) and self._reader.may_end_early(query, reading) else None

    def _begin(self, texts: list[_Read]) -> _Block:
        """Run what is read first of these texts. Raises Closed after ``close``."""
        return _Block(texts, self._batches([row for text in texts for row in text.rows]))

    def _batches(self, rows: Sequence[Row]) -> _Batches:
        """Run rows in batches of like length. A single batch runs here and now.

        Raises:
            Closed: after ``close``.
        """
        self.check_open()
        order = sorted(range(len(rows)), key=lambda place: rows[place].tokens, reverse=True)
        cut: list[list[int]] = []
        begin = 0
        while begin < len(order):
            cut.append(order[begin : begin + self._limits.rows_at(rows[order[begin]].tokens)])
            begin += len(cut[-1])
        submit = _now if self._pool is None or len(cut) == 1 else self._pool.submit
        try:
            return [(places, submit(self._run, [rows[place] for place in places])) for places in cut]
        except RuntimeError:
            # The pool may have been shut down since.
            self.check_open()
            raise

    def _results(self, block: _Block) -> Iterator[Answer | RequestError]:
        runs = _runs_of(block.batches)
        of_texts = [(text, list(itertools.islice(runs, len(text.rows)))) for text in block.texts]
        wholes = {place: replace(text, part=None) for place, (text, mine) in enumerate(of_texts) if self._goes_on(text, mine)}
        rest = _runs_of(self._batches([row for text in wholes.values() for row in text.rows])) if wholes else iter(())
        for place, (text, mine) in enumerate(of_texts):
            if place in wholes:
                whole = next(rest)
                yield self._result(wholes[place], [replace(whole, run_s=mine[0].run_s + whole.run_s)])
            else:
                yield self._result(text, mine)

    def _goes_on(self, text: _Read, runs: Sequence[_Run]) -> bool:
        """Whether the answer to the part of a text does not suffice."""
        # A refused text has no runs.
        return bool(runs) and text.part is not None and runs[0].logits is not None and not self.classifier.suffices(runs[0].logits)

    def _run(self, rows: Sequence[Row]) -> list[_Run]:
        """Run the rows as a batch. If it fails, run each half, until only the row at fault has no logits."""
        try:
            ran = self._compute(rows)
            if len(ran.logits) != len(rows):
                raise ValueError(f"{len(ran.logits)} answers for {len(rows)} rows")
            ended = time.perf_counter()
            return [_Run(logits, ended, ran.run_s, len(rows)) for logits in ran.logits]
        except Closed:
            raise
        except RunnerLost as error:
            raise failure_of_status(status_of(Unavailable(f"the device is lost: {error}"))) from error
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if isinstance(error, OutOfMemory) and len(rows) > 1:
                longest = max(row.tokens for row in rows)
                self._limits = self._limits.below(len(rows) * longest, len(rows) * longest**2)
            logger().error("batch_failed", rows=len(rows), tokens=rows[0].tokens, reason=str(error))
        if len(rows) == 1:
            return [_Run(None, time.perf_counter(), 0.0, 1)]
        half = len(rows) // 2
        return [*self._run(rows[:half]), *self._run(rows[half:])]

    def _compute(self, rows: Sequence[Row]) -> Ran:
        right = self._rights.get()
        try:
            self.check_open()
            if right is None:
                return run_batch(self.classifier, rows)
            done: Future[Outcome] = Future()
            right.start(self.classifier, rows, done.set_result, ahead=True)
            outcome = done.result()
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            self._rights.put(right)

    def _result(self, text: _Read, runs: Sequence[_Run]) -> Answer | RequestError:
        reading = text.reading
        if isinstance(reading, RequestError):
            return reading
        logits = [run.logits for run in runs if run.logits is not None]
        if len(logits) == len(runs):
            try:
                return self._answer(text, reading, logits, runs[-1])
            except ValueError as error:
                logger().error("bad_logits", reason=str(error), tokens=reading.tokens)
        return ModelFailed("the model could not compute this text")

    def _answer(self, text: _Read, reading: Reading, logits: Sequence[Sequence[float]], last: _Run) -> Answer:
        scored, parts = self.classifier.answer(reading, logits)
        suspect = self.classifier.tokenizer.is_foreign(whole_of(reading))
        total_s = last.ended - text.begun
        queue_s = max(0.0, total_s - text.tokenize_s - last.run_s)
        tokens, truncated = (text.part or reading).tokens, reading.truncated
        return Answer(
            scored, tokens, truncated, suspect, total_s, text.tokenize_s, queue_s, last.run_s, last.rows, parts, text.part is not None
        )

    def _classification(self, answer: Answer, text: str) -> Classification:
        # As a server sends it, in fp32.
        response = pb.ClassifyResponse()
        set_response(response, answer, self)
        return classification_of(response, text)


_OPENED: weakref.WeakSet[OfflineClassifier] = weakref.WeakSet()


def _forked() -> None:
    for classifier in _OPENED:
        classifier.forked()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _refusal(check: Callable[..., None], *arguments: object) -> RequestError | None:
    """The error that a check raises; None if it passes."""
    try:
        check(*arguments)
    except RequestError as error:
        return error
    return None


def _runs_of(batches: _Batches) -> Iterator[_Run]:
    """The runs of all rows, in their order."""
    runs: dict[int, _Run] = {}
    for places, future in batches:
        runs.update(zip(places, future.result(), strict=True))
    return (runs[place] for place in range(len(runs)))


def _query_of(item: TextOrPair | Targeted, truncation: str | None, sentences: bool = False, adaptive: bool = False) -> Query:
    text, targets = (item.text, item.targets) if isinstance(item, Targeted) else (item, ())
    text, pair = (text, None) if isinstance(text, str) else text
    return Query(text, pair, truncation, sentences=sentences, targets=targets, adaptive=adaptive)


def _load(settings: Settings, folder: Path | None) -> tuple[Classifier, Classifier, BatchLimits, list[Runner]]:
    """The classifier, the one for explanations, the limits of a batch, and the runner of each device; none for the CPU."""
    if find_devices(settings.device, prove).devices == (CPU,):
        classifier = load_classifier(folder.resolve()) if folder else checked(find_bundle(settings.model, bundle_roots(settings.bundles)))
        return classifier, classifier, BatchLimits(**ON_CPU_OFFLINE, heads=classifier.bundle.attention_heads), []
    if folder:
        named = {"model": f"{folder.parent.name}/{folder.name}", "bundles": (folder.parent.parent,)}
        settings, _ = load_settings({**settings.model_dump(exclude_unset=True), **named}, {})
    loaded = load(settings, measure_s=0)
    runners = loaded.runners
    if loaded.devices == (CPU,):
        # No device could be used after all. The calling threads do the work of these runners.
        for runner in runners:
            runner.close()
        runners = []
    return loaded.classifier, loaded.explained, loaded.limits, runners


def _now(work: Callable[[Sequence[Row]], list[_Run]], rows: Sequence[Row]) -> Future[list[_Run]]:
    """Do the work in the calling thread."""
    future: Future[list[_Run]] = Future()
    future.set_result(work(rows))
    return future
