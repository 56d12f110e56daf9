"""Which side limits a load: the clients, the device, or the server's process."""

from collections.abc import Mapping

# A side that is busy for this share of the time is the limit. The event loop reaches 0.9 (see ``sentiment.serving.event_loop``).
BUSY = 0.9
CLIENT, DEVICE, LOOP, TOKENIZER = "the busiest client", "the device", "an event loop of the server", "the server's tokenizing thread"
# If several sides are busy, the first counts: a rate that the clients limit says nothing about the server.
ORDER = (CLIENT, DEVICE, LOOP, TOKENIZER)


def limit_of(shares: Mapping[str, float]) -> str:
    """The side that was the limit. ``shares``: of the time that each side was busy."""
    for side in ORDER:
        if shares.get(side, 0.0) >= BUSY:
            return side
    return "no side: none was busy all the time"


def server_busy(shares: Mapping[str, float]) -> float:
    """The share of the time in which the busiest side of the server was busy, at most 1."""
    return min(1.0, max((share for side, share in shares.items() if side != CLIENT), default=0.0))


def host_limit(texts_per_s: float, shares: Mapping[str, float]) -> float:
    """The texts per second that the server's process could take if the device took no time; 0 if its work is not known."""
    busiest = max(shares.get(LOOP, 0.0), shares.get(TOKENIZER, 0.0))
    return texts_per_s / busiest if busiest else 0.0
