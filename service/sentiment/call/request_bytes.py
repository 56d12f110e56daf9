"""The bytes of requests that a process holds, or other places, shared fairly between callers. Pure."""

from typing import Self

from sentiment.errors import Refused

# After this long a retry may succeed: a request is held for about as long as it takes.
RETRY_S = 1.0


class RequestBytes:
    """Counts the bytes of requests that are being received or answered.

    A caller gets at most as much as stays free: one caller half of all, two callers a third each, and so on. So there is always room for
    a caller who holds little, and no share has to be set. The rule is the dynamic threshold of shared switch buffers (Choudhury and Hahne
    1998, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches").
    """

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: of all callers together."""
        self._bytes_max = bytes_max
        self._held: dict[str, int] = {}
        self.used = 0

    def take(self, caller: str, size: int) -> None:
        """Count ``size`` more bytes of a caller, until ``give_back``.

        Raises:
            Refused: they do not fit in the caller's share. Nothing is counted.
        """
        if not size:
            return
        held = self._held.get(caller, 0)
        if size > self.room(caller):
            raise Refused(
                f"this caller's requests hold {held} bytes and {size} more do not fit: {self.used} of {self._bytes_max} bytes are in use, "
                "and a caller gets at most as many as stay free",
                RETRY_S,
                "request_bytes",
            )
        self._held[caller] = held + size
        self.used += size

    def room(self, caller: str) -> int:
        """The most that a caller can take now."""
        return max(0, (self._bytes_max - self.used - self._held.get(caller, 0)) // 2)

    def held(self, caller: str, size: int) -> "Held":
        """Count ``size`` bytes of a caller within a context. Raises Refused as ``take`` does."""
        self.take(caller, size)
        return Held(self, caller, size)

    def give_back(self, caller: str, size: int) -> None:
        """Count ``size`` bytes of a caller no more. The caller must hold them."""
        held = self._held.get(caller, 0)
        left = held - size
        assert left >= 0, f"{size} bytes were given back, {held} were held"
        self.used -= size
        if left:
            self._held[caller] = left
        else:
            self._held.pop(caller, None)


class Held:
    """Bytes that are counted within a context, or beyond it if they are kept."""

    def __init__(self, requests: RequestBytes, caller: str, size: int) -> None:
        self._requests, self._caller, self._size = requests, caller, size

    def keep(self) -> int:
        """Count them until somebody gives them back; returns how many they are."""
        kept, self._size = self._size, 0
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.give_back(self._caller, self._size)
