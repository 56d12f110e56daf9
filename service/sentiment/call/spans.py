"""Sets the attributes of a call's span, by OpenTelemetry's conventions for RPC and HTTP servers. Raw paths are left out, because a
caller may put anything there.
"""

import grpc

from sentiment.call.call import Call
from sentiment.call.names import path_of
from sentiment.call.status import HTTP_STATUS
from sentiment.observability.tracing.trace import Trace

# Status codes that mark a span as an error: the server's faults. A caller's mistake or cancellation is not an error of the server's span.
FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
HTTP_FAULT = 500


def end_span(call: Call, trace: Trace, code: str, seconds: float, server: bool) -> None:
    """End the span of a call with this status code. ``server``: the call came from a client, not from a front end of this server."""
    if call.served is not None:
        trace.attributes["sentiment.model"] = call.served.id
    if call.route:
        name, error = call.route, _http(call, trace, code)
    else:
        name, error = path_of(call.method), code if code in FAULTS else ""
        trace.attributes |= {"rpc.system.name": "grpc", "rpc.method": name, "rpc.response.status_code": code}
    trace.end(name, call.arrived_at, call.arrived_at + seconds, error, server)


def _http(call: Call, trace: Trace, code: str) -> str:
    method, _, path = call.route.partition(" ")
    status = HTTP_STATUS[grpc.StatusCode[code]]
    # After the head has been sent with status 200, an error is in the last line of the body.
    sent = 200 if call.head_sent else status
    trace.attributes |= {"http.request.method": method, "http.route": path, "url.scheme": "http", "http.response.status_code": sent}
    return "" if status < HTTP_FAULT else code if call.head_sent else str(status)
