"""Observers of an answer, which run after the caller got it: counts, drift, the journal and samples."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sentiment.model.classifier import Classifier
from sentiment.model.foreign import is_foreign
from sentiment.model.scores import Scored
from sentiment.model.tokenizer import Row, Windows
from sentiment.observability.callers import name_of
from sentiment.observability.drift import values_of
from sentiment.observability.journal import Answered, Journal
from sentiment.observability.metrics import ModelMetrics
from sentiment.observability.observing import Observer
from sentiment.observability.tracing.trace import exemplar_of
from sentiment.pipeline.queries import Query


@dataclass(slots=True)
class Told:
    """A text as a whole and the answer that its caller got. Its parts are not observed.

    ``fragments``: see ``Tokenizer.fragments``. ``at``: when, as an instant of ``time.monotonic``. ``early``: see ``Answer``.
    ``request_id``: for the journal.
    """

    query: Query
    reading: Row | Windows
    scored: Scored
    fragments: tuple[int, int]
    queue_s: float
    score_s: float
    at: float
    early: bool
    request_id: str = ""


Observe = Callable[[Told], None]


class AfterAnswer:
    """The observers of one model's answers: ``observers``, by name. They run in a later turn of the loop, none affected by another."""

    def __init__(self, classifier: Classifier, metrics: ModelMetrics, journal: Journal | None) -> None:
        """``journal``: None if answers are not kept."""
        self._classifier, self._metrics, self._journals = classifier, metrics, journal is not None
        self.observers: list[tuple[Observer, Observe]] = [("answer", self._count), ("drift", self._compare)]
        if journal is not None:
            self.observers.append(("journal", lambda told: self._keep(told, journal)))

    def told(self, told: Told) -> None:
        """Observe an answer soon: once for a text, whichever way it came and however many rows it had."""
        if self._journals and told.query.source is not None:
            # Now: gRPC frees a call's headers when it has ended.
            told.request_id = told.query.source.request_id
        self._metrics.observing.later("outcome", self._observe, told)

    def _observe(self, told: Told) -> None:
        metrics = self._metrics
        metrics.stage["queue"](told.queue_s, exemplar_of(told.query.trace))
        metrics.stage["score"](told.score_s)
        if told.query.counted:
            for observer, observe in self.observers:
                try:
                    observe(told)
                except BaseException as error:  # as in ``Observing.run``, whose calls would cost a text a tenth more
                    metrics.observing.raised(observer, error)

    def _count(self, told: Told) -> None:
        metrics, scored, reading = self._metrics, told.scored, told.reading
        metrics.predicted(told.at, scored.label, scored.score, scored.abstain, told.query.priority.value)
        metrics.text_tokens(reading.tokens)
        if reading.truncated:
            metrics.truncated_texts()
        if told.early:
            metrics.early_texts()

    def _compare(self, told: Told) -> None:
        """Count the words that the model does not know, and compare the text with the references."""
        metrics, scored, reading, fragments = self._metrics, told.scored, told.reading, told.fragments
        unknown = self._classifier.tokenizer.unknown_tokens(reading)
        if unknown:
            metrics.unknown_tokens(unknown)
        if is_foreign(*fragments):
            metrics.foreign_texts()
        if metrics.drift is not None:
            metrics.drift.add(values_of(scored.label, scored.abstain, scored.score, reading.tokens, unknown, fragments))

    def _keep(self, told: Told, journal: Journal) -> None:
        if not journal.draws():
            return
        query, scored, bundle = told.query, told.scored, self._classifier.bundle
        entry = Answered(
            at=time.time(),
            model=bundle.id,
            digest=bundle.digest,
            request_id=told.request_id,
            item=query.item,
            caller=name_of(query.source.account) if journal.bound and query.source is not None else "",
            priority=query.priority.value,
            tokens=told.reading.tokens,
            truncated=told.reading.truncated,
            early=told.early,
            label=scored.label,
            abstain=scored.abstain,
            scores=dict(zip(self._classifier.manifest.labels, scored.scores, strict=True)),
            text=query.text if journal.texts else None,
            text_pair=query.text_pair if journal.texts else None,
        )
        journal.add(entry)
