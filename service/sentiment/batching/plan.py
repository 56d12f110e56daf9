"""Divides waiting rows into batches so that the total predicted time is least. Pure."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sentiment.batching.cost import CostTable

# A batch is the smallest whose time per row is within this factor of the least, because smaller batches answer sooner.
NEAR_BEST = 1.02
EDGES_MAX = 32
# Buckets are 2 tokens wide up to this length, so that short texts lose little to padding. On a CPU longer rows gain little from batching.
FINE_MAX = 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one batch. A single row that exceeds a limit by itself runs alone.

    Args:
        rows: the most rows.
        tokens: the most computed tokens, including padding.
        scores_bytes: the most bytes of one layer's attention scores in fp32: rows x heads x length^2 x 4.
        heads: attention heads of the model.
    """

    rows: int
    tokens: int
    scores_bytes: int
    heads: int

    def rows_at(self, length: int) -> int:
        """How many rows of this length fit in one batch, at least 1."""
        by_scores = self.scores_bytes // (4 * self.heads * length * length)
        return max(1, min(self.rows, self.tokens // length, by_scores))

    def part(self, length: int) -> float:
        """The part of a batch that one row of this length takes. Rows whose parts sum to at most 1 keep every limit."""
        return max(1 / self.rows, length / self.tokens, 4 * self.heads * length * length / self.scores_bytes)

    def below(self, tokens: int, squares: int) -> "BatchLimits":
        """Limits that allow half of a batch that did not fit in memory; ``squares`` is the sum of its rows' squared lengths."""
        scores_bytes = max(1, self.heads * squares * 4 // 2)
        return replace(self, tokens=min(self.tokens, max(1, tokens // 2)), scores_bytes=min(self.scores_bytes, scores_bytes))


def edges(length_max: int) -> list[int]:
    """The largest lengths of at most EDGES_MAX buckets: even numbers up to FINE_MAX, then equal ratios."""
    fine = list(range(2, min(FINE_MAX, length_max) + 1, 2))
    if length_max <= FINE_MAX:
        return fine if fine and fine[-1] == length_max else [*fine, length_max]
    steps = EDGES_MAX - len(fine)
    ratio = length_max / FINE_MAX
    return fine + sorted({math.ceil(FINE_MAX * ratio ** (step / steps)) for step in range(1, steps)} | {length_max})


class Prices:
    """Costs of groups of rows under the batch limits, in table seconds (without the current speed)."""

    def __init__(self, cost: CostTable, limits: BatchLimits) -> None:
        self.cost = cost
        self.limits = limits
        self._version = cost.version
        self._columns: dict[int, list[float | None]] = {}
        self._parts: dict[int, float] = {}

    def stale(self) -> bool:
        """Whether the table has changed since these costs were computed."""
        return self._version != self.cost.version

    def best_rows(self, length: int) -> int:
        """The fewest rows of this length whose time per row is within NEAR_BEST of the least."""
        return len(self.column(length)) - 1

    def part(self, length: int) -> float:
        """The part of a batch of the best size that one row of this length takes, if rows of other lengths may fill the rest."""
        found = self._parts.get(length)
        if found is None:
            best = self.best_rows(length)
            found = self._parts[length] = 1 / best if best < self.limits.rows_at(length) else self.limits.part(length)
        return found

    def column(self, length: int) -> list[float | None]:
        """Seconds of 0 to ``best_rows`` rows; None where ``group_s`` has not needed the value yet."""
        found = self._columns.get(length)
        if found is None:
            most = self.limits.rows_at(length)
            sizes = sorted({most, *(rows for rows in _SIZES if rows < most)})
            each = [self.cost.table_s(rows, length) / rows for rows in sizes]
            best = next(rows for rows, s in zip(sizes, each, strict=True) if s <= NEAR_BEST * min(each))
            found = self._columns[length] = [0.0, *[None] * (best - 1), self.cost.table_s(best, length)]
        return found

    def batched_s(self, length: int) -> float:
        """Seconds per row in a batch of ``best_rows``."""
        column = self.column(length)
        return (column[-1] or 0.0) / (len(column) - 1)

    def group_s(self, rows: int, length: int) -> float:
        """Seconds of any number of rows padded to one length, divided into batches of ``best_rows``."""
        column = self.column(length)
        whole, rest = divmod(rows, len(column) - 1)
        part = column[rest]
        if part is None:
            part = column[rest] = self.cost.table_s(rest, length)
        return whole * (column[-1] or 0.0) + part


# The batch sizes that are compared, in ratios of about 1.4.
_SIZES = sorted({round(2 ** (exponent / 2)) for exponent in range(21)})


@dataclass(frozen=True, slots=True)
class Span:
    """A group of adjacent buckets, ``first`` to ``last``, padded to the longest row."""

    first: int
    last: int


def split(buckets: Sequence[tuple[int, int]], prices: Prices) -> list[Span]:
    """Divide buckets into groups that are padded together so that the total predicted time is least.

    A dynamic program over at most EDGES_MAX buckets, whatever the number of rows. From a bucket it stops looking back as soon as
    padding costs a whole batch more than the best group found, because joining rows saves at most a part of one batch.

    Args:
        buckets: the largest length and the number of rows of each bucket that has rows, by length.
        prices: costs of groups.

    Returns:
        Groups that cover all buckets, in order.
    """
    least, first_of = [0.0], [0]
    for last, (length, _) in enumerate(buckets):
        column = prices.column(length)
        size, whole_s = len(column) - 1, column[-1] or 0.0
        rows, best, at = 0, math.inf, last
        for first in range(last, -1, -1):
            rows += buckets[first][1]
            # group_s inlined: this line runs up to 528 times per plan.
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
        spans.append(Span(first, end - 1))
        end = first
    return spans[::-1]


def bucket_by_length(ladder: Sequence[int]) -> list[int]:
    """For each length from 0 on the edge of its bucket."""
    return [ladder[bisect_left(ladder, length)] for length in range(ladder[-1] + 1)]
