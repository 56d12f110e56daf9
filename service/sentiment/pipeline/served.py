"""The stages of one text: check, tokenize, queue, run, score.

Used by gRPC, by HTTP and in-process; imports none of them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sentiment.batching.row_queue import Pending, RowQueue, TextOutcome
from sentiment.batching.ticket import Priority
from sentiment.errors import Broken, Expired, ModelFailed, Refused, RequestError, Unavailable
from sentiment.explain.queue import Explaining
from sentiment.model.classifier import Classifier, Parts
from sentiment.model.foreign import is_foreign
from sentiment.model.lease import InUse
from sentiment.model.parts import Reading, whole_of
from sentiment.model.scores import Scored
from sentiment.observability.journal import Journal
from sentiment.observability.logs import logger
from sentiment.observability.metrics import ModelMetrics
from sentiment.observability.tracing.trace import StageSpan, exemplar_of
from sentiment.pipeline.after_answer import AfterAnswer, Told
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.loop_turns import LoopTurns
from sentiment.pipeline.queries import Query, QueryReader, TextLimits
from sentiment.pipeline.refusals import Refusals

# Texts of a batch call that are tokenized before other calls get a turn: twice as many characters. Also the rows that all calls queue in a
# turn, where a text has several: a millisecond.
CHUNK = 64
CHUNK_CHARACTERS = 2**12
# How long to wait for an explanation's run that was asked to stop. The process does not wait for one that does not stop.
EXPLAINING_WAIT_S = 1.0
# A cancellation this shortly before the deadline counts as expired.
DEADLINE_SLACK_S = 0.01


Tell = Callable[[Outcome], None]
# Gets each answered text: the model, the query and the answer.
Sample = Callable[["Served", Told], None]


class Served:
    """A loaded model and its queue: the pipeline of the requests that name it."""

    def __init__(
        self,
        classifier: Classifier,
        queue: RowQueue,
        metrics: ModelMetrics,
        text_limits: TextLimits,
        call_rows_max: int,
        explaining: Explaining | None = None,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``explaining``: None if the server does not explain. ``journal``: None if answers are not kept. ``clock``: the event loop's."""
        self.classifier = classifier
        self.explaining = explaining
        self.metrics = metrics
        self.id, self.name, self.version = classifier.bundle.id, classifier.manifest.name, classifier.manifest.version
        self.queue = queue
        self._clock = clock
        # Take answered texts, for shadow scoring and the like.
        self.samples: Sequence[Sample] = ()
        self._journals_texts = journal is not None and journal.texts
        self._after = AfterAnswer(classifier, metrics, journal)
        self._after.observers.append(("sample", self._sample))
        # Its calls. A text that ``begin`` has queued is not one.
        self.users = InUse()
        self._reader = QueryReader(classifier, text_limits)
        self._call_rows_max = call_rows_max
        self._turns = LoopTurns(CHUNK)
        self._refusals = Refusals(clock)
        # One thread for each priority, so that interactive texts do not wait behind the texts of batch calls.
        self._tokenizing = {priority: ThreadPoolExecutor(1, f"tokenize-{priority.value}") for priority in Priority}

    @property
    def keeps_texts(self) -> bool:
        """Whether a text is needed until its answer: for the journal or for samples. Otherwise it is dropped once it is tokenized."""
        return bool(self.samples) or self._journals_texts

    def close(self) -> None:
        """Stop the threads."""
        if self.explaining is not None:
            self.explaining.close(EXPLAINING_WAIT_S)
        for executor in self._tokenizing.values():
            executor.shutdown(wait=False, cancel_futures=True)

    def count_told(self, texts: int, outcome: str) -> None:
        """Count answers once their caller has got them, in time (met) or not. All other outcomes are counted where they occur."""
        self.metrics.outcome[outcome](texts)

    def check(self, query: Query) -> None:
        """Refuse a query that can never be answered.

        Raises:
            InvalidInput, Unsupported: the message names the field and the limit.
        """
        self._reader.check(query)

    async def classify(self, query: Query, arrived_at: float, deadline_at: float) -> Answer:
        """Answer one text. Cancelling withdraws it from the queue.

        Args:
            query: the text.
            arrived_at: instant of ``time.monotonic`` from which its total time counts.
            deadline_at: instant after which the caller has no use for the answer.

        Raises:
            RequestError: the subclass says why there is no answer.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        answered = False

        def tell(outcome: Outcome) -> None:
            nonlocal answered
            answered = isinstance(outcome, Answer)
            # A cancelled caller withdraws only in a later turn of the loop; the outcome may come before.
            if not future.done():
                future.set_result(outcome)

        with self.users:
            ticket = await self.begin(query, arrived_at, deadline_at, tell)
            try:
                outcome = await future
            except asyncio.CancelledError:
                self.withdraw(ticket)
                if answered:
                    self._count_left(1, deadline_at)
                raise
            if isinstance(outcome, Answer):
                return outcome
            raise outcome

    async def begin(self, query: Query, arrived_at: float, deadline_at: float, tell: Tell) -> Pending:
        """Queue one text and return. ``tell`` is called with its outcome in a later turn of the loop, unless the text is withdrawn.

        Raises:
            RequestError: the text was refused; ``tell`` will not be called.
        """
        with self.users:
            self.check(query)
            begun = self._clock()
            with StageSpan(query.trace, "tokenize") as attributes:
                try:
                    (reading,) = await self._read([query], deadline_at)
                    await self._turn_for(reading)
                except asyncio.CancelledError:
                    self._count_left(1, deadline_at)
                    raise
                attributes["sentiment.tokens"] = reading.tokens
            return self._submit(query, reading, arrived_at, self._clock() - begun, deadline_at, tell)

    async def classify_many(self, queries: Sequence[Query], arrived_at: float, deadline_at: float, together: bool = False) -> list[Outcome]:
        """Answer many texts. One that fails does not affect the others. Cancelling withdraws all.

        ``together``: the first failure withdraws the other texts, which then have no outcome.
        At most ``call_rows_max`` of their rows are in the queue at a time. A text with more rows than that is queued alone.
        After a refusal of a caller over its share it may pause: see Refusals. Once half of the time that was left at the first one is over,
        it refuses texts unread.
        """
        outcomes: list[Outcome | None] = [None] * len(queries)
        room = asyncio.Semaphore(self._call_rows_max)
        tickets: dict[int, Pending] = {}
        done = asyncio.Event()
        left = len(queries)
        unread_from: float | None = None

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

        with self.users:
            try:
                async for index, reading, tokenize_s in self._tokenized(queries, deadline_at, settle):
                    await self._turn_for(reading)
                    rows = len(reading.rows)
                    # Only this task acquires, and queued rows release: so a text that waits here for room cannot deadlock.
                    for _ in range(min(rows, self._call_rows_max)):
                        await room.acquire()
                    if done.is_set():
                        break
                    try:
                        tickets[index] = self._submit(queries[index], reading, arrived_at, tokenize_s, deadline_at, partial(settle, index))
                    except RequestError as error:
                        release(rows)
                        settle(index, error.alone())
                        if not isinstance(error, Refused) or not error.over_share or together:
                            continue
                        unread_from = unread_from or (self._clock() + deadline_at) / 2
                        if not await self._refusals.wait(unread_from, error.rows):
                            refusal = Refused("not read: too many texts of this batch were refused", error.retry_after_s, error.reason)
                            refusal.over_share, refusal.admitted = True, False
                            for unread in range(index + 1, len(queries)):
                                if outcomes[unread] is None:
                                    settle(unread, refusal)
                                    self.metrics.observing.later("outcome", self._count, refusal)
                            break
                await done.wait()
            except asyncio.CancelledError:
                # Those that are answered, and those that are not queued yet. An error is counted where it occurs, and a queued text when
                # it is withdrawn.
                errors = sum(isinstance(outcome, RequestError) for outcome in outcomes)
                self._count_left(len(queries) - errors - len(tickets), deadline_at)
                raise
            finally:
                for ticket in tickets.values():
                    self.withdraw(ticket)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _tokenized(
        self, queries: Sequence[Query], deadline_at: float, settle: Callable[[int, Outcome], None]
    ) -> AsyncIterator[tuple[int, Reading, float]]:
        """Index, reading and tokenizing time of each valid query; ``settle`` gets the errors of the others."""
        for chunk in _chunks(queries):
            await self._turns.wait(len(chunk))
            good = []
            for index in chunk:
                try:
                    if self._clock() >= deadline_at:
                        self.metrics.outcome["expired"]()
                        raise Expired("the deadline passed before the text was tokenized: other texts of its batch are ahead of it")
                    self.check(queries[index])
                    good.append(index)
                except RequestError as error:
                    settle(index, error.alone())
            if good:
                begun = self._clock()
                try:
                    with StageSpan(queries[good[0]].trace, "tokenize") as attributes:
                        attributes["sentiment.texts"] = len(good)
                        readings = await self._read([queries[index] for index in good], deadline_at)
                except Expired as error:
                    for index in good:
                        settle(index, error.alone())
                    continue
                each_s = (self._clock() - begun) / len(good)
                for index, reading in zip(good, readings, strict=True):
                    yield index, reading, each_s

    def withdraw(self, pending: Pending) -> None:
        """Withdraw a text whose caller has gone. Does nothing if its outcome was already delivered."""
        if pending.cancel():
            self._count_left(1, pending.deadline_at)

    def _count_left(self, texts: int, deadline_at: float) -> None:
        """Count texts whose caller left before the answer."""
        # gRPC cancels a call at its deadline, shortly before or after the scheduler would expire it.
        late = self._clock() >= deadline_at - DEADLINE_SLACK_S
        self.metrics.outcome["expired" if late else "cancelled"](texts)

    async def _read(self, queries: Sequence[Query], deadline_at: float) -> list[Reading]:
        """Tokenize short texts at once, and the others in a thread.

        The scheduler does not know of that wait, so the deadline is enforced here.
        """
        rows = [self._reader.read_short(query) for query in queries]
        slow = [query for query, row in zip(queries, rows, strict=True) if row is None]
        read: Iterator[Reading] = iter(())
        if slow:
            try:
                async with asyncio.timeout_at(deadline_at):
                    loop, executor = asyncio.get_running_loop(), self._tokenizing[slow[0].priority]
                    read = iter(await loop.run_in_executor(executor, self._reader.read, slow))
            except TimeoutError as error:
                self.metrics.outcome["expired"](len(queries))
                raise Expired("the deadline passed before the text was tokenized") from error
        return [next(read) if row is None else row for row in rows]

    async def _turn_for(self, reading: Reading) -> None:
        """Wait until the rows of a text beyond its first can be queued without keeping the event loop from others."""
        if (more := len(reading.rows) - 1) > 0:
            await self._turns.wait(more)

    def _submit(self, query: Query, reading: Reading, arrived_at: float, tokenize_s: float, deadline_at: float, tell: Tell) -> Pending:
        self.metrics.stage["tokenize"](tokenize_s, exemplar_of(query.trace))
        self._reader.check_reading(query, reading)
        whole = whole_of(reading)

        def on_outcome(outcome: TextOutcome) -> None:
            if isinstance(outcome, RequestError):
                self._fail(outcome, tell)
                return
            begun = self._clock()
            answers = self._scored(outcome.logits, reading)
            if isinstance(answers, RequestError):
                self._fail(answers, tell)
                return
            scored, parts = answers
            fragments = self.classifier.tokenizer.fragments(whole)
            now, queue_s, suspect = self._clock(), outcome.queue_s, is_foreign(*fragments)
            total_s, run_s, rows = now - arrived_at, outcome.run_s, outcome.batch_rows
            tokens = effort.part_tokens if outcome.early and (effort := self.classifier.manifest.effort) else whole.tokens
            self._refusals.answered()
            tell(Answer(scored, tokens, whole.truncated, suspect, total_s, tokenize_s, queue_s, run_s, rows, parts, outcome.early))
            self._after.told(Told(query, whole, scored, fragments, queue_s, now - begun, now, outcome.early))

        try:
            adaptive = self._reader.may_end_early(query, reading)
            source = query.source
            scope, payer = (0, 0) if source is None else (source.scope if query.cached else 0, source.payer)
            pending = self.queue.submit(reading.rows, deadline_at, on_outcome, query.priority, query.trace, adaptive, scope, payer)
        except (Refused, Expired, Unavailable) as error:
            error.admitted = False
            self.metrics.observing.later("outcome", self._count, error)
            raise
        if not self.keeps_texts:
            query.forget_text()
        return pending

    def _scored(self, logits: Sequence[Sequence[float]], reading: Reading) -> tuple[Scored, Parts | None] | RequestError:
        try:
            return self.classifier.answer(reading, logits)
        except ValueError as error:
            logger().error("bad_logits", model=self.id, reason=str(error), tokens=reading.tokens)
            return ModelFailed("the model could not compute this text")
        except Exception:  # the caller waits for an outcome, whatever happened
            logger().exception("scoring_failed", model=self.id, tokens=reading.tokens)
            return Broken("internal error; see the server's log")

    def _fail(self, error: RequestError, tell: Tell) -> None:
        tell(error)
        self.metrics.observing.later("outcome", self._count, error)

    def _count(self, error: RequestError) -> None:
        if error.admitted:
            self.metrics.outcome["expired" if isinstance(error, Expired) else "failed"]()
        else:
            reason = error.reason if isinstance(error, Refused) else "deadline" if isinstance(error, Expired) else "unavailable"
            self.metrics.refused[reason]()
            self.metrics.outcome["refused"]()

    def _sample(self, told: Told) -> None:
        for sample in self.samples:
            self.metrics.observing.run("sample", sample, self, told)


def _chunks(queries: Sequence[Query]) -> Iterator[Sequence[int]]:
    """The indices of queries that are tokenized together."""
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
