"""One text through the stages: check, tokenize, queue, run, score.

Used by the gRPC and HTTP sides and in-process; knows neither.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sentiment.batching.batcher import RowOutcome, RowResult
from sentiment.batching.row_queue import NotLetIn, Pending, Reading, RowQueue, TextOutcome
from sentiment.batching.ticket import Priority
from sentiment.batching.windows import JointOutcome
from sentiment.errors import Expired, ModelFailed, Refused, RequestError, Unavailable
from sentiment.explain.queue import Explaining
from sentiment.model.classifier import Classifier
from sentiment.model.scores import Scored
from sentiment.model.tokenizer import Windows
from sentiment.observability.logs import logger
from sentiment.observability.metrics import ModelMetrics
from sentiment.observability.tracing.trace import Telling, exemplar_of
from sentiment.serving.queries import Query, QueryReader

# Texts beyond this, or with words that are hard to read, are tokenized in a thread: about a millisecond, the longest the event loop may
# be held.
INLINE_CHARACTERS_MAX = 2048
# Texts of a batch call that are tokenized together: long enough that the hand-over to the thread (60 us) does not count,
# short enough that the first rows run while the others are tokenized, and that another call's texts wait for them only so long.
CHUNK = 64
CHUNK_CHARACTERS = 2**16
# For the run of an explanation that was asked to end; the process need not wait for one that does not.
EXPLAINING_WAIT_S = 1.0
# A cancellation so shortly before the deadline is the deadline's.
DEADLINE_SLACK_S = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered, and where the time went (seconds); of several windows the last one's queue, run and batch."""

    scored: Scored
    tokens: int
    truncated: bool
    total_s: float
    tokenize_s: float
    queue_s: float
    run_s: float
    batch_rows: int


Outcome = Answer | RequestError
Tell = Callable[[Outcome], None]


class Served:
    """A loaded model and the way to its queue: what a request that names it goes through."""

    def __init__(
        self,
        classifier: Classifier,
        queue: RowQueue,
        metrics: ModelMetrics,
        text_bytes_max: int,
        call_rows_max: int,
        explaining: Explaining | None = None,
    ) -> None:
        """``explaining``: None where the server does not explain."""
        self.classifier = classifier
        self.explaining = explaining
        self.metrics = metrics
        self.id = classifier.bundle.id
        self.queue = queue
        self._reader = QueryReader(classifier, text_bytes_max)
        self._call_rows_max = call_rows_max
        # One each, or a text that somebody waits for would queue behind the texts of every batch.
        self._tokenizing = {priority: ThreadPoolExecutor(1, f"tokenize-{priority.value}") for priority in Priority}

    def close(self) -> None:
        """Release the threads."""
        if self.explaining is not None:
            self.explaining.close(EXPLAINING_WAIT_S)
        for executor in self._tokenizing.values():
            executor.shutdown(wait=False, cancel_futures=True)

    def check(self, query: Query) -> None:
        """Refuse what can never be answered.

        Raises:
            InvalidInput or Unsupported, each naming what is wrong.
        """
        self._reader.check(query)

    async def classify(self, query: Query, arrived_at: float, deadline_at: float) -> Answer:
        """Answer one text. Cancelling withdraws it from the queue.

        Args:
            query: the text.
            arrived_at: instant of ``time.monotonic`` from which its time counts.
            deadline_at: instant after which the answer is worth nothing.

        Raises:
            RequestError: one of its subclasses says why there is no answer.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome) -> None:
            # A caller that is cancelled withdraws only in a later turn of the loop: the outcome may come in between.
            if not future.done():
                future.set_result(outcome)

        ticket = await self.begin(query, arrived_at, deadline_at, tell)
        try:
            outcome = await future
        except asyncio.CancelledError:
            self.withdraw(ticket)
            raise
        if isinstance(outcome, Answer):
            return outcome
        raise outcome

    async def begin(self, query: Query, arrived_at: float, deadline_at: float, tell: Tell) -> Pending:
        """Queue one text and return at once; ``tell`` gets its outcome in a later turn of the loop, unless it is withdrawn.

        Raises:
            RequestError: it was refused; ``tell`` will not be called.
        """
        self.check(query)
        begun = time.monotonic()
        with Telling(query.trace, "tokenize") as attributes:
            tokenizer = self.classifier.tokenizer
            inline = query.text_pair is None and tokenizer.is_plain(query.text, INLINE_CHARACTERS_MAX)
            row = tokenizer.encode(query.text) if inline else None
            reading: Reading
            if row is None or self._reader.reads_on(query, row):
                (reading,) = await self._in_thread([query], deadline_at)
            else:
                reading = row
            attributes["sentiment.tokens"] = reading.tokens
        return self._submit(query, reading, arrived_at, time.monotonic() - begun, deadline_at, tell)

    async def classify_many(self, queries: Sequence[Query], arrived_at: float, deadline_at: float, together: bool = False) -> list[Outcome]:
        """Answer many texts, each on its own: one that fails leaves the others alone. Cancelling withdraws all.

        ``together``: they are worth nothing without each other; the first that fails withdraws the others, which have no outcome then.
        At most ``call_rows_max`` rows of them are unanswered at a time; a text of more windows than that has the call to itself.
        """
        outcomes: list[Outcome | None] = [None] * len(queries)
        room = asyncio.Semaphore(self._call_rows_max)
        tickets: dict[int, Pending] = {}
        done = asyncio.Event()
        left = len(queries)

        def release(rows: int) -> None:
            for _ in range(min(rows, self._call_rows_max)):
                room.release()

        def settle(index: int, outcome: Outcome) -> None:
            nonlocal left
            outcomes[index] = outcome
            left = 0 if together and isinstance(outcome, RequestError) else left - 1
            pending = tickets.pop(index, None)
            if pending is not None:
                release(pending.rows)
            if left <= 0:
                done.set()

        try:
            async for index, reading, tokenize_s in self._tokenized(queries, deadline_at, settle):
                rows = len(reading.rows) if isinstance(reading, Windows) else 1
                # Nobody else acquires: what is held is released by rows that are queued, never by rows that wait here.
                for _ in range(min(rows, self._call_rows_max)):
                    await room.acquire()
                if done.is_set():
                    break
                try:
                    tickets[index] = self._submit(queries[index], reading, arrived_at, tokenize_s, deadline_at, partial(settle, index))
                except RequestError as error:
                    release(rows)
                    settle(index, error)
            await done.wait()
        finally:
            for ticket in tickets.values():
                self.withdraw(ticket)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _tokenized(
        self, queries: Sequence[Query], deadline_at: float, settle: Callable[[int, Outcome], None]
    ) -> AsyncIterator[tuple[int, Reading, float]]:
        """Index, reading and tokenizing time of each query that can be asked; the others are settled with their error."""
        for chunk in _chunks(queries):
            good = []
            for index in chunk:
                try:
                    self.check(queries[index])
                    good.append(index)
                except RequestError as error:
                    settle(index, error)
            # It is other calls' turn, if nothing is tokenized meanwhile.
            await asyncio.sleep(0)
            if good:
                begun = time.monotonic()
                try:
                    with Telling(queries[good[0]].trace, "tokenize") as attributes:
                        attributes["sentiment.texts"] = len(good)
                        readings = await self._in_thread([queries[index] for index in good], deadline_at)
                except Expired as error:
                    for index in good:
                        settle(index, error)
                    continue
                each_s = (time.monotonic() - begun) / len(good)
                for index, reading in zip(good, readings, strict=True):
                    yield index, reading, each_s

    def withdraw(self, pending: Pending) -> None:
        """Nobody waits for this text any more. Harmless if it has been told."""
        if self.queue.cancel(pending):
            # gRPC cancels a call at its deadline, an instant before or after the scheduler would have told it.
            late = time.monotonic() >= pending.deadline_at - DEADLINE_SLACK_S
            self.metrics.outcome["expired" if late else "cancelled"]()

    async def _in_thread(self, queries: Sequence[Query], deadline_at: float) -> list[Reading]:
        """Tokenize beside the event loop. Only here a request waits for anything but a row, which the scheduler ends in time."""
        try:
            async with asyncio.timeout_at(deadline_at):
                return await asyncio.get_running_loop().run_in_executor(self._tokenizing[queries[0].priority], self._reader.read, queries)
        except TimeoutError as error:
            raise Expired("no answer within the deadline: other texts are being tokenized") from error

    def _submit(self, query: Query, reading: Reading, arrived_at: float, tokenize_s: float, deadline_at: float, tell: Tell) -> Pending:
        self.metrics.stage["tokenize"](tokenize_s, exemplar_of(query.trace))
        self._reader.check_reading(query, reading)

        def told(outcome: TextOutcome) -> None:
            if isinstance(outcome, NotLetIn):
                self._count_refused(outcome.error)
                tell(outcome.error)
            else:
                tell(self._finish(reading, arrived_at, tokenize_s, outcome, query))

        try:
            return self.queue.submit(reading, deadline_at, told, query.priority, query.trace)
        except (Refused, Expired, Unavailable) as error:
            self._count_refused(error)
            raise

    def _count_refused(self, error: Refused | Expired | Unavailable) -> None:
        reason = error.reason if isinstance(error, Refused) else "deadline" if isinstance(error, Expired) else "unavailable"
        self.metrics.refused[reason]()
        self.metrics.outcome["refused"]()

    def _finish(self, reading: Reading, arrived_at: float, tokenize_s: float, outcome: RowOutcome | JointOutcome, query: Query) -> Outcome:
        metrics = self.metrics
        if isinstance(outcome, RequestError):
            metrics.outcome["expired" if isinstance(outcome, Expired) else "failed"]()
            return outcome
        begun = time.monotonic()
        try:
            if isinstance(outcome, RowResult):
                scored = self.classifier.score(outcome.logits)
            else:
                scored = self.classifier.score_windows(outcome.logits)
        except ValueError as error:
            logger().error("bad_logits", model=self.id, reason=str(error), tokens=reading.tokens)
            metrics.outcome["failed"]()
            return ModelFailed("the model could not compute this text")
        now = time.monotonic()
        metrics.stage["queue"](outcome.queue_s, exemplar_of(query.trace))
        metrics.stage["score"](now - begun)
        metrics.outcome["met"]()
        return Answer(
            scored, reading.tokens, reading.truncated, now - arrived_at, tokenize_s, outcome.queue_s, outcome.run_s, outcome.batch_rows
        )


def _chunks(queries: Sequence[Query]) -> Iterator[Sequence[int]]:
    """The places of queries that are tokenized together."""
    chunk: list[int] = []
    characters = 0
    for place, query in enumerate(queries):
        size = len(query.text) + len(query.text_pair or "")
        if chunk and (len(chunk) == CHUNK or characters + size > CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(place)
        characters += size
    if chunk:
        yield chunk
