"""What a model answered to many texts: sums over all of them and over consecutive windows. Pure."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from sentiment.model.foreign import is_foreign
from sentiment.observability.drift import TEXTS_MIN, Fit, Signal, nearest, values_of
from sentiment.observability.expected_accuracy import DRIFT, FEW_TEXTS, LIKE_TEXTS_MIN, NO_REFERENCE, UNLIKE_INDEX, interval
from sentiment.observability.measured_accuracy import MeasuredAccuracy

# Then neighbours are joined: a table or plot of a journal of any length has at most this many rows or points.
WINDOWS_MAX = 500
# Right labels that are remembered: a later one for the same answer replaces an earlier one.
LABELS_MAX = 100_000
# A larger index is called large (Siddiqi 2006). The alert SentimentDrift has the same limit, for a change.
LARGE_INDEX = 0.25
# The signals that are known with the answer, and those that need the text. In the order of ``values_of``.
OF_ANSWERS, OF_TEXTS = ("label", "abstained", "score", "tokens"), ("unknown", "fragments")


@dataclass(frozen=True, slots=True)
class Seen:
    """An answered text. ``score``: of the label; ``at``: in RFC 3339, empty if unknown.

    ``unknown``: tokens that are not in the vocabulary; ``fragments``: see ``values_of``. None if they are not known.
    """

    label: str
    abstained: bool
    score: float
    tokens: int
    truncated: bool
    at: str = ""
    unknown: int | None = None
    fragments: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The right label of an answer; None: no label is right. ``key``: the same for each label of it."""

    key: Hashable
    label: str | None
    right: bool
    abstained: bool


Entry = Seen | Told


@dataclass(frozen=True, slots=True)
class Shift:
    """How much a signal differs from the reference, and how much chance explains."""

    signal: str
    index: float
    chance: float

    @property
    def drifted(self) -> bool:
        """Whether it is large, and more than chance explains."""
        return self.index > LARGE_INDEX and self.index > self.chance

    @property
    def verdict(self) -> str:
        """In words."""
        return "drifted" if self.drifted else "differs" if self.index > self.chance else "within chance"


@dataclass(slots=True)
class Counts:
    """Sums over texts. ``bins``: texts by signal and bin; ``since``: time of the first text.

    ``decided``: answers that do not abstain, with the sums of their probabilities p and of p * (1 - p). ``labelled``, ``right``: those of
    them whose right label is known, and those that are right.
    """

    bins: list[list[int]]
    since: str = ""
    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    unknown: int = 0
    foreign: int = 0
    decided: int = 0
    probability: float = 0.0
    variance: float = 0.0
    labelled: int = 0
    right: int = 0

    def add(self, seen: Seen, places: Sequence[int]) -> None:
        """Count a text. ``places``: the index of its bin, by signal."""
        for counts, place in zip(self.bins, places, strict=False):  # a reference may know fewer signals
            counts[place] += 1
        self.since = self.since or seen.at
        self.texts += 1
        self.tokens += seen.tokens
        self.truncated += seen.truncated
        self.unknown += seen.unknown or 0
        self.foreign += seen.fragments is not None and is_foreign(*seen.fragments)
        if not seen.abstained:
            self.decided += 1
            self.probability += seen.score
            self.variance += seen.score * (1 - seen.score)

    def join(self, later: "Counts") -> None:
        """Add the texts of another one that come after these."""
        for counts, others in zip(self.bins, later.bins, strict=True):
            counts[:] = map(sum, zip(counts, others, strict=True))
        self.since = self.since or later.since
        for name in ("texts", "tokens", "truncated", "unknown", "foreign", "decided", "probability", "variance", "labelled", "right"):
            setattr(self, name, getattr(self, name) + getattr(later, name))

    @property
    def measured(self) -> float:
        """The share of the labelled answers that is right; NaN if there are none."""
        return self.right / self.labelled if self.labelled else math.nan


@dataclass(slots=True)
class Watch:
    """The texts of a file, whole and in windows. ``signals``: their bins, and the counts of references, if there are any.

    ``window_texts``: of each window. It doubles whenever there are WINDOWS_MAX of them. The last window has up to half more.
    """

    signals: Sequence[Signal]
    window_texts: int
    whole: Counts = field(init=False)
    windows: list[Counts] = field(init=False, default_factory=list)
    _open: Counts = field(init=False)
    _told: MeasuredAccuracy = field(init=False)
    _all_told: MeasuredAccuracy = field(init=False)
    # By the id of the counts.
    _fits: dict[int, Fit] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.whole, self._open = self._counts(), self._counts()
        self._told, self._all_told = MeasuredAccuracy(LABELS_MAX), MeasuredAccuracy(LABELS_MAX)

    def add(self, entry: Entry) -> None:
        """Count an answered text, or a right label."""
        if isinstance(entry, Told):
            for told in (self._told, self._all_told):
                told.add(entry.key, entry.label, entry.right, entry.abstained)
            return
        values = values_of(entry.label, entry.abstained, entry.score, entry.tokens, entry.unknown or 0, entry.fragments or (0, 0))
        self._open.add(entry, [signal.place(value) for signal, value in zip(self.signals, values, strict=False)])
        if self._open.texts >= self.window_texts:
            self._close()

    def end(self) -> None:
        """Close the last window and add all up. Call it once, after the last entry."""
        if self.windows and self._open.texts < self.window_texts / 2:
            self._settle(self._open, self._told)
            self.windows[-1].join(self._open)
        else:
            self._close()
        for window in self.windows:
            self.whole.join(window)
        self._settle(self.whole, self._all_told)

    def fit(self, counts: Counts) -> Fit | None:
        """What the texts are nearest to, after ``end``; None without a reference, and with fewer than TEXTS_MIN texts."""
        return self._nearest(counts) if counts.texts >= TEXTS_MIN and self.has_reference else None

    def shifts(self, counts: Counts) -> list[Shift]:
        """How much each signal differs from the nearest reference; empty where ``fit`` is None."""
        fit = self.fit(counts)
        return [Shift(name, index, fit.thresholds[name]) for name, index in fit.indexes.items()] if fit else []

    def withheld(self, counts: Counts) -> str:
        """Why the server would state no expected accuracy of these texts: one of expected_accuracy.WITHHELD; empty if it would."""
        if not self.has_reference:
            return NO_REFERENCE
        if counts.texts < LIKE_TEXTS_MIN:
            return FEW_TEXTS
        return DRIFT if self._nearest(counts).above(UNLIKE_INDEX) else ""

    def expected(self, counts: Counts) -> tuple[float, float, float]:
        """The expected accuracy, and its 95 % interval (see ``expected_accuracy.interval``); NaN if it is withheld, or all abstain."""
        if self.withheld(counts) or not counts.decided:
            return math.nan, math.nan, math.nan
        return counts.probability / counts.decided, *interval(counts.decided, counts.probability, counts.variance)

    @property
    def has_reference(self) -> bool:
        """Whether there is something to compare with."""
        return bool(self.signals[0].counts)

    def _nearest(self, counts: Counts) -> Fit:
        if id(counts) not in self._fits:
            window = {signal.name: bins for signal, bins in zip(self.signals, counts.bins, strict=True)}
            self._fits[id(counts)] = nearest(window, {signal.name: signal.counts for signal in self.signals})
        return self._fits[id(counts)]

    def _counts(self) -> Counts:
        return Counts([[0] * len(signal.bins) for signal in self.signals])

    def _close(self) -> None:
        self._settle(self._open, self._told)
        self.windows.append(self._open)
        self._open, self._told = self._counts(), MeasuredAccuracy(LABELS_MAX)
        if len(self.windows) == WINDOWS_MAX:
            for earlier, later in zip(self.windows[::2], self.windows[1::2], strict=True):
                earlier.join(later)
            self.windows = self.windows[::2]
            self.window_texts *= 2

    def _settle(self, counts: Counts, told: MeasuredAccuracy) -> None:
        counts.labelled = told.texts()
        counts.right = round(told.mean() * counts.labelled) if counts.labelled else 0
