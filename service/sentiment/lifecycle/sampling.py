"""Answered texts that are read once more for what no caller waits for: shadow scoring, drift of hidden states, audits of effort.

Live calls must not notice. So these texts enter no model's queue: they would delay its calls, its cost table would learn from runs that
wait for a core, and they would count for autoscaling. They wait in a queue of their own, behind one thread that rests as
explanations do, and the graph runs in a thread of the lowest priority, one text at a time. What does not fit in the queue is dropped.
"""

import asyncio
import contextlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sentiment.errors import RequestError
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.parts import Reading
from sentiment.model.session import Stop
from sentiment.observability.instruments import Count
from sentiment.observability.logs import logger
from sentiment.pipeline.queries import Query, QueryReader, TextLimits

# Texts that may wait or run, so that a burst loses none: under load some seconds of work of short texts, and minutes of long ones. Their
# characters bound the memory of long ones.
TEXTS_MAX = 256
CHARACTERS_MAX = 2**22
# Longest single sleep while resting, so that a rest ends soon once no texts are classified.
REST_S = 0.05

Found = TypeVar("Found")


class Over(BaseException):
    """The purpose is over, or the server stops. No Exception: code that judges a graph by the errors of its runs must not see it."""


class Purpose(ABC, Generic[Found]):
    """What texts are read for. ``over`` is set when a version that it needs is being unloaded."""

    def __init__(self, classifier: Classifier, text_bytes_max: int, dropped: Mapping[str, Count], failed: str, **named: str) -> None:
        """Read nothing yet.

        Args:
            classifier: reads the texts.
            text_bytes_max: limit of a text in UTF-8 bytes, as for calls.
            dropped: counts the texts that are not compared, by reason.
            failed: event of the log at the first fault, with the fields ``named``.
        """
        self.classifier, self.dropped = classifier, dropped
        self.failed, self.named = failed, named
        # Only whole texts are read once more.
        self.reader = QueryReader(classifier, TextLimits(text_bytes_max, sentences_max=0, targets_max=0))
        self.failure_logged = False
        self.over = False

    def read(self, query: Query, _answered: Any) -> Reading:
        """The tokens of a text. ``_answered``: what came with it.

        Raises:
            RequestError: the classifier refuses the text.
        """
        self.reader.check(query)
        (reading,) = self.reader.read([query])
        self.reader.check_reading(query, reading)
        return reading

    @abstractmethod
    def work(self, reading: Reading, stop: Stop, execute: Execute) -> Found:
        """In the thread: read a text. ``execute`` runs the graphs, with ``stop``; it raises Over."""

    @abstractmethod
    def count(self, found: Found, answered: Any) -> None:
        """In the event loop: count what was found. ``answered`` is what came with the text."""


@dataclass(frozen=True, slots=True)
class _Text:
    purpose: Purpose[Any]
    query: Query
    answered: object

    @property
    def characters(self) -> int:
        return len(self.query.text) + len(self.query.text_pair or "")


class Sampling:
    """Reads the texts. Belongs to one event loop."""

    def __init__(self, share: Callable[[], float]) -> None:
        """Start the threads; must be called in the event loop.

        ``share``: the share of time that the thread may work now, above 0 and at most 1. The thread calls it.
        """
        self._share = share
        self._loop = asyncio.get_running_loop()
        # Texts that wait or run, and their characters.
        self._texts = self._characters = 0
        self._inbox: queue.SimpleQueue[_Text | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        # What the thread runs now.
        self._current: tuple[Purpose[Any], Stop] | None = None
        self._runs = LowestPriority("sampling-run")
        threading.Thread(target=self._work, name="sampling", daemon=True).start()

    @property
    def full(self) -> bool:
        """Whether there is no room for another text."""
        return self._texts >= TEXTS_MAX or self._characters >= CHARACTERS_MAX

    def add(self, purpose: Purpose[Any], query: Query, answered: object = None) -> None:
        """Read a text, unless there is no room. ``answered`` goes to ``count``."""
        purpose.dropped["queue_full"].inc(self.full)
        if self._closed.is_set() or self.full:
            return
        text = _Text(purpose, Query(query.text, query.text_pair, query.truncation), answered)
        self._texts += 1
        self._characters += text.characters
        self._inbox.put(text)

    def end(self, purpose: Purpose[Any]) -> None:
        """Read no more texts for this purpose."""
        purpose.over = True
        self._stop_run(purpose)

    def close(self) -> None:
        """Drop what waits, and end the threads. Does not wait for them."""
        self._closed.set()
        self._inbox.put(None)
        self._stop_run()

    def _stop_run(self, purpose: Purpose[Any] | None = None) -> None:
        """Stop the current run, if there is one and it is for this purpose; None: for any."""
        current = self._current
        if current is not None and purpose in (None, current[0]):
            current[1].ask()

    def _work(self) -> None:
        """In the thread: read the texts."""
        try:
            while (text := self._inbox.get()) is not None and not self._closed.is_set():
                begun = time.monotonic()
                outcome: object
                try:
                    outcome = self._read(text)
                except BaseException as error:  # a panic of the tokenizer is not an Exception, and would end the thread
                    outcome = error
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads the counts
                    self._loop.call_soon_threadsafe(self._count, text, outcome)
                del text, outcome  # otherwise they would stay in memory until the next text comes
                self._rest(time.monotonic() - begun)
        finally:
            self._runs.close()

    def _read(self, text: _Text) -> object:
        purpose, stop = text.purpose, Stop()

        def execute(run: Callable[[], None]) -> None:
            # Only after ``_current`` is set: a stop sees it, or is seen here.
            if purpose.over or self._closed.is_set():
                raise Over
            self._runs.run(run)

        # The texts that wait when a version is unloaded are not worth tokenizing.
        if purpose.over:
            raise Over
        reading = purpose.read(text.query, text.answered)
        self._current = purpose, stop
        try:
            return purpose.work(reading, stop, execute)
        finally:
            self._current = None

    def _rest(self, worked_s: float) -> None:
        """Rest until the thread has worked for its share of the time only."""
        begun = time.monotonic()
        while (left_s := begun + worked_s * (1 / self._share() - 1) - time.monotonic()) > 0:
            if self._closed.wait(min(left_s, REST_S)):
                return

    def _count(self, text: _Text, outcome: object) -> None:
        """In the event loop: count a text."""
        self._texts -= 1
        self._characters -= text.characters
        purpose = text.purpose
        if purpose.over or self._closed.is_set():
            return
        if not isinstance(outcome, BaseException):
            purpose.count(outcome, text.answered)
            return
        purpose.dropped["failed"].inc()
        # A text that the classifier refuses, such as a pair, is not a fault.
        if not isinstance(outcome, RequestError) and not purpose.failure_logged:
            purpose.failure_logged = True
            logger().error(purpose.failed, **purpose.named, reason=str(outcome) or repr(outcome))
