"""What the spans of a call say, in the names of OpenTelemetry's conventions for RPC and HTTP servers. Paths stay out: one may hold
anything.
"""

import grpc

from sentiment.api.grpc.call import Call
from sentiment.api.grpc.names import path_of
from sentiment.api.grpc.status import HTTP_STATUS
from sentiment.observability.tracing.trace import Trace

# The server's fault; what a caller did wrong or gave up is no error of the server's span.
FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
HTTP_FAULT = 500


def end_span(call: Call, trace: Trace, code: str, seconds: float, server: bool) -> None:
    """A call is over with this status code. ``server``: it came from outside, not from another process of this server."""
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
    # What goes wrong later is the last line's.
    sent = 200 if call.head_sent else status
    trace.attributes |= {"http.request.method": method, "http.route": path, "url.scheme": "http", "http.response.status_code": sent}
    return "" if status < HTTP_FAULT else code if call.head_sent else str(status)
