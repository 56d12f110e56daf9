"""Durations as an HDR histogram: from one microsecond to ten minutes, with three significant digits."""

from collections.abc import Iterable
from typing import Any

from hdrh.histogram import HdrHistogram

LONGEST_US = 600_000_000
DIGITS = 3


class Durations:
    """Counts of durations (Tene's HdrHistogram). Longer durations count as ten minutes."""

    def __init__(self, encoded: str = "") -> None:
        """Start empty, or from what ``encode`` returned."""
        self._histogram: Any = HdrHistogram(1, LONGEST_US, DIGITS)  # Any: hdrh has no types
        if encoded:
            self._histogram.decode_and_add(encoded)

    def __reduce__(self) -> tuple[type["Durations"], tuple[str]]:
        return Durations, (self.encode(),)

    def __len__(self) -> int:
        return int(self._histogram.total_count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Durations) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self._histogram.record_value(min(LONGEST_US, max(0, round(seconds * 1e6))))

    def add(self, other: "Durations") -> None:
        """Add all counts of another histogram."""
        self._histogram.add(other._histogram)

    def percentile(self, percentile: float) -> float:
        """The percentile (0 to 100) in seconds; 0 if nothing was counted."""
        return float(self._histogram.get_value_at_percentile(percentile)) / 1e6 if len(self) else 0.0

    def percentiles(self, percentiles: Iterable[float]) -> dict[float, float]:
        """Several percentiles in one pass."""
        wanted = list(percentiles)
        found = self._histogram.get_percentile_to_value_dict(wanted) if len(self) else {}
        return {percentile: float(found.get(percentile, 0)) / 1e6 for percentile in wanted}

    @property
    def mean_s(self) -> float:
        """The mean; 0 if nothing was counted."""
        return float(self._histogram.get_mean_value()) / 1e6

    @property
    def longest_s(self) -> float:
        """The longest duration; 0 if nothing was counted."""
        return float(self._histogram.get_max_value()) / 1e6

    def encode(self) -> str:
        """Encode in HdrHistogram's V2 format, compressed and in base64, which HdrHistogram tools in other languages can read."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode()
