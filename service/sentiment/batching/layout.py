"""How a graph takes the rows of a batch, padded or packed: which may go together, and what they cost together. Pure."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from sentiment.batching.cost import Shape
from sentiment.batching.plan import BatchLimits, Prices, edges
from sentiment.batching.ticket import P, Ticket

# Attention over packed rows takes workspace as if they were padded to the longest, yet computes nothing there: a batch may have so many
# times its limit of tokens with that padding. 256 rows of at most 512 tokens have 8 times 16,384.
PADDED = 8
# A packed batch is full when the parts that its rows take of one sum to 1, give or take what rounding adds.
FULL = 1 + 1e-9


class Lengths(NamedTuple):
    """What of rows' lengths decides their cost: how many, the longest, their sum, and the sum of their squares."""

    rows: int
    longest: int
    tokens: int
    squares: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Lengths":
        """Of at least one row."""
        return cls(len(lengths), max(lengths), sum(lengths), sum([length * length for length in lengths]))


class Candidates(NamedTuple):
    """Rows that may run together: how many, a length that none exceeds, and their lengths in the order in which they should go."""

    rows: int
    longest: int
    lengths: Iterable[int]


class Layout(Protocol):
    """What the scheduler asks of a layout."""

    def edges(self, length_max: int) -> list[int]:
        """The longest lengths of the buckets in which rows wait, ascending, the last of them ``length_max``."""

    def within(self, limits: BatchLimits) -> BatchLimits:
        """Limits on rows' own lengths that keep what is computed for them within ``limits``."""

    def shape(self, lengths: Lengths) -> Shape:
        """As how many rows of what length these cost, in one batch or in several; there is at least 1."""

    def computed(self, lengths: Lengths) -> tuple[int, int]:
        """Tokens that one batch of these computes, and its rows' squared lengths in sum; both with what is padded."""

    def portion(self, group: Candidates, prices: Prices, within_s: float) -> tuple[int, Shape]:
        """The first rows of a group that make one batch: as many as pay and take no more than ``within_s`` seconds, at least 1.

        Args:
            group: at least one row.
            prices: which batches pay.
            within_s: predicted seconds.

        Returns:
            How many, and the shape that their batch is planned to have.
        """

    def halves(self, tickets: Sequence[Ticket[P]]) -> tuple[list[Ticket[P]], list[Ticket[P]]]:
        """A batch cut in two, the dearer half last."""

    def mixture(self, limits: BatchLimits, length_max: int) -> list[int]:
        """Lengths of the rows that take most memory together, the longest first."""


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows are padded to the longest of their batch, so that like goes with like.

    Args:
        lengths: to one of these batches are padded, ascending; empty: to the longest row.
    """

    lengths: Sequence[int] = ()

    def edges(self, length_max: int) -> list[int]:
        """Buckets by length: see ``plan.edges``."""
        return list(self.lengths) or edges(length_max)

    def within(self, limits: BatchLimits) -> BatchLimits:
        """The limits as they are."""
        return limits

    def shape(self, lengths: Lengths) -> Shape:
        """That many of the longest."""
        return lengths.rows, lengths.longest

    def computed(self, lengths: Lengths) -> tuple[int, int]:
        """Every row counts like the longest."""
        return lengths.rows * lengths.longest, lengths.rows * lengths.longest**2

    def portion(self, group: Candidates, prices: Prices, within_s: float) -> tuple[int, Shape]:
        """By number alone: every row may be as long as the longest."""
        most = min(group.rows, prices.best_rows(group.longest))
        number = next((number for number in range(most, 1, -1) if prices.cost.run_s(number, group.longest) <= within_s), 1)
        return number, (number, group.longest)

    def halves(self, tickets: Sequence[Ticket[P]]) -> tuple[list[Ticket[P]], list[Ticket[P]]]:
        """The shorter rows and the longer ones, so that the shorter lose their padding."""
        ordered = sorted(tickets, key=lambda ticket: ticket.length)
        middle = len(ordered) // 2
        return ordered[:middle], ordered[middle:]

    def mixture(self, limits: BatchLimits, length_max: int) -> list[int]:
        """As many as may go of the longest: memory is taken for all as for that."""
        return [length_max] * limits.rows_at(length_max)


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows lie end to end without padding, and rows of any lengths go together.

    The work of such a batch is in proportion to its tokens, but for attention, which is to the sum of its rows' squared lengths. So it
    costs what rows of one length do that agree with it in both, and one cost table, measured with such rows, serves it.

    Args:
        multiple: the tokens of a batch are rounded up to a multiple of this. What that costs is in what was measured.
    """

    multiple: int = 64

    def edges(self, length_max: int) -> list[int]:
        """One bucket."""
        return [length_max]

    def within(self, limits: BatchLimits) -> BatchLimits:
        """Tokens rounded down, for those of a batch are rounded up."""
        return replace(limits, tokens=max(1, limits.tokens // self.multiple * self.multiple))

    def shape(self, lengths: Lengths) -> Shape:
        """All the tokens, in as many like rows as have nearly the same squares: to within a third for one long row and few short
        ones, closer for more.
        """
        rows = round(lengths.tokens**2 / lengths.squares)
        return rows, math.ceil(lengths.tokens / rows)

    def computed(self, lengths: Lengths) -> tuple[int, int]:
        """Their own, the tokens rounded up."""
        return math.ceil(lengths.tokens / self.multiple) * self.multiple, lengths.squares

    def portion(self, group: Candidates, prices: Prices, within_s: float) -> tuple[int, Shape]:
        """Row by row until the budget is spent, of which each takes its part of the best batch of its length.

        So batches have the tokens at which the time a token is near its least, and no limit is broken whatever the mixture.
        """
        own: list[int] = []
        spent, longest, most = 0.0, 0, 0
        for length in group.lengths:
            spent += prices.part(length)
            if length > longest:
                longest, most = length, _roomy(prices.limits).rows_at(length)
            if own and (spent > FULL or len(own) >= most):
                break
            own.append(length)

        def run_s(number: int) -> float:
            return prices.cost.run_s(*self.shape(Lengths.of(own[:number])))

        number = len(own)
        if run_s(number) > within_s:
            number = max(1, bisect_right(range(1, number), within_s, key=run_s))
        return number, self.shape(Lengths.of(own[:number]))

    def halves(self, tickets: Sequence[Ticket[P]]) -> tuple[list[Ticket[P]], list[Ticket[P]]]:
        """Every other row by length, so that both halves have about the same tokens."""
        ordered = sorted(tickets, key=lambda ticket: ticket.length, reverse=True)
        return ordered[1::2], ordered[::2]

    def mixture(self, limits: BatchLimits, length_max: int) -> list[int]:
        """A single row of the longest, and as many short ones as may go with it."""
        others = max(0, min(_roomy(limits).rows_at(length_max) - 1, limits.tokens - length_max))
        return [length_max, *[min(length_max, (limits.tokens - length_max) // max(1, others))] * others]


def _roomy(limits: BatchLimits) -> BatchLimits:
    """What a packed batch may be with the padding that it does not have."""
    return replace(limits, tokens=PADDED * limits.tokens)
