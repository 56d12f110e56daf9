"""How waiting rows are best cut into batches, by what batches cost. Pure."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sentiment.batching.cost import CostTable

# A batch is no larger than it must be to come so near to the least time a row: smaller batches answer sooner.
NEAR_BEST = 1.02
EDGES_MAX = 32
# Steps of 2 tokens up to here: a batch of short texts loses little to padding. Longer rows gain little from company on a CPU.
FINE_MAX = 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch may be. A single row that breaks a limit by itself runs alone.

    Args:
        rows: rows in a batch.
        tokens: computed tokens, with what is padded.
        scores_bytes: rows x heads x length^2 x 4, the size of one layer's attention scores in fp32.
        heads: attention heads of the model.
    """

    rows: int
    tokens: int
    scores_bytes: int
    heads: int

    def rows_at(self, length: int) -> int:
        """How many rows of this length fit one batch, at least 1."""
        by_scores = self.scores_bytes // (4 * self.heads * length * length)
        return max(1, min(self.rows, self.tokens // length, by_scores))

    def part(self, length: int) -> float:
        """The part of a batch that one row of this length takes: rows whose parts sum to 1 at most keep every limit together."""
        return max(1 / self.rows, length / self.tokens, 4 * self.heads * length * length / self.scores_bytes)

    def below(self, tokens: int, squares: int) -> "BatchLimits":
        """Limits that allow half of a batch that was too large for the memory; ``squares``: of its rows' lengths, in sum."""
        scores_bytes = max(1, self.heads * squares * 4 // 2)
        return replace(self, tokens=min(self.tokens, max(1, tokens // 2)), scores_bytes=min(self.scores_bytes, scores_bytes))


def edges(length_max: int) -> list[int]:
    """The longest lengths of at most EDGES_MAX buckets: even numbers up to FINE_MAX, then steps of equal ratio."""
    fine = list(range(2, min(FINE_MAX, length_max) + 1, 2))
    if length_max <= FINE_MAX:
        return fine if fine and fine[-1] == length_max else [*fine, length_max]
    steps = EDGES_MAX - len(fine)
    ratio = length_max / FINE_MAX
    return fine + sorted({math.ceil(FINE_MAX * ratio ** (step / steps)) for step in range(1, steps)} | {length_max})


class Prices:
    """What groups of rows cost under the limits, by the cost table without the speed of the moment."""

    def __init__(self, cost: CostTable, limits: BatchLimits) -> None:
        self.cost = cost
        self.limits = limits
        self._version = cost.version
        self._columns: dict[int, list[float | None]] = {}
        self._parts: dict[int, float] = {}

    def stale(self) -> bool:
        """Whether the table has moved since these were worked out."""
        return self._version != self.cost.version

    def best_rows(self, length: int) -> int:
        """The fewest rows of this length that come within NEAR_BEST of the least time a row."""
        return len(self.column(length)) - 1

    def part(self, length: int) -> float:
        """The part of the best batch that one row of this length takes where rows of other lengths may fill the rest."""
        found = self._parts.get(length)
        if found is None:
            best = self.best_rows(length)
            found = self._parts[length] = 1 / best if best < self.limits.rows_at(length) else self.limits.part(length)
        return found

    def column(self, length: int) -> list[float | None]:
        """Seconds of 0 to ``best_rows`` rows; None where nobody has asked yet: see ``group_s``."""
        found = self._columns.get(length)
        if found is None:
            most = self.limits.rows_at(length)
            sizes = sorted({most, *(rows for rows in _SIZES if rows < most)})
            each = [self.cost.table_s(rows, length) / rows for rows in sizes]
            best = next(rows for rows, s in zip(sizes, each, strict=True) if s <= NEAR_BEST * min(each))
            found = self._columns[length] = [0.0, *[None] * (best - 1), self.cost.table_s(best, length)]
        return found

    def batched_s(self, length: int) -> float:
        """Seconds of one row in a batch of ``best_rows``."""
        column = self.column(length)
        return (column[-1] or 0.0) / (len(column) - 1)

    def group_s(self, rows: int, length: int) -> float:
        """Seconds of any number of rows padded to one length, cut into batches of ``best_rows``."""
        column = self.column(length)
        whole, rest = divmod(rows, len(column) - 1)
        part = column[rest]
        if part is None:
            part = column[rest] = self.cost.table_s(rest, length)
        return whole * (column[-1] or 0.0) + part


# Numbers of rows that are compared, in steps of about 1.4.
_SIZES = sorted({round(2 ** (exponent / 2)) for exponent in range(21)})


@dataclass(frozen=True, slots=True)
class Span:
    """A group: buckets ``first`` to ``last`` of those that were split, padded to the longest, and its cost in table seconds."""

    first: int
    last: int
    cost_s: float


def split(buckets: Sequence[tuple[int, int]], prices: Prices) -> list[Span]:
    """Cut buckets into groups that are padded together so that the predicted time of all is least.

    A dynamic programme over at most EDGES_MAX buckets, whatever the number of rows. It looks no further back from a bucket than
    padding costs a whole batch more than the best group found: what joining rows saves is at most a part of one.

    Args:
        buckets: longest length and number of rows of each bucket that has any, by length.
        prices: what a group costs.

    Returns:
        Groups that cover all buckets, in their order.
    """
    least, first_of = [0.0], [0]
    for last, (length, _) in enumerate(buckets):
        column = prices.column(length)
        size, whole_s = len(column) - 1, column[-1] or 0.0
        rows, best, at = 0, math.inf, last
        for first in range(last, -1, -1):
            rows += buckets[first][1]
            # group_s, without its call: this line runs up to 528 times a plan.
            part = column[rows % size]
            total = least[first] + (rows // size * whole_s + part if part is not None else prices.group_s(rows, length))
            if total < best:
                best, at = total, first
            elif total > best + whole_s:
                break
        least.append(best)
        first_of.append(at)
    spans = []
    end = len(buckets)
    while end:
        first = first_of[end]
        spans.append(Span(first, end - 1, least[end] - least[first]))
        end = first
    return spans[::-1]


def bucket_by_length(ladder: Sequence[int]) -> list[int]:
    """The edge of the bucket that each length from 0 on belongs to."""
    return [ladder[bisect_left(ladder, length)] for length in range(ladder[-1] + 1)]
