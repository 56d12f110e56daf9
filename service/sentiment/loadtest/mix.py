"""What is sent: texts, deadlines, cancels, priorities and kinds of calls, drawn from a seed. Pure."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

INTERACTIVE, BULK, EXPLAIN, SLOW_READER = "interactive", "bulk", "explain", "slow_reader"
# The class of calls whose client does not wait for their deadline, of whatever kind. Not judged: which of them are answered before
# their client leaves depends on how fast the answer is, so what is answered of them looks faster than the server is.
LEAVER = "leaver"
# Of explanations and slow readers: they run when classification leaves the processor free.
EXPLAIN_TIMEOUT_S = 30.0
# A client that cancels does so after this at the earliest; sooner, and the call might not have been sent.
CANCEL_AFTER_S_MIN = 0.001


@dataclass(frozen=True, slots=True)
class Call:
    """One call to make: ``cancel_after_s`` is when the client gives up, None if it waits for its deadline."""

    texts: tuple[str, ...]
    kind: str
    timeout_s: float
    cancel_after_s: float | None = None

    @property
    def group(self) -> str:
        """The class that it is counted in."""
        return self.kind if self.cancel_after_s is None else LEAVER


@dataclass(frozen=True, slots=True)
class Mix:
    """What calls are made of. Shares are of all calls, from 0 to 1; bulk, explain and slow readers together are at most 1.

    ``cancel`` is a share of the classifications. ``timeout_s`` is the shortest and longest deadline of a classification, drawn
    evenly in the logarithm between them.
    """

    timeout_s: tuple[float, float]
    per_call: int = 1
    stream: bool = False
    cancel: float = 0.0
    bulk: float = 0.0
    explain: float = 0.0
    slow_readers: float = 0.0

    @property
    def timeout_s_max(self) -> float:
        """The longest that a classification may take."""
        return self.timeout_s[1]

    @property
    def judged(self) -> bool:
        """Whether the objective is asked of any of its calls."""
        return self.cancel < 1 and self.explain + self.slow_readers < 1

    def calls(self, texts: Sequence[str], seed: int) -> Iterator[Call]:
        """Calls without an end. However many processes share them, the same seed gives the same."""
        rng = random.Random(seed)
        for _ in itertools.count():
            # Each is drawn for every call, so that a share changes its own calls and no others.
            kind = self._kind(rng.random())
            place, cancels, patience = rng.random(), rng.random(), rng.random()
            chosen = tuple(rng.choice(texts) for _ in range(self.per_call))
            if kind in (EXPLAIN, SLOW_READER):
                yield Call(chosen[:1], kind, EXPLAIN_TIMEOUT_S)
                continue
            timeout_s = _between(*self.timeout_s, place)
            gives_up_s = _between(min(CANCEL_AFTER_S_MIN, timeout_s), timeout_s, patience)
            yield Call(chosen, kind, timeout_s, gives_up_s if cancels < self.cancel else None)

    def _kind(self, place: float) -> str:
        for kind, share in ((BULK, self.bulk), (EXPLAIN, self.explain), (SLOW_READER, self.slow_readers)):
            if place < share:
                return kind
            place -= share
        return INTERACTIVE

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Back from ``to_json``."""
        shortest, longest = values["timeout_s"]
        return cls(**{**values, "timeout_s": (shortest, longest)})


def _between(low: float, high: float, place: float) -> float:
    """Evenly in the logarithm: of patience as of much that people do, the order of magnitude varies."""
    return low * math.exp(place * math.log(high / low))
