"""Values from files that are reloaded while the server runs. The last good value stays in use if the files become unusable."""

from collections.abc import Callable
from typing import Generic, TypeVar

from sentiment.errors import BadSettings
from sentiment.observability.logs import logger

R = TypeVar("R")
T = TypeVar("T")


class Reloaded(Generic[R, T]):
    """``now`` is the last good value of the files. Read it at each use: a reload replaces the object and never changes it.

    Kubernetes replaces all files of a mounted secret at once, by a symbolic link. If files are replaced one by one, the last good value
    stays in use until they fit together.
    """

    def __init__(self, what: str, read: Callable[[], R], make: Callable[[R], T]) -> None:
        """Read the files for the first time.

        Args:
            what: the purpose of the files, for logs and metrics, such as tls or tokens.
            read: reads the files; returns a comparable value. Raises BadSettings or OSError.
            make: converts what was read. Raises BadSettings.

        Raises:
            BadSettings: the files cannot be read or are not valid.
        """
        self.what = what
        self._read, self._make = read, make
        self._files = read()
        self.now = make(self._files)
        self._usable = True
        # Of the last failed reload, until one succeeds or is to be logged again.
        self._reason = ""

    def say_again(self) -> None:
        """Log the next failed reload, even if its reason is the last one's."""
        self._reason = ""

    def look(self) -> bool:
        """Read the files again; blocks. Returns False if they are not usable; ``now`` then stays the same."""
        try:
            files = self._read()
            if files != self._files:
                self.now = self._make(files)
            if files != self._files or not self._usable:
                logger().info("reloaded", files=self.what)
            self._files = files
        except (BadSettings, OSError) as error:
            # Each reason is logged once. The metric counts every failure.
            if str(error) != self._reason:
                self._reason = str(error)
                logger().error("not_reloaded", files=self.what, reason=self._reason)
            self._usable = False
            return False
        self._usable, self._reason = True, ""
        return True
