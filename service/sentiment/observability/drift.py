"""Compares the texts and answers of today with references: the population stability index of each signal over the last texts. Pure.

PSI is the sum over bins of (p - q) ln(p / q), where p is the window's share of a bin and q the reference's (Siddiqi 2006, "Credit Risk
Scorecards"). Window and reference are both samples. Without drift, PSI over 1/n + 1/m is distributed as chi-square with one degree of
freedom less than bins, for n texts in the window and m in the reference (Yurdakul and Naranjo 2020, "Statistical properties of the
population stability index", Journal of Risk Model Validation 14).

A reference has the edges of the Prometheus histograms, and shares by tenths (``SHARE_EDGES``). At equal false alarms quantiles of the
reference detect less: they leave no bins where the reference has no texts, and other texts are there.

A model may have several references, one for each kind of texts. The window is compared with the nearest, or with their likeliest mixture.
The nearest reference is the one whose largest ratio of index to threshold, over the signals, is smallest. So a window like one of the
references is above the thresholds no more often than with this reference alone.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Protocol

SHARE_EDGES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

# Chance alone moves the index of ten bins by about 0.005. It is called large from 0.25 on.
WINDOW_TEXTS = 2000
# With 500 texts rare bins have so few of them that false alarms are up to three times as many.
TEXTS_MIN = 1000
# The window moves in slots of at least this many texts, so it keeps at most 21 slots.
SLOT_TEXTS = 100
# The share of independent windows without drift in which any signal is above its threshold. Between 0.4 % and 1.7 % of simulated ones are:
# chi-square is near for rare bins, not exact (pytest -s tests/core/observability/test_drift.py).
FALSE_ALARMS = 0.01
# Bins in which chance puts fewer texts of the window count as one (Cochran 1954): single texts in rare bins would alarm.
EXPECTED_MIN = 5
# Texts added to each bin, so that an empty one has a logarithm: to window and reference in proportion to their texts, so that they make no
# difference by themselves.
PRIOR_TEXTS = 3
# The search for the shares of a mixture stops when no share moves by more than MIXTURE_MOVE, or after MIXTURE_STEPS. Similar references
# converge slowly, but then their shares matter little.
MIXTURE_MOVE = 1e-4
MIXTURE_STEPS = 50
ABOVE = "+Inf"


@dataclass(frozen=True, slots=True)
class Signal:
    """What is compared, its bins, and the number of texts in each by reference.

    ``bins``: names, unique in a signal. ``counts``: by name of the reference, the same names in each signal; empty if there is nothing to
    compare with. ``Drift`` and ``nearest`` need at least one. ``place``: the bin's index of a value (Any: signals have different types).
    """

    name: str
    bins: tuple[str, ...]
    counts: Mapping[str, Sequence[int]]
    place: Callable[[Any], int]

    @classmethod
    def of_values(cls, name: str, values: Mapping[Hashable, str], counts: Mapping[str, Sequence[int]]) -> "Signal":
        """A bin for each value. ``values`` names them, in the order of ``counts``."""
        return cls(name, tuple(values.values()), counts, {value: place for place, value in enumerate(values)}.__getitem__)

    @classmethod
    def of_numbers(cls, name: str, edges: Sequence[float], counts: Mapping[str, Sequence[int]]) -> "Signal":
        """Bins of numbers, up to each edge and above the last one. ``edges`` ascend; each of ``counts`` has one more."""
        return cls(name, (*(str(float(edge)) for edge in edges), ABOVE), counts, partial(bisect_left, tuple(edges)))


def values_of(label: str, abstained: bool, score: float, tokens: int, unknown: int, fragments: tuple[int, int]) -> tuple[Hashable, ...]:
    """The values of a text's signals, in the order of a reference: label, abstained, score, tokens, unknown, fragments.

    Args:
        label: the winning label.
        abstained: whether its probability is below the model's threshold.
        score: its calibrated probability.
        tokens: tokens read, special ones included.
        unknown: those that are not in the vocabulary.
        fragments: fragments of words, and words, at the start of the text.
    """
    pieces = fragments[0] + fragments[1]
    return label, abstained, score, tokens, unknown / (tokens or 1), fragments[0] / (pieces or 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a window is compared with: a mixture of references, and how far the window is from it.

    ``shares``: of each reference in the mixture, by name, with sum 1. ``indexes``: the population stability index by signal.
    ``thresholds``: the index that chance alone exceeds in FALSE_ALARMS of the windows, of any signal.
    """

    shares: Mapping[str, float]
    indexes: Mapping[str, float]
    thresholds: Mapping[str, float]

    def above(self, limit: float) -> list[str]:
        """The signals whose index is above this limit, and above what chance explains."""
        return [signal for signal, index in self.indexes.items() if index > max(limit, self.thresholds[signal])]

    @property
    def excess(self) -> float:
        """The largest ratio of index to threshold; over 1: chance hardly explains it."""
        return max(index / self.thresholds[signal] for signal, index in self.indexes.items())


class Tally(Protocol):
    """A number that grows."""

    value: float


class Drift:
    """A sliding window of one model's latest texts: WINDOW_TEXTS of them or slightly more."""

    def __init__(self, signals: Sequence[Signal], tally: Callable[[str, str], Tally]) -> None:
        """``tally``: counts this process's texts of a signal and bin. Only ``add`` changes it."""
        self._signals = {signal.name: signal for signal in signals}
        self._places = [signal.place for signal in signals]
        self._by_signal = [[tally(signal.name, name) for name in signal.bins] for signal in signals]
        self._tallies = [one for tallies in self._by_signal for one in tallies]
        # A vector of counts, such as a slot, has all bins, one signal after the other.
        names = [(signal.name, name) for signal in signals for name in signal.bins]
        self._index = {both: place for place, both in enumerate(names)}
        self._span = {signal.name: slice(at := self._index[signal.name, signal.bins[0]], at + len(signal.bins)) for signal in signals}
        self._texts_span = self._span[signals[0].name]
        # The texts that other processes have counted, since the start.
        self._others = [0.0] * len(names)
        # What the tallies were when they were last taken, and the texts added since.
        self._taken = [one.value for one in self._tallies]
        self._added = 0
        # What they were when another process was last given their growth.
        self._given = list(self._taken)
        self._slots: deque[list[float]] = deque()
        self._open = [0.0] * len(names)
        # Of the window as it is; None: not known.
        self._fit: Fit | None = None

    def add(self, values: Sequence[Hashable]) -> None:
        """Count a text by ``values_of`` it."""
        for value, place, tallies in zip(values, self._places, self._by_signal, strict=False):  # the last signal may have no reference
            tallies[place(value)].value += 1
        self._added += 1
        if self._added >= SLOT_TEXTS:
            self._take()

    def grown(self) -> list[tuple[str, str, float]]:
        """The texts that this process has counted since the last call: signal, bin, number. For ``add_counts`` in another process."""
        before, self._given = self._given, [one.value for one in self._tallies]
        return [(*names, now - once) for names, now, once in zip(self._index, self._given, before, strict=True) if now != once]

    def add_counts(self, counts: Iterable[tuple[str, str, float]]) -> None:
        """Add texts that another process has counted: signal, bin, number. Whole texts only: each is in one bin of every signal."""
        for signal, name, number in counts:
            place = self._index.get((signal, name))
            if place is not None:
                self._open[place] += number
                self._others[place] += number
        self._move()

    def since_start(self) -> list[float]:
        """The texts in each bin since the start, of all processes: a vector of counts."""
        return [tally.value + others for tally, others in zip(self._tallies, self._others, strict=True)]

    def texts_of(self, counts: Sequence[float]) -> float:
        """The number of texts in a vector of counts."""
        return sum(counts[self._texts_span])

    def fit(self, counts: Sequence[float]) -> Fit:
        """What a vector of counts is nearest to. It needs at least one text."""
        return nearest({name: counts[span] for name, span in self._span.items()}, {name: one.counts for name, one in self._signals.items()})

    def texts(self) -> float:
        """The number of texts in the window."""
        self._take()
        return self._texts()

    def index(self, signal: str) -> float:
        """The population stability index of a signal against the nearest mixture; NaN with fewer than TEXTS_MIN texts."""
        return fit.indexes[signal] if (fit := self._nearest()) else math.nan

    def threshold(self, signal: str) -> float:
        """The index that chance alone exceeds in FALSE_ALARMS of the windows, of any signal; NaN with fewer than TEXTS_MIN texts."""
        return fit.thresholds[signal] if (fit := self._nearest()) else math.nan

    def share(self, reference: str) -> float:
        """The share of a reference in the nearest mixture, 0 to 1; NaN with fewer than TEXTS_MIN texts."""
        return fit.shares[reference] if (fit := self._nearest()) else math.nan

    def _nearest(self) -> Fit | None:
        """Once for a window: a scrape asks for each signal and reference."""
        if self.texts() >= TEXTS_MIN and self._fit is None:
            self._fit = self.fit([sum(column) for column in zip(*self._slots, self._open, strict=True)])
        return self._fit

    def _take(self) -> None:
        """Move what this process has counted into the window."""
        if self._added:
            for place, tally in enumerate(self._tallies):
                self._open[place] += tally.value - self._taken[place]
                self._taken[place] = tally.value
            self._added = 0
            self._move()

    def _move(self) -> None:
        """Close the open slot if it is full, and drop the slots that the window does without."""
        self._fit = None
        if self.texts_of(self._open) >= SLOT_TEXTS:
            self._slots.append(self._open)
            self._open = [0.0] * len(self._open)
        while self._slots and self._texts() - self.texts_of(self._slots[0]) >= WINDOW_TEXTS:
            self._slots.popleft()

    def _texts(self) -> float:
        return self.texts_of(self._open) + sum(map(self.texts_of, self._slots))


def nearest(window: Mapping[str, Sequence[float]], references: Mapping[str, Mapping[str, Sequence[float]]]) -> Fit:
    """Compare a window with the nearest reference, or with the likeliest mixture of all.

    The nearest reference is the one whose largest ratio of index to threshold, over the signals, is smallest. The mixture is taken if that
    ratio is over 1 and the mixture's is smaller.

    Args:
        window: texts in each bin, by signal.
        references: the same by signal and name of the reference.
    """
    names = list(next(iter(references.values())))
    singles = (_fit(window, references, {name: float(name == alone) for name in names}) for alone in names)
    found = min(singles, key=attrgetter("excess"))
    if len(names) == 1 or found.excess <= 1:
        return found
    return min(found, _fit(window, references, likeliest_shares(window, references)), key=attrgetter("excess"))


def _fit(
    window: Mapping[str, Sequence[float]], references: Mapping[str, Mapping[str, Sequence[float]]], shares: Mapping[str, float]
) -> Fit:
    expected = {signal: mixed(counts, shares) for signal, counts in references.items()}
    tail = FALSE_ALARMS / len(window)
    return Fit(
        shares,
        {signal: stability_index(window[signal], counts) for signal, counts in expected.items()},
        {signal: chance_index(window[signal], counts, tail) for signal, counts in expected.items()},
    )


def mixed(counts: Mapping[str, Sequence[float]], shares: Mapping[str, float]) -> list[float]:
    """Expected counts by bin of a mixture of references; their total is the mixture's effective sample size.

    The variances of the references add up by the squares of their shares.
    """
    texts = {name: sum(of) for name, of in counts.items()}
    whole = 1 / sum(share**2 / texts[name] for name, share in shares.items())
    parts = ([count * share * whole / texts[name] for count in counts[name]] for name, share in shares.items())
    return [math.fsum(column) for column in zip(*parts, strict=True)]


def likeliest_shares(window: Mapping[str, Sequence[float]], references: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """The shares of the references in the mixture that makes a window likeliest, its signals taken as independent.

    By expectation and maximization (Dempster, Laird and Rubin 1977).
    """
    names = list(next(iter(references.values())))
    # Texts of the window in each bin that holds some, and the bin's share in each reference.
    bins: list[tuple[float, list[float]]] = []
    for signal, counts in references.items():
        texts = [sum(counts[name]) for name in names]
        for here, *there in zip(window[signal], *(counts[name] for name in names), strict=True):
            if here and any(there):
                bins.append((here, [count / whole for count, whole in zip(there, texts, strict=True)]))
    shares = [1 / len(names)] * len(names)
    for _ in range(MIXTURE_STEPS):
        found = [0.0] * len(names)
        for here, likely in bins:
            parts = [share * one for share, one in zip(shares, likely, strict=True)]
            texts_each = here / sum(parts)
            found = [so_far + part * texts_each for so_far, part in zip(found, parts, strict=True)]
        before, whole = shares, sum(found)
        if not whole:  # no text is in a bin of any reference
            break
        shares = [one / whole for one in found]
        if max(abs(one - other) for one, other in zip(shares, before, strict=True)) < MIXTURE_MOVE:
            break
    return dict(zip(names, shares, strict=True))


def stability_index(window: Sequence[float], reference: Sequence[float]) -> float:
    """The population stability index of two counts by bin. 0: equal shares; it has no upper limit.

    Rare bins count as one (EXPECTED_MIN), and each bin has a prior (PRIOR_TEXTS).
    """
    bins = _bins(window, reference)
    texts, known = sum(window), sum(reference)
    prior = PRIOR_TEXTS / (texts + known)
    total = 1 + prior * len(bins)
    shares = [((here / texts + prior) / total, (there / known + prior) / total) for here, there in bins]
    return math.fsum((p - q) * math.log(p / q) for p, q in shares)


def chance_index(window: Sequence[float], reference: Sequence[float], tail: float) -> float:
    """The index that two samples of the same texts exceed with probability ``tail``."""
    freedom = max(1, len(_bins(window, reference)) - 1)
    return chi_square_quantile(tail, freedom) * (1 / sum(window) + 1 / sum(reference))


def _bins(window: Sequence[float], reference: Sequence[float]) -> list[tuple[float, float]]:
    """Texts of window and reference in each bin, the rare bins as one, without empty ones."""
    texts = sum(window)
    share = texts / (texts + sum(reference))
    both = list(zip(window, reference, strict=True))
    common = [(here, there) for here, there in both if (here + there) * share >= EXPECTED_MIN]
    rest = texts - sum(here for here, _ in common), sum(reference) - sum(there for _, there in common)
    return [*common, rest] if any(rest) else common


def chi_square_tail(value: float, freedom: int) -> float:
    """The probability that chi-square with ``freedom`` degrees exceeds a value over 0 (Abramowitz and Stegun 26.4.4, 26.4.5)."""
    half, odd = value / 2, freedom % 2
    powers = (power + odd / 2 for power in range(freedom // 2))
    # Logarithms, since powers and factorials overflow for hundreds of bins.
    terms = (math.exp(power * math.log(half) - half - math.lgamma(power + 1)) for power in powers)
    return math.fsum(terms) + (math.erfc(math.sqrt(half)) if odd else 0.0)


@lru_cache(1024)
def chi_square_quantile(tail: float, freedom: int) -> float:
    """The value that chi-square with ``freedom`` degrees of freedom exceeds with this probability, to 1e-9."""
    low, high = 0.0, 1.0
    while chi_square_tail(high, freedom) > tail:
        high *= 2
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square_tail(middle, freedom) > tail else (low, middle)
    return high
