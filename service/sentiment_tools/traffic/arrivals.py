"""Arrival laws: the instants at which calls are due, whether or not earlier calls have been answered."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol, Self

from sentiment.errors import BadSettings

RATE_MAX = 1e6
# A recorded schedule is held in memory by each process that sends it.
SCHEDULE_ARRIVALS_MAX = 1_000_000
FORMS = "poisson:200, bursts:200,factor=5,on=1,every=10, steps:100x30,200x30 or schedule:FILE"


class Law(Protocol):
    """An arrival process."""

    @property
    def rate(self) -> float:
        """Mean arrivals per second."""

    @property
    def seconds(self) -> float:
        """Duration; infinite for an endless law."""

    def times(self, seed: int) -> Iterator[float]:
        """Arrival times in ascending seconds from 0. The same seed gives the same times."""

    def scaled_to(self, rate: float) -> Self:
        """The same law with another mean rate."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at a constant rate. Endless."""

    rate: float
    seconds: ClassVar[float] = math.inf

    def times(self, seed: int) -> Iterator[float]:
        """As in Law."""
        return _poisson(((self.rate, math.inf),), seed)

    def scaled_to(self, rate: float) -> "Poisson":
        """As in Law."""
        return Poisson(rate)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Poisson arrivals, ``factor`` times as fast in the last ``on_s`` of every ``every_s`` seconds. Endless.

    ``rate`` is the mean over whole periods.
    """

    rate: float
    factor: float
    on_s: float
    every_s: float
    seconds: ClassVar[float] = math.inf

    def times(self, seed: int) -> Iterator[float]:
        """As in Law."""
        quiet = self.rate * self.every_s / (self.every_s + self.on_s * (self.factor - 1))
        return _poisson(itertools.cycle(((quiet, self.every_s - self.on_s), (quiet * self.factor, self.on_s))), seed)

    def scaled_to(self, rate: float) -> "Bursts":
        """As in Law."""
        return replace(self, rate=rate)


@dataclass(frozen=True, slots=True)
class Steps:
    """Poisson arrivals whose rate changes in steps of (rate, seconds). Ends after the last step."""

    steps: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        """The sum of all steps."""
        return sum(seconds for _, seconds in self.steps)

    @property
    def rate(self) -> float:
        """Mean arrivals per second."""
        return sum(rate * seconds for rate, seconds in self.steps) / self.seconds

    def times(self, seed: int) -> Iterator[float]:
        """As in Law."""
        return _poisson(self.steps, seed)

    def scaled_to(self, rate: float) -> "Steps":
        """As in Law; the steps keep their durations."""
        factor = rate / self.rate
        return Steps(tuple((step * factor, seconds) for step, seconds in self.steps))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Recorded arrivals: at least two ascending instants in seconds, counted from the first. The seed has no effect."""

    instants: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """From the first arrival to one mean gap after the last, so that the last arrival is included."""
        return len(self.instants) / self.rate

    @property
    def rate(self) -> float:
        """Mean arrivals per second."""
        return (len(self.instants) - 1) / (self.instants[-1] - self.instants[0])

    def times(self, seed: int) -> Iterator[float]:  # noqa: ARG002  # nothing is drawn
        """As in Law."""
        first = self.instants[0]
        return (instant - first for instant in self.instants)

    def scaled_to(self, rate: float) -> "Schedule":
        """As in Law; all instants are multiplied by one factor."""
        factor = self.rate / rate
        return Schedule(tuple(instant * factor for instant in self.instants))


def _poisson(pieces: Iterable[tuple[float, float]], seed: int) -> Iterator[float]:
    """Arrivals of a Poisson process with a piecewise constant rate, given as (rate, seconds).

    Inverts the cumulative rate (Cinlar 1975): the rest of an exponential draw at the end of a piece carries over to the next piece.
    """
    rng = random.Random(seed)
    begun, due = 0.0, rng.expovariate(1.0)
    for rate, seconds in pieces:
        at = 0.0
        while due <= rate * (seconds - at):
            at += due / rate
            yield begun + at
            due = rng.expovariate(1.0)
        # An endless piece ends its loop only if its rate is 0: then no call arrives any more.
        if math.isinf(seconds):
            return
        due -= rate * (seconds - at)
        begun += seconds


def parse_law(text: str) -> Law:
    """Parse a law in one of FORMS.

    Raises:
        BadSettings: the text has another form, or its file cannot be read.
    """
    kind, _, rest = text.partition(":")
    parse = _PARSERS.get(kind)
    if parse is None or not rest:
        raise BadSettings(f"unknown law {text!r}; use {FORMS}")
    return parse(rest)


def _number(text: str, what: str, least: float = 0.0, most: float = RATE_MAX) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # A comparison with NaN is false.
    if not least < value <= most:
        raise BadSettings(f"{what} must be a number above {least:g} and at most {most:g}, got {text!r}")
    return value


def _parse_bursts(text: str) -> Law:
    rate, *options = text.split(",")
    given = dict(option.partition("=")[::2] for option in options)
    if set(given) != {"factor", "on", "every"}:
        raise BadSettings(f"bursts:{text} needs the rate and exactly factor, on and every, such as bursts:200,factor=5,on=1,every=10")
    every_s = _number(given["every"], "every of bursts")
    on_s = _number(given["on"], "on of bursts", most=every_s)
    return Bursts(_number(rate, "rate of bursts"), _number(given["factor"], "factor of bursts"), on_s, every_s)


def _parse_steps(text: str) -> Law:
    steps = []
    for step in text.split(","):
        rate, by, seconds = step.partition("x")
        if not by:
            raise BadSettings(f"step must have the form RATExSECONDS, such as 100x30, got {step!r}")
        # A rate of 0 is a pause.
        steps.append((0.0 if rate == "0" else _number(rate, "rate of a step"), _number(seconds, "seconds of a step")))
    if not any(rate for rate, _ in steps):
        raise BadSettings(f"steps:{text} has no step with a rate above 0")
    return Steps(tuple(steps))


def _parse_schedule(text: str) -> Law:
    path = Path(text)
    try:
        with path.open(encoding="utf-8") as stream:
            return Schedule(_instants(path, stream))
    except OSError as error:
        raise BadSettings(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSettings(f"{path}: not UTF-8: {error.reason}") from error


def _instants(path: Path, lines: Iterable[str]) -> tuple[float, ...]:
    instants: list[float] = []
    for number, line in enumerate(lines, 1):
        try:
            instant = float(line)
        except ValueError:
            instant = math.nan
        if not math.isfinite(instant) or (instants and instant < instants[-1]):
            raise BadSettings(f"{path}:{number}: expected seconds, no less than in the line before")
        instants.append(instant)
        if len(instants) > SCHEDULE_ARRIVALS_MAX:
            raise BadSettings(f"{path}: more than {SCHEDULE_ARRIVALS_MAX:,} arrivals, the limit")
    if len(instants) < 2 or instants[-1] <= instants[0]:
        raise BadSettings(f"{path}: expected at least two different instants, one per line; got {len(instants)} arrivals at one instant")
    return tuple(instants)


_PARSERS: dict[str, Callable[[str], Law]] = {
    "poisson": lambda text: Poisson(_number(text, "rate of poisson")),
    "bursts": _parse_bursts,
    "steps": _parse_steps,
    "schedule": _parse_schedule,
}
