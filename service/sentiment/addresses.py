"""What addresses mean: hosts of this machine, and the targets of gRPC clients. Knows no settings and opens no connection."""

import ipaddress
import os
import re
from collections.abc import Mapping

from sentiment.errors import BadSettings

# The default server of clients and commands: the variable's, or this one.
TARGET_VARIABLE, DEFAULT_TARGET = "SENTIMENT_TARGET", "127.0.0.1:50051"
PORT_MAX = 65_535
# The port that gRPC takes if a target names none.
GRPC_PORT = 443
# Listening on these means every address of the machine.
_EVERY = {"0.0.0.0": "localhost", "[::]": "localhost"}  # noqa: S104  # addresses to replace, not to bind
# What gRPC's core reads, in this order; in capitals it reads none.
PROXY_VARIABLES, NO_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
# A target of one of gRPC's schemes is gRPC's to read.
SCHEMES = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "passthrough", "google-c2p")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

# What is said of a target, by commands and clients.
HTTP_PORT = "an HTTP/1 server listens there, no gRPC; is it the server's HTTP port?"
NOTHING = "nothing listens there"
NO_HOST = "its host name cannot be resolved"
# By what gRPC says.
_FACTS = {
    "http1.x server": HTTP_PORT,
    "backend unhealthy": "the server there is not ready: it starts, drains or hangs",
    "health check call failed": "what listens there refuses health checks: another gRPC server, or an admin port",
    "onnection refused": NOTHING,
    "Domain name not found": NO_HOST,
    "DNS resolution failed": NO_HOST,
    "No such file or directory": "there is no such socket",
}


def is_loopback(host: str) -> bool:
    """Whether a host is of this machine only: ``localhost`` or a loopback address, which IPv6 may write as ``::ffff:127.0.0.1``."""
    try:
        # Before Python 3.13 the second form does not count as loopback.
        return ipaddress.ip_address(unmapped(host)).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_called_here(host: str) -> bool:
    """Whether a call to a host stays on this machine: to any address of it, or to a name that is for it only (RFC 6761)."""
    name = host.lower().removesuffix(".")
    if name == "localhost.localdomain" or name.endswith(".localhost"):
        return True
    try:
        return is_loopback(name) or ipaddress.ip_address(unmapped(host)).is_unspecified
    except ValueError:
        return False


def near(listen: str) -> str:
    """The address that a server listens on, as a caller on its machine writes it."""
    host, _, port = listen.rpartition(":")
    return f"{_EVERY.get(host, host)}:{port}"


def unmapped(host: str) -> str:
    """An IPv4 address that a socket of both families writes as ``::ffff:192.0.2.1``, as IPv4 writes it; any other host as it is."""
    try:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped if host.startswith("::") else None
    except ValueError:
        return host
    return str(mapped or host)


def default_target() -> str:
    """The default target of clients and commands."""
    return os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET


def checked_target(target: str) -> str:
    """The target, if gRPC can take it. It names a host or a socket, which need not be there.

    Raises:
        BadSettings: it is a URL, has no host, or its port is invalid. gRPC would take another port, or look for a host of that name.
    """
    url = SCHEME.match(target)
    if url and url[1].lower() not in SCHEMES:
        place = target[url.end() :].partition("/")[0].rpartition("@")[2] or DEFAULT_TARGET
        tls = ", with --tls or --ca, in Python credentials=Credentials(tls=True)" * (url[1].lower() in ("https", "grpcs"))
        raise BadSettings(f"the target is a URL; give HOST:PORT of the gRPC port without {url[0]}, such as {place!r:.80}{tls}")
    if (parts := _host_and_port(target)) is None:
        return target
    host, port = parts
    # A comma is of gRPC's lists of addresses.
    if port is None and ":" in host and "," not in host and not _is_address(host):
        raise BadSettings(f"the target {target!r:.80} is not HOST:PORT, such as {_in_brackets(host) or DEFAULT_TARGET}")
    if not host or re.search(r"[\s/@]", host):
        raise BadSettings(f"the target {target!r:.80} names no server; give HOST:PORT, such as {DEFAULT_TARGET}")
    if port is not None and _port(port) is None:
        raise BadSettings(f"the target {target!r:.80} has no port from 1 to {PORT_MAX}; give HOST:PORT, such as {DEFAULT_TARGET}")
    return target


def address_of(target: str) -> tuple[str, int] | str | None:
    """Host and port, or the path of a Unix socket, of a target; None if only gRPC can read it."""
    if target.startswith("unix:"):
        return "/" + target.removeprefix("unix:///") if target.startswith("unix:///") else target.removeprefix("unix:")
    host, written = _host_and_port(target) or ("", None)
    port = GRPC_PORT if written is None else _port(written)
    # What still has a slash names a DNS server, or is not a target.
    return None if not host or "/" in host or port is None else (host, port)


def is_local(target: str) -> bool:
    """Whether a target is of this machine only, by its name: an address that is called here or a socket of the file system."""
    address = address_of(target)
    return _is_called_here(address[0]) if isinstance(address, tuple) else target.startswith(("unix:", "unix-abstract:"))


def proxy_variable(target: str, environment: Mapping[str, str]) -> str:
    """The variable whose proxy gRPC takes to a target; empty if it takes none.

    A proxy is for other machines: our channels to this one take none, whatever the variables say (``channel_arguments``).
    """
    variable = next((name for name in PROXY_VARIABLES if environment.get(name)), "")
    # gRPC takes no other kind of proxy.
    if not environment.get(variable, "").startswith("http://") or is_local(target):
        return ""
    address = address_of(target)
    host = address[0] if isinstance(address, tuple) else target
    direct = next((environment[name] for name in NO_PROXY_VARIABLES if environment.get(name)), "")
    return "" if any(_covers(entry.strip(), host) for entry in direct.split(",")) else variable


def channel_arguments(target: str, token_in_clear: bool = False) -> list[tuple[str, int]]:
    """Channel arguments by which a call takes the way that its target says.

    ``token_in_clear``: a token is sent without TLS, which must not leave this machine, not even by a proxy that listens on it.
    """
    return [("grpc.enable_http_proxy", 0)] if token_in_clear or is_local(target) else []


def why_token_not_sent(target: str) -> str:
    """Why a token is not sent to a target without TLS; empty if it is."""
    if is_local(target):
        return ""
    return (
        f"the token is not sent to {target}: to another machine a token is sent over TLS only; "
        "use --tls or --ca, in Python credentials=Credentials(tls=True)"
    )


def why_unanswered(target: str, details: str, environment: Mapping[str, str]) -> str:
    """Why no server answers at a target, by what gRPC says of its last try; empty if that says nothing that we know.

    gRPC's words differ between its versions: what is not known is better shown as it is. They never have a proxy's URL, only its address.
    """
    if variable := proxy_variable(target, environment):
        return f"through the proxy that {variable} names: {details}; to call it without the proxy, add its host to no_proxy"
    fact = next((fact for words, fact in _FACTS.items() if words in details), "")
    return fact + by_default_port(target) * (fact == NOTHING)


def by_default_port(target: str) -> str:
    """A remark for a target without a port."""
    parts = _host_and_port(target)
    if not parts or parts[1] is not None:
        return ""
    hint = "" if "]" in target else _in_brackets(parts[0])
    return f" (port {GRPC_PORT}, as the target names none{f'; is it {hint}?' * bool(hint)})"


def _host_and_port(target: str) -> tuple[str, str | None] | None:
    """Host, without brackets, and what is written as the port, None if nothing is; None for a target of another scheme."""
    place = re.sub(r"^(dns:///|dns:(?!//)|ipv[46]:)", "", target)
    if re.match(rf"({'|'.join(SCHEMES)}):", place):
        return None
    host, colon, port = place.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        # No colon, or an IPv6 address without brackets.
        return place.strip("[]"), None
    return host.strip("[]"), port


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _in_brackets(host: str) -> str:
    """The target that is meant by an IPv6 address with a port behind it; empty if it is not one."""
    address, _, port = host.rpartition(":")
    return f"[{address}]:{port}" if ":" in address and _is_address(address) and _port(port) else ""


def _port(written: str) -> int | None:
    port = int(written) if re.fullmatch(r"[0-9]{1,6}", written) else 0
    return port if 0 < port <= PORT_MAX else None


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of no_proxy is for a host, as gRPC's core reads it: the end of a name, or a range of addresses."""
    if not entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())
