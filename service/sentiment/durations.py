"""Checks durations that users give: which numbers of seconds are valid. Imports nothing but Python's own."""

from numbers import Real

# A call, a wait or a run that shall take longer is a mistake in the unit. Timers of the system take no more than some weeks.
DURATION_S_MAX = 86_400.0


def checked_s(name: str, value: object, *, least_s: float | None = None) -> float:
    """A time in seconds: more than 0, or from ``least_s``, and at most a day.

    Raises:
        TypeError: it is not a number.
        ValueError: it is out of range.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}")
    seconds = float(value)
    if not (seconds > 0 if least_s is None else seconds >= least_s) or seconds > DURATION_S_MAX:
        least = "more than 0" if least_s is None else f"at least {least_s:g}"
        raise ValueError(f"{name} must be {least} and at most {DURATION_S_MAX:g} seconds (a day), got {seconds:g}")
    return seconds
