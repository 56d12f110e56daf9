"""One text through the stages: check, tokenize, queue, run, score.

Used by the gRPC and HTTP sides and in-process; knows neither.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sentiment.batching.batcher import Batcher, RowOutcome, RowResult, RowTicket
from sentiment.batching.ticket import Priority
from sentiment.errors import Expired, InvalidInput, ModelFailed, ModelNotFound, NotBuilt, Refused, RequestError, Unavailable, Unsupported
from sentiment.logs import logger
from sentiment.metrics import ModelMetrics
from sentiment.model.classifier import Classifier
from sentiment.model.scores import Scored
from sentiment.model.tokenizer import Row

# Texts beyond this are tokenized in a thread: about a millisecond, the longest the event loop may be held.
INLINE_CHARACTERS_MAX = 4096
# Texts of a batch call that are tokenized together: long enough that the hand-over to the thread (60 us) does not count,
# short enough that the first rows run while the others are tokenized.
CHUNK = 64
# A cancellation so shortly before the deadline is the deadline's.
DEADLINE_SLACK_S = 0.01


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked. ``truncation``: None for the model's default, or refuse or head; ``field`` is where errors point;
    ``priority`` is who waits.
    """

    text: str
    text_pair: str | None = None
    truncation: str | None = None
    field: str = "text"
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered, and where the time went (seconds)."""

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
    """A loaded model with its queue: what a request that names it goes through."""

    def __init__(self, classifier: Classifier, batcher: Batcher, metrics: ModelMetrics, text_bytes_max: int, call_rows_max: int) -> None:
        self.classifier = classifier
        self.batcher = batcher
        self.metrics = metrics
        self.id = classifier.bundle.id
        self._text_bytes_max = text_bytes_max
        self._call_rows_max = call_rows_max
        # One each, or a text that somebody waits for would queue behind the texts of every batch.
        self._tokenizing = {priority: ThreadPoolExecutor(1, f"tokenize-{priority.value}") for priority in Priority}

    def close(self) -> None:
        """Release the tokenizing threads."""
        for executor in self._tokenizing.values():
            executor.shutdown(wait=False, cancel_futures=True)

    def check(self, query: Query) -> None:
        """Refuse what can never be answered.

        Raises:
            InvalidInput, Unsupported or NotBuilt, each naming what is wrong.
        """
        self._check_text(query.text, query.field)
        if query.text_pair is not None:
            if not self.classifier.manifest.pairs:
                raise Unsupported(f"model {self.id} reads one text; a pair was given")
            self._check_text(query.text_pair, query.field + "_pair")
        if query.truncation in ("head_tail", "windows"):
            raise NotBuilt(f"truncation {query.truncation} is not built yet; refuse and head are")

    def _check_text(self, text: str, field: str) -> None:
        if not text or text.isspace():
            raise InvalidInput(field, f"has {len(text)} characters and none but white space; at least one other is needed")
        size = len(text)
        if not text.isascii():
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise InvalidInput(field, f"has a lone surrogate at code point {error.start}; Unicode text has none") from error
        if size > self._text_bytes_max:
            raise InvalidInput(field, f"has {size} bytes; the limit is {self._text_bytes_max}")

    def _check_row(self, query: Query, row: Row) -> None:
        tokenizer = self.classifier.tokenizer
        if row.tokens <= tokenizer.special_tokens:
            raise InvalidInput(query.field, f"has {len(query.text)} characters and none that the model reads; at least one is needed")
        if row.truncated and (query.truncation or self.classifier.manifest.default_truncation) == "refuse":
            raise InvalidInput(
                query.field, f"has more tokens than the model reads; the limit is {tokenizer.max_tokens} and truncation is refuse"
            )

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

    async def begin(self, query: Query, arrived_at: float, deadline_at: float, tell: Tell) -> RowTicket:
        """Queue one text and return at once; ``tell`` gets its outcome in a later turn of the loop, unless it is withdrawn.

        Raises:
            RequestError: it was refused; ``tell`` will not be called.
        """
        self.check(query)
        begun = time.monotonic()
        if len(query.text) <= INLINE_CHARACTERS_MAX and query.text_pair is None:
            row = self.classifier.tokenizer.encode(query.text)
        else:
            row = (await self._in_thread([query], deadline_at))[0]
        return self._submit(query, row, arrived_at, time.monotonic() - begun, deadline_at, tell)

    async def classify_many(self, queries: Sequence[Query], arrived_at: float, deadline_at: float) -> list[Outcome]:
        """Answer many texts, each on its own: one that fails leaves the others alone. Cancelling withdraws all.

        At most ``call_rows_max`` of them are unanswered rows at a time.
        """
        outcomes: list[Outcome | None] = [None] * len(queries)
        room = asyncio.Semaphore(self._call_rows_max)
        tickets: dict[int, RowTicket] = {}
        done = asyncio.Event()
        left = len(queries)

        def settle(index: int, outcome: Outcome) -> None:
            nonlocal left
            outcomes[index] = outcome
            left -= 1
            if tickets.pop(index, None) is not None:
                room.release()
            if not left:
                done.set()

        try:
            async for index, row, tokenize_s in self._tokenized(queries, deadline_at, settle):
                await room.acquire()
                try:
                    query = queries[index]
                    tickets[index] = self._submit(query, row, arrived_at, tokenize_s, deadline_at, partial(settle, index))
                except RequestError as error:
                    room.release()
                    settle(index, error)
            await done.wait()
        finally:
            for ticket in tickets.values():
                self.withdraw(ticket)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _tokenized(
        self, queries: Sequence[Query], deadline_at: float, settle: Callable[[int, Outcome], None]
    ) -> AsyncIterator[tuple[int, Row, float]]:
        """Index, row and tokenizing time of each query that can be asked; the others are settled with their error."""
        for start in range(0, len(queries), CHUNK):
            good = []
            for index in range(start, min(start + CHUNK, len(queries))):
                try:
                    self.check(queries[index])
                    good.append(index)
                except RequestError as error:
                    settle(index, error)
            if good:
                begun = time.monotonic()
                try:
                    rows = await self._in_thread([queries[index] for index in good], deadline_at)
                except Expired as error:
                    for index in good:
                        settle(index, error)
                    continue
                each_s = (time.monotonic() - begun) / len(good)
                for index, row in zip(good, rows, strict=True):
                    yield index, row, each_s

    def _encode_chunk(self, queries: Sequence[Query]) -> list[Row]:
        tokenizer = self.classifier.tokenizer
        if any(query.text_pair is not None for query in queries):
            return [tokenizer.encode(query.text, query.text_pair) for query in queries]
        return tokenizer.encode_many([query.text for query in queries])

    def withdraw(self, ticket: RowTicket) -> None:
        """Nobody waits for this row any more. Harmless if it has been told."""
        if self.batcher.cancel(ticket):
            # gRPC cancels a call at its deadline, an instant before or after the scheduler would have told it.
            late = time.monotonic() >= ticket.deadline_at - DEADLINE_SLACK_S
            self.metrics.outcome["expired" if late else "cancelled"]()

    async def _in_thread(self, queries: Sequence[Query], deadline_at: float) -> list[Row]:
        """Tokenize beside the event loop. Only here a request waits for anything but a row, which the scheduler ends in time."""
        try:
            async with asyncio.timeout_at(deadline_at):
                executor = self._tokenizing[queries[0].priority]
                return await asyncio.get_running_loop().run_in_executor(executor, self._encode_chunk, queries)
        except TimeoutError as error:
            raise Expired("no answer within the deadline: other texts are being tokenized") from error

    def _submit(self, query: Query, row: Row, arrived_at: float, tokenize_s: float, deadline_at: float, tell: Tell) -> RowTicket:
        self.metrics.stage["tokenize"](tokenize_s)
        self._check_row(query, row)
        try:
            return self.batcher.submit(
                row, deadline_at, lambda outcome: tell(self._finish(row, arrived_at, tokenize_s, outcome)), query.priority
            )
        except (Refused, Expired, Unavailable) as error:
            reason = error.reason if isinstance(error, Refused) else "deadline" if isinstance(error, Expired) else "unavailable"
            self.metrics.refused[reason]()
            self.metrics.outcome["refused"]()
            raise

    def _finish(self, row: Row, arrived_at: float, tokenize_s: float, outcome: RowOutcome) -> Outcome:
        metrics = self.metrics
        if not isinstance(outcome, RowResult):
            metrics.outcome["expired" if isinstance(outcome, Expired) else "failed"]()
            return outcome
        begun = time.monotonic()
        try:
            scored = self.classifier.score(outcome.logits)
        except ValueError as error:
            logger().error("bad_logits", model=self.id, reason=str(error), tokens=row.tokens)
            metrics.outcome["failed"]()
            return ModelFailed("the model could not compute this text")
        now = time.monotonic()
        metrics.stage["queue"](outcome.queue_s)
        metrics.stage["score"](now - begun)
        metrics.outcome["met"]()
        return Answer(scored, row.tokens, row.truncated, now - arrived_at, tokenize_s, outcome.queue_s, outcome.run_s, outcome.batch_rows)


class Models:
    """The loaded models by name. Empty while the server starts."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._served: dict[str, Served] = {}

    def add(self, served: Served) -> None:
        """Serve a model from now on."""
        self._served[served.id] = served

    def all(self) -> list[Served]:
        """The default model first, then by name and version."""
        if not self._served:
            return []
        first = self.find("")
        return [first, *(self._served[key] for key in sorted(self._served) if self._served[key] is not first)]

    def find(self, model: str) -> Served:
        """Look up ``name/version``, ``name`` (its highest version) or the empty string (the default).

        Raises:
            Unavailable: nothing is loaded yet.
            ModelNotFound: no such model is loaded.
        """
        if not self._served:
            raise Unavailable("the server is starting")
        wanted = model or self._default
        if wanted in self._served:
            return self._served[wanted]
        versions = [served for served in self._served.values() if served.classifier.manifest.name == wanted]
        if not versions:
            raise ModelNotFound(f"model {wanted[:128]!r} is not loaded; loaded are {', '.join(sorted(self._served))}")
        return max(versions, key=lambda served: served.classifier.manifest.version)
