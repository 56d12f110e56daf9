"""What happens to batches, counted and logged."""

from sentiment.batching.batcher import Waiting
from sentiment.batching.ticket import Batch
from sentiment.logs import logger
from sentiment.metrics import ModelMetrics
from sentiment.model.runner import Ran


class Watcher:
    """Counts and logs what happens to batches."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics

    def batch_ran(self, batch: Batch[Waiting], runner: str, ran: Ran, wasted: int) -> None:
        """Count a batch that ran; ``wasted`` of its rows were expected by nobody when it ended."""
        metrics = self._metrics
        rows, real = len(batch.tickets), sum(ticket.length for ticket in batch.tickets)
        metrics.batch_rows(rows)
        metrics.batch_tokens(ran.tokens)
        metrics.real_tokens(real)
        metrics.padded_tokens(ran.tokens - real)
        metrics.batches[batch.reason]()
        metrics.stage["pad"](ran.pad_s)
        metrics.stage["copy"](ran.copy_s)
        metrics.stage["run"](ran.run_s)
        metrics.runner_busy(runner, ran.total_s)
        if wasted:
            metrics.wasted["abandoned"](wasted)

    def batch_failed(self, batch: Batch[Waiting], runner: str, error: BaseException, lost: int) -> None:
        """Log a batch that failed; ``lost`` rows failed with it."""
        rows = len(batch.tickets)
        self._metrics.wasted["failed"](rows)
        logger().error(
            "batch_failed", model=self._metrics.model, runner=runner, rows=rows, length=batch.length, lost=lost, error=repr(error)
        )

    def batch_given_up(self, runner: str, rows: int, seconds: float) -> None:
        """Log a batch that does not come back."""
        self._metrics.wasted["failed"](rows)
        logger().critical("batch_given_up", model=self._metrics.model, runner=runner, rows=rows, seconds=round(seconds, 1))

    def device_lost(self, runner: str, rows: int, error: BaseException) -> None:
        """Log a device that runs nothing any more."""
        self._metrics.wasted["failed"](rows)
        logger().critical("device_lost", model=self._metrics.model, runner=runner, rows=rows, error=repr(error))

    def row_dropped(self, reason: str) -> None:
        """Count a row that left the queue unrun."""
        self._metrics.dropped[reason]()

    def planned(self, seconds: float) -> None:
        """Count the time that deciding took."""
        self._metrics.stage["plan"](seconds)
