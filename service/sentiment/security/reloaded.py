"""What is read of files while the server runs: the last good version is kept, whatever becomes of the files."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from sentiment.errors import BadSettings
from sentiment.observability.logs import logger

R = TypeVar("R")
T = TypeVar("T")


class Reloaded(Generic[R, T]):
    """``now`` is what the files said when they last said something of use. Read it at each use: it is exchanged, never changed.

    Kubernetes exchanges all files of a mounted secret at once, by a symbolic link; whoever exchanges one file after the other is answered
    from the last good version until all of them are there.
    """

    def __init__(self, what: str, read: Callable[[], R], make: Callable[[R], T]) -> None:
        """Read the files for the first time.

        Args:
            what: they are for: a word of logs and metrics, such as tls or tokens.
            read: reads them, as something that can be compared. Raises BadSettings, or OSError.
            make: what they say. Raises BadSettings.

        Raises:
            BadSettings: they cannot be read, or do not say what they should.
        """
        self.what = what
        self._read, self._make = read, make
        self._files = read()
        self.now = make(self._files)
        # Why the last look was in vain.
        self._reason = ""

    def look(self) -> bool:
        """Read the files again; blocks. False: they are of no use, and ``now`` is what it was."""
        try:
            files = self._read()
            if files != self._files:
                self.now = self._make(files)
                self._files = files
                logger().info("reloaded", files=self.what)
        except (BadSettings, OSError) as error:
            # Once for each reason; the metric counts each look.
            if str(error) != self._reason:
                self._reason = str(error)
                logger().error("not_reloaded", files=self.what, reason=self._reason)
            return False
        self._reason = ""
        return True


async def keep_fresh(sources: Sequence[Reloaded[Any, Any]], every_s: float, failed: Callable[[str], None]) -> None:  # Any: of every kind
    """Look at files every so often, until cancelled.

    Args:
        sources: what is read of them.
        every_s: seconds between two looks.
        failed: called in the event loop with ``what`` after each look in vain.
    """
    while True:
        await asyncio.sleep(every_s)
        for source in sources:
            try:
                useful = await asyncio.to_thread(source.look)
            except Exception:  # whatever it was, the next look may find files of use
                logger().exception("reload_failed", files=source.what)
                useful = False
            if not useful:
                failed(source.what)
