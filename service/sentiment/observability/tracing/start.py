"""Begins to trace, where that is wanted: only then OpenTelemetry is imported."""

from sentiment.errors import BadSettings
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import Tracer


def make_tracer(wanted: bool, metrics: Metrics, process: str = "server") -> Tracer | None:
    """A tracer as the OTEL_ variables say, or None: not wanted, or they switch it off.

    Args:
        wanted: the setting.
        metrics: where spans are counted.
        process: which of the server's this is.

    Raises:
        BadSettings: the packages are missing, or a variable has no acceptable value.
    """
    if not wanted:
        return None
    try:
        from sentiment.observability.tracing.otel import open_outlet  # noqa: PLC0415  # an extra, and half a second of imports
    except ImportError as error:
        raise BadSettings(
            f"tracing = true: {error.name or error} is not installed; pip install 'sentiment-service[tracing]' or switch tracing off"
        ) from error
    outlet = open_outlet(metrics, process)
    return None if outlet is None else Tracer(outlet)
