"""Batches on their runners, and when a runner that takes its next batch early is to get it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from sentiment.batching.ticket import Batch, P
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Ran, Report
from sentiment.model.tokenizer import Row

# The event loop's timers may be so much late (epoll counts in milliseconds).
TICK_S = 1e-3
# What laying out and the loop's own lateness take is counted so many times: a batch that is ready too late helps nobody.
MARGIN = 2.0
# Their averages move by so much with each batch.
RATE = 0.1


class Runs(Protocol):
    """What the batcher needs of a runner."""

    name: str

    @property
    def ahead(self) -> bool:
        """Whether it takes a batch while one runs, lays it out meanwhile, and runs it right after."""

    def start(self, classifier: Classifier, rows: Sequence[Row], report: Report, ahead: bool = False) -> Callable[[], None]:
        """Run rows as one batch and report the outcome, from any thread; ``ahead``: after the one that runs.

        Returns:
            What asks this run to end; it may take its time or not hear.
        """


@dataclass(slots=True)
class Run(Generic[P]):
    """A batch on its runner since ``started_at``; ``next``: the one that follows it there at once, which has not begun."""

    batch: Batch[P]
    runner: Runs
    ask_to_end: Callable[[], None]
    started_at: float
    asked_at: float | None = None
    next: "Run[P] | None" = None
    # Whether a next one has been looked for: that is done once.
    looked: bool = False

    @property
    def ends_at(self) -> float:
        """When it is predicted to end."""
        return self.started_at + self.batch.predicted_s


class Lead:
    """How long before a run's end its next batch is decided: what getting it ready takes, and no longer."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._pad_s = 0.0

    def ran(self, ran: Ran, late_s: float) -> None:
        """A batch ran, and the event loop heard of its end after ``late_s``."""
        self._late_s += RATE * (late_s - self._late_s)
        self._pad_s += RATE * (ran.pad_s - self._pad_s)

    def look_at(self, run: Run[P]) -> float | None:
        """When to look for a run's next batch; None if not, or not again."""
        if run.looked or run.asked_at is not None or not run.runner.ahead:
            return None
        return run.ends_at - TICK_S - MARGIN * (self._late_s + self._pad_s)
