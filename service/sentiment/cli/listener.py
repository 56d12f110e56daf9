"""What listens at an address that gRPC could not talk to. A few bytes over a socket tell more than gRPC's errors."""

import contextlib
import socket
import ssl
from dataclasses import dataclass

from sentiment.addresses import HTTP_PORT, NO_HOST, NOTHING, address_of, by_default_port
from sentiment.errors import BadSettings
from sentiment.security.client_credentials import Credentials

# For each connection and each answer. What answers at all does so within a round trip.
ANSWER_S = 1.0
# What an HTTP/2 client sends first: the preface and an empty SETTINGS frame. A server answers with a SETTINGS frame of its own.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HEADER_BYTES, _SETTINGS = 9, 4
_TLS_ALERT = b"\x15\x03"


@dataclass(frozen=True, slots=True)
class Listener:
    """What was seen. ``other``: a program that these credentials cannot talk to; waiting does not change it.

    ``fact``: a clause that says what is there; empty if it looks like a server.
    """

    fact: str = ""
    other: bool = False


def look(target: str, credentials: Credentials) -> Listener:
    """Look at ``host:port`` or ``unix:PATH``; other gRPC targets are not looked at. Takes at most some seconds."""
    address = address_of(target)
    if address is None:
        return Listener()
    try:
        if credentials.secure:
            return _look_for_tls(address, credentials)
        return _look_for_plaintext(address)
    except _Absent as absent:
        return Listener(f"{absent}{by_default_port(target)}")


class _Absent(Exception):
    """No connection."""


def _look_for_plaintext(address: tuple[str, int] | str) -> Listener:
    answer = _first_bytes(address)
    if _is_http2(answer):
        return Listener()
    if answer is not None and answer.startswith(b"HTTP/"):
        return Listener(HTTP_PORT, other=True)
    if answer and not answer.startswith(_TLS_ALERT):
        return Listener("another program listens there, no gRPC", other=True)
    # What expects TLS refuses the first bytes at once.
    if answer is not None and _speaks_tls(address):
        return Listener("what listens there expects TLS; use --tls, or --ca FILE with its certificate authority", other=True)
    return _no_tls(answer)


def _look_for_tls(address: tuple[str, int] | str, credentials: Credentials) -> Listener:
    if _speaks_tls(address):
        # A certificate cannot be checked against a path.
        return _handshake(address, credentials) if isinstance(address, tuple) else Listener()
    answer = _first_bytes(address)
    if _is_http2(answer):
        return Listener("the server there has no TLS; leave out --tls, --ca, --cert and --key", other=True)
    return Listener("another program listens there, without TLS", other=True) if answer else _no_tls(answer)


def _handshake(address: tuple[str, int], credentials: Credentials) -> Listener:
    """Why the TLS handshake with these credentials fails, if it does."""
    try:
        context = credentials.for_http()
        assert context is not None, "the credentials are for TLS"
        context.set_alpn_protocols(["h2"])
        with _connected(address) as plain, context.wrap_socket(plain, server_hostname=address[0]) as secure:
            secure.sendall(_PREFACE)
            # A server that refuses the client's certificate says so only now (TLS 1.3), or just closes the connection.
            why = "" if secure.recv(_HEADER_BYTES) else "it closes the connection"
    except ssl.SSLCertVerificationError as error:
        return Listener(f"the server's certificate is not trusted: {error.verify_message}; choose its authority with --ca FILE", other=True)
    except (ssl.SSLError, ConnectionError) as error:
        why = getattr(error, "reason", "") or str(error)
    except (OSError, BadSettings):
        why = ""
    hint = "" if credentials.cert_file else "; if it wants a client's certificate, give --cert and --key"
    return Listener(f"the server refuses the TLS handshake: {why}{hint}", other=True) if why else Listener()


def _no_tls(answer: bytes | None) -> Listener:
    if answer is None:
        return Listener(f"what listens there does not answer within {ANSWER_S:g} s: a server that hangs, or another program")
    # Such as Docker's: it takes connections for a container whose server does not listen yet.
    return Listener("what listens there closes connections: a forwarded port without a server yet, another program, or a server that ends")


def _is_http2(answer: bytes | None) -> bool:
    return answer is not None and len(answer) == _HEADER_BYTES and answer[3] == _SETTINGS


def _first_bytes(address: tuple[str, int] | str) -> bytes | None:
    """The answer to the beginning of HTTP/2, at most the length of a frame's header. Empty: closed; None: silence."""
    answer = b""
    with _connected(address) as connection, contextlib.suppress(ConnectionError):
        try:
            connection.sendall(_PREFACE)
            while len(answer) < _HEADER_BYTES and (got := connection.recv(_HEADER_BYTES - len(answer))):
                answer += got
        except TimeoutError:
            return answer or None
    return answer


def _speaks_tls(address: tuple[str, int] | str) -> bool:
    """Whether a TLS handshake begins, whatever the certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(address) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        # An alert comes from a TLS server, such as one that wants a client's certificate.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _connected(address: tuple[str, int] | str) -> socket.socket:
    try:
        if isinstance(address, tuple):
            return socket.create_connection(address, ANSWER_S)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_S)
        connection.connect(address)
        return connection
    except ConnectionRefusedError as error:
        raise _Absent(NOTHING) from error
    except socket.gaierror as error:
        raise _Absent(NO_HOST) from error
    except (OSError, UnicodeError) as error:
        # Among them: no such socket, no route.
        raise _Absent(f"no connection: {getattr(error, 'strerror', None) or error}") from error
