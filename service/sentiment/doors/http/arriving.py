"""A request as a call: its route, the caller's address and time limit."""

import re

from aiohttp import web

from sentiment.addresses import unmapped
from sentiment.call.call import Call
from sentiment.call.calls import Calls
from sentiment.errors import InvalidInput

# The format of gRPC's header grpc-timeout: 1 to 8 digits and a unit.
TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
# Set for requests that are calls, which are counted as such.
IS_CALL = web.RequestKey("is_call", bool)
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def begin_call(calls: Calls, name: str, request: web.Request) -> Call:
    """The call of a request, with the default time limit."""
    request[IS_CALL] = True
    resource = request.match_info.route.resource
    route = f"{request.method} {resource.canonical if resource is not None else name}"
    return calls.begin(name, None, request.headers.items, route, lambda: peer_of(request))


def take_time_limit(calls: Calls, request: web.Request, call: Call) -> None:
    """Set the call's deadline to the client's. Call it where errors are the call's.

    Raises:
        InvalidInput: the header is malformed.
    """
    header = request.headers.get("Grpc-Timeout")
    if header is None:
        return
    match = TIMEOUT.fullmatch(header)
    if match is None:
        raise InvalidInput("Grpc-Timeout", f"must be 1 to 8 digits and one of H M S m u n, such as 500m for 0.5 s, got {header[:32]!r}")
    call.asked_s = int(match[1]) * UNITS_S[match[2]]
    call.deadline_at = call.arrived_at + calls.bounded_s(call.asked_s)


def peer_of(request: web.Request) -> str:
    """The remote address of a request's connection, as gRPC writes it; empty if it has ended."""
    name = request.get_extra_info("peername")
    if not name:
        return ""
    host = unmapped(name[0])
    return f"ipv6:[{host}]:{name[1]}" if ":" in host else f"ipv4:{host}:{name[1]}"
