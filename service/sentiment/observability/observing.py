"""Runs what observes: counts, drift, the journal, samples, spans. What an observer raises never reaches a caller.

Of what stands between an outcome and its caller, only the increment of a series that is already resolved may run without this: it cannot
raise and takes less than a microsecond. Every other observer runs here, if possible after the caller got the answer.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

from sentiment.observability.logs import logger

# What observes: the outcome of a text, what its answer says, how it compares with the references; a batch, a call; and what leaves the
# process or comes from a front end.
Observer = Literal["outcome", "answer", "drift", "batch", "call", "explanation", "journal", "sample", "trace", "counts"]
OBSERVERS: tuple[Observer, ...] = get_args(Observer)

T = TypeVar("T")


class Observing:
    """Runs the observers of one process. Belongs to one event loop."""

    def __init__(self, failed: Mapping[Observer, Callable[[], None]]) -> None:
        """``failed``: by the name of an observer, counts an exception that it raised."""
        self._failed = failed
        # Observers that run in a later turn, with their arguments: at most those of the outcomes of one turn.
        self._waiting: list[tuple[Observer, Callable[..., object], tuple[Any, ...]]] = []  # Any: the arguments of any observer
        # The exceptions that were logged: observer, class, and the line that raised it. Their number is bounded by the lines of the code.
        self._logged: set[tuple[str, type, tuple[str, int]]] = set()

    def run(self, observer: Observer, observe: Callable[..., T], *arguments: object) -> T | None:
        """Run an observer now. Returns its result; None if it raised."""
        try:
            return observe(*arguments)
        except BaseException as error:  # whatever it is, such as a panic of the tokenizer: a caller waits behind it
            self.raised(observer, error)
            return None

    def raised(self, observer: Observer, error: BaseException) -> None:
        """Count and log what an observer raised. Raises what ends the process."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        self._failed[observer]()
        # Each kind is logged once, and without the message, which may quote a text.
        kind = observer, type(error), _line_of(error)
        if kind not in self._logged:
            self._logged.add(kind)
            frames = traceback.extract_tb(error.__traceback__)
            where = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[1:])
            logger().error("observer_failed", observer=observer, error=type(error).__name__, where=where)

    def later(self, observer: Observer, observe: Callable[..., object], *arguments: object) -> None:
        """Run an observer as ``run`` does, once every caller that gets an answer in this turn of the loop has run."""
        if not self._waiting:
            loop = asyncio.get_running_loop()
            # The next turn belongs to the callers. What follows this call within the turn joins it.
            loop.call_soon(loop.call_soon, self.run_waiting)
        self._waiting.append((observer, observe, arguments))

    def run_waiting(self) -> None:
        """Run now what waits for its turn."""
        waiting, self._waiting = self._waiting, []
        for observer, observe, arguments in waiting:
            try:
                observe(*arguments)
            except BaseException as error:  # as in ``run``
                self.raised(observer, error)


def _line_of(error: BaseException) -> tuple[str, int]:
    """File and line that raised it; at a fraction of the cost of ``traceback``, which reads the sources."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return ("", 0) if place is None else (place.tb_frame.f_code.co_filename, place.tb_lineno)
