"""Starts tracing if the setting is on. OpenTelemetry is only imported then."""

from sentiment.errors import BadSettings
from sentiment.observability.metrics import Metrics
from sentiment.observability.observing import Observing
from sentiment.observability.tracing.trace import Begin, Headers, Outlet, Span, Tracer


def make_tracer(wanted: bool, metrics: Metrics, process: str = "server") -> Tracer | None:
    """A tracer configured by the OTEL_ variables; None if tracing is off.

    Args:
        wanted: the setting ``tracing``.
        metrics: where spans are counted.
        process: name of this process of the server.

    Raises:
        BadSettings: the packages are missing, or a variable is invalid.
    """
    if not wanted:
        return None
    try:
        from sentiment.observability.tracing.otel import open_outlet  # noqa: PLC0415  # an extra, and half a second of imports
    except ImportError as error:
        raise BadSettings(
            f"tracing = true: {error.name or error} is not installed; run pip install 'sentiment-service[tracing]' or turn tracing off"
        ) from error
    outlet = open_outlet(metrics, process)
    return None if outlet is None else Tracer(NeverRaises(outlet, metrics.observing))


class NeverRaises:
    """An outlet whose errors cost a trace or a span, and nothing else: calls wait behind it."""

    def __init__(self, outlet: Outlet, observing: Observing) -> None:
        self._outlet, self._run = outlet, observing.run
        self.new_place = outlet.new_place
        self.close = outlet.close

    def sample(self, headers: Headers, follow: bool) -> Begin | None:
        """See Outlet."""
        return self._run("trace", self._outlet.sample, headers, follow)

    def put(self, span: Span) -> None:
        """See Outlet."""
        self._run("trace", self._outlet.put, span)
