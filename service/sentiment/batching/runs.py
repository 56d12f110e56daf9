"""Running batches, and when to give a runner its next batch early."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from sentiment.batching.ticket import Batch, P
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Ran, Report
from sentiment.model.tokenizer import Row

# The event loop's timers may be late by this much (epoll counts in milliseconds).
TICK_S = 1e-3
# Safety factor on the time for padding and on the loop's own lateness: a batch that is ready too late has no benefit.
MARGIN = 2.0
# Smoothing factor of their moving averages, for each batch.
RATE = 0.1


class BatchRunner(Protocol):
    """What the batcher needs of a runner."""

    name: str

    @property
    def ahead(self) -> bool:
        """Whether the runner accepts a batch while another runs, prepares it meanwhile, and runs it right after."""

    def start(
        self,
        classifier: Classifier,
        rows: Sequence[Row],
        report: Report,
        ahead: bool = False,
        wide: bool = False,
        low_priority: bool = False,
    ) -> Callable[[], None]:
        """Run rows as one batch and call ``report`` with the outcome, from any thread. ``ahead``: after the batch that runs now.

        ``wide``: on idle cores too. ``low_priority``: lower than that of the event loop, where the runner computes on the CPU.

        Returns:
            A function that asks this run to stop. The run may stop late or not at all.
        """


@dataclass(slots=True)
class RunningBatch(Generic[P]):
    """A batch that runs since ``started_at``. ``next`` is the batch that its runner runs right after it, and has not begun."""

    batch: Batch[P]
    runner: BatchRunner
    request_stop: Callable[[], None]
    started_at: float
    stop_requested_at: float | None = None
    next: "RunningBatch[P] | None" = None
    # Whether a next batch has been looked for, which is done once.
    looked: bool = False

    @property
    def ends_at(self) -> float:
        """The predicted end."""
        return self.started_at + self.batch.predicted_s


class LookAhead:
    """How long before a run's end its next batch is decided: as long as preparing the batch takes, and no longer."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._pad_s = 0.0

    def ran(self, ran: Ran, late_s: float) -> None:
        """Learn from a batch that ran. ``late_s``: how long after its end the event loop noticed."""
        self._late_s += RATE * (late_s - self._late_s)
        self._pad_s += RATE * (ran.pad_s - self._pad_s)

    def decide_at(self, run: RunningBatch[P]) -> float | None:
        """When to decide a run's next batch; None if the runner takes none early, or a decision was already tried."""
        if run.looked or run.stop_requested_at is not None or not run.runner.ahead:
            return None
        return run.ends_at - TICK_S - MARGIN * (self._late_s + self._pad_s)
