"""The two batch layouts, padded and packed: which rows may share a batch, and what they cost together. Pure."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from sentiment.batching.cost import Shape
from sentiment.batching.plan import BatchLimits, Prices, edges
from sentiment.batching.ticket import P, Ticket

# Attention over packed rows allocates workspace as if rows were padded to the longest, but computes nothing there. With that padding
# a batch may have this many times its token limit: 1,024 rows of at most 128 tokens are 8 times 16,384.
PADDED = 8
# Attention over padded rows keeps its scores where a GPU has no fused kernel, as in fp32. Its softmax indexes them by int32 and checks
# nothing: see attention in tests/kernel_contracts.py.
SCORES_MAX = 2**31
# A packed batch is full when its rows' parts (see ``Prices.part``) sum to 1, up to rounding errors.
FULL = 1 + 1e-9


class Lengths(NamedTuple):
    """What determines the cost of rows: their number, the longest length, the sum of lengths and the sum of squared lengths."""

    rows: int
    longest: int
    tokens: int
    squares: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Lengths":
        """Summarize the lengths of at least one row."""
        return cls(len(lengths), max(lengths), sum(lengths), sum([length * length for length in lengths]))


class Candidates(NamedTuple):
    """Rows that may run together: their number, an upper bound of their lengths, and the lengths in the order of preference."""

    rows: int
    longest: int
    lengths: Iterable[int]


class Layout(Protocol):
    """What the scheduler needs of a layout."""

    def edges(self, length_max: int) -> list[int]:
        """The largest length of each bucket of waiting rows, ascending; the last is ``length_max``."""

    def within(self, limits: BatchLimits) -> BatchLimits:
        """Limits on the rows' own lengths that keep the computed tokens within ``limits``."""

    def shape(self, lengths: Lengths) -> Shape:
        """The shape of equal rows that costs the same as these, in one batch or several. At least one row."""

    def computed(self, lengths: Lengths) -> tuple[int, int]:
        """The tokens that one batch of these rows computes, and the sum of squared lengths, both including padding."""

    def portion(self, group: Candidates, prices: Prices, within_s: float) -> tuple[int, Shape]:
        """The first rows of a group that make one batch: the best size, at most ``within_s`` seconds, at least 1 row.

        Args:
            group: at least one row.
            prices: give the best batch size.
            within_s: limit of the predicted seconds.

        Returns:
            The number of rows, and the planned shape of their batch.
        """

    def halves(self, tickets: Sequence[Ticket[P]]) -> tuple[list[Ticket[P]], list[Ticket[P]]]:
        """Divide a batch in two; the more expensive half is the second."""

    def mixture(self, limits: BatchLimits, length_max: int) -> list[int]:
        """Lengths of the batch that takes the most memory, the longest first."""


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows are padded to the longest of their batch, so rows of similar lengths run together."""

    def edges(self, length_max: int) -> list[int]:
        """As in Layout: ``plan.edges``."""
        return edges(length_max)

    def within(self, limits: BatchLimits) -> BatchLimits:
        """As in Layout: at most SCORES_MAX scores, 8 GiB in fp32."""
        return replace(limits, scores_bytes=min(limits.scores_bytes, 4 * SCORES_MAX))

    def shape(self, lengths: Lengths) -> Shape:
        """As in Layout: every row counts as the longest."""
        return lengths.rows, lengths.longest

    def computed(self, lengths: Lengths) -> tuple[int, int]:
        """As in Layout: every row counts as the longest."""
        return lengths.rows * lengths.longest, lengths.rows * lengths.longest**2

    def portion(self, group: Candidates, prices: Prices, within_s: float) -> tuple[int, Shape]:
        """As in Layout. Only the number of rows matters: each row counts as the longest of the group."""
        most = min(group.rows, prices.best_rows(group.longest))
        number = next((number for number in range(most, 1, -1) if prices.cost.run_s(number, group.longest) <= within_s), 1)
        return number, (number, group.longest)

    def halves(self, tickets: Sequence[Ticket[P]]) -> tuple[list[Ticket[P]], list[Ticket[P]]]:
        """The shorter rows, then the longer ones, so that the shorter rows lose their padding."""
        ordered = sorted(tickets, key=lambda ticket: ticket.length)
        middle = len(ordered) // 2
        return ordered[:middle], ordered[middle:]

    def mixture(self, limits: BatchLimits, length_max: int) -> list[int]:
        """As many rows of the longest length as fit, because memory is allocated for that length."""
        return [length_max] * limits.rows_at(length_max)


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows lie end to end without padding, and rows of any lengths may share a batch.

    The work of a packed batch grows with its tokens, and that of attention with the sum of squared lengths. So the batch costs as much
    as equal rows with the same two sums. One cost table, measured with equal rows, therefore serves all packed batches.

    Args:
        multiple: the tokens of a batch are rounded up to a multiple of this. The measured costs include the rounding.
    """

    multiple: int = 64

    def edges(self, length_max: int) -> list[int]:
        """As in Layout: a single bucket."""
        return [length_max]

    def within(self, limits: BatchLimits) -> BatchLimits:
        """As in Layout: the token limit is rounded down, because the tokens of a batch are rounded up."""
        return replace(limits, tokens=max(1, limits.tokens // self.multiple * self.multiple))

    def shape(self, lengths: Lengths) -> Shape:
        """As in Layout: equal rows with the same tokens and nearly the same sum of squares.

        The sum of squares is off by up to a third for one long row with few short ones, and by less for more rows.
        """
        rows = round(lengths.tokens**2 / lengths.squares)
        return rows, math.ceil(lengths.tokens / rows)

    def computed(self, lengths: Lengths) -> tuple[int, int]:
        """As in Layout: the rows' own tokens, rounded up, and their own squares."""
        return math.ceil(lengths.tokens / self.multiple) * self.multiple, lengths.squares

    def portion(self, group: Candidates, prices: Prices, within_s: float) -> tuple[int, Shape]:
        """As in Layout. Adds rows until their parts sum to 1; a row's part is its part of the best batch of its length.

        Batches then have about the number of tokens at which the time per token is least, and keep every limit for any mixture.
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
        """Every other row by length, so that both halves have about equally many tokens."""
        ordered = sorted(tickets, key=lambda ticket: ticket.length, reverse=True)
        return ordered[1::2], ordered[::2]

    def mixture(self, limits: BatchLimits, length_max: int) -> list[int]:
        """One row of the longest length and as many short rows as fit with it."""
        others = max(0, min(_roomy(limits).rows_at(length_max) - 1, limits.tokens - length_max))
        return [length_max, *[min(length_max, (limits.tokens - length_max) // max(1, others))] * others]


def _roomy(limits: BatchLimits) -> BatchLimits:
    """Limits for a packed batch when padding that is not computed counts too: see PADDED."""
    return replace(limits, tokens=PADDED * limits.tokens)
