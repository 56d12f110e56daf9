"""Shadow scoring: some texts that the version in use has answered are scored by a version loaded beside it too, and the two compared.

Live calls must not notice. So the texts do not enter the other version's queue: they would delay the calls that name it, its cost table
would learn from runs that wait for a core, and its backlog would count for autoscaling. They wait in a queue of their own, behind one
thread that rests as explanations do, and the graph runs in a thread of the lowest priority, one text at a time. What does not fit in the
queue is dropped. On a GPU the other version runs on the CPU, as for explanations: a device belongs to its runner's thread.
"""

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sentiment.errors import RequestError
from sentiment.model.execute import result_of
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.scores import Scored
from sentiment.model.session import Stop
from sentiment.model.tokenizer import Windows
from sentiment.observability.agreement import verdict
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics, ShadowMetrics
from sentiment.serving.lifecycle.served_model import RunningModel
from sentiment.serving.pipeline import Served
from sentiment.serving.queries import Query, QueryReader
from sentiment.serving.registry import Models

# Texts that may wait or run: a few seconds of work, so that a burst is no loss. Their characters bound the memory of long ones.
TEXTS_MAX = 256
CHARACTERS_MAX = 2**22
# Longest single sleep while resting, so that a rest ends soon once no texts are classified.
REST_S = 0.05


class _Pair:
    """A version in use and the version beside it."""

    def __init__(self, used: Served, other: RunningModel, counted: ShadowMetrics, text_bytes_max: int) -> None:
        self.used, self.other, self.counted = used.id, other.id, counted
        self.classifier = other.loaded.explained
        self.reader = QueryReader(self.classifier, text_bytes_max)
        self.failure_logged = False
        # Set when one of the two is being unloaded.
        self.over = False


@dataclass(frozen=True, slots=True)
class _Text:
    """A text, and what the version in use answered: its label and that label's probability."""

    pair: _Pair
    query: Query
    label: str
    score: float

    @property
    def characters(self) -> int:
        return len(self.query.text) + len(self.query.text_pair or "")


class Shadow:
    """Compares versions in use with those beside them. Belongs to one event loop."""

    def __init__(self, models: Models, metrics: Metrics, sampled: float, text_bytes_max: int, share: Callable[[], float]) -> None:
        """Start the threads; must be called in the event loop.

        Args:
            models: the loaded models.
            metrics: counts the comparisons.
            sampled: the share of the texts to compare, 0 to 1.
            text_bytes_max: limit of a text in UTF-8 bytes, as for calls.
            share: the share of time that the thread may work now, above 0 and at most 1. The thread calls it.
        """
        self._models, self._metrics, self._sampled, self._text_bytes_max, self._share = models, metrics, sampled, text_bytes_max, share
        self._loop = asyncio.get_running_loop()
        self._pairs: dict[tuple[str, str], _Pair] = {}
        # Texts that wait or run, and their characters.
        self._texts = self._characters = 0
        self._inbox: queue.SimpleQueue[_Text | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        # What the thread runs now.
        self._current: tuple[_Pair, Stop] | None = None
        self._runs = LowestPriority("shadow-run")
        threading.Thread(target=self._work, name="shadow", daemon=True).start()

    def sample(self, used: Served, query: Query, scored: Scored) -> None:
        """Offer an answered text, if it is in the sample."""
        if random.random() < self._sampled:  # noqa: S311  # a sample, not a secret
            self.offer(used, query, scored.label, scored.score)

    def offer(self, used: Served, query: Query, label: str, score: float, missed: int = 0) -> None:
        """Compare an answered text, unless there is no version beside the one that answered, or no room.

        Args:
            used: what answered.
            query: the text.
            label: of the answer.
            score: its probability.
            missed: how many texts were dropped before they came here.
        """
        other = self._models.beside(used)
        if other is None or self._closed.is_set():
            return
        pair = self._pair(used, other)
        full = self._texts >= TEXTS_MAX or self._characters >= CHARACTERS_MAX
        pair.counted.dropped["queue_full"].inc(missed + full)
        if full:
            return
        text = _Text(pair, Query(query.text, query.text_pair, query.truncation), label, score)
        self._texts += 1
        self._characters += text.characters
        self._inbox.put(text)

    def verdict(self, other: Served) -> str:
        """How a version differs from the version in use of its name; empty if they were not compared."""
        used = self._models.find(other.classifier.manifest.name)
        pair = self._pairs.get((used.id, other.id))
        if pair is None:
            return ""
        counted = pair.counted
        flips = {labels: count.value for labels, count in counted.flips.items()}
        shift = counted.shift["up"].value - counted.shift["down"].value
        return verdict(used.id, counted.texts.value, flips, shift, counted.dropped["failed"].value)

    def withdraw(self, leaving: Served) -> None:
        """End the comparisons of a version that is being unloaded."""
        for key, pair in list(self._pairs.items()):
            if leaving.id in key:
                del self._pairs[key]
                pair.over = True
                self._stop_run(pair)

    def close(self) -> None:
        """Drop what waits, and end the threads. Does not wait for them."""
        self._closed.set()
        self._inbox.put(None)
        self._stop_run()

    def _stop_run(self, pair: _Pair | None = None) -> None:
        """Stop the current run, if there is one and it is of this pair; None: of any."""
        current = self._current
        if current is not None and pair in (None, current[0]):
            current[1].ask()

    def _pair(self, used: Served, other: Served) -> _Pair:
        found = self._pairs.get((used.id, other.id))
        if found is None:
            assert isinstance(other, RunningModel)
            counted = self._metrics.shadow(used.id, other.id, used.classifier.manifest.labels)
            found = self._pairs[used.id, other.id] = _Pair(used, other, counted, self._text_bytes_max)
        return found

    def _work(self) -> None:
        """In the thread: score the texts."""
        try:
            while (text := self._inbox.get()) is not None and not self._closed.is_set():
                begun = time.monotonic()
                outcome: Scored | BaseException | None
                try:
                    outcome = self._score(text)
                except BaseException as error:  # a panic of the tokenizer is no Exception, and would end the thread
                    outcome = error
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads the counts
                    self._loop.call_soon_threadsafe(self._compare, text, outcome)
                del text, outcome  # otherwise they would stay in memory until the next text comes
                self._rest(time.monotonic() - begun)
        finally:
            self._runs.close()

    def _score(self, text: _Text) -> Scored | None:
        """The other version's answer; None if the comparison is over."""
        pair, stop = text.pair, Stop()
        # The texts that wait when a version is unloaded are not worth tokenizing.
        if pair.over:
            return None
        classifier, reader = pair.classifier, pair.reader
        reader.check(text.query)
        (reading,) = reader.read([text.query])
        reader.check_reading(text.query, reading)
        logits: list[list[float]] = []
        self._current = pair, stop
        try:
            for row in reading.rows if isinstance(reading, Windows) else (reading,):
                # Only after ``_current`` is set: a stop sees it, or is seen here.
                if pair.over or self._closed.is_set():
                    return None
                found = result_of(self._runs.run, partial(classifier.session.run, classifier.feeds([row]), stop))
                logits.append(found[0].tolist())
        finally:
            self._current = None
        return classifier.score_windows(logits) if isinstance(reading, Windows) else classifier.score(logits[0])

    def _rest(self, worked_s: float) -> None:
        """Rest until the thread has worked for its share of the time only."""
        begun = time.monotonic()
        while (left_s := begun + worked_s * (1 / self._share() - 1) - time.monotonic()) > 0:
            if self._closed.wait(min(left_s, REST_S)):
                return

    def _compare(self, text: _Text, outcome: Scored | BaseException | None) -> None:
        """In the event loop: count a text."""
        self._texts -= 1
        self._characters -= text.characters
        pair = text.pair
        if pair.over or self._closed.is_set() or outcome is None:
            return
        counted = pair.counted
        if isinstance(outcome, BaseException):
            counted.dropped["failed"].inc()
            # A text that it refuses, such as a pair, is no fault.
            if not isinstance(outcome, RequestError) and not pair.failure_logged:
                pair.failure_logged = True
                logger().error("shadow_failed", model=pair.used, shadow=pair.other, reason=str(outcome) or repr(outcome))
            return
        shift = outcome.scores[pair.classifier.manifest.labels.index(text.label)] - text.score
        counted.texts.inc()
        counted.shift["up" if shift > 0 else "down"].inc(abs(shift))
        if outcome.label != text.label:
            counted.flips[text.label, outcome.label].inc()
