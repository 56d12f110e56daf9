"""Durations as an HDR histogram: microseconds to ten minutes, to three digits."""

from collections.abc import Iterable
from typing import Any

from hdrh.histogram import HdrHistogram

LONGEST_US = 600_000_000
DIGITS = 3


class Durations:
    """Counts of durations (Tene's HdrHistogram). What is longer than ten minutes counts as that long."""

    def __init__(self, encoded: str = "") -> None:
        """Empty, or as ``encode`` wrote it.

        Raises:
            ValueError: that is no encoded histogram.
        """
        self._histogram: Any = HdrHistogram(1, LONGEST_US, DIGITS)  # Any: hdrh has no types
        if encoded:
            try:
                self._histogram.decode_and_add(encoded)
            except Exception as error:  # hdrh's own, zlib's and base64's
                raise ValueError(f"no HDR histogram in {len(encoded)} characters: {error}") from error

    def __len__(self) -> int:
        return int(self._histogram.total_count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Durations) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def record(self, seconds: float) -> None:
        """Count one."""
        self._histogram.record_value(min(LONGEST_US, max(0, round(seconds * 1e6))))

    def add(self, other: "Durations") -> None:
        """Count all of the other's too."""
        self._histogram.add(other._histogram)

    def percentile(self, percentile: float) -> float:
        """Seconds that so many per cent (0 to 100) do not exceed; 0 where nothing was counted."""
        return float(self._histogram.get_value_at_percentile(percentile)) / 1e6 if len(self) else 0.0

    def percentiles(self, percentiles: Iterable[float]) -> dict[float, float]:
        """Many at once, for what one takes."""
        wanted = list(percentiles)
        found = self._histogram.get_percentile_to_value_dict(wanted) if len(self) else {}
        return {percentile: float(found.get(percentile, 0)) / 1e6 for percentile in wanted}

    @property
    def mean_s(self) -> float:
        """The mean; 0 where nothing was counted."""
        return float(self._histogram.get_mean_value()) / 1e6

    @property
    def longest_s(self) -> float:
        """The longest; 0 where nothing was counted."""
        return float(self._histogram.get_max_value()) / 1e6

    def encode(self) -> str:
        """HdrHistogram's V2 form, compressed and in base64, which its tools in other languages read."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode()


def of(seconds: Iterable[float]) -> Durations:
    """The histogram of some durations."""
    durations = Durations()
    for each in seconds:
        durations.record(each)
    return durations
