"""The mix of calls: texts, deadlines, cancellations, priorities and kinds, drawn from a seed. Pure."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

INTERACTIVE, BULK, EXPLAIN, SLOW_READER = "interactive", "bulk", "explain", "slow_reader"
# The class of calls of any kind that the client cancels before their deadline. They are not judged: only fast answers come before the
# client leaves, so their latency looks better than the server's.
LEAVER = "leaver"
# Deadline of explanations and slow readers, which run when classification leaves the processor free.
EXPLAIN_TIMEOUT_S = 30.0
# The earliest cancellation; before that the call might not have been sent.
CANCEL_AFTER_S_MIN = 0.001


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``cancel_after_s`` is when the client cancels it; None if the client waits until the deadline.

    ``repeated``: those of its texts that came before, in earlier calls or in this one.
    """

    texts: tuple[str, ...]
    kind: str
    timeout_s: float
    cancel_after_s: float | None = None
    repeated: int = 0

    @property
    def group(self) -> str:
        """The class in which the call is counted."""
        return self.kind if self.cancel_after_s is None else LEAVER


@dataclass(frozen=True, slots=True)
class Mix:
    """The composition of the calls. Shares are of all calls, 0 to 1; bulk, explain and slow_readers sum to at most 1.

    ``cancel`` is a share of the classifications. ``timeout_s`` is the shortest and the longest deadline of a classification;
    deadlines between them are uniform in the logarithm. ``zipf``: the text at place r, from 1, is drawn with the weight r**-zipf.
    """

    timeout_s: tuple[float, float]
    per_call: int = 1
    stream: bool = False
    cancel: float = 0.0
    bulk: float = 0.0
    explain: float = 0.0
    slow_readers: float = 0.0
    zipf: float = 0.0

    @property
    def timeout_s_max(self) -> float:
        """The longest deadline of a classification."""
        return self.timeout_s[1]

    @property
    def judged(self) -> bool:
        """Whether any of its calls is judged by the objective."""
        return self.cancel < 1 and self.explain + self.slow_readers < 1

    def calls(self, texts: Sequence[str], seed: int) -> Iterator[Call]:
        """Endless calls. The same seed gives the same calls, for any number of processes that share them."""
        rng = random.Random(seed)
        weights = list(itertools.accumulate(place**-self.zipf for place in range(1, len(texts) + 1)))
        seen: set[str] = set()
        for _ in itertools.count():
            # All values are drawn for every call, so that changing one share leaves the other calls as they are.
            kind = self._kind(rng.random())
            place, cancels, patience = rng.random(), rng.random(), rng.random()
            chosen = tuple(rng.choices(texts, cum_weights=weights, k=self.per_call))
            explains = kind in (EXPLAIN, SLOW_READER)
            chosen = chosen[:1] if explains else chosen
            before = len(seen)
            seen.update(chosen)
            repeated = len(chosen) - (len(seen) - before)
            if explains:
                yield Call(chosen, kind, EXPLAIN_TIMEOUT_S, repeated=repeated)
                continue
            timeout_s = _between(*self.timeout_s, place)
            gives_up_s = _between(min(CANCEL_AFTER_S_MIN, timeout_s), timeout_s, patience)
            yield Call(chosen, kind, timeout_s, gives_up_s if cancels < self.cancel else None, repeated)

    def _kind(self, place: float) -> str:
        for kind, share in ((BULK, self.bulk), (EXPLAIN, self.explain), (SLOW_READER, self.slow_readers)):
            if place < share:
                return kind
            place -= share
        return INTERACTIVE


def _between(low: float, high: float, place: float) -> float:
    """Uniform in the logarithm, because people's patience varies by orders of magnitude."""
    return low * math.exp(place * math.log(high / low))
