"""Audits of adaptive effort: some texts of which a part sufficed are read in full too, to watch how many answers differ.

Which answers are audited is drawn before the load is known, for each answer that the model computed: a text that comes often would
otherwise count often or never. An audit counts in nothing that callers see: see ``sampling``.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from sentiment.lifecycle.sampling import Purpose, Sampling
from sentiment.lifecycle.served_model import RunningModel
from sentiment.model.effort import DIFFER_MAX, told
from sentiment.model.execute import Execute, result_of
from sentiment.model.parts import Reading
from sentiment.model.scores import Scored
from sentiment.model.session import Stop
from sentiment.model.tokenizer import Row
from sentiment.observability.anytime import AnytimeShare
from sentiment.observability.logs import logger
from sentiment.pipeline.queries import Query

# With more of its audits dropped than this the interval says nothing: those that are left may be of another kind.
DROPPED_MAX = 0.2
# Then the interval begins again: a share that changes after a long time would be noticed late.
SEEN_MAX = 10_000


class EffortAudit(Purpose[Scored]):
    """The audits of one model. ``offer`` is for its batcher."""

    def __init__(self, running: RunningModel, sampling: Sampling, share: float, falls_back: bool) -> None:
        """Audit nothing yet.

        Args:
            running: the model.
            sampling: reads the texts.
            share: of the texts with adaptive effort that are audited, 0 to 1.
            falls_back: whether the model reads in full once it breaks its bound.
        """
        metrics = running.metrics
        # It reads no text, but rows.
        super().__init__(running.loaded.explained, 0, metrics.effort_dropped, "effort_audit_failed", model=running.id)
        self._running, self._sampling, self._share, self._falls_back = running, sampling, share, falls_back
        self._found, self._audited, self._dropped_before = AnytimeShare(), 0, 0.0
        metrics.watch_effort(partial(self._edge, 0), partial(self._edge, 1), lambda: float(running.batcher.in_full))

    def offer(self, row: Row, logits: Sequence[float] | None) -> None:
        """Audit a text that was answered, if it is drawn. ``logits``: of its part, if that sufficed."""
        if random.random() >= self._share:  # noqa: S311  # a sample, not a secret
            return
        if logits is None:
            self._add(False)
        else:
            self._sampling.add(self, Query(""), (row, self.classifier.score(logits)))

    def read(self, _query: Query, answered: tuple[Row, Scored]) -> Reading:
        """The row is read already."""
        return answered[0]

    def work(self, reading: Reading, stop: Stop, execute: Execute) -> Scored:
        """Answer the whole text."""
        classifier = self.classifier
        found = result_of(execute, partial(classifier.session.run, classifier.feeds(reading.rows), stop))
        return classifier.score(found[0].tolist())

    def count(self, found: Scored, answered: tuple[Row, Scored]) -> None:
        """Compare the two answers."""
        differs = told(found) != told(answered[1])
        self._running.metrics.effort_audits[differs]()
        self._audited += 1
        self._add(differs)

    def _add(self, differs: bool) -> None:
        if self._found.seen == SEEN_MAX:
            self._found, self._audited, self._dropped_before = AnytimeShare(), 0, self._all_dropped()
        self._found.add(differs)
        if self._falls_back and differs and not self._running.batcher.in_full and self._edge(0) > DIFFER_MAX:
            self._running.batcher.in_full = True
            logger().error("effort_fallback", model=self._running.id, differ=self._found.hits, drawn=self._found.seen)

    def _all_dropped(self) -> float:
        return sum(count.value for count in self.dropped.values())

    def _edge(self, which: int) -> float:
        dropped = self._all_dropped() - self._dropped_before
        if dropped > DROPPED_MAX * (dropped + self._audited):
            return math.nan
        return self._found.interval()[which]


def audit(running: RunningModel, sampling: Sampling, share: float, falls_back: bool) -> Callable[[], None]:
    """Audit a model that has a rule, from now on. Returns what ends it."""
    audits = EffortAudit(running, sampling, share, falls_back)
    running.batcher.audit = audits.offer
    return partial(sampling.end, audits)
